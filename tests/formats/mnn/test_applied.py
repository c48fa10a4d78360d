"""MNN's documents applied to the float networks that they belong to: every scale and integer of theirs is in the result, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from refusals import refused

from qconvert import Encodings, Graph, apply, convert, load, load_encodings
from qconvert.errors import InvalidModelError, OptionError
from qconvert.operators import KINDS

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[3] / "fixtures" / "mnn"
SHARED = Path(__file__).parents[4] / "shared" / "models" / "mnn"
DOCUMENTS = ("KL_dump.json", "ADMM_dump.json", "pipeline.json", "pipeline.bin", "KL.mnn", "ADMM.mnn", "EMA.mnn", "pipeline.mnn")
SAMPLES = (
    "mnnquant_3.6.1_KL_resnet8_dump.json",
    "mnnquant_3.6.1_ADMM_resnet8_dump.json",
    "pipeline_resnet8_affine.json",
    "pipeline_resnet8_affine.bin",
    "pipeline_resnet8_symmetric.json",
    "resnet8_from_pipeline.mnn",
)
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the samples of ../shared/models/mnn are not here")


def read(name: str) -> Encodings:
    return load_encodings(FIXTURES / name, **({"mnn": str(FIXTURES / "float.mnn")} if name == "EMA.mnn" else {}))


def quantizations(graph: Graph) -> set[tuple[bytes, bytes]]:
    """(scales, zero points) of all tensors."""
    found = [tensor.quantization for tensor in graph.tensors.values() if tensor.quantization is not None]
    return {(q.scale.tobytes(), q.zero_point.tobytes()) for q in found}


def stated(encodings: Encodings) -> set[tuple[bytes, bytes]]:
    return {
        (item.qparams.quantization.scale.tobytes(), item.qparams.quantization.zero_point.tobytes())
        for item in encodings.entries.values()
        if item.qparams is not None
    }


def integer_layers(graph: Graph) -> int:
    return sum(KINDS[op.kind].sums_products and graph[op.outputs[0]].dtype == "int8" for op in graph.ops)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_layer_has_integers_on_the_quantizations_of_the_document(name: str) -> None:
    encodings = read(name)
    found = apply(load(FIXTURES / "float.onnx"), encodings)
    assert integer_layers(found) == 4
    assert stated(encodings) <= quantizations(found)


@pytest.mark.parametrize("name", ["groups.mnn", "groups_dump.json"])
def test_a_convolution_in_groups_is_one(name: str) -> None:
    encodings = load_encodings(FIXTURES / name)
    found = apply(load(FIXTURES / "groups.onnx"), encodings)
    assert integer_layers(found) == 3 and stated(encodings) <= quantizations(found)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name.endswith(".mnn")])
def test_the_integers_of_a_network_are_in_the_result(name: str) -> None:
    encodings = read(name)
    found = apply(load(FIXTURES / "float.onnx"), encodings)
    stored = {tensor.data.tobytes() for tensor in found.tensors.values() if tensor.data is not None}
    integers = [item.integers for item in encodings.entries.values() if item.integers is not None]
    assert len(integers) == 4 and all(item.tobytes() in stored for item in integers)


@pytest.mark.cross_section
@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("weights_*.mnn")))
def test_weights_alone(name: str) -> None:
    """Data stay real; weights have MNN's quantizations, and its integers where these stand for what MNN computes with."""
    encodings = load_encodings(FIXTURES / name)
    found = apply(load(FIXTURES / "layers.onnx"), encodings)
    weights = [found[op.inputs[0]] for op in found.ops if op.kind == "Dequantize"]
    assert len(weights) == 5 and stated(encodings) == {
        (tensor.quantization.scale.tobytes(), tensor.quantization.zero_point.tobytes()) for tensor in weights if tensor.quantization
    }
    stored = {tensor.data.tobytes() for tensor in weights if tensor.data is not None}
    assert all(item.integers is None or item.integers.tobytes() in stored for item in encodings.entries.values())


def test_weights_that_a_dump_leaves_out_are_those_of_the_network_beside_it() -> None:
    """max|w| / 127 of each channel, as MNN has them; a scale differs by no bit, and no integer does."""
    graph = load(FIXTURES / "float.onnx")
    found = [apply(graph, read(name)) for name in ("KL_dump.json", "KL.mnn")]
    layers = [[op for op in item.ops if KINDS[op.kind].sums_products] for item in found]
    assert len(layers[0]) == len(layers[1]) == 4
    for first, second in zip(*layers, strict=True):
        a, b = found[0][first.inputs[1]], found[1][second.inputs[1]]
        assert a.quantization is not None and b.quantization is not None
        assert np.array_equal(a.quantization.scale, b.quantization.scale) and np.array_equal(a.data, b.data)


@needs_samples
@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_give_a_quantized_onnx_of_their_scales(name: str, tmp_path: Path) -> None:
    encodings = load_encodings(SHARED / name)
    result = tmp_path / "q.onnx"
    convert(SHARED / "resnet8_float.onnx", result, encodings=str(SHARED / name))
    model = onnx.load(result)
    found = {
        numpy_helper.to_array(item).astype(np.float32).reshape(-1).tobytes() for item in model.graph.initializer if item.data_type == 1
    }
    missing = {scales for scales, _ in stated(encodings)} - found
    assert not missing
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") == 9 and "QuantizeLinear" in kinds
    assert integer_layers(apply(load(SHARED / "resnet8_float.onnx"), encodings)) == 10


@pytest.mark.parametrize(("name", "least"), [("KL", 25), ("ADMM", 33)])
def test_the_result_computes_what_mnn_computes(name: str, least: float, tmp_path: Path) -> None:
    """In onnxruntime, next to MNN's own outputs of the .mnn: signal to difference in dB. MNN rounds averages and sums in another way."""
    result = tmp_path / "q.onnx"
    convert(FIXTURES / "float.onnx", result, encodings=str(FIXTURES / f"{name}.mnn"))
    session = onnxruntime.InferenceSession(result)
    inputs = np.random.default_rng(5).normal(size=(16, 1, 3, 24, 24)).astype(np.float32)
    ours = np.concatenate([session.run(None, {"x": values})[0] for values in inputs])
    with np.load(FIXTURES / "values.npz") as values:
        theirs = values[f"{name}/y"]
    assert ours.shape == theirs.shape and np.abs(theirs).max() > 0.3
    assert 10 * np.log10((theirs**2).sum() / ((ours - theirs) ** 2).sum()) > least


def test_a_network_is_read_for_its_scales_alone() -> None:
    with refused(OptionError, "networks-not-read") as caught:
        load(FIXTURES / "KL.mnn")
    assert "qconvert apply FLOAT.onnx KL.mnn" in caught.value.remedy


@pytest.mark.end_to_end
def test_a_dump_of_zeros_ends_the_command_line_with_one_error(tmp_path: Path) -> None:
    words = ["apply", str(FIXTURES / "float.onnx"), str(FIXTURES / "EMA_dump.json"), "-o", str(tmp_path / "q.onnx")]
    done = subprocess.run([sys.executable, "-m", "qconvert", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "every scale is 0" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_names_tensors_is_given_beside(tmp_path: Path) -> None:
    """By `--mnn` of apply and convert, for a .mnn whose layers have lost their names."""
    result = tmp_path / "q.onnx"
    with refused(InvalidModelError, "names-lost"):
        convert(FIXTURES / "float.onnx", result, encodings=str(FIXTURES / "EMA.mnn"))
    convert(FIXTURES / "float.onnx", result, encodings=str(FIXTURES / "EMA.mnn"), mnn=str(FIXTURES / "float.mnn"))
    assert stated(read("EMA.mnn")) and result.exists()
    with refused(OptionError, "option-not-applicable"):
        convert(FIXTURES / "float.onnx", result, encodings=str(FIXTURES / "pipeline.json"), mnn=str(FIXTURES / "float.mnn"), force=True)
