"""The real models in fixtures/, from .tflite to .onnx, in their runtimes."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import onnx
import pytest

from qconvert import QConvertError, check, convert, load
from qconvert.formats.tflite.probe import accepted_copy
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"
COVERED = sorted(path for path in FIXTURES.glob("*.tflite") if not any(word in path.name for word in ("lstm", "svdf", "streaming")))
EQUAL = [path for path in COVERED if not any(word in path.name for word in ("ssd", "deeplab", "seanet"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("converted")


@pytest.fixture
def as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target ort-x86 is exact on any CPU without what the check does against saturation (runtimes/onnx_rewrites.py)."""
    monkeypatch.setattr("qconvert.runtimes.onnxruntime.cpu_saturates", lambda: False)


def converted(path: Path, folder: Path, target: str = "ort-x86") -> Path:
    """The model converted once a session."""
    result = folder / target / f"{path.stem}.onnx"
    if not result.exists():
        result.parent.mkdir(exist_ok=True)
        convert(path, result, target=target)
    return result


@pytest.mark.parametrize("path", COVERED, ids=lambda path: path.stem)
def test_converts_and_passes_the_checker(path: Path, folder: Path) -> None:
    model = onnx.load(converted(path, folder))
    onnx.checker.check_model(model, full_check=True)
    source = load(path)
    assert [item.name for item in model.graph.input] == list(source.inputs)
    assert [item.name for item in model.graph.output] == list(source.outputs)
    assert {item.key: item.value for item in model.metadata_props}["qconvert.source"] == path.name


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("path", EQUAL, ids=lambda path: path.stem)
def test_every_operator_and_every_output_is_equal(path: Path, folder: Path) -> None:
    report = check(path, converted(path, folder), samples=2, per_op=True, max_lsb=0)
    assert report.passed, report.problems
    assert {op.verdict for op in report.operators} == {"equal"}
    assert all(item.equal == 1 for item in report.outputs)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("name", ["coco_ssd_mobilenet_v1_uint8", "coral_deeplabv3_mnv2_dm05_uint8", "tflm_seanet_conv_int16x8"])
def test_operators_differ_by_one_step_where_kernels_do(name: str, folder: Path) -> None:
    path = FIXTURES / f"{name}.tflite"
    report = check(path, converted(path, folder), samples=1, per_op=True)
    assert report.passed, report.problems
    assert all(op.largest <= 1 for op in report.operators)
    assert sum(op.verdict != "equal" for op in report.operators) <= 2


@pytest.mark.usefixtures("as_users_run_it")
def test_reference_kernels_differ_by_one_rounding_as_predicted(folder: Path) -> None:
    path = FIXTURES / "tiny_vww_mobilenet_int8.tflite"
    report = check(path, converted(path, folder), samples=1, per_op=True, kernels="litert:reference")
    assert report.passed, report.problems
    rounded = [op for op in report.operators if op.verdict == "one rounding"]
    assert len(rounded) > 10
    assert all(op.largest == 1 and 1 - op.equal <= op.predicted_rate for op in rounded)


@pytest.mark.parametrize(
    ("name", "model"),
    [("resnet", "tiny_resnet_cifar10_int8"), ("vww", "tiny_vww_mobilenet_int8"), ("toycar", "tiny_ad_toycar_int8"), ("aww", "aww_int8")],
)
def test_golden_outputs_are_reproduced(name: str, model: str, folder: Path) -> None:
    from qconvert.data import load_inputs

    path = FIXTURES / f"{model}.tflite"
    graph = load(path)
    runtime = OnnxRuntime(converted(path, folder).read_bytes(), exact=False)
    (output,) = graph.outputs
    quantization = graph[output].quantization
    assert quantization is not None
    folder_of_inputs = FIXTURES / "mlperf_tiny" / name / "input"
    feeds, _ = load_inputs(graph, [folder_of_inputs], 10)
    if name == "resnet":  # pixels from 0 to 255 in bytes, for an int8 input
        pixels = [np.fromfile(folder_of_inputs / f"{number}.bin", np.uint8).astype(np.int16) for number in range(10)]
        feeds = [{graph.inputs[0]: (values - 128).astype(np.int8).reshape(1, 32, 32, 3)} for values in pixels]
    assert len(feeds) == 10
    for number, feed in enumerate(feeds):
        stored = runtime.run(feed)[output].astype(np.float32)
        real = (stored - np.float32(quantization.zero_point[0])) * quantization.scale[0]
        golden = np.fromfile(FIXTURES / "mlperf_tiny" / name / "output_tflite" / f"{number}.bin", np.float32)
        assert np.array_equal(real.reshape(-1), golden)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize("path", [p for p in COVERED if "mobilenet" in p.name and "vww" not in p.name], ids=lambda path: path.stem)
def test_same_label_on_photographs(path: Path, folder: Path) -> None:
    report = check(path, converted(path, folder), data=[str(FIXTURES / "images" / f"{n}.bmp") for n in ("cat", "grace")], samples=2)
    assert all(item.same_top1 in (None, 1) for item in report.outputs)
    assert all(item.largest <= (1e-4 if item.unit != "LSB" else 0) for item in report.outputs)


def transposes(model: Any) -> list[Any]:
    return [node for node in model.graph.node if node.op_type == "Transpose"]


@pytest.mark.parametrize("path", COVERED, ids=lambda path: path.stem)
def test_no_transpose_stands_inside_image_models(path: Path, folder: Path, tmp_path: Path) -> None:
    model = onnx.load(converted(path, folder))
    border = [item for item in (*model.graph.input, *model.graph.output) if len(item.type.tensor_type.shape.dim) == 4]
    shapes = [[dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in border]
    moving = [shape for shape in shapes if shape[3] != 1 and shape[1:3] != [1, 1]]
    if "ssd" not in path.name:
        # DeepLab's classes are interpolated channels last, to 240 times the elements (kernels/onnxruntime.py), after a Transpose.
        assert len(transposes(model)) <= len(moving) + ("deeplabv3" in path.name)
        return
    # The box and class heads are reshaped to rows of boxes, which needs their data in another order: ten heads of more than one
    # position. onnxruntime runs its convolutions channels last and cancels them all.
    assert len(transposes(model)) == 1 + 10
    OnnxRuntime(converted(path, folder).read_bytes(), save_optimized=tmp_path / "optimized.onnx")
    assert len(transposes(onnx.load(tmp_path / "optimized.onnx"))) <= 3


@pytest.mark.litert
def test_operators_that_are_not_covered_are_listed_at_once(tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    path = FIXTURES / "tflm_keyword_svdf_int8.tflite"
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes()))
    for code in model.operatorCodes:
        if code.builtinCode == schema.BuiltinOperator.SVDF:
            code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.SKIP_GRAM
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    (tmp_path / "odd.tflite").write_bytes(bytes(builder.Output()))
    with pytest.raises(QConvertError) as caught:
        convert(tmp_path / "odd.tflite", tmp_path / "result.onnx")
    assert caught.value.code == "unsupported-op"
    assert "SKIP_GRAM (7" in caught.value.reason
    assert [item.name for item in tmp_path.iterdir()] == ["odd.tflite"]


@pytest.mark.parametrize("target", ["ort-x86-vnni", "ort-arm", "generic"])
def test_other_targets_give_the_same_outputs(target: str, folder: Path) -> None:
    path = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    (folder / target).mkdir(exist_ok=True)
    report = check(path, converted(path, folder, target), samples=3, per_op=True)
    assert report.passed, report.problems
    weights = collections.Counter(i.data_type for i in onnx.load(converted(path, folder, target)).graph.initializer if len(i.dims) == 4)
    assert weights[onnx.TensorProto.UINT8] == 0


@pytest.mark.usefixtures("as_users_run_it")
def test_io_options(tmp_path: Path) -> None:
    path = FIXTURES / "tiny_vww_mobilenet_int8.tflite"
    convert(path, tmp_path / "nchw.onnx", io_layout="nchw")
    first = onnx.load(tmp_path / "nchw.onnx")
    assert [d.dim_value for d in first.graph.input[0].type.tensor_type.shape.dim][1:] == [3, 96, 96]
    assert not transposes(first)
    convert(path, tmp_path / "float.onnx", io="float")
    real = onnx.load(tmp_path / "float.onnx")
    assert {item.type.tensor_type.elem_type for item in (*real.graph.input, *real.graph.output)} == {onnx.TensorProto.FLOAT}
    for result in ("nchw", "float"):
        assert check(path, tmp_path / f"{result}.onnx", samples=2, max_lsb=0).passed


def test_a_bias_that_carries_quantized_dimension_3_is_read_and_mended() -> None:
    data = (FIXTURES / "tflm_person_detect_int8.tflite").read_bytes()
    with pytest.raises(QConvertError, match="LiteRT does not take the model"):
        LiteRT(data)
    assert LiteRT(accepted_copy(data)).inputs == {"input": ("int8", (1, 96, 96, 1))}
