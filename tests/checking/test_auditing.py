"""audit(): what a target is predicted to run as integers, next to what its runtime made of the model."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import forked
import pytest
from refusals import refused
from tflite_models import TensorSpec, single_op

from qconvert import audit, convert, partition
from qconvert.errors import OptionError
from qconvert.operators import KINDS
from qconvert.plugins import target_named

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODELS = (
    "aww_int8", "coco_ssd_mobilenet_v1_uint8", "coral_deeplabv3_mnv2_dm05_uint8", "coral_tf2_mobilenet_v2_224_int8",
    "tflm_mobilenet_v2_from_torch_int8", "tflm_person_detect_int8", "tflm_seanet_conv_int16x8", "tiny_ad_toycar_int8",
    "tiny_kws_dscnn_int8", "tiny_resnet_cifar10_int8", "tiny_vww_mobilenet_int8",
)  # fmt: skip
#: Seen by nobody: onnxruntime moves the first Transpose before a Quantize, or away, and of two products that are a Resize only what moves
#: their result is seen; LiteRT tells all.
UNSEEN = {"ort-x86": 3, "tflite": 0}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("target", ["ort-x86", "tflite"])
@pytest.mark.parametrize("name", MODELS)
def test_the_prediction_is_what_ran(name: str, target: str) -> None:
    report = audit(FIXTURES / f"{name}.tflite", target, run=True)
    assert report.otherwise == ()
    compared = [op for op in report.operators if KINDS[op.kind].rule != "convert"]
    unseen = [op.kind for op in compared if op.ran is None]
    assert len(unseen) <= UNSEEN[target] and set(unseen) <= {"Transpose", "Softmax", "Resize"}
    assert all(op.layer for op in compared if op.ran is not None)
    counted = Counter((op.kind, op.integer, op.reason) for op in report.operators)
    assert counted == {(line.kind, line.integer, line.reason): line.count for line in report.lines}


#: What exporters write and the prediction does not know yet: an Add of a bias that onnxruntime fuses into a Gemm, and a Conv
#: with 4-bit weights, which onnxruntime runs on floats.
UNFORESEEN = {("Add", True): 4, ("Conv", False): 1}


@pytest.mark.onnxruntime
def test_the_prediction_for_models_of_onnx_exporters() -> None:
    found: Counter[tuple[str, bool | None]] = Counter()
    operators = 0
    for path in sorted((FIXTURES / "onnx").glob("*.onnx")):
        report = audit(path, "ort-x86", run=True)
        found.update((op.kind, op.ran) for op in report.otherwise)
        operators += sum(op.ran is not None for op in report.operators)
    assert operators > 300
    assert dict(found) == UNFORESEEN


@pytest.mark.formats
def test_it_says_of_operators_what_a_conversion_says(tmp_path: Path) -> None:
    """The conversion's audit is of the file that was written, where an operator may be several."""
    path = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    converted, report = convert(path, tmp_path / "m.onnx"), audit(path, "ort-x86")
    planned, written = ({line.kind: line for line in lines if line.integer} for lines in (report.lines, converted.audit))
    assert planned.keys() & written.keys() >= {"Conv", "Gemm", "Add"}
    assert [(planned[kind].count, written[kind].count) for kind in ("Conv", "Gemm")] == [(9, 10), (1, 1)]  # an average is one of them
    # What a Softmax is made of computes on floats alone, and counts as what it is.
    assert sum(line.count for line in converted.audit if not (line.integer or line.converts)) == sum(converted.on_floats.values()) == 5
    assert (report.runtime, report.notes, report.otherwise) == ("", (), ())
    assert {op.ran for op in report.operators} == {None}


@pytest.mark.onnxruntime
def test_operators_of_functions_are_counted(tmp_path: Path) -> None:
    """A partitioned graph has its operators in functions: each is judged there, and what calls them is no operator that runs."""
    source, cut = FIXTURES / "tiny_ad_toycar_int8.tflite", tmp_path / "cut.qgraph"
    partition(source, ["ort-x86"], cut)
    whole, parts = audit(source, "ort-x86"), audit(cut, "ort-x86", run=True)
    products = {(line.kind, line.count, line.integer) for line in whole.lines if line.kind == "Gemm"}
    assert products == {("Gemm", 10, True)} and products <= {(line.kind, line.count, line.integer) for line in parts.lines}
    assert "Call" not in {op.kind for op in parts.operators} and parts.otherwise == ()
    report = convert(cut, tmp_path / "m.onnx")
    assert report.operators["Gemm"] == 10 and report.audit == parts.lines


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_operators_on_real_values_are_seen(tmp_path: Path) -> None:
    """An addition whose ties have no form in float32, and a network's, which have."""
    specs = [TensorSpec(name, (1, 8, 8, 4), "int8", scale, 0) for name, scale in zip("aby", (0.03, 0.03, 0.06), strict=True)]
    (tmp_path / "m.tflite").write_bytes(single_op("ADD", {}, specs[:2], specs[2:]))
    for path, wanted in (
        (tmp_path / "m.tflite", [(False, False, "Cast")]),
        (FIXTURES / "tiny_resnet_cifar10_int8.tflite", [(True, True, "com.microsoft.QLinearAdd")] * 3),
    ):
        report = audit(path, "ort-x86", run=True)
        assert [(op.integer, op.ran, op.layer) for op in report.operators if op.kind == "Add"] == wanted


@pytest.mark.litert
def test_layers_of_litert_name_xnnpack() -> None:
    report = audit(FIXTURES / "tiny_resnet_cifar10_int8.tflite", "tflite", run=True)
    assert Counter(op.layer for op in report.operators)["CONV_2D (XNNPACK)"] == 9
    assert {op.layer for op in report.operators if op.kind in ("AveragePool", "Softmax")} == {"AVERAGE_POOL_2D", "SOFTMAX"}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("missing", ["Conv", "Gemm"])
def test_a_wrong_prediction_is_found(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = target_named("ort-x86")
    weak = replace(known, kernels=known.kernels.without(missing))
    monkeypatch.setattr("qconvert.checking.auditing.target_named", lambda name: weak)
    report = audit(FIXTURES / "tiny_kws_dscnn_int8.tflite", "ort-x86", run=True)
    assert {op.kind for op in report.otherwise} == {missing}
    assert all(op.ran and not op.integer for op in report.otherwise)


@pytest.mark.formats
def test_what_a_runtime_does_not_tell() -> None:
    report = audit(FIXTURES / "tiny_kws_dscnn_int8.tflite", "tflite-micro", run=True)
    assert (report.notes, report.unjudged) == ((), "tflite-micro does not report what it runs")
    assert all(op.ran is None for op in report.operators) and report.otherwise == ()


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_target_of_another_cpu_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    path = FIXTURES / "tiny_kws_dscnn_int8.tflite"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert audit(path, "ort-arm", run=True).unjudged == "the target ort-arm is for arm CPUs, and this machine's is x86_64"
    assert (
        audit(path, "ort-x86-vnni", run=True).unjudged == audit(path, "tflite", run=True).unjudged == audit(path, "ort-arm").unjudged == ""
    )
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "is for x86 CPUs" in audit(path, "ort-x86", run=True).unjudged
    assert audit(path, "ort-arm", run=True).unjudged == ""


def test_what_cannot_be_audited() -> None:
    path = FIXTURES / "tiny_kws_dscnn_int8.tflite"
    with refused(OptionError, "target-without-kernels"):
        audit(path, "generic")
    with refused(OptionError, "unknown-target", holds=("'none'",)):
        audit(path, "none")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run(["audit", *arguments])


@pytest.mark.end_to_end
def test_the_command_line() -> None:
    path = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    done = run(path, "--target", "ort-x86", "--run")
    assert done.returncode == 0, done.stderr
    assert "onnxruntime ran 16 of 16 operators as predicted" in done.stdout
    assert "16 of 17 operators run on integers; 2 more only convert" in done.stdout and "float64" not in done.stdout
    document = json.loads(run(path, "--target", "tflite", "--json").stdout)
    assert (document["target"], document["otherwise"], len(document["operators"])) == ("tflite", [], 16)
    refused = run(path, "--target", "generic")
    assert refused.returncode == 2 and "Targets with an audit: ort-x86" in refused.stderr
