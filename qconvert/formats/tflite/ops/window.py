"""Sliding windows: their padding as TFLite computes it (kernels/padding.h), and the weights of convolutions in TFLite's order of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.writing import Writing, as_int32
from qconvert.graph import Op, Quantization
from qconvert.operators.sizes import same_pads

#: Padding of the schema.
SAME, VALID = 0, 1


def spatial_sizes(r: Reading, count: int = 2) -> tuple[int | str, ...]:
    """Height and width of channels-last data, or depth, height and width."""
    if r.rank() != count + 2:
        raise r.invalid(f"input {r.inputs[0]!r} has rank {r.rank()}, not {count + 2}", rule="wrong-rank")
    shape = r.tensor().shape
    assert shape is not None
    return shape[1:-1]


def read_per_axis(r: Reading, option: str, count: int) -> tuple[int, ...]:
    """An option such as "stride{}" of height and width, or of depth, height and width."""
    return tuple(int(r.option(option.format(axis), 1)) for axis in "DHW"[-count:])


def write_per_axis(option: str, values: Sequence[int]) -> dict[str, Any]:
    """The reverse: the fields of the option table."""
    return {option.format(axis): value for axis, value in zip("DHW"[-len(values) :], values, strict=True)}


def window(r: Reading, kernel: Sequence[int], dilations: Sequence[int] = ()) -> dict[str, Any]:
    """The attributes strides, pads, auto_pad and data_format of a convolution or a pool, from its option table."""
    count = len(kernel)
    strides, dilations = read_per_axis(r, "stride{}", count), dilations or (1,) * count
    if min(*strides, *dilations, *kernel) < 1:
        raise r.invalid(f"stride {strides}, dilation {tuple(dilations)} or kernel {tuple(kernel)} is not positive", rule="not-positive")
    padding = r.option("padding", VALID)
    if padding not in (SAME, VALID):
        raise r.invalid(f"padding number {padding} does not exist", rule="unknown-padding")
    sizes = spatial_sizes(r, count)
    attributes: dict[str, Any] = {"strides": strides, "pads": (0,) * 2 * count, "data_format": "channels_last"}
    if padding == SAME:
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) == count:
            attributes["pads"] = same_pads(numbers, kernel, strides, dilations)
        elif all(stride == 1 for stride in strides):
            attributes["pads"] = _same_pads_at_stride_1(kernel, dilations)
        else:
            attributes["auto_pad"] = "SAME_UPPER"
    return attributes


class Window(NamedTuple):
    """How a window is written: the data, padded before it where TFLite has no such padding, and the option table's fields."""

    data: str
    fields: dict[str, Any]


def write_window(op: Op, w: Writing, kernel: Sequence[int], dilations: Sequence[int] = (), filler: int | float | None = None) -> Window:
    """SAME or VALID where they are just the operator's padding, else a PAD before a VALID window.

    Args:
        op: with `strides`, `pads`, `auto_pad` and data that are channels last.
        w: what is written.
        kernel, dilations: of each spatial axis.
        filler: the stored value to pad with; None for real zero.
    """
    found = own_window(op, w, kernel, dilations)
    if found is not None:
        return found
    pads = tuple(op["pads"])
    if op["auto_pad"] == "SAME_LOWER":
        sizes = w.shape(op.inputs[0], op, slice(1, -1))
        pads = _ends_first(same_pads(sizes, kernel, op["strides"], dilations or (1,) * len(kernel)))
    return Window(write_padding(op, w, pads, filler), window_fields(op, VALID))


def window_fields(op: Op, padding: int) -> dict[str, Any]:
    """Strides and padding as the option table has them."""
    return {**write_per_axis("stride{}", op["strides"]), "padding": padding}


def _ends_first(pads: Sequence[int]) -> tuple[int, ...]:
    return (*pads[len(pads) // 2 :], *pads[: len(pads) // 2])


def require_channels_last(op: Op, w: Writing, rank: int = 4) -> None:
    """Raises UnsupportedError for data of another layout or rank."""
    if op["data_format"] != "channels_last" or w.operand(op).rank != rank:
        raise w.unsupported_error(
            op, f"data that are not channels last (the layout pass has not run) or not of rank {rank}", rule="not-channels-last"
        )


def own_window(op: Op, w: Writing, kernel: Sequence[int], dilations: Sequence[int] = ()) -> Window | None:
    """SAME or VALID where they are just the operator's padding, else None; see write_window()."""
    name, strides, count = op.inputs[0], tuple(op["strides"]), len(kernel)
    dilations = dilations or (1,) * count
    require_channels_last(op, w, count + 2)
    sizes = [size for size in (w.tensor(name).shape or ())[1:-1] if isinstance(size, int)]
    pads = tuple(op["pads"]) if op["auto_pad"] == "NOTSET" else None
    same = same_pads(sizes, kernel, strides, dilations) if len(sizes) == count else None
    same_anyway = same is None and set(strides) == {1} and pads == _same_pads_at_stride_1(kernel, dilations)
    if op["auto_pad"] == "SAME_UPPER" or same_anyway:
        return Window(name, window_fields(op, SAME))
    if op["auto_pad"] == "SAME_LOWER":
        if same is None:
            raise w.unsupported_error(op, "SAME_LOWER padding of dynamic dimensions", rule="dynamic-dimension")
        pads = _ends_first(same)
    if pads is None or not any(pads):
        return Window(name, window_fields(op, VALID))
    return Window(name, window_fields(op, SAME)) if pads == same else None


def _same_pads_at_stride_1(kernel: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """SAME padding of strides of 1, which do not depend on sizes."""
    ones = (1,) * len(kernel)
    return same_pads(ones, kernel, ones, dilations)


def write_padding(op: Op, w: Writing, pads: Sequence[int], filler: int | float | None) -> str:
    """The data of `op`, channels last, after a PAD with real zero, or a PADV2 with the stored value `filler`; as they are without pads.

    Args:
        op: the operator.
        w: what is written.
        pads: before each spatial axis, then after each.
        filler: None for real zero.
    """
    name, count = op.inputs[0], len(pads) // 2
    if not any(pads):
        return name
    batch, *sizes, channels = w.tensor(name).shape or ()
    spatial = [size + pads[i] + pads[count + i] if isinstance(size, int) else f"{name}_padded_{i}" for i, size in enumerate(sizes)]
    result = w.like(f"{op.outputs[0]}/padded", name, (batch, *spatial, channels))
    rows = [[0, 0], *([pads[i], pads[count + i]] for i in range(count)), [0, 0]]
    paddings = w.const(as_int32(rows, op.outputs[0]), f"{op.outputs[0]}/paddings")
    if filler is None:
        w.emit("PAD", [name, paddings], [result])
    else:
        tensor = w.tensor(name)
        value = w.const(np.array(filler, tensor.dtype), f"{op.outputs[0]}/filler", tensor.quantization)
        w.emit("PADV2", [name, paddings, value], [result])
    return result


def result_shape(op: Op, w: Writing, sizes: Sequence[int]) -> str:
    """The shape of a transposed convolution's result: a constant, or made of those sizes of the data that are dynamic.

    Args:
        op: with `strides`, and data that are channels last.
        w: what is written.
        sizes: of the result after the batch; where the data's is dynamic, what it has beyond stride * data.
    """
    known, result, rank = w.operand(op).shape or (), op.outputs[0], len(sizes) + 1
    if all(isinstance(size, int) for size in known[:-1]):
        return w.ints([int(known[0]), *sizes], f"{result}/output_shape")
    factors = [int(step) if isinstance(size, str) else 0 for size, step in zip(known[:-1], (1, *op["strides"]), strict=True)]
    summands = [0 if factors[0] else int(known[0]), *sizes]
    shape, scaled, whole = (w.add(f"{result}/{hint}", "int32", (rank,)) for hint in ("data_shape", "scaled_shape", "output_shape"))
    w.emit("SHAPE", [op.inputs[0]], [shape])
    w.emit("MUL", [shape, w.ints([*factors, 0], f"{result}/factors")], [scaled])
    w.emit("ADD", [scaled, w.ints(summands, f"{result}/sizes")], [whole])
    return whole


def transpose_quantization(r: Reading, perm: tuple[int, ...]) -> Quantization | None:
    """The quantization of the weights in input 1 after the transposition to O,I,spatial. A kernel takes scales along the outputs
    alone; a DEQUANTIZE before it takes them along any axis."""
    maker = r.find_dequantize(1)
    weights = r.tensor(1) if maker is None else r.lookup(maker.inputs[0])
    quantization = weights.quantization
    if quantization is None or quantization.axis is None:
        return quantization
    if maker is None and quantization.axis != perm[0]:
        raise r.invalid(f"weights {weights.name!r} are quantized along axis {quantization.axis}", rule="weight-axis")
    return quantization.transpose(perm)


def find_weight_dequantize(op: Op, w: Writing) -> Op | None:
    """The operator that makes the weights of `op` of a constant, float16 or integers, by a DEQUANTIZE; None if there is none."""
    maker = w.producer(op.inputs[1], "Cast", "Dequantize")
    if maker is None or w.graph[op.inputs[1]].dtype != "float32":
        return None
    stored = w.graph[maker.inputs[0]]
    if stored.quantization is not None and stored.quantization.block_size:
        return None
    return maker if stored.is_constant and (stored.dtype == "float16" or maker.kind == "Dequantize") else None


def write_weights(op: Op, w: Writing, key: str, axes: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The weights of `op` with their axes in TFLite's order, after a DEQUANTIZE if they have one; and their shape, O,I,spatial.

    Args:
        op: with weights in input 1.
        w: what is written.
        key: names the order.
        axes: the order.
    """
    maker = find_weight_dequantize(op, w)
    name = maker.inputs[0] if maker is not None else op.inputs[1]
    data, quantization = w.graph.constant(name), w.graph[name].quantization
    if data is None:
        return _write_computed_weights(op, w, name, axes)
    if data.ndim != len(axes):
        raise w.unsupported_error(op, f"weights of rank {data.ndim}", rule="wrong-rank")
    moved = None if quantization is None else quantization.transpose(axes)
    kernel = w.variant(name, key, data.transpose(axes), moved)
    if maker is None:
        return kernel, data.shape
    w.retract(maker)
    return w.emit_new("DEQUANTIZE", [kernel], f"{op.inputs[1]}/{key}", "float32", w.tensor(kernel).shape), data.shape


def _write_computed_weights(op: Op, w: Writing, name: str, axes: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Weights that are computed at run time after a TRANSPOSE; without that and the one before it, if they cancel out."""
    shape, maker, quantization = w.shape(name, op), w.producer(name, "Transpose"), w.tensor(name).quantization
    if len(shape) != len(axes) or (quantization is not None and not quantization.is_per_tensor):
        raise w.unsupported_error(op, f"weights {name!r} of shape {shape} that are computed at run time", rule="weights-not-constant")
    if maker is not None and [maker["perm"][axis] for axis in axes] == list(range(len(axes))):
        w.retract(maker)
        return maker.inputs[0], shape
    result = w.like(f"{name}/turned", name, tuple(shape[axis] for axis in axes))
    return w.emit("TRANSPOSE", [name, w.ints(axes, f"{name}/perm")], [result])[0], shape
