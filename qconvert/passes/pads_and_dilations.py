"""Padding, by the operators themselves and by Pads before them, and dilation by SpaceToBatch.

fuse_pad: a Pad with real zero before a convolution becomes the convolution's own padding.

Exact: a convolution pads with real zero, which is the zero point that the Pad writes. onnxruntime runs one kernel instead of two.

separate_pads: a SpaceToBatch whose kernel fills what it pads wrongly gets its data from a Pad. Exact.

    SpaceToBatch (pads 1, 1)        Pad (1, 1) -> SpaceToBatch (pads 0, 0)

Exporters write dilated convolutions between such operators; tflite-micro's kernel pads integers with 0, and floats with what the memory
holds.

fuse_dilation: SpaceToBatch, a convolution with stride 1 and BatchToSpace become one dilated convolution.

    x -> SpaceToBatch(d; p) -> Conv(dilation e, pads q) -> BatchToSpace(d; c)      is
    x -> Conv(dilation d * e, pads p + d * q - c)

Exact: each sum has the same terms, as both pad with real zero. TensorFlow's converter writes dilated convolutions so, after a new axis
before Conv1D. What is computed at run time may be fused too, as long as p - c is one number: the part of the padding that fills the
last block is cropped again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.polynomials import number, subtract_polynomials
from qconvert.errors import format_count, format_verb
from qconvert.evaluate.known_values import KnownSizes
from qconvert.graph import Graph, Op, integer_range
from qconvert.operators import kind_of
from qconvert.operators.call import spatial_axes
from qconvert.operators.space import block_axes
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Pattern, Rewriter, find_matches


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
    spatial = spatial_axes(reader, rank)
    others = set(range(rank)).difference(spatial)
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


_SPLIT = Pattern("SpaceToBatch", name="split")
_PLAIN = Pattern("BatchToSpace", Pattern("Conv", _SPLIT, name="conv"), name="join")
_WIDE_CONV = Pattern("Conv", Pattern("Unsqueeze", _SPLIT, name="unsqueeze"), name="conv")
_WIDE = Pattern("BatchToSpace", Pattern("Squeeze", _WIDE_CONV, name="squeeze"), name="join")


def fuse_dilation(graph: Graph, target: Target | None) -> PassResult:
    """Fuse every such three operators between which nothing else reads."""
    if not graph.of_kind("BatchToSpace"):
        return graph, ()
    rewriter = Rewriter(graph)
    sizes = KnownSizes(graph.tensors, rewriter.producers)
    for match in (*find_matches(graph, _PLAIN), *find_matches(graph, _WIDE)):
        attributes = _find_dilation(graph, sizes, match.named)
        if attributes is None:
            continue
        for op in match.ops:
            rewriter.remove(op)
        rewriter.replace(match.named["join"], *_fuse_convolution(rewriter, match.named, attributes))
    return rewriter.finish_with(
        lambda count: f"{format_count(count, 'convolution')} between SpaceToBatch and BatchToSpace {format_verb(count, 'become')} dilated",
        prune=True,
    )


def _axis(graph: Graph, op: Op, wide: str) -> int | None:
    """Return the one axis that an Unsqueeze adds or a Squeeze takes away, in the wide tensor; None if it is not one."""
    axes, rank = graph.constant(op.inputs[1]), graph[wide].rank
    return None if axes is None or axes.size != 1 or not rank else int(axes.flat[0]) % rank


def _find_dilation(graph: Graph, sizes: KnownSizes, named: Mapping[str, Op]) -> dict[str, tuple[int, ...]] | None:
    """Return the dilations and pads of the one convolution; None if it is not one."""
    conv, split, join = named["conv"], named["split"], named["join"]
    wide = {"unsqueeze": conv.inputs[0], "squeeze": conv.name}
    axes = {_axis(graph, named[name], tensor) for name, tensor in wide.items() if name in named}
    if len(axes) > 1 or None in axes:
        return None
    new = next(iter(axes), None)
    blocks, same = (sizes.get(op.inputs[1]) for op in (split, join))
    pads, crops = (sizes.get(op.inputs[2]) for op in (split, join))
    count = len(conv["strides"])
    is_plain = set(conv["strides"]) == {1} and conv["auto_pad"] == "NOTSET"
    if not is_plain or blocks is None or blocks != same or pads is None or crops is None or not len(pads) == len(crops) == 2 * len(blocks):
        return None
    data = graph[split.inputs[0]]
    (first,) = block_axes(str(split["data_format"]), data.rank or 0, 1)
    front = 1 if conv["data_format"] == "channels_last" else 2
    dilations, edges = list(conv["dilations"]), list(conv["pads"])
    for i, block in enumerate(blocks):
        axis = first + i
        place = axis + int(new is not None and axis >= new) - front
        factor = number(block)
        if factor is None or not 0 <= place < count:
            return None
        dilations[place] *= factor
        for side in (0, 1):
            difference = subtract_polynomials(pads[side * len(blocks) + i], crops[side * len(blocks) + i])
            extra = None if difference is None else number(difference)
            if extra is None:
                return None
            edges[side * count + place] = edges[side * count + place] * factor + extra
    if min(edges) < 0 or split["data_format"] != join["data_format"]:
        return None
    return {"dilations": tuple(dilations), "pads": tuple(edges)}


def _fuse_convolution(rewriter: Rewriter, named: Mapping[str, Op], attributes: dict[str, tuple[int, ...]]) -> list[Op]:
    """Return the operators that take the place of the pattern; tensors between them have new names, as they are not in blocks."""
    graph, data, result = rewriter.graph, named["split"].inputs[0], named["join"].outputs[0]
    conv = named["conv"].with_attributes(**attributes)
    if "squeeze" not in named:
        return [replace(conv.with_input(0, data), outputs=(result,))]
    unsqueeze, squeeze = named["unsqueeze"], named["squeeze"]
    axis = _axis(graph, unsqueeze, unsqueeze.name)
    names = []
    for name, other in ((unsqueeze.name, data), (conv.name, result)):
        shape = graph[other].shape
        whole = None if shape is None or axis is None else (*shape[:axis], 1, *shape[axis:])
        names.append(rewriter.add(f"{other}/wide", graph[name], shape=whole))
    steps = ((unsqueeze, data, names[0]), (conv, names[0], names[1]), (squeeze, names[1], result))
    return [replace(op.with_input(0, source), outputs=(end,)) for op, source, end in steps]
