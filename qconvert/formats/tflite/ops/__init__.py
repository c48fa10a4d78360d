"""TFLite operators by family. Each module ends with its tables: operator name -> the function that reads it, canonical kind -> the
function that writes it."""

from __future__ import annotations

from qconvert.formats.tflite.ops import (
    activation,
    control,
    conv,
    custom,
    detection,
    elementwise,
    float_lstm,
    gather,
    gather_scatter,
    join,
    matrix,
    mediapipe,
    one_to_one,
    pool,
    quantize,
    recurrent,
    reduce,
    segments,
    shape,
    signal,
    slice,
    space,
)
from qconvert.formats.tflite.reading import Readers
from qconvert.formats.tflite.writing import Writers

__all__ = ["READERS", "WRITERS"]

_FAMILIES = (
    one_to_one,
    conv,
    matrix,
    pool,
    elementwise,
    activation,
    recurrent,
    float_lstm,
    reduce,
    shape,
    join,
    slice,
    gather,
    segments,
    signal,
    space,
    quantize,
    detection,
    custom,
    mediapipe,
    gather_scatter,
    control,
)

READERS: Readers = {name: read for family in _FAMILIES for name, read in family.READERS.items()}

WRITERS: Writers = {kind: write for family in _FAMILIES for kind, write in family.WRITERS.items()}
