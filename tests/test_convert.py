"""The command convert: which files it takes and leaves alone, and what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import operators
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, convert, load, save
from qconvert.cli.conversion_summary import summary
from qconvert.errors import OptionError, QConvertError, WrongFormatError
from qconvert.plugins import Change

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"


@pytest.mark.formats
@pytest.mark.parametrize("which", ["model.onnx", "weights.bin"])
def test_a_conversion_replaces_no_file_of_its_source(which: str, tmp_path: Path) -> None:
    source, result = tmp_path / "model.onnx", tmp_path / "result.onnx"
    convert(MODEL, source, target="generic")
    onnx.save_model(onnx.load(source), source, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    os.link(tmp_path / which, result)
    with refused(OptionError, "source-overwritten", holds=(which,)):
        convert(source, result, force=True)
    result.unlink()
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before and len(before) == 2


def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "qconvert", *map(str, arguments)]
    return subprocess.run(command, check=False, timeout=120, **({"capture_output": True} | options))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model in every format."""
    folder = tmp_path_factory.mktemp("models")
    convert(MODEL, folder / "model.onnx", target="generic")
    convert(MODEL, folder / "model.qgraph")
    (folder / "model.tflite").write_bytes(MODEL.read_bytes())
    return folder


@pytest.mark.formats
@pytest.mark.parametrize("stated", ["tflite", "onnx", "qgraph"])
@pytest.mark.parametrize("real", ["tflite", "onnx", "qgraph"])
def test_a_file_of_another_format_is_told_by_its_content(real: str, stated: str, models: Path, tmp_path: Path) -> None:
    disguised = tmp_path / f"my model.{stated}"
    disguised.write_bytes((models / f"model.{real}").read_bytes())
    if real == stated:
        load(disguised)
        return
    with refused(WrongFormatError, "wrong-format", holds=(f"my model.{stated}", real, stated)):
        load(disguised)
    with pytest.raises(WrongFormatError) as caught:
        convert(models / f"model.{real}", tmp_path / "out.onnx", source_format=stated, target="generic")
    assert caught.value.remedy == f"Use `qconvert {real}2onnx {models / f'model.{real}'} {tmp_path / 'out.onnx'}`."
    with pytest.raises(WrongFormatError, match=f"Use `qconvert {real}2onnx '{disguised}'"):
        convert(disguised, tmp_path / "out.onnx", target="generic")
    assert [item.name for item in tmp_path.iterdir()] == [disguised.name]


@pytest.mark.formats
def test_a_damaged_file_is_of_no_other_format(tmp_path: Path) -> None:
    for data in (b"", b"\x08", MODEL.read_bytes()[:3000], bytes(100), b"PK\x03\x04" * 30):
        (tmp_path / "model.tflite").write_bytes(data)
        with pytest.raises(Exception) as caught:
            load(tmp_path / "model.tflite")
        assert type(caught.value).__name__ == "InvalidModelError"


@pytest.mark.end_to_end
@pytest.mark.cross_section
def test_a_name_that_says_another_format(tmp_path: Path) -> None:
    done = run("tflite2onnx", MODEL, tmp_path / "model.tflite")
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"error: {tmp_path / 'model.tflite'}: the suffix .tflite is that of the format tflite, but the format onnx would be written\n"
        f"Use `qconvert tflite2tflite {MODEL} {tmp_path / 'model.tflite'}`, or a name that ends in .onnx.\n"
    )
    convert(MODEL, tmp_path / "model", result_format="onnx")
    assert operators((tmp_path / "model").read_bytes())
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


@pytest.mark.end_to_end
def test_standard_input_and_output(models: Path, tmp_path: Path) -> None:
    piped = run("tflite2onnx", "-", "-", "--target", "generic", input=MODEL.read_bytes())
    assert piped.returncode == 0, piped.stderr
    (tmp_path / "model.onnx").write_bytes(piped.stdout)
    assert load(tmp_path / "model.onnx").ops == load(models / "model.onnx").ops
    said = piped.stderr.decode().splitlines()
    assert said[0] == "- -> - for generic" and said[-1].startswith("runs: 19 of 26 operators on integers")
    report = json.loads(run("convert", MODEL, "-", "--to", "onnx", "--json").stderr)
    assert (report["source"], report["result"]) == (str(MODEL), "-")
    for arguments, words in (
        (("convert", MODEL, "-"), "- has no suffix that says the format"),
        (("tflite2onnx", MODEL, "-", "--external-data"), "more than one file"),
        (("onnx2tflite", "-", "-"), "-: the file is of the format tflite, not onnx\nUse `qconvert tflite2tflite - -`."),
    ):
        done = run(*arguments, input=MODEL.read_bytes())
        assert (done.returncode, done.stdout) == (2, b"")
        assert words in done.stderr.decode()


@pytest.mark.end_to_end
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_standard_output(tmp_path: Path) -> None:
    for arguments in (
        ("tflite2onnx", MODEL, "-", "-q"),
        ("inspect", MODEL),
        ("formats", "--json"),
        ("tflite2onnx", MODEL, tmp_path / "m.onnx"),
    ):
        with open("/dev/full", "wb") as full:
            done = run(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        words = b"" if "--json" in arguments else b"No space left on device"
        assert done.returncode == 2 and b"Traceback" not in done.stderr and words in done.stderr


@pytest.mark.end_to_end
def test_streams_that_are_closed() -> None:
    code = "import os, sys; os.close({0}); os.execv(sys.executable, [sys.executable, '-m', 'qconvert', 'tflite2onnx', '-', '-'])"
    for descriptor, name in ((0, "input"), (1, "output")):
        command = [sys.executable, "-c", code.format(descriptor)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
        assert (done.returncode, done.stderr) == (2, f"error: standard {name} is closed\nUse a pipe or a file.\n")


@pytest.mark.end_to_end
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_no_model_goes_to_a_terminal() -> None:
    ours, theirs = os.openpty()
    done = run("tflite2onnx", MODEL, "-", capture_output=False, stdout=theirs, stderr=subprocess.PIPE)
    assert done.returncode == 2 and b"standard output is a terminal" in done.stderr
    done = run("tflite2onnx", "-", "out.onnx", stdin=theirs)
    assert done.returncode == 2 and b"standard input is a terminal" in done.stderr
    os.close(ours)
    os.close(theirs)


def network(kind: str, *, quantized: bool = True) -> Graph:
    """A Sigmoid, for which onnxruntime has an integer kernel, and an operator of `kind` after it."""
    quantization = Quantization(np.float32([0.1]), np.array([3])) if quantized else None
    dtype = "uint8" if quantized else "float32"
    tensors = {name: Tensor(name, dtype, (1, 8), quantization=quantization) for name in "xmy"}
    return Graph("g", tensors, (Op("Sigmoid", ("x",), ("m",)), Op(kind, ("m",), ("y",))), ("x",), ("y",))


@pytest.mark.formats
@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (network("Sigmoid"), "runs: all 2 operators on integers"),
        (network("Tanh"), "runs: 1 of 2 operators on integers, 1 in float (1 Tanh)"),
        (network("Tanh", quantized=False), "runs: 2 operators, nothing is quantized"),
    ],
)
def test_the_last_lines(graph: Graph, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(graph, tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "a b.onnx")
    report = convert(tmp_path / "a b.onnx", tmp_path / "b.onnx", target="ort-x86")
    guarded = replace(report, changes=(*report.changes, Change("weights are stored as uint8", exact=True, by="guard_saturation")))
    for vnni, found in ((True, guarded), (False, guarded), (False, report), (True, report)):
        monkeypatch.setattr("qconvert.runtimes.onnx_rewrites.has_vnni", lambda vnni=vnni: vnni)
        lines, vnni = summary(found, False), vnni and found is guarded
        assert len(lines) <= 8 and sum("--target ort-x86-vnni" in line for line in lines) == vnni
        assert lines[-1] == f"next: qconvert check '{tmp_path}/a b.onnx' {tmp_path}/b.onnx"
        assert lines[-2 - vnni].startswith(words)
    assert summary(convert(tmp_path / "b.onnx", tmp_path / "b.qgraph"), False)[-1] == f"next: qconvert inspect {tmp_path}/b.qgraph"


COMPLETED = {
    "tflite2onnx --target ort": ["ort-x86", "ort-x86-vnni", "ort-arm"],
    "convert a b --target tflite-m": ["tflite-micro"],
    "tflite2onnx a b --form ": ["qdq", "qoperator", "qonnx"],
    "convert --numerics ": ["exact", "strict", "fast"],
    "convert --pass fuse_pad --pass fold_b": ["fold_batch_norm"],
    "convert --pass power_of_two:edges=keep,rou": ["keep,rounding="],
    "convert --from o": ["onnx"],
    "inspect --from to": ["torch"],
    "audit m.onnx --target ort-a": ["ort-arm"],
    "check a b --kernels lite": ["litert:default", "litert:reference"],
    "check a b --kernels litert:r": ["reference"],
    "check a b --kernels litert : r": ["reference"],  # as bash has it
    "check a b --kernels litert :": ["default", "reference"],
    "check a b --kernels tens": [f"tensorrt:sm{sm}" for sm in (89, 75, 80, 86, 120, 121)],
    "check m.tflite --subg": ["--subgraph"],
    "view m.tflite --rena": ["--rename"],
    "inspect m.onnx --input": ["--input-shape"],
    "convert --batc": ["--batch"],
    "convert -O io_l": ["io_layout="],
    "convert -O io_layout =": ["nchw", "nhwc"],
    "convert -O biases=k": ["keep"],
    "convert --option no_float=t": ["true"],
    "batch a b -O numerics=e": ["exact"],
    "batch a b --fail-on u": ["unequal"],
    "batch a b --to onn": ["onnx"],
    "batch a b --pass fuse_p": ["fuse_pad"],
    "roundtrip a onnx:qo": ["qoperator", "qonnx"],
    "roundtrip a qg": ["qgraph"],
    "calibrate --runtime o": ["onnxruntime"],
    "calibrate --method e": ["entropy"],
    "calibrate --weights-method a": ["admm"],
    "calibrate --weights int": ["int8", "int4", "int2", "int16"],
    "calibrate --colour rgb": ["rgb", "rgba"],
    "accuracy --image-layout nh": ["nhwc"],
    "calibrate --activations u": ["uint8", "uint16"],
    "calibrate --resize s": ["stretch"],
    "convert --print-after al": ["all"],
    "convert --form=q": ["qdq", "qoperator", "qonnx"],
}


@pytest.mark.end_to_end
@pytest.mark.parametrize("line", COMPLETED)
def test_tab(line: str) -> None:
    words = ["qconvert", *line.split(), *([""] if line.endswith(" ") else [])]
    environment = {**os.environ, "_QCONVERT_COMPLETE": "complete_bash", "COMP_WORDS": f"qconvert {line}", "COMP_CWORD": str(len(words) - 1)}
    code = "import sys; sys.argv = ['qconvert']; from qconvert.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.stdout.split() == COMPLETED[line], done.stderr


@pytest.mark.end_to_end
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_tab_in_bash(tmp_path: Path) -> None:
    """The script that --show-completion prints, in bash, which takes words apart at colons and equal signs."""
    program = tmp_path / "qconvert"
    program.write_text(f"#!{sys.executable}\nfrom qconvert.cli.app import main\nmain()\n")
    program.chmod(0o755)
    script = """
    eval "$(_QCONVERT_COMPLETE=source_bash qconvert)"
    tab() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _qconvert_completion qconvert; echo "${COMPREPLY[*]}"; }
    tab qconvert check a b --kernels litert : r
    tab qconvert convert a b -O io_layout =
    tab qconvert convert a b --target tflite-m
    tab qconvert convert '"a b.tflite"' c --numerics ""
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.stdout.split() == ["reference", "nchw", "nhwc", "tflite-micro", "exact", "strict", "fast"], done.stderr


@pytest.mark.end_to_end
def test_a_file_without_a_suffix_is_told_by_its_content(models: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").write_bytes((models / "model.onnx").read_bytes())
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("bare", "by its content it is a file of the format onnx\nGive it the suffix .onnx, or name the format (from onnx)."),
        ("pipe", "the name has no suffix that says the format"),
        ("none", "cannot be read: No such file or directory"),
        (".", "is a directory, not a model file"),
    ):
        with pytest.raises(QConvertError) as caught:
            convert(tmp_path / name, tmp_path / "out.onnx")
        assert words in str(caught.value)
        done = run("inspect", tmp_path / name, "--json")
        assert (done.returncode, done.stderr) == (2, b"") and json.loads(done.stdout)["file"] == str(tmp_path / name)
    assert not (tmp_path / "out.onnx").exists()


WRONG = [
    "convert a.onnx",
    "convert --nonsense",
    "check a b --samples 0",
    "nonsense",
    "inspect a b",
    "diff a",
    "roundtrip a",
    "formats x",
    "",
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("line", WRONG)
def test_wrong_use_is_json_where_json_is_asked_for(line: str) -> None:
    done = run(*line.split(), "--json")
    assert (done.returncode, done.stderr) == (2, b"")
    document = json.loads(done.stdout)
    assert document["error"] == "usage" and document["reason"]


@pytest.mark.formats
def test_the_option_of_another_format_says_who_takes_it(tmp_path: Path) -> None:
    with refused(OptionError, "unknown-option", holds=("form", "onnx", "torch", "decompose_weights")):
        convert(MODEL, tmp_path / "out.tflite", form="qoperator")
    with refused(OptionError, "unknown-option", holds=("no_float", "isolate_float")):
        convert(MODEL, tmp_path / "out.onnx", no_float=True)
    assert list(tmp_path.iterdir()) == []
