"""Operators that run functions, and entry points of functions: what validation says of those that contradict themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import InvalidGraphError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Signature, Tensor
from qconvert.rewriting.control_flow import whiles_to_loops, without_calls
from qconvert.rewriting.loops import loops_to_whiles
from qconvert.rules.validation import validate


def t(name: str, dtype: str = "float32", shape: Any = (2,), data: Any = None, quantization: Quantization | None = None) -> Tensor:
    return Tensor(name, dtype, shape, data, quantization)


def doubling() -> Graph:
    """x doubled `n` times."""
    inner = [t("i", "int64", ()), t("c", "bool", ()), t("v"), t("w"), t("d", "bool", ())]
    ops = (Op("Add", ("v", "v"), ("w",)), Op("Identity", ("c",), ("d",)))
    body = Graph("body", {item.name: item for item in inner}, ops, ("i", "c", "v"), ("d", "w"))
    outer = [t("n", "int64", ()), t("go", "bool", ()), t("x"), t("y")]
    loop = Op("Loop", ("n", "go", "x"), ("y",), {"body": "body", "carried": 1})
    return Graph("g", {item.name: item for item in outer}, (loop,), ("n", "go", "x"), ("y",), functions={"body": body})


def _loop(graph: Graph, **changes: Any) -> Graph:
    return replace(graph, ops=(replace(graph.ops[0], **changes),))


def _body(graph: Graph, **changes: Any) -> Graph:
    return replace(graph, functions={"body": replace(graph.functions["body"], **changes)})


def _tensor(graph: Graph, tensor: Tensor, *, inside: bool = True) -> Graph:
    inner = graph.functions["body"]
    if inside:
        return _body(graph, tensors={**inner.tensors, tensor.name: tensor})
    return replace(graph, tensors={**graph.tensors, tensor.name: tensor})


GRID = Quantization.per_tensor(0.5, 3)
FAULTS: Mapping[str, tuple[Any, str, tuple[object, ...]]] = {
    "too few inputs": (lambda g: _body(g, inputs=("i", "c"), ops=(Op("Identity", ("c",), ("d",)),), outputs=("d", "c")),
                       "counts-differ", (3,)),
    "too many outputs": (lambda g: _body(g, outputs=("d", "w", "v")), "counts-differ", ("'body'", 2, 3)),
    "more carried than there are": (lambda g: _loop(g, attributes={"body": "body", "carried": 4}), "counts-differ", (4,)),
    "an absent value": (lambda g: _loop(g, inputs=("n", "go", "")), "input-missing", ()),
    "a condition that is a number": (lambda g: _tensor(g, t("go", "int32", ()), inside=False), "not-boolean", ("'go'", "int32")),
    "a condition of two elements": (lambda g: _tensor(g, t("go", "bool", (2,)), inside=False), "not-boolean", ()),
    "a condition inside that is a number": (lambda g: _body(g, outputs=("w", "w2"), tensors={**g.functions["body"].tensors, "w2": t("w2")},
                                            ops=(*g.functions["body"].ops, Op("Neg", ("w",), ("w2",)))), "call-mismatch", ("bool",)),
    "another shape": (lambda g: _tensor(g, t("x", shape=(3,)), inside=False), "call-mismatch", ("(3,)",)),
    "another type": (lambda g: _tensor(g, t("i", "int32", ())), "call-mismatch", ("int32", "int64")),
    "another scale": (lambda g: _tensor(_tensor(g, t("x", "int8", quantization=GRID), inside=False),
                                        t("y", "int8", quantization=GRID), inside=False),
                     "call-mismatch", ("'x'",)),
    "a signature of no function": (lambda g: replace(g, signatures=(Signature("s", {}, {}, "none"),)), "unknown-function", ("'none'",)),
    "a signature of no input": (lambda g: replace(g, signatures=(Signature("s", {"a": "w"}, {}, "body"),)), "unknown-tensor", ("'body'",)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit_is_named(name: str) -> None:
    validate(doubling())
    change, rule, holds = FAULTS[name]
    with refused(InvalidGraphError, rule, holds=holds):
        validate(change(doubling()))


def test_functions_that_call_each_other_a_hundred_deep_are_refused() -> None:
    """Each would run within the one before it."""
    graph = doubling()
    functions = {
        f"f{depth}": Graph("f", {"a": t("a"), "b": t("b")}, (Op("Call", ("a",), ("b",), {"function": f"f{depth + 1}"}),), ("a",), ("b",))
        for depth in range(100)
    }
    functions["f100"] = Graph("f", {"a": t("a"), "b": t("b")}, (Op("Relu", ("a",), ("b",)),), ("a",), ("b",))
    call = Op("Call", ("x",), ("y",), {"function": "f0"})
    deep = replace(graph, ops=(call,), functions=functions)
    with refused(InvalidGraphError, "nested-too-deeply", holds=(50,)):
        validate(deep)


def test_calls_that_double_at_each_step_are_not_inlined_for_ever() -> None:
    tensors = {"a": t("a"), "m": t("m"), "b": t("b")}
    functions = {
        f"f{depth}": Graph("f", tensors, tuple(Op("Call", (x,), (y,), {"function": f"f{depth + 1}"}) for x, y in (("a", "m"), ("m", "b"))),
                           ("a",), ("b",))
        for depth in range(40)
    }  # fmt: skip
    functions["f40"] = Graph("f", {"a": t("a"), "b": t("b")}, (Op("Relu", ("a",), ("b",)),), ("a",), ("b",))
    graph = replace(doubling(), ops=(Op("Call", ("x",), ("y",), {"function": "f0"}),), functions=functions)
    validate(graph)
    with refused(UnsupportedError, "too-many-operators", holds=("50,000",)):
        without_calls(graph)


def test_the_two_loops_are_each_other() -> None:
    """A Loop as a While, and that as a Loop again, with what they carry besides."""
    graph = doubling()
    there = loops_to_whiles(graph)
    back = whiles_to_loops(there)
    for item, kind in ((there, "While"), (back, "Loop")):
        validate(item)
        assert [op.kind for op in item.ops if op.kind in ("While", "Loop")] == [kind]
    for count, go, times in ((3, True, 8), (3, False, 1), (0, True, 1)):
        given = {"n": np.array(count, np.int64), "go": np.array(go), "x": np.array([1, -2], np.float32)}
        for item in (graph, there, back):
            assert evaluate(item, given)["y"].tolist() == [times, -2 * times]
