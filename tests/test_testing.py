"""What qconvert.testing promises to authors of plugins: right ones pass, wrong ones fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert import Format, Graph, Pass, Runtime, Target
from qconvert.errors import OptionError, UnsupportedError
from qconvert.kernels import Kernel, Kernels
from qconvert.plugin import hookimpl
from qconvert.plugins import passes, temporary_plugin
from qconvert.pytest_plugin import sample_graph
from qconvert.testing import (
    assert_exact,
    assert_kernels_hold,
    assert_round_trips,
    assert_target_takes,
    random_inputs,
    sample_graphs,
    try_kernels,
)

pytestmark = pytest.mark.formats


def test_the_fixture_gives_every_graph(request: pytest.FixtureRequest) -> None:
    marker: Any = sample_graph
    assert tuple(marker._fixture_function_marker.params) == tuple(sample_graphs())


def test_inputs_fit_a_graph(sample_graph: Graph) -> None:
    first, second = random_inputs(sample_graph), random_inputs(sample_graph, seed=1)
    for name, value in first.items():
        assert value.shape == sample_graph[name].shape
        assert not np.array_equal(value, second[name])


@pytest.mark.parametrize("name", ["onnx", "tflite", "qgraph"])
def test_our_formats_round_trip(name: str) -> None:
    assert assert_round_trips(name) == ()


def test_our_passes_are_exact() -> None:
    assert_exact("fuse_activation", [sample_graphs()["real"]])
    assert_exact(passes()["assign_layout"], [sample_graphs()["convolutions"]], Target("t", "onnx", "", layout="channels_first"))
    with pytest.raises(AssertionError, match="the pass changed none"):
        assert_exact("fuse_activation", [sample_graphs()["moves"]])


def test_a_pass_that_changes_values_is_not_exact() -> None:
    def coarse(graph: Graph, target: Any) -> Any:
        weights = [replace(t, data=t.data // 2 * 2) for t in graph.constants() if t.dtype == "int8" and t.data is not None]
        return graph.evolve(tensors=weights), ("coarser",)

    with pytest.raises(AssertionError, match="pass coarse: the output 'scores' of 'convolutions of int8' differs"):
        assert_exact(Pass("coarse", "", coarse))


def test_targets_take_or_refuse() -> None:
    for name in ("ort-x86", "tflite", "generic"):
        assert_target_takes(name)
    with pytest.raises(AssertionError, match=r"picky refuses in .*Softmax"):
        assert_target_takes(Target("picky", "onnx", "", kernels=Kernels().without("Softmax"), floats=False))


def test_targets_that_are_derived_by_name_are_tried() -> None:
    derived = Target.derive("ort-x86", name="mine", kernels=Kernels().without("Softmax"), floats=False)
    with pytest.raises(AssertionError, match=r"mine refuses in .*Softmax"):
        assert_target_takes(derived)


@pytest.mark.onnxruntime
def test_kernels_are_tried_on_a_target_that_is_derived_by_name() -> None:
    other = Target.derive("ort-x86", name="other")
    (found,) = assert_kernels_hold("onnxruntime:optimized", other, kinds=("Add",), types=("uint8",), count=1)
    assert found.elements and not found.differing


def test_a_kind_without_random_operators_is_named() -> None:
    with refused(OptionError, "unknown-kind", holds=("acme.Snake", "conformance/examples.py")):
        try_kernels("litert:reference", "tflite", kinds=("acme.Snake",))


def test_a_format_that_loses_integers_does_not_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qconvert.formats.qgraph import qconvert_formats

    (own,) = qconvert_formats()
    assert own.write is not None

    def write(graph: Graph, path: Path, options: Any) -> Any:
        if graph.name == "moves":
            raise UnsupportedError("moves")
        lost = [replace(t, data=np.zeros_like(t.data)) for t in graph.constants() if t.dtype == "int32"]
        own.write(graph.evolve(tensors=lost), path, options)  # type: ignore[misc]

    class Plugin:
        @staticmethod
        def qconvert_formats() -> list[Format]:
            return [replace(own, name="lossy", suffixes=(".lossy",), write=write)]

    from qconvert import hookimpl

    Plugin.qconvert_formats = staticmethod(hookimpl(Plugin.qconvert_formats))  # type: ignore[method-assign]
    with temporary_plugin(Plugin(), "lossy"):
        with pytest.raises(AssertionError, match="lossy: convolutions: the output 'scores'"):
            assert_round_trips("lossy")
        assert assert_round_trips("lossy", {name: sample_graphs()[name] for name in ("moves", "real")}) == ("moves",)


def test_rows_name_kinds_that_exist() -> None:
    rows = Kernels((Kernel(("SoftMax",), ("int8",)),))
    runtime: Any = Runtime("mine", ("onnx",), "", "", lambda file: None, lambda kernels: rows, ("x",))  # type: ignore[arg-type, return-value]
    with (
        temporary_plugin(SimpleNamespace(qconvert_runtimes=hookimpl(lambda: [runtime])), "mine"),
        pytest.raises(AssertionError, match="'Softmax'"),
    ):
        assert_kernels_hold("mine", "generic", kinds=("Relu",), count=1)


def test_what_keeps_every_problem_from_its_runtime_is_named() -> None:
    runtime: Any = Runtime("mine", ("onnx",), "", "", lambda file: None, lambda kernels: Kernels(), ("x",))  # type: ignore[arg-type, return-value]
    target = Target("mine", "onnx", "", passes=("match_scales", "isolate_float"))
    with (
        temporary_plugin(SimpleNamespace(qconvert_runtimes=hookimpl(lambda: [runtime])), "mine"),
        pytest.raises(AssertionError, match="Relu: the pass match_scales has to run after isolate_float"),
    ):
        assert_kernels_hold("mine", target, kinds=("Relu",), count=1)
