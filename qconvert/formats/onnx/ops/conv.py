"""Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.arithmetic import accumulator_scale, dequantize
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.dynamic import dynamic_data, write_dynamic
from qconvert.formats.onnx.ops.integer_arithmetic import write_sixteen_bits
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.graph import Array, Op, Quantization
from qconvert.kernels.litert.forms import convolution
from qconvert.operators.sizes import SAME, swapped_scales, swapped_weights


def write_conv(op: Op, b: Builder) -> None:
    """Conv: DequantizeLinear of data, weights and bias, Conv, QuantizeLinear: the pattern of QLinearConv."""
    weights = b.operand(op, 1)
    if op["arithmetic"] == "dynamic_tensor" and weights.data is not None and weights.quantization is not None:
        write_dynamic(op, b, weights.data, weights.quantization, real_bias(op, b), **conv_window(op))
        return
    if op["arithmetic"] == "tflite" and b.opset >= 13 and convolution(b.graph, op):
        write_sixteen_bits(op, b, **conv_window(op))
        return
    operands = [dynamic_data(op, b), b.float_value(op.inputs[1]), *real_bias(op, b)]
    write_product(op, b, operands, **conv_window(op))


def write_conv_transpose(op: Op, b: Builder) -> None:
    """ConvTranspose: ONNX has its weights as I,O,spatial."""
    operands = [dynamic_data(op, b), _turned_weights(op, b), *real_bias(op, b)]
    write_product(op, b, operands, **conv_window(op), output_padding=op["output_padding"])


def write_product(op: Op, b: Builder, operands: Sequence[str], **attributes: Any) -> None:
    """The node of a product of float values, with a Max of one operand after it where onnxruntime would make an int32 of a larger bias.

    It does so between DequantizeLinear and QuantizeLinear alone (weight_bias_quantization.cc); its optimizer leaves the Max.
    """
    value = b.node(op.kind, operands, hint=f"{op.outputs[0]}/real_result", **attributes)[0]
    b.finish(op, b.keep_apart(value) if _has_large_bias(op, b) else value)


def _has_large_bias(op: Op, b: Builder) -> bool:
    """Whether int32 at data scale * weight scale does not hold a real bias."""
    bias = b.operand(op, 2) if b.forms.guards and op.has(2) else None
    data, weights = (b.tensor(name).quantization for name in op.inputs[:2])
    if bias is None or bias.data is None or data is None or weights is None or weights.block_size or data.axis is not None:
        return False
    if bias.quantization is not None and bias.dtype != "int64":
        return False
    real = bias.data.astype("float64") if bias.quantization is None else dequantize(bias.data, bias.quantization)
    steps = abs(real / accumulator_scale(data, weights).astype("float64"))
    return bool(steps.max(initial=0) >= 2.0**31)


def _turned_weights(op: Op, b: Builder) -> str:
    """Real weights I,O,spatial: a constant, or after a Transpose if they are computed, as of float16."""
    name, group = op.inputs[1], int(op["group"])
    maker = b.producer(name, "Dequantize")
    if maker is not None and b.operand(maker).is_constant:
        name = maker.inputs[0]  # its integers are turned, not the float values
    weights = b.tensor(name)
    if weights.data is None:
        if group != 1 or weights.rank is None:
            raise b.unsupported_error(op, "weights of groups that are computed at run time", rule="weights-not-constant")
        return b.node("Transpose", [b.float_value(name)], hint=f"{name}/turned", perm=[1, 0, *range(2, weights.rank)])[0]
    turned = b.replace_constant(name, swapped_weights(weights.data, group))
    if weights.quantization is None:
        return turned
    scales = unswapped_scales(weights.quantization, group, weights.data.shape)
    if scales is None:
        raise b.unsupported_error(op, "groups whose weights have different scales", rule="weight-quantization")
    return b.dequantize(turned, weights.dtype, scales)


def real_bias(op: Op, b: Builder) -> list[str]:
    """The bias after its own DequantizeLinear. ONNX has none for int64: such a bias becomes int32, or float if it is too large."""
    if not op.has(2):
        return []
    bias = b.operand(op, 2)
    if bias.dtype != "int64" or bias.data is None or bias.quantization is None:
        return [b.float_value(bias.name)]
    if abs(bias.data).max(initial=0) < 2**31:
        narrow = b.replace_constant(bias.name, bias.data.astype("int32"), "int32")
        return [b.dequantize(narrow, "int32", bias.quantization)]
    return [b.const((bias.data * bias.quantization.scale.astype("float64")).astype("float32"), f"{bias.name}/float32")]


def window(op: Op) -> dict[str, Any]:
    """Strides and padding of an operator whose output is made of windows."""
    auto = op.attributes.get("auto_pad", "NOTSET")
    stated = {"pads": op["pads"], "auto_pad": None} if auto == "NOTSET" else {"pads": None, "auto_pad": auto}
    return {"strides": op["strides"], **stated}


def conv_window(op: Op) -> dict[str, Any]:
    """Attributes that Conv and ConvTranspose share."""
    return {**window(op), "dilations": op["dilations"], "group": op["group"]}


def read_conv(r: Reading) -> None:
    """Conv, and ConvInteger of integers without scales, whose zero points are inputs."""
    r.emit(r.op_type, data_format="channels_first", **read_conv_window(r))


def write_conv_integer(op: Op, b: Builder) -> None:
    """ConvInteger."""
    b.compute_stored(op, **conv_window(op))


def read_conv_transpose(r: Reading) -> None:
    """ConvTranspose: ONNX has its weights as I,O,spatial."""
    window = read_conv_window(r)
    extra = r.attribute("output_padding", (0,) * len(window["strides"]))
    auto = window.pop("auto_pad")
    if (wanted := r.attribute("output_shape")) is not None:
        window["pads"] = _pads_of_result(r, window, extra, wanted, auto)
    elif auto in SAME:
        spans = _spans(r, window)
        cropped = [max(more + span - step, 0) for more, span, step in zip(extra, spans, window["strides"], strict=True)]
        window["pads"] = _split_crop(cropped, auto)
    weights, group = r.constant(1), window["group"]
    if weights is not None and (group < 1 or len(weights) % group):
        raise r.invalid(f"{group} groups do not divide weights of shape {weights.shape}", rule="groups-do-not-divide")
    kernel = transposed_weights(r, weights, group)
    inputs = [r.input(0), kernel, *r.inputs[2:3]]
    r.emit("ConvTranspose", inputs, data_format="channels_first", output_padding=extra, **window)


def _spans(r: Reading, window: dict[str, Any]) -> list[int]:
    """The extent of the dilated kernel along each spatial axis."""
    weights, dilations = r.tensor(1).static_shape, window["dilations"]
    if weights is None or len(weights) != len(dilations) + 2:
        raise NotCoveredError(f"weights of shape {r.tensor(1).shape} and sizes of the result that depend on it")
    return [(taps - 1) * step + 1 for taps, step in zip(weights[2:], dilations, strict=True)]


def _split_crop(cropped: Sequence[int], auto: str) -> tuple[int, ...]:
    """What is cropped before, and then after; the odd one is after for SAME_UPPER (onnxruntime, conv_transpose_attributes.h)."""
    before = [crop // 2 if auto == "SAME_UPPER" else crop - crop // 2 for crop in cropped]
    return (*before, *(crop - front for crop, front in zip(cropped, before, strict=True)))


def _pads_of_result(r: Reading, window: dict[str, Any], extra: tuple[int, ...], wanted: tuple[int, ...], auto: str) -> tuple[int, ...]:
    """What is cropped for a result of the wanted sizes."""
    shape, count = r.tensor(0).static_shape, len(extra)
    if shape is None or len(shape) != count + 2 or len(wanted) not in (count, count + 2):
        raise NotCoveredError(f"an output shape for data of shape {r.tensor(0).shape}")
    sides = zip(shape[2:], window["strides"], extra, _spans(r, window), wanted[-count:], strict=True)
    cropped = [stride * (size - 1) + more + span - target for size, stride, more, span, target in sides]
    if min(cropped) < 0:
        raise NotCoveredError(f"an output shape {wanted} beyond the positions of the weights")
    return _split_crop(cropped, auto)


def transposed_weights(r: Reading, weights: Array | None, group: int) -> str:
    """The weights of input 1 as O,I,spatial, with scales along O. Weights after a DequantizeLinear turn before it.

    A Transpose turns those that are computed, also from constants: what follows finds out.
    """
    source = r.after_dequantize(1)
    if weights is not None and source is None:
        return r.variant(1, "OIHW", swapped_weights(weights, group), None)
    if source is None or source.data is None or source.quantization is None:
        if group != 1:
            raise NotCoveredError("groups of weights that are computed at run time")
        return r.emit_inner("Transpose", [r.input(1)], "weights", perm=(1, 0, *range(2, r.rank(1))))
    quantization = swapped_scales(source.quantization, group, source.data.shape[1])
    if quantization is None:
        raise NotCoveredError(f"weights of {group} groups with scales along axis {source.quantization.axis}")
    turned = r.draft.variant(source.name, "OIHW", swapped_weights(source.data, group), quantization)
    return r.emit_inner("Dequantize", [turned], "weights", "float32")


def unswapped_scales(quantization: Quantization, group: int, shape: Sequence[int]) -> Quantization | None:
    """The mirror of swapped_scales() for weights O,I/group,spatial of this shape; None if ONNX has no axis along which the scales stand."""
    if quantization.axis is None:
        return quantization
    if quantization.axis == 1:
        return quantization.with_axis(0) if group == 1 else None
    scale, zero_point = (values.reshape(group, shape[0] // group) for values in (quantization.scale, quantization.zero_point))
    if (scale == scale[0]).all() and (zero_point == zero_point[0]).all():
        return Quantization(scale[0], zero_point[0], 1)
    if shape[1] == 1 and (scale == scale[:, :1]).all() and (zero_point == zero_point[:, :1]).all():
        return Quantization(scale[:, 0], zero_point[:, 0], 0)
    return None


def read_window(r: Reading, spatial: int) -> dict[str, Any]:
    """Strides and padding along so many axes, with ONNX's defaults."""
    auto, none = r.attribute("auto_pad", "NOTSET"), (0,) * 2 * spatial
    pads = r.attribute("pads", none) if auto == "NOTSET" else none
    return {"strides": r.attribute("strides", (1,) * spatial), "pads": pads, "auto_pad": auto}


def read_conv_window(r: Reading, weights: int = 1) -> dict[str, Any]:
    """Attributes that convolutions share, with ONNX's defaults filled in from the rank of the weights, input `weights`."""
    rank = r.tensor(weights).rank
    if rank is None or rank < 3:
        raise NotCoveredError("weights of unknown rank" if rank is None else f"weights of rank {rank}")
    dilations = r.attribute("dilations", (1,) * (rank - 2))
    return {**read_window(r, rank - 2), "dilations": dilations, "group": r.attribute("group", 1)}


WRITERS: Writers = {"Conv": write_conv, "ConvInteger": write_conv_integer, "ConvTranspose": write_conv_transpose}

READERS: Readers = {"Conv": read_conv, "ConvInteger": read_conv, "ConvTranspose": read_conv_transpose}
