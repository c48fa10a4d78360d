"""States that functions name go through them as values: a TFLite file with variables inside IF and WHILE, and graphs of each operator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.conversion import run_passes
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.reader import read_bytes
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators.shapes_and_functions import all_ops
from qconvert.rules.validation import validate
from qconvert.runtimes.litert import LiteRT
from qconvert.streaming import Session
from tests.tflite_models import OpSpec, TensorSpec, model

F = (2,)
FEEDS = [np.array(pair, np.float32) for pair in ([4, 9], [-7, 3], [100, 2], [5, -9])]


def t(name: str, shape: tuple[int, ...] = F, dtype: str = "float32", data: Any = None) -> Tensor:
    return Tensor(name, dtype, shape, None if data is None else np.array(data, dtype))


def function(name: str, ops: list[Op], tensors: list[Tensor], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
    return Graph(name, {item.name: item for item in tensors}, tuple(ops), inputs, outputs)


READ, WRITE = Op("ReadState", (), ("old",), {"state": "s"}), Op("WriteState", ("y",), (), {"state": "s"})
#: y = x + s; s = y
ADDING = function("adding", [READ, Op("Add", ("x", "old"), ("y",)), WRITE], [t("x"), t("old"), t("y")], ("x",), ("y",))
#: y = x * s
SCALING = function("scaling", [READ, Op("Mul", ("x", "old"), ("y",))], [t("x"), t("old"), t("y")], ("x",), ("y",))
#: s = -x
KEEPING = function("keeping", [Op("Neg", ("x",), ("y",)), Op("WriteState", ("x",), (), {"state": "s"})], [t("x"), t("y")], ("x",), ("y",))


def network(ops: list[Op], tensors: list[Tensor], functions: list[Graph], outputs: tuple[str, ...] = ("z",)) -> Graph:
    held = {"s": t("s", data=[5, -1]), "unused": t("unused", data=[0, 1])}
    more = [Op("ReadState", (), ("beside",), {"state": "unused"}), Op("WriteState", ("x",), (), {"state": "unused"})]
    named = {item.name: item for item in [t("x"), t("beside"), *tensors]}
    return Graph("g", named, (*ops, *more), ("x",), (*outputs, "beside"), functions={item.name: item for item in functions}, states=held)


def choosing() -> Graph:
    """A branch that writes the state, one that reads it; it is read after them."""
    ops = [
        Op("ReduceSum", ("x", "axes"), ("total",), {"keepdims": 0}),
        Op("Greater", ("total", "limit"), ("c",)),
        Op("If", ("c", "x"), ("y",), {"then_branch": "adding", "else_branch": "scaling"}),
        Op("ReadState", (), ("now",), {"state": "s"}),
        Op("Add", ("y", "now"), ("z",)),
    ]
    tensors = [t("axes", (1,), "int64", [0]), t("total", ()), t("limit", (), data=1.0), t("c", (), "bool"), t("y"), t("now"), t("z")]
    return network(ops, tensors, [ADDING, SCALING])


def calling() -> Graph:
    """Two calls of one function, one after the other, the second within another function."""
    outer = function("outer", [Op("Call", ("x",), ("y",), {"function": "adding"})], [t("x"), t("y")], ("x",), ("y",))
    ops = [Op("Call", ("x",), ("y",), {"function": "adding"}), Op("Call", ("y",), ("z",), {"function": "outer"})]
    return network(ops, [t("y"), t("z")], [ADDING, outer])


def looping(kind: str) -> Graph:
    if kind == "Scan":
        body = function(
            "body",
            [READ, Op("Add", ("v", "old"), ("w",)), Op("Mul", ("w", "e"), ("y",)), WRITE, Op("Neg", ("y",), ("r",))],
            [t("v"), t("old"), t("w"), t("e", ()), t("y"), t("r")], ("v", "e"), ("w", "r"),
        )  # fmt: skip
        ops = [Op("Scan", ("x", "x"), ("z", "stack"), {"body": "body", "carried": 1, "num_scan_inputs": 1})]
        return network(ops, [t("z"), t("stack", (2, 2))], [body], ("z", "stack"))
    numbers = [t("i", (), "int64"), t("go", (), "bool")]
    if kind == "Loop":
        body = function(
            "body",
            [READ, Op("Add", ("v", "old"), ("y",)), WRITE, Op("Identity", ("go",), ("again",)), Op("Neg", ("y",), ("r",))],
            [*numbers, t("v"), t("old"), t("y"), t("again", (), "bool"), t("r")], ("i", "go", "v"), ("again", "y", "r"),
        )  # fmt: skip
        ops = [Op("Loop", ("n", "", "x"), ("z", "stack"), {"body": "body", "carried": 1})]
        return network(ops, [t("n", (), "int64", 3), t("z"), t("stack", (3, 2))], [body], ("z", "stack"))
    read = Op("ReadState", (), ("limit",), {"state": "s"})
    ends = [read, Op("ReduceSum", ("limit", "axes"), ("sum",), {"keepdims": 0}), Op("Less", ("sum", "most"), ("below",))]
    tensors = [t("x"), t("limit"), t("axes", (1,), "int64", [0]), t("sum", ()), t("most", (), data=50), t("below", (), "bool")]
    condition = function("condition", ends, tensors, ("x",), ("below",))
    step = function(
        "step",
        [READ, Op("Abs", ("x",), ("a",)), Op("Add", ("a", "old"), ("b",)), Op("Add", ("b", "one"), ("y",)), WRITE],
        [t("x"), t("old"), t("a"), t("b"), t("one", (), data=1), t("y")], ("x",), ("a",),
    )  # fmt: skip
    return network([Op("While", ("x",), ("z",), {"condition": "condition", "body": "step"})], [t("z")], [condition, step])


GRAPHS: dict[str, Any] = {
    "If": choosing, "Call": calling, **{kind: (lambda kind=kind: looping(kind)) for kind in ("Loop", "Scan", "While")},
    "one that only writes": lambda: network([Op("Call", ("x",), ("z",), {"function": "keeping"})], [t("z")], [KEEPING]),
}  # fmt: skip


def evaluated(graph: Graph) -> list[list[Any]]:
    states: dict[str, Any] = {}
    found = [evaluate(graph, {"x": x}, states) for x in FEEDS]
    return [[values[name].tolist() for name in graph.outputs] for values in found]


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("name", GRAPHS)
def test_states_go_through_functions(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    validate(graph)
    plain, _ = run_passes(graph, ("lift_states", "states_to_io"))
    assert plain.inputs == ("x", "s", "unused") and not any(op.kind in ("ReadState", "WriteState") for op in all_ops(plain))
    again, _ = run_passes(plain, ("io_to_states",))
    assert evaluated(again) == evaluated(graph)
    qconvert.save(graph, tmp_path / "m.qgraph")
    qconvert.convert(tmp_path / "m.qgraph", tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx")
    for feed, wanted in zip(FEEDS, evaluated(graph), strict=True):
        found = session.run({"x": feed})
        for one, other in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def variables_in_a_branch() -> bytes:
    """y = c ? (s += x) : -x; s begins at (5, -1)."""

    def handle(name: str) -> OpSpec:
        return OpSpec("VAR_HANDLE", [], [name], {"sharedName": "sum", "container": ""})

    start = TensorSpec("c", F, "float32", data=np.array([5, -1], np.float32))
    first = ([handle("v"), OpSpec("ASSIGN_VARIABLE", ["v", "c"], [])], [TensorSpec("v", (), "resource"), start], [], [])
    x, y, old = (TensorSpec(name, F, "float32") for name in ("x", "y", "old"))
    then = (
        [handle("v"), OpSpec("READ_VARIABLE", ["v"], ["old"]), OpSpec("ADD", ["x", "old"], ["y"]),
         OpSpec("ASSIGN_VARIABLE", ["v", "y"], [])],
        [x, y, old, TensorSpec("v", (), "resource")], ["x"], ["y"],
    )  # fmt: skip
    other = ([OpSpec("NEG", ["x"], ["y"])], [x, y], ["x"], ["y"])
    ops = [
        OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 1}), OpSpec("REDUCE_MAX", ["x", "axes"], ["m"]),
        OpSpec("LESS", ["m", "ten"], ["c"]),
        OpSpec("IF", ["c", "x"], ["y"], {"thenSubgraphIndex": 2, "elseSubgraphIndex": 3}),
    ]  # fmt: skip
    tensors = [
        x, y, TensorSpec("m", (), "float32"), TensorSpec("c", (), "bool"), TensorSpec("ten", (), "float32", data=np.array(10, np.float32)),
        TensorSpec("axes", (1,), "int32", data=np.array([0], np.int32)),
    ]  # fmt: skip
    return model(ops, tensors, ["x"], ["y"], further=[first, then, other])


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_variables_in_a_branch_of_tflite(tmp_path: Path) -> None:
    data = variables_in_a_branch()
    (tmp_path / "m.tflite").write_bytes(data)
    qconvert.convert(tmp_path / "m.tflite", tmp_path / "m.onnx")
    qconvert.convert(tmp_path / "m.onnx", tmp_path / "back.tflite")
    runs = LiteRT(data), Session(tmp_path / "m.onnx"), LiteRT((tmp_path / "back.tflite").read_bytes())
    graph, states = read_bytes(data, "g"), dict[str, Any]()
    for feed in FEEDS:
        found = [next(iter(run.run({next(iter(run.inputs)): feed}).values())).tolist() for run in runs]
        found.append(evaluate(graph, {"x": feed}, states)["y"].tolist())
        assert found == [found[0]] * 4


def called(ops: list[OpSpec], following: tuple[OpSpec, ...] = (), further: tuple[Any, ...] = ()) -> bytes:
    """y is what a subgraph with these operators makes of x."""
    named = [TensorSpec(name, F, "float32") for name in ("x", "y", "old", "z")] + [TensorSpec("v", (), "resource")]
    main = [OpSpec("CALL", ["x"], ["y"], {"subgraph": 1}), *following]
    return model(main, named, ["x"], ["z" if following else "y"], further=[(ops, named, ["x"], ["y"]), *further])


HANDLE = OpSpec("VAR_HANDLE", [], ["v"], {"sharedName": "sum", "container": ""})
ASSIGN, NEG = OpSpec("ASSIGN_VARIABLE", ["v", "x"], []), OpSpec("NEG", ["x"], ["y"])
READS = (HANDLE, OpSpec("READ_VARIABLE", ["v"], ["old"]), OpSpec("ADD", ["y", "old"], ["z"]))
FIRST = (
    [HANDLE, OpSpec("ASSIGN_VARIABLE", ["v", "c"], [])],
    [TensorSpec("v", (), "resource"), TensorSpec("c", F, "float32", data=np.zeros(2, np.float32))], [], [],
)  # fmt: skip


@pytest.mark.formats
@pytest.mark.litert
@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (lambda: called([*READS[:2], OpSpec("ADD", ["x", "old"], ["y"])]), "not-computed"),
        (lambda: called([HANDLE, ASSIGN, NEG], READS), "not-computed"),
        (lambda: called([HANDLE, ASSIGN, ASSIGN, NEG], (*READS[:1], ASSIGN, *READS[1:])), "two-writes"),
        (lambda: called([OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 2}), NEG], (), (FIRST,)), "variables-in-subgraph"),
        (lambda: called([ASSIGN, NEG], READS), "not-computed"),
    ],
    ids=["read", "written where it may not run", "written twice", "first values", "another's handle"],
)  # fmt: skip
def test_what_variables_of_a_subgraph_cannot_be(data: Any, rule: str, tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(data())
    with refused(UnsupportedError if rule == "variables-in-subgraph" else InvalidModelError, rule):
        qconvert.load(tmp_path / "m.tflite")


def test_a_condition_that_writes_a_state_is_refused() -> None:
    graph = looping("While")
    condition = graph.functions["condition"]
    writing = condition.evolve(ops=[*condition.ops, Op("WriteState", ("x",), (), {"state": "s"})])
    changed = replace(graph, functions={**graph.functions, "condition": writing})
    with refused(UnsupportedError, "condition-writes-state", where="function 'condition'"):
        run_passes(changed, ("lift_states",))
