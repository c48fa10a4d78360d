"""audit_all(): each row is what the audit for that target says of the model's operators; a target that refuses a model says why."""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest

from qconvert import QConvertError, audit, audit_all
from qconvert.plugins import targets
from qconvert.targets.audit import NOT_QUANTIZED

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize("name", ["tiny_kws_dscnn_int8.tflite", "coral_lstm_mnist_int8.tflite", "onnx/torch_fx_fbgemm_vision.onnx"])
def test_each_row_is_the_audit_for_its_target(name: str) -> None:
    found = audit_all(FIXTURES / name)
    assert [item.target for item in found.targets] == [target.name for target in targets().values() if target.knows_kernels]
    for item in found.targets:
        try:
            alone = audit(FIXTURES / name, item.target)
        except QConvertError as error:
            assert item.refused == error.reason and item.total == 0
            continue
        counted = [line for line in alone.lines if line.integer or not line.converts]
        assert item.total <= sum(line.count for line in counted) and not item.refused
        assert bool(item.reasons) == any(not line.integer for line in counted)
        assert sum(int(reason.partition(":")[0]) for reason in item.reasons if "added" not in reason) == item.total - item.integers
    refused = [item for item in found.targets if item.refused]
    assert f"{len(found.targets) - len(refused)} of {len(found.targets)} targets take it" in found.sentence
    assert refused  # each model has scales for channels, which LiteRT's kernels for uint8 lack, or activations of 16 bits
    table = found.tables()[0].rows
    assert len(table) == len(found.targets) and all("\n" not in cell and "Broken" not in cell for row in table for cell in row)


@pytest.mark.parametrize(("name", "count"), [("tiny_kws_dscnn_int8.tflite", 13), ("tflm_keyword_svdf_int8.tflite", 13)])
def test_the_operators_of_the_model_are_counted_for_each_target(name: str, count: int) -> None:
    """An integer SVDF becomes 15 operators of ONNX and is one; two QUANTIZE of the second model only convert."""
    found = [item for item in audit_all(FIXTURES / name).targets if not item.refused]
    assert {item.total for item in found} == {count}
    assert {item.integers for item in found if item.target == "ort-x86"} == {count - 1}  # a Softmax runs in float


@pytest.mark.end_to_end
def test_the_command() -> None:
    model = str(FIXTURES / "tiny_kws_dscnn_int8.tflite")
    done = forked.run(["audit", model, "--all-targets", "--json"])
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["schema"] == "qconvert/audit-all/1" and document["source"] == model
    assert {item["target"] for item in document["targets"]} >= {"ort-x86", "tflite", "tensorrt"}
    assert json.loads(forked.run(["audit", model, "--json"]).stdout) == document
    assert forked.run(["audit", model, "--all-targets", "--target", "ort-x86"]).returncode == 2
    assert forked.run(["audit", model, "--run"]).returncode == 2


@pytest.mark.end_to_end
def test_a_float_model_runs_nothing_on_integers() -> None:
    path = FIXTURES / "mnn" / "float.onnx"
    assert audit_all(path).sentence.endswith(f"targets take it, {NOT_QUANTIZED}") and not audit_all(path).tables()
    assert audit(path, "ort-x86").sentence == f"float.onnx for ort-x86: {NOT_QUANTIZED}."
    assert forked.run(["audit", path, "--target", "ort-x86"]).stdout == f"{path} for ort-x86\n{NOT_QUANTIZED}\n"
