"""The zoo's runner on the small models that are kept here: nothing goes wrong, and what goes wrong is told."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qconvert import convert
from qconvert.errors import QConvertError
from qconvert.runtimes.onnx_rewrites import cpu_saturates

pytestmark = [pytest.mark.end_to_end, pytest.mark.repository]

FIXTURES = Path(__file__).parent.parent / "fixtures"
RUN = FIXTURES / "zoo" / "run.py"
#: Models whose outputs keep less than 30 dB on CPUs without VNNI, where LiteRT's kernels round otherwise.
DIFFER_WITHOUT_VNNI = ("torch_pt2e_xnnpack_attention",)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), str(folder), "--jobs", "1", *words]
    environment = {**os.environ, "PYTHONPATH": str(FIXTURES.parent)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)


def records(folder: Path) -> dict[tuple[str, str], dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return {(record["model"], record["way"]): record for line in lines for record in line["records"]}


def put(folder: Path, family: str, source: Path) -> None:
    place = folder / family / source.stem
    place.mkdir(parents=True)
    shutil.copy(source, place / f"int8{source.suffix}")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of the small models of every source that are in fixtures/."""
    folder = tmp_path_factory.mktemp("zoo")
    for path in sorted([*FIXTURES.glob("*.tflite"), *FIXTURES.glob("keras/*.tflite"), *FIXTURES.glob("onnx/*.onnx")]):
        if path.stat().st_size < 40_000 and not (path.stem in DIFFER_WITHOUT_VNNI and cpu_saturates()):
            put(folder, path.parent.name, path)
    return folder


def test_small_models_of_all_sources(zoo: Path) -> None:
    page = zoo / "coverage.md"
    done = run(zoo, "--coverage", str(page))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = records(zoo)
    outcomes = [record["outcome"] for record in found.values()]
    assert outcomes.count("equal") + outcomes.count("explained") > 40
    assert found["keras/keras_causal_int8/int8.tflite", "onnx"]["outcome"] in ("equal", "explained")
    assert found["keras/keras_causal_int8/int8.tflite", "onnx>tflite"]["integer"]
    assert page.read_text().startswith("# Coverage")


def test_a_run_goes_on_where_it_was(zoo: Path) -> None:
    run(zoo)  # the tests may run in different processes
    before = (zoo / "journal.jsonl").read_text()
    done = run(zoo)
    assert done.returncode == 0
    assert (zoo / "journal.jsonl").read_text() == before


def test_what_ends_the_process_or_is_slow_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    put(tmp_path, "keras", FIXTURES / "keras" / "keras_transposed_int8.tflite")
    damaged = tmp_path / "keras" / "damaged" / "int8.tflite"
    damaged.parent.mkdir()
    damaged.write_bytes(b"\0" * 100)
    run(tmp_path, "--limit", "0")
    assert {record["outcome"] for record in records(tmp_path).values()} <= {"no source", "time"}
    assert run(tmp_path, "--again", "all").returncode == 0
    found = records(tmp_path)
    assert found["keras/damaged/int8.tflite", "onnx"]["outcome"] == "no source"
    assert found["keras/damaged/int8.tflite", "onnx"]["code"] == "invalid-model"
    assert found["keras/keras_transposed_int8/int8.tflite", "onnx"]["outcome"] in ("equal", "explained")


def test_the_page_counts_refusals_by_rule_and_lists_what_is_not_as_it_should_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FIXTURES / "zoo"))
    page, outcomes = importlib.import_module("coverage_page"), importlib.import_module("outcomes")
    with pytest.raises(QConvertError) as refused:
        convert(FIXTURES / "onnx" / "ort_matmul_integer_to_float_int8.onnx", tmp_path / "result.tflite")
    reasons = {"a": ("refused", str(refused.value)), "b": ("equal", ""), "c": ("disagree", "")}
    found = [outcomes.Record(f"torch/{model}/int8.onnx", "tflite", outcome, reason=why) for model, (outcome, why) in reasons.items()]
    text = page.coverage_page(found)
    assert "| 1 |  | TFLite has an operator, or a few, for the kind (MatMulInteger) | torch/a |" in text
    assert [row[:3] for row in re.findall(r"^\| (.*)", text.partition("## torch\n")[2], re.M)] == ["mod", "c |"]
