"""What a calibration warns of, and what --strict refuses: clipped tensors, and outputs that lose much compared with min-max."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused
from test_cli import run

from qconvert.calibration.driver import run_calibration
from qconvert.calibration.files import calibrate_file
from qconvert.errors import LossError

pytestmark = pytest.mark.onnxruntime


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x of 8 numbers, times a matrix."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 8), ("y", 4))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "linear", values[:1], values[1:], [weights])
    path = tmp_path_factory.mktemp("linear") / "linear.onnx"
    onnx.save(model_of(graph), path)
    return path


def growing(count: int = 40) -> np.ndarray:
    """Samples of which the first ones are large, so that an average of extremes clips them."""
    scales = np.where(np.arange(count) < 4, 100, 0.1)[:, None]
    return (scales * np.random.default_rng(1).uniform(-1, 1, (count, 8))).astype(np.float32)


def test_clipped_tensors_and_lost_outputs_are_warned_of(linear: Path) -> None:
    found = run_calibration(linear, growing(), method="moving-average")
    assert found.tensors[0].clipped > 0.5 and len(found.warnings) == 2
    assert "'x' (" in found.warnings[0] and "compared" not in found.warnings[0]
    kept = [float(word) for word in found.warnings[1].replace(";", "").split() if word.replace(".", "").replace("-", "").isdigit()]
    assert kept[1] - kept[0] > 20
    assert run_calibration(linear, growing()).warnings == ()


def test_an_iterator_is_measured_too(linear: Path) -> None:
    found = run_calibration(linear, iter(growing()), method="moving-average")
    expected = run_calibration(linear, growing(), method="moving-average")
    assert found.samples == 40 and found.warnings == expected.warnings
    assert [item.clipped for item in found.tensors] == [item.clipped for item in expected.tensors]


@pytest.mark.end_to_end
def test_strict_writes_nothing(linear: Path, tmp_path: Path) -> None:
    data, result, config = tmp_path / "data.npy", tmp_path / "q.onnx", tmp_path / "qconvert.toml"
    np.save(data, growing())
    with refused(LossError, "values-clipped"):
        calibrate_file(linear, str(data), result, method="moving-average", strict=True)
    config.write_text("[calibrate]\nstrict = true\n")
    words = ("calibrate", linear, "--data", data, "-o", result, "--json", "--method")
    done = run(*words, "moving-average", "--config", config)
    assert done.returncode == 2 and json.loads(done.stdout)["error"] == "loss-over-limit" and not result.exists()
    warned = run(*words, "moving-average")
    assert warned.returncode == 0 and len(json.loads(warned.stdout)["warnings"]) == 2 and result.exists()
    assert run(*words, "min-max", "--strict", "--force").returncode == 0


@pytest.mark.parametrize("method", ["entropy", "symmetric-kl", "js"])
def test_data_that_stay_away_from_zero_pass(linear: Path, method: str) -> None:
    """Their first filled bin was the threshold, and all values were clipped to it."""
    data = np.random.default_rng(2).uniform(15, 40, (64, 8)).astype(np.float32)
    found = run_calibration(linear, data, method=method, strict=True)
    (x,) = (item for item in found.tensors if item.names == ("x",))
    assert x.range[1] > 39 and x.clipped <= 0.01 and x.sqnr_db is not None and x.sqnr_db > 45
