"""fuse_pad: a Pad with real zero before a convolution becomes the convolution's own padding.

Exact: a convolution pads with real zero, which is the zero point that the Pad writes. onnxruntime runs one kernel instead of two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.graph import Graph, Op, integer_range
from qconvert.plugins import Target

__all__ = ["fuse_pads", "run"]


def run(graph: Graph, target: Target) -> tuple[Graph, tuple[str, ...]]:
    """Fuses every Pad of spatial dimensions alone that only convolutions with explicit padding read."""
    return fuse_pads(graph, lambda op: len(op.inputs) < 3 or not op.inputs[2] or _pads_real_zero(graph, op))


def fuse_pads(graph: Graph, wanted: Callable[[Op], bool]) -> tuple[Graph, tuple[str, ...]]:
    """Fuses those Pads that are wanted, also with what never wins into the largest values of windows."""
    consumers = graph.consumers()
    fused: dict[str, tuple[Op, tuple[int, ...]]] = {}
    for op in graph.ops:
        if op.kind != "Pad" or op["mode"] != "constant" or not wanted(op):
            continue
        readers = consumers.get(op.outputs[0], [])
        if op.outputs[0] in graph.public or not readers:
            continue
        pads = [_spatial_pads(graph, op, reader) for reader in readers]
        if all(found is not None for found in pads):
            assert pads[0] is not None
            fused[op.outputs[0]] = (op, pads[0])
    if not fused:
        return graph, ()
    ops = [_with_padding(op, fused) for op in graph.ops if fused.keys().isdisjoint(op.outputs)]
    return graph.evolve(ops=ops), (f"{len(fused)} Pad operators became padding of the operators behind them",)


def _pads_smallest(graph: Graph, op: Op) -> bool:
    """Whether a Pad fills with the smallest value there is."""
    filler, result = graph.constant(op.inputs[2]) if op.has(2) else None, graph[op.outputs[0]]
    if filler is None:
        zero = 0 if result.quantization is None else int(result.quantization.zero_point[0])
        return "int" in result.dtype and zero == integer_range(result.dtype)[0]
    return bool(np.all(filler == (integer_range(result.dtype)[0] if "int" in result.dtype else -np.inf)))


def _pads_real_zero(graph: Graph, op: Op) -> bool:
    if len(op.inputs) < 3 or not op.inputs[2]:
        return True
    filler, quantization = graph.constant(op.inputs[2]), graph[op.outputs[0]].quantization
    zero = 0 if quantization is None else int(quantization.zero_point[0])
    return filler is not None and bool(np.all(np.asarray(filler) == zero))


def _spatial_pads(graph: Graph, pad: Op, reader: Op) -> tuple[int, ...] | None:
    """(begins, ends) over the spatial dimensions if `reader` can take the padding over, else None."""
    amounts = graph.constant(pad.inputs[1])
    fits = {"Conv": _pads_real_zero, "MaxPool": _pads_smallest}.get(reader.kind)
    if fits is None or not fits(graph, pad) or reader["auto_pad"] != "NOTSET" or pad.outputs[0] != reader.inputs[0] or amounts is None:
        return None
    rank = len(amounts) // 2
    spatial = list(range(1, rank - 1)) if reader["data_format"] == "channels_last" else list(range(2, rank))
    others = set(range(rank)) - set(spatial)
    if (amounts < 0).any() or any(amounts[axis] or amounts[rank + axis] for axis in others):
        return None
    return tuple(int(amounts[axis]) for axis in spatial) + tuple(int(amounts[rank + axis]) for axis in spatial)


def _with_padding(op: Op, fused: dict[str, tuple[Op, tuple[int, ...]]]) -> Op:
    if not op.inputs or op.inputs[0] not in fused:
        return op
    pad, extra = fused[op.inputs[0]]
    pads = tuple(own + more for own, more in zip(op["pads"], extra, strict=True))
    moved = op.with_attributes(pads=pads)
    return Op(moved.kind, (pad.inputs[0], *op.inputs[1:]), op.outputs, moved.attributes, op.source)
