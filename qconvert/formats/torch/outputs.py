"""The results of a program as outputs of a graph."""

from __future__ import annotations

from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.constants import Constants
from qconvert.formats.torch.stored_values import StoredTensor
from qconvert.formats.torch.values import Ref, Uncomputed

__all__ = ["flatten_outputs"]


def flatten_outputs(result: Any, constants: Constants) -> list[str]:
    """The names of the tensors in what a program returns, in order: one, or those in tuples, lists and dictionaries.

    Raises:
        UnsupportedError: something in it is no tensor.
    """
    if isinstance(result, Ref):
        return [result.name]
    if isinstance(result, StoredTensor):
        return [constants.ref(result, "output").name]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [name for item in result if item is not None for name in flatten_outputs(item, constants)]
    if isinstance(result, Uncomputed):
        raise UnsupportedError(f"an output that is {result.what} is not covered", rule="output-not-a-tensor")
    raise UnsupportedError(f"an output that is {type(result).__name__}, not a tensor, is not covered", rule="output-not-a-tensor")
