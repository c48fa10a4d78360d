"""Node data for Model Explorer: names that its adapters know, numbers that JSON has, and nothing of others replaced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

import qconvert
from qconvert.checking.findings import CLASSES, CheckReport, Finding
from qconvert.errors import FileAccessError, OptionError
from qconvert.reports.graphs import _COLOURS, node_data, write_node_data

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"


def run(*arguments: str | Path) -> int:
    return subprocess.run([sys.executable, "-m", "qconvert", *map(str, arguments)], capture_output=True, check=False).returncode


@pytest.mark.end_to_end
def test_of_a_check(tmp_path: Path) -> None:
    out, data = tmp_path / "out.onnx", tmp_path / "data.json"
    qconvert.convert(MODEL, out)
    assert run("check", MODEL, out, "--samples", "1", "--model-explorer", data) == 0
    document = json.loads(data.read_text())
    tensors = {name for op in qconvert.load(MODEL).ops for name in op.outputs}
    assert document["results"] and set(document["results"]) <= tensors, "keys are the tensors of the source"
    assert {item["value"] for item in document["results"].values()} == {0.0}
    assert run("check", MODEL, out, "--samples", "1", "--model-explorer", data) == 0, "its own file is replaced"
    data.write_text("{}")
    assert run("check", MODEL, out, "--samples", "1", "--model-explorer", data) == 2
    assert data.read_text() == "{}"


@pytest.mark.end_to_end
def test_of_a_model(tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    assert run("view", MODEL, "--model-explorer", data) == 0
    results = json.loads(data.read_text())["results"]
    graph = qconvert.load(MODEL)
    assert set(results) == {name for op in graph.ops for name in op.outputs}
    assert all(results[op.outputs[0]]["value"] == 8 for op in graph.ops if op.kind == "Conv")
    assert not list(tmp_path.glob("*.html"))


def test_every_class_has_a_colour() -> None:
    assert set(CLASSES) <= set(_COLOURS)


def test_what_is_no_number() -> None:
    report = CheckReport("a", "b", 1, (), (Finding("unexplained", "", 0, float("inf"), 0, 1, "op", "t"),), ("x",))
    assert node_data(report)["results"]["t"]["value"] == -1


@pytest.mark.formats
def test_refusals(tmp_path: Path) -> None:
    with refused(OptionError, "operators-not-compared"):
        node_data(CheckReport("a", "b", 1, (), (), ()))
    with refused(OptionError, "unknown-suffix"):
        write_node_data(qconvert.load(MODEL), tmp_path / "data.txt")
    (tmp_path / "other.json").write_text("[]")
    with refused(FileAccessError, "file-exists"):
        write_node_data(qconvert.load(MODEL), tmp_path / "other.json")
