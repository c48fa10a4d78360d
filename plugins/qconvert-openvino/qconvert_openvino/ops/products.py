"""Convolutions and matrix products, whose biases are separate Add operators in OpenVINO.

Weights are O,I,spatial, with groups G,O/G,I,spatial, of transposed convolutions I,O,spatial.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.plugin import Array, Op, Quantization
from qconvert_openvino.constants import constant_of
from qconvert_openvino.reading import Reading, name_dynamic_sizes
from qconvert_openvino.writing import Writing, unsupported_error

#: OpenVINO's auto_pad -> the canonical one.
PADDINGS = {"explicit": "NOTSET", "notset": "NOTSET", "same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER", "valid": "VALID"}


def _read_bias(r: Reading, channels: int, rank: int) -> tuple[Reading, list[str]]:
    """Return the layer of the result, either this one or an Add of a constant per channel after it, and the bias.

    Args:
        r: a sum of products.
        channels: the number of outputs.
        rank: of its result.
    """
    add = r.sole_reader()
    if add is None or add.type != "Add" or len(add.inputs) != 2 or channels < 1:
        return r, []
    other = next((source for source, _ in add.inputs if source is not r.node), None)
    item = None if other is None else constant_of(other)
    if item is None or (item.scale is None and item.dtype != "float32"):
        return r, []
    shape = (1,) * (rank - item.data.ndim) + item.data.shape
    if shape != tuple(channels if place == 1 else 1 for place in range(rank)):
        return r, []
    r.draft.done.add(add.id)
    return Reading(r.draft, add), [r.draft.constant(item.reshape((channels,)), "bias")]


def _write_bias(op: Op, w: Writing, found: Any) -> Any:
    """Add the bias, if there is one, along axis 1 of the result."""
    if not op.has(2):
        return found
    tensor = w.graph[op.inputs[2]]
    rank = found.output(0).get_partial_shape().rank.get_length()
    sizes = [1] * rank
    if tensor.data is None or tensor.data.ndim != 1:
        if tensor.rank == 1 and rank != 2:
            sizes[1] = -1
            return w.op.add(found, w.op.reshape(w.value(tensor.name), w.numbers(sizes), False))
        return w.op.add(found, w.value(tensor.name))
    sizes[1] = tensor.data.size
    data, q = tensor.data.reshape(sizes), tensor.quantization
    if q is None:
        return w.op.add(found, w.array(data, tensor.dtype, tensor.name))
    return w.op.add(found, w.integers(tensor, q, data, sizes if q.axis is not None else ()))


def read_convolution(r: Reading) -> None:
    """Convolution, GroupConvolution and both BackpropData, with an Add of constants after it as the bias."""
    rank, kind = r.rank(), r.node.type
    weights, group = _read_weights(r, "Group" in kind, "Backprop" in kind)
    if rank < 3:
        raise r.unsupported_error(f"of data of {rank} dimensions")
    if "Backprop" in kind and r.count > 2:
        raise r.unsupported_error("with an output shape that an input says")
    auto = r.choice("auto_pad", PADDINGS, "explicit")
    if "Backprop" in kind and auto != "NOTSET":
        raise r.unsupported_error(f"with auto_pad {auto}")
    attributes: dict[str, Any] = {
        "data_format": "channels_first",
        "strides": tuple(r.integers("strides")),
        "dilations": tuple(r.integers("dilations")),
        "pads": (*r.integers("pads_begin"), *r.integers("pads_end")),
        "group": group,
    }
    if "Backprop" in kind:
        extra = r.integers("output_padding", "")
        attributes["output_padding"] = tuple(extra or [0] * (rank - 2))
    elif auto != "NOTSET":
        attributes["auto_pad"] = auto
        attributes["pads"] = (0,) * (2 * (rank - 2))
    if len(r.result.shape) != rank:
        raise r.node.invalid(f"the result has {len(r.result.shape)} dimensions, not {rank}", rule="wrong-rank")
    result, bias = _read_bias(r, r.result.shape[1], rank)
    result.emit("ConvTranspose" if "Backprop" in kind else "Conv", [r.value(0), weights, *bias], **attributes)


def _read_weights(r: Reading, grouped: bool, transposed: bool) -> tuple[str, int]:
    """Return weights as O,I,spatial, and the number of groups."""
    item = r.constant(1)
    if item is None:
        if grouped or transposed:
            raise r.unsupported_error("with weights that are computed when the model runs", rule="not-constant")
        return r.value(1), 1
    if item.data.ndim < 3 + grouped or not item.data.size:
        raise r.unsupported_error(f"with weights of shape {item.data.shape}")
    group = item.data.shape[0] if grouped else 1
    if transposed:
        first = 1 if grouped else 0
        axes = [*range(item.data.ndim)]
        axes[first], axes[first + 1] = axes[first + 1], axes[first]
        item = item.transpose(tuple(axes))
    if grouped:
        item = item.reshape((item.data.shape[0] * item.data.shape[1], *item.data.shape[2:]))
    return r.draft.constant(item, f"{group}{transposed}"), group


def write_conv(op: Op, w: Writing) -> None:
    """Convolution, or GroupConvolution, and an Add."""
    data, weights, (begin, end) = w.value(op.inputs[0]), _weights(op, w, transposed=False), split_pads(op)
    make = w.op.convolution if op["group"] == 1 else w.op.group_convolution
    found = make(data, weights, list(op["strides"]), begin, end, list(op["dilations"]), auto_pad_of(op))
    w.finish(op, _write_bias(op, w, found))


def write_conv_transpose(op: Op, w: Writing) -> None:
    """ConvolutionBackpropData, or GroupConvolutionBackpropData, and an Add."""
    data, weights, (begin, end) = w.value(op.inputs[0]), _weights(op, w, transposed=True), split_pads(op)
    make = w.op.convolution_backprop_data if op["group"] == 1 else w.op.group_convolution_backprop_data
    found = make(
        data, weights, list(op["strides"]), pads_begin=begin, pads_end=end, dilations=list(op["dilations"]), auto_pad="explicit",
        output_padding=list(op["output_padding"]),
    )  # fmt: skip
    w.finish(op, _write_bias(op, w, found))


def split_pads(op: Op) -> tuple[list[int], list[int]]:
    """Return the pads at the beginning and at the end of the spatial axes."""
    pads = [int(pad) for pad in op["pads"]]
    return pads[: len(pads) // 2], pads[len(pads) // 2 :]


def auto_pad_of(op: Op) -> str:
    """Return OpenVINO's auto_pad of an operator."""
    return next(own for own, name in PADDINGS.items() if name == op["auto_pad"])


def _weights(op: Op, w: Writing, *, transposed: bool) -> Any:
    """Return weights O,I,spatial in OpenVINO's order, quantized along their outputs or with one scale."""
    tensor, group = w.graph[op.inputs[1]], int(op["group"])
    if tensor.data is None:
        if group != 1 or transposed:
            raise unsupported_error(op, "with weights that are computed when the model runs", rule="not-constant")
        return w.value(tensor.name)
    q = tensor.quantization
    data = _arrange_weights(np.asarray(tensor.data), group, transposed)
    if q is None:
        return w.array(data, tensor.dtype, tensor.name)
    if q.block_size or q.axis not in (None, 0):
        raise unsupported_error(op, "with weights that are not quantized along their outputs")
    return w.integers(tensor, q, data, _scale_sizes(q, data.ndim, group, transposed))


def _arrange_weights(data: Array, group: int, transposed: bool) -> Array:
    if group != 1:
        data = data.reshape(group, data.shape[0] // group, *data.shape[1:])
    return data.swapaxes(int(group != 1), int(group != 1) + 1) if transposed else data


def _scale_sizes(q: Quantization, rank: int, group: int, transposed: bool) -> list[int]:
    """Return the shape of per-output scales that broadcasts with weights in OpenVINO's order."""
    if q.axis is None:
        return []
    sizes = [1] * rank
    sizes[int(group != 1) + transposed] = q.scale.size // group
    if group != 1:
        sizes[0] = group
    return sizes


def read_matmul(r: Reading) -> None:
    """MatMul: a Gemm where a matrix meets constant weights."""
    flipped = r.flag("transpose_a"), r.flag("transpose_b")
    ranks, item = (r.rank(0), r.rank(1)), r.constant(1)
    if min(ranks) < 2:
        raise r.unsupported_error("with a vector")
    if item is None or ranks != (2, 2) or flipped[0]:
        r.emit("MatMul", [r.value(0), r.value(1)], trans_a=int(flipped[0]), trans_b=int(flipped[1]))
        return
    item = item if flipped[1] else item.transpose((1, 0))
    result, bias = _read_bias(r, item.data.shape[0], 2)
    result.emit("Gemm", [r.value(0), r.draft.constant(item, "weights"), *bias])


def write_matmul(op: Op, w: Writing) -> None:
    w.finish(op, w.op.matmul(*w.inputs(op), bool(op["trans_a"]), bool(op["trans_b"])))


def write_gemm(op: Op, w: Writing) -> None:
    """A MatMul with weights O,I, and an Add."""
    found = w.op.matmul(w.value(op.inputs[0]), w.value(op.inputs[1]), False, True)
    w.finish(op, _write_bias(op, w, found))


def read_einsum(r: Reading) -> None:
    r.emit("Einsum", [r.value(index) for index in range(r.count)], equation=r.text("equation"))


def write_einsum(op: Op, w: Writing) -> None:
    w.finish(op, w.op.einsum(w.inputs(op), op["equation"]))


def read_attention(r: Reading) -> None:
    """ScaledDotProductAttention (query, key, value, mask?, scale?): products, a Softmax and a product."""
    if r.flag("causal"):
        raise r.unsupported_error("that is causal")
    query, key = r.port(0).shape, r.port(1).shape
    if min(len(query), len(key)) < 2:
        raise r.unsupported_error("with a vector")
    scale = r.data(4) if r.count > 4 else np.array(1 / math.sqrt(query[-1]) if query[-1] > 0 else 0.0)
    if scale is None or scale.size != 1 or not scale.any() or len(query) != len(key):
        raise r.unsupported_error("whose scale, or the size that it follows from, is computed when the model runs", rule="not-constant")
    mask = r.data(3) if r.count > 3 else np.zeros(())
    if r.count > 3 and r.port(3).type == "boolean":
        raise r.unsupported_error("with a mask of truth values")
    sizes = name_dynamic_sizes(r.node.name, (*query[:-1], key[-2]))
    found = r.step("MatMul", [r.value(0), r.value(1)], sizes, trans_b=1)
    factor = r.draft.add(f"{r.node.name}/scale", "float32", (), np.array(scale.reshape(()), np.float32))
    found = r.step("Mul", [found, factor], sizes)
    if mask is None or mask.any():
        found = r.step("Add", [found, r.value(3)], sizes)
    r.emit("MatMul", [r.step("Softmax", [found], sizes, axis=-1), r.value(2)])


READERS = {
    **dict.fromkeys(("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"), read_convolution),
    "MatMul": read_matmul,
    "ScaledDotProductAttention": read_attention,
    "Einsum": read_einsum,
}
WRITERS = {"Conv": write_conv, "ConvTranspose": write_conv_transpose, "MatMul": write_matmul, "Gemm": write_gemm, "Einsum": write_einsum}
