"""Fourier transforms, sums of several tensors, and sums over neighbours."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.elementwise import read_same_named, write_named
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op
from qconvert.rewriting.lowering import conditions, since

#: The opset from which on the axis of a DFT is an input.
_AXIS_AS_INPUT = 20


@conditions(lambda op, scope: "" if "float" in scope.tensors[op.outputs[0]].dtype or scope.tensors[op.outputs[0]].is_quantized
            else f"has no Sum of {scope.tensors[op.outputs[0]].dtype}")  # fmt: skip
def write_sum(op: Op, b: Builder) -> None:
    """Sum of floats."""
    b.compute(op)


def read_dft(r: Reading) -> None:
    """DFT; the axis is an input from opset 20 on."""
    halves, inverse = r.attribute("onesided", 0), r.attribute("inverse", 0)
    if halves and inverse:
        raise NotCoveredError("the inverse of one side")
    if r.version < _AXIS_AS_INPUT:
        axis = r.attribute("axis", 1)
    else:
        axis = r.ints(2)[0] if r.has(2) else -2
    r.emit("DFT", [r.input(0)], axis=axis, length=r.ints(1)[0] if r.has(1) else 0, inverse=inverse, onesided=halves)


@conditions(since(17))
def write_dft(op: Op, b: Builder) -> None:
    name, axis = op.outputs[0], int(op["axis"]) % (b.tensor(op.inputs[0]).rank or 1)
    length = b.const(np.int64(op["length"]), f"{name}/length") if op["length"] else ""
    inputs = [b.float_value(op.inputs[0]), length]
    stated = b.own_attributes(op)
    if "axis" in stated:
        stated["axis"] = axis
    else:
        inputs.append(b.const(np.int64(axis), f"{name}/axis"))
    b.finish(op, b.node("DFT", inputs, hint=f"{name}/DFT", **stated)[0])


def read_stft(r: Reading) -> None:
    window = r.input(2) if r.has(2) else ""
    shape = r.tensor(2).shape if window else None
    length = r.ints(3)[0] if r.has(3) else shape[0] if shape else None
    if not isinstance(length, int):
        raise NotCoveredError("frames of an unknown length")
    inputs = [r.input(0), window] if window else [r.input(0)]
    r.emit("STFT", inputs, length=length, step=r.ints(1)[0], **r.own_attributes())


@conditions(since(17))
def write_stft(op: Op, b: Builder) -> None:
    step, length = (b.const(np.int64(op[name]), f"{op.outputs[0]}/{name}") for name in ("step", "length"))
    window = b.float_value(op.inputs[1]) if op.has(1) else ""
    inputs = [b.float_value(op.inputs[0]), step, window, length]
    b.finish(op, b.node("STFT", inputs, hint=f"{op.outputs[0]}/STFT", **b.own_attributes(op))[0])


WRITERS: dict[str, WriteFunction] = {
    "DFT": write_dft,
    "STFT": write_stft,
    "LRN": write_named,
    "Sum": write_sum,
}

READERS: dict[str, ReadFunction] = {"LRN": read_same_named, "DFT": read_dft, "STFT": read_stft}
