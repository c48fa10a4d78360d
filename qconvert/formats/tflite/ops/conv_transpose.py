"""TRANSPOSE_CONV and CONV_3D_TRANSPOSE."""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.formats.tflite.ops.conv import (
    bias_type,
    dynamic_range,
    transpose_weights,
    weighted_operands,
    write_bias,
)
from qconvert.formats.tflite.ops.window import (
    SAME,
    VALID,
    read_per_axis,
    require_channels_last,
    result_shape,
    window_fields,
    write_per_axis,
    write_weights,
)
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op
from qconvert.operators.sizes import same_pads


def _make_reader(key: str, perm: tuple[int, ...]) -> ReadFunction:
    """The reader of a transposed convolution, whose weights have the order O,I,spatial after `perm`.

    Inputs are (output shape, weights, data[, bias]). Padding and cropping depend on sizes only by what the result has beyond stride *
    data. Where a size is dynamic, that is enough: it takes the place of the result's size, and 0 that of the data's.

    VALID padding may not map a stated size back to that of the data. LiteRT's default kernels then keep only the remainder beyond whole
    strides, and its reference kernels refuse it (XNNPACK's adjustments; transpose_conv.cc, computed_input_height; measured).
    """

    def read(r: Reading) -> None:
        kernel, shape = transpose_weights(r, 1, key, perm)
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
    """Spatial sizes and channels of data and result; see _make_reader() for sizes that are dynamic."""
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


READERS: dict[str, ReadFunction] = {
    "TRANSPOSE_CONV": _make_reader("OIHW", (0, 3, 1, 2)),
    "CONV_3D_TRANSPOSE": _make_reader("OIDHW", (3, 4, 0, 1, 2)),
}

WRITERS: dict[str, WriteFunction] = {"ConvTranspose": write_conv_transpose}
