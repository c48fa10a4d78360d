"""Activation functions and normalizations along an axis."""

from __future__ import annotations

from functools import partial

import numpy as np

from qconvert.arithmetic.storage import REALS
from qconvert.formats.tflite.ops.one_to_one import make_reader, make_writer
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Array, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.rewriting.lowering import Scope, conditions


def _read_clip(lowest: float, highest: float, r: Reading) -> None:
    """An operator that clips float values to [lowest, highest]."""
    r.require_scales()
    dtype = numpy_dtype(r.tensor().dtype if r.tensor().dtype in REALS else "float32")
    limits = [r.const(np.asarray(value, dtype), hint) for value, hint in ((lowest, "lowest"), (highest, "highest"))]
    r.emit("Clip", [r.input(0), *limits])


def read_prelu(r: Reading) -> None:
    """PRELU. The kernel of int16 data takes the bytes of its factors for int8 (activations.cc)."""
    r.require_scales()
    if r.tensor(0).dtype == "int16" and r.tensor(1).dtype != "int8":
        raise r.invalid(
            f"has slopes {r.tensor(1).name!r} of {r.tensor(1).dtype}, which the kernel reads as int8", rule="type-misread-by-kernel"
        )
    r.emit("PRelu")


def read_leaky_relu(r: Reading) -> None:
    """LEAKY_RELU."""
    r.require_scales()
    r.emit("LeakyRelu", alpha=float(r.option("alpha", 0.0)))


def read_gelu(r: Reading) -> None:
    """GELU, by the error function or its tanh approximation."""
    r.require_scales()
    r.emit("Gelu", approximate="tanh" if r.option("approximate", False) else "none")


def read_softmax(r: Reading) -> None:
    """SOFTMAX over the last axis, of beta times its input. The uint8 kernel counts from 0, whatever the result's zero point says."""
    r.require_scales()
    result, beta = r.result(), float(r.option("beta", 1.0))
    q = result.quantization
    if result.dtype != "uint8" or q is None or not q.zero_point.any():
        r.emit("Softmax", axis=-1, beta=beta)
        return
    counted = r.intermediate("from_zero", "uint8", result.shape, Quantization.per_tensor(q.step, 0))
    r.emit("Reinterpret", r.emit("Softmax", outputs=[counted], axis=-1, beta=beta))


def read_l2_normalization(r: Reading) -> None:
    """L2_NORMALIZATION over the last axis, whose kernels take no activation (l2norm.cc)."""
    r.require_scales()
    if activation := r.activation():
        raise r.unsupported_error(f"the fused activation {activation}", rule="activation-not-covered")
    r.emit("LpNormalization", axis=-1, p=2)


READERS: Readers = {
    "RELU6": partial(_read_clip, 0.0, 6.0),
    "RELU_N1_TO_1": partial(_read_clip, -1.0, 1.0),
    "RELU_0_TO_1": partial(_read_clip, 0.0, 1.0),
    "LEAKY_RELU": read_leaky_relu,
    "PRELU": read_prelu,
    "ELU": make_reader("Elu", "real"),
    "GELU": read_gelu,
    "SOFTMAX": read_softmax,
    "LOG_SOFTMAX": make_reader("LogSoftmax", "real", axis=-1),
    "L2_NORMALIZATION": read_l2_normalization,
}


def write_gelu(op: Op, w: Writing) -> None:
    """GELU."""
    w.emit("GELU", op.inputs, op.outputs, approximate=op["approximate"] == "tanh")


def _is_along_last(op: Op, scope: Scope) -> str:
    """TFLite has functions along the last axis alone."""
    rank = scope.tensors[op.inputs[0]].rank
    is_last = int(op["axis"]) == -1 or (rank is not None and int(op["axis"]) % max(rank, 1) == rank - 1)
    return "" if is_last or rank is None else f"its axis {op['axis']} is not the last one"


def _is_euclidean_along_last(op: Op, scope: Scope) -> str:
    return _is_along_last(op, scope) or ("" if int(op["p"]) == 2 else "its norm is not the Euclidean one")


def _has_alpha_1(op: Op, scope: Scope) -> str:
    return "" if float(op["alpha"]) == 1 else f"its alpha is {op['alpha']}, not 1"


#: Real bounds of the clipping operators.
_CLIPS = {(0.0, np.inf): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, 1.0): "RELU_0_TO_1"}


def write_clip(op: Op, w: Writing) -> None:
    """Clip as the operator with its bounds, or as MAXIMUM and MINIMUM with constants on the result's own quantization.

    Rounding to a quantization is monotone, so data with another quantization are requantized first: the integers stay the same.
    """
    data, result = w.operand(op), w.graph[op.outputs[0]]
    low, high = (_bound(op, w, position) for position in (1, 2))
    plain = data.quantization is None and data.dtype != "float32"
    named = "" if plain else _CLIPS.get((low, high)) or _clip_of_bytes(low, high, data, result)
    if named:
        w.emit(named, op.inputs[:1], op.outputs)
        return
    name = data.name
    steps = [(builtin, value) for builtin, value in (("MAXIMUM", low), ("MINIMUM", high)) if np.isfinite(value)]
    if not data.shares_quantization(result) or not steps:
        target = result.name if not steps else w.like(f"{result.name}/requantized", result.name, result.shape)
        if result.quantization is None:
            w.emit("RESHAPE", [name, w.sizes(name, op)], [target])
        else:
            w.emit("QUANTIZE", [name], [target])
        name = target
    for builtin, value in steps:
        target = result.name if (builtin, value) == steps[-1] else w.like(f"{result.name}/lower", result.name, result.shape)
        limit = w.const(_stored_bound(value, result), f"{result.name}/{builtin.lower()}", result.quantization)
        w.emit(builtin, [name, limit], [target])
        name = target


def _clip_of_bytes(low: float, high: float, data: Tensor, result: Tensor) -> str:
    """RELU or RELU6, if with the quantization of 8 bits that data and result share their bounds are the same integers; else ""."""
    if result.quantization is None or result.dtype not in ("int8", "uint8") or not data.shares_quantization(result):
        return ""
    wanted = [int(_stored_bound(value, result)) for value in (low, high)]
    for bounds, builtin in _CLIPS.items():
        if builtin in ("RELU", "RELU6") and [int(_stored_bound(value, result)) for value in bounds] == wanted:
            steps = 6 / result.quantization.step % 1
            if builtin == "RELU" or abs(steps - 0.5) > 1e-3:  # where the kernel rounds half up
                return builtin
    return ""


def _bound(op: Op, w: Writing, position: int) -> float:
    """A real bound; infinite where there is none."""
    if not op.has(position):
        return -np.inf if position == 1 else np.inf
    value, q = w.constant(op, position).reshape(-1)[0], w.operand(op, position).quantization
    return float(value) if q is None else q.step * (int(value) - q.point)


def _stored_bound(value: float, result: Tensor) -> Array:
    """The bound as the result stores it: rounded half to even to its quantization and saturated (ONNX QuantizeLinear)."""
    q = result.quantization
    if q is None:
        return np.array(value, numpy_dtype(result.dtype))
    low, high = integer_range(result.dtype)
    with np.errstate(over="ignore"):
        stored = np.rint(np.float32(value) / q.scale[0]) + float(q.zero_point[0])
    return np.array(np.clip(stored, low, high), numpy_dtype(result.dtype))


WRITERS: Writers = {
    "Clip": write_clip,
    "LeakyRelu": make_writer("LEAKY_RELU", alpha="alpha"),
    "PRelu": make_writer("PRELU"),
    "Gelu": write_gelu,
    "Elu": conditions(_has_alpha_1)(make_writer("ELU")),
    "Softmax": conditions(_is_along_last)(make_writer("SOFTMAX", beta="beta")),
    "LogSoftmax": conditions(_is_along_last)(make_writer("LOG_SOFTMAX")),
    "LpNormalization": conditions(_is_euclidean_along_last)(make_writer("L2_NORMALIZATION")),
}
