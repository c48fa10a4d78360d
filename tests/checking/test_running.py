"""run(): outputs and inner tensors of a model in its own runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from test_cli import run as command

import qconvert
from qconvert.errors import OptionError

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"


def _shape(graph: qconvert.Graph) -> tuple[int, ...]:
    """The sizes of the input, for one sample."""
    return tuple(size if isinstance(size, int) else 1 for size in graph[graph.inputs[0]].shape or ())


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_both_runtimes_give_the_same_tensors(tmp_path: Path) -> None:
    qconvert.convert(MODEL, tmp_path / "model.onnx", target="generic")
    graph = qconvert.load(MODEL)
    x = np.random.default_rng(0).integers(-128, 128, _shape(graph)).astype(np.int8)
    first = qconvert.run(MODEL, {graph.inputs[0]: x}, every=True)
    inner = [op.outputs[0] for op in graph.ops if op.kind == "Conv"]
    second = qconvert.run(tmp_path / "model.onnx", {graph.inputs[0]: x}, tensors=inner)
    assert len(inner) == 9 and set(inner) <= set(second) < set(first)
    for name in (*graph.outputs, inner[-1]):
        a, b = (np.squeeze(values[name]).astype(int) for values in (first, second))
        b = np.moveaxis(b, 0, -1) if b.shape != a.shape else b  # ONNX has channels first
        shift = {"uint8": 128}.get(str(second[name].dtype), 0)
        assert np.array_equal(a, b - shift)
    real = qconvert.run(MODEL, {graph.inputs[0]: x}, dequantized=True)[graph.outputs[0]]
    q = graph[graph.outputs[0]].quantization
    assert q is not None and real.dtype == np.float32
    assert np.allclose(real, (first[graph.outputs[0]].astype(float) - q.zero_point[0]) * q.scale[0])


@pytest.mark.litert
def test_floats_are_quantized_and_strangers_are_refused() -> None:
    graph = qconvert.load(MODEL)
    name, q = graph.inputs[0], graph[graph.inputs[0]].quantization
    assert q is not None
    zeros = np.zeros(_shape(graph), np.float32)
    assert np.all(qconvert.run(MODEL, {name: zeros})[name] == q.zero_point[0])
    with refused(OptionError, "unknown-input", holds=("inputt", name)):
        qconvert.run(MODEL, {"inputt": zeros, name: zeros})
    with refused(OptionError, "missing-input", where=name):
        qconvert.run(MODEL, {})
    with refused(OptionError, "unknown-tensor", holds=("nothing",)):
        qconvert.run(MODEL, tensors=["nothing"])


@pytest.mark.end_to_end
def test_the_command_writes_every_tensor(tmp_path: Path) -> None:
    place = tmp_path / "tensors.npz"
    done = command("run", MODEL, "--save-all", "--samples", "3", "-o", place, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    with np.load(place) as found:
        assert said["inputs"] == 3 and {item["name"] for item in said["tensors"]} == set(found) and len(found) > 12
        assert found["Identity"].shape == (3, 1, 12)
    again = json.loads(command("run", MODEL, "--data", place, "--json").stdout)  # all inputs that are there
    assert again["inputs"] == 3 and again["tensors"][-1]["shape"] == [3, 1, 12]
    assert command("run", MODEL, "-o", place).returncode == 2
    assert command("run", MODEL, "-o", place, "-f", "-q").stdout == ""
    assert command("run", MODEL, "-o", tmp_path / "tensors.txt").returncode == 2
