"""The rounding modes of QONNX: in numpy, for constants, and decomposed in operators in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qconvert.arithmetic.rounding import round_half_away, round_half_even
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.reading import Reading
from qconvert.graph import Array

__all__ = ["EVEN", "apply", "emit_rounding", "mode_of", "round_values"]

EVEN = "HALF_EVEN"
_OTHER_NAMES = {"ROUND": EVEN}


def _half_down(values: Array) -> Array:
    return np.asarray(np.sign(values) * np.ceil(np.abs(values) - values.dtype.type(0.5)))


_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    EVEN: round_half_even,
    "CEIL": lambda values: np.asarray(np.ceil(values)),
    "FLOOR": lambda values: np.asarray(np.floor(values)),
    "UP": lambda values: np.asarray(np.copysign(np.ceil(np.abs(values)), values)),
    "DOWN": lambda values: np.asarray(np.trunc(values)),
    "HALF_UP": round_half_away,
    "HALF_DOWN": _half_down,
}
#: Modes that are one operator on the values.
_ONE = {EVEN: "Round", "CEIL": "Ceil", "FLOOR": "Floor"}
#: Modes that round the magnitude: what is added to it, and the operator.
_MAGNITUDES = {"UP": (0.0, "Ceil"), "DOWN": (0.0, "Floor"), "HALF_UP": (0.5, "Floor"), "HALF_DOWN": (-0.5, "Ceil")}


def mode_of(r: Reading, default: str) -> str:
    """The rounding mode that a node states; raises NotCoveredError for one that qonnx does not have."""
    stated = str(r.attribute("rounding_mode", default)).upper()
    mode = _OTHER_NAMES.get(stated, stated)
    if mode not in _ROUNDINGS:
        raise NotCoveredError(f"the rounding mode {stated}")
    return mode


def round_values(values: Array, mode: str) -> Array:
    """Float values to whole numbers. Keeps the dtype."""
    return _ROUNDINGS[mode](values)


def emit_rounding(r: Reading, value: str, mode: str) -> str:
    """Appends the operators that round the float value `value`; returns the result's name."""
    if mode in _ONE:
        return apply(r, _ONE[mode], "rounded", value)
    offset, kind = _MAGNITUDES[mode]
    magnitude = apply(r, "Abs", "magnitude", value)
    if offset:
        magnitude = apply(r, "Add", "offset", magnitude, r.const(np.float32(offset), "half"))
    return apply(r, "Mul", "rounded", apply(r, kind, "whole", magnitude), apply(r, "Sign", "sign", value))


def apply(r: Reading, kind: str, hint: str, *inputs: str) -> str:
    """Appends an operator in float; returns its result's name, which ends in `hint`."""
    return r.emit(kind, inputs, [r.intermediate(hint, "float32")], dtype="float32")[0]
