"""The Rewriter: what stands where, names, constants, dead code, and the correspondence that it records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.graph.correspondence import GONE, Relation, compose
from qconvert.rewriting import Rewriter
from qconvert.rules.validation import validate

SHAPE = (2, 3)


def net() -> Graph:
    """x -> Neg -> a -> Abs -> b -> Relu -> y."""
    tensors = {name: Tensor(name, "float32", SHAPE) for name in "xaby"}
    ops = tuple(Op(kind, (source,), (result,)) for kind, source, result in (("Neg", "x", "a"), ("Abs", "a", "b"), ("Relu", "b", "y")))
    return Graph("net", tensors, ops, ("x",), ("y",))


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def test_nothing_changed_is_the_graph_itself() -> None:
    graph = net()
    rewriter = Rewriter(graph)
    assert [op.kind for op in rewriter] == kinds(graph) and rewriter.finish() is graph


def test_operators_are_put_where_they_belong() -> None:
    graph = net()
    rewriter = Rewriter(graph)
    first = rewriter.add("x/first", graph["x"])
    rewriter.emit(Op("Identity", ("x",), (first,)))
    for op in rewriter:
        if op.kind == "Abs":
            exp = rewriter.add("a", graph["a"])
            rewriter.emit(Op("Exp", ("a",), (exp,)))
            rewriter.replace(op, Op("Log", (exp,), ("b",)))
    last = rewriter.add("y/last", graph["y"])
    rewriter.emit(Op("Sign", ("y",), (last,)))
    changed = rewriter.finish(outputs=("y", first, last))
    validate(changed)
    assert kinds(changed) == ["Identity", "Neg", "Exp", "Log", "Relu", "Sign"]
    assert exp == "a_1", "the name a is taken"


def test_a_walk_over_some_kinds_puts_operators_before_those_alone() -> None:
    graph = net()
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Abs", "Relu"):
        rewriter.replace(op, replace(op, inputs=(rewriter.dequantize(op.inputs[0], "float"),)))
    assert kinds(rewriter.finish()) == ["Neg", "Dequantize", "Abs", "Dequantize", "Relu"]
    assert graph.of_kind("Relu", "Neg") == [graph.ops[0], graph.ops[2]]


def test_an_operator_that_was_removed_is_not_visited() -> None:
    graph = net()
    rewriter, visited = Rewriter(graph), []
    for op in rewriter:
        visited.append(op.kind)
        if op.kind == "Neg":
            rewriter.replace(op, Op("Sign", ("x",), ("b",)))
            rewriter.remove(graph.ops[1])
            assert rewriter.is_replaced(op) and not rewriter.is_replaced(graph.ops[2])
    assert visited == ["Neg", "Relu"]
    changed = rewriter.finish()
    validate(changed)
    assert kinds(changed) == ["Sign", "Relu"] and changed.correspondence == {"a": GONE}


def test_readers_of_a_forwarded_tensor_read_the_other() -> None:
    graph = net()
    rewriter = Rewriter(graph)
    rewriter.remove(graph.ops[1])
    rewriter.forward("b", "a")
    changed = rewriter.finish()
    validate(changed)
    assert changed.ops[1].inputs == ("a",) and changed.correspondence == {"b": Relation("a")}


def test_a_renamed_tensor_is_written_under_its_new_name() -> None:
    graph = net()
    rewriter = Rewriter(graph)
    rewriter.remove(graph.ops[2])
    rewriter.rename("b", "y")
    changed = rewriter.finish()
    validate(changed)
    assert changed.ops[1].outputs == ("y",) and changed.correspondence == {"b": Relation("y")}


def test_a_chain_of_other_names_is_resolved_to_its_end() -> None:
    rewriter = Rewriter(net())
    rewriter.forward("b", "a")
    rewriter.rename("a", "y")
    assert [rewriter.resolve(name) for name in ("x", "a", "b", "y")] == ["x", "y", "y", "y"]


def test_dead_code_goes_if_asked() -> None:
    graph = replace(net(), outputs=("a",))
    assert kinds(Rewriter(graph).finish()) == ["Neg", "Abs", "Relu"]
    pruned = Rewriter(graph).finish(prune=True)
    assert kinds(pruned) == ["Neg"] and set(pruned.tensors) == {"x", "a"} and pruned.correspondence == {"b": GONE, "y": GONE}
    assert kinds(Rewriter(graph).finish(prune=lambda op: op.kind == "Relu")) == ["Neg", "Abs"]
    assert kinds(Rewriter(graph).finish(prune=lambda op: op.kind == "Abs")) == ["Neg", "Abs", "Relu"], "Relu needs it"


def test_constants_have_the_type_of_their_data() -> None:
    rewriter = Rewriter(net())
    names = [rewriter.constant("c", data) for data in ([2, 3], 0.5, np.array([1], np.uint8))]
    names.append(rewriter.constant("q", np.array([1], np.int8), "int4", Quantization.per_tensor(0.5)))
    found = [rewriter[name] for name in names]
    assert [(item.name, item.dtype, item.shape) for item in found] == [
        ("c", "int64", (2,)), ("c_1", "float32", ()), ("c_2", "uint8", (1,)), ("q", "int4", (1,)),
    ]  # fmt: skip
    assert found[3].quantization == Quantization.per_tensor(0.5)


def test_read_once_means_by_one_operator_and_by_no_user() -> None:
    graph = net()
    assert [Rewriter(graph).is_read_once(name) for name in "xaby"] == [True, True, True, False]
    twice = graph.evolve(ops=(*graph.ops[:1], Op("Add", ("a", "a"), ("b",)), graph.ops[2]))
    assert not Rewriter(twice).is_read_once("a")


def test_correspondences_compose() -> None:
    turned, back = Relation("b", (0, 2, 1)), Relation("c", (0, 2, 1))
    assert compose({"a": turned}, {"b": back}) == {"a": Relation("c"), "b": back}
    assert compose({"a": Relation("b", (1, 2, 0))}, {"b": Relation("b", (1, 2, 0))})["a"] == Relation("b", (2, 0, 1))
    assert compose({"a": Relation("b", shift=3)}, {"b": Relation("b", shift=-1)})["a"] == Relation("b", shift=2)
    assert compose({"a": GONE}, {"a": Relation("c")}) == {"a": GONE}, "a later tensor of the same name is another"
    assert compose({"a": Relation("b")}, {"b": Relation("a")}) == {"b": Relation("a")}, "b is not the source's"
    assert compose({}, {"a": GONE}) == {"a": GONE} == compose({"a": GONE}, {})


def test_two_rewriters_in_turn_keep_the_record() -> None:
    graph = net()
    first = Rewriter(graph)
    first.remove(graph.ops[1])
    first.forward("b", "a")
    middle = first.finish()
    second = Rewriter(middle)
    second.remove(middle.ops[0])
    second.forward("a", "x")
    assert second.finish().correspondence == {"b": Relation("x"), "a": Relation("x")}


def test_values_of_a_pruned_conversion_are_where_they_came_from() -> None:
    quantization = Quantization.per_tensor(0.5)
    tensors = {"q": Tensor("q", "int8", SHAPE, None, quantization), "y": Tensor("y", "int8", SHAPE, None, quantization)}
    tensors |= {name: Tensor(name, "float32", SHAPE) for name in "ab"}
    kinds_of = (("Dequantize", "q", "a"), ("Identity", "a", "b"), ("Quantize", "b", "y"))
    graph = Graph("net", tensors, tuple(Op(kind, (source,), (result,)) for kind, source, result in kinds_of), ("q",), ("y",))
    rewriter = Rewriter(graph)
    rewriter.replace(graph.ops[2], Op("Identity", ("q",), ("y",)))
    assert rewriter.finish(prune=True).correspondence == {"a": Relation("q"), "b": Relation("q")}
    rewriter.forget(("q",))
    assert rewriter.finish(prune=True).correspondence == dict.fromkeys("qab", GONE), "q holds other values"


def test_appended_operators_are_the_last() -> None:
    graph = net()
    rewriter = Rewriter(graph)
    rewriter.append(Op("Sign", ("y",), (rewriter.add("y/last", graph["y"]),)))
    rewriter.emit(Op("Exp", ("x",), (rewriter.add("x/first", graph["x"]),)))
    assert kinds(rewriter.finish()) == ["Exp", "Neg", "Abs", "Relu", "Sign"]
