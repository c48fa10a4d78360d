"""Networks of Keras as TensorFlow's converter quantizes them: converted and checked operator by operator, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from qconvert import check, convert

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

FOLDER = Path(__file__).parents[2] / "fixtures" / "keras"


#: LiteRT itself has no kernel for its SQUARED_DIFFERENCE on int16.
REFUSED = FOLDER / "keras_causal_int16x8.tflite"


@pytest.mark.cross_section
def test_a_source_that_its_own_runtime_refuses_is_not_judged(tmp_path: Path) -> None:
    convert(REFUSED, tmp_path / "model.onnx")
    report = check(REFUSED, tmp_path / "model.onnx", samples=1, per_op=True)
    assert report.verdict == "inconclusive"
    assert "SquaredDifference only supports FLOAT32 and INT32" in report.unjudged[0]


@pytest.mark.parametrize("path", sorted({*FOLDER.glob("*.tflite")} - {REFUSED}), ids=lambda path: path.stem)
def test_every_operator_is_explained(path: Path, tmp_path: Path) -> None:
    convert(path, tmp_path / "model.onnx")
    convert(tmp_path / "model.onnx", tmp_path / "back.tflite")
    dynamic = []
    for source, result in ((path, "model.onnx"), (tmp_path / "model.onnx", "back.tflite"), (path, "back.tflite")):
        report = check(source, tmp_path / result, samples=2, per_op=True)
        assert report.passed, (result, report.problems, report.unjudged)
        assert report.operators
        dynamic.append("dynamic range" in {op.verdict for op in report.operators})
    # ONNX computes with the real data; what comes back rounds them as the source does.
    assert dynamic == [path.stem.endswith("_dynamic")] * 2 + [False]
