"""Which operator of a source each operator of a result is, from the graphs alone."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.checking.outputs import Border
from qconvert.checking.proof.correspondence import Trace
from qconvert.checking.proof.elements import Elements, clip_elements
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


def test_what_is_rewritten_has_the_axes_of_what_it_reads() -> None:
    """Of equal sizes no shape tells the order; a BatchNormalization is a Mul and an Add in the result, channels last."""
    tensors = {name: Tensor(name, "float32", (1, 4, 4, 4)) for name in ("x", "m", "x_last", "part")}
    tensors |= {name: Tensor(name, "float32", shape) for name, shape in (("y", (1, 4, 3, 3)), ("y_last", (1, 3, 3, 4)))}
    constants = {name: Tensor(name, "float32", (4,), np.arange(1, 5, dtype=np.float32)) for name in "abcd"}
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0)}

    def pool(data: str, result: str, layout: str) -> Op:
        return Op("MaxPool", (data,), (result,), {**window, "data_format": layout})

    normalize = Op("BatchNormalization", ("x", "a", "b", "c", "d"), ("m",), {"epsilon": 1e-3, "data_format": "channels_first"})
    of_source = {**{name: tensors[name] for name in ("x", "m", "y")}, **constants}
    source = Graph("g", of_source, (normalize, pool("m", "y", "channels_first")), ("x",), ("y",))
    ops = (
        Op("Transpose", ("x",), ("x_last",), {"perm": (0, 2, 3, 1)}),
        Op("Mul", ("x_last", "a"), ("part",)),
        Op("Add", ("part", "b"), ("m",)),
        pool("m", "y_last", "channels_last"),
        Op("Transpose", ("y_last",), ("y",), {"perm": (0, 3, 1, 2)}),
    )
    result = Graph("g", {**tensors, "a": constants["a"], "b": constants["b"]}, ops, ("x",), ("y",))
    trace = Trace.of(Border.of(source, result), (source, result))
    assert [pair.result.kind for pair in trace.pairs] == ["MaxPool"] and not trace.ends
    assert [op.kind for op, _ in trace.strange] == ["Mul", "Add"]


@pytest.mark.parametrize(("kind", "clips"), [("Relu", True), ("Gelu", False), ("HardSwish", False), ("Abs", False)])
def test_what_computes_other_codes_than_ends_of_a_range_clips_none(kind: str, clips: bool) -> None:
    sides = {name: Tensor(name, "uint8", (4,), None, Quantization.per_tensor(0.1, 100)) for name in "xy"}
    op = Op(kind, ("x",), ("y",))
    model = Graph("one", sides, (op,), ("x",), ("y",))
    assert (clip_elements(model, op, Elements.of(sides["x"])) is not None) == clips
