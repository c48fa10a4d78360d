"""Trunc: lower bits dropped, as after a sum or an average."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.qonnx.quant import emit_on_quantization
from qconvert.formats.onnx.qonnx.quantizations import Stated, bits_of, is_positive, numbers, require_broadcast
from qconvert.formats.onnx.qonnx.ranges import limits_of
from qconvert.formats.onnx.qonnx.rounding import apply, emit_rounding, mode_of
from qconvert.formats.onnx.reading import Reading
from qconvert.graph import Array

__all__ = ["read_trunc"]


def read_trunc(r: Reading) -> None:
    """Trunc(x, scale, zero_point, in_bits, out_bits) of version 1, (x, scale, zero_point, in_bits, out_scale, out_bits) of version 2.

    round(x / scale + zero_point) / 2**k, rounded again by the mode. Version 1 has k = in_bits - out_bits and scales back by what it had;
    it limits nothing, so its result stays in float. Version 2 has 2**k = out_scale / scale, limits to out_bits, and its
    result has the quantization of out_scale.
    """
    scale, points = require_broadcast(r, numbers(r, 1, "scale"), numbers(r, 2, "zero point"))
    in_bits, mode = bits_of(r, 3), mode_of(r, "FLOOR")
    if not is_positive(scale):
        raise NotCoveredError("scales that are not positive")
    is_second = r.has(5)
    if is_second:
        out_scale = require_broadcast(r, numbers(r, 4, "scale of the result"), scale, points)[0]
        if not is_positive(out_scale):
            raise NotCoveredError("scales of the result that are not positive")
        divisor = np.asarray(np.float32(2) ** np.rint(np.log2(out_scale / scale)))
        out_points = points / divisor
        limits = limits_of(bits_of(r, 5), bool(r.attribute("signed", 1)), bool(r.attribute("narrow", 0)))
    else:
        divisor, out_points, out_scale = np.array(2.0 ** (in_bits - bits_of(r, 4)), np.float32), points, scale
    steps = apply(r, "Div", "steps", r.input(0), r.const(scale, "scale"))
    if points.any():
        steps = apply(r, "Add", "shifted", steps, r.const(points, "zero_point"))
    fraction = apply(r, "Div", "divided", apply(r, "Round", "whole_steps", steps), r.const(np.asarray(divisor, np.float32), "divisor"))
    if is_second:
        ends = [r.const(np.float32(limit), hint) for limit, hint in zip(limits, ("fewest", "most"), strict=True)]
        fraction = apply(r, "Clip", "within", fraction, *ends)
    whole = emit_rounding(r, fraction, mode)
    if out_points.any():
        whole = apply(r, "Sub", "difference", whole, r.const(np.asarray(out_points, np.float32), "zero_point"))
    quantization = None
    if is_second and limits[0] < limits[1]:
        found = Stated(out_scale, np.asarray(out_points, np.float32), limits, bool(r.attribute("signed", 1)))
        quantization = found.quantization(r.tensor(0).shape, constant=False)
    if quantization is None:
        _scale(r, whole, out_scale, r.outputs[0])
        return
    value = r.intermediate("on_quantization", "float32")
    _scale(r, whole, out_scale, value)
    emit_on_quantization(r, value, *quantization, limits)


def _scale(r: Reading, whole: str, scale: Array, result: str) -> None:
    r.emit("Mul", [whole, r.const(scale, "result_scale")], [result], dtype="float32")
