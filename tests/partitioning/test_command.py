"""The command `partition`: tables, JSON, exit codes, and names that are scripts for terminals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import forked
import pytest

from qconvert import check, load, partition, save
from qconvert.graph import Op
from tests.partitioning.cutting import network, t

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
RESNET = ROOT / "fixtures" / "tiny_resnet_cifar10_int8.tflite"
KEYWORDS = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"
SVDF = ROOT / "fixtures" / "tflm_keyword_svdf_int8.tflite"


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(["partition", *words], cwd=ROOT)


def test_the_table() -> None:
    done = run(SVDF, "--target", "tensorrt")
    assert done.returncode == 0, done.stderr
    assert "5 regions; 24 of 29 operators outside, 4,160 of 21,056 MACs inside" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("tensorrt_0")]
    assert lines == [["tensorrt_0", "tensorrt", "1", "1,024", "64", "16", "tensor_5", "tensor_8"]]
    assert "IntegerSVDF" in done.stdout
    assert run(SVDF, "--target", "tensorrt", "--quiet").stdout == ""


def test_json_and_files(tmp_path: Path) -> None:
    done = run(SVDF, tmp_path / "cut.qgraph", "--target", "tensorrt", "--target", "tflite", "--split", tmp_path / "parts", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["files"] == [str(tmp_path / "cut.qgraph"), str(tmp_path / "parts" / "manifest.json")]
    assert found["targets"] == ["tensorrt", "tflite"] and {region["target"] for region in found["regions"]} == {"tensorrt", "tflite"}
    assert load(tmp_path / "cut.qgraph").functions.keys() == {region["name"] for region in found["regions"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no target is given"),
        (("--target", "nowhere"), "there is no target 'nowhere'"),
        (("--target", "generic"), "has no rules"),
        (("--target", "tensorrt", "--min-ops", "-1"), "min_ops is -1"),
        (("--target", "tensorrt", "--min-macs", "-1"), "min_macs is -1"),
        (("--target", "tensorrt", "--split", "fixtures"), "holds other files"),
        (("--target", "tensorrt", "--split", "README.md"), "is a file"),
        (("", "--target", "tensorrt"), "has no suffix"),
        (("out.unknown", "--target", "tensorrt"), "belongs to no known format"),
        (("out.json", "--target", "tensorrt"), "the format is partition, which cannot be written"),
    ],
)
def test_wrong_words(words: tuple[str, ...], said: str) -> None:
    done = run(RESNET, *words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not list(ROOT.glob("out.*"))


@pytest.mark.cross_section
def test_names_that_a_terminal_would_obey(tmp_path: Path) -> None:
    name = "\x1b[31mred\nline"
    ops = [Op("Neg", ("x",), (name,)), Op("IsNaN", (name,), ("y",))]
    save(network(ops, [t("y", dtype="bool")], ["x"], ["y", name]), tmp_path / "names.qgraph")
    done = run(tmp_path / "names.qgraph", "--target", "tensorrt", "--verbose")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "red" in done.stdout


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_what_the_model_was_read_with_is_said_by_both_results(tmp_path: Path) -> None:
    """A check needs no options then: it reads the source as the partition did."""
    found = partition(KEYWORDS, "tensorrt", tmp_path / "cut.onnx", split=tmp_path / "parts", batch=2, rename=["Identity=scores"])
    assert json.loads(Path(found.files[1]).read_text())["read"] == {"batch": 2, "rename": ["Identity=scores"]}
    for file in found.files:
        report = check(KEYWORDS, file, samples=1)
        assert report.verdict == "passed" and [item.name for item in report.outputs] == ["scores"], report.problems
        assert any("is read with --batch 2, --rename Identity=scores" in note for note in report.notes)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_standard_input_and_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qconvert", "partition", "-", "-", "--from", "tflite", "--to", "onnx", "--target", "tensorrt"]
    done = subprocess.run(command, input=KEYWORDS.read_bytes(), capture_output=True, check=True)
    assert "1 region" in done.stderr.decode() and b"1 region" not in done.stdout
    (tmp_path / "cut.onnx").write_bytes(done.stdout)
    assert check(KEYWORDS, tmp_path / "cut.onnx", samples=1).verdict == "passed"
    unsaid = subprocess.run([*command[:5], "--target", "tensorrt"], input=b"", capture_output=True, check=False)
    assert unsaid.returncode == 2 and b"--from" in unsaid.stderr
