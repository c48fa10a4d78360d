"""tflite-micro as a runtime: real models before and after a conversion, and its errors."""

from __future__ import annotations

import builtins
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from tflite_models import TensorSpec, single_op

from qconvert import check, convert, load, save
from qconvert.arithmetic import tflite_divide
from qconvert.errors import MissingPackageError, OptionError, RuntimeRefusedError
from qconvert.formats.tflite.probe import accepted_copy
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.tflite_micro import TFLiteMicro

pytestmark = pytest.mark.tflite_micro

FIXTURES = Path(__file__).parents[2] / "fixtures"
needs_micro = pytest.mark.skipif(find_spec("tflite_micro") is None, reason="tflite_micro is not installed (extra micro)")
#: Model -> the largest difference between tflite-micro and LiteRT's reference kernels, in LSB.
MODELS = {"tiny_kws_dscnn_int8": 0, "tflm_person_detect_int8": 0, "tiny_ad_toycar_int8": 2, "aww_int8": 0}


def random_inputs(runtime: LiteRT | TFLiteMicro, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, shape).astype(t) for t, shape in runtime.inputs.values()]


@pytest.mark.litert
@needs_micro
@pytest.mark.parametrize(("name", "apart"), MODELS.items())
def test_a_model_through_onnx_gives_the_same_outputs(name: str, apart: int, tmp_path: Path) -> None:
    """tflite -> onnx -> tflite for the target tflite-micro: in the micro interpreter bit for bit what the original gives there, and what
    LiteRT's reference kernels give, up to tflite-micro's own rounding in FULLY_CONNECTED.
    """
    source = FIXTURES / f"{name}.tflite"
    convert(source, tmp_path / "a.onnx")
    convert(tmp_path / "a.onnx", tmp_path / "b.tflite", target="tflite-micro")
    micro, original = TFLiteMicro((tmp_path / "b.tflite").read_bytes()), TFLiteMicro(source.read_bytes())
    reference = LiteRT(accepted_copy(source.read_bytes()), "reference")
    assert list(micro.inputs.values()) == list(reference.inputs.values())
    for seed in range(3):
        feeds = random_inputs(reference, seed)
        (found,), (before,), (expected,) = (runtime.run_in_order(feeds) for runtime in (micro, original, reference))
        assert found.dtype == expected.dtype and np.array_equal(found, before)
        assert np.abs(found.astype(int) - expected).max() <= apart
        assert len(np.unique(found)) > 1


@pytest.mark.litert
@needs_micro
def test_a_uint8_detector_runs_after_conversion(tmp_path: Path) -> None:
    """tflite-micro has no uint8 convolution; the target stores activations and weights as int8."""
    source, result = FIXTURES / "coco_ssd_mobilenet_v1_uint8.tflite", tmp_path / "b.tflite"
    with refused(RuntimeRefusedError, "model-refused", holds=("CONV_2D",)):
        TFLiteMicro(source.read_bytes())
    convert(source, result, target="tflite-micro")
    micro, reference = TFLiteMicro(result.read_bytes()), LiteRT(result.read_bytes(), "reference")
    feeds = random_inputs(micro, 0)
    for found, expected in zip(micro.run_in_order(feeds), reference.run_in_order(feeds), strict=True):
        assert np.array_equal(found.reshape(expected.shape), expected)


@needs_micro
def test_names_types_and_shapes_come_from_the_file() -> None:
    x = TensorSpec("sound", (2, 3), "int16", 0.5, 0)
    y = TensorSpec("loud", (2, 3), "int16", 0.5, 0)
    micro = TFLiteMicro(single_op("RELU", None, [x], [y]))
    assert micro.inputs == {"sound": ("int16", (2, 3))} and micro.outputs == {"loud": ("int16", (2, 3))}
    (found,) = micro.run({"sound": np.array([[-3, 0, 3], [7, -7, 1]], np.int16)}).values()
    assert found.tolist() == [[0, 0, 3], [7, 0, 1]]


@needs_micro
def test_tensors_without_names_are_called_as_the_reader_calls_them() -> None:
    model = FIXTURES / "tflm_keyword_svdf_int8.tflite"
    runtime, graph = TFLiteMicro(model.read_bytes()), load(model)
    assert tuple(runtime.inputs) == graph.inputs and tuple(runtime.outputs) == graph.outputs


@pytest.mark.cross_section
@needs_micro
def test_large_activations_get_a_larger_arena() -> None:
    x, y = (TensorSpec(name, (1, 3_000_000), "int8", 0.5, 0) for name in "xy")
    micro = TFLiteMicro(single_op("RELU", None, [x], [y]))
    assert micro.run({"x": np.full((1, 3_000_000), -4, np.int8)})["y"].max() == 0


@needs_micro
def test_a_refused_model_says_what_the_interpreter_said(capfd: pytest.CaptureFixture[str]) -> None:
    x, y = (TensorSpec(name, (4,), "int8", 0.5, 0) for name in "xy")
    with refused(RuntimeRefusedError, "model-refused", holds=("'GELU'",)) as raised:
        TFLiteMicro(single_op("GELU", {}, [x], [y]))
    assert "--target tflite-micro" in raised.value.remedy
    assert capfd.readouterr().err == ""


@needs_micro
def test_an_input_of_another_shape_is_refused() -> None:
    x, y = (TensorSpec(name, (4,), "int8", 0.5, 0) for name in "xy")
    with refused(RuntimeRefusedError, "run-failed"):
        TFLiteMicro(single_op("RELU", None, [x], [y])).run({"x": np.zeros(5, np.int8)})


@pytest.mark.onnxruntime
@needs_micro
def test_check_with_the_micro_kernels(tmp_path: Path) -> None:
    source = FIXTURES / "tiny_kws_dscnn_int8.tflite"
    convert(source, tmp_path / "a.onnx")
    report = check(source, tmp_path / "a.onnx", kernels="tflite-micro", samples=2, max_lsb=1)
    assert report.passed and report.kernels[0] == "tflite-micro:reference" and report.runs == 2
    with refused(OptionError, "no-inner-tensors"):
        check(source, tmp_path / "a.onnx", kernels="tflite-micro", per_op=True)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("tflite_micro"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    for name in [name for name in sys.modules if name.startswith("tflite_micro")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingPackageError) as raised:
        TFLiteMicro(b"")
    assert "qconvert[micro]" in raised.value.remedy


@needs_micro
def test_a_check_names_the_file_that_is_refused(tmp_path: Path) -> None:
    x, y = (TensorSpec(name, (4,), "int8", 0.5, 0) for name in "xy")
    for name, kind in (("gelu", "GELU"), ("relu", "RELU")):
        (tmp_path / f"{name}.tflite").write_bytes(single_op(kind, {} if kind == "GELU" else None, [x], [y]))
    gelu, relu = (tmp_path / f"{name}.tflite" for name in ("gelu", "relu"))
    (as_source,), (as_result,) = (check(*pair, kernels="tflite-micro").unjudged for pair in ((gelu, relu), (relu, gelu)))
    assert as_source.startswith(str(gelu)) and "target" not in as_source
    assert as_result.startswith(str(gelu)) and "target tflite-micro" in as_result


@needs_micro
@pytest.mark.parametrize("scales", [(0.1, 0.1, 0.1), (1.5, 2.0, 0.7), (1e6, 1e-6, 1e-6)])
def test_quotients_by_zero_and_of_scales_far_apart(scales: tuple[float, float, float]) -> None:
    quantizations = [Quantization.per_tensor(scale, point) for scale, point in zip(scales, (-128, 3, -1), strict=True)]
    x, y = (codes.reshape(1, -1).astype(np.int8) for codes in np.meshgrid(np.arange(-128, 128, 5), np.arange(-12, 18)))
    specs = [TensorSpec(name, x.shape, "int8", found.step, found.point) for name, found in zip("abq", quantizations, strict=True)]
    expected, is_undefined = tflite_divide(x, y, *quantizations, (-128, 127), "float64")
    assert is_undefined
    assert np.array_equal(TFLiteMicro(single_op("DIV", {}, specs[:2], specs[2:])).run_in_order([x, y])[0], expected)


@needs_micro
@pytest.mark.parametrize(("scale", "runs"), [(0.999, True), (1.0, False), (300.0, False)])
def test_a_comparison_that_ends_the_process_is_refused(scale: float, runs: bool, tmp_path: Path) -> None:
    quantization = Quantization.per_tensor(scale, 0)
    tensors = {name: Tensor(name, "int8", (2,), None, quantization) for name in ("a", "b")} | {"y": Tensor("y", "bool", (2,))}
    save(Graph("g", tensors, (Op("Less", ("a", "b"), ("y",)),), ("a", "b"), ("y",)), tmp_path / "m.tflite")
    content = (tmp_path / "m.tflite").read_bytes()
    if runs:
        (found,) = TFLiteMicro(content).run_in_order([np.array([1, 3], np.int8), np.array([2, 2], np.int8)])
        assert found.tolist() == [True, False]
    else:
        with refused(RuntimeRefusedError, "kernel-aborts"):
            TFLiteMicro(content)
