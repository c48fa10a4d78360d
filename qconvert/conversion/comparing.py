"""diff(): how the graphs of two models differ."""

from __future__ import annotations

from typing import Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.checkpoints.comparing import checkpoint_differences
from qconvert.checkpoints.safetensors import is_checkpoint
from qconvert.conversion.in_memory import Model, as_file
from qconvert.conversion.loading import load
from qconvert.conversion.read_options import load_pair
from qconvert.graph import Graph
from qconvert.plugins.option_types import ReadOptions
from qconvert.rules import differences

__all__ = ["diff"]


@with_checked_arguments
def diff(a: Model, b: Model, *, exact: bool = False, a_format: str = "", b_format: str = "", **options: Unpack[ReadOptions]) -> list[str]:
    """What differs between two models, one line each; empty if their graphs are equal.

    Of two checkpoints (.safetensors) the weights are compared, whatever container each is in, without options for a graph.

    Args:
        a, b: before and after: files, folders of checkpoints, bytes or graphs.
        exact: whether every name, the order and sources of operators, signatures and metadata count too.
        a_format, b_format: names of formats, if suffixes and contents do not determine them.
        options: of the readers; what both take is meant for the first. What is not given for it is what the second says of its conversion.

    Raises:
        QConvertError: one cannot be read, or nobody takes an option.
    """
    if isinstance(a, Graph) or isinstance(b, Graph):
        return differences.diff(load(a, a_format, **options), load(b, b_format), exact=exact)
    with as_file(a, a_format) as before, as_file(b, b_format) as after:
        if not options and is_checkpoint(before) and is_checkpoint(after):
            return checkpoint_differences(before, after)
        return differences.diff(*load_pair(before, after, options, (a_format, b_format)), exact=exact)
