"""remove_dead_code: what no output needs goes, the rest stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from passes.graphs import applied, assert_equal, constant, make

from qconvert import Op, Tensor
from qconvert.graph import Signature

X = Tensor("x", "float32", (2, 3))
ONE = constant("one", np.float32([1]))


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_dead_operators_and_their_constants_go() -> None:
    ops = [
        Op("Relu", ("x",), ("a",)),
        Op("Add", ("a", "one"), ("dead",)),
        Op("Neg", ("dead",), ("deader",)),
        Op("Abs", ("a",), ("y",)),
    ]
    graph = make(ops, [X, ONE], "x", "y")
    changed, notes = applied(graph, "remove_dead_code")
    assert [op.kind for op in changed.ops] == ["Relu", "Abs"]
    assert set(changed.tensors) == {"x", "a", "y"}
    assert notes == ("2 operators (1 Add, 1 Neg) and 3 tensors that no output needs are removed",)
    assert_equal(graph, changed, {"x": np.float32([[1, -2, 3], [4, -5, 6]])})


def test_inputs_and_outputs_of_signatures_stay() -> None:
    graph = make([Op("Relu", ("x",), ("y",)), Op("Neg", ("x",), ("z",))], [X, Tensor("unread", "int8", (1,))], "x unread", "y")
    named = replace(graph, signatures=(Signature("main", {"x": "x"}, {"z": "z"}),))
    changed, notes = applied(named, "remove_dead_code")
    assert changed is named and notes == ()
    assert set(applied(graph, "remove_dead_code")[0].tensors) == {"x", "y", "unread"}


def test_an_operator_with_one_needed_output_stays() -> None:
    sizes = constant("sizes", np.array([1, 1], np.int64))
    graph = make([Op("Split", ("x", "sizes"), ("y", "z"), {"axis": 0}), Op("Neg", ("z",), ("dead",))], [X, sizes], "x", "y")
    changed, _ = applied(graph, "remove_dead_code")
    assert changed.ops == graph.ops[:1]
