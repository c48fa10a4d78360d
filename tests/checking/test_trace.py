"""Which operator of a source each operator of a result is, from the graphs alone."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.checking.outputs import Border
from qconvert.checking.proof.correspondence import Trace
from qconvert.graph import Graph, Op, Quantization, Tensor

STEPS = Quantization.per_tensor(0.05, 3)


def graph(addend: int, *ops: Op) -> Graph:
    """Operators on x, with two constants of int8, of which the second is given."""
    names = dict.fromkeys(("x", *(name for op in ops for name in op.outputs)))
    tensors = {name: Tensor(name, "int8", (2, 4), None, STEPS) for name in names}
    for name, value in (("c", 5), ("d", addend)):
        tensors[name] = Tensor(name, "int8", (4,), np.full(4, value, np.int8), STEPS)
    read = {name for op in ops for name in op.inputs} | names.keys()
    return Graph("g", {name: tensor for name, tensor in tensors.items() if name in read}, ops, ("x",), ("y",))


@pytest.mark.parametrize(("addend", "is_equal"), [(5, True), (6, False)])
def test_a_result_may_compute_once_what_the_source_computes_twice(addend: int, is_equal: bool) -> None:
    source = graph(addend, Op("Add", ("x", "c"), ("a",)), Op("Add", ("x", "d"), ("b",)), Op("Mul", ("a", "b"), ("y",)))
    result = graph(addend, Op("Add", ("x", "c"), ("a",)), Op("Mul", ("a", "a"), ("y",)))
    trace = Trace.of(Border.of(source, result), (source, result))
    assert (not trace.strange, not trace.lost_operators) == (is_equal, is_equal)
    assert [(pair.source.kind, pair.result.kind) for pair in trace.pairs] == [("Add", "Add"), *([("Mul", "Mul")] * is_equal)]
