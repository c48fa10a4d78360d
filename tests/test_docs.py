"""Every command and every Python example in the README and in docs/ runs, on a real model."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forked
import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.repository]

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODEL = ROOT / "fixtures" / "tflm_person_detect_int8.tflite"
NAMES = {
    **dict.fromkeys(("IN", "SOURCE", "A"), "model.tflite"),
    **dict.fromkeys(("RESULT", "FILE"), "model.onnx"),
    "OUT": "out.onnx",
    "B": "model.qgraph",
}


def commands() -> list[str]:
    """Lines `qconvert …` of code blocks and of inline code, each once."""
    found: list[str] = []
    for page in PAGES:
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```\n(.*?)```", text, re.S))
        found += re.findall(r"^(qconvert [^#\n]+)", blocks, re.M) + re.findall(r"`(qconvert [a-z0-9]+[^`…]*)`", text)
    return sorted({command.strip() for command in found})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model under the names that the documentation uses, made once."""
    from qconvert import convert, partition
    from qconvert.conversion.encodings import extract_file

    tmp_path = tmp_path_factory.mktemp("documentation")
    shutil.copy(MODEL, tmp_path / "model.tflite")
    shutil.copytree(ROOT / "fixtures" / "images", tmp_path / "photos")
    for number, photograph in enumerate(sorted((ROOT / "fixtures" / "images").glob("*.*"))[:2]):
        (tmp_path / "labelled" / str(number)).mkdir(parents=True)
        shutil.copy(photograph, tmp_path / "labelled" / str(number))
    shutil.copy(ROOT / "fixtures" / "mww_okay_nabu_streaming_int8.tflite", tmp_path / "wake_word.tflite")
    (tmp_path / "models").mkdir()
    shutil.copy(ROOT / "fixtures" / "onnx" / "brevitas_int4_weights.onnx", tmp_path / "models")
    convert(tmp_path / "model.tflite", tmp_path / "model.onnx")
    convert(tmp_path / "model.tflite", tmp_path / "four.onnx", batch=4)
    convert(tmp_path / "model.onnx", tmp_path / "phone.tflite")
    convert(tmp_path / "model.onnx", tmp_path / "micro.tflite", target="tflite-micro")
    convert(tmp_path / "model.tflite", tmp_path / "model.qgraph")
    convert(tmp_path / "model.tflite", tmp_path / "gpu.onnx", target="tensorrt")
    convert(tmp_path / "model.onnx", tmp_path / "qoperator.onnx", form="qoperator")
    if find_spec("torch") is not None:
        convert(tmp_path / "model.tflite", tmp_path / "model.pt2")
    if find_spec("MNN") is not None:
        convert(tmp_path / "model.tflite", tmp_path / "phone.mnn")
    classifier = ROOT / "fixtures" / "torch" / "classifier"
    shutil.copy(classifier / "state_eager_fbgemm.pth", tmp_path / "weights.pth")
    shutil.copy(classifier / "float.pt2", tmp_path)
    shutil.copy(classifier.parent / "small" / "pt2e_x86_qat.pt2", tmp_path / "qat.pt2")
    convert(tmp_path / "weights.pth", tmp_path / "classifier.onnx", graph=tmp_path / "float.pt2")
    for name, copy in (("float.onnx", "net.onnx"), ("KL.mnn", "net.mnn"), ("KL_dump.json", "net.mnn.json"), ("EMA.mnn", "ema.mnn")):
        shutil.copy(ROOT / "fixtures" / "mnn" / name, tmp_path / copy)
    shutil.copy(ROOT / "fixtures" / "mnn" / "float.mnn", tmp_path / "before.mnn")
    shutil.copy(ROOT / "fixtures" / "mnn" / "pipeline.json", tmp_path)
    extract_file(tmp_path / "model.tflite", tmp_path / "scales.json", real=tmp_path / "float.onnx")
    convert(tmp_path / "float.onnx", tmp_path / "again.onnx", encodings=str(tmp_path / "scales.json"))
    convert(tmp_path / "model.tflite", tmp_path / "symmetric.qgraph", passes=["symmetric_activations"], edges="change")
    extract_file(tmp_path / "symmetric.qgraph", tmp_path / "scales.cache")
    partition(tmp_path / "model.tflite", "tensorrt", tmp_path / "cut.onnx", split=tmp_path / "parts")
    return tmp_path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to write into."""
    return Path(shutil.copytree(made, tmp_path / "documentation"))


@pytest.mark.cross_section
def test_the_documentation_has_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.torch
@pytest.mark.mnn
@pytest.mark.parametrize("command", commands())
def test_command(command: str, folder: Path) -> None:
    if ("torch" in command or ".pt" in command) and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    if re.match(r"qconvert (tflite2mnn|check) .*\.mnn", command) and find_spec("MNN") is None:
        pytest.skip("MNN is not installed")
    if "--build" in command and find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip("TensorRT is not installed")
    if "tflite-micro" in command and "--kernels" in command and find_spec("tflite_micro") is None:
        pytest.skip("tflite-micro is not installed")
    words = [NAMES.get(word, word) for word in command.split()[1:]]
    if len(words) == 1 and words[0] not in ("formats", "passes", "plugins"):  # a command that is named
        words.append("--help")
    writing = ("apply", "calibrate", "convert", "extract-scales", "tflite2onnx", "tflite2torch", "onnx2torch", "torch2onnx")
    if words[0] in writing and "--force" not in words and "--help" not in words:
        words.append("--force")
    done = forked.run(words, cwd=folder, timeout=600)
    assert done.returncode == 0, done.stderr


#: Pages whose Python is tried elsewhere: test_plugins.py, targets/test_made_up_target.py, plugins/qconvert-tvm/tests.
ELSEWHERE = ("docs/plugins.md", "docs/targets.md", "docs/tvm.md")


def examples() -> dict[str, list[str]]:
    """The blocks of Python of each page that has some."""
    found = {str(page.relative_to(ROOT)): re.findall(r"```py(?:thon)?\n(.*?)```", page.read_text(), re.S) for page in PAGES}
    return {page: blocks for page, blocks in found.items() if blocks and page not in ELSEWHERE}


def test_the_documentation_has_examples() -> None:
    assert {"README.md", "docs/guide.md", "docs/pytorch.md", "docs/arithmetic.md", "docs/library.md"} <= {*examples()}


@pytest.mark.parametrize("page", examples())
def test_python_examples(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs by itself, as it is copied."""
    monkeypatch.chdir(folder)
    if page != "docs/guide.md":  # by the examples themselves
        (folder / "model.onnx").unlink()
    (folder / "scales.json").unlink()
    seen: dict[str, Any] = {}
    for block in examples()[page]:
        if "import torch" not in block or find_spec("torch") is not None:
            names: dict[str, Any] = {}
            exec(compile(block, page, "exec"), names)
            seen |= names
    assert "found" not in seen or page != "README.md" or seen["found"].passed
    assert "scores" not in seen or seen["scores"].shape == (1, 2)


def test_makefile_has_the_two_commands_on_top_of_the_readme() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    top = (ROOT / "README.md").read_text()[:700]
    assert all(f"make {name} " in top and name in targets for name in ("demo", "test"))
