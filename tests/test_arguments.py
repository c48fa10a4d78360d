"""Arguments of the public functions that are of another type: one error that names the argument, not one from deep inside."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert import Preparation, QConvertError
from qconvert.arguments import with_checked_arguments
from qconvert.calibration.driver import run_calibration
from qconvert.calibration.settings import Settings
from qconvert.errors import FileAccessError, OptionError

MODEL = Path(__file__).parent.parent / "fixtures" / "tiny_ad_toycar_int8.tflite"
CALLS: dict[str, tuple[Any, ...]] = {
    "accuracy": (MODEL, MODEL, "data"),
    "apply": (MODEL, "scales.json"),
    "audit": (MODEL, "ort-x86"),
    "batch": ("models", "out"),
    "calibrate": (MODEL, "data"),
    "check": (MODEL, MODEL),
    "convert": (MODEL, "out.onnx"),
    "diff": (MODEL, MODEL),
    "extract_scales": (MODEL,),
    "html_report": (MODEL, "out.html"),
    "load": (MODEL,),
    "load_encodings": ("scales.json",),
    "partition": (MODEL, ["tflite"]),
    "pass_costs": (MODEL,),
    "register": (object(),),
    "roundtrip": (MODEL, "onnx"),
    "save": (qconvert.Graph("g", {}, (), (), ()), "out.onnx"),
    "save_encodings": (qconvert.Encodings({}), "out.json"),
    "to_torch": (qconvert.Graph("g", {}, (), (), ()),),
}


class Strange:
    """Fits nothing."""


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_type_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = run_calibration if name == "calibrate" else getattr(qconvert, name)  # which takes what calibrate() takes as **options
    stated = [item for item in inspect.signature(function).parameters.values() if item.kind is not item.VAR_KEYWORD]
    later = [item.name for item in stated if item.annotation not in ("Any", "Data") and item.name not in ("model", "subject")]
    later += [item.name for item in fields(Settings) if item.name != "method_options"] if name == "calibrate" else []
    assert later
    for argument in later:
        given = dict(zip((item.name for item in stated), CALLS[name], strict=False)) | {argument: Strange()}
        with pytest.raises(OptionError) as caught:
            function(**given)
        assert (caught.value.rule == "wrong-type" and argument in caught.value.reason) or caught.value.rule == "not-a-model"
    assert not list(tmp_path.iterdir())


@pytest.mark.formats
@pytest.mark.parametrize("data", [None, 5, "\0", ["a", 5], {"x"}, [], iter([])])
def test_data_that_are_none(data: Any) -> None:
    with pytest.raises(QConvertError):
        run_calibration(MODEL, data)


@pytest.mark.formats
@pytest.mark.parametrize(
    ("name", "value", "rule", "named"),
    [
        ("passes", "fold", "wrong-type", ("convert()", "passes", "Sequence[str]", "str", "'fold'")),
        ("passes", [5], "wrong-type", ("passes", "list")),
        ("passes", None, "wrong-type", ("passes", "NoneType")),
        ("passes", {"a": 1}, "wrong-type", ("passes", "dict")),
        ("force", "no", "wrong-type", ("force", "bool", "str")),
        ("force", np.zeros(3), "wrong-type", ("force", "bool", "ndarray")),
        ("min_tensor_sqnr", "30", "wrong-type", ("min_tensor_sqnr", "float", "str")),
        ("min_tensor_sqnr", float("nan"), "not-a-number", ("min_tensor_sqnr",)),
        ("result", b"out.onnx", "wrong-type", ("result", "str | Path", "bytes")),
        ("result", "\0.onnx", "file-name", ()),
        ("source", "\0.onnx", "file-name", ()),
        ("source", "x" * 300, "not-readable", ()),
    ],
)
def test_what_is_said(name: str, value: object, rule: str, named: tuple[str, ...], tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"source": MODEL, "result": tmp_path / "out.onnx", name: value}
    with refused(FileAccessError if rule in ("file-name", "not-readable") else OptionError, rule, holds=named):
        qconvert.convert(**arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_what_python_has_for_the_same_is_taken(tmp_path: Path) -> None:
    """Numbers of numpy, tuples and sets for lists, integers for real numbers; and Python says itself what lacks."""
    arguments: dict[str, Any] = {"min_tensor_sqnr": np.float32(30), "force": np.bool_(True)}
    qconvert.convert(MODEL, tmp_path / "a.onnx", passes=(), **arguments)
    assert qconvert.check(MODEL, tmp_path / "a.onnx", samples=np.int64(1), kernels={"onnxruntime:optimized"}, seed=np.uint8(3)).passed  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="result"):
        qconvert.convert(MODEL)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nothing"):
        with_checked_arguments(lambda: None)(nothing=1)  # type: ignore[call-arg]
    with refused(OptionError, "number-out-of-range", holds=(-1,)):
        qconvert.check(MODEL, tmp_path / "a.onnx", seed=-1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", 5),
        ("mean", ("a",)),
        ("mean", np.zeros(3)),
        ("pixel_range", ()),
        ("pixel_range", (1.0,)),
        ("pixel_range", (0.0, 1.0, 2.0)),
        ("resize", 5.5),
    ],
)
def test_preparations_that_mean_nothing(name: str, value: Any) -> None:
    with refused(OptionError, "empty-range" if name == "pixel_range" else "wrong-type", holds=(name,)):
        Preparation(**{name: value})


@pytest.mark.formats
def test_errors_are_also_those_of_python(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        qconvert.load(tmp_path / "none.tflite")
    assert isinstance(missing.value, QConvertError) and missing.value.file.endswith("none.tflite")
    with pytest.raises(ValueError, match="numerics") as wrong:
        qconvert.convert(MODEL, tmp_path / "a.onnx", numerics="slow")  # type: ignore[arg-type]
    assert isinstance(wrong.value, QConvertError) and "--" not in str(wrong.value)
