"""TRANSPOSE_CONV."""

from __future__ import annotations

from qconvert.formats.tflite.ops.conv import accumulator_bias, constant_weights, float_weights, moved_axis, write_bias, written_weights
from qconvert.formats.tflite.ops.volume import has_volume, write_conv_3d_transpose
from qconvert.formats.tflite.ops.window import SAME, VALID, same_pads
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.tensors import DTYPE_NUMBERS
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op, Shape

__all__ = ["READERS", "WRITERS"]


def read_transpose_conv(r: Reading) -> None:
    """TRANSPOSE_CONV: inputs are (output shape, weights O,H,W,I, data[, bias])."""
    weights = constant_weights(r, 1)
    outputs, height, width, depth = weights.shape
    size, data = _numbers(r, _output_shape(r)), _numbers(r, r.tensor(2).shape)
    if data[2] != depth or size[2] != outputs:
        raise r.invalid(f"output shape {size}, weights {weights.shape} and data {data} do not fit")
    strides = (r.option("strideH", 1), r.option("strideW", 1))
    if min(strides) < 1:
        raise r.invalid(f"stride {strides} is not positive")
    # The kernel scatters each input element and crops by the padding of the forward convolution (kernels/padding.h).
    pads = (0, 0, 0, 0) if r.option("padding") == 1 else same_pads(size[:2], (height, width), strides, (1, 1))
    extra = [size[i] - (data[i] - 1) * strides[i] - (height, width)[i] + pads[i] for i in range(2)]
    ends = [max(-value, 0) for value in extra]
    kernel = r.turned(1, "OIHW", weights.transpose(0, 3, 1, 2), moved_axis(r, 1, {0: 0}))
    operands = [r.input(2), float_weights(r, kernel, 2)]
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


def _output_shape(r: Reading) -> Shape | None:
    """The shape in input 0, or that of the result where it is computed at run time, as from the batch size of the data."""
    if r.constant(0) is None:
        return r.result().shape
    return tuple(r.ints(0))


def _numbers(r: Reading, shape: Shape | None) -> tuple[int, int, int]:
    """Height, width and channels."""
    if shape is None or len(shape) != 4:
        raise r.unsupported(f"data or a result of shape {shape}")
    height, width, channels = shape[1:]
    if not (isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)):
        raise r.unsupported(f"data or a result of shape {shape}")
    return height, width, channels


def write_conv_transpose(op: Op, w: Writing) -> None:
    """ConvTranspose. What neither SAME nor VALID crops is cropped by a SLICE of the whole result."""
    if has_volume(op, w):
        write_conv_3d_transpose(op, w)
        return
    result = op.outputs[0]
    if int(op["group"]) != 1 or any(value != 1 for value in op["dilations"]) or w.graph[op.inputs[1]].rank != 4:
        raise w.unsupported(op, "groups, dilations or weights of other than two spatial dimensions")
    data, size, strides = _sizes(op, w, op.inputs[0]), _sizes(op, w, result), op["strides"]
    kernel, weights = written_weights(op, w, "OHWI", (0, 2, 3, 1))
    kernel_size = weights.shape[2:]
    full = [(data[i] - 1) * strides[i] + kernel_size[i] for i in range(2)]
    begins = _begins(op, [max(full[i] - size[i], 0) for i in range(2)])
    same = same_pads(size[:2], kernel_size, strides, (1, 1))
    target, whole, padding = result, list(size), VALID
    is_same = all(-(-size[i] // strides[i]) == data[i] for i in range(2))
    if any(same) and is_same and begins == list(same[:2]):
        padding = SAME
    elif any(begins) or any(full[i] > size[i] for i in range(2)):
        whole = [*(max(begins[i] + size[i], full[i]) for i in range(2)), size[2]]
        target = w.like(f"{result}/uncropped", result, ((w.tensor(result).shape or ("batch",))[0], *whole))
    operands = [_written_shape(op, w, whole), kernel, op.inputs[0], *write_bias(op, w, 2)]
    w.emit("TRANSPOSE_CONV", operands, [target], "TransposeConvOptions", padding=padding, strideH=strides[0], strideW=strides[1],
           fusedActivationFunction=w.activation(op))  # fmt: skip
    if target != result:
        bounds = [w.ints([0, *begins, 0], f"{result}/begin"), w.ints([-1, *size], f"{result}/size")]
        w.emit("SLICE", [target, *bounds], [result], "SliceOptions")


def _sizes(op: Op, w: Writing, name: str) -> tuple[int, int, int]:
    """Height, width and channels."""
    shape = w.tensor(name).shape or ()
    numbers = tuple(size for size in shape[1:] if isinstance(size, int))
    if len(shape) != 4 or len(numbers) != 3:
        raise w.unsupported(op, f"{name!r} of shape {shape}")
    return numbers[0], numbers[1], numbers[2]


def _written_shape(op: Op, w: Writing, sizes: list[int]) -> str:
    """The shape of the result: a constant, or behind the batch size of the data if that is known only at run time."""
    data, result = w.tensor(op.inputs[0]), op.outputs[0]
    batch = (data.shape or ("",))[0]
    if isinstance(batch, int):
        return w.ints([batch, *sizes], f"{result}/output_shape")
    shape, first, whole = (w.add(f"{result}/{hint}", "int32", (n,)) for hint, n in (("data_shape", 4), ("batch", 1), ("output_shape", 4)))
    w.emit("SHAPE", [data.name], [shape], "ShapeOptions", outType=DTYPE_NUMBERS["int32"])
    w.emit("SLICE", [shape, w.ints([0], f"{result}/zero"), w.ints([1], f"{result}/one")], [first], "SliceOptions")
    w.emit("CONCATENATION", [first, w.ints(sizes, f"{result}/sizes")], [whole], "ConcatenationOptions", axis=0)
    return whole


def _begins(op: Op, crops: list[int]) -> list[int]:
    """What is cropped in front: as stated, or half of it all, the odd one behind (SAME_UPPER) or in front (SAME_LOWER)."""
    if op["auto_pad"] == "NOTSET":
        return list(op["pads"][:2])
    lower = int(op["auto_pad"] == "SAME_LOWER")
    return [0 if op["auto_pad"] == "VALID" else (crop + lower) // 2 for crop in crops]


READERS: dict[str, ReadFunction] = {"TRANSPOSE_CONV": read_transpose_conv}

WRITERS: dict[str, WriteFunction] = {"ConvTranspose": write_conv_transpose}
