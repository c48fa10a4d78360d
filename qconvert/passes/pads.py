"""Padding, by the operators themselves and by Pads before them.

fuse_pad: a Pad with real zero before a convolution becomes the convolution's own padding.

Exact: a convolution pads with real zero, which is the zero point that the Pad writes. onnxruntime runs one kernel instead of two.

separate_pads: a SpaceToBatch whose kernel fills what it pads wrongly gets its data from a Pad. Exact.

    SpaceToBatch (pads 1, 1)        Pad (1, 1) -> SpaceToBatch (pads 0, 0)

Exporters write dilated convolutions between such operators; tflite-micro's kernel pads integers with 0, and floats with what the memory
holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Graph, Op, integer_range
from qconvert.operators import kind_of
from qconvert.operators.space import block_axes
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def fuse_pad(graph: Graph, target: Target) -> PassResult:
    """Fuse every Pad of spatial dimensions alone that only convolutions with explicit padding read."""
    return fuse_pads(graph, lambda op: _pads_real_zero(graph, op))


def fuse_pads(graph: Graph, wanted: Callable[[Op], bool]) -> PassResult:
    """Fuse those Pads that are wanted, also with what never wins into the largest values of windows."""
    rewriter = Rewriter(graph)
    count = 0
    for op in rewriter.of_kind("Pad"):
        if op["mode"] != "constant" or op.name in graph.public or not wanted(op):
            continue
        readers = rewriter.readers[op.name]
        padded = [new for reader in readers if (new := _with_padding(graph, op, reader)) is not None]
        if not readers or len(padded) < len(readers):
            continue
        rewriter.remove(op)
        for reader, new in zip(readers, padded, strict=True):
            rewriter.replace(reader, new)
        count += 1
    return rewriter.finish_with("{} Pad operators are padding of the operators after them".format, count)


def _pads_smallest(graph: Graph, op: Op) -> bool:
    """Whether a Pad fills with the smallest value there is."""
    filler, result = graph.constant(op.input(2)), graph[op.name]
    if filler is None:
        zero = 0 if result.quantization is None else result.quantization.point
        return "int" in result.dtype and zero == integer_range(result.dtype)[0]
    return bool(np.all(filler == (integer_range(result.dtype)[0] if "int" in result.dtype else -np.inf)))


def _pads_real_zero(graph: Graph, op: Op) -> bool:
    if not op.has(2):
        return True
    filler, quantization = graph.constant(op.inputs[2]), graph[op.name].quantization
    zero = 0 if quantization is None else quantization.point
    return filler is not None and bool(np.all(np.asarray(filler) == zero))


def _with_padding(graph: Graph, pad: Op, reader: Op) -> Op | None:
    """Return `reader` with the padding of the Pad that it reads; None if it cannot take that over."""
    amounts, kind = graph.constant(pad.inputs[1]), kind_of(reader)
    if not kind.has_windows or reader["auto_pad"] != "NOTSET" or pad.name != reader.inputs[0] or amounts is None:
        return None
    if not (_pads_real_zero(graph, pad) if kind.has_weights else kind.rule == "move" and _pads_smallest(graph, pad)):
        return None
    rank = len(amounts) // 2
    spatial = list(range(1, rank - 1)) if reader["data_format"] == "channels_last" else list(range(2, rank))
    others = set(range(rank)) - set(spatial)
    if (amounts < 0).any() or any(amounts[axis] or amounts[rank + axis] for axis in others):
        return None
    extra = [int(amounts[side + axis]) for side in (0, rank) for axis in spatial]
    pads = tuple(own + more for own, more in zip(reader["pads"], extra, strict=True))
    return reader.with_attributes(pads=pads).with_input(0, pad.inputs[0])


def separate_pads(graph: Graph, target: Target | None) -> PassResult:
    """Put a Pad before each operator of which the target's kernels say a fault."""
    if target is None:
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("SpaceToBatch"):
        if target.kernels.fault(graph, op):
            _separate_pad(rewriter, op)
    return rewriter.finish_with(lambda count: f"{format_count(count, 'SpaceToBatch operator')} padded by a Pad")


def _separate_pad(rewriter: Rewriter, op: Op) -> None:
    """Replace an operator, where its pads and the rank of its data are known."""
    graph, data = rewriter.graph, rewriter.graph[op.inputs[0]]
    pads, blocks = graph.constant(op.inputs[2]), graph.constant(op.inputs[1])
    if pads is None or blocks is None or data.shape is None:
        return
    widths = np.zeros((2, len(data.shape)), np.int64)
    widths[:, block_axes(str(op["data_format"]), len(data.shape), blocks.size)] = np.split(pads.reshape(-1), 2)
    padded = rewriter.pad(data, widths.reshape(-1).tolist(), op.name, op.source)
    unpadded = rewriter.constant(f"{op.name}/unpadded", [0] * pads.size)
    rewriter.replace(op, replace(op, inputs=(padded, op.inputs[1], unpadded)))
