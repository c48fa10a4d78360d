"""Activation functions and normalizations along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.tflite.ops.compositions import Formula
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Array, Op, Quantization, Tensor, integer_range, numpy_dtype

__all__ = ["READERS", "WRITERS"]


def _plain(kind: str) -> ReadFunction:
    """The reader of an operator that is the canonical `kind`, without attributes."""

    def read(r: Reading) -> None:
        require_real(r)
        r.emit(kind)

    return read


def require_real(r: Reading) -> None:
    """The kernels of functions of real numbers divide by the scales of integers, and compute anything where there are none."""
    r.require_scales()


def _clip(lowest: float, highest: float) -> ReadFunction:
    """The reader of an operator that clips real values to [lowest, highest]."""

    def read(r: Reading) -> None:
        require_real(r)
        dtype = numpy_dtype(r.tensor().dtype if r.tensor().dtype in REALS else "float32")
        limits = [r.const(np.asarray(value, dtype), hint) for value, hint in ((lowest, "lowest"), (highest, "highest"))]
        r.emit("Clip", [r.input(0), *limits])

    return read


def read_prelu(r: Reading) -> None:
    """PRELU. The kernel of int16 data takes the bytes of its factors for int8 (activations.cc)."""
    require_real(r)
    if r.tensor(0).dtype == "int16" and r.tensor(1).dtype != "int8":
        raise r.invalid(
            f"has slopes {r.tensor(1).name!r} of {r.tensor(1).dtype}, which the kernel reads as int8", rule="type-misread-by-kernel"
        )
    r.emit("PRelu")


def read_leaky_relu(r: Reading) -> None:
    """LEAKY_RELU."""
    require_real(r)
    r.emit("LeakyRelu", alpha=float(r.option("alpha", 0.0)))


def read_gelu(r: Reading) -> None:
    """GELU, by the error function or its tanh approximation."""
    require_real(r)
    r.emit("Gelu", approximate="tanh" if r.option("approximate", False) else "none")


def read_softmax(r: Reading) -> None:
    """SOFTMAX over the last axis, of beta times its input. The uint8 kernel counts from 0, whatever the result's zero point says."""
    require_real(r)
    result, beta = r.result(), float(r.option("beta", 1.0))
    q = result.quantization
    if result.dtype != "uint8" or q is None or not q.zero_point.any():
        r.emit("Softmax", axis=-1, beta=beta)
        return
    counted = r.intermediate("from_zero", "uint8", result.shape, Quantization.per_tensor(float(q.scale[0]), 0))
    r.emit("Reinterpret", r.emit("Softmax", outputs=[counted], axis=-1, beta=beta))


def read_log_softmax(r: Reading) -> None:
    """LOG_SOFTMAX over the last axis."""
    require_real(r)
    r.emit("LogSoftmax", axis=-1)


def read_l2_normalization(r: Reading) -> None:
    """L2_NORMALIZATION over the last axis."""
    require_real(r)
    r.emit("LpNormalization", axis=-1, p=2, activation=r.activation())


READERS: dict[str, ReadFunction] = {
    "RELU": _plain("Relu"),
    "RELU6": _clip(0.0, 6.0),
    "RELU_N1_TO_1": _clip(-1.0, 1.0),
    "RELU_0_TO_1": _clip(0.0, 1.0),
    "LEAKY_RELU": read_leaky_relu,
    "PRELU": read_prelu,
    "ELU": _plain("Elu"),
    "GELU": read_gelu,
    "HARD_SWISH": _plain("HardSwish"),
    "LOGISTIC": _plain("Sigmoid"),
    "TANH": _plain("Tanh"),
    "SOFTMAX": read_softmax,
    "LOG_SOFTMAX": read_log_softmax,
    "L2_NORMALIZATION": read_l2_normalization,
}


def _written(builtin: str, table: str = "", **fields: str) -> WriteFunction:
    """The writer of a kind that is the operator `builtin`; fields of its option table come from attributes by name."""

    def write(op: Op, w: Writing) -> None:
        values: dict[str, Any] = {field: float(op[attribute]) for field, attribute in fields.items()}
        w.emit(builtin, op.inputs, op.outputs, table, **values)

    return write


def write_gelu(op: Op, w: Writing) -> None:
    """GELU."""
    w.emit("GELU", op.inputs, op.outputs, "GeluOptions", approximate=op["approximate"] == "tanh")


def _along_last(builtin: str, table: str, fields: Callable[[Op, Writing], dict[str, Any]]) -> WriteFunction:
    """The writer of an operator that TFLite has along the last axis alone: along another it lies between two TRANSPOSEs."""

    def write(op: Op, w: Writing) -> None:
        name, result = op.inputs[0], op.outputs[0]
        rank = w.tensor(name).rank
        axis = -1 if int(op["axis"]) == -1 else w.axis(op, op["axis"], name)
        if rank is None or axis in (-1, rank - 1):
            w.emit(builtin, [name], [result], table, **fields(op, w))
            return
        perm = [*(i for i in range(rank) if i != axis), axis]
        back = [perm.index(i) for i in range(rank)]
        shape = w.tensor(name).shape or ()
        moved = tuple(shape[i] for i in perm)
        inner, outer = w.like(f"{result}/transposed_input", name, moved), w.like(f"{result}/transposed", result, moved)
        w.emit("TRANSPOSE", [name, w.ints(perm, f"{result}/perm")], [inner], "TransposeOptions")
        w.emit(builtin, [inner], [outer], table, **fields(op, w))
        w.emit("TRANSPOSE", [outer, w.ints(back, f"{result}/perm_back")], [result], "TransposeOptions")

    return write


def write_lp_normalization(op: Op, w: Writing) -> None:
    """L2_NORMALIZATION; the sum of sizes instead of the Euclidean norm is a division by it, of real values."""
    if int(op["p"]) == 2:
        _along_last("L2_NORMALIZATION", "L2NormOptions", _norm_fields)(op, w)
        return
    f, axis = Formula(op, w), w.axis(op, op["axis"], op.inputs[0])
    total = f("SUM", f("ABS", f.data), w.ints([axis], f"{f.result}/axes"), shape=f.reduced([axis]), keepDims=True)
    f.end("DIV", f.data, f("MAXIMUM", total, float(np.finfo(np.float32).tiny)))


def _norm_fields(op: Op, w: Writing) -> dict[str, Any]:
    return {"fusedActivationFunction": w.activation(op)}


#: Real bounds of the clipping operators.
_CLIPS = {(0.0, np.inf): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, 1.0): "RELU_0_TO_1"}


def write_clip(op: Op, w: Writing) -> None:
    """Clip as the operator with its bounds, or as MAXIMUM and MINIMUM with constants on the result's own grid.

    Rounding onto a grid is monotone, so data on another grid are requantized first: the integers stay the same.
    """
    data, result = w.tensor(op.inputs[0]), w.graph[op.outputs[0]]
    low, high = (_bound(op, w, position) for position in (1, 2))
    plain = data.quantization is None and data.dtype != "float32"
    named = "" if plain else _CLIPS.get((low, high)) or _clip_of_bytes(low, high, data, result)
    if named:
        w.emit(named, op.inputs[:1], op.outputs)
        return
    name = data.name
    steps = [(builtin, value) for builtin, value in (("MAXIMUM", low), ("MINIMUM", high)) if np.isfinite(value)]
    if not data.shares_grid(result) or not steps:
        target = result.name if not steps else w.like(f"{result.name}/requantized", result.name, result.shape)
        if result.quantization is None:
            w.emit("RESHAPE", [name, w.sizes(name, op)], [target], "ReshapeOptions")
        else:
            w.emit("QUANTIZE", [name], [target], "QuantizeOptions")
        name = target
    for number, (builtin, value) in enumerate(steps):
        target = result.name if number == len(steps) - 1 else w.like(f"{result.name}/lower", result.name, result.shape)
        limit = w.const(_stored_bound(value, result), f"{result.name}/{builtin.lower()}", result.quantization)
        w.emit(builtin, [name, limit], [target], "MaximumMinimumOptions")
        name = target


def _clip_of_bytes(low: float, high: float, data: Tensor, result: Tensor) -> str:
    """RELU or RELU6, if on the grid of 8 bits that data and result share their bounds are the same integers; else ""."""
    if result.quantization is None or result.dtype not in ("int8", "uint8") or not data.shares_grid(result):
        return ""
    wanted = [int(_stored_bound(value, result)) for value in (low, high)]
    for bounds, builtin in _CLIPS.items():
        if builtin in ("RELU", "RELU6") and [int(_stored_bound(value, result)) for value in bounds] == wanted:
            steps = 6 / float(result.quantization.scale[0]) % 1
            if builtin == "RELU" or abs(steps - 0.5) > 1e-3:  # where the kernel rounds half up
                return builtin
    return ""


def _bound(op: Op, w: Writing, position: int) -> float:
    """A real bound; infinite where there is none."""
    if not op.has(position):
        return -np.inf if position == 1 else np.inf
    value, q = w.constant(op, position).reshape(-1)[0], w.tensor(op.inputs[position]).quantization
    return float(value) if q is None else float(q.scale[0]) * (int(value) - int(q.zero_point[0]))


def _stored_bound(value: float, result: Tensor) -> Array:
    """The bound as the result stores it: rounded half to even onto its grid and saturated (ONNX QuantizeLinear)."""
    q = result.quantization
    if q is None:
        return np.array(value, numpy_dtype(result.dtype))
    low, high = integer_range(result.dtype)
    with np.errstate(over="ignore"):
        stored = np.rint(np.float32(value) / q.scale[0]) + float(q.zero_point[0])
    return np.array(np.clip(stored, low, high), numpy_dtype(result.dtype))


WRITERS: dict[str, WriteFunction] = {
    "Relu": _written("RELU"),
    "Clip": write_clip,
    "LeakyRelu": _written("LEAKY_RELU", "LeakyReluOptions", alpha="alpha"),
    "PRelu": _written("PRELU"),
    "Gelu": write_gelu,
    "HardSwish": _written("HARD_SWISH", "HardSwishOptions"),
    "Sigmoid": _written("LOGISTIC"),
    "Tanh": _written("TANH"),
    "Softmax": _along_last("SOFTMAX", "SoftmaxOptions", lambda op, w: {"beta": float(op["beta"])}),
    "LogSoftmax": _along_last("LOG_SOFTMAX", "LogSoftmaxOptions", lambda op, w: {}),
    "LpNormalization": write_lp_normalization,
}
