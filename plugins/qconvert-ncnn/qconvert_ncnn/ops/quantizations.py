"""Conversions between float values and integers, which are layers only if a value is rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.plugin import Op, Quantization, integer_range
from qconvert_ncnn.quantizations import inverse, is_data_quantization
from qconvert_ncnn.reading import ROUNDING, Reading
from qconvert_ncnn.writing import Writing

_TYPES = ("int8", "int16")


def write_quantize(op: Op, w: Writing) -> None:
    """Quantize and Requantize: the steps of the rounding, or nothing if the readers round."""
    steps = w.following_steps(op)
    if not steps:
        w.alias(op)
        return
    w.chain(op, [replace(steps[0], inputs=(w.value(op.inputs[0]),)), *steps[1:]])


def write_dequantize(op: Op, w: Writing) -> None:
    """Dequantize: blobs have float values already."""
    w.alias(op)


def read_quantization(r: Reading) -> None:
    """The layer ROUNDING, in place of the four layers of a rounding: Quantize and Dequantize."""
    (blob,), low, high = r.layer.outputs, int(r.layer.number(1)), int(r.layer.number(2))
    scale, noted = np.array([r.layer.number(3)], np.float32), r.draft.notes.quantizations.get(blob)
    if noted is not None and noted.scale == scale[0] and noted.steps == (low, high):
        dtype, q = noted.dtype, noted.quantization
    else:
        dtype = next((name for name in _TYPES if high - low <= integer_range(name)[1] - integer_range(name)[0]), "")
        if not dtype:
            raise r.layer.invalid(f"the integers run from {low} to {high}", rule="limits-outside-type")
        smallest, largest = integer_range(dtype)
        point = 0 if smallest <= low and high <= largest else smallest - low
        own = zip((low + point, high + point), (smallest, largest), strict=True)
        q = Quantization(scale, np.array([point]), None, 0, *(None if limit == end else limit for limit, end in own))
    stored = r.draft.add(f"{blob}/{dtype}", dtype, None, None, q)
    r.draft.emit(Op("Quantize", (r.value(),), (stored,), {}, str(r.layer)))
    r.draft.values[blob] = r.draft.emit_dequantize(stored, str(r.layer), blob)
    if is_data_quantization(dtype, q):
        r.draft.quantizations[blob] = float(inverse(scale)[0])


READERS = {ROUNDING: read_quantization}
WRITERS = {"Quantize": write_quantize, "Requantize": write_quantize, "Dequantize": write_dequantize}
