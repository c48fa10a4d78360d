"""`-` for a model in every command that reads one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qconvert

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"


def run(folder: Path, content: Path | None, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qconvert", *words]
    with open(content or os.devnull, "rb") as stream:
        return subprocess.run(
            command, cwd=folder, stdin=stream, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("streams")
    qconvert.convert(MODEL, found / "a.onnx")
    return found


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("check - a.onnx --from tflite --quick", 0, "passed"),
        ("inspect - --from tflite", 0, "-: 13 operators"),
        ("audit - --target ort-x86 --from tflite", 0, "- for ort-x86"),
        ("roundtrip - onnx:qdq --samples 1 --from tflite", 0, "passed"),
        ("diff - a.onnx --from tflite", 1, "Requantize"),
        ("view - page.html --no-values --from tflite", 0, "page.html"),
        ("extract-scales - scales.json --from tflite", 0, "- -> scales.json: the model has scales of 14 activations"),
        ("passes - --samples 1 --from tflite", 0, "pass"),
        ("check - a.onnx", 2, "- has no suffix that says the format"),
        ("audit - --target ort-x86", 2, "- has no suffix"),
        ("view - page.html", 2, "- has no suffix"),
        ("check - - --from tflite --to onnx", 2, "only one of two models"),
        ("check - a.onnx --from onnx", 2, "-: the file is of the format tflite, not onnx"),
    ],
)
def test_a_model_from_standard_input(words: str, code: int, said: str, folder: Path) -> None:
    done = run(folder, MODEL, *words.split())
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_result_from_standard_input_and_suffixes_that_say_nothing(folder: Path) -> None:
    (folder / "m.bin").write_bytes(MODEL.read_bytes())
    done = run(folder, folder / "a.onnx", "check", "m.bin", "-", "--from", "tflite", "--to", "onnx", "--quick", "--json")
    assert done.returncode == 0 and '"source": "m.bin"' in done.stdout and '"result": "-"' in done.stdout


def test_nothing_on_standard_input_is_an_error(folder: Path) -> None:
    done = run(folder, None, "check", "-", "a.onnx", "--from", "tflite")
    assert done.returncode == 2 and "Traceback" not in done.stderr
