"""Activation functions and normalizations along an axis."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.elementwise import write_same_named
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_softmax(op: Op, b: Builder) -> None:
    """Softmax; TFLite's beta multiplies the input first."""
    value = b.real(op.inputs[0])
    if op["beta"] != 1.0:
        value = b.node("Mul", [value, b.const(np.float32(op["beta"]), f"{op.outputs[0]}/beta")])[0]
    b.finish(op, b.node("Softmax", [value], hint=f"{op.outputs[0]}/real_result", axis=int(op["axis"]))[0])


WRITERS: dict[str, WriteFunction] = {"Sigmoid": write_same_named, "Softmax": write_softmax}
