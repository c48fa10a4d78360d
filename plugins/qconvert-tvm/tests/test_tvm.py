"""TVM runs files as onnxruntime and LiteRT do, and what it does not import is named."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from qconvert_tvm import running
from qconvert_tvm.running import TvmModel

import qconvert
from qconvert.plugin import ModelFile, RuntimeRefusedError, convert, evaluate, load, save
from qconvert.testing import random_inputs, sample_graphs

FIXTURES = Path(__file__).parents[3] / "fixtures"


def opened(path: Path) -> TvmModel:
    return TvmModel(ModelFile(path, "llvm"))


@pytest.mark.parametrize("name", sorted(sample_graphs()))
def test_sample_graphs_give_the_exact_integers(name: str, tmp_path: Path) -> None:
    save(sample_graphs()[name], tmp_path / "model.qgraph")
    convert(tmp_path / "model.qgraph", tmp_path / "model.onnx")
    written = load(tmp_path / "model.onnx")
    given = random_inputs(written)
    found, exact = opened(tmp_path / "model.onnx").run(given), evaluate(written, given)
    for output in written.outputs:
        steps = np.abs(found[output].astype(np.float64) - exact[output].astype(np.float64))
        if written[output].dtype == "float32":
            np.testing.assert_allclose(found[output], exact[output], rtol=1e-5, atol=1e-5)
        else:
            assert steps.max() <= 1 and (steps > 0).mean() < 0.05


def test_resnet8_is_equal_in_every_integer(tmp_path: Path) -> None:
    source, result = FIXTURES / "tiny_resnet_cifar10_int8.tflite", tmp_path / "resnet.onnx"
    convert(source, result)
    report = qconvert.check(source, result, kernels="tvm", per_op=True)
    assert report.passed
    assert {finding.verdict for finding in report.operators} == {"equal"}
    assert any("TVM" in note for note in report.notes)


def test_states_are_carried_from_run_to_run(tmp_path: Path) -> None:
    source, result = FIXTURES / "mww_okay_nabu_streaming_int8.tflite", tmp_path / "wake.onnx"
    convert(source, result)
    model, other = opened(result), load(result)
    assert list(model.inputs) == list(other.inputs) and len(other.states) > 1
    frames = [random_inputs(other, seed) for seed in range(3)]
    first = [model.run(frame) for frame in frames]
    model.reset()
    again = [model.run(frame) for frame in frames]
    for one, two in zip(first, again, strict=True):
        for name, value in one.items():
            assert np.array_equal(value, two[name])
    report = qconvert.check(source, result, kernels="tvm")
    assert report.passed


def model_of(*nodes: Any, domain: str = "") -> Any:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    graph = helper.make_graph(list(nodes), "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else []))


def test_operators_that_tvm_does_not_know_are_all_named(tmp_path: Path) -> None:
    nodes = helper.make_node("Bernoulli", ["x"], ["a"]), helper.make_node("Wonder", ["a"], ["y"], domain="acme")
    onnx.save(model_of(*nodes, domain="acme"), tmp_path / "odd.onnx")
    with pytest.raises(RuntimeRefusedError) as caught:
        opened(tmp_path / "odd.onnx")
    assert caught.value.rule == "model-refused" and "Wonder" in caught.value.reason and "Bernoulli" in caught.value.reason
    assert caught.value.exit_code == 4 and "odd.onnx" in caught.value.file


def test_open_sizes_are_open(tmp_path: Path) -> None:
    onnx.save(model_of(helper.make_node("Relu", ["x"], ["y"])), tmp_path / "open.onnx")
    model = opened(tmp_path / "open.onnx")
    assert model.inputs == {"x": ("float32", ("n", 3))}
    for rows in (1, 4):
        value = np.linspace(-1, 1, 3 * rows, dtype=np.float32).reshape(rows, 3)
        assert np.array_equal(model.run({"x": value})["y"], np.maximum(value, 0))


def test_the_page_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch to ONNX to TVM, as docs/tvm.md has it."""
    (block,) = re.findall(r"```py\n(.*?)```", (FIXTURES.parent / "docs" / "tvm.md").read_text(), re.S)
    classifier = FIXTURES / "torch" / "classifier"
    convert(classifier / "state_eager_fbgemm.pth", tmp_path / "classifier.onnx", graph=classifier / "float.pt2")
    graph = load(tmp_path / "classifier.onnx")
    (image,) = random_inputs(graph).values()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"image": image}
    exec(block, names)
    np.testing.assert_allclose(names["scores"], evaluate(graph, {graph.inputs[0]: image})[graph.outputs[0]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("data", [b"", b"\x08\x07broken", b"\x00" * 64])
def test_a_damaged_file_is_an_error_of_qconvert(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(data)
    with pytest.raises(qconvert.QConvertError):
        opened(tmp_path / "bad.onnx")


def test_values_of_another_shape_are_refused(tmp_path: Path) -> None:
    onnx.save(model_of(helper.make_node("Relu", ["x"], ["y"])), tmp_path / "model.onnx")
    model = opened(tmp_path / "model.onnx")
    given = {"x": np.zeros((2, 5), np.float32)}
    with pytest.raises(RuntimeRefusedError) as caught:
        model.run(given)
    assert caught.value.rule == "model-refused"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("raise ImportError('libfoo.so.1')", "ended with exit code 1; it printed: .*libfoo.so.1"),
        ("while True: os.write(1, b'x' * 2**20 + b'\\n')", "printed more than 67,108,864 bytes"),
        ("time.sleep(100)", "did not answer within 3 s"),
        ("__version__ = '0.1'", "refuses the model: (Attribute|Import)Error: .*'tvm'"),
    ],
)
def test_another_package_in_its_place(program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that crashes, cannot be imported, prints without end or hangs, and one of another version: an error, and no file is left."""
    (tmp_path / "tvm.py").write_text(f"import os, time\n{program}")
    model = FIXTURES / "onnx" / "torch_mobilenet_v2_qdq.onnx"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(running, "_PATIENCE", 3.0 if "3 s" in words else 60.0)
    with pytest.raises(RuntimeRefusedError, match=words) as caught:
        TvmModel(ModelFile(model, "llvm"))
    assert caught.value.exit_code == 4 and len(caught.value.reason) < 2500
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["tvm.py"]
