"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D and CONV_3D, TRANSPOSE_CONV and CONV_3D_TRANSPOSE. Weights become O,I,spatial as views, and
back; their per-axis scales follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import accumulator_quantization, is_accumulator_scale
from qconvert.formats.tflite.ops.window import (
    SAME,
    VALID,
    read_per_axis,
    require_channels_last,
    result_shape,
    transpose_quantization,
    window,
    window_fields,
    write_per_axis,
    write_weights,
    write_window,
)
from qconvert.formats.tflite.reading import Readers, ReadFunction, Reading
from qconvert.formats.tflite.tensors import DTYPE_NUMBERS
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, Quantization, Tensor
from qconvert.operators.sizes import same_pads


def _make_reader(key: str, perm: tuple[int, ...]) -> ReadFunction:
    """The reader of a convolution, whose weights are O,I,spatial after `perm`; I smaller than the data's channels means groups."""

    def read(r: Reading) -> None:
        kernel, shape = transpose_weights(r, key, perm)
        outputs, depth, *size = (shape[axis] for axis in perm)
        channels = _channels(r, len(perm))
        if depth == 0 or channels == 0 or channels % depth or outputs % (channels // depth):
            raise r.invalid(f"weights of shape {shape} do not fit {channels} input channels", rule="shape-mismatch")
        _emit_conv(r, kernel, size, channels // depth)

    return read


def read_depthwise_conv_2d(r: Reading) -> None:
    """DEPTHWISE_CONV_2D: weights 1,H,W,C*multiplier, quantized along the last axis."""
    kernel, shape = transpose_weights(r, "OIHW depthwise", (3, 0, 1, 2))
    one, height, width, outputs = shape
    channels = _channels(r, 4)
    if one != 1 or channels == 0 or outputs % channels:
        raise r.invalid(f"weights of shape {shape} do not fit {channels} input channels", rule="shape-mismatch")
    _emit_conv(r, kernel, (height, width), channels)


def _emit_conv(r: Reading, kernel: str, size: Sequence[int], group: int) -> None:
    dilations = read_per_axis(r, "dilation{}Factor", len(size))
    r.emit(
        "Conv",
        weighted_operands(r, kernel),
        arithmetic=dynamic_range(r, kernel),
        dilations=dilations,
        group=group,
        activation=r.activation(),
        **window(r, size, dilations),
    )


def write_conv(op: Op, w: Writing) -> None:
    """Conv as CONV_2D or CONV_3D, or as DEPTHWISE_CONV_2D if each group has one input channel; with one in all, as its source was."""
    group = int(op["group"])
    shape = w.graph[op.inputs[1]].shape or ()
    data = w.graph[op.inputs[0]].shape
    depthwise = len(shape) == 4 and shape[1] == 1 and (group > 1 or op.source.startswith("DEPTHWISE_CONV_2D"))
    if len(shape) == 5:
        kernel, sizes = write_weights(op, w, "DHWIO", (2, 3, 4, 1, 0)) if group == 1 else ("", w.constant(op, 1).shape)
    else:
        kernel, sizes = write_weights(op, w, "1HWO", (1, 2, 3, 0)) if depthwise else write_weights(op, w, "OHWI", (0, 2, 3, 1))
    if data is not None and isinstance(data[-1], str):
        raise w.unsupported_error(op, "a dynamic number of channels, which LiteRT divides into groups", rule="dynamic-dimension")
    window = write_window(op, w, sizes[2:], op["dilations"])
    fields = {**window.fields, **write_per_axis("dilation{}Factor", op["dilations"]), "fusedActivationFunction": w.activation(op)}
    if len(shape) == 5:
        if group == 1:
            w.emit("CONV_3D", [window.data, kernel, *op.inputs[2:3]], op.outputs, **fields)
        else:
            _write_groups(op, w, window.data, fields)
        return
    operands = [window.data, kernel, *write_bias(op, w)]
    if depthwise:
        w.emit("DEPTHWISE_CONV_2D", operands, op.outputs, depthMultiplier=sizes[0] // group, **fields)
    else:
        w.emit("CONV_2D", operands, op.outputs, **fields, **bias_type(op, w))


def _write_groups(op: Op, w: Writing, data: str, fields: dict[str, Any]) -> None:
    """A CONV_3D for each group, whose kernel knows none, between a SPLIT and a CONCATENATION of the channels."""
    weights = w.constant(op, 1)
    count, result, last = int(op["group"]), w.result(op), w.ints(4, f"{op.outputs[0]}/axis")
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
    w.emit("CONCATENATION", found, op.outputs, axis=4)


def write_bias(op: Op, w: Writing) -> list[str]:
    """The bias: int64 with int16 data, as the 16x8 specification has it, and zeros where there is none: not all kernels do without."""
    data, weights = w.operand(op), w.graph[op.inputs[1]]
    if op.has(2):
        bias = w.operand(op, 2)
        if bias.data is None or (bias.dtype, data.dtype) != ("int32", "int16") or w.graph.is_from("tflite"):
            return [bias.name]
        return [w.variant(bias.name, "int64", bias.data.astype(np.int64), bias.quantization)]
    if weights.shape is None:
        return []
    dtype, quantization = "float32", None
    if data.quantization is not None and weights.quantization is not None:
        quantization = _bias_quantization(data.quantization, weights.quantization)
        dtype = "int64" if data.dtype == "int16" else "int32"
    return [w.const(np.zeros(int(weights.shape[0]), dtype), f"{op.outputs[0]}/bias", quantization)]


def bias_type(op: Op, w: Writing) -> dict[str, Any]:
    """The option that states an int32 bias with int16 data: where it is not stated, LiteRT reads 64 bits for each integer."""
    types = [w.operand(op, at).dtype for at in (0, 2)] if op.has(2) else []
    stays = types == ["int16", "int32"] and w.graph.is_from("tflite")  # write_bias() makes others int64
    return {"quantizedBiasType": DTYPE_NUMBERS["int32"]} if stays else {}


def transpose_weights(r: Reading, key: str, perm: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The weights in input 1, a constant, one after a DEQUANTIZE, or computed at run time, with their axes in another order, and their
    shape in the file.

    Args:
        r: the operator.
        key: names the order.
        perm: the order; the outputs come first.
    """
    maker = r.find_dequantize(1)
    weights = r.constant(1) if maker is None else r.lookup(maker.inputs[0]).data
    shape = r.static_shape(1) if weights is None else weights.shape
    if len(shape) != len(perm) or 0 in shape:
        raise r.invalid(f"weights of shape {shape}", rule="wrong-rank")
    quantization = transpose_quantization(r, perm)
    if weights is not None:
        return r.transpose_constant(1, key, weights.transpose(perm), quantization), shape
    tensor = r.tensor(1)
    if tensor.dtype not in ("float32", "int8", "uint8"):  # LiteRT's kernels read other types as int8
        raise r.unsupported_error(
            f"weights of {tensor.dtype} that are computed at run time, which the kernel reads as int8,", rule="weights-not-constant"
        )
    turned = r.intermediate("turned", tensor.dtype, tuple(shape[at] for at in perm), quantization, base=tensor.name)
    return r.emit("Transpose", [tensor.name], [turned], perm=perm)[0], shape


def _channels(r: Reading, rank: int) -> int:
    shape = r.tensor().shape
    if shape is None or len(shape) != rank or not isinstance(shape[-1], int):
        raise r.unsupported_error(f"input {r.inputs[0]!r} of shape {shape}", rule="unsupported-shape")
    return shape[-1]


def weighted_operands(r: Reading, kernel: str, data: int = 0, bias: int = 2) -> list[str]:
    """Data, weights and bias, of which the inputs `data` and `bias` are the first and the last."""
    found = [r.input(data), float_weights(r, kernel, data)]
    return [*found, accumulator_bias(r, bias, r.tensor(data), r.lookup(kernel))] if r.has(bias) else found


def float_weights(r: Reading, kernel: str, data: int = 0) -> str:
    """Weights as the operator takes them: integers without a scale with float data stand for themselves."""
    weights = r.lookup(kernel)
    if r.tensor(data).is_quantized or weights.dtype == "float32" or weights.quantization is not None:
        return kernel
    return r.emit_new("Cast", [kernel], "dequantized", "float32", weights.shape, base=kernel, to="float32")


def dynamic_range(r: Reading, kernel: str, data: int = 0, *, asymmetric: bool = True) -> str:
    """The operator's `arithmetic`: integer weights with float data make the kernel round the data when it runs (dynamic range).

    Args:
        r: the operator.
        kernel: its weights.
        data: which input the data are.
        asymmetric: asymmetric_quantize_inputs of FULLY_CONNECTED and BATCH_MATMUL; the kernels of convolutions always do what it means.
    """
    if r.tensor(data).is_quantized or r.lookup(kernel).quantization is None:
        return ""
    return "dynamic" if asymmetric else "dynamic_symmetric"


def _bias_quantization(data: Quantization, weights: Quantization) -> Quantization:
    """The accumulator's; a single scale is that of the whole bias, as TFLite writes it."""
    quantization = accumulator_quantization(data, weights)
    return quantization.with_axis(None) if quantization.scale.size == 1 else quantization


def accumulator_bias(r: Reading, index: int, data: Tensor, weights: Tensor) -> str:
    """The bias at input_scale * weight_scale, where the kernels add its integers, whatever scale and zero point the file states."""
    bias = r.tensor(index)
    if data.quantization is None or weights.quantization is None:
        return bias.name
    if bias.dtype not in ("int32", "int64"):
        raise r.invalid(f"bias {bias.name!r} of type {bias.dtype}", rule="bias-type")
    exact = _bias_quantization(data.quantization, weights.quantization)
    scale = exact.scale
    stated = bias.quantization
    if stated is not None and stated.scale.size == scale.size and is_accumulator_scale(stated.scale, scale):
        exact = Quantization(stated.scale, np.zeros(scale.size, np.int64), exact.axis)
    if stated == exact:
        return bias.name
    known = stated is not None and stated.is_symmetric and stated.scale.size in (1, scale.size)
    if stated is not None and not (known and is_accumulator_scale(stated.scale, scale)):
        r.ignores_scales(index)
    return r.reinterpret(bias.name, exact)


def _make_transposed_reader(key: str, perm: tuple[int, ...]) -> ReadFunction:
    """The reader of a transposed convolution, whose weights have the order O,I,spatial after `perm`.

    Inputs are (output shape, weights, data[, bias]). Padding and cropping depend on sizes only by what the result has beyond stride *
    data. Where a size is dynamic, that is enough: it takes the place of the result's size, and 0 that of the data's.

    VALID padding may not map a stated size back to that of the data. LiteRT's default kernels then keep only the remainder beyond whole
    strides, and its reference kernels refuse it (XNNPACK's adjustments; transpose_conv.cc, computed_input_height; measured).
    """

    def read(r: Reading) -> None:
        kernel, shape = transpose_weights(r, key, perm)
        outputs, depth, *taps = (shape[axis] for axis in perm)
        axes = range(len(taps))
        strides = read_per_axis(r, "stride{}", len(taps))
        dilations = read_per_axis(r, "dilation{}Factor", 3) if len(taps) == 3 else (1, 1)
        if min(*strides, *dilations) < 1:
            raise r.invalid(f"stride {strides} or dilation {dilations} is not positive", rule="not-positive")
        size, data = _relative_sizes(r, strides)
        if data[-1] != depth or size[-1] != outputs:
            raise r.invalid(f"output shape {size}, weights {shape} and data {data} do not fit", rule="shape-mismatch")
        # The kernel scatters each input element and crops by the padding of the forward convolution (kernels/padding.h).
        is_valid = r.option("padding") == VALID
        pads = (0,) * 2 * len(taps) if is_valid else same_pads(size[:-1], taps, strides, dilations)
        if not is_valid and any(-(-size[i] // strides[i]) != data[i] for i in axes):
            raise r.invalid(
                f"SAME padding with strides {strides} does not map {size[:-1]} positions to {data[:-1]}", rule="padding-mismatch"
            )
        extra = [size[i] - (data[i] - 1) * strides[i] - (taps[i] - 1) * dilations[i] - 1 + pads[i] for i in axes]
        if is_valid and any(extra[i] // strides[i] for i in axes):
            beyond = [strides[i] * (extra[i] // strides[i]) for i in axes]
            extra = [extra[i] - beyond[i] for i in axes]
            stated = r.result().shape or ()
            r.with_shape((*stated[:1], *(n - more if isinstance(n, int) else n for n, more in zip(stated[1:], (*beyond, 0), strict=True))))
        r.emit(
            "ConvTranspose",
            weighted_operands(r, kernel, 2, 3),
            arithmetic=dynamic_range(r, kernel, 2),
            strides=strides,
            pads=(*pads[: len(taps)], *(max(-value, 0) for value in extra)),
            dilations=dilations,
            data_format="channels_last",
            output_padding=tuple(max(value, 0) for value in extra),
            activation=r.activation(),
        )

    return read


def _relative_sizes(r: Reading, strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Spatial sizes and channels of the result and of the data; for a size of the data that has a name, what the result has beyond them."""
    shape, stated, rank = r.tensor(2).shape, r.result().shape, len(strides) + 2
    wanted = r.sizes_of(0)
    if shape is None or len(shape) != rank or (wanted is not None and len(wanted) != rank):
        raise r.unsupported_error(f"data of shape {shape} and {len(wanted or ())} sizes of the result", rule="unsupported-shape")
    result, data = [], []
    for axis, step in enumerate((*strides, 1), 1):
        size, known = shape[axis], None
        if wanted is not None:
            known = r.difference(wanted[axis], size, 0 if isinstance(size, int) else step)
        if known is None and stated is not None and len(stated) == rank and isinstance(size, int):
            known = int(stated[axis]) if isinstance(stated[axis], int) else None
        if known is None or (axis == rank - 1 and not isinstance(size, int)):
            raise r.unsupported_error(
                f"data of shape {shape} and a result whose size along axis {axis} is dynamic", rule="dynamic-dimension"
            )
        result.append(known)
        data.append(size if isinstance(size, int) else 0)
    return result, data


def write_conv_transpose(op: Op, w: Writing) -> None:
    """ConvTranspose. What neither SAME nor VALID crops is cropped by a STRIDED_SLICE of the whole result."""
    result, rank = op.outputs[0], w.graph[op.inputs[1]].rank or 0
    if int(op["group"]) != 1 or rank not in (4, 5) or (rank == 4 and any(value != 1 for value in op["dilations"])):
        raise w.unsupported_error(op, "groups, dilations or weights of other than two spatial dimensions", rule="form-not-covered")
    is_volume, axes = rank == 5, range(rank - 2)
    if is_volume:
        require_channels_last(op, w, rank)
    kernel, shape = write_weights(op, w, "DHWOI", (2, 3, 4, 0, 1)) if is_volume else write_weights(op, w, "OHWI", (0, 2, 3, 1))
    strides, dilations = op["strides"], op["dilations"]
    spans = [(shape[2 + i] - 1) * dilations[i] + 1 for i in axes]
    data, size = _sizes_to_write(op, w, spans)
    full = [(data[i] - 1) * strides[i] + spans[i] for i in axes]
    begins = list(op["pads"][: rank - 2])
    same = same_pads(size[:-1], shape[2:], strides, dilations)
    beyond = [begins[i] + size[i] - full[i] for i in axes]
    if any(beyond[i] >= strides[i] for i in axes):
        raise w.unsupported_error(
            op, f"{beyond} positions after the last one that the data give with strides {list(strides)}", rule="positions-beyond-data"
        )
    target, whole, padding = result, list(size), VALID
    is_same = all(-(-size[i] // strides[i]) == data[i] for i in axes)
    if any(same) and is_same and begins == list(same[: rank - 2]):
        padding = SAME
    elif any(begins) or any(full[i] > size[i] for i in axes):
        whole = [*(max(begins[i] + size[i], full[i]) for i in axes), size[-1]]
        stated = w.tensor(result).shape or ("batch", *size)
        open_ = [f"{result}/uncropped_{1 + i}" if isinstance(stated[1 + i], str) else whole[i] for i in axes]
        target = w.like(f"{result}/uncropped", result, (stated[0], *open_, size[-1]))
    operands = [result_shape(op, w, whole), kernel, op.inputs[0]]
    fields = {**window_fields(op, padding), "fusedActivationFunction": w.activation(op)}
    if is_volume:
        fields |= write_per_axis("dilation{}Factor", dilations)
        w.emit("CONV_3D_TRANSPOSE", [*operands, *op.inputs[2:3]], [target], **fields)
    else:
        w.emit("TRANSPOSE_CONV", [*operands, *write_bias(op, w)], [target], **fields, **bias_type(op, w))
    if target != result:
        ends = [begins[i] + size[i] - whole[i] for i in axes]  # counted from the back, as the whole may be known only at run time
        first_and_last = 1 | 2 << (rank - 2)
        mask = first_and_last | sum(2 << i for i in axes if not ends[i])
        w.slice_steps(target, ([0, *begins, 0], [0, *ends, 0], [1] * rank), result, beginMask=first_and_last, endMask=mask)


def _sizes_to_write(op: Op, w: Writing, spans: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Spatial sizes and channels of data and result; see _make_transposed_reader() for sizes that are dynamic."""
    shapes = [w.tensor(name).shape or () for name in (op.inputs[0], op.outputs[0])]
    count = len(spans)
    channels = [shape[-1] if len(shape) == count + 2 else "" for shape in shapes]
    if not all(isinstance(size, int) for size in channels):
        raise w.unsupported_error(op, f"data of shape {shapes[0]} and a result of shape {shapes[1]}", rule="unsupported-shape")
    data, result = [], []
    for i in range(count):
        own, made = shapes[0][1 + i], shapes[1][1 + i]
        if isinstance(own, int) and isinstance(made, int):
            data.append(own)
            result.append(made)
        else:
            data.append(0)
            result.append(spans[i] + op["output_padding"][i] - op["pads"][i] - op["pads"][count + i] - op["strides"][i])
    return (*data, int(channels[0])), (*result, int(channels[1]))


READERS: Readers = {
    "CONV_2D": _make_reader("OIHW", (0, 3, 1, 2)),
    "CONV_3D": _make_reader("OIDHW", (4, 3, 0, 1, 2)),
    "DEPTHWISE_CONV_2D": read_depthwise_conv_2d,
    "TRANSPOSE_CONV": _make_transposed_reader("OIHW", (0, 3, 1, 2)),
    "CONV_3D_TRANSPOSE": _make_transposed_reader("OIDHW", (3, 4, 0, 1, 2)),
}

WRITERS: Writers = {
    "Conv": write_conv,
    "ConvTranspose": write_conv_transpose,
}
