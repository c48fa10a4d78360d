"""Functions of single elements that TFLite has no operator for, as formulas of those it has."""

from __future__ import annotations

import math
from collections.abc import Callable

from qconvert.formats.tflite.ops.compositions import Formula, composed
from qconvert.formats.tflite.reading import ReadFunction
from qconvert.formats.tflite.writing import WriteFunction

__all__ = ["READERS", "WRITERS"]


def _asin(f: Formula) -> None:
    """atan2(x, sqrt((1 - x) * (1 + x)))."""
    f.end("ATAN2", f.data, _leg(f))


def _acos(f: Formula) -> None:
    """atan2(sqrt((1 - x) * (1 + x)), x)."""
    f.end("ATAN2", _leg(f), f.data)


def _leg(f: Formula) -> str:
    return f("SQRT", f("MUL", f("SUB", 1.0, f.data, shape=f.shape), f("ADD", f.data, 1.0)))


def _atan(f: Formula) -> None:
    """atan2(x, 1); the kernel does not broadcast, so that the 1 is exp(0 * sign(x))."""
    f.end("ATAN2", f.data, f("EXP", f("MUL", f("SIGN", f.data), 0.0)))


def _sinh(f: Formula) -> None:
    """sign(x) * (1 - exp(-2|x|)) * exp(|x|) / 2; the difference is that of ELU, which loses no digits near 0."""
    size = f("ABS", f.data)
    rest = f("ELU", f("MUL", size, -2.0))
    f.end("MUL", f("SIGN", f.data), f("MUL", f("MUL", rest, f("EXP", size)), -0.5))


def _cosh(f: Formula) -> None:
    """(exp(x) + exp(-x)) / 2."""
    f.end("MUL", f("ADD", f("EXP", f.data), f("EXP", f("NEG", f.data))), 0.5)


def _asinh(f: Formula) -> None:
    """sign(x) * log(|x| + sqrt(x * x + 1))."""
    size = f("ABS", f.data)
    f.end("MUL", f("SIGN", f.data), f("LOG", f("ADD", size, f("SQRT", f("ADD", f("SQUARE", f.data), 1.0)))))


def _acosh(f: Formula) -> None:
    """log(x + sqrt(x - 1) * sqrt(x + 1))."""
    root = f("MUL", f("SQRT", f("SUB", f.data, 1.0)), f("SQRT", f("ADD", f.data, 1.0)))
    f.end("LOG", f("ADD", f.data, root))


def _atanh(f: Formula) -> None:
    """log((1 + x) / (1 - x)) / 2."""
    f.end("MUL", f("LOG", f("DIV", f("ADD", f.data, 1.0), f("SUB", 1.0, f.data, shape=f.shape))), 0.5)


def _erf(f: Formula) -> None:
    """2 * gelu(z) / z - 1 at z = sqrt(2) * x, as gelu(z) is z * (1 + erf(z / sqrt(2))) / 2; 0 at 0."""
    z = f("MUL", f.data, math.sqrt(2))
    share = f("DIV", f("GELU", z), z)
    curve = f("SUB", f("MUL", share, 2.0), 1.0)
    f.end("SELECT_V2", f("EQUAL", f.data, 0.0, dtype="bool"), f.data, curve)


def _shrink(f: Formula) -> None:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    limit, bias = float(f.op["lambd"]), float(f.op["bias"])
    above = f("SELECT_V2", f("GREATER", f.data, limit, dtype="bool"), f("SUB", f.data, bias), 0.0, dtype=f.dtype, shape=f.shape)
    f.end("SELECT_V2", f("LESS", f.data, -limit, dtype="bool"), f("ADD", f.data, bias), above)


def _swish(f: Formula) -> None:
    """x * sigmoid(alpha * x)."""
    alpha = float(f.op["alpha"])
    f.end("MUL", f.data, f("LOGISTIC", f.data if alpha == 1 else f("MUL", f.data, alpha)))


READERS: dict[str, ReadFunction] = {}


def _curve(compose: Callable[[Formula], None]) -> WriteFunction:
    """The writer of a function that several operators come near to; of quantized data a table is exact (unary_to_table)."""
    write = composed(compose)
    write.__dict__["comes_near"] = True
    return write


_FORMULAS: dict[str, Callable[[Formula], None]] = {
    "Asin": _asin,
    "Acos": _acos,
    "Atan": _atan,
    "Sinh": _sinh,
    "Cosh": _cosh,
    "Asinh": _asinh,
    "Acosh": _acosh,
    "Atanh": _atanh,
    "Erf": _erf,
    "Shrink": _shrink,
    "Swish": _swish,
}

WRITERS: dict[str, WriteFunction] = {kind: _curve(compose) for kind, compose in _FORMULAS.items()}
