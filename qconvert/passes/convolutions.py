"""Convolutions and pools in the forms that runtimes take.

widen_1d: convolutions and pools over one dimension become ones over two, with a height of 1.

Exact: the new dimension has one position, one tap and no padding. TFLite and many accelerators have no operators of rank 3.

dense_weights: groups and holes of convolutions become zeros among their weights, where TFLite has neither, or HTP no holes.

Exact: a zero, or the zero point, adds nothing to a sum of finite values. TRANSPOSE_CONV knows no groups and no dilations, LiteRT's CONV_3D
no groups (conv3d.cc).

crop_transposed: a transposed convolution that pads one end more than the other gets a Slice after it. Exact.

    ConvTranspose (pads 0, 0, 1, 1)        ConvTranspose (pads 0, 0, 0, 0) -> Slice

TensorFlow's SAME gives such pads. Importers of ONNX take equal ones alone (torch-mlir's, which IREE has).

transposed_to_conv: a transposed convolution with strides of 1 becomes a convolution. Exact.

    ConvTranspose (weights w, pads p)        Conv (w with its taps in reverse order, pads dilation * (taps - 1) - p)

The sums have the same terms. IREE (3.13) refuses such a ConvTranspose after another one, or after a convolution ("slice along dimension 3
runs out-of-bounds"), and runtimes without an integer kernel for ConvTranspose have one for Conv.

pool_to_mean: an average over all positions becomes a mean along the two axes.

The same float value. Runtimes that round averages of integers otherwise than means of float values (MNN) then round it once, and rightly;
where the source's kernel rounds a tie otherwise, such a result is another by one step. Averages of float values too: MNN passes the scale
of a layer's data back through a pool, to tensors that have none.

spread_addends: a number that is added after a convolution over one dimension becomes a vector, with the number for each channel.

Exact: the same is added to each value. TensorRT-RTX 1.7.1 takes a constant after a convolution for its bias, and refuses one of a single
element there ("nbdims_bias"), over one dimension alone. Where the convolution has one channel the vector lies along the positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Shape, Tensor, drop_keys
from qconvert.operators import kind_of
from qconvert.operators.call import spatial_axes
from qconvert.operators.properties import Suits
from qconvert.operators.sizes import explicit_pads, spread_weights
from qconvert.plugins import PassResult, Target
from qconvert.plugins.rules import addend
from qconvert.rewriting import Rewriter

_RANK_OF_1D = 3


def widen_1d(graph: Graph, target: Target | None) -> PassResult:
    """Put an Unsqueeze before and a Squeeze after each of them; between two of them there is neither."""
    widening = _Widening(graph)
    for op in widening:
        if _is_narrow(graph, op):
            widening.widen(op)
    return widening.finish_with(lambda count: f"{format_count(count, '1-D operator', 'have')} a second dimension of size 1", prune=True)


def _is_narrow(graph: Graph, op: Op) -> bool:
    """Whether it is a convolution or a pool, which takes the largest or the mean of each channel, over one dimension."""
    kind = kind_of(op)
    is_spatial = kind.layout.suits is Suits.DECIDES and (kind.has_weights or kind.scales_channels)
    return is_spatial and graph[op.inputs[0]].rank == _RANK_OF_1D


class _Widening(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._wide: dict[tuple[str, int], str] = {}  # narrow tensor and the axis of the new dimension -> the same data with it
        self._weights: dict[str, str] = {}

    def widen(self, op: Op) -> None:
        """Put the operator's wide form, between an Unsqueeze and a Squeeze, in its place."""
        (axis,) = spatial_axes(op, _RANK_OF_1D)
        result = self.graph[op.name]
        wide = self.add(f"{result.name}/wide", result, shape=_insert_axis(result.shape, axis))
        inputs = [self._data(op.inputs[0], axis), *op.inputs[1:]]
        if kind_of(op).has_weights:
            inputs[1] = self._kernel(op.inputs[1])
        widened = replace(op, inputs=tuple(inputs), outputs=(wide,), attributes=_widen_attributes(op))
        self.replace(op, widened, op.derive("Squeeze", (wide, self._axes(result.name, axis)), (result.name,)))
        self._wide[result.name, axis] = wide

    def _data(self, name: str, axis: int) -> str:
        if (name, axis) not in self._wide:
            data = replace(self.graph[name], shape=_insert_axis(self.graph[name].shape, axis))
            self._wide[name, axis] = self.compute("Unsqueeze", (name, self._axes(name, axis)), f"{name}/wide", data)
        return self._wide[name, axis]

    def _kernel(self, name: str) -> str:
        """Return the weights O,I,1,W; those that are computed get an Unsqueeze."""
        if name not in self._weights:
            tensor = self.graph[name]
            data = None if tensor.data is None else np.expand_dims(tensor.data, 2)
            self._weights[name] = self.add(f"{name}/wide", tensor, shape=_insert_axis(tensor.shape, 2), data=data)
            if data is None:
                self.emit(Op("Unsqueeze", (name, self._axes(name, 2)), (self._weights[name],)))
        return self._weights[name]

    def _axes(self, name: str, axis: int) -> str:
        return self.constant(f"{name}/height", [axis])


def _insert_axis(shape: Shape | None, axis: int) -> Shape | None:
    return None if shape is None else (*shape[:axis], 1, *shape[axis:])


def _widen_attributes(op: Op) -> dict[str, Any]:
    """Return every list over dimensions with an entry for the new one in front; pads have one at the begin and one at the end."""
    changed: dict[str, Any] = dict(op.attributes)
    for name, value in (("strides", 1), ("dilations", 1), ("kernel_shape", 1), ("output_padding", 0)):
        if changed.get(name):
            changed[name] = (value, *changed[name])
    if "pads" in changed:
        begin, end = changed["pads"]
        changed["pads"] = (0, begin, 0, end)
    return changed


#: The most weights that an operator gets: beyond, the zeros would be the better part of a large file.
_MOST_DENSE_WEIGHTS = 2**26
_VOLUME_RANK = 5


def dense_weights(graph: Graph, target: Target | None) -> PassResult:
    """Spread constant weights; those that are computed, and those that would grow too large, stay as they are. Groups stay in ONNX."""
    rewriter = Rewriter(graph)
    made: dict[tuple[str, int, tuple[int, ...]], str] = {}
    keeps_groups = target is not None and target.format == "onnx"
    for op in rewriter:
        group = 1 if keeps_groups else int(str(op.attributes.get("group", 1)))
        holes = _find_holes(graph, op, group)
        if holes is None:
            continue
        key = (op.inputs[1], group, holes)
        if key not in made:
            weights = graph[op.inputs[1]]
            data = spread_weights(weights, group, holes)
            made[key] = rewriter.add(f"{weights.name}/dense", weights, shape=data.shape, data=data)
        dense = op.with_attributes(group=int(op["group"]) // group, **({"dilations": (1,) * len(holes)} if kind_of(op).spreads else {}))
        rewriter.replace(op, dense.with_input(1, made[key]))
    return rewriter.finish_with(
        lambda count: f"{format_count(count, 'convolution', 'have')} zeros among the weights instead of groups and dilations", prune=True
    )


def _find_holes(graph: Graph, op: Op, group: int) -> tuple[int, ...] | None:
    """Return the dilations that the weights take over, next to groups; None if the operator stays as it is."""
    kind = kind_of(op)
    if not kind.has_weights or kind.is_matrix_product:
        return None
    weights = graph[op.inputs[1]]
    shape, q = weights.static_shape, weights.quantization
    if weights.data is None or shape is None or len(shape) < 3 or group < 1 or shape[0] % group:
        return None
    if q is not None and (q.block_size or q.axis not in (None, 0)):
        return None
    dilations = tuple(int(step) for step in op["dilations"])
    if not kind.spreads:
        if len(shape) != _VOLUME_RANK or group == 1:
            return None
        dilations = (1,) * len(dilations)
    elif group == 1 and all(step == 1 for step in dilations):
        return None
    spans = [(taps - 1) * step + 1 for taps, step in zip(shape[2:], dilations, strict=True)]
    return dilations if shape[0] * shape[1] * group * prod(spans) <= _MOST_DENSE_WEIGHTS else None


def crop_transposed(graph: Graph, target: Target | None) -> PassResult:
    """Put a Slice after each ConvTranspose whose pads are unequal, where the spatial sizes of its result are known."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("ConvTranspose"):
        pads = explicit_pads(op, len(op["strides"]))
        if cropped := crop(rewriter, op, [min(low, high) for low, high in pads]):
            rewriter.replace(op, *cropped)
    return rewriter.finish_with(lambda count: f"{format_count(count, 'ConvTranspose operator')} cropped by a Slice")


def crop(rewriter: Rewriter, op: Op, kept: Sequence[int]) -> tuple[Op, ...]:
    """Return a ConvTranspose, and a Slice after it for what it pads beyond `kept` at either end of each axis; none where it pads no more,
    or sizes are not known.

    Args:
        rewriter: gets the tensor between both.
        op: the operator.
        kept: what it pads then at both ends of each axis.
    """
    result, pads = rewriter.graph[op.name], explicit_pads(op, len(kept))
    if result.shape is None:
        return ()
    axes = [*spatial_axes(op, len(result.shape))]
    sizes = [size for axis in axes if isinstance(size := result.shape[axis], int)]
    if len(sizes) < len(axes) or all(low == high == own for (low, high), own in zip(pads, kept, strict=True)):
        return ()
    wide: list[int | str] = list(result.shape)
    starts = [low - own for (low, _), own in zip(pads, kept, strict=True)]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    for axis, size, (low, high), own in zip(axes, sizes, pads, kept, strict=True):
        wide[axis] = size + low + high - 2 * own
    whole = rewriter.add(f"{result.name}/whole", result, shape=tuple(wide))
    bounds = [rewriter.constant(f"{result.name}/{name}", values) for name, values in (("starts", starts), ("ends", ends), ("axes", axes))]
    return replace(op.with_attributes(pads=(*kept, *kept)), outputs=(whole,)), op.derive("Slice", (whole, *bounds), (result.name,))


def transposed_to_conv(graph: Graph, target: Target | None) -> PassResult:
    """Replace each ConvTranspose with strides of 1 and constant weights, which may be stored in another float type."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("ConvTranspose"):
        _replace_transposed(rewriter, op)
    return rewriter.finish_with(lambda count: f"{format_count(count, 'ConvTranspose operator')} with strides of 1 become Conv", prune=True)


def _replace_transposed(rewriter: Rewriter, op: Op) -> None:
    operand = rewriter.graph[op.inputs[1]]
    cast = rewriter.producers.get(operand.name)
    weights = rewriter.graph[cast.inputs[0]] if cast is not None and cast.kind == "Cast" else operand
    if weights.data is None or any(step != 1 for step in op["strides"]) or any(op["output_padding"]):
        return
    taps = weights.data.shape[2:]
    spans = [(count - 1) * step for count, step in zip(taps, op["dilations"], strict=True)]
    sides = zip(*explicit_pads(op, len(taps)), strict=True)
    pads = [span - pad for side in sides for span, pad in zip(spans, side, strict=True)]
    if min(pads) < 0:
        return
    name = rewriter.add(f"{weights.name}/reversed", weights, data=np.flip(weights.data, tuple(range(2, weights.data.ndim))))
    if cast is not None:
        name = rewriter.compute("Cast", (name,), f"{operand.name}/reversed", operand, cast.source, **cast.attributes)
    conv = replace(op.with_attributes(pads=tuple(pads)), kind="Conv")
    rewriter.replace(op, replace(conv, attributes=drop_keys(conv.attributes, "output_padding")).with_input(1, name))


def pool_to_mean(graph: Graph, target: Target | None) -> PassResult:
    """Change GlobalAveragePool, and AveragePool whose window is the whole plane, without padding or activation."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("AveragePool", "GlobalAveragePool"):
        if _is_whole_plane(graph, op):
            axes = rewriter.constant(f"{op.name}/axes", [*spatial_axes(op, 4)])
            rewriter.replace(op, op.derive("ReduceMean", (op.inputs[0], axes), op.outputs, keepdims=1))
    return rewriter.finish_with(
        lambda count: f"{format_count(count, 'average')} over all positions {format_verb(count, 'become')} a mean along two axes"
    )


def _is_whole_plane(graph: Graph, op: Op) -> bool:
    """Whether a pool averages each channel of two-dimensional data as a whole."""
    shape = graph[op.inputs[0]].shape or ()
    if len(shape) != 4:
        return False
    if not kind_of(op).has_windows:
        return True
    axes = spatial_axes(op, 4)
    plane, single = (sizes[axes.start : axes.stop] for sizes in (shape, graph[op.name].shape or ()))
    return tuple(op["kernel_shape"]) == tuple(plane) and tuple(single) == (1, 1) and not any(op["pads"]) and not op["activation"]


def spread_addends(graph: Graph, target: Target | None) -> PassResult:
    """Let each such Add or Sub read a vector; where neither channels nor positions are several, or known, it stays."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        number = addend(graph, op, rewriter.producers)
        values = None if number is None else _spread_addend(graph, op, number)
        if number is not None and values is not None:
            vector = rewriter.constant(f"{op.name}/addend", values, number.dtype)
            rewriter.replace(op, op.with_names({number.name: vector}))
    return rewriter.finish_with(
        lambda count: (
            f"{format_count(count, 'number')} added after a convolution {format_verb(count, 'become')} a vector with one value per channel"
        )
    )


def _spread_addend(graph: Graph, op: Op, number: Tensor) -> Array | None:
    """Return the value for each channel, or for each position if there is one channel; None where both are one, or not known."""
    shape = graph[op.name].shape
    assert number.data is not None
    sizes = () if shape is None or len(shape) != 3 else ((shape[1], 1), (1, shape[2]))
    for size in sizes:
        if all(isinstance(item, int) for item in size) and max(map(int, size)) > 1:
            return np.full(tuple(map(int, size)), number.data.flat[0], number.data.dtype)
    return None
