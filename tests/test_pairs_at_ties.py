"""Integers of sums, differences and products for all pairs of codes: kernels are computed next to ties alone, with the same result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qconvert.arithmetic import find_near_ties
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.kernels import KERNELS
from qconvert.kernels.kernel import Integers
from qconvert.kernels.proofs import Side, agree_for_all, all_codes, ways_for_all


def _random_operator(rng: np.random.Generator, kind: str) -> tuple[Graph, Op]:
    """Return an operator whose scales are of any size next to each other, half of them such that its results fit."""
    dtype = str(rng.choice(["int8", "uint8"]))
    low, high = integer_range(dtype)
    scales = np.exp(rng.normal(-3, rng.choice([0.3, 2.0]), 3))
    if kind == "Mul" and rng.random() < 0.5:
        scales[2] = scales[0] * scales[1] * rng.uniform(20, 200)
    if rng.random() < 0.3:  # many exact ties
        scales = 2.0 ** np.round(np.log2(scales))
    points = rng.choice([low, 0 if low else 128, int(rng.integers(low, high + 1))], 3)
    sides = [
        Tensor(name, dtype, (1, 8), None, Quantization.per_tensor(float(scale), int(point)))
        for name, scale, point in zip("aby", scales, points, strict=True)
    ]
    op = Op(kind, ("a", "b"), ("y",), {"activation": str(rng.choice(["", "relu", "relu6"]))})
    return Graph("pair", {side.name: side for side in sides}, (op,), ("a", "b"), ("y",)), op


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_kernel_computed_next_to_ties_gives_the_integers_of_the_whole_table(kernels: str) -> None:
    rng = np.random.default_rng(7)
    for number in range(60):
        graph, op = _random_operator(rng, ("Add", "Sub", "Mul")[number % 3])
        row = KERNELS[kernels].of(graph, op)
        codes = all_codes(graph, op)
        if row is None or row.reference is None or codes is None:
            continue
        wanted = row.compute_integers(graph, op, codes)
        found = ways_for_all(graph, op, row)
        case = op.kind, [graph[name].quantization for name in op.names], op.attributes
        if wanted is None:
            assert found == (), case
            continue
        assert len(found) == len(wanted.ways), case
        for way, whole in zip(found, wanted.ways, strict=True):
            assert way.dtype == whole.dtype and np.array_equal(way, whole), case


@pytest.mark.parametrize(("kernels", "kind"), [("litert:default", "Add"), ("litert:default", "Mul"), ("onnxruntime:optimized", "Sub")])
def test_few_pairs_of_codes_are_computed_as_the_kernel_does(kernels: str, kind: str) -> None:
    sides = [
        Tensor(name, "int8", (1, 8), None, Quantization.per_tensor(scale, 3)) for name, scale in zip("aby", (0.03, 0.07, 0.09), strict=True)
    ]
    op = Op(kind, ("a", "b"), ("y",))
    graph = Graph("pair", {side.name: side for side in sides}, (op,), ("a", "b"), ("y",))
    row = KERNELS[kernels].of(graph, op)
    assert row is not None and row.reference is not None
    computed, reference = [0], row.reference

    def counted(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
        computed[0] += np.broadcast(*stored).size
        return reference(graph, op, stored)

    (found,) = ways_for_all(graph, op, replace(row, reference=counted))
    assert found.shape == (256, 256)
    assert computed[0] < 2000


def test_sums_next_to_ties_are_found_among_all() -> None:
    rng = np.random.default_rng(3)
    for margin in (0.0, 1e-3, 0.2, 0.49, 0.5, 2.0):
        first, second = rng.normal(0, 40, 64), np.round(rng.normal(0, 40, 32) * 8) / 8
        first[:32] = np.round(first[:32] * 8) / 8  # exact ties
        total = first[:, None] + second
        wanted = np.nonzero(np.abs(total - np.floor(total) - 0.5) <= margin)
        found = find_near_ties(first, second, margin)
        assert all(map(np.array_equal, found, wanted)), margin


def test_kernels_agree_next_to_ties_as_on_the_whole_table() -> None:
    rng, seen = np.random.default_rng(11), set()
    for number in range(120):
        graph, op = _random_operator(rng, ("Add", "Add", "Sub", "Mul")[number % 4])
        sides = []
        for name in ("litert:default", "onnxruntime:optimized"):
            moved = [
                replace(graph[side], quantization=Quantization.per_tensor(graph[side].per_tensor.step * (1 + rng.normal() * 1e-6), 0))
                for side in op.inputs
                if number % 3 == 0
            ]
            own = graph.evolve(tensors=moved)
            sides.append((own, op, KERNELS[name].of(own, op)))
        if any(row is None or row.reference is None for _, _, row in sides):
            continue
        tables = [row.compute_integers(own, op, all_codes(own, op)) for own, op, row in sides]
        same = all(table is not None and len(table.ways) == 1 for table in tables) and np.array_equal(tables[0].ways, tables[1].ways)
        assert agree_for_all(sides[0], sides[1:]) == same, (op, [own[name].quantization for own, _, _ in sides for name in op.names])
        seen.add((op.kind, number % 3 == 0, same))
    assert {("Add", False, True), ("Add", True, True), ("Add", True, False), ("Mul", False, True)} <= seen


def test_no_other_kernel_is_asked_where_the_integers_of_the_first_are_unknown() -> None:
    weights = Tensor("b", "int8", (8, 8), np.ones((8, 8), np.int8), Quantization.per_tensor(0.5))
    data, result = (Tensor(name, "int8", (1, 8), None, Quantization.per_tensor(0.5)) for name in "ay")
    op = Op("MatMul", ("a", "b"), ("y",))
    graph = Graph("product", {side.name: side for side in (data, weights, result)}, (op,), ("a",), ("y",))

    def others() -> Iterator[Side]:  # who stores the weights again for each
        pytest.fail("another kernel is asked")
        yield graph, op, None

    assert not agree_for_all((graph, op, KERNELS["litert:default"].of(graph, op)), others())
