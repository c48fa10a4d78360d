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
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Put a Slice after each ConvTranspose whose pads are unequal, where the spatial sizes of its result are known."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("ConvTranspose"):
        _crop(rewriter, op)
    return rewriter.finish_with(lambda count: f"{format_count(count, 'ConvTranspose operator')} cropped by a Slice")


def _crop(rewriter: Rewriter, op: Op) -> None:
    result = rewriter.graph[op.name]
    if result.shape is None:
        return
    first, pads = 1 if op["data_format"] == "channels_last" else 2, explicit_pads(op, len(result.shape) - 2)
    axes = [*range(first, first + len(pads))]
    sizes = [size for axis in axes if isinstance(size := result.shape[axis], int)]
    if len(sizes) < len(axes) or all(low == high for low, high in pads):
        return
    wide: list[int | str] = list(result.shape)
    starts = [low - min(low, high) for low, high in pads]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    for axis, size, (low, high) in zip(axes, sizes, pads, strict=True):
        wide[axis] = size + abs(high - low)
    whole = rewriter.add(f"{result.name}/whole", result, shape=tuple(wide))
    equal = tuple(min(low, high) for low, high in pads)
    bounds = [rewriter.constant(f"{result.name}/{name}", values) for name, values in (("starts", starts), ("ends", ends), ("axes", axes))]
    cropped = op.derive("Slice", (whole, *bounds), (result.name,))
    rewriter.replace(op, replace(op.with_attributes(pads=(*equal, *equal)), outputs=(whole,)), cropped)
