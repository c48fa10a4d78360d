"""The kernel tables of the targets, found again in the runtimes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from qconvert.targets.rules_tflite import OPERATORS, SURVEYED, has_cast, largest_rank

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]


def _has_half_precision() -> bool:
    """Whether the CPU computes in float16 (x86: AVX512-FP16, Arm: FEAT_FP16)."""
    path = Path("/proc/cpuinfo")
    return path.exists() and not {"avx512_fp16", "fphp"}.isdisjoint(path.read_text().split())


@pytest.mark.parametrize(
    ("runtime", "kernels", "package", "tried"),
    [
        pytest.param("LiteRT", "default", "ai-edge-litert", "2.3", marks=pytest.mark.slow),  # a minute, of use for another release
        ("tflite-micro", "micro", "tflite_micro", "0.dev20261023"),
    ],
)
def test_the_tables_are_what_the_runtimes_do(runtime: str, kernels: str, package: str, tried: str) -> None:
    try:
        installed = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed (extra micro)")
    if not installed.startswith(tried):
        pytest.skip(f"the table is that of {package} {tried}, installed is {installed}")
    command = [sys.executable, str(ROOT / "tests" / "targets" / "one_operator.py"), kernels]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    stated = {name: {dtype: rank for dtype in SURVEYED if (rank := largest_rank(runtime, name, dtype))} for name in OPERATORS[runtime]}
    if _has_half_precision():  # there float16 is computed in float16, which is not within the survey's bounds
        for table in (found["table"], stated):
            for ranks in table.values():
                ranks.pop("float16", None)
    assert found["table"] == stated
    names = list(dict.fromkeys(name.removeprefix("plain_") for name in SURVEYED))
    assert {(a, b) for a, b in found["casts"]} == {(a, b) for a in names for b in names if a != b and has_cast(runtime, a, b)}
