"""states_to_io and io_to_states: states as inputs and outputs, what the metadata say of them, and states again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from refusals import refused

import qconvert
from qconvert.conversion import run_passes
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.carried_states import Carried, carried_text, parse_states
from qconvert.graph.metadata import STATES
from qconvert.rules.validation import validate

pytestmark = pytest.mark.formats

Array = np.ndarray[Any, np.dtype[Any]]
GRID = Quantization.per_tensor(0.5, 3)
FEEDS = [np.array(pair, np.int8) for pair in ([4, 9], [-7, 3], [100, 2], [5, -9])]


def counter(first: Any = (3, 5), ops: tuple[Op, ...] = (), outputs: tuple[str, ...] = ("y",)) -> Graph:
    """y = s + x; s = y: a running sum of integers with a quantization."""
    tensors = [Tensor(name, "int8", (2,), None, GRID) for name in ("x", "old", "y", "new")]
    usual = (
        Op("ReadState", (), ("old",), {"state": "sum"}),
        Op("Add", ("x", "old"), ("y",)),
        Op("WriteState", ("y",), (), {"state": "sum"}),
    )
    state = Tensor("sum", "int8", (2,), np.array(first, np.int8), GRID)
    graph = Graph("counter", {t.name: t for t in tensors}, (), ("x",), outputs, states={"sum": state})
    return graph.evolve(ops=ops or usual)


def evaluated(graph: Graph) -> list[list[int]]:
    states: dict[str, Array] = {}
    return [[value for name in graph.outputs for value in evaluate(graph, {"x": x}, states)[name].tolist()][:2] for x in FEEDS]


def by_hand(graph: Graph) -> list[list[int]]:
    """The network with its states as inputs and outputs, run by what the metadata say."""
    pairs = parse_states(graph.metadata[STATES])
    values, found = {item.input: item.first for item in pairs}, []
    for x in FEEDS:
        results = evaluate(graph, {"x": x, **values})
        values = {item.input: results[item.output] for item in pairs}
        found.append(results[graph.outputs[0]].tolist())
    return found


def test_states_are_inputs_and_outputs_and_states_again() -> None:
    plain, changes = run_passes(counter(), ("states_to_io",))
    assert (plain.inputs, plain.outputs, dict(plain.states)) == (("x", "sum"), ("y", "sum_next"), {})
    assert "'sum' -> 'sum_next'" in changes[0].text and changes[0].exact
    assert by_hand(plain) == evaluated(counter()) == [[4, 11], [-6, 11], [91, 10], [93, -2]]
    again, _ = run_passes(plain, ("io_to_states",))
    assert qconvert.diff(again, counter()) == [] and STATES not in again.metadata and evaluated(again) == evaluated(counter())


def test_the_order_of_reads_and_writes_counts() -> None:
    """What is read after a write is the new value; a state may be an output, and an input may be written as it is."""
    ops = (
        Op("WriteState", ("x",), (), {"state": "sum"}),
        Op("ReadState", (), ("old",), {"state": "sum"}),
        Op("Add", ("x", "old"), ("y",)),
    )
    late = counter(ops=ops)
    kept = counter(ops=(Op("ReadState", (), ("old",), {"state": "sum"}), Op("WriteState", ("x",), (), {"state": "sum"})), outputs=("old",))
    unread = counter(ops=(Op("Identity", ("x",), ("y",)), Op("WriteState", ("x",), (), {"state": "sum"})))
    for graph in (late, kept, unread):
        plain, _ = run_passes(graph, ("states_to_io",))
        validate(plain)
        again, _ = run_passes(plain, ("io_to_states",))
        validate(again)
        assert by_hand(plain) == evaluated(graph) == evaluated(again)


def test_names_that_are_taken_are_left_alone() -> None:
    graph = counter()
    graph = replace(graph, states={"x": replace(graph.states["sum"], name="x")})
    graph = graph.evolve(ops=[op.with_attributes(state="x") if "state" in op.attributes else op for op in graph.ops])
    plain, _ = run_passes(graph, ("states_to_io",))
    assert (plain.inputs, plain.outputs) == (("x", "x_1"), ("y", "x_next"))
    assert qconvert.diff(run_passes(plain, ("io_to_states",))[0], graph) == []


def test_a_function_with_a_state_is_refused_by_name() -> None:
    graph = counter()
    inner = replace(graph, states={}, inputs=("x",))
    with refused(UnsupportedError, "state-in-function", where="function 'f'"):
        run_passes(replace(graph, functions={"f": inner}), ("states_to_io",))


@pytest.mark.parametrize("first", [(3, 3), (3, 5)], ids=["one number", "bytes"])
def test_what_stands_in_the_metadata_is_the_state(first: Any) -> None:
    state = replace(counter(first).states["sum"], name="sum/of é")
    for tensor in (
        state,
        Tensor("f", "float32", (2, 1), np.array([[0.1], [np.inf]], np.float32)),
        Tensor("minus zero", "float32", (1,), np.array([-0.0], np.float32)),
        Tensor("empty", "float16", (0, 3), np.zeros((0, 3), np.float16)),
        Tensor("scalar", "int64", (), np.array(2**62 + 1)),
        Tensor("yes", "bool", (2,), np.array([True, True])),
        Tensor("channels", "int8", (2,), np.array([1, 2], np.int8), Quantization.per_axis([0.5, 0.25], 0, [0, 3])),
    ):
        (again,) = parse_states(carried_text([Carried("in", "out", tensor)]))
        assert again == Carried("in", "out", tensor) and again.first.tobytes() == np.ascontiguousarray(tensor.data).tobytes()


GOOD: Mapping[str, Any] = {
    "state": "sum", "input": "sum", "output": "sum_next", "dtype": "int8", "shape": [2], "value": 3, "scale": [0.5], "zero_point": [3],
    "axis": None,
}  # fmt: skip
FAULTS = {
    "no JSON": ("{", "malformed-metadata", ()),
    "no list": (json.dumps(GOOD), "malformed-metadata", ()),
    "no input": (json.dumps([{**GOOD, "input": "z"}]), "unknown-tensor", ("'z'",)),
    "no output": (json.dumps([{**GOOD, "output": "z"}]), "unknown-tensor", ("'z'",)),
    "a name that is none": (json.dumps([{**GOOD, "input": 3}]), "malformed-metadata", ()),
    "other type": (json.dumps([{**GOOD, "dtype": "int16"}]), "type-mismatch", ("'sum'", "int16")),
    "no type": (json.dumps([{**GOOD, "dtype": "resource"}]), "malformed-metadata", ("'resource'",)),
    "other shape": (json.dumps([{**GOOD, "shape": [3]}]), "type-mismatch", ("'sum'", "(3,)")),
    "huge": (json.dumps([{**GOOD, "shape": [2**30, 2**30]}]), "malformed-metadata", ("16777216",)),
    "negative": (json.dumps([{**GOOD, "shape": [-2]}]), "malformed-metadata", ("(-2,)",)),
    "too few bytes": (json.dumps([{**GOOD, "data": "AAAA"}]), "malformed-metadata", (3, "'sum'")),
    "no integer": (json.dumps([{**GOOD, "value": 300}]), "malformed-metadata", (300, "int8")),
    "a scale": (json.dumps([{**GOOD, "scale": [-1.0]}]), "malformed-metadata", ()),
    "twice": (json.dumps([GOOD, {**GOOD, "output": "y"}]), "malformed-metadata", ()),
    "nested": ("[" * 100_000, "malformed-metadata", ()),
}


@pytest.mark.parametrize("name", FAULTS)
def test_metadata_that_are_no_states_are_an_error(name: str, tmp_path: Path) -> None:
    text, rule, named = FAULTS[name]
    qconvert.save(run_passes(counter(), ("states_to_io",))[0], tmp_path / "g.onnx")
    model = onnx.load(tmp_path / "g.onnx")
    (entry,) = [item for item in model.metadata_props if item.key == STATES]
    entry.value = text
    onnx.save(model, tmp_path / "g.onnx")
    with refused(InvalidModelError, rule, holds=named) as caught:
        qconvert.load(tmp_path / "g.onnx")
    assert caught.value.file == str(tmp_path / "g.onnx")


@pytest.mark.parametrize("target", ["ort-x86", "ort-arm", "generic"])
def test_a_state_goes_to_onnx_and_back(target: str, tmp_path: Path) -> None:
    """The types are the target's, first values move along with them, and nothing but a move stands around a state."""
    qconvert.save(counter(), tmp_path / "a.qgraph")
    qconvert.convert(tmp_path / "a.qgraph", tmp_path / "b.onnx", target=target)
    qconvert.convert(tmp_path / "b.onnx", tmp_path / "c.onnx")
    loaded = qconvert.load(tmp_path / "b.onnx")
    assert qconvert.diff(loaded, qconvert.load(tmp_path / "c.onnx")) == []
    state = loaded.states["sum"]
    assert state.data is not None and state.quantization is not None
    assert state.dtype == ("uint8" if target == "ort-x86" else "int8")
    assert ((state.data.astype(int) - state.quantization.zero_point) * 0.5).tolist() == [0.0, 1.0]
    assert evaluated(loaded) == evaluated(counter())
    qconvert.convert(tmp_path / "c.onnx", tmp_path / "d.tflite")
    assert qconvert.diff(qconvert.load(tmp_path / "d.tflite"), counter()) == []


def test_every_pass_of_a_conversion_is_verified_over_steps(tmp_path: Path) -> None:
    qconvert.save(counter(), tmp_path / "a.qgraph")
    report = qconvert.convert(tmp_path / "a.qgraph", tmp_path / "b.onnx", verify_each=True)
    assert dict(report.verified) == dict.fromkeys(("store_activations", "states_to_io"), "leaves every output equal")


def test_a_graph_with_states_is_not_saved_where_there_are_none(tmp_path: Path) -> None:
    with refused(UnsupportedError, "scopes-not-writable", holds=("'sum'",)) as caught:
        qconvert.save(counter(), tmp_path / "g.onnx")
    assert "states_to_io" in (caught.value.remedy or "")
