"""Writing for MNN: the files of a folder, what MNN's converter makes of them, and what is said where it fails."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, convert, save
from qconvert.cli.conversion_summary import summary
from qconvert.encodings import Encodings
from qconvert.errors import MissingPackageError, OptionError, UnsupportedError
from qconvert.formats.mnn import writer
from qconvert.formats.mnn.pipeline import pipeline_json
from qconvert.formats.mnn.reader import read_encodings
from qconvert.version import __version__

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[3] / "fixtures"
RESNET = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
needs_mnn = pytest.mark.skipif(find_spec("MNN") is None, reason="MNN is not installed")


def layers(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "model.json").read_text())["algo"][0]["quantParams"]["layer"]
    return found


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mnn") / "out"
    convert(RESNET, folder, result_format="mnn", no_mnn=True)
    return folder


def test_nothing_is_suggested_for_a_file_that_was_not_made(tmp_path: Path) -> None:
    lines = summary(convert(RESNET, tmp_path / "out", result_format="mnn", no_mnn=True), False)
    assert not any(line.startswith("next:") for line in lines)
    words = "runs: 25 of 58 operators on integers (11 only convert), 33 in float"  # roundings, as they are written
    assert any(line.startswith(words) for line in lines)


def test_a_folder_holds_the_float_model_and_its_scales(resnet: Path) -> None:
    assert sorted(item.name for item in resnet.iterdir()) == ["model.json", "model.onnx"]
    model = onnx.load(resnet / "model.onnx")
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in model.graph.node}
    assert len(layers(resnet)) == 10 and all(len(layer["weight"][0]["scales"]) > 1 for layer in layers(resnet))
    document = json.loads((resnet / "model.json").read_text())
    assert document["version"] == "0.0.0" and document["forGuide"] is False


def test_layers_are_called_as_what_mnn_fuses(resnet: Path) -> None:
    """MNN fuses a Relu into the convolution before it, and the layer is called as the Relu's result; after an Add stands a Clip."""
    model = onnx.load(resnet / "model.onnx")
    writers = {name: node for node in model.graph.node for name in node.output}
    kinds = [writers[layer["output"][0]["name"]].op_type for layer in layers(resnet)]
    assert kinds.count("Relu") == 4 and kinds.count("Conv") == 6
    following = [node for node in model.graph.node if node.op_type == "Clip" and node.input[0].endswith("unlimited")]
    assert len(following) == 3
    assert all(writers[node.input[0]].op_type == "Conv" for node in model.graph.node if node.op_type == "Relu")


@pytest.mark.litert
def test_the_float_model_is_near_the_source(resnet: Path) -> None:
    from qconvert.runtimes.litert import LiteRT

    image = np.random.default_rng(0).integers(-128, 128, (1, 32, 32, 3)).astype(np.int8)
    expected = next(iter(LiteRT(RESNET.read_bytes()).run({"input_1_int8": image}).values()))
    session = onnxruntime.InferenceSession(resnet / "model.onnx")
    found = session.run(None, {"input_1_int8": image.astype(np.float32) + 128})[0]
    assert found.dtype == np.float32 and np.abs(found - (expected.astype(np.float32) + 128) / 256).max() < 0.1


def test_the_pipeline_as_protobuf_says_the_same(tmp_path: Path, resnet: Path) -> None:
    convert(RESNET, tmp_path / "out", result_format="mnn", no_mnn=True, pipeline="binary")
    data = (tmp_path / "out" / "model.bin").read_bytes()
    assert data.startswith(b"\x0a\x050.0.0") and not (tmp_path / "out" / "model.json").exists()
    for layer in layers(resnet):
        assert layer["output"][0]["name"].encode() in data
        assert b"".join(b"\x1d" + np.float32(scale).tobytes() for scale in layer["weight"][0]["scales"]) in data


def test_layers_that_are_to_stay_float_have_no_scales(tmp_path: Path) -> None:
    report = convert(RESNET, tmp_path / "out", result_format="mnn", no_mnn=True, float_layers="FULLY_CONNECTED")
    assert len(layers(tmp_path / "out")) == 9
    assert any("as asked for" in str(change) for change in report.changes)


def test_a_layer_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with refused(OptionError, "unknown-layer", holds=("FULLY_CONECTED",)) as caught:
        convert(RESNET, tmp_path / "out", result_format="mnn", no_mnn=True, float_layers="FULLY_CONECTED")
    assert "FULLY_CONNECTED #14" in caught.value.remedy and not list(tmp_path.iterdir())


def test_without_mnn_the_folder_says_so_and_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "is_installed", lambda: False)
    report = convert(RESNET, tmp_path / "out", result_format="mnn")
    assert any("pip install 'qconvert[mnn]'" in str(change) for change in report.changes)
    assert any("run in this folder: MNNConvert" in str(change) for change in report.changes)
    with pytest.raises(MissingPackageError):
        convert(RESNET, tmp_path / "model.mnn")
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("code", "rule", "holds"),
    [
        ("print('no such thing', flush=True); import os; os.abort()", "converter-failed", ("SIGABRT", "no such thing")),
        ("print('Converted Success!')", "converter-wrote-nothing", ("Converted Success!",)),
        ("raise SystemExit(3)", "converter-failed", (3,)),
        ("import time; time.sleep(60)", "converter-timeout", (1,)),
    ],
)
def test_a_converter_that_fails_is_reported_with_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, rule: str, holds: tuple[object, ...]
) -> None:
    monkeypatch.setattr(writer, "_CONVERT", code)
    with refused(UnsupportedError, rule, holds=holds):
        writer.run_converter([], tmp_path, "model.mnn", 1.0)


@pytest.mark.end_to_end
def test_nothing_is_left_where_the_converter_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_CONVERT", "import os; os.abort()")
    monkeypatch.setattr(writer, "is_installed", lambda: True)
    with refused(UnsupportedError, "converter-failed", holds=("SIGABRT",)) as caught:
        convert(RESNET, tmp_path / "out", result_format="mnn")
    assert "--no-mnn" in caught.value.remedy and not list(tmp_path.iterdir())


def test_no_command_is_named_where_the_network_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a .mnn file alone the files that the command takes are gone."""
    monkeypatch.setattr(writer, "is_installed", lambda: True)
    monkeypatch.setattr(writer, "run_converter", lambda _, folder, name: (folder / name).touch())
    monkeypatch.setattr(writer, "compare_layers", lambda *_: iter(()))
    report = convert(RESNET, tmp_path / "model.mnn")
    assert not any("MNNConvert" in str(change) for change in report.changes)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
def test_a_full_place_of_the_result_is_not_blamed_on_that_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "require_installed", lambda what: None)
    monkeypatch.setattr(writer, "_write_folder", lambda graph, path, options: (path / "model.mnn").write_bytes(bytes(5000)) and ())
    result = tmp_path / "result.mnn"
    result.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        writer.write(Graph("network", {}, [], [], []), result, {})


@pytest.mark.mnn
@needs_mnn
def test_a_file_alone(tmp_path: Path) -> None:
    convert(FIXTURES / "tiny_ad_toycar_int8.tflite", tmp_path / "model.mnn")
    assert [item.name for item in tmp_path.iterdir()] == ["model.mnn"] and (tmp_path / "model.mnn").stat().st_size > 100_000


@pytest.mark.mnn
@needs_mnn
def test_all_layers_are_int8_with_the_integers_and_scales_of_the_source(tmp_path: Path) -> None:
    report = convert(RESNET, tmp_path / "out", result_format="mnn", dump=True)
    words = "10 of 10 layers are int8, with 77360 equal integers of weights, equal scales and zero points"
    assert any(words in str(change) for change in report.changes)
    pipeline, made = (read_encodings(tmp_path / "out" / name, {}) for name in ("model.json", "model.mnn"))
    for place, encoding in pipeline.entries.items():
        if place.role == "tensor" or place.index == 1:
            assert made[place].qparams == encoding.qparams, place
    dump = read_encodings(tmp_path / "out" / "model.mnn.json", {"mnn": str(tmp_path / "out" / "model.mnn")})
    assert all(dump[place].qparams == encoding.qparams for place, encoding in pipeline.entries.items() if place.role == "tensor")


@pytest.mark.mnn
@needs_mnn
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 8), (640, 128)])
def test_a_network_that_ends_in_a_linear_layer(tmp_path: Path, outputs: int, inputs: int) -> None:
    """MNN's converter writes wrong weights for large Gemms, and calls the layer before an output otherwise."""
    rng = np.random.default_rng(0)
    scales = Quantization.per_axis(rng.uniform(0.001, 0.01, outputs), 0)
    tensors = {
        "x": Tensor("x", "int8", (1, inputs), None, Quantization.per_tensor(0.05, 3)),
        "w": Tensor("w", "int8", (outputs, inputs), rng.integers(-128, 128, (outputs, inputs)).astype(np.int8), scales),
        "y": Tensor("y", "int8", (1, outputs), None, Quantization.per_tensor(0.1, 5)),
    }
    save(Graph("linear", tensors, (Op("Gemm", ("x", "w"), ("y",)),), ("x",), ("y",)), tmp_path / "model.qgraph")
    report = convert(tmp_path / "model.qgraph", tmp_path / "model.mnn")
    assert any(f"1 of 1 layer is int8, with {outputs * inputs} equal integers" in str(change) for change in report.changes)


@pytest.mark.mnn
@pytest.mark.cross_section
@needs_mnn
def test_what_stays_float_is_named(tmp_path: Path) -> None:
    report = convert(FIXTURES / "tflm_seanet_conv_int16x8.tflite", tmp_path / "out", result_format="mnn")
    assert any("its data have quantization to int16, and MNN has int8 only" in str(change) for change in report.changes)


@pytest.mark.mnn
@needs_mnn
def test_weights_that_are_not_those_asked_for_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(layers: Any) -> str:
        return pipeline_json(replace(layer, scales=layer.scales * np.float32(1.5)) for layer in layers)

    monkeypatch.setattr(writer, "pipeline_json", scaled)
    with refused(UnsupportedError, "converter-changed-model"):
        convert(RESNET, tmp_path / "out", result_format="mnn")
    assert not list(tmp_path.iterdir())


def test_scales_alone_need_their_network(tmp_path: Path) -> None:
    with refused(OptionError, "graph-missing"):
        writer.write_scales(Encodings({}), None, tmp_path / "scales.json", {})


def test_a_layer_whose_bias_is_added_behind_its_rounding_stays_float(tmp_path: Path) -> None:
    """MNN would add the constant before it rounds, to a quantization that is not that of the sum."""
    report = convert(FIXTURES / "onnx" / "micro_kws_m_static_qdq.onnx", tmp_path / "out", result_format="mnn", no_mnn=True)
    said = [str(change) for change in report.changes]
    assert sum("MNN would take the Add" in text for text in said) == 3
    assert len(layers(tmp_path / "out")) == 3


@pytest.mark.mnn
@needs_mnn
@pytest.mark.parametrize(("groups", "activation"), [(2, ""), (2, "relu"), (8, "")])
def test_groups_of_a_convolution_are_layers_of_their_own(tmp_path: Path, groups: int, activation: str) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "x": Tensor("x", "int8", (1, 8, 5, 5), None, Quantization.per_tensor(0.05, 3)),
        "w": Tensor("w", "int8", (8, 8 // groups, 3, 3), rng.integers(-128, 128, (8, 8 // groups, 3, 3)).astype(np.int8),
                    Quantization.per_axis(rng.uniform(0.001, 0.01, 8), 0)),
        "y": Tensor("y", "int8", (1, 8, 3, 3), None, Quantization.per_tensor(0.1, -128)),
    }  # fmt: skip
    attributes = {
        "group": groups,
        "activation": activation,
        "data_format": "channels_first",
        "dilations": (1, 1),
        "strides": (1, 1),
        "pads": (0,) * 4,
    }
    save(Graph("groups", tensors, (Op("Conv", ("x", "w"), ("y",), attributes),), ("x",), ("y",)), tmp_path / "model.qgraph")
    report = convert(tmp_path / "model.qgraph", tmp_path / "model.mnn")
    count = 1 if groups == 8 else groups
    words = f"{count} of {count} {'layer is' if count == 1 else 'layers are'} int8, with {8 * 8 // groups * 9} equal integers"
    assert any(words in str(change) for change in report.changes)


def assert_refused(graph: Graph, folder: Path, *holds: object) -> None:
    """Expect that a conversion is refused for what MNN does not compute, and that the error has these names and sizes."""
    save(graph, folder / "model.qgraph")
    with refused(UnsupportedError, "target-rules", holds=holds) as caught:
        convert(folder / "model.qgraph", folder / "out", result_format="mnn", no_mnn=True)
    assert not (folder / "out").exists() and caught.value.remedy


def test_what_mnn_does_not_compute_is_refused_by_operator(tmp_path: Path) -> None:
    quantization, whole = Quantization.per_tensor(0.1), (1, 3, 5, 5, 5)
    weights = Tensor("w", "int8", (2, 3, 3, 3, 3), np.ones((2, 3, 3, 3, 3), np.int8), quantization)
    tensors = {
        tensor.name: tensor
        for tensor in (Tensor("x", "int8", whole, None, quantization), weights, Tensor("y", "int8", (1, 2, 3, 3, 3), None, quantization))
    }
    attributes = {"data_format": "channels_first", "strides": (1,) * 3, "dilations": (1,) * 3, "pads": (0,) * 6}
    graph = Graph("volume", tensors, (Op("Conv", ("x", "w"), ("y",), attributes, "Conv third"),), ("x",), ("y",))
    assert_refused(graph, tmp_path, "Conv third", "w", (2, 3, 3, 3, 3))


def test_tensors_without_elements_and_operands_of_other_sizes_are_refused(tmp_path: Path) -> None:
    quantization = Quantization.per_tensor(0.1)
    empty = {name: Tensor(name, "int8", (0, 3), None, quantization) for name in "xy"}
    assert_refused(Graph("empty", empty, (Op("Neg", ("x",), ("y",)),), ("x",), ("y",)), tmp_path, "Neg", (0, 3))
    condition = Tensor("c", "bool", (1, 3, 5, 5), np.ones((1, 3, 5, 5), bool))
    tensors = {
        name: Tensor(name, "int8", shape, None, quantization) for name, shape in (("x", (1, 3, 5, 5)), ("z", (5,)), ("y", (1, 3, 5, 5)))
    }
    graph = Graph("chosen", {"c": condition, **tensors}, (Op("Where", ("c", "x", "z"), ("y",)),), ("x", "z"), ("y",))
    (tmp_path / "model.qgraph").unlink()
    assert_refused(graph, tmp_path, "z", (5,), (1, 3, 5, 5))


@pytest.mark.mnn
@needs_mnn
def test_operators_that_the_converter_does_not_have_are_named(tmp_path: Path) -> None:
    with refused(UnsupportedError, "converter-lacks-operator", holds=("MatMulInteger",)):
        convert(FIXTURES / "onnx" / "ort_matmul_integer_to_float_int8.onnx", tmp_path / "model.mnn")


def test_integers_that_mnn_chooses_otherwise_are_refused(tmp_path: Path) -> None:
    with refused(UnsupportedError, "target-rules", holds=("DynamicQuantizeLinear",)):
        convert(FIXTURES / "onnx" / "ort_dynamic_quantize_matmul_bias_b_no_zp.onnx", tmp_path / "out", result_format="mnn", no_mnn=True)


@pytest.mark.mnn
@needs_mnn
def test_a_mnn_file_says_what_made_it(tmp_path: Path) -> None:
    convert(RESNET, tmp_path / "model.mnn")
    code = read_encodings(tmp_path / "model.mnn", {}).metadata["mnn.biz_code"]
    assert code == f"qconvert-{__version__}-{hashlib.sha256(RESNET.read_bytes()).hexdigest()[:16]}"


@needs_mnn
@pytest.mark.mnn
def test_a_network_quantized_in_float16_is_computed_in_float32(tmp_path: Path) -> None:
    """MNN's CPU computes in float32; the integers of the layer and its scales are the source's."""
    integers = np.random.default_rng(0).integers(-10, 10, (4, 3, 3, 3)).astype(np.int8)
    steps, weights = Quantization.per_tensor(0.0498046875), Quantization.per_tensor(0.010009765625)  # exact in float16
    attributes = {"data_format": "channels_first", "dilations": (1, 1), "strides": (1, 1), "pads": (0,) * 4}
    tensors = [
        Tensor("x", "float16", (1, 3, 8, 8)), Tensor("xq", "int8", (1, 3, 8, 8), None, steps), Tensor("y", "float16", (1, 4, 6, 6)),
        Tensor("yq", "int8", (1, 4, 6, 6), None, steps), Tensor("w", "int8", integers.shape, integers, weights),
    ]  # fmt: skip
    ops = (
        Op("Quantize", ("x",), ("xq",)),
        Op("Conv", ("xq", "w"), ("yq",), attributes),
        Op("Dequantize", ("yq",), ("y",)),
    )
    graph = Graph("halves", {item.name: item for item in tensors}, ops, ("x",), ("y",))
    said = convert(graph, tmp_path / "out", result_format="mnn").changes
    assert any("1 of 1 layer is int8, with 108 equal integers" in str(change) for change in said)
