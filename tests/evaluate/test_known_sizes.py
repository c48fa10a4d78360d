"""Polynomials over sizes: what they say of random chains of integer operators holds for every size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qconvert.arithmetic.polynomials import number
from qconvert.evaluate import evaluate
from qconvert.evaluate.known_values import KnownSizes
from qconvert.graph import Graph, Op, Tensor

KINDS = ("Add", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "Max", "Min", "Neg", "ReduceSum", "ReduceProd", "Concat", "Slice", "Gather")
Tensors = dict[str, Tensor]


def _const(tensors: Tensors, data: object) -> str:
    name = f"c{len(tensors)}"
    array = np.asarray(data, np.int64)
    tensors[name] = Tensor(name, "int64", array.shape, array)
    return name


def _operator(kind: str, tensors: Tensors, a: str, b: str, pick: int) -> tuple[Op, tuple[int, ...]]:
    """One operator on lists, and the shape of its result."""
    name, length = f"v{len(tensors)}", len(np.zeros(tensors[a].shape or ()))
    if kind in ("Div", "FloorDiv", "FloorMod"):
        return Op(kind, (a, _const(tensors, [pick % 4 + 1])), (name,)), (length,)
    if kind == "Neg":
        return Op(kind, (a,), (name,)), (length,)
    if kind.startswith("Reduce"):
        return Op(kind, (a, _const(tensors, [0])), (name,), {"keepdims": 1}), (1,)
    if kind == "Concat":
        return Op(kind, (a, b), (name,), {"axis": 0}), (length + (tensors[b].shape or (0,))[0],)  # type: ignore[operator]
    if kind == "Slice":
        start = pick % length
        return Op(kind, (a, *(_const(tensors, [value]) for value in (start, start + 1, 0))), (name,)), (1,)
    if kind == "Gather":
        return Op(kind, (a, _const(tensors, [pick % length, -1])), (name,), {"axis": 0}), (2,)
    single = (a, _const(tensors, [pick - 4])) if tensors[a].shape != tensors[b].shape else (a, b)
    return Op(kind, single, (name,)), (length,)


@pytest.mark.property
@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=14))
def test_random_chains(steps: list[tuple[str, int, int, int]]) -> None:
    tensors: Tensors = {"x": Tensor("x", "float32", ("h", 4, "w")), "s": Tensor("s", "int64", (3,))}
    ops, lists = [Op("Shape", ("x",), ("s",))], ["s"]
    for kind, first, second, pick in steps:
        op, shape = _operator(kind, tensors, lists[first % len(lists)], lists[second % len(lists)], pick)
        if shape[0] > 12:
            continue
        tensors[op.outputs[0]] = Tensor(op.outputs[0], "int64", shape)
        lists.append(op.outputs[0])
        ops.append(op)
    graph = Graph("g", tensors, tuple(ops), ("x",), tuple(lists))
    sizes = KnownSizes(graph.tensors, graph.producers())
    forms = {name: sizes.get(name) for name in lists}
    assert all(form is not None and len(form) == (tensors[name].shape or (0,))[0] for name, form in forms.items())
    same: dict[object, int] = {}
    for run, (h, w) in enumerate(((1, 1), (5, 3), (8, 2))):
        values = evaluate(graph, {"x": np.zeros((h, 4, w), np.float32)})
        for name in lists:
            for form, value in zip(forms[name] or (), values[name].tolist(), strict=True):
                assert number(form) in (None, value)
                assert same.setdefault((run, form), value) == value
                assert sizes.dimension_of(form) in (None, value) or {"h": h, "w": w}[str(sizes.dimension_of(form))] == value


@pytest.mark.parametrize("kind", ["Add", "Mul", "Concat"])
def test_what_grows_without_bound_stands_for_itself(kind: str) -> None:
    """Doubled a thousand times: neither the elements nor the sums and products may follow."""
    tensors: Tensors = {"x": Tensor("x", "float32", ("h", "w")), "s": Tensor("s", "int64", (2,))}
    ops = [Op("Shape", ("x",), ("s",))]
    for i in range(1000):
        before = ops[-1].outputs[0]
        length = min(2 ** (i + 2), 2**30) if kind == "Concat" else 2
        tensors[f"v{i}"] = Tensor(f"v{i}", "int64", (length,))
        ops.append(Op(kind, (before, before), (f"v{i}",), {"axis": 0} if kind == "Concat" else {}))
    sizes = KnownSizes(tensors, {op.outputs[0]: op for op in ops})
    last = sizes.get("v999")
    assert last is None if kind == "Concat" else last is not None and all(len(form) == 1 for form in last)


def test_a_cycle_ends() -> None:
    tensors: Tensors = {name: Tensor(name, "int64", (2,)) for name in "ab"}
    sizes = KnownSizes(tensors, {"a": Op("Add", ("b", "b"), ("a",)), "b": Op("Neg", ("a",), ("b",))})
    assert sizes.get("a") is not None and sizes.numbers("a") is None


def test_products_of_segments() -> None:
    """As TensorFlow writes the shape of what is flattened from some axis on."""
    tensors: Tensors = {"x": Tensor("x", "float32", ("h", "w", 2, 8)), "s": Tensor("s", "int32", (4,)), "p": Tensor("p", "int32", (3,))}
    ids, count = _const(tensors, [0, 1, 2, 2]), _const(tensors, 3)
    ops = [Op("Shape", ("x",), ("s",)), Op("UnsortedSegment", ("s", ids, count), ("p",), {"reduction": "prod"})]
    sizes = KnownSizes(tensors, {op.outputs[0]: op for op in ops})
    assert [sizes.dimension_of(form) for form in sizes.get("p") or ()] == ["h", "w", 16]
