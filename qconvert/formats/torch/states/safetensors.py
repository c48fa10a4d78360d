"""Tensors in .safetensors files, torchao's put together from their parts.

torchao stores a quantized weight as several tensors, `0._weight_qdata`, `0._weight_scale` …. The metadata have a JSON text under the name
of the weight, with its class, the names of its parts and further attributes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.arithmetic.dtypes import canonical_dtype
from qconvert.checkpoints.safetensors import read_checkpoint
from qconvert.errors import InvalidModelError
from qconvert.formats.torch.stored_values import StoredTensor, TorchType, WrappedTensor

__all__ = ["safe_tensors"]


def safe_tensors(path: Path) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors of a file and of the others of its checkpoint, by name.

    Raises:
        QConvertError: see read_checkpoint().
    """
    found = read_checkpoint(path)
    tensors = {name: StoredTensor(array, canonical_dtype(array.dtype), array.shape) for name, array in found.tensors.items()}
    try:
        return _join_parts(tensors, {name: json.loads(text) for name, text in found.metadata.items() if text[:1] == "{"})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModelError(f"the header is damaged: {type(error).__name__} {error}", rule="damaged-header") from error


def _join_parts(tensors: dict[str, StoredTensor], classes: Mapping[str, Mapping[str, Any]]) -> dict[str, StoredTensor | WrappedTensor]:
    """The tensors, those of torchao's classes put together from their parts."""
    found: dict[str, StoredTensor | WrappedTensor] = dict(tensors)
    for name, said in classes.items():
        if said.get("_type") == "Tensor":
            continue
        module, _, own = name.rpartition(".")
        names = {part: f"{module}{'.' if module else ''}_{own}_{part}" for part in said["_tensor_data_names"]}
        parts = {part: found.pop(key) for part, key in names.items()}
        kept = {key: _value(value) for key, value in said["_data"].items()}
        shape = parts["qdata"].shape if "qdata" in parts else ()
        found[name] = WrappedTensor(f"torchao.quantization.{said['_type']}", shape, {**kept, **parts})
    return found


def _value(value: Any) -> Any:
    """What a part is that is no tensor: dtypes are objects of their own."""
    if isinstance(value, dict) and value.get("_type") == "torch.dtype":
        return TorchType(str(value.get("_data")))
    return value
