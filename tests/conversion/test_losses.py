"""What lossy steps cost, as data, and the limit of what a conversion may lose."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from passes.graphs import constant, make, q
from refusals import refused

from qconvert import Op, Quantization, Tensor, convert, load, save
from qconvert.arithmetic import dequantize
from qconvert.conversion.judging import refuse_losses
from qconvert.errors import LossError
from qconvert.graph import Graph
from qconvert.graph.metadata import CHANGES, SCALES
from qconvert.plugins import Change, Cost


def sigmoid(scale: float) -> Graph:
    """A Sigmoid whose result has another scale than LiteRT's kernel fixes, 1/256."""
    tensors = [Tensor("x", "int8", (1, 64), None, q(0.1)), Tensor("y", "int8", None, None, q(scale, -128))]
    return make([Op("Sigmoid", ("x",), ("y",))], tensors, "x", "y")


@pytest.mark.formats
def test_a_step_that_leaves_too_little_stops_the_conversion(tmp_path: Path) -> None:
    """256 steps of 1e-4 reach to 0.0255: of the kernel's steps these are seven."""
    save(sigmoid(1e-4), tmp_path / "m.qgraph")
    with refused(LossError, "sqnr-below-limit", holds=("1 tensor", "30 dB", "match_scales: SQNR 2", "0.5 LSB", "'y'")) as caught:
        convert(tmp_path / "m.qgraph", tmp_path / "m.tflite", numerics="fast")
    assert caught.value.code == "loss-over-limit" and not (tmp_path / "m.tflite").exists()
    allowed = caught.value.remedy.rpartition("--min-tensor-sqnr ")[2].rstrip(".")
    report = convert(tmp_path / "m.qgraph", tmp_path / "m.tflite", min_tensor_sqnr=float(allowed), numerics="fast")
    (cost,) = next(change.costs for change in report.changes if change.by == "match_scales")
    assert cost.tensor == "y" and cost.sqnr_db is not None and 20 < cost.sqnr_db < 30
    codes = 1e-4 * np.arange(256)
    error = np.rint(codes * 256) / 256 - codes
    assert cost.sqnr_db == pytest.approx(10 * np.log10((codes**2).sum() / (error**2).sum()), abs=0.2)


@pytest.mark.formats
def test_a_common_scale_is_no_loss(tmp_path: Path) -> None:
    """1/255, as most exporters have it; and a quantization much wider than what a Sigmoid gives, whose outer codes never occur."""
    for scale in (1 / 255, 0.05):
        save(sigmoid(scale), tmp_path / "m.qgraph", force=True)
        report = convert(tmp_path / "m.qgraph", tmp_path / "m.tflite", force=True)
        costs = [cost for change in report.changes for cost in change.costs]
        assert all(cost.sqnr_db is not None and cost.sqnr_db > 40 for cost in costs)


@pytest.mark.end_to_end
def test_the_command_line_exits_with_2_and_names_the_tensor(tmp_path: Path) -> None:
    save(sigmoid(1e-4), tmp_path / "m.qgraph")
    command = [sys.executable, "-m", "qconvert", "convert", str(tmp_path / "m.qgraph"), str(tmp_path / "m.tflite"), "--numerics", "fast"]
    failed = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2 and json.loads(failed.stdout)["error"] == "loss-over-limit" and "'y'" in failed.stdout
    done = subprocess.run([*command, "--min-tensor-sqnr", "20", "--json"], capture_output=True, text=True, check=False)
    changes = json.loads(done.stdout)["changes"]
    assert done.returncode == 0 and [change["costs"][0]["tensor"] for change in changes if change["costs"]] == ["y"]


def poor() -> Graph:
    """One weight of 12.7 and 640 of 0.05, on a scale for each channel; one scale for both, 0.1, leaves nothing of the small ones."""
    weights = np.zeros((2, 640), np.int8)
    weights[0, 0], weights[1] = 127, 1
    tensors = [
        Tensor("x", "int8", (1, 640), None, q(0.1)),
        constant("w", weights, Quantization.per_axis(np.float32([0.1, 0.05]), 0)),
        Tensor("y", "int8", None, None, q(0.5)),
    ]
    return make([Op("Gemm", ("x", "w"), ("y",))], tensors, "x", "y")


@pytest.mark.formats
def test_steps_that_the_user_named_are_held_to_the_limit_too(tmp_path: Path) -> None:
    save(poor(), tmp_path / "m.qgraph")
    with refused(LossError, "sqnr-below-limit", holds=("1 tensor", "30 dB", "per_axis_to_per_tensor: SQNR 20")) as caught:
        convert(tmp_path / "m.qgraph", tmp_path / "m.onnx", passes=["per_axis_to_per_tensor"])
    assert "--min-tensor-sqnr 20." in caught.value.remedy and not (tmp_path / "m.onnx").exists()
    report = convert(tmp_path / "m.qgraph", tmp_path / "m.onnx", passes=["per_axis_to_per_tensor"], min_tensor_sqnr=20)
    change = next(change for change in report.changes if change.by == "per_axis_to_per_tensor")
    assert change.user_named and not change.exact and change.costs[0].sqnr_db < 30  # type: ignore[operator]


def test_steps_above_the_limit_pass_and_the_worst_come_first() -> None:
    costs = tuple(Cost(f"t{index}", float(index), 0.5) for index in range(40))
    refuse_losses([Change("", costs=costs[30:])])
    refuse_losses([Change("", costs=(Cost("unmeasured", None, 1.0),))])
    refuse_losses([Change("", costs=costs)], limit=0)
    with refused(LossError, "sqnr-below-limit", holds=("30 tensors", "30 dB:\n- : SQNR 0.0 dB", "0.5 LSB", "'t0'", 22)):
        refuse_losses([Change("", costs=costs[::-1])])


@pytest.mark.formats
def test_the_file_says_what_each_step_cost(tmp_path: Path) -> None:
    save(poor(), tmp_path / "m.qgraph")
    convert(tmp_path / "m.qgraph", tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").metadata[SCALES].startswith("all scales")
    convert(tmp_path / "m.qgraph", tmp_path / "m.onnx", passes=["per_axis_to_per_tensor"], min_tensor_sqnr=20, force=True)
    metadata = load(tmp_path / "m.onnx").metadata
    (said,) = (item for item in json.loads(metadata[CHANGES]) if item.get("costs"))
    assert said["pass"] == "per_axis_to_per_tensor" and not said["exact"] and metadata[SCALES].startswith("some are new")
    (cost,) = said["costs"]
    before, after = (dequantize(tensor.data, tensor.quantization) for tensor in (poor()["w"], load(tmp_path / "m.onnx")["w"]))
    measured = 10 * np.log10(np.square(before).sum() / np.square(after - before).sum())
    assert cost["tensor"] == "w" and cost["sqnr_db"] == pytest.approx(measured, abs=0.01)
    assert measured > 10 * np.log10((12.7**2 + 1.6) / 1.6)  # what the scale that holds the largest value would leave
