"""What save() and the passes never let through: graphs and files that are not valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, save
from qconvert.conversion import normalize, run_passes, saving
from qconvert.errors import InternalError, InvalidGraphError, UnsupportedError
from qconvert.plugins import Format, Pass, Target, format_named

GRID = Quantization.per_tensor(0.1, 4)


def network() -> Graph:
    tensors = {name: Tensor(name, "int8", (1, 4), None, GRID) for name in ("x", "m", "y")}
    return Graph("g", tensors, (Op("Relu", ("x",), ("m",)), Op("Relu", ("m",), ("y",))), ("x",), ("y",))


@pytest.mark.parametrize("suffix", ["onnx", "tflite", "qgraph"])
def test_no_graph_that_breaks_an_invariant_is_written(suffix: str, tmp_path: Path) -> None:
    graph = network()
    with refused(InvalidGraphError, "wrong-order", where="Relu 'y'"):
        save(replace(graph, ops=graph.ops[::-1]), tmp_path / f"m.{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.formats
@pytest.mark.parametrize(("suffix", "what"), [("onnx", "states"), ("pt2", "functions")])
def test_functions_and_states_are_refused_by_name(suffix: str, what: str, tmp_path: Path) -> None:
    state = Tensor("sum", "int8", (1, 4), np.zeros((1, 4), np.int8), GRID)
    graph = replace(network(), **{what: {"sum": network() if what == "functions" else state}})
    with refused(UnsupportedError, "scopes-not-writable", holds=(what, "'sum'")) as caught:
        save(graph, tmp_path / f"m.{suffix}")
    assert ".tflite" in caught.value.remedy and (".onnx" in caught.value.remedy) == (what == "functions")
    assert ".qgraph" not in caught.value.remedy  # which no runtime takes
    assert not list(tmp_path.iterdir())
    save(graph, tmp_path / "m.qgraph")


def without_its_writer(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    return replace(graph, ops=graph.ops[1:]), ("the first operator is gone",)


def test_a_pass_that_breaks_the_graph_is_named_with_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = {"remove_dead_code": None, "breaks": None, "merge_reshapes": None}
    from qconvert.plugins import passes as registered

    known = {**registered(), "breaks": Pass("breaks", "takes an operator away", without_its_writer)}
    monkeypatch.setattr("qconvert.conversion.normalizing.pass_named", lambda name: known[name])
    target = Target("t", "onnx", "a target of three passes", passes=tuple(passes))
    for run in (lambda: normalize(network(), target), lambda: run_passes(network(), tuple(passes))):
        with refused(InternalError, "not-computed", where="Relu 'y'", holds=("'m'",)) as caught:
            run()
        assert caught.value.where == "Relu 'y'"


def _cut(path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.formats
@pytest.mark.parametrize(("suffix", "rule"), [("onnx", "not-this-format"), ("tflite", "damaged-file")])
def test_a_writer_that_makes_no_valid_file_leaves_none(suffix: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = format_named(suffix)

    def write(graph: Graph, path: Path, options: object) -> None:
        assert own.write is not None
        own.write(graph, path, {})
        _cut(path, path.read_bytes())

    broken: Callable[[str], Format] = lambda name: replace(own, write=write)  # noqa: E731
    monkeypatch.setattr(saving, "format_named", broken)
    with refused(InternalError, rule, holds=(suffix,)):
        save(network(), tmp_path / f"m.{suffix}", suffix)
    assert not list(tmp_path.iterdir())
