"""Activation functions and normalizations along an axis."""

from __future__ import annotations

import numpy as np

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


def _plain(kind: str) -> ReadFunction:
    """The reader of an operator that is the canonical `kind`, without attributes."""

    def read(op: Reading) -> None:
        op.emit(kind)

    return read


def _clip(lowest: float, highest: float) -> ReadFunction:
    """The reader of an operator that clips real values to [lowest, highest]."""

    def read(op: Reading) -> None:
        limits = [op.const(np.float32(value), hint) for value, hint in ((lowest, "lowest"), (highest, "highest"))]
        op.emit("Clip", [op.input(0), *limits])

    return read


def read_leaky_relu(op: Reading) -> None:
    """LEAKY_RELU."""
    op.emit("LeakyRelu", alpha=float(op.option("Alpha", 0.0)))


def read_gelu(op: Reading) -> None:
    """GELU, by the error function or its tanh approximation."""
    op.emit("Gelu", approximate="tanh" if op.option("Approximate", False) else "none")


def read_softmax(op: Reading) -> None:
    """SOFTMAX over the last axis, of beta times its input."""
    op.emit("Softmax", axis=-1, beta=float(op.option("Beta", 1.0)))


def write_softmax(op: Op, w: Writing) -> None:
    """Softmax over the last axis."""
    rank = w.tensor(op.inputs[0]).rank
    if int(op["axis"]) not in (-1, -1 if rank is None else rank - 1):
        raise w.unsupported(op, f"axis {op['axis']}, which is not the last")
    w.emit("SOFTMAX", op.inputs, op.outputs, "SoftmaxOptions", beta=float(op["beta"]))


def read_log_softmax(op: Reading) -> None:
    """LOG_SOFTMAX over the last axis."""
    op.emit("LogSoftmax", axis=-1)


def read_l2_normalization(op: Reading) -> None:
    """L2_NORMALIZATION over the last axis."""
    op.emit("LpNormalization", axis=-1, p=2, activation=op.activation())


READERS: dict[str, ReadFunction] = {
    "RELU": _plain("Relu"),
    "RELU6": _clip(0.0, 6.0),
    "RELU_N1_TO_1": _clip(-1.0, 1.0),
    "RELU_0_TO_1": _clip(0.0, 1.0),
    "LEAKY_RELU": read_leaky_relu,
    "PRELU": _plain("PRelu"),
    "ELU": _plain("Elu"),
    "GELU": read_gelu,
    "HARD_SWISH": _plain("HardSwish"),
    "LOGISTIC": _plain("Sigmoid"),
    "TANH": _plain("Tanh"),
    "SOFTMAX": read_softmax,
    "LOG_SOFTMAX": read_log_softmax,
    "L2_NORMALIZATION": read_l2_normalization,
}

WRITERS: dict[str, WriteFunction] = {"Softmax": write_softmax}
