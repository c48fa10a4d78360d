"""Convolutions. Weights are O,I,spatial, with groups G,O/G,I,spatial, of transposed convolutions I,O,spatial; a bias is an Add."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.plugin import Array, InvalidModelError, Op, Quantization
from qconvert_openvino.ops.bias import read_bias, write_bias
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing, unsupported_error

#: OpenVINO's auto_pad -> the canonical one.
PADDINGS = {"explicit": "NOTSET", "notset": "NOTSET", "same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER", "valid": "VALID"}


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
        raise InvalidModelError(f"the result has {len(r.result.shape)} dimensions, not {rank}", where=str(r.node), rule="wrong-rank")
    result, bias = read_bias(r, r.result.shape[1], rank, 1)
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
    w.finish(op, write_bias(op, w, found, 1))


def write_conv_transpose(op: Op, w: Writing) -> None:
    """ConvolutionBackpropData, or GroupConvolutionBackpropData, and an Add."""
    data, weights, (begin, end) = w.value(op.inputs[0]), _weights(op, w, transposed=True), split_pads(op)
    make = w.op.convolution_backprop_data if op["group"] == 1 else w.op.group_convolution_backprop_data
    found = make(
        data, weights, list(op["strides"]), pads_begin=begin, pads_end=end, dilations=list(op["dilations"]), auto_pad="explicit",
        output_padding=list(op["output_padding"]),
    )  # fmt: skip
    w.finish(op, write_bias(op, w, found, 1))


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


READERS = dict.fromkeys(("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"), read_convolution)
WRITERS = {"Conv": write_conv, "ConvTranspose": write_conv_transpose}
