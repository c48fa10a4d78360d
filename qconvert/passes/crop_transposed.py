"""crop_transposed: a transposed convolution that pads one end more than the other gets a Slice after it. Exact.

    ConvTranspose (pads 0, 0, 1, 1)        ConvTranspose (pads 0, 0, 0, 0) -> Slice

TensorFlow's SAME gives such pads. Importers of ONNX take equal ones alone (torch-mlir's, which IREE has).
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.errors import format_count
from qconvert.graph import Graph
from qconvert.graph.schema import Op
from qconvert.operators.sizes import explicit_pads
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Put a Slice after each of them whose sizes are known."""
    rewriter, count = Rewriter(graph), 0
    for op in rewriter:
        if op.kind == "ConvTranspose":
            count += _crop(rewriter, op)
    return rewriter.finish(), (f"{format_count(count, 'ConvTranspose operator')} cropped by a Slice",) if count else ()


def _crop(rewriter: Rewriter, op: Op) -> bool:
    """Replace an operator whose pads are unequal, where the sizes of its result are known."""
    result = rewriter.graph[op.outputs[0]]
    sizes = [size for size in result.shape or () if isinstance(size, int)]
    if not sizes or len(sizes) < len(result.shape or ()):
        return False
    first = 1 if op["data_format"] == "channels_last" else 2
    pads = explicit_pads(op, len(sizes) - 2)
    if all(low == high for low, high in pads):
        return False
    starts = [low - min(low, high) for low, high in pads]
    wide, axes = list(sizes), [*range(first, first + len(pads))]
    for axis, (low, high) in zip(axes, pads, strict=True):
        wide[axis] += low + high - 2 * min(low, high)
    ends = [start + sizes[axis] for axis, start in zip(axes, starts, strict=True)]
    whole = rewriter.add(f"{result.name}/whole", result, shape=tuple(wide))
    equal = tuple(min(low, high) for low, high in pads)
    bounds = [rewriter.constant(f"{result.name}/{name}", values) for name, values in (("starts", starts), ("ends", ends), ("axes", axes))]
    cropped = Op("Slice", (whole, *bounds), (result.name,), {}, op.source)
    rewriter.replace(op, replace(op.with_attributes(pads=(*equal, *equal)), outputs=(whole,)), cropped)
    return True
