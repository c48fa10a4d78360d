"""Weights of 8 unsigned bits as weights of 8 signed bits without a zero point, though some do not fit.

onnxruntime's fast kernels (convsym.cpp of MLAS) take signed weights with zero point 0 alone. Of uint8 weights less their zero point few
are beyond int8: one to three of a layer in networks that TensorFlow trained for uint8.

split_wide_weights: such a weight becomes two weights, on a channel of the data and on a copy of it; of a depthwise convolution, whose
results have one channel each, the 16 channels around it get a convolution of their own.

    x -> Conv -> y              is   x, Slice(x) -> Concat -> Conv -> y
    x -> depthwise Conv -> y    is   x -> Split -> three depthwise Convs -> Concat -> y

Exact: the sums are the same. Measured with VNNI (docs/measured/forms.md): a convolution of either kind takes 0.5 to 0.8 of the time, copies
included. join_wide_weights reads both back: weights on copies are 128 less the zero point, or 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.kernels.products import channel_axis
from qconvert.operators import kind_of
from qconvert.passes.pixels import convolutions_of_bytes
from qconvert.passes.stored_types import as_signed
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

#: Of the names of what is computed with some channels alone.
_SUFFIX = "/channels"
#: Channels that the kernels take at once: of the data, of the results.
_DATA, _RESULTS = 4, 16
#: Channels up to which all are copied, which needs no Slice.
_ALL_COPIED = 16
#: Results of a pixel, for a Concat and for each Slice, from which on the faster kernel gains more than these cost.
_LEAST_RESULTS = 48
#: Depthwise channels, for each step of the window, from which on the faster kernel gains more than Split, Concat and further windows cost.
_LEAST_DEPTHWISE = 144
#: Elements of the result from which on further nodes cost less than they gain.
_LEAST_ELEMENTS = 2**15


def split_wide_weights(graph: Graph, target: Target | None, *, weights_by_cpu: bool = False) -> PassResult:
    """Give each convolution, channels last, whose uint8 weights have one zero point other than 128 signed weights where kernels are faster.

    See convolutions_of_bytes() for targets that gain nothing.
    """
    rewriter = Rewriter(graph)
    for op in convolutions_of_bytes(rewriter, target, weights_by_cpu):
        if _has_unsigned_weights(graph, op):
            (_replace_dense if op["group"] == 1 else _replace_depthwise)(rewriter, op)
    return rewriter.finish_with(
        lambda count: (
            f"{format_count(count, 'convolution', 'have')} int8 weights, those beyond it as two or apart, for which kernels are faster"
        )
    )


def _has_unsigned_weights(graph: Graph, op: Op) -> bool:
    """Whether a convolution has uint8 weights with one quantization, whose zero point is not 128, and many results."""
    weights, q = graph[op.inputs[1]], graph[op.inputs[1]].per_tensor
    elements = math.prod(int(size) for size in (graph[op.name].shape or ())[1:])
    return weights.dtype == "uint8" and q is not None and q.point not in (0, 128) and elements >= _LEAST_ELEMENTS


def _find_wide(weights: Tensor) -> tuple[Array, Array]:
    """Return weights less their zero point, and which of them int8 does not hold."""
    assert weights.data is not None
    whole = weights.data.astype(np.int16) - weights.require_quantization().point
    return whole, (whole < -128) | (whole > 127)


def _replace_dense(rewriter: Rewriter, op: Op) -> None:
    """Put a convolution of the data and copies of some of its channels in the place of one with as many results as data, or more."""
    data, weights = (rewriter[name] for name in op.inputs[:2])
    assert weights.data is not None and data.shape is not None
    results, channels = weights.data.shape[:2]
    if channels % _DATA or results % _RESULTS or results < channels:
        return
    whole, wide = _find_wide(weights)
    if not wide.any():
        wide.flat[np.abs(whole).argmax()] = True  # the zero point is read from the copy
    parts = [slice(0, channels)] if channels <= _ALL_COPIED else _find_runs(np.any(wide, axis=(0, 2, 3)), _DATA)
    copied = [data.name if part == slice(0, channels) else "" for part in parts]
    if results < _LEAST_RESULTS * (1 + copied.count("")):
        return
    rest = 128 - weights.require_quantization().point
    signed = np.where(wide, whole - rest, whole)
    more = [np.where(wide[:, part], rest, 0) for part in parts]
    read = [data.name, *(name or _slice(rewriter, op, data, part) for name, part in zip(copied, parts, strict=True))]
    name = _add_weights(rewriter, weights, np.concatenate([signed, *more], axis=1).astype(np.int8))
    joined = rewriter.add(f"{data.name}/copied{_SUFFIX}", data, shape=(*data.shape[:3], (rewriter[name].shape or ())[1]))
    rewriter.emit(op.derive("Concat", tuple(read), (joined,), axis=3))
    rewriter.replace(op, replace(op, inputs=(joined, name, *op.inputs[2:])))


def _replace_depthwise(rewriter: Rewriter, op: Op) -> None:
    """Put depthwise convolutions of parts of the channels in the place of one; int8 holds the weights of all parts but one."""
    data, weights, result = (rewriter[name] for name in (*op.inputs[:2], op.name))
    assert weights.data is not None and data.shape is not None and result.shape is not None
    channels, depth = weights.data.shape[:2]
    if op["group"] != channels or depth != 1 or channels % _RESULTS or channels < _LEAST_DEPTHWISE * max(op["strides"]):
        return
    whole, wide = _find_wide(weights)
    apart = _find_runs(np.any(wide, axis=(1, 2, 3)), _RESULTS)
    if len(apart) != 1 or apart[0].stop - apart[0].start > _RESULTS:
        return
    bounds = sorted({0, channels, apart[0].start, apart[0].stop})
    parts = [slice(*pair) for pair in pairwise(bounds)]
    found: list[tuple[str, Op, str]] = []
    for part in parts:
        size = part.stop - part.start
        read, written = (
            rewriter.add(f"{tensor.name}{_SUFFIX}", tensor, shape=(*(tensor.shape or ())[:3], size)) for tensor in (data, result)
        )
        if part in apart:
            names = [rewriter.add(f"{weights.name}{_SUFFIX}", weights, shape=(size, *weights.data.shape[1:]), data=weights.data[part])]
        else:
            names = [_add_weights(rewriter, weights, whole[part].astype(np.int8))]
        if op.has(2):
            names.append(_take_rows(rewriter, rewriter[op.inputs[2]], part, channels))
        conv = replace(op, inputs=(read, *names), outputs=(written,)).with_attributes(group=size)
        found.append((read, conv, written))
    sizes = rewriter.constant(f"{data.name}/sizes{_SUFFIX}", [part.stop - part.start for part in parts])
    split = op.derive("Split", (data.name, sizes), tuple(read for read, _, _ in found), axis=3)
    concat = op.derive("Concat", tuple(written for *_, written in found), (result.name,), axis=3)
    rewriter.replace(op, split, *(conv for _, conv, _ in found), concat)


def _find_runs(marked: Array, size: int) -> list[slice]:
    """Return the ranges of adjacent blocks of `size` elements that have a marked one."""
    blocks: list[bool] = [bool(block.any()) for block in np.reshape(marked, (-1, size))]
    runs, place = [], 0
    for is_marked, run in groupby(blocks):
        length = len(list(run)) * size
        runs += [slice(place, place + length)] if is_marked else []
        place += length
    return runs


def _slice(rewriter: Rewriter, op: Op, data: Tensor, part: slice) -> str:
    """Put a Slice of channels before the operator that is visited; return its result."""
    bounds = [
        rewriter.constant(f"{data.name}/{word}{_SUFFIX}", [value])
        for word, value in (("starts", part.start), ("ends", part.stop), ("axes", 3))
    ]
    result = rewriter.add(f"{data.name}{_SUFFIX}", data, shape=(*(data.shape or ())[:3], part.stop - part.start))
    rewriter.emit(op.derive("Slice", (data.name, *bounds), (result,)))
    return result


def _add_weights(rewriter: Rewriter, weights: Tensor, data: Array) -> str:
    """Add int8 weights with the scale of uint8 ones and zero point 0."""
    quantization = Quantization.per_tensor(weights.require_quantization().step, 0)
    return rewriter.add(f"{weights.name}{_SUFFIX}", weights, dtype="int8", shape=data.shape, data=data, quantization=quantization)


def _take_rows(rewriter: Rewriter, bias: Tensor, part: slice, count: int) -> str:
    """Add the part of a bias that belongs to some channels."""
    assert bias.data is not None
    data = np.broadcast_to(bias.data.reshape(-1), (count,))[part]
    q = None if bias.quantization is None else bias.quantization.take(part)
    return rewriter.add(f"{bias.name}{_SUFFIX}", bias, shape=data.shape, data=data, quantization=q)


def join_wide_weights(graph: Graph, target: Target | None) -> PassResult:
    """Restore each convolution with uint8 weights from one of copied channels, or from several of parts of the channels."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        if kind_of(op).convolves and op["group"] == 1:
            _join_dense(rewriter, op)
        elif op.kind == "Concat":
            _join_depthwise(rewriter, op)
    return rewriter.finish_with(lambda count: f"{format_count(count, 'convolution', 'have')} their uint8 weights again", prune=True)


def _find_signed(graph: Graph, op: Op) -> Tensor | None:
    """Return the weights of a convolution over two dimensions as int8 with one quantization; None if they are not of 8 bits."""
    weights = graph[op.inputs[1]]
    if weights.dtype not in ("int8", "uint8") or weights.data is None or weights.rank != 4 or op["arithmetic"]:
        return None
    return as_signed(weights) if weights.per_tensor is not None else None


def _join_dense(rewriter: Rewriter, op: Op) -> None:
    """Put a convolution of the data alone in the place of one of the data and copies of some of its channels."""
    graph, axis = rewriter.graph, channel_axis(op, 4)
    concat, weights = rewriter.producers.find(op.inputs[0], "Concat"), _find_signed(graph, op)
    if concat is None or weights is None or weights.data is None or concat["axis"] != axis or graph[op.name].rank != 4:
        return
    data, shape = concat.inputs[0], graph[concat.inputs[0]].shape or ()
    channels = shape[axis] if len(shape) == 4 else None
    if not isinstance(channels, int) or weights.require_quantization().point or len(concat.inputs) == 1:
        return
    if not all(graph[name].shares_quantization(graph[data]) for name in (*concat.inputs, op.inputs[0])):
        return
    parts = [_find_part(rewriter, name, data, axis) for name in concat.inputs[1:]]
    whole = weights.data.astype(np.int16)
    copied, place = np.zeros_like(whole[:, :channels]), channels
    for part in parts:
        if part is None or part.stop > channels:
            return
        copied[:, part] += whole[:, place : place + part.stop - part.start]
        place += part.stop - part.start
    rest = np.unique(copied[copied != 0])
    if place != whole.shape[1] or len(rest) != 1:
        return
    if (name := _add_unsigned(rewriter, weights, whole[:, :channels] + copied, 128 - int(rest[0]))) is not None:
        rewriter.replace(op, replace(op, inputs=(data, name, *op.inputs[2:])))


def _find_part(rewriter: Rewriter, name: str, data: str, axis: int) -> slice | None:
    """Return the channels of the data that a tensor copies: all, or those of a Slice; None where it is none."""
    size = (rewriter.graph[data].shape or ())[axis]
    if name == data and isinstance(size, int):
        return slice(0, size)
    found = rewriter.producers.find(name, "Slice")
    if found is None or found.inputs[0] != data or found.has(4):
        return None
    bounds = [rewriter.graph.constant(given) for given in found.inputs[1:4]]
    if any(values is None or values.size != 1 for values in bounds):
        return None
    start, stop, along = (int(values.flat[0]) for values in bounds if values is not None)
    return slice(start, stop) if along == axis and 0 <= start < stop else None


def _join_depthwise(rewriter: Rewriter, op: Op) -> None:
    """Put one depthwise convolution in the place of a Concat of those of all parts of a Split."""
    graph = rewriter.graph
    convs = [rewriter.producers.get(name) for name in op.inputs]
    parts = [item for item in convs if item is not None and kind_of(item).convolves and rewriter.is_read_once(item.name)]
    if len(parts) != len(op.inputs) or len(parts) < 2 or op["axis"] != channel_axis(parts[0], 4) or op.attributes.get("activation"):
        return
    split = rewriter.producers.find(parts[0].inputs[0], "Split")
    if split is None or split["axis"] != op["axis"] or [item.inputs[0] for item in parts] != list(split.outputs):
        return
    if any(_differs(graph, parts[0], item) for item in parts) or not all(rewriter.is_read_once(name) for name in split.outputs):
        return
    if not all(graph[name].shares_quantization(graph[op.name]) for name in op.inputs):
        return
    weights = [item for part in parts if (item := _find_signed(graph, part)) is not None and item.data is not None]
    points = {item.require_quantization().point for item in weights} - {0}
    biases = [graph[item.inputs[2]] for item in parts if item.has(2)]
    if len(weights) != len(parts) or len(points) != 1 or len({item.require_quantization().step for item in weights}) != 1:
        return
    if len(biases) not in (0, len(parts)) or any(
        bias.data is None or bias.data.shape != (item.shape or ())[:1] for bias, item in zip(biases, weights, strict=False)
    ):
        return
    rows = [item.data.astype(np.int16) - item.require_quantization().point for item in weights if item.data is not None]
    name = _add_unsigned(rewriter, weights[0], np.concatenate(rows), points.pop() + 128)
    if name is None:
        return
    names = [name]
    if biases:
        names.append(_join_rows(rewriter, biases))
    conv = replace(parts[0], inputs=(split.inputs[0], *names), outputs=op.outputs)
    rewriter.replace(op, conv.with_attributes(group=sum(map(len, rows))))


def _differs(graph: Graph, op: Op, other: Op) -> bool:
    """Whether a convolution is not depthwise, or has other attributes than another."""
    shapes = [graph[item.inputs[1]].shape or (0,) for item in (op, other)]
    if other["group"] != shapes[1][0] or shapes[0][1:] != shapes[1][1:] or other.kind != op.kind:
        return True
    return {**other.attributes, "group": 0} != {**op.attributes, "group": 0}


def _join_rows(rewriter: Rewriter, biases: Sequence[Tensor]) -> str:
    """Add the bias that parts belong to."""
    data, q = np.concatenate([bias.data for bias in biases if bias.data is not None]), biases[0].quantization
    if q is not None and q.axis is not None and q.scale.size > 1:
        pairs = [bias.require_quantization() for bias in biases]
        q = Quantization(np.concatenate([item.scale for item in pairs]), np.concatenate([item.zero_point for item in pairs]), q.axis)
    return rewriter.add(biases[0].name.removesuffix(_SUFFIX), biases[0], shape=data.shape, data=data, quantization=q)


def _add_unsigned(rewriter: Rewriter, weights: Tensor, whole: Array, point: int) -> str | None:
    """Add weights without a zero point as uint8 with one, under the name that they had; None if it does not hold them."""
    data = whole + point
    if not 0 <= point <= 255 or data.min(initial=0) < 0 or data.max(initial=0) > 255:
        return None
    quantization = Quantization.per_tensor(weights.require_quantization().step, point)
    name = weights.name.partition(_SUFFIX)[0]
    return rewriter.add(name, weights, dtype="uint8", shape=data.shape, data=data.astype(np.uint8), quantization=quantization)
