"""A part of the TFLite operator matrix (fixtures/zoo/operators_tflite.py): each operator in a few of its cases, both ways."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.end_to_end

ZOO = Path(__file__).parents[2] / "fixtures" / "zoo"

#: Operators whose every case in the sample has equal results, and comes back as it was; moves of quantized data may come back as several.
WHOLE = (
    "CONV_3D CONV_3D_TRANSPOSE EMBEDDING_LOOKUP BROADCAST_ARGS DYNAMIC_UPDATE_SLICE RFFT2D COMPLEX_ABS REAL IMAG ADD_N SEGMENT_SUM "
    "UNSORTED_SEGMENT_SUM UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN BUCKETIZE ATAN2 BITWISE_XOR RIGHT_SHIFT "
    "STABLEHLO_ADD STABLEHLO_MULTIPLY STABLEHLO_AND STABLEHLO_MAXIMUM STABLEHLO_MINIMUM STABLEHLO_SHIFT_LEFT STABLEHLO_PAD DILATE "
    "MATRIX_DIAG MATRIX_SET_DIAG SPARSE_TO_DENSE LOCAL_RESPONSE_NORMALIZATION L2_POOL_2D ZEROS_LIKE FAKE_QUANT "
    "UNIQUE NON_MAX_SUPPRESSION_V4 REDUCE_WINDOW STABLEHLO_GATHER"
).split()


def _matrix() -> ModuleType:
    """The script, as a module: the folder of scripts is no package."""
    sys.path.insert(0, str(ZOO))
    spec = importlib.util.spec_from_file_location("operators_tflite", ZOO / "operators_tflite.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_few_cases_of_every_operator() -> None:
    matrix = _matrix()
    by_name: dict[str, list[object]] = {}
    for case in matrix.chosen([], 1):
        if "float32" in case.note or case.builtin in WHOLE:
            by_name.setdefault(case.builtin, []).append(case)
    cases = [case for name, listed in by_name.items() for case in listed[:: max(len(listed) // (7 if name in WHOLE else 1), 1)]]
    found = [(case, verdict) for case, verdict in matrix.isolated(cases) if verdict is not None]
    assert len(found) > 150
    counts = Counter(grade for _, (grade, _) in found)
    assert counts[matrix.FAULT] == 0, [(case, verdict) for case, verdict in found if verdict[0] == matrix.FAULT]
    right = (matrix.EQUAL, matrix.EXPLAINED)
    allowed = {"int8": (*right, matrix.OTHER), "int4": (*right, matrix.OTHER)}
    wrong = [(c.builtin, c.note, v) for c, v in found if c.builtin in WHOLE and v[0] not in allowed.get(c.note[:4], right)]
    assert wrong == []
    assert {c.builtin for c, _ in found} >= {*WHOLE}
