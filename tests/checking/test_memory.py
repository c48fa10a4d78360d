"""What a check leaves out where tensors are more than it holds in memory, from their sizes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qconvert import Graph, Op, Tensor, check, convert, load
from qconvert.checking.findings import OUT_OF_MEMORY, CheckReport
from qconvert.checking.memory import MOST, Room, first_fitting, nbytes, sizes_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
KWS, VISION = FIXTURES / "tiny_kws_dscnn_int8.tflite", FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx"


def network(constants: int) -> Graph:
    """x -> Relu -> y + w -> z, of N rows."""
    shape = ("N", 100)
    tensors = {name: Tensor(name, "float32", shape) for name in "xyz"}
    tensors["w"] = Tensor("w", "int8", (constants,), np.zeros(constants, np.int8))
    return Graph("net", tensors, (Op("Relu", ("x",), ("y",)), Op("Add", ("y", "w"), ("z",))), ("x",), ("z",))


def test_bytes_of_tensors_follow_from_the_shapes_of_inputs() -> None:
    graph = network(100)
    sizes = sizes_of(graph, {"x": np.zeros((7, 100), np.float32)})
    assert (sizes, nbytes(graph, sizes)) == ({"N": 7}, {"x": 2800, "y": 2800, "z": 2800})
    assert nbytes(graph, {}) == {"x": 400, "y": 400, "z": 400}


def test_constants_leave_less_for_tensors() -> None:
    small, large = Room.for_graphs(network(100)).bytes, Room.for_graphs(network(100), network(10_000_000)).bytes
    assert 0.6 * MOST < small < MOST
    assert 10_000_000 < small - large < 100_000_000
    assert Room.for_graphs(network(MOST)).bytes == 64 << 20


@pytest.mark.parametrize(("each", "samples"), [(10_000_000, 5), (60_000_000, 2), (500_000_000, 1), (0, 5)])
def test_fewer_inputs_are_run_of_larger_ones(each: int, samples: int) -> None:
    assert Room(600_000_000).samples(5, each) == samples


@pytest.mark.parametrize(("held", "at_once"), [(0, 64 << 20), (300_000_000, 60_000_000), (600_000_000, 0), (900_000_000, 0)])
def test_groups_are_smaller_beside_more_tensors(held: int, at_once: int) -> None:
    assert Room(600_000_000).piece_bytes(held) == at_once
    assert Room(600_000_000).range_bytes(held) == max(0, 600_000_000 - held) // 5


def test_tensors_are_taken_in_order_until_one_does_not_fit() -> None:
    sizes = {"a": 3, "b": 5, "c": 9, "d": 1}
    assert first_fitting(sizes, 10) == ["a", "b"]
    assert first_fitting(sizes, 10, {"d", "c"}) == ["c", "d"]
    assert first_fitting(sizes, 2) == []


def limited(room: int, file: Path, result: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CheckReport:
    convert(file, tmp_path / result)
    monkeypatch.setattr(Room, "for_graphs", classmethod(lambda cls, *graphs: Room(room)))
    return check(file, tmp_path / result, per_op=True)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_what_fits_at_no_time_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Half of the operators, by the sizes of their tensors; where outputs are equal the check passes all the same."""
    total = sum(nbytes(load(KWS), {}).values())
    report = limited(total, KWS, "result.onnx", monkeypatch, tmp_path)
    missed = [op for op in report.operators if op.reason == OUT_OF_MEMORY]
    assert 0 < len(missed) < len(report.operators)
    assert report.operators[0].verdict == "equal"
    (note,) = [note for note in report.notes if "operators were compared within 1 GB" in note]
    assert f"{len(missed)} of them not at all" in note
    assert report.verdict == "passed", (report.problems, report.unjudged)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_outputs_that_differ_and_did_not_fit_are_not_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = limited(1, VISION, "result.tflite", monkeypatch, tmp_path)
    assert sum(op.reason == OUT_OF_MEMORY for op in report.operators) > 0.5 * len(report.operators)
    assert report.verdict == "inconclusive", report.problems
    assert report.runs == 1
    assert any(note.startswith("compared with 1 of 5 inputs") for note in report.notes)
