"""Activation functions and normalizations along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction, clip_range
from qconvert.formats.onnx.ops.elementwise import write_same_named
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_clip(op: Op, b: Builder) -> None:
    """Relu and Clip: a Clip of stored integers where input and output share one quantization, else of real values."""
    limits = [b.graph.constant(name) if name else None for name in (*op.inputs[1:], "", "")[:2]]
    lower, upper = (None if v is None else float(v.reshape(-1)[0]) for v in limits)
    bounds = (0.0, None) if op.kind == "Relu" else (lower, upper)
    data, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    if data.quantization is not None and data.quantization == result.quantization and result.dtype in ("int8", "uint8"):
        b.clip_stored(b.stored(data.name), result, *clip_range(result, bounds))
        return
    values = [b.real(data.name), *(b.stored(name) for name in op.inputs[1:])]
    b.finish(op, b.node(op.kind, values, hint=f"{result.name}/real_result")[0])


def write_leaky_relu(op: Op, b: Builder) -> None:
    """LeakyRelu."""
    b.finish(op, b.node("LeakyRelu", b.reals(op), hint=f"{op.outputs[0]}/real_result", alpha=float(op["alpha"]))[0])


def write_elu(op: Op, b: Builder) -> None:
    """Elu."""
    b.finish(op, b.node("Elu", b.reals(op), hint=f"{op.outputs[0]}/real_result", alpha=float(op["alpha"]))[0])


def write_hard_swish(op: Op, b: Builder) -> None:
    """HardSwish, as x * HardSigmoid(x) below opset 14."""
    x = b.real(op.inputs[0])
    if b.opset >= 14:
        b.finish(op, b.node("HardSwish", [x], hint=f"{op.outputs[0]}/real_result")[0])
        return
    gate = b.node("HardSigmoid", [x], hint=f"{op.outputs[0]}/gate", alpha=1 / 6, beta=0.5)[0]
    b.finish(op, b.node("Mul", [x, gate], hint=f"{op.outputs[0]}/real_result")[0])


def write_gelu(op: Op, b: Builder) -> None:
    """Gelu (opset 20); below, its definition by erf or tanh (Hendrycks and Gimpel, 2016)."""
    x, name = b.real(op.inputs[0]), op.outputs[0]
    if b.opset >= 20:
        b.finish(op, b.node("Gelu", [x], hint=f"{name}/real_result", approximate=op["approximate"])[0])
        return

    def number(value: float) -> str:
        return b.const(np.float32(value), f"{name}/constant")

    if op["approximate"] == "tanh":
        cube = b.node("Mul", [b.node("Mul", [b.node("Mul", [x, x])[0], x])[0], number(0.044715)])[0]
        inner = b.node("Mul", [b.node("Add", [x, cube])[0], number(math.sqrt(2 / math.pi))])[0]
        curve = b.node("Tanh", [inner])[0]
    else:
        curve = b.node("Erf", b.node("Mul", [x, number(math.sqrt(0.5))]))[0]
    half = b.node("Mul", [x, number(0.5)])[0]
    b.finish(op, b.node("Mul", [half, b.node("Add", [curve, number(1.0)])[0]], hint=f"{name}/real_result")[0])


def write_softmax(op: Op, b: Builder) -> None:
    """Softmax; TFLite's beta multiplies the input first."""
    value = b.real(op.inputs[0])
    if op["beta"] != 1.0:
        value = b.node("Mul", [value, b.const(np.float32(op["beta"]), f"{op.outputs[0]}/beta")])[0]
    b.finish(op, b.node("Softmax", [value], hint=f"{op.outputs[0]}/real_result", axis=int(op["axis"]))[0])


def write_log_softmax(op: Op, b: Builder) -> None:
    """LogSoftmax."""
    b.finish(op, b.node("LogSoftmax", b.reals(op), hint=f"{op.outputs[0]}/real_result", axis=int(op["axis"]))[0])


def write_lp_normalization(op: Op, b: Builder) -> None:
    """LpNormalization."""
    attributes: dict[str, Any] = {"axis": int(op["axis"]), "p": int(op["p"])}
    b.finish(op, b.node("LpNormalization", b.reals(op), hint=f"{op.outputs[0]}/real_result", **attributes)[0])


WRITERS: dict[str, WriteFunction] = {
    "Sigmoid": write_same_named,
    "Tanh": write_same_named,
    "PRelu": write_same_named,
    "Relu": write_clip,
    "Clip": write_clip,
    "LeakyRelu": write_leaky_relu,
    "Elu": write_elu,
    "HardSwish": write_hard_swish,
    "Gelu": write_gelu,
    "Softmax": write_softmax,
    "LogSoftmax": write_log_softmax,
    "LpNormalization": write_lp_normalization,
}
