"""Random graphs cut for made-up targets: the whole computes the same, and regions are connected, convex and cannot be joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from random_graphs import random_graph

from qconvert import Graph, Op, Target, partition
from qconvert.operators import KINDS
from qconvert.partitioning.splitting import stage_graph
from qconvert.partitioning.types import Partition
from qconvert.rewriting.control_flow import without_calls
from qconvert.rules.validation import validate
from tests.partitioning.cutting import fussy, same_outputs, same_runs


def draw(rng: np.random.Generator, graph: Graph, share: float) -> list[str]:
    kinds = sorted({op.kind for op in graph.ops} | {"Dequantize", "Quantize"})
    return [kind for kind in kinds if rng.random() < share]


def is_connected(function: Graph) -> bool:
    """Whether data go between all of the operators, whichever way."""
    home = {id(op): {id(op)} for op in function.ops}
    makers = function.producers()
    for op in function.ops:
        for name in op.inputs:
            if name in makers:
                both = home[id(op)] | home[id(makers[name])]
                for one in both:
                    home[one] = both
    return len({id(group) for group in home.values()}) <= 1


def joinable(graph: Graph) -> list[tuple[str, str]]:
    """Regions of one target that could be one: data go from one to the other, and on no way through others."""
    makers = graph.producers()
    calls = [op for op in graph.ops if op.kind == "Call" and op["target"]]
    found = []
    for second in calls:
        for first in {id(makers[name]): makers[name] for name in second.inputs if name in makers}.values():
            if first in calls and first["target"] == second["target"] and not indirect(graph, first, second, makers):
                found.append((str(first["function"]), str(second["function"])))
    return found


def indirect(graph: Graph, first: Op, second: Op, makers: Mapping[str, Op]) -> bool:
    """Whether something between depends on the one and is needed by the other."""
    waiting = [makers[name] for name in second.inputs if name in makers and makers[name] is not first]
    seen: set[int] = set()
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        above = [makers[name] for name in op.inputs if name in makers]
        if any(item is first for item in above):
            return True
        waiting += above
    return False


def holds(graph: Graph, found: Partition, seed: int) -> None:
    """Everything that is true of a partition."""
    validate(found.graph)
    same_outputs(graph, found.graph, seed)
    inlined = without_calls(found.graph)
    validate(inlined)
    same_outputs(graph, inlined, seed)
    assert joinable(found.graph) == []
    same_runs(graph, found, stage_graph(found.graph), 1)
    named = {str(op["function"]): str(op["target"]) for op in found.graph.ops if op.kind == "Call" and op["target"]}
    assert named == {region.name: region.target for region in found.regions}
    for region in found.regions:
        function = found.graph.functions[region.name]
        assert is_connected(function), region.name
        assert function.inputs == region.inputs and function.outputs == region.outputs and region.outputs
        assert any(KINDS[op.kind].rule != "convert" for op in function.ops)
    for item in found.outside:
        assert set(item.reasons) == set(found.targets) and all(item.reasons.values())


def cut(graph: Graph, targets: Sequence[Target], **options: int) -> Partition:
    return partition(graph, targets, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(120))
def test_one_target(seed: int) -> None:
    rng, graph = np.random.default_rng(seed), random_graph(seed)
    found = cut(graph, [fussy("npu", draw(rng, graph, 0.6))])
    holds(graph, found, seed)


@pytest.mark.parametrize("seed", range(200, 260))
def test_two_targets(seed: int) -> None:
    """Nothing that the first takes goes to the second."""
    rng, graph = np.random.default_rng(seed), random_graph(seed)
    first, second = draw(rng, graph, 0.4), draw(rng, graph, 0.6)
    found = cut(graph, [fussy("first", first), fussy("second", second)])
    holds(graph, found, seed)
    for region in found.regions:
        assert set(region.operators) <= set(first if region.target == "first" else second)
        assert region.target == "first" or set(region.operators) & set(first) <= {"Quantize", "Dequantize", "Requantize"}


@pytest.mark.parametrize("seed", range(300, 330))
def test_small_regions_go_back(seed: int) -> None:
    rng, graph = np.random.default_rng(seed), random_graph(seed)
    found = cut(graph, [fussy("npu", draw(rng, graph, 0.7))], min_ops=3)
    holds(graph, found, seed)
    for region in found.regions:
        assert sum(count for kind, count in region.operators.items() if KINDS[kind].rule != "convert") >= 3


@pytest.mark.parametrize("seed", range(400, 420))
def test_all_or_nothing(seed: int) -> None:
    graph = random_graph(seed)
    everything = cut(graph, [fussy("npu", {*KINDS})], min_ops=0)
    holds_all = [op for op in everything.graph.ops if op.kind != "Call"]
    assert holds_all == [] and everything.outside == ()
    same_outputs(graph, everything.graph, seed)
    nothing = cut(graph, [fussy("npu", ())])
    assert nothing.regions == () and nothing.graph.functions == {}
    same_outputs(graph, nothing.graph, seed)


def test_the_same_graph_has_the_same_partition() -> None:
    for seed in range(10):
        graph = random_graph(seed)
        target = fussy("npu", ("Conv", "Add", "Relu", "Mul", "Reshape", "Concat"))
        assert cut(graph, [target]).to_dict() == cut(graph, [target]).to_dict()
