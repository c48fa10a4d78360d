"""qconvert.toml: defaults of options for a project, and what no such file may set."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import forked
import numpy as np
import pytest

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(MODEL, tmp_path / "m.tflite")
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.run(words, cwd=folder)


def document(folder: Path, *words: str) -> dict[str, object]:
    done = run(folder, *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_file_sets_defaults_and_the_command_line_comes_first(project: Path) -> None:
    (project / "qconvert.toml").write_text(
        'target = "ort-arm"\nsamples = 1\n[convert]\nbatch = 3\nrename = ["Identity=y"]\nmin_tensor_sqnr = 20\n'
    )
    done = run(project, "convert", "m.tflite", "a.onnx", "--min-tensor-sqnr=25")
    assert done.returncode == 0
    assert done.stderr == "note: qconvert.toml sets target = 'ort-arm', batch = 3, rename = ['Identity=y']\n"
    assert "for ort-arm" in done.stdout
    tensors = {item["name"]: item["shape"] for item in document(project, "inspect", "a.onnx")["tensors"]}  # type: ignore[attr-defined]
    assert tensors["y"] == [3, 12]
    # A command for a pair of formats is convert; one that has no such option is not disturbed.
    done = run(project, "tflite2onnx", "m.tflite", "a.onnx", "-f", "--target", "generic", "--json")
    assert json.loads(done.stdout)["target"] == "generic" and "target" not in done.stderr and "batch = 3" in done.stderr
    assert run(project, "formats").returncode == 0
    assert run(project, "convert", "m.tflite", "a.onnx", "-f", "-q").stderr == ""


def test_a_file_sets_the_options_of_a_calibration_method(project: Path) -> None:
    (project / "qconvert.toml").write_text('[calibrate]\nmethod = "percentile"\npercentile = 50\n')
    digits = ROOT / "fixtures" / "digits"
    np.save(project / "images.npy", np.load(digits / "test.npz")["images"][:4])
    scales = []
    for words in ((), ("-O", "percentile=100"), ("--no-config",)):
        tensors = document(project, "calibrate", str(digits / "float.onnx"), "--data", "images.npy", "-o", "s.json", "-f", *words)[
            "tensors"
        ]
        scales.append(tensors[0]["scale"])  # type: ignore[index]
    assert scales[0] < scales[1] == scales[2]


def test_no_config_and_another_file(project: Path) -> None:
    (project / "qconvert.toml").write_text('target = "ort-arm"\r\n', encoding="utf-8-sig")  # as editors on Windows save it
    (project / "other.toml").write_text('[convert]\ntarget = "generic"\n')
    assert document(project, "convert", "m.tflite", "a.onnx", "--no-config")["target"] == "ort-x86"
    for words in (("--config", "other.toml"), ("--config=other.toml",)):
        assert document(project, *words, "convert", "m.tflite", "a.onnx", "-f")["target"] == "generic"
    (project / "qconvert.toml").write_text("= nothing of TOML")
    assert run(project, "convert", "--help").returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('plugin = ["x.py"]', "sets plugin at its top, which no file may: plugins are code that runs"),
        ("[convert]\nforce = true", "sets force in [convert], which no file may: it replaces files"),
        ('[convert]\nscheduler = "tcp://x:1"', "which no file may: a scheduler"),
        ('[convert]\nhtml = "x.html"', "which no file may: it names a file that is written"),
        ('[convert]\ncalibration_cache = "x"', "which no file may: it names a file that is written"),
        ('[convert]\noption = ["calibration_cache=x"]', "which no file may: each option has a name of its own"),
        ('kernels = ["torch:trusted"]', "which no file may: they run code that is in files"),
        ('tragets = "x"', "sets what is no option at its top: 'tragets' (nearest: 'target')"),
        ('[convert]\niolayout = "nchw"', "'iolayout' (nearest: 'io-layout')"),
        ("[check]\nsampels = 3", "sets what is no option in [check]: 'sampels' (nearest: 'samples')"),
        ('[check]\nsamples = "many"', "samples takes a whole number, not 'many'"),
        ("[check]\nforce = true", "sets force in [check], which no file may: it replaces files"),
        ("[convret]\nx = 1", "there is no command 'convret' (nearest: 'convert')"),
        ('batch = "many"', "batch takes a whole number, not 'many'"),
        ("batch = true", "batch takes a whole number, not true"),
        ('no_float = "yes"', "no-float takes true or false, not 'yes'"),
        ("rename = [1.5, [2]]", "rename takes one text, not [2]"),
        ('io_layout = ["nchw"]', "io-layout takes one text"),
        ("no_float = true\nno-float = false", "sets no-float twice"),
        ('unroll = "many"', "unroll takes a whole number, not 'many'"),
        ("a = [", "is no TOML"),
        ("[" * 5000, "is no TOML"),
        ("x = 1 # " + "y" * 2**20, "is larger than"),
    ],
)
def test_what_a_file_may_not_say(text: str, said: str, project: Path) -> None:
    (project / "qconvert.toml").write_text(text)
    done = run(project, "convert", "m.tflite", "a.onnx")
    assert done.returncode == 2 and said in done.stderr and "qconvert.toml" in done.stderr and "Traceback" not in done.stderr
    assert not (project / "a.onnx").exists()


def test_files_that_are_none(project: Path) -> None:
    (project / "d").mkdir()
    os.mkfifo(project / "pipe")
    (project / "bytes.toml").write_bytes(b"\xff\xfe")
    for name in ("none.toml", "d", "pipe", "bytes.toml"):
        done = run(project, "convert", "m.tflite", "a.onnx", "--config", name)
        assert done.returncode == 2 and name in done.stderr and "Traceback" not in done.stderr
    os.mkfifo(project / "qconvert.toml")
    assert "is no plain file" in run(project, "convert", "m.tflite", "a.onnx").stderr
    for flag in ("--config", "--plugin"):
        done = run(project, "convert", "m.tflite", "a.onnx", flag)
        assert done.returncode == 2 and f"{flag} has no file after it" in done.stderr


def test_the_models_of_a_batch_are_not_converted_by_a_file(project: Path) -> None:
    """The batch has its options; those of [convert] are for the command."""
    (project / "models").mkdir()
    (project / "m.tflite").rename(project / "models" / "m.tflite")
    (project / "qconvert.toml").write_text('[convert]\nbatch = 0\nio_layout = "no layout"\n[batch]\ntarget = "generic"\n')
    found = document(project, "batch", "models", "out")
    assert [item["target"] for item in found["outcomes"]] == ["generic"]  # type: ignore[attr-defined]
