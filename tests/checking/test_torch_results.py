"""Results in PyTorch's formats: int8 sources, whose activations are uint8 there, are compared operator by operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from qconvert import check, convert, load

pytestmark = [pytest.mark.litert, pytest.mark.torch]

KEYWORDS = Path(__file__).parents[2] / "fixtures" / "tiny_kws_dscnn_int8.tflite"


@pytest.mark.parametrize(("target", "suffix"), [("torch-x86", ".pt2"), ("torch-modules", ".pt")])
def test_operators_on_integers_of_the_other_sign_are_compared(target: str, suffix: str, tmp_path: Path) -> None:
    result = tmp_path / f"result{suffix}"
    convert(KEYWORDS, result, target=target)
    source = load(KEYWORDS)
    assert {load(result)[op.outputs[0]].dtype for op in source.ops if op.kind == "Conv"} == {"uint8"}
    report = check(KEYWORDS, result, samples=2, per_op=True)
    assert report.verdict == "passed", report.problems
    compared = {item.output for item in report.operators if item.verdict != "not compared"}
    assert {op.outputs[0] for op in source.ops if op.kind == "Conv"} <= compared
    assert not any("judged together" in note for note in report.notes), report.notes
