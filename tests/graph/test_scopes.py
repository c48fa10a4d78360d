"""Functions and states of a graph, ranges of stored values, and what frozen means."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.arithmetic import dequantize, quantize
from qconvert.conversion import run_passes
from qconvert.errors import InvalidGraphError, InvalidModelError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.qgraph.document import from_document, to_document
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range
from qconvert.operators import KINDS, Kind, function, has
from qconvert.passes.constants import remove_dead_code
from qconvert.plugins import format_named, passes, target_named, targets
from qconvert.rules.differences import diff
from qconvert.rules.validation import validate

GRID = Quantization.per_tensor(0.5, 3)
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "qgraph.schema.json").read_text())


def t(name: str, dtype: str = "float32", shape: Any = (2,), data: Any = None, quantization: Quantization | None = None) -> Tensor:
    return Tensor(name, dtype, shape, data, quantization)


def counter() -> Graph:
    """y = s + x; s = y: a running sum of integers with a quantization."""
    tensors = [t("x", "int8", quantization=GRID), t("old", "int8", quantization=GRID), t("y", "int8", quantization=GRID)]
    ops = (
        Op("ReadState", (), ("old",), {"state": "sum"}),
        Op("Add", ("x", "old"), ("y",)),
        Op("WriteState", ("y",), (), {"state": "sum"}),
    )
    start = t("sum", "int8", data=np.array([3, 5], np.int8), quantization=GRID)
    return Graph("counter", {item.name: item for item in tensors}, ops, ("x",), ("y",), states={"sum": start})


@pytest.fixture
def call_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that names a function, as control flow will."""
    from qconvert import operators as kinds

    made = Kind(
        "Invoke", "data...", "data...", shape=lambda op, s: [None] * len(op.outputs), rule="opaque", attributes=has(body=function())
    )
    monkeypatch.setitem(kinds._known, "Invoke", made)


def nested() -> Graph:
    """y = body(x), where body is a Relu."""
    body = Graph("body", {"a": t("a"), "b": t("b")}, (Op("Relu", ("a",), ("b",)),), ("a",), ("b",))
    tensors = {"x": t("x"), "y": t("y")}
    return Graph("outer", tensors, (Op("Invoke", ("x",), ("y",), {"body": "body"}),), ("x",), ("y",), functions={"body": body})


def test_states_live_from_run_to_run() -> None:
    graph, states = counter(), dict[str, np.ndarray[Any, Any]]()
    validate(graph)
    x = np.array([4, 1], np.int8)  # real 0.5 and -1.0
    assert evaluate(graph, {"x": x}, states)["y"].tolist() == [4, 3]
    assert evaluate(graph, {"x": x}, states)["y"].tolist() == [5, 1]
    assert states["sum"].tolist() == [5, 1]
    assert evaluate(graph, {"x": x})["y"].tolist() == [4, 3]  # without states: a first run


@pytest.mark.parametrize("name", sorted({*passes()} - {"states_to_io"}))  # which has tests of its own
def test_every_pass_takes_states(name: str) -> None:
    """A ReadState has no input and a WriteState no output; what a pass makes is valid and gives the same second run."""
    graph = counter()
    changed, _ = run_passes(graph, (name,), target_named("ort-x86"))
    found = []
    for item in (graph, changed):
        states: dict[str, np.ndarray[Any, Any]] = {}
        for value in (4, 1):
            feed = np.array([value, 9], np.int8) if item["x"].is_quantized else None
            stored = quantize(np.array([value - 3, 6]) * 0.5, item["x"].quantization, item["x"].dtype) if feed is not None else None  # type: ignore[arg-type]
            x = stored if stored is not None else np.array([value - 3, 6], np.float32) * np.float32(0.5)
            y = evaluate(item, {"x": x}, states)["y"]
        found.append(dequantize(y, item["y"].quantization) if item["y"].quantization is not None else y)
    steps = [float(tensor.quantization.scale.max()) for tensor in changed.tensors.values() if tensor.quantization is not None]
    allowed = 0.0 if passes()[name].exact or max(steps, default=0.0) <= 0.5 else max(steps) / 2  # coarser quantizations round
    assert found[0].tolist() == [-0.5, 7.0] and np.abs(found[1] - found[0]).max() <= allowed


@pytest.mark.formats
@pytest.mark.parametrize("target", sorted({*targets()} - {"tensorrt-cache"}))  # which takes a file of scales besides
def test_a_state_is_kept_or_refused_in_words(target: str, tmp_path: Path) -> None:
    graph, chosen = counter(), target_named(target)
    verdicts = {op.kind: verdict.runs for op, verdict in chosen.verdicts(graph, final=False)}
    assert (verdicts["ReadState"], verdicts["WriteState"]) == ("integers", "integers")
    qconvert.save(graph, tmp_path / "g.qgraph")
    suffix = ".pt2" if chosen.write_options.get("form") == "program" else format_named(chosen.format).suffixes[0]
    result = tmp_path / f"out{suffix}"
    if "states" in format_named(chosen.format).scopes or "states_to_io" in chosen.passes:
        qconvert.convert(tmp_path / "g.qgraph", result, target=target)
        (state,) = qconvert.load(result).states.values()
        assert state.quantization is not None and state.data is not None
        assert state.name == "sum" and dequantize(state.data, state.quantization).tolist() == [0.0, 1.0]
        if chosen.cpu:
            assert all(op.integer or op.kind == "Requantize" for op in qconvert.audit(tmp_path / "g.qgraph", target).operators)
        return
    with refused(UnsupportedError, "scopes-not-writable", holds=("'sum'",)):
        qconvert.convert(tmp_path / "g.qgraph", result, target=target)


def test_a_write_is_not_dead_code() -> None:
    graph = counter()
    unread = replace(graph, outputs=())
    changed, _ = remove_dead_code(unread, None)
    assert [op.kind for op in changed.ops] == ["ReadState", "Add", "WriteState"]


STATE_FAULTS: Mapping[str, tuple[Any, str, tuple[object, ...]]] = {
    "another name": (lambda g: replace(g, states={"total": g.states["sum"]}), "wrong-key", ("'sum'",)),
    "no value": (lambda g: replace(g, states={"sum": replace(g.states["sum"], data=None)}), "no-initial-value", ()),
    "missing": (lambda g: replace(g, states={}), "unknown-state", ("'sum'",)),
    "quantization": (
        lambda g: replace(g, states={"sum": replace(g.states["sum"], quantization=None)}),
        "state-mismatch",
        ("'old'",),
    ),
    "shape": (
        lambda g: replace(g, states={"sum": t("sum", "int8", (3,), np.zeros(3, np.int8), GRID)}),
        "state-mismatch",
        ("'old'",),
    ),
}


@pytest.mark.parametrize("name", STATE_FAULTS)
def test_broken_states_are_named(name: str) -> None:
    change, rule, holds = STATE_FAULTS[name]
    with refused(InvalidGraphError, rule, holds=holds):
        validate(change(counter()))


FUNCTION_FAULTS: Mapping[str, tuple[Any, str, str, tuple[object, ...]]] = {
    "missing": (lambda g: replace(g, functions={}), "Invoke 'y'", "unknown-function", ("'body'",)),
    "inner": (
        lambda g: replace(g, functions={"body": replace(g.functions["body"], outputs=("c",))}),
        "function 'body', tensor 'c'",
        "unknown-tensor",
        (),
    ),
    "own states": (
        lambda g: replace(g, functions={"body": replace(g.functions["body"], states=counter().states)}),
        "function 'body'",
        "nested-scope",
        ("states",),
    ),
    "itself": (
        lambda g: replace(g, functions={"body": replace(g.functions["body"], ops=(Op("Invoke", ("a",), ("b",), {"body": "body"}),))}),
        "function 'body'",
        "recursive-function",
        (),
    ),
    "no text": (lambda g: replace(g, ops=(Op("Invoke", ("x",), ("y",), {"body": 1}),)), "Invoke 'y'", "attribute-value", ("'body'",)),
}


@pytest.mark.usefixtures("call_kind")
@pytest.mark.parametrize("name", FUNCTION_FAULTS)
def test_broken_functions_are_named(name: str) -> None:
    validate(nested())
    change, where, rule, holds = FUNCTION_FAULTS[name]
    with refused(InvalidGraphError, rule, holds=holds) as caught:
        validate(change(nested()))
    assert caught.value.where.startswith(where)


@pytest.mark.formats
@pytest.mark.usefixtures("call_kind")
@pytest.mark.parametrize("made", [counter, nested])
def test_they_survive_the_file(made: Any, tmp_path: Path) -> None:
    graph = made()
    document = json.loads(json.dumps(to_document(graph)))
    jsonschema.validate(document, SCHEMA)
    path = tmp_path / "g.qgraph"
    qconvert.save(graph, path)
    again = qconvert.load(path)
    assert diff(graph, again, exact=True) == []
    assert again.states.keys() == graph.states.keys() and again.functions.keys() == graph.functions.keys()
    assert all(again.states[name] == state for name, state in graph.states.items())


@pytest.mark.formats
def test_constants_of_one_name_in_several_graphs_are_kept_apart(tmp_path: Path) -> None:
    outer = Graph(
        "o", {"x": t("x"), "c": t("c", data=np.ones(2, np.float32)), "y": t("y")}, (Op("Add", ("x", "c"), ("y",)),), ("x",), ("y",)
    )
    inner = replace(outer, tensors={**outer.tensors, "c": t("c", data=np.full(2, 7, np.float32))})
    graph = replace(outer, functions={"f": inner}, states={"c": t("c", data=np.full(2, 9, np.float32))})
    qconvert.save(graph, tmp_path / "g.qgraph")
    again = qconvert.load(tmp_path / "g.qgraph")
    found = [again["c"].data, again.functions["f"]["c"].data, again.states["c"].data]
    assert [data.tolist() for data in found if data is not None] == [[1, 1], [7, 7], [9, 9]]


@pytest.mark.usefixtures("call_kind")
def test_differences_name_them() -> None:
    graph = nested()
    other = replace(graph.functions["body"], ops=(Op("Tanh", ("a",), ("b",)),))
    assert diff(graph, replace(graph, functions={"body": other})) == ["function 'body': - Relu 'b'", "function 'body': + Tanh 'b'"]
    assert diff(graph, replace(graph, functions={})) == ["- function 'body'"]
    changed = replace(counter(), states={"sum": t("sum", "int8", data=np.array([3, 6], np.int8), quantization=GRID)})
    assert diff(counter(), changed) == ["state 'sum': 1 of 2 elements differ, by at most 1"]
    assert diff(counter(), replace(counter(), states={})) == ["- state 'sum'"]


def test_a_document_with_a_broken_function_says_where() -> None:
    document = to_document(replace(counter(), functions={"f": replace(counter(), states={})}))
    document["functions"]["f"]["ops"][1]["kind"] = 5
    with refused(InvalidModelError, "wrong-type", holds=("functions['f'].ops[1].kind",)):
        from_document(document, {})


# ranges of stored values

NARROW = Quantization(np.array([0.5], np.float32), np.array([0]), quant_min=-7, quant_max=7)


def test_a_narrow_range_saturates_earlier() -> None:
    assert quantize(np.array([-9.0, -1.0, 2.5, 9.0]), NARROW, "int8").tolist() == [-7, -2, 5, 7]
    assert NARROW.limits("int8") == (-7, 7) and GRID.limits("int8") == (-128, 127)
    assert clip_range(t("x", "int8", quantization=NARROW), ACTIVATIONS["relu"]) == (0, 7)
    assert NARROW.shift_zero_point(128).limits("uint8") == (121, 135)
    assert replace(NARROW, quant_min=-8) != NARROW


@pytest.mark.formats
def test_a_narrow_range_is_evaluated_kept_and_compared(tmp_path: Path) -> None:
    x, y = t("x"), t("y", "int8", quantization=NARROW)
    graph = Graph("g", {"x": x, "y": y}, (Op("Quantize", ("x",), ("y",)),), ("x",), ("y",))
    assert evaluate(graph, {"x": np.array([50.0, -50.0], np.float32)})["y"].tolist() == [7, -7]
    qconvert.save(graph, tmp_path / "g.qgraph")
    assert qconvert.load(tmp_path / "g.qgraph")["y"].quantization == NARROW
    wide = replace(graph, tensors={"x": x, "y": t("y", "int8", quantization=replace(NARROW, quant_max=None))})
    assert diff(graph, wide) == ["tensor 'y': largest stored value 7 -> of the type"]


@pytest.mark.formats
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_a_format_that_cannot_state_a_range_refuses_it(suffix: str, tmp_path: Path) -> None:
    graph = Graph("g", {"x": t("x"), "y": t("y", "int8", quantization=NARROW)}, (Op("Quantize", ("x",), ("y",)),), ("x",), ("y",))
    with refused(UnsupportedError, "range-not-writable", holds=("'y'",)):
        qconvert.save(graph, tmp_path / f"g{suffix}")
    assert not list(tmp_path.iterdir())
    qconvert.save(replace(graph, tensors={"x": t("x"), "y": t("y", "int8", quantization=GRID)}), tmp_path / f"g{suffix}")


@pytest.mark.formats
@pytest.mark.parametrize("dtype", ["float8e4m3fn", "float8e5m2"])
def test_small_floats_have_no_range_to_state(dtype: str, tmp_path: Path) -> None:
    quantization = Quantization(np.array([0.5], np.float32), np.array([0]))
    graph = Graph("g", {"x": t("x"), "y": t("y", dtype, quantization=quantization)}, (Op("Quantize", ("x",), ("y",)),), ("x",), ("y",))
    qconvert.save(graph, tmp_path / "g.onnx")
    assert diff(graph, qconvert.load(tmp_path / "g.onnx")) == []
    with refused(InvalidGraphError, "invalid-range", holds=("-7", 7, dtype)):
        validate(replace(graph, tensors={"x": t("x"), "y": t("y", dtype, quantization=NARROW)}))


@pytest.mark.parametrize(
    ("low", "high", "data", "rule", "holds"),
    [(-200, 7, None, "invalid-range", ("int8", "-200", 7)), (7, 7, None, "invalid-range", (7,)),
     (-7, 7, [1, 8], "data-out-of-range", ("-7", 7))],
)  # fmt: skip
def test_a_wrong_range_is_refused(low: int, high: int, data: Any, rule: str, holds: tuple[object, ...]) -> None:
    quantization = replace(NARROW, quant_min=low, quant_max=high)
    c = t("c", "int8", data=None if data is None else np.array(data, np.int8), quantization=quantization)
    with refused(InvalidGraphError, rule, holds=holds):
        validate(Graph("g", {"c": c}, (), () if data else ("c",), ("c",)))


# frozen


def test_frozen_means_frozen() -> None:
    own = np.array([1, 2], np.int8)
    tensor = t("c", "int8", data=own, quantization=GRID)
    graph = Graph("g", {"c": tensor}, (Op("Softmax", ("c",), ("y",), {"axis": 0}),), (), ("c",), metadata={"a": "b"})
    for array in (graph["c"].data, GRID.scale, GRID.zero_point):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9
    mappings: list[Any] = [graph.tensors, graph.metadata, graph.functions, graph.states, graph.ops[0].attributes, KINDS]
    for mapping in mappings:
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["c"] = tensor
    own[0] = 7  # the caller's array stays the caller's
    assert own.tolist() == [7, 2]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_a_copy_is_equal_and_frozen_too(again: Any) -> None:
    graph = replace(counter(), metadata={"a": "b"}, signatures=(qconvert.Signature("s", {"x": "x"}, {"y": "y"}),))
    graph = replace(graph, functions={"inner": replace(graph, functions={}, states={}, signatures=())})
    found = again(graph)
    assert found == graph and diff(graph, found, exact=True) == []
    state = found.states["sum"]
    for array in (state.data, state.quantization.scale, state.quantization.zero_point):
        assert not array.flags.writeable
    for mapping in (found.tensors, found.ops[0].attributes, found.signatures[0].inputs, found.functions["inner"].tensors):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["c"] = 1


def test_a_kind_that_is_none_has_no_evaluation() -> None:
    graph = Graph("g", {"x": t("x"), "y": t("y")}, (Op("Nothing", ("x",), ("y",)),), ("x",), ("y",))
    with refused(UnsupportedError, "not-evaluated", holds=("Nothing",)):
        evaluate(graph, {"x": np.zeros(2, np.float32)})


def test_absent_operands_of_other_operators_do_not_disturb_match_rounding() -> None:
    ops = (Op("Clip", ("x", "", "top"), ("y",)),)
    tensors = {"x": t("x"), "y": t("y"), "top": t("top", shape=(), data=np.array(1.0, np.float32))}
    graph = Graph("g", tensors, ops, ("x",), ("y",), metadata={"source.kernels": "litert:default"})
    assert run_passes(graph, ("match_rounding",), target_named("ort-x86")) == (graph, ())


def test_constants_of_different_ranges_are_different() -> None:
    data, wide = np.array([1, 2], np.int8), replace(NARROW, quant_max=9)
    tensors = {
        "a": t("a", "int8", data=data, quantization=NARROW),
        "b": t("b", "int8", data=data, quantization=wide),
        "y": t("y", "int8", quantization=GRID),
    }
    graph = Graph("g", tensors, (Op("Add", ("a", "b"), ("y",)),), (), ("y",))
    assert run_passes(graph, ("deduplicate_constants",)) == (graph, ())
    same = replace(graph, tensors={**tensors, "b": t("b", "int8", data=data, quantization=NARROW)})
    assert run_passes(same, ("deduplicate_constants",))[0].ops[0].inputs == ("a", "a")
