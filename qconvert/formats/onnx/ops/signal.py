"""Fourier transforms, complex numbers as two real parts along a last axis, ranges, and sums over neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.ops.conv import require_channels_first
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.formats.onnx.steps import Steps
from qconvert.graph import Op
from qconvert.rewriting.lowering import conditions, since

__all__ = ["READERS", "WRITERS"]

#: The opset from which on the axis of a DFT is an input.
_AXIS_AS_INPUT = 20


def write_rfft2d(op: Op, b: Builder) -> None:
    """Two DFTs (opset 17): of the rows, which are real, the first half; then of the columns."""
    s, data, lengths = Steps(op, b), b.tensor(op.inputs[0]), b.ints(op, 1)
    shape = data.shape or ()
    if len(shape) < 2:
        raise b.unsupported(op, f"data of shape {data.shape}", rule="unsupported-shape")
    rank, value = len(shape), b.stored(data.name)
    for axis, length in zip((rank - 2, rank - 1), lengths, strict=True):
        size = shape[axis]
        missing = max(length - size, 0) if isinstance(size, int) else length
        if missing:
            value = s.node("Pad", value, s.ints(*[0] * rank, *(missing if i == axis else 0 for i in range(rank))))
        if not isinstance(size, int) or size > length:
            value = s.slice(value, 0, length, axis)
    flat = s.node("Reshape", value, s.ints(-1, *lengths, 1))  # onnxruntime's kernel was seen right with one batch axis
    for axis, half in ((2, 1), (1, 0)):
        if lengths[axis - 1] == 1:  # the transform of one number is itself
            continue
        if b.opset < 20:
            flat = s.node("DFT", flat, axis=axis, onesided=half)
        else:
            flat = s.node("DFT", flat, "", s.scalar(axis), onesided=half)
    if lengths[1] == 1:
        flat = s.node("Pad", flat, s.ints(0, 0, 0, 0, 0, 0, 0, 1)) if lengths[0] == 1 else flat
    sizes, ends = [size if isinstance(size, int) else -1 for size in shape[:-2]], (lengths[0], lengths[1] // 2 + 1, 2)
    if sizes.count(-1) > 1:
        s.end("Reshape", flat, s.node("Concat", s.slice(s.node("Shape", b.stored(data.name)), 0, rank - 2, 0), s.ints(*ends), axis=0))
    else:
        s.end("Reshape", flat, s.ints(*sizes, *ends))


def write_bucketize(op: Op, b: Builder) -> None:
    """The number of boundaries that are not above the element."""
    s, tensor = Steps(op, b), b.tensor(op.inputs[0])
    data = b.real(tensor.name)
    data = s.cast(data, "float64") if tensor.dtype != "float32" else data
    boundaries = b.graph.constant(op.inputs[1])
    if boundaries is None:
        raise b.unsupported(op, "boundaries that are computed at run time", rule="not-constant")
    if 0 in (tensor.shape or ()):  # onnxruntime's sums over an axis keep it where there are no elements
        s.end_cast(data, "int32")
        return
    limits = b.stored(op.inputs[1]) if tensor.dtype == "float32" else s.const(boundaries.astype(np.float64), "boundaries")
    above = s.node("GreaterOrEqual", s.node("Unsqueeze", data, s.ints(-1)), limits)
    b.node("ReduceSum", [s.cast(above, "int32"), s.ints(-1)], op.outputs, keepdims=0)


def write_lrn(op: Op, b: Builder) -> None:
    """LRN."""
    require_channels_first(op, b)
    attributes: dict[str, Any] = {name: float(op[name]) for name in ("alpha", "beta", "bias")}
    b.finish(op, b.node("LRN", [b.real(op.inputs[0])], hint=f"{op.outputs[0]}/real_result", size=int(op["size"]), **attributes)[0])


def read_lrn(r: Reading) -> None:
    """LRN."""
    numbers: dict[str, Any] = {
        name: float(r.attribute(name, default)) for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    }
    r.emit("LRN", size=int(r.attribute("size", 0)), data_format="channels_first", **numbers)


def write_atan2(op: Op, b: Builder) -> None:
    """The arc tangent of y / x, moved by half a turn where x is negative, to the side of y; -0 is told from 0 by its reciprocal."""
    s = Steps(op, b)
    y, x = b.reals(op)
    wanted = b.tensor(op.outputs[0])
    if wanted.dtype in ("float16", "float64"):  # onnxruntime has an Atan of float32 alone
        y, x = s.cast(y, "float32"), s.cast(x, "float32")

    def number(value: float) -> str:
        return s.const(np.array(value, np.float32))

    def negative(value: str) -> str:
        return s.node("Or", s.node("Less", value, number(0.0)), s.node("Less", s.node("Reciprocal", value), number(0.0)))

    half = s.node("Where", negative(y), number(-math.pi), number(math.pi))
    both = s.node("And", s.node("IsInf", x), s.node("IsInf", y))
    ratio = s.node("Where", both, s.node("Mul", s.node("Sign", x), s.node("Sign", y)), s.node("Div", y, x))
    still = s.node("And", s.node("Equal", x, number(0.0)), s.node("Equal", y, number(0.0)))
    angle = s.node("Where", still, s.node("Mul", y, number(0.0)), s.node("Atan", ratio))
    found = s.node("Where", negative(x), s.node("Add", angle, half), angle)
    if wanted.dtype in ("float16", "float64"):
        s.end_cast(found, wanted.dtype)
    else:
        b.finish(op, found)


def write_sum(op: Op, b: Builder) -> None:
    """Sum of floats, or a chain of Adds of integers, which Sum does not have."""
    if "float" in b.tensor(op.outputs[0]).dtype or b.tensor(op.outputs[0]).is_quantized:
        b.finish(op, b.node("Sum", b.reals(op), hint=f"{op.outputs[0]}/real_result")[0])
        return
    s, names = Steps(op, b), [b.stored(name) for name in op.inputs]
    total = names[0]
    for name in names[1:]:
        total = s.node("Add", total, name)
    b.rename(total, s.name)


def write_rank(op: Op, b: Builder) -> None:
    """The shape of the shape."""
    s, result = Steps(op, b), b.tensor(op.outputs[0])
    size = s.node("Shape", s.node("Shape", b.stored(op.inputs[0])))
    s.end_cast(s.node("Reshape", size, s.const(np.array([], np.int64))), result.dtype)


def write_zeros_like(op: Op, b: Builder) -> None:
    """Zero, expanded to the shape of the data."""
    s, tensor = Steps(op, b), b.tensor(op.outputs[0])
    s.end("Expand", s.const(np.zeros((), tensor.dtype), "zero"), s.node("Shape", b.stored(op.inputs[0])))


def write_broadcast_args(op: Op, b: Builder) -> None:
    """The sizes of either shape, the shorter one filled up with 1 in front: of the second where the first has 1."""
    s = Steps(op, b)
    lengths = [(b.tensor(name).static_shape or (-1,))[0] for name in op.inputs]
    if min(lengths) < 0:
        raise b.unsupported(op, "shapes of an unknown number of sizes", rule="unknown-rank")
    shapes = []
    for name, length in zip(op.inputs, lengths, strict=True):
        value, missing = b.int64(name), max(lengths) - length
        shapes.append(s.node("Concat", s.ints(*[1] * missing), value, axis=0) if missing else value)
    chosen = s.node("Where", s.node("Equal", shapes[0], s.ints(1)), shapes[1], shapes[0])
    s.end_cast(chosen, b.tensor(op.outputs[0]).dtype)


def read_dft(r: Reading) -> None:
    """DFT; the axis is an input from opset 20 on."""
    halves, inverse = int(r.attribute("onesided", 0)), int(r.attribute("inverse", 0))
    if halves and inverse:
        raise NotCoveredError("the inverse of one side")
    if r.version < _AXIS_AS_INPUT:
        axis = int(r.attribute("axis", 1))
    else:
        axis = r.ints(2)[0] if r.has(2) else -2
    r.emit("DFT", [r.input(0)], axis=axis, length=r.ints(1)[0] if r.has(1) else 0, inverse=inverse, onesided=halves)


@conditions(since(17))
def write_dft(op: Op, b: Builder) -> None:
    s = Steps(op, b)
    axis = int(op["axis"]) % (b.tensor(op.inputs[0]).rank or 1)
    length = b.const(np.int64(op["length"]), f"{s.name}/length") if op["length"] else ""
    inputs = [b.real(op.inputs[0]), length]
    stated: dict[str, Any] = {"inverse": int(op["inverse"]), "onesided": int(op["onesided"])}
    if b.opset < _AXIS_AS_INPUT:
        stated["axis"] = axis
    else:
        inputs.append(b.const(np.int64(axis), f"{s.name}/axis"))
    b.finish(op, s.node("DFT", *inputs, **stated))


def read_stft(r: Reading) -> None:
    window = r.input(2) if r.has(2) else ""
    shape = r.tensor(2).shape if window else None
    length = r.ints(3)[0] if r.has(3) else shape[0] if shape else None
    if not isinstance(length, int):
        raise NotCoveredError("frames of an unknown length")
    inputs = [r.input(0), window] if window else [r.input(0)]
    r.emit("STFT", inputs, length=length, step=r.ints(1)[0], onesided=int(r.attribute("onesided", 1)))


@conditions(since(17))
def write_stft(op: Op, b: Builder) -> None:
    s = Steps(op, b)
    step, length = (b.const(np.int64(op[name]), f"{s.name}/{name}") for name in ("step", "length"))
    window = b.real(op.inputs[1]) if op.has(1) else ""
    b.finish(op, s.node("STFT", b.real(op.inputs[0]), step, window, length, onesided=int(op["onesided"])))


WRITERS: dict[str, WriteFunction] = {
    "DFT": write_dft,
    "STFT": write_stft,
    "Rfft2d": write_rfft2d,
    "Bucketize": write_bucketize,
    "LRN": write_lrn,
    "Atan2": write_atan2,
    "Sum": write_sum,
    "Rank": write_rank,
    "ZerosLike": write_zeros_like,
    "BroadcastArgs": write_broadcast_args,
}

READERS: dict[str, ReadFunction] = {"LRN": read_lrn, "DFT": read_dft, "STFT": read_stft}
