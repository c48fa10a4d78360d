"""Every row against its real runtime: random operators of its kinds, in the integers of its reference or within its tolerance."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qconvert.conformance.examples import QUANTIZED_KINDS
from qconvert.kernels import KERNELS, Kernel
from qconvert.testing import assert_kernels_hold

#: Kernels, and the targets and types of data with which they are tried.
CASES = {
    "litert:default": (("tflite", ("int8", "int16")), ("tflite-uint8", ("uint8",))),
    "litert:reference": (("tflite", ("int8", "int16")), ("tflite-uint8", ("uint8",))),
    "tflite-micro:reference": (("tflite-micro", ("int8", "int16")),),
    "onnxruntime:optimized": (("ort-x86", ("uint8", "int16")), ("ort-arm", ("int8",))),
    "onnxruntime:unoptimized": (("ort-x86", ("uint8",)), ("ort-arm", ("int8",))),
    "torch:rebuilt": (("torch", ("int8", "int16")),),
    "mnn:cpu": (("mnn", ("int8",)),),
}
_FALLBACK = "XNNPACK takes what these targets write; tests/test_kernel_tolerances.py has files that it leaves to TFLite's own kernels"
#: The first kind of a row that no operator reaches, and why.
UNREACHED = {
    "litert:default": {
        **dict.fromkeys(("Conv", "Gemm", "MatMul", "Mul", "Add", "Sub", "Concat", "Requantize"), _FALLBACK),
        **dict.fromkeys(
            ("AveragePool", "Max", "Where"), "XNNPACK takes the QUANTIZE before them alone, which brings data to one quantization"
        ),
    },
    "litert:reference": {"ReduceSum": "the row says that it is wrong for all"},
}
UNREACHED["tflite-micro:reference"] = {"SpaceToBatch": "the row says that it is wrong where something is padded"}
for _kernels in ("litert:default", "litert:reference"):
    UNREACHED[_kernels]["Sqrt"] = "it is right in TFLite's own files alone, which tests/test_kernel_tolerances.py has"
    UNREACHED[_kernels]["DetectionPostProcess"] = "tests/formats/test_detection.py"
for _kernels in ("onnxruntime:optimized", "onnxruntime:unoptimized"):
    UNREACHED[_kernels] = {
        "AveragePool": "windows of all positions, of which tests/checking/test_prove.py has all sums",
        "ReduceMean": "means that round as XNNPACK's do, of which tests/passes/test_reductions.py has all sums",
    }

_MARKS = {"litert": "litert", "tflite-micro": "tflite_micro", "onnxruntime": "onnxruntime", "torch": "torch", "mnn": "mnn"}


def shadowed(rows: Sequence[Kernel], place: int) -> bool:
    """Whether rows before take all that one would."""
    row = rows[place]
    before = [item for item in rows[:place] if item.lacks is None]
    every = all(any(kind in item.kinds and set(row.types) <= set(item.types) for item in before) for kind in row.kinds)
    return every and bool(row.kinds)


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_row_has_a_reference_or_says_why_not(kernels: str) -> None:
    """Without both, and without a tolerance, its integers are the exact values, rounded."""
    rows = [row for row in KERNELS[kernels].rows if row.runs != "nothing"]
    assert not [row.kinds for row in rows if row.reference is None and row.tolerance is not None and not row.unknown]


@pytest.mark.parametrize("kernels", [pytest.param(name, marks=getattr(pytest.mark, _MARKS[name.partition(":")[0]])) for name in CASES])
def test_runtimes_give_what_rows_say(kernels: str) -> None:
    reached = set()
    kinds = [
        kind
        for kind in QUANTIZED_KINDS
        if any(kind in row.kinds and row.runs in ("integers", "float", "inexact") for row in KERNELS[kernels].rows)
    ]
    for target, types in CASES[kernels]:
        found = assert_kernels_hold(kernels, target, kinds=kinds, types=types, count=2)
        assert sum(item.elements for item in found) > 5_000
        reached |= {id(item.row) for item in found}
    rows = KERNELS[kernels].rows
    integer = [row for place, row in enumerate(rows) if row.runs == "integers" and not shadowed(rows, place)]
    assert {row.kinds[0] for row in integer if id(row) not in reached} == set(UNREACHED.get(kernels, {}))
