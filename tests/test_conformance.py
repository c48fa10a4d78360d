"""The conformance matrix: an operator of each kind and type in each target, as docs/conformance.json says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qconvert.conformance.examples import examples_of, find_kinds_without_example
from qconvert.conformance.matrix import TARGETS, conformance
from qconvert.operators import KINDS
from qconvert.plugins import target_named

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: From the best result to the worst. A processor without some instructions may round otherwise, and be explained.
_RESULTS = ("equal", "explained", "one step")
#: What each target needs; PyTorch's programs take half a minute.
_MARKS = {
    "tflite": [pytest.mark.litert],
    "tflite-micro": [pytest.mark.tflite_micro],
    "ort-x86": [pytest.mark.onnxruntime],
    "portable": [pytest.mark.onnxruntime],
    "torch": [pytest.mark.torch, pytest.mark.slow],
    "tensorrt": [pytest.mark.formats],
}


def test_every_kind_has_an_example_or_a_reason() -> None:
    without = {name for name, kind in KINDS.items() if not examples_of(kind)}
    assert without == {*find_kinds_without_example()}, "a kind has an example, or a reason why not, in qconvert/conformance/examples.py"


@pytest.mark.parametrize("target", [pytest.param(name, marks=_MARKS[name]) for name in TARGETS])
def test_operators_become_what_the_page_says(target: str) -> None:
    known = {
        (item["kind"], item["dtype"]): item for item in json.loads((DOCS / "conformance.json").read_text()) if item["target"] == target
    }
    changed, seen = [], set()
    for cell in conformance(target, TARGETS[target]):
        expected = known.get((cell.kind, cell.dtype), {})
        seen.add((cell.kind, cell.dtype))
        alike = (cell.runs, cell.form) == (expected.get("runs"), tuple(expected.get("form", ())))
        if not alike or (cell.result and cell.result not in _RESULTS):
            changed.append((cell, expected))
    assert not changed, f"python docs/make_conformance.py writes what has changed: {changed[:5]}"
    assert seen == {*known}


#: Options of the ONNX writer; each tries 500 operators in five seconds.
_FORMS = ({"form": "qoperator"}, {"opset": 13}, *({"opset": opset} for opset in (15, 17, 18, 19, 20, 22, 24, 26)))


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "options", [pytest.param(options, marks=[pytest.mark.slow] * (options.get("opset", 13) > 13), id=str(options)) for options in _FORMS]
)
def test_forms_and_opsets_of_onnx_give_the_same_results(options: dict[str, object]) -> None:
    """An operator is refused, with the opset that it needs, or it runs; onnxruntime has no RoiAlign of opset 22 (1.31)."""
    target = target_named("ort-x86")
    chosen = target.derive(name="ort-x86 otherwise", write_options={**target.write_options, **options})
    cells = list(conformance(chosen, TARGETS["ort-x86"]))
    wrong = [cell for cell in cells if cell.runs == "fails" or cell.result == "different"]
    assert {cell.kind for cell in wrong} <= ({"RoiAlign"} if options.get("opset", 0) >= 22 else set()), wrong  # type: ignore[operator]
    refused = {cell.reason for cell in cells if cell.runs == "refused" and cell.kind != "Bitcast"}
    assert all("opset" in reason for reason in refused) and bool(refused) == (0 < options.get("opset", 0) < 21)  # type: ignore[operator]
    assert sum(cell.result == "equal" for cell in cells) > 390
