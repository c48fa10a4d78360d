"""Loops over a sequence that TensorFlow's converter decomposed are LSTM, GRU, RNN or a Scan; nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qconvert
from qconvert.conversion import run_passes
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators.recurrent import CELLS, Parts
from qconvert.operators.shapes_and_functions import all_ops
from qconvert.operators.values import apply
from qconvert.passes.fuse_recurrence import cell_of
from qconvert.plugins import Target
from qconvert.rewriting.lowering import Emission, Symbol
from qconvert.rules.validation import validate

FOLDER = Path(__file__).parents[2] / "fixtures" / "recurrent"
#: File -> the kinds that its loops become.
KINDS: Mapping[str, list[str]] = {
    "gru_float": ["GRU"], "gru_float16": ["GRU"],
    "gru_sequences_float": ["GRU", "GRU"], "gru_reset_before_float": ["GRU"], "rnn_float": ["RNN"],
    "rnn_backwards_float": ["RNN"], "lstm_unfused_float": ["LSTM"], "gru_dynamic": ["Scan"],
    "while_float": ["While"], "nested_float": ["While"],
}  # fmt: skip


def fused(graph: Graph) -> Graph:
    changed, _ = run_passes(graph, ["fuse_recurrence"], Target("", "", ""))
    validate(changed)
    return changed


def feed(graph: Graph, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(graph[name].static_shape or ()).astype(np.float32)
        if graph[name].dtype == "float32"
        else np.array(3, np.int32)
        for name in graph.inputs
    }


@pytest.mark.formats
@pytest.mark.parametrize("name", KINDS)
def test_loops_of_keras_are_what_they_were(name: str) -> None:
    graph = qconvert.load(FOLDER / f"{name}.tflite")
    changed = fused(graph)
    assert [op.kind for op in changed.ops if op.kind in ("GRU", "RNN", "LSTM", "Scan", "While")] == KINDS[name]
    assert len(changed.functions) == {"Scan": 1, "While": len(graph.functions)}.get(KINDS[name][0], 0)
    given = feed(graph)
    before, after = evaluate(graph, given), evaluate(changed, given)
    for output in graph.outputs:
        assert np.allclose(before[output], after[output], atol=1e-6 if KINDS[name] != ["Scan"] else 0)


@pytest.mark.formats
def test_what_the_report_says() -> None:
    _, notes = run_passes(qconvert.load(FOLDER / "gru_sequences_float.tflite"), ["fuse_recurrence"], Target("", "", ""))
    assert [(note.text, note.exact) for note in notes] == [("2 loops over a sequence are a GRU", False)]


def t(name: str, shape: tuple[int, ...] = (), dtype: str = "float32", data: Any = None) -> Tensor:
    return Tensor(name, dtype, shape, None if data is None else np.array(data, dtype))


def summing(**changes: Any) -> Graph:
    """s = sum of relu(x[i]) over i below 4, and the list of s."""
    start, limit, step, length = (changes.get(key, usual) for key, usual in (("start", 0), ("limit", 4), ("step", 1), ("length", 4)))
    ints = "int32"
    condition = Graph("condition", {"i": t("i", (), ints), "s": t("s", (2,)), "x": t("x", (length, 2)), "n": t("n", (), ints, limit),
                                    "go": t("go", (), "bool")}, (Op("Less", ("i", "n"), ("go",)),), ("i", "s", "x"), ("go",))  # fmt: skip
    tensors = [t("i", (), ints), t("s", (2,)), t("x", (length, 2)), t("k", (), ints, step), t("j", (), ints)]
    tensors += [t("e", (2,)), t("r", (2,)), t("y", (2,))]
    ops = [Op("Add", ("i", "k"), ("j",)), Op("Gather", ("x", "i"), ("e",), {"axis": 0}), Op("Relu", ("e",), ("r",))]
    ops.append(Op("Add", ("s", "r"), ("y",)))
    outputs = ["j", "y", "x"]
    for name in changes.get("extra", ()):
        more = {
            "whole sequence": ([Op("ReduceMax", ("x", "axes"), ("m",), {"keepdims": 0}), Op("Add", ("r", "m"), ("r2",))],
                               [t("m", (2,)), t("r2", (2,)), t("axes", (1,), "int64", [0])]),
            "counter": ([Op("Cast", ("i",), ("f",), {"to": "float32"}), Op("Mul", ("r", "f"), ("r2",))], [t("f"), t("r2", (2,))]),
        }[name]  # fmt: skip
        ops[3:3], tensors = more[0], [*tensors, *more[1]]
        ops[-1] = replace(ops[-1], inputs=("s", "r2"))
    body = Graph("body", {item.name: item for item in tensors}, tuple(ops), ("i", "s", "x"), tuple(outputs))
    main = [t("zero", (), ints, start), t("first", (2,), "float32", [0.5, -0.5]), t("x", (length, 2)), t("end", (), ints), t("sum", (2,)),
            t("same", (length, 2))]  # fmt: skip
    loop = Op("While", ("zero", "first", "x"), ("end", "sum", "same"), {"condition": "condition", "body": "body"})
    functions = {"condition": condition, "body": body}
    return Graph("g", {item.name: item for item in main}, (loop,), ("x",), ("end", "sum", "same"), functions=functions)


def test_a_body_without_a_name_is_a_scan() -> None:
    """What the loop leaves behind is there still: the counter, the sequence."""
    graph = summing()
    validate(graph)
    changed = fused(graph)
    assert [op.kind for op in changed.ops] == ["Identity", "Identity", "Scan"]
    assert list(changed.functions) == ["body_1"] and [op.kind for op in changed.functions["body_1"].ops] == ["Relu", "Add"]
    given = feed(graph)
    before, after = evaluate(graph, given), evaluate(changed, given)
    assert all(np.array_equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in graph.outputs)


@pytest.mark.parametrize(
    "changes",
    [{"start": 1}, {"limit": 3}, {"step": 2}, {"length": 5}, {"extra": ["whole sequence"]}, {"extra": ["counter"]}, {"limit": 0}],
    ids=str,
)
def test_other_loops_stay(changes: dict[str, Any]) -> None:
    graph = summing(**changes)
    validate(graph)
    changed = fused(graph)
    assert any(op.kind == "While" for op in all_ops(changed))
    given = feed(graph)
    assert np.array_equal(evaluate(graph, given)["sum"], evaluate(changed, given)["sum"])


@pytest.mark.parametrize("last", [2, 3])
def test_a_list_whose_last_place_is_written_twice_stays(last: int) -> None:
    """Row i of the list is written at min(i, last); the last of 4 turns has the number 3."""
    graph = summing()
    body, ints = graph.functions["body"], "int32"
    tensors = [t("l", (4, 2)), t("most", (), ints, last), t("at", (), ints), t("row", (1, 2)), t("all", (4, 2)), t("zero", (1,), ints, [0]),
               t("first", (1,), ints), t("where", (2,), ints), t("axes", (1,), "int64", [0])]  # fmt: skip
    ops = (*body.ops, Op("Min", ("i", "most"), ("at",)), Op("Unsqueeze", ("r", "axes"), ("row",)),
           Op("Unsqueeze", ("at", "axes"), ("first",)), Op("Concat", ("first", "zero"), ("where",), {"axis": 0}),
           Op("DynamicUpdateSlice", ("l", "row", "where"), ("all",)))  # fmt: skip
    body = replace(body, tensors={**body.tensors, **{item.name: item for item in tensors}}, ops=ops, inputs=(*body.inputs, "l"),
                   outputs=(*body.outputs, "all"))  # fmt: skip
    condition = graph.functions["condition"]
    condition = replace(condition, tensors={**condition.tensors, "l": t("l", (4, 2))}, inputs=(*condition.inputs, "l"))
    loop = replace(graph.ops[0], inputs=(*graph.ops[0].inputs, "empty"), outputs=(*graph.ops[0].outputs, "list"))
    main = {**graph.tensors, "empty": t("empty", (4, 2), data=np.zeros((4, 2))), "list": t("list", (4, 2))}
    graph = replace(graph, tensors=main, ops=(loop,), outputs=(*graph.outputs, "list"), functions={"condition": condition, "body": body})
    validate(graph)
    changed = fused(graph)
    assert any(op.kind == "Scan" for op in changed.ops) == (last == 3)
    given = feed(graph)
    before, after = evaluate(graph, given), evaluate(changed, given)
    assert all(np.array_equal(before[name], after[name]) for name in graph.outputs)


def cell_body(kind: str, activations: str, before: int = 0, *, of_data: bool = False) -> tuple[Graph, list[np.ndarray[Any, Any]]]:
    """One step of a cell as its formula says it, and its weights; `of_data` lets it read the data in place of the hidden values."""
    rng, cell = np.random.default_rng(1), CELLS[kind]
    rows = 4 * cell.gates
    w, r, b = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, 4), (rows, 4), (2 * rows,)))
    tensors = {name: t(name, (2, 4)) for name in ("h", "c", "x")}
    emission = Emission(tensors, "float32", "", "cell")
    h, c, x = (Symbol(emission, name) for name in tensors)

    def product(values: Any, first: int, count: int) -> Any:
        part = slice(4 * first, 4 * (first + count))
        return apply("Gemm", x if of_data and values is h else values, r[part], b[rows:][part])

    op = Op(kind, (), (), {"hidden_size": 4, **({"linear_before_reset": before} if kind == "GRU" else {})})
    parts = Parts(op, [partial(apply, name) for name in activations.split()], product)
    found = cell.step(parts, apply("Gemm", x, w, b[:rows]), h, *[c][: cell.states - 1])
    inputs = ("h", *["c"][: cell.states - 1], "x")
    made = {name: tensor for name, tensor in {**tensors, **emission.tensors}.items() if name != "c" or cell.states == 2}
    return Graph("body", made, tuple(emission.ops), inputs, tuple(item.name for item in found)), [w, r, b]


_CELLS = [("LSTM", "Sigmoid Tanh Relu", 0), ("GRU", "Sigmoid Tanh", 0), ("GRU", "Sigmoid Softsign", 1), ("RNN", "Relu", 0)]


@pytest.mark.parametrize(("kind", "activations", "before"), _CELLS)
def test_a_cell_is_found_by_its_formula(kind: str, activations: str, before: int) -> None:
    graph, weights = cell_body(kind, activations, before)
    found = cell_of(graph, CELLS[kind].states)
    assert found is not None and (found.kind, found.linear_before_reset) == (kind, before)
    assert found.activations == tuple(activations.split())
    for wanted, own in zip(weights, found.weights, strict=True):
        if wanted.ndim > 1 or kind != "GRU" or before:
            assert np.array_equal(wanted, own)


@pytest.mark.parametrize(("kind", "activations", "before"), _CELLS)
def test_a_cell_that_does_not_read_its_hidden_values_is_none(kind: str, activations: str, before: int) -> None:
    assert cell_of(cell_body(kind, activations, before, of_data=True)[0], CELLS[kind].states) is None
