"""Shapes of operator outputs, worked out by the rules of their kinds. A size dynamic is a string.

A rule gets the operator and a ShapeContext (sizes.py) and gives a shape for each output; None means that not even the
rank is known. UNKNOWN ("?") is an unknown size; infer() names it after tensor and axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qconvert.graph.schema import Graph, Op, Shape, Tensor
from qconvert.operators import kind_of
from qconvert.operators.sizes import UNKNOWN, Known, Result, ShapeContext, Size, failure

__all__ = ["UNKNOWN", "ShapeContext", "infer", "is_compatible", "merge_shapes", "output_shapes"]


def output_shapes(tensors: Mapping[str, Tensor], op: Op, known: Known | None = None) -> Result:
    """The shapes that the rule of `op` gives its outputs.

    Args:
        tensors: every input of `op`, by name.
        op: of a kind in KINDS, with the arity and the attributes that its kind asks for.
        known: tells of integers that are computed at run time.

    Raises:
        InvalidGraphError: inputs and attributes contradict each other; the error names the operator.
    """
    try:
        return kind_of(op).shape(op, ShapeContext(tensors, op, known))
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise failure(op, f"its inputs or attributes do not fit its kind ({error})", rule="wrong-arguments") from error


def is_compatible(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes can be of one tensor: equal rank, and equal numbers wherever both have numbers."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(x == y or isinstance(x, str) or isinstance(y, str) for x, y in zip(a, b, strict=True))


def infer(graph: Graph) -> Graph:
    """The graph with the shape of every operator output worked out again; what was known more exactly is kept.

    Raises:
        InvalidGraphError: a shape contradicts what its operator gives, or inputs contradict each other.
    """
    tensors = dict(graph.tensors)
    for op in graph.ops:
        for name, shape in zip(op.outputs, output_shapes(tensors, op), strict=True):
            if not name:
                continue
            old = tensors[name].shape
            if not is_compatible(old, shape):
                raise failure(op, f"gives {name!r} the shape {shape}, but the graph states {old}", rule="shape-mismatch")
            tensors[name] = replace(tensors[name], shape=merge_shapes(name, shape, old))
    return replace(graph, tensors=tensors)


def merge_shapes(name: str, inferred: Shape | None, old: Shape | None) -> Shape | None:
    """The more exact of two compatible shapes; what neither knows is named after tensor `name` and axis."""
    if inferred is None:
        return old
    known = (UNKNOWN,) * len(inferred) if old is None else old
    return tuple(_merge_size(f"{name}_{axis}", *sizes) for axis, sizes in enumerate(zip(inferred, known, strict=True)))


def _merge_size(fresh: str, inferred: Size, old: Size) -> Size:
    if isinstance(inferred, int) or isinstance(old, int):
        return inferred if isinstance(inferred, int) else old
    return next((size for size in (inferred, old) if size != UNKNOWN), fresh)
