"""Passes run on the functions of a graph too, and leave their inputs and outputs as the operators that name them have fixed them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qconvert.conversion import normalize, run_passes
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators import Kind, function, has
from qconvert.plugins import Target, target_named
from qconvert.rules.validation import validate

GRID = Quantization.per_tensor(0.1, 4)


def _network(name: str, shape: Any = (1, 8, 8, 3)) -> Graph:
    """int8 x -> MaxPool -> Identity -> y, channels last."""
    tensors = {item: Tensor(item, "int8", size, None, GRID) for item, size in (("x", shape), ("m", (1, 4, 4, 3)), ("y", (1, 4, 4, 3)))}
    pool = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "data_format": "channels_last"}
    ops = (Op("MaxPool", ("x",), ("m",), pool), Op("Relu", ("m",), ("y",)))
    return Graph(name, tensors, ops, ("x",), ("y",))


@pytest.fixture
def nested(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """The network, and a function with the same operators, which an operator after it names."""
    from qconvert import operators as kinds

    invoke = Kind(
        "Invoke", "data...", "data...", shape=lambda op, s: [None] * len(op.outputs), rule="opaque", attributes=has(body=function())
    )
    monkeypatch.setitem(kinds._known, "Invoke", invoke)
    outer, inner = _network("outer"), _network("body")
    z = Tensor("z", "int8", (1, 4, 4, 3), None, GRID)
    ops = (*outer.ops, Op("Invoke", ("x",), ("z",), {"body": "body"}))
    return replace(outer, tensors={**outer.tensors, "z": z}, ops=ops, outputs=("y", "z"), functions={"body": inner})


def test_a_target_reaches_into_functions(nested: Graph) -> None:
    validate(nested)
    changed, notes = normalize(nested, target_named("generic"), io_layout="nchw", io="float")
    validate(changed)
    body = changed.functions["body"]
    assert [op["data_format"] for op in body.ops if op.kind == "MaxPool"] == ["channels_first"]
    assert (body["x"].shape, body["x"].dtype, body["y"].shape) == ((1, 8, 8, 3), "int8", (1, 4, 4, 3))  # its border is as it was
    assert changed[changed.inputs[0]].dtype == "float32" and changed[changed.inputs[0]].shape == (1, 3, 8, 8)
    assert "assign_layout: in function 'body': 1 spatial operator to channels_first; 2 Transposes in the graph (exact)" in map(str, notes)


def test_passes_about_the_border_leave_functions_alone(nested: Graph) -> None:
    changed, _ = run_passes(nested, ["signed_to_unsigned"])
    assert changed["y"].dtype == "uint8" and changed.functions["body"]["y"].dtype == "int8"


def test_what_a_pass_does_not_change_is_shared(nested: Graph) -> None:
    changed, notes = run_passes(nested, ["fold_batch_norm"], Target("", "", ""))
    assert notes == () and changed.functions["body"] is nested.functions["body"]
    assert np.array_equal(GRID.scale, [np.float32(0.1)])
