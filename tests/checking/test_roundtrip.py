"""roundtrip(): what survives a conversion and the way back, and what is said of what does not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import forked
import numpy as np
import pytest
from onnx_models import path_of
from onnx_nodes import model_of
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model

from qconvert import Graph, Op, Quantization, Tensor, convert, diff, load, roundtrip
from qconvert.checking.comparison_forms import to_plain_form
from qconvert.errors import FileAccessError, OptionError
from qconvert.rules.validation import validate

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
RESNET = FIXTURES / "onnx" / "tf2onnx_tiny_resnet_cifar10_int8.onnx"
KWS = FIXTURES / "tiny_kws_dscnn_int8.tflite"
EXPORTED = (
    "tf2onnx_tiny_wakeword_int8", "torch_fx_qnnpack_vision", "torch_pt2e_xnnpack_attention", "modelopt_ptq_vision", "brevitas_dynamo",
)  # fmt: skip


@pytest.mark.parametrize("via", ["onnx:qdq", "onnx:qoperator", "qgraph"])
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_models(name: str, via: str) -> None:
    report = roundtrip(FIXTURES / "onnx" / f"{name}.onnx", via, samples=2)
    assert report.passed, [leg.problems for leg in report.legs]
    assert [leg.form for leg in report.legs] == [via, "onnx:qdq"]
    for leg in report.legs:
        assert leg.differences == ()
        assert leg.kept.constants == leg.kept.constants_equal > 0
        assert leg.kept.scales == leg.kept.scales_equal > 0
    back = report.legs[-1]
    assert all(item.equal == 1 for item in back.outputs)


@pytest.mark.parametrize("target", ["ort-x86-vnni", "portable"])
def test_forms_that_the_reader_takes_back_are_no_differences(target: str) -> None:
    """Blocks of pixels, and data movement and a Softmax in float."""
    report = roundtrip(FIXTURES / "tiny_vww_mobilenet_int8.tflite", "onnx:qdq", target=target, samples=1)
    assert report.passed and not any(leg.differences for leg in report.legs)


@pytest.mark.parametrize("name", ["mobile-U8U8-qoperator", "mobile-S8S8-pc-qdq", "encoder-U8S8-qoperator", "gemm-U8S8-pc-qoperator"])
def test_quantized_by_onnxruntime(name: str, tmp_path: Path) -> None:
    own = "onnx:" + name.rpartition("-")[2]
    other = "onnx:qdq" if own == "onnx:qoperator" else "onnx:qoperator"
    report = roundtrip(path_of(name, tmp_path), other, times=2)
    assert report.passed, [leg.problems for leg in report.legs]
    assert report.form == own
    assert [leg.form for leg in report.legs] == [other, own, other, own]
    assert all(item.equal == 1 for leg in report.legs[1::2] for item in leg.outputs)
    assert all("integer kernels" in leg.arithmetic for leg in report.legs[::2])


def test_outputs_that_differ_by_arithmetic_name_the_operator(tmp_path: Path) -> None:
    """QLinearSoftmax multiplies by the whole part of 1 / scale; QDQ without optimizations does not."""
    report = roundtrip(path_of("mobile-S8S8-qdq", tmp_path), "onnx:qoperator")
    there = report.legs[0]
    assert report.passed
    assert there.outputs[0].equal < 1
    assert there.explained == "1 operator: approximate (coarse arithmetic of onnxruntime's kernel)"


@pytest.mark.litert
@pytest.mark.parametrize("via", ["onnx:qdq", "onnx:qoperator", "qgraph"])
def test_tflite_models(via: str) -> None:
    report = roundtrip(KWS, via, times=2, samples=1)
    there = [leg for leg in report.legs if leg.form == via]
    assert (report.form, len(there)) == ("tflite", 2)
    for leg in there:
        assert (leg.differences, leg.problems) == ((), ())
        if via == "qgraph":
            assert (leg.outputs, leg.arithmetic) == ((), "no runtime runs qgraph files")
        else:
            assert all(item.largest <= 1 for item in leg.outputs)


def test_files_are_kept_and_hold_the_same_graph(tmp_path: Path) -> None:
    roundtrip(RESNET, "onnx:qoperator", keep=tmp_path / "kept", samples=1)
    there, back = sorted((tmp_path / "kept").iterdir())
    assert [there.name, back.name] == [f"{RESNET.stem}.1.qoperator.onnx", f"{RESNET.stem}.2.qdq.onnx"]
    assert diff(load(there), load(RESNET)) == diff(load(back), load(RESNET)) == []
    with refused(FileAccessError, "file-exists"):
        roundtrip(RESNET, "onnx:qoperator", keep=tmp_path / "kept")


@pytest.mark.litert
def test_what_has_no_way_back_is_named() -> None:
    """DequantizeLinear takes no int64, so the bias of 16-bit sums comes back as int32."""
    report = roundtrip(FIXTURES / "tflm_seanet_conv_int16x8.tflite", "onnx:qdq", samples=1)
    leg = report.legs[0]
    assert not report.passed
    assert leg.kept.constants_equal == leg.kept.constants - 1
    assert "type int64 -> int32" in leg.problems[0]


@pytest.mark.litert
def test_operators_that_onnx_spells_out_come_back() -> None:
    report = roundtrip(FIXTURES / "coco_ssd_mobilenet_v1_uint8.tflite", "onnx:qdq", samples=1)
    assert report.legs[0].differences == ()


@pytest.mark.parametrize(
    ("via", "options", "rule", "named"),
    [
        ("onnx:other", {}, "unknown-form", "'other'"),
        ("qgraph:qdq", {}, "no-forms", "'qdq'"),
        ("none", {}, "unknown-format", "'none'"),
        ("onnx:qdq", {"times": 0}, "number-out-of-range", "1000"),
        ("onnx:qdq", {"target": "none"}, "unknown-target", "'none'"),
        ("qgraph", {"target": "ort-x86"}, "target-of-other-format", "ort-x86"),
    ],
)
def test_options_that_do_not_exist(via: str, options: dict[str, object], rule: str, named: str) -> None:
    with refused(OptionError, rule, holds=(named,)):
        roundtrip(KWS, via, **options)  # type: ignore[arg-type]


@pytest.mark.cross_section
def test_a_target_is_taken_for_the_way(tmp_path: Path) -> None:
    report = roundtrip(RESNET, "onnx:qdq", target="ort-x86", keep=tmp_path, samples=1)
    assert report.passed
    assert any(change.by == "store_activations" for change in report.legs[0].changes)
    written = load(tmp_path / f"{RESNET.stem}.1.qdq.onnx")
    assert {written[op.outputs[0]].dtype for op in written.ops if op.kind == "Conv"} == {"uint8"}


@pytest.mark.parametrize(
    ("activation", "zero_point", "scale", "plainer"),
    [
        ("relu", -128, 0.1, ""),
        ("relu", 0, 0.1, "relu"),
        ("relu6", -128, 6 / 255, ""),
        ("relu6", 0, 6 / 127, "relu"),
        ("relu6", 0, 1.0, "relu6"),
    ],
)
def test_plain_drops_activations_that_the_quantization_implies(activation: str, zero_point: int, scale: float, plainer: str) -> None:
    quantization = Quantization.per_tensor(scale, zero_point)
    tensors = {name: Tensor(name, "int8", (2,), quantization=quantization) for name in "xy"}
    op = Op("Add", ("x", "x"), ("y",), {"activation": activation, "arithmetic": "xnnpack"})
    graph, notes = to_plain_form(Graph("made", tensors, (op,), ("x",), ("y",)))
    assert (graph.ops[0]["activation"], graph.ops[0]["arithmetic"]) == (plainer, "")
    assert len(notes) == 1 + (plainer != activation)
    assert to_plain_form(graph) == (graph, ())


def test_plain_gives_one_scale_along_an_axis_to_the_whole_tensor() -> None:
    """An axis of one index: onnxruntime's QOperator kernels take the scale as one for all."""
    tensors = {
        "x": Tensor("x", "int8", (3, 1), quantization=Quantization.per_axis([0.5], 1, 3)),
        "y": Tensor("y", "float32", (3, 1)),
        "z": Tensor("z", "int8", (1, 2), quantization=Quantization.per_axis([0.5, 0.25], 1)),
        "w": Tensor("w", "float32", (1, 2)),
    }
    ops = (Op("Dequantize", ("x",), ("y",)), Op("Dequantize", ("z",), ("w",)))
    graph, (note,) = to_plain_form(Graph("made", tensors, ops, ("x", "z"), ("y", "w")))
    validate(graph)
    assert graph["x"].quantization == Quantization.per_tensor(0.5, 3)
    assert graph["z"] == tensors["z"]
    assert note.startswith("1 tensor ")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments)


@pytest.mark.end_to_end
def test_command_line() -> None:
    done = run("roundtrip", RESNET, "onnx:qoperator", "--samples", "1")
    assert done.returncode == 0, done.stderr
    assert "onnx:qoperator" in done.stdout.replace("\n", "")
    integers = sum(t.data.size for t in load(RESNET).constants() if t.is_quantized and t.data is not None)
    assert f"passed: {integers} quantized integers in" in done.stdout
    failed = run("roundtrip", FIXTURES / "tflm_seanet_conv_int16x8.tflite", "onnx", "--samples", "1", "--json")
    assert failed.returncode == 1
    document = json.loads(failed.stdout)
    assert (document["passed"], document["via"], document["legs"][0]["form"]) == (False, "onnx:qdq", "onnx:qdq")
    refused = run("roundtrip", KWS, "none")
    assert refused.returncode == 2
    assert "error: there is no format 'none'" in refused.stderr
    assert run("roundtrip", RESNET, "qgraph", "--quiet").stdout == ""


def test_a_wrong_integer_in_the_model_itself_goes_both_ways(tmp_path: Path) -> None:
    """The reference is the model's own graph: nothing is repaired on the way."""
    convert(KWS, tmp_path / "a.qgraph")
    graph = load(tmp_path / "a.qgraph")
    weights = next(t for t in graph.constants() if t.dtype == "int8")
    assert weights.data is not None
    report = roundtrip(tmp_path / "a.qgraph", "onnx:qoperator", keep=tmp_path / "kept")
    back = load(tmp_path / "kept" / "a.2.qgraph")
    assert report.passed
    found = [t.data for t in back.constants() if t.data is not None and t.data.size == weights.data.size and t.dtype == "int8"]
    assert any(np.array_equal(np.sort(data, axis=None), np.sort(weights.data, axis=None)) for data in found)


@pytest.mark.parametrize("filler", [None, 0, 3, -7], ids=str)
@pytest.mark.parametrize("kind", ["Pad", "Concat"])
def test_integers_that_join_before_they_get_a_scale(kind: str, filler: int | None, tmp_path: Path) -> None:
    """The scale stands after the movement alone; without a value, Pad adds the integer 0, which is not real zero here."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {"scale": np.float32(0.5), "zero": np.int8(3), "pads": np.array([0, 1, 0, 2]), "value": np.int8(filler or 0)}
    inputs = ["x", "pads", *(["value"] if filler is not None else [])]
    join = helper.make_node("Pad", inputs, ["p"]) if kind == "Pad" else helper.make_node("Concat", ["x", "x2"], ["p"], axis=1)
    values = [helper.make_tensor_value_info(name, TensorProto.INT8, [2, 4]) for name in (["x"] if kind == "Pad" else ["x", "x2"])]
    graph = helper.make_graph(
        [join, helper.make_node("DequantizeLinear", ["p", "scale", "zero"], ["y"])],
        "made",
        values,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )
    onnx.save(model_of(graph), tmp_path / "m.onnx")
    report = roundtrip(tmp_path / "m.onnx", "onnx:qdq")
    assert report.passed, [leg.problems for leg in report.legs]
    assert all(item.equal == 1 for leg in report.legs for item in leg.outputs)


@pytest.mark.litert
def test_a_padding_before_the_first_scale_of_a_real_model() -> None:
    report = roundtrip(FIXTURES / "tflm_mobilenet_v2_from_torch_int8.tflite", "onnx:qdq", samples=1)
    assert report.legs[0].problems == ()


THROUGH_TFLITE = (
    "brevitas_int8", "torch_fx_qnnpack_vision", "torch_pt2e_xnnpack_vision", "tf2onnx_tiny_wakeword_int8", "micro_kws_m_static_qdq",
    "modelopt_ptq_vision", "mobile-U8S8-pc-qoperator", "conv_no_bias-U8S8-qdq", "unsqueeze-U8S8-qdq",
)  # fmt: skip


@pytest.mark.litert
@pytest.mark.parametrize("name", THROUGH_TFLITE)
def test_onnx_through_tflite(name: str, tmp_path: Path) -> None:
    """int8 storage and int32 biases are the fitted graph's; what TFLite writes otherwise is no difference."""
    path = FIXTURES / "onnx" / f"{name}.onnx"
    report = roundtrip(path if path.exists() else path_of(name, tmp_path), "tflite", samples=2)
    assert report.passed, [leg.problems for leg in report.legs]
    there, back = report.legs
    assert (there.form, back.form) == ("tflite", report.form)
    for leg in report.legs:
        assert leg.differences == ()
        assert leg.kept.constants == leg.kept.constants_equal > 0
        assert leg.kept.scales == leg.kept.scales_equal > 0
    assert "LiteRT's kernels" in there.arithmetic


@pytest.mark.litert
def test_a_model_of_the_longest_name(tmp_path: Path) -> None:
    """Names of the files on the way have more after them, and file systems take 255 bytes."""
    for letter, folder in (("x", "x"), ("\u00e4", "umlauts")):
        path = tmp_path / f"{letter * (247 // len(letter.encode()))}.tflite"
        path.write_bytes((FIXTURES / "tiny_ad_toycar_int8.tflite").read_bytes())
        assert roundtrip(path, "onnx:qdq", samples=1, keep=tmp_path / folder).passed
        assert sorted(item.name for item in (tmp_path / folder).iterdir()) == [f"{letter * 50}.1.qdq.onnx", f"{letter * 50}.2.tflite"]


@pytest.mark.litert
def test_what_tflite_has_no_operator_for_is_named(tmp_path: Path) -> None:
    report = roundtrip(path_of("layer_normalization-S8S8-qdq", tmp_path), "tflite", samples=1)
    there = report.legs[0]
    assert not report.passed
    assert "- LayerNormalization 'y_QuantizeLinear_Output'" in there.problems[0]
    assert there.kept.scales == there.kept.scales_equal


@pytest.mark.litert
@pytest.mark.parametrize("name", ["tiny_kws_dscnn_int8", "coral_mobilenet_v1_025_128_uint8", "tflm_person_detect_int8"])
def test_tflite_through_tflite_is_the_same_bit_for_bit(name: str) -> None:
    report = roundtrip(FIXTURES / f"{name}.tflite", "tflite", samples=2)
    assert report.passed, [leg.problems for leg in report.legs]
    for leg in report.legs:
        assert (leg.differences, leg.arithmetic) == ((), "")
        assert all(item.equal == 1 for item in leg.outputs)


@pytest.mark.litert
@pytest.mark.parametrize("via", ["onnx:qoperator", "qgraph", "tflite"])
def test_what_a_conversion_spelled_out_to_round_as_its_source_comes_back(via: str, tmp_path: Path) -> None:
    """An average and additions with TFLite's rounding are plain operators on the way, so ties may go the other way."""
    convert(FIXTURES / "tiny_resnet_cifar10_int8.tflite", tmp_path / "model.onnx")
    report = roundtrip(tmp_path / "model.onnx", via)
    assert report.passed, [leg.problems for leg in report.legs]
    assert all(output.largest <= 1 for leg in report.legs for output in leg.outputs)


@pytest.mark.litert
@pytest.mark.parametrize("via", ["onnx:qdq", "qgraph"])
def test_a_tensor_that_a_file_gives_out_twice_comes_back(via: str, tmp_path: Path) -> None:
    """ONNX has an Identity for the second name, which TFLite holds as a RESHAPE."""
    x, y = (TensorSpec(name, (1, 8), "float32") for name in "xy")
    (tmp_path / "m.tflite").write_bytes(model([OpSpec("RELU", ["x"], ["y"])], [x, y], ["x"], ["y", "y"]))
    report = roundtrip(tmp_path / "m.tflite", via)
    assert report.passed, [leg.problems for leg in report.legs]
    assert [leg.differences for leg in report.legs] == [(), ()]
