"""Calibration of a float network: its scales from data of every source, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from refusals import refused

import qconvert
from qconvert.calibration import METHODS
from qconvert.calibration.driver import run_calibration
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError

pytestmark = pytest.mark.onnxruntime

DIGITS = Path(__file__).parents[2] / "fixtures" / "digits"
FLOAT, DRAWN = DIGITS / "float.onnx", DIGITS / "drawn.onnx"


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.load(DIGITS / "test.npz")["images"][:40]


def scales(found: qconvert.calibration.driver.Calibration) -> dict[str, Any]:
    return {place.name: (one.qparams.quantization.scale.tolist(), one.qparams.quantization.zero_point.tolist())
            for place, one in found.encodings.entries.items() if one.qparams is not None}  # fmt: skip


def test_ranges_are_those_of_the_values_in_onnxruntime(images: np.ndarray) -> None:
    found = run_calibration(FLOAT, images)
    session = onnxruntime.InferenceSession(FLOAT, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": images})
    report = next(item for item in found.tensors if "logits" in item.names)
    assert found.samples == 40 and (report.lowest, report.highest) == pytest.approx((logits.min(), logits.max()), rel=1e-5)
    assert found.tensors[0].names == ("x",) and found.tensors[0].range == pytest.approx((0, 1), abs=1e-6)
    assert all(item.lowest >= 0 and item.qparams.quantization.point == -128 for item in found.tensors if "Relu" in item.names[0])
    weights = [one for one in found.encodings.entries.values() if one.origin == "max-abs of the weights"]
    assert len(weights) == 8 and all(one.qparams.quantization.quant_min == -127 for one in weights)
    assert all(item.sqnr_db is None or item.sqnr_db > 25 for item in found.tensors)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_scales(method: str, images: np.ndarray) -> None:
    found = run_calibration(FLOAT, images, method=method)
    assert len(found.tensors) == len(run_calibration(FLOAT, images[:2]).tensors)
    assert all(item.sqnr_db is None or item.sqnr_db > 5 for item in found.tensors)


def test_batches_and_single_samples_give_the_same_scales(images: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    from qconvert.calibration import observing

    together = run_calibration(DRAWN, np.random.default_rng(0).normal(size=(20, 3, 32, 32)).astype(np.float32), method="moving-average")
    monkeypatch.setattr(observing, "_LARGEST_BATCH", 1)
    alone = run_calibration(DRAWN, np.random.default_rng(0).normal(size=(20, 3, 32, 32)).astype(np.float32), method="moving-average")
    for one, other in zip(together.tensors, alone.tensors, strict=True):
        assert one.names == other.names and np.allclose(one.qparams.quantization.scale, other.qparams.quantization.scale, rtol=1e-5)


@pytest.mark.litert
def test_litert_sees_what_onnxruntime_sees(images: np.ndarray) -> None:
    ort, lite = run_calibration(FLOAT, images), run_calibration(FLOAT, images, runtime="litert")
    for one, other in zip(ort.tensors, lite.tensors, strict=True):
        assert one.names == other.names
        assert (one.lowest, one.highest) == pytest.approx((other.lowest, other.highest), rel=1e-4, abs=1e-5)


def test_a_graph_and_a_function_are_sources_too(images: np.ndarray, tmp_path: Path) -> None:
    expected = scales(run_calibration(FLOAT, images))
    np.save(tmp_path / "a.npy", images)
    assert scales(run_calibration(qconvert.load(FLOAT), lambda: iter(images))) == expected == scales(run_calibration(FLOAT, str(tmp_path)))
    assert {place.name for place in qconvert.calibrate(FLOAT, images).entries} == {*expected}


def test_types_of_activations_and_weights(images: np.ndarray) -> None:
    found = run_calibration(FLOAT, images, activations="uint8", symmetric=True, weights="int4", per_channel=False)
    assert all(item.qparams.dtype == "uint8" and item.qparams.quantization.zero_point[0] in (0, 128) for item in found.tensors)
    weights = [one.qparams for one in found.encodings.entries.values() if one.origin == "max-abs of the weights"]
    assert {
        (quantization.dtype, quantization.quantization.scale.size, quantization.quantization.quant_min) for quantization in weights
    } == {("int4", 1, -7)}


def test_a_sample_that_gives_nan_is_named(images: np.ndarray) -> None:
    wrong = images.copy()
    wrong[7, 0, 3, 3] = np.nan
    with refused(InvalidModelError, "not-finite", where="tensor 'x'") as caught:
        run_calibration(FLOAT, wrong)
    assert (caught.value.where, caught.value.file) == ("tensor 'x'", "sample 7")


@pytest.mark.cross_section
@pytest.mark.parametrize(("data", "options", "rule"), [
    ([], {}, "no-samples"),
    (np.zeros((4, 1, 9, 9), np.float32), {}, "shape-mismatch"),
    (np.zeros((4, 1, 8, 8), np.float32), {"method": "none"}, "unknown-method"),
    (np.zeros((4, 1, 8, 8), np.float32), {"runtime": "tflite-micro"}, "unknown-runtime"),
    (np.zeros((4, 1, 8, 8), np.float32), {"activations": "int32"}, "unknown-word"),
    (np.zeros((4, 1, 8, 8), np.float32), {"weights": "uint8"}, "unknown-word"),
    (np.zeros((4, 1, 8, 8), np.float32), {"jobs": -1}, "number-negative"),
    (np.zeros((4, 1, 8, 8), np.float32), {"jobs": 2, "scheduler": "tcp://127.0.0.1:1"}, "jobs-and-scheduler"),
])  # fmt: skip
def test_what_is_refused(data: Any, options: dict[str, Any], rule: str) -> None:
    named = [repr(value) for value in options.values() if isinstance(value, str) and rule.startswith("unknown")]
    with refused(OptionError, rule, holds=(*named,)):
        run_calibration(FLOAT, data, **options)


def test_a_method_of_two_passes_needs_data_twice(images: np.ndarray) -> None:
    with refused(OptionError, "iterator-exhausted"):
        run_calibration(FLOAT, iter(images), method="mnn-kl")
    assert run_calibration(FLOAT, iter(images)).samples == 40


def test_a_quantized_network_is_refused(images: np.ndarray) -> None:
    with refused(UnsupportedError, "already-quantized"):
        run_calibration(DIGITS / "fx.onnx", images)
