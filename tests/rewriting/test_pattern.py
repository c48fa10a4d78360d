"""Patterns of operators: seen through conversions, closed or not, each operator in one match."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert import Graph, Op, Quantization, Tensor, load
from qconvert.errors import OptionError
from qconvert.operators.values import clip, tanh
from qconvert.plugin import Match, Pattern, Rewriter, find_matches
from qconvert.rewriting.parts import draw_pattern

Q = Quantization.per_tensor(0.5)


def chain(*ops: tuple[str, str, str], outputs: tuple[str, ...]) -> Graph:
    """Operators as (kind, inputs with spaces between, result); names that begin with q are quantized."""
    made = tuple(Op(kind, tuple(given.split()), (result,)) for kind, given, result in ops)
    names = dict.fromkeys(name for op in made for name in (*op.inputs, *op.outputs))
    tensors = {n: Tensor(n, "int8" if n[0] == "q" else "float32", (1, 4), None, Q if n[0] == "q" else None) for n in names}
    return Graph("g", tensors, made, tuple(n for n in names if n not in {op.outputs[0] for op in made}), outputs)


def kinds(found: Match) -> list[str]:
    return [op.kind for op in found.ops]


def test_conversions_are_seen_through_if_asked_and_unless_they_are_named() -> None:
    net = chain(
        ("MatMul", "a b", "c"), ("Quantize", "c", "qc"), ("Dequantize", "qc", "d"), ("Add", "d e", "f"), ("Relu", "f", "g"), outputs=("g",)
    )
    pattern = Pattern("Relu|Clip", Pattern("Add", Pattern("MatMul", "left", "right", name="product"), "bias"), name="last")
    assert list(find_matches(net, pattern)) == []
    (found,) = find_matches(net, pattern, through_conversions=True)
    assert kinds(found) == ["MatMul", "Quantize", "Dequantize", "Add", "Relu"]
    assert found.tensors == {"left": "a", "right": "b", "bias": "e"}
    assert found.named["product"] is net.ops[0] and found.named["last"] is net.ops[-1]
    (pair,) = find_matches(net, Pattern("Dequantize", Pattern("Quantize", "real")))
    assert pair.tensors == {"real": "c"}
    assert list(find_matches(net, Pattern("Relu", Pattern("MatMul")))) == []


def test_what_others_read_is_no_closed_match() -> None:
    net = chain(("MatMul", "a b", "c"), ("Relu", "c", "d"), ("Neg", "c", "e"), outputs=("d", "e"))
    pattern = Pattern("Relu", Pattern("MatMul"))
    assert list(find_matches(net, pattern)) == []
    assert [kinds(found) for found in find_matches(net, pattern, closed=False)] == [["MatMul", "Relu"]]
    public = chain(("MatMul", "a b", "c"), ("Relu", "c", "d"), outputs=("c", "d"))
    assert list(find_matches(public, pattern)) == []


def test_an_operator_is_in_one_match() -> None:
    net = chain(("Relu", "a", "b"), ("Relu", "b", "c"), ("Relu", "c", "d"), outputs=("d",))
    assert [[op.name for op in found.ops] for found in find_matches(net, Pattern("Relu", Pattern("Relu")))] == [["b", "c"]]


def test_absent_operands_do_not_fit_a_name() -> None:
    net = chain(("Gemm", "a b", "c"), outputs=("c",))
    assert list(find_matches(net, Pattern("Gemm", "", "", "bias"))) == []
    assert len(list(find_matches(net, Pattern("Gemm", "", "", "")))) == 1
    with pytest.raises(OptionError):
        list(find_matches(net, Pattern("Gemm", "", Pattern("Relu", name="a"), name="a")))


def test_operands_of_a_sum_stand_in_any_order_and_a_name_is_one_tensor() -> None:
    net = chain(("Relu", "a", "b"), ("Add", "a b", "c"), ("Add", "x b", "d"), outputs=("c", "d"))
    pattern = Pattern("Add", Pattern("Relu", "data"), "data", any_order=True)
    (found,) = find_matches(net, pattern, closed=False)
    assert found.ops == net.ops[:2] and found.tensors == {"data": "a"}
    assert list(find_matches(net, Pattern("Add", Pattern("Relu", "data"), "data"), closed=False)) == []


def test_numbers_and_attributes_are_parts_of_a_pattern() -> None:
    net = chain(("Mul", "a two", "b"), ("ReduceSum", "b axes", "c"), outputs=("c",))
    net = net.evolve(tensors=[Tensor("two", "float32", (1,), np.float32([2]))])
    pattern = Pattern("ReduceSum", Pattern("Mul", "data", 2), attributes={"keepdims": 1})  # the default
    assert [found.tensors for found in find_matches(net, pattern)] == [{"data": "a"}]
    assert not list(find_matches(net, Pattern("ReduceSum", Pattern("Mul", "data", 3))))
    assert not list(find_matches(net, Pattern("ReduceSum", Pattern("Mul", 2, "data"))))
    assert not list(find_matches(net, Pattern("ReduceSum", Pattern("Mul", "data", 2), attributes={"keepdims": 0})))


@pytest.mark.parametrize(("last", "fits"), [(Op("Add", ("d", "b"), ("e",)), True), (Op("Add", ("b", "d"), ("e",)), True),
                                            (Op("Sub", ("d", "b"), ("e",)), False), (Op("Add", ("d", "a"), ("e",)), False),
                                            (Op("Add", ("d", "b"), ("e",), {"activation": "relu"}), False)])  # fmt: skip
def test_a_pattern_is_drawn_from_a_function(last: Op, fits: bool) -> None:
    """Of an operator that commutes the operands stand in any order; one with an activation is another function."""
    net = chain(("Tanh", "a", "b"), ("Clip", "b zero six", "d"), ("Add", "d b", "e"), outputs=("e",))
    limits = [Tensor(name, "float32", (), np.array(value, np.float32)) for name, value in (("zero", 0), ("six", 6))]
    net = net.evolve(tensors=limits, ops=[*net.ops[:2], last])
    pattern = draw_pattern(lambda x: clip(tanh(x), 0.0, 6.0) + tanh(x), "x")
    found = Rewriter(net).match(pattern, "e")
    assert (found is not None) == fits
    assert found is None or found.tensors == {"x": "a"}


def test_a_real_model() -> None:
    from pathlib import Path

    net = load(Path(__file__).parents[2] / "fixtures" / "tiny_resnet_cifar10_int8.tflite")
    found = list(find_matches(net, Pattern("Add", Pattern("Conv", name="left"), ""), closed=False))
    assert found and all(match.named["left"].kind == "Conv" for match in found)
