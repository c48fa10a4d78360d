"""TRANSPOSE_CONV."""

from __future__ import annotations

from qconvert.formats.tflite.ops.conv import accumulator_bias, constant_weights, moved_axis, write_bias
from qconvert.formats.tflite.ops.window import SAME, VALID, same_pads
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


def read_transpose_conv(r: Reading) -> None:
    """TRANSPOSE_CONV: inputs are (output shape, weights O,H,W,I, data[, bias])."""
    weights = constant_weights(r, 1)
    outputs, height, width, depth = weights.shape
    size = r.ints(0)
    data = r.tensor(2).static_shape
    if len(size) != 4 or data is None or len(data) != 4 or data[3] != depth or size[3] != outputs:
        raise r.invalid(f"output shape {size}, weights {weights.shape} and data {r.tensor(2).shape} do not fit")
    strides = (r.option("strideH", 1), r.option("strideW", 1))
    if min(strides) < 1:
        raise r.invalid(f"stride {strides} is not positive")
    # The kernel scatters each input element and crops by the padding of the forward convolution (kernels/padding.h).
    pads = (0, 0, 0, 0) if r.option("padding") == 1 else same_pads(size[1:3], (height, width), strides, (1, 1))
    extra = [size[1 + i] - (data[1 + i] - 1) * strides[i] - (height, width)[i] + pads[i] for i in range(2)]
    ends = [max(-value, 0) for value in extra]
    kernel = r.variant(1, "OIHW", weights.transpose(0, 3, 1, 2), moved_axis(r, r.tensor(1), {0: 0}))
    operands = [r.input(2), kernel]
    if r.has(3):
        operands.append(accumulator_bias(r, 3, r.tensor(2), r.lookup(kernel)))
    r.emit(
        "ConvTranspose",
        operands,
        strides=strides,
        pads=(*pads[:2], *ends),
        dilations=(1, 1),
        data_format="channels_last",
        output_padding=tuple(max(value, 0) for value in extra),
        activation=r.activation(),
    )


def write_conv_transpose(op: Op, w: Writing) -> None:
    """ConvTranspose. What neither SAME nor VALID crops is cropped by a SLICE of the whole result."""
    weights, name, result = w.constant(op, 1), op.inputs[1], op.outputs[0]
    if int(op["group"]) != 1 or any(value != 1 for value in op["dilations"]) or weights.ndim != 4:
        raise w.unsupported(op, "groups, dilations or weights of other than two spatial dimensions")
    data, size, strides = w.shape(op.inputs[0], op), w.shape(result, op), op["strides"]
    kernel = w.variant(name, "OHWI", weights.transpose(0, 2, 3, 1), w.tensor(name).quantization)
    kernel_size = weights.shape[2:]
    full = [(data[1 + i] - 1) * strides[i] + kernel_size[i] for i in range(2)]
    begins = _begins(op, [max(full[i] - size[1 + i], 0) for i in range(2)])
    same = same_pads(size[1:3], kernel_size, strides, (1, 1))
    target, whole, padding = result, list(size), VALID
    is_same = all(-(-size[1 + i] // strides[i]) == data[1 + i] for i in range(2))
    if any(same) and is_same and begins == list(same[:2]):
        padding = SAME
    elif any(begins) or any(full[i] > size[1 + i] for i in range(2)):
        whole = [size[0], *(max(begins[i] + size[1 + i], full[i]) for i in range(2)), size[3]]
        target = w.like(f"{result}/uncropped", result, tuple(whole))
    operands = [w.ints(whole, f"{result}/output_shape"), kernel, op.inputs[0]]
    if len(op.inputs) > 2 and op.inputs[2]:
        operands += write_bias(op, w, 2)
    w.emit("TRANSPOSE_CONV", operands, [target], "TransposeConvOptions", padding=padding, strideH=strides[0], strideW=strides[1],
           fusedActivationFunction=w.activation(op))  # fmt: skip
    if target != result:
        bounds = [w.ints([0, *begins, 0], f"{result}/begin"), w.ints(list(size), f"{result}/size")]
        w.emit("SLICE", [target, *bounds], [result], "SliceOptions")


def _begins(op: Op, crops: list[int]) -> list[int]:
    """What is cropped in front: as stated, or half of it all, the odd one behind (SAME_UPPER) or in front (SAME_LOWER)."""
    if op["auto_pad"] == "NOTSET":
        return list(op["pads"][:2])
    lower = int(op["auto_pad"] == "SAME_LOWER")
    return [0 if op["auto_pad"] == "VALID" else (crop + lower) // 2 for crop in crops]


READERS: dict[str, ReadFunction] = {"TRANSPOSE_CONV": read_transpose_conv}

WRITERS: dict[str, WriteFunction] = {"ConvTranspose": write_conv_transpose}
