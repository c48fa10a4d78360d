"""CONV_3D and CONV_3D_TRANSPOSE. Their weights are D,H,W,I,O and D,H,W,O,I; they become O,I,D,H,W as views, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.window import SAME, VALID, result_shape, transpose_quantization, write_padding, write_weights
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Array, Op, Shape
from qconvert.operators.sizes import same_pads

__all__ = ["READERS", "WRITERS", "has_volume", "write_conv_3d", "write_conv_3d_transpose"]

_RANK = 5


def has_volume(op: Op, w: Writing) -> bool:
    """Whether the weights of a convolution have three spatial dimensions."""
    return w.graph[op.inputs[1]].rank == _RANK


def read_conv_3d(r: Reading) -> None:
    """CONV_3D: weights D,H,W,I,O; I smaller than the input's channels means groups."""
    weights = _weights(r, 1)
    shape = r.tensor().shape or ()
    channels = shape[-1] if len(shape) == _RANK else 0
    *kernel, depth, outputs = weights.shape
    if not isinstance(channels, int) or channels == 0 or channels % depth or outputs % (channels // depth):
        raise r.invalid(f"weights of shape {weights.shape} do not fit data of shape {r.tensor().shape}", rule="shape-mismatch")
    strides, dilations = _per_axis(r, "stride{}"), _per_axis(r, "dilation{}Factor")
    turned = r.transpose_constant(1, "OIDHW", weights.transpose(4, 3, 0, 1, 2), transpose_quantization(r, 1, (4, 3, 0, 1, 2)))
    operands = [r.input(0), turned, *([r.input(2)] if r.has(2) else [])]
    pads = same_pads(_numbers(r, shape[1:-1]), kernel, strides, dilations) if r.option("padding", VALID) == SAME else (0,) * 6
    r.emit("Conv", operands, strides=strides, dilations=dilations, pads=pads, group=channels // depth, data_format="channels_last",
           activation=r.activation())  # fmt: skip


def read_conv_3d_transpose(r: Reading) -> None:
    """CONV_3D_TRANSPOSE: inputs are (output shape, weights D,H,W,O,I, data[, bias])."""
    weights = _weights(r, 1)
    *kernel, outputs, depth = weights.shape
    known, whole = r.known_ints(0), r.tensor(2).shape or ()
    wanted: Shape = tuple(known) if known is not None else r.result().shape or ()
    if len(wanted) != _RANK or len(whole) != _RANK:
        raise r.unsupported_error(f"data of shape {whole} and a result of shape {wanted}", rule="unsupported-shape")
    size, data = ((1, *_numbers(r, sizes[1:])) for sizes in (wanted, whole))
    if data[-1] != depth or size[-1] != outputs:
        raise r.invalid(f"output shape {size}, weights {weights.shape} and data {data} do not fit", rule="shape-mismatch")
    strides, dilations = _per_axis(r, "stride{}"), _per_axis(r, "dilation{}Factor")
    pads = same_pads(size[1:-1], kernel, strides, dilations) if r.option("padding", VALID) == SAME else (0,) * 6
    spans = zip(size[1:-1], data[1:-1], strides, kernel, dilations, pads[:3], strict=True)
    extra = [n - (m - 1) * stride - (taps - 1) * dilation - 1 + pad for n, m, stride, taps, dilation, pad in spans]
    turned = r.transpose_constant(1, "OIDHW", weights.transpose(3, 4, 0, 1, 2), transpose_quantization(r, 1, (3, 4, 0, 1, 2)))
    operands = [r.input(2), turned, *([r.input(3)] if r.has(3) else [])]
    r.emit("ConvTranspose", operands, strides=strides, dilations=dilations, pads=(*pads[:3], *(max(-n, 0) for n in extra)),
           output_padding=tuple(max(n, 0) for n in extra), data_format="channels_last", activation=r.activation())  # fmt: skip


def _numbers(r: Reading, sizes: Shape) -> tuple[int, ...]:
    """Sizes, of which none may be dynamic."""
    found = tuple(size for size in sizes if isinstance(size, int))
    if len(found) != len(sizes):
        raise r.unsupported_error(f"the dynamic dimensions {sizes} of depth, height and width", rule="dynamic-dimension")
    return found


def _weights(r: Reading, index: int) -> Array:
    """The weights, a constant; a DEQUANTIZE before it is turned with it."""
    maker = r.find_dequantize(index)
    weights = r.constant(index) if maker is None else r.lookup(maker.inputs[0]).data
    if weights is None:
        raise r.unsupported_error("weights that are computed at run time", rule="weights-not-constant")
    if weights.ndim != _RANK or 0 in weights.shape:
        raise r.invalid(f"weights of shape {weights.shape}", rule="wrong-rank")
    return weights


def _per_axis(r: Reading, option: str) -> tuple[int, ...]:
    """An option of depth, height and width."""
    found = tuple(int(r.option(option.format(axis), 1)) for axis in "DHW")
    if min(found) < 1:
        raise r.invalid(f"{option.format('')} {found} is not positive", rule="not-positive")
    return found


def write_conv_3d(op: Op, w: Writing) -> None:
    """Conv over three dimensions as CONV_3D, after a PAD where its padding is not SAME."""
    _require_channels_last(op, w)
    groups = int(op["group"])
    kernel, shape = write_weights(op, w, "DHWIO", (2, 3, 4, 1, 0)) if groups == 1 else ("", w.constant(op, 1).shape)
    taps, strides, dilations = shape[2:], op["strides"], op["dilations"]
    sizes = w.shape(op.inputs[0], op, slice(1, 4))
    same = same_pads(sizes, taps, strides, dilations)
    pads = {"NOTSET": tuple(op["pads"]), "VALID": (0,) * 6, "SAME_UPPER": same, "SAME_LOWER": (*same[3:], *same[:3])}[op["auto_pad"]]
    padding = SAME if any(pads) and pads == same else VALID
    data = op.inputs[0] if padding == SAME else write_padding(op, w, pads, None)
    fields = {"padding": padding, "fusedActivationFunction": w.activation(op), **_fields(op)}
    if groups > 1:
        _write_groups(op, w, data, fields)
    else:
        w.emit("CONV_3D", [data, kernel, *op.inputs[2:3]], op.outputs, **fields)


def _write_groups(op: Op, w: Writing, data: str, fields: dict[str, Any]) -> None:
    """A CONV_3D for each group, whose kernel knows none, between a SPLIT and a CONCATENATION of the channels."""
    weights = w.constant(op, 1)
    count, result, last = int(op["group"]), w.tensor(op.outputs[0]), w.ints(_RANK - 1, f"{op.outputs[0]}/axis")
    biases = np.split(w.constant(op, 2), count) if op.has(2) else []
    inner, outer = (w.tensor(data).shape or ())[:-1], (result.shape or ())[:-1]
    pieces = [w.like(f"{op.outputs[0]}/group", data, (*inner, weights.shape[1])) for _ in range(count)]
    w.emit("SPLIT", [last, data], pieces, numSplits=count)
    found = []
    for index, kernel in enumerate(np.split(weights, count)):
        operands = [pieces[index], w.const(kernel.transpose(2, 3, 4, 1, 0), f"{op.inputs[1]}/group")]
        if biases:
            operands.append(w.const(biases[index], f"{op.inputs[2]}/group"))
        found.append(w.like(f"{result.name}/of_group", result.name, (*outer, kernel.shape[0])))
        w.emit("CONV_3D", operands, found[-1:], **fields)
    w.emit("CONCATENATION", found, op.outputs, axis=_RANK - 1)


def write_conv_3d_transpose(op: Op, w: Writing) -> None:
    """ConvTranspose over three dimensions as CONV_3D_TRANSPOSE; what neither SAME nor VALID crops is cropped by a SLICE of the whole."""
    if int(op["group"]) != 1:
        raise w.unsupported_error(op, "groups of three spatial dimensions", rule="form-not-covered")
    _require_channels_last(op, w)
    kernel, sizes = write_weights(op, w, "DHWOI", (2, 3, 4, 0, 1))
    result, taps, strides, dilations = op.outputs[0], sizes[2:], op["strides"], op["dilations"]
    batch, (*size, channels) = (w.tensor(result).shape or ("",))[0], w.shape(result, op, slice(1, None))
    data = w.shape(op.inputs[0], op, slice(1, 4))
    full = [(n - 1) * stride + (t - 1) * d + 1 for n, stride, t, d in zip(data, strides, taps, dilations, strict=True)]
    crops = [max(f - n, 0) for f, n in zip(full, size, strict=True)]
    begins = list(op["pads"][:3])
    same = same_pads(size, taps, strides, dilations)
    target, whole, padding = result, size, VALID
    if any(same) and begins == list(same[:3]) and all(-(-n // s) == m for n, s, m in zip(size, strides, data, strict=True)):
        padding = SAME
    elif any(crops) or any(begins):
        whole = [max(b + n, f) for b, n, f in zip(begins, size, full, strict=True)]
        target = w.like(f"{result}/uncropped", result, (batch, *whole, channels))
    shape = result_shape(op, w, [*whole, channels])
    w.emit("CONV_3D_TRANSPOSE", [shape, kernel, op.inputs[0], *op.inputs[2:3]], [target], padding=padding,
           fusedActivationFunction=w.activation(op), **_fields(op))  # fmt: skip
    if target != result:
        bounds = [w.ints([0, *begins, 0], f"{result}/begin"), w.ints([-1, *size, -1], f"{result}/size")]
        w.emit("SLICE", [target, *bounds], [result])


def _require_channels_last(op: Op, w: Writing) -> None:
    if op["data_format"] != "channels_last":
        raise w.unsupported_error(op, "data that are not channels last (the layout pass has not run)", rule="not-channels-last")


def _fields(op: Op) -> dict[str, Any]:
    strides, dilations = (dict(zip("DHW", map(int, op[name]), strict=True)) for name in ("strides", "dilations"))
    return {**{f"stride{axis}": n for axis, n in strides.items()}, **{f"dilation{axis}Factor": n for axis, n in dilations.items()}}


READERS: dict[str, ReadFunction] = {"CONV_3D": read_conv_3d, "CONV_3D_TRANSPOSE": read_conv_3d_transpose}

WRITERS: dict[str, WriteFunction] = {}
