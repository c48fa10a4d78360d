"""Reports of conversions count the operators of the file that was written, those that its writer added too."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import onnx
import pytest
from refusals import refused

from qconvert import convert
from qconvert.cli.conversion_summary import summary
from qconvert.conversion.report import on_floats
from qconvert.errors import UnsupportedError
from qconvert.formats.onnx.container import open_model
from qconvert.formats.onnx.reader import read_inferred
from qconvert.formats.reading.quantizations import fuse_quantized_ops
from qconvert.formats.tflite.file_contents import contents
from qconvert.operators.shapes_and_functions import all_ops
from qconvert.plugins import target_named

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two convolutions, trained with quantization, converted by PyTorch and traced: its first rounding is PyTorch's own."""
    quantization = torch.ao.quantization
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("trained") / "qat.pt"
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3), torch.nn.ReLU()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = quantization.QuantWrapper(torch.nn.Sequential(*layers)).train()
        network = quantization.fuse_modules_qat(network, [["module.0", "module.1"], ["module.2", "module.3"]])
        network.qconfig = quantization.get_default_qat_qconfig("x86")
        network = quantization.prepare_qat(network)
        data = torch.randn(4, 3, 12, 12)
        network(data)
        network = quantization.convert(network.eval())
        torch.jit.trace(network, data[:1]).save(str(path))
    return path


@pytest.mark.cross_section
def test_operators_that_the_writer_adds_are_counted(trained: Path, tmp_path: Path) -> None:
    result = tmp_path / "a.tflite"
    report = convert(trained, result)
    written = Counter(contents(result)["operators"])
    assert sum(report.operators.values()) == sum(written.values()) > 10
    floats = {"ADD": "Add", "MUL": "Mul", "SUB": "Sub"}
    assert dict(report.on_floats) == {kind: written[name] for name, kind in floats.items()}
    total, floats = sum(written.values()), sum(report.on_floats.values())
    words = f"runs: {total - floats} of {total} operators on integers ({written['QUANTIZE'] + written['DEQUANTIZE']} only convert)"
    assert f"{words}, {floats} in float" in "".join(summary(report, False))


def test_operators_on_floats_that_the_writer_adds_are_forbidden(trained: Path, tmp_path: Path) -> None:
    result = tmp_path / "a.tflite"
    with refused(UnsupportedError, "float-operators", holds=("Add", "Mul", "Sub")):
        convert(trained, result, no_float=True)
    assert not result.exists()
    report = convert(trained, result, no_float=True, numerics="fast")
    assert not report.on_floats and {"ADD", "MUL", "SUB"}.isdisjoint(contents(result)["operators"])


def test_operators_that_an_onnx_file_spells_out_are_counted(tmp_path: Path) -> None:
    result = tmp_path / "a.onnx"
    report = convert(FIXTURES / "tflm_keyword_svdf_int8.tflite", result)
    nodes = Counter(node.op_type for node in onnx.load(result).graph.node)
    floats = {"Floor": 16, "MatMul": 7, "ReduceSum": 7}  # of seven IntegerSVDF
    assert {kind: report.on_floats[kind] for kind in floats} == {kind: nodes[kind] for kind in floats} == floats
    assert "IntegerSVDF" not in report.operators
    assert " in float (" in "".join(summary(report, False))


@pytest.mark.parametrize(
    "name", ["coco_ssd_mobilenet_v1_uint8", "coral_lstm_mnist_int8", "tflm_mobilenet_v2_from_torch_int8", "tiny_resnet_cifar10_int8"]
)
def test_nodes_that_are_read_alone_are_those_of_the_whole_file(name: str, tmp_path: Path) -> None:
    result = tmp_path / "a.onnx"
    report = convert(FIXTURES / f"{name}.tflite", result)
    whole = fuse_quantized_ops(read_inferred(open_model(result, infer=False), "", again=True))
    target = target_named(report.target)
    assert dict(report.on_floats) == on_floats(whole, target)
    elided = ("Requantize", "Identity", "Reinterpret")  # which are read as nothing apart from the same scales
    counts = Counter(op.kind for op in all_ops(whole) if op.kind not in elided)
    assert {kind: count for kind, count in report.operators.items() if kind not in elided} == counts


def test_programs_of_pytorch_compute_on_floats_where_they_spell_out_integers(tmp_path: Path) -> None:
    model = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    exact = convert(model, tmp_path / "a.pt2")
    calls = Counter(str(node.target) for node in torch.export.load(tmp_path / "a.pt2").graph.nodes)
    assert exact.on_floats["Round"] == calls["aten.round.default"] == 12
    assert exact.on_floats["Conv"] == calls["aten.conv2d.default"] + calls["aten.convolution.default"] == 9
    assert not convert(model, tmp_path / "b.pt2", numerics="fast").on_floats


def test_roundings_and_float_layers_in_a_folder_for_mnn_are_counted(tmp_path: Path) -> None:
    result = tmp_path / "a"
    report = convert(FIXTURES / "onnx" / "micro_kws_m_static_qdq.onnx", result, result_format="mnn", no_mnn=True)
    nodes = Counter(node.op_type for node in onnx.load(result / "model.onnx").graph.node)
    assert report.on_floats["Div"] == nodes["Div"] == 10
    (said,) = (change.text for change in report.changes if " stay float" in change.text)
    assert said == "3 layers have scales for int8, 3 stay float" and (report.operators["Conv"], report.on_floats["Conv"]) == (6, 3)


@pytest.mark.mnn
def test_reports_say_that_a_file_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("MNN")
    model = FIXTURES / "tflm_person_detect_int8.tflite"
    said = "note: operators were counted before they were written: "
    of_mnn = convert(model, tmp_path / "a.mnn")
    assert f"{said}files of the format mnn are not read" in [change.text for change in of_mnn.changes]
    of_cache = convert(model, tmp_path / "a.onnx", target="tensorrt", calibration_cache=str(tmp_path / "a.cache"))
    assert f"{said}the scales are in a file of their own" in [change.text for change in of_cache.changes]
    assert not any(said in change.text for change in convert(model, tmp_path / "b.onnx").changes)


@pytest.mark.formats
def test_a_file_of_an_earlier_version_is_read_with_a_warning(tmp_path: Path) -> None:
    """Entries of metadata have a schema: those of another one are not used, and the report says so."""
    import onnx

    source = FIXTURES / "tiny_ad_toycar_int8.tflite"
    convert(source, tmp_path / "new.onnx")
    model = onnx.load(tmp_path / "new.onnx")
    entries = {item.key: item for item in model.metadata_props}
    assert entries["qconvert.schema"].value == "2"
    model.metadata_props.remove(entries["qconvert.schema"])
    onnx.save(model, tmp_path / "old.onnx")
    reports = {name: convert(tmp_path / f"{name}.onnx", tmp_path / f"{name}.tflite") for name in ("new", "old")}
    said = {name: [text for text in map(str, report.changes) if "written by" in text] for name, report in reports.items()}
    assert said["new"] == [] and len(said["old"]) == 1 and "warning" in said["old"][0]
