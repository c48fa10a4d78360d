"""TRANSPOSE_CONV."""

from __future__ import annotations

from qconvert.formats.tflite.ops.conv import (
    bias_type,
    dynamic_range,
    transpose_weights,
    weighted_operands,
    write_bias,
)
from qconvert.formats.tflite.ops.volume import has_volume, write_conv_3d_transpose
from qconvert.formats.tflite.ops.window import SAME, VALID, result_shape, write_weights
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op
from qconvert.operators.sizes import same_pads

__all__ = ["READERS", "WRITERS"]


def read_transpose_conv(r: Reading) -> None:
    """TRANSPOSE_CONV: inputs are (output shape, weights O,H,W,I, data[, bias]).

    Padding and cropping depend on sizes only by what the result has beyond stride * data. Where a size is dynamic, that is
    enough: it takes the place of the result's size, and 0 that of the data's.

    VALID padding may not map a stated size back to that of the data. LiteRT's default kernels then keep only the remainder beyond whole
    strides, and its reference kernels refuse it (XNNPACK's adjustments; transpose_conv.cc, computed_input_height; measured).
    """
    kernel, shape = transpose_weights(r, 1, "OIHW", (0, 3, 1, 2))
    outputs, height, width, depth = shape
    strides = (r.option("strideH", 1), r.option("strideW", 1))
    if min(strides) < 1:
        raise r.invalid(f"stride {strides} is not positive", rule="not-positive")
    size, data = _relative_sizes(r, strides)
    if data[2] != depth or size[2] != outputs:
        raise r.invalid(f"output shape {size}, weights {shape} and data {data} do not fit", rule="shape-mismatch")
    # The kernel scatters each input element and crops by the padding of the forward convolution (kernels/padding.h).
    is_valid = r.option("padding") == 1
    pads = (0, 0, 0, 0) if is_valid else same_pads(size[:2], (height, width), strides, (1, 1))
    if not is_valid and any(-(-size[i] // strides[i]) != data[i] for i in range(2)):
        raise r.invalid(f"SAME padding with strides {strides} does not map {size[:2]} positions to {data[:2]}", rule="padding-mismatch")
    extra = [size[i] - (data[i] - 1) * strides[i] - (height, width)[i] + pads[i] for i in range(2)]
    if is_valid and any(extra[i] // strides[i] for i in range(2)):
        beyond = [strides[i] * (extra[i] // strides[i]) for i in range(2)]
        extra = [extra[i] - beyond[i] for i in range(2)]
        stated = r.result().shape or ()
        r.with_shape((*stated[:1], *(n - more if isinstance(n, int) else n for n, more in zip(stated[1:], (*beyond, 0), strict=True))))
    ends = [max(-value, 0) for value in extra]
    r.emit(
        "ConvTranspose",
        weighted_operands(r, kernel, 2, 3),
        arithmetic=dynamic_range(r, kernel, 2),
        strides=strides,
        pads=(*pads[:2], *ends),
        dilations=(1, 1),
        data_format="channels_last",
        output_padding=tuple(max(value, 0) for value in extra),
        activation=r.activation(),
    )


def _relative_sizes(r: Reading, strides: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Height, width and channels of the result and of the data; for a size of the data that has a name, what the result has beyond them."""
    shape, stated = r.tensor(2).shape, r.result().shape
    wanted = r.sizes_of(0)
    if shape is None or len(shape) != 4 or (wanted is not None and len(wanted) != 4):
        raise r.unsupported_error(f"data of shape {shape} and {len(wanted or ())} sizes of the result", rule="unsupported-shape")
    result, data = [], []
    for axis in (1, 2, 3):
        size, known, step = shape[axis], None, 1 if axis == 3 else strides[axis - 1]
        own = size if isinstance(size, int) else 0
        if wanted is not None:
            known = r.difference(wanted[axis], size, 0 if isinstance(size, int) else step)
        if known is None and stated is not None and len(stated) == 4 and isinstance(size, int):
            known = int(stated[axis]) if isinstance(stated[axis], int) else None
        if known is None or (axis == 3 and not isinstance(size, int)):
            raise r.unsupported_error(
                f"data of shape {shape} and a result whose size along axis {axis} is dynamic", rule="dynamic-dimension"
            )
        result.append(known)
        data.append(own)
    return result, data


def write_conv_transpose(op: Op, w: Writing) -> None:
    """ConvTranspose. What neither SAME nor VALID crops is cropped by a SLICE of the whole result."""
    if has_volume(op, w):
        write_conv_3d_transpose(op, w)
        return
    result = op.outputs[0]
    if int(op["group"]) != 1 or any(value != 1 for value in op["dilations"]) or w.graph[op.inputs[1]].rank != 4:
        raise w.unsupported_error(op, "groups, dilations or weights of other than two spatial dimensions", rule="form-not-covered")
    kernel, shape = write_weights(op, w, "OHWI", (0, 2, 3, 1))
    kernel_size, strides = shape[2:], op["strides"]
    data, size = _sizes_to_write(op, w, kernel_size)
    full = [(data[i] - 1) * strides[i] + kernel_size[i] for i in range(2)]
    begins = list(op["pads"][:2])
    same = same_pads(size[:2], kernel_size, strides, (1, 1))
    beyond = [begins[i] + size[i] - full[i] for i in range(2)]
    if any(beyond[i] >= strides[i] for i in range(2)):
        raise w.unsupported_error(
            op, f"{beyond} positions after the last one that the data give with strides {list(strides)}", rule="positions-beyond-data"
        )
    target, whole, padding = result, list(size), VALID
    is_same = all(-(-size[i] // strides[i]) == data[i] for i in range(2))
    if any(same) and is_same and begins == list(same[:2]):
        padding = SAME
    elif any(begins) or any(full[i] > size[i] for i in range(2)):
        whole = [*(max(begins[i] + size[i], full[i]) for i in range(2)), size[2]]
        stated = w.tensor(result).shape or ("batch", *size)
        open_ = [f"{result}/uncropped_{1 + i}" if isinstance(stated[1 + i], str) else whole[i] for i in range(2)]
        target = w.like(f"{result}/uncropped", result, (stated[0], *open_, size[2]))
    operands = [result_shape(op, w, whole), kernel, op.inputs[0], *write_bias(op, w)]
    w.emit("TRANSPOSE_CONV", operands, [target], padding=padding, strideH=strides[0], strideW=strides[1],
           fusedActivationFunction=w.activation(op), **bias_type(op, w))  # fmt: skip
    if target != result:
        begin = [0, *begins, 0]
        ends = [begins[i] + size[i] - whole[i] for i in range(2)]  # counted from the back, as the whole may be known only at run time
        mask = 0b1001 | sum(2 << i for i in range(2) if not ends[i])
        columns = (("begin", begin), ("end", [0, *ends, 0]), ("strides", [1] * 4))
        bounds = [w.ints(column, f"{result}/{hint}") for hint, column in columns]
        w.emit("STRIDED_SLICE", [target, *bounds], [result], beginMask=0b1001, endMask=mask)


def _sizes_to_write(op: Op, w: Writing, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Height, width and channels of data and result; see read_transpose_conv() for sizes that are dynamic."""
    shapes = [w.tensor(name).shape or () for name in (op.inputs[0], op.outputs[0])]
    channels = [shape[3] if len(shape) == 4 else "" for shape in shapes]
    if not all(isinstance(size, int) for size in channels):
        raise w.unsupported_error(op, f"data of shape {shapes[0]} and a result of shape {shapes[1]}", rule="unsupported-shape")
    data, result = [], []
    for i in range(2):
        own, made = shapes[0][1 + i], shapes[1][1 + i]
        if isinstance(own, int) and isinstance(made, int):
            data.append(own)
            result.append(made)
        else:
            data.append(0)
            result.append(kernel[i] + op["output_padding"][i] - op["pads"][i] - op["pads"][2 + i] - op["strides"][i])
    return (*data, int(channels[0])), (*result, int(channels[1]))


READERS: dict[str, ReadFunction] = {"TRANSPOSE_CONV": read_transpose_conv}

WRITERS: dict[str, WriteFunction] = {"ConvTranspose": write_conv_transpose}
