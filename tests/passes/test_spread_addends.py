"""spread_addends: numbers after convolutions over one dimension, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes.graphs import applied, constant, make, outputs

from qconvert import Graph, Op, Tensor

CONV = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "data_format": "channels_first", "auto_pad": "NOTSET", "group": 1}


def graph(channels: int, kinds: tuple[str, ...], number: Any = 3.0, length: int | str = 5, **conv: Any) -> Graph:
    """A convolution, and operators of a number one after the other."""
    taps = constant("w", np.random.default_rng(0).normal(size=(channels, 2, 1)).astype(np.float32))
    tensors = [Tensor("x", "float32", (1, 2, length)), taps, constant("c", np.asarray(number, np.float32))]
    ops = [Op("Conv", ("x", "w"), ("v0",), {**CONV, **conv})]
    for index, kind in enumerate(kinds):
        inputs = (f"v{index}",) if kind in ("Relu", "Identity") else ("c", f"v{index}") if kind == "from" else (f"v{index}", "c")
        ops.append(Op("Sub" if kind == "from" else kind, inputs, (f"v{index + 1}",)))
    return make(ops, tensors, "x", f"v{len(kinds)}")


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("channels", "kinds", "shapes"),
    [
        (3, ("Add",), [(3, 1)]), (3, ("Sub",), [(3, 1)]), (1, ("Add",), [(1, 5)]), (3, ("Add", "Sub", "Relu"), [(3, 1), (3, 1)]),
        (3, ("Identity", "Add"), [(3, 1)]), (3, ("from",), []), (3, ("Relu", "Add"), []), (3, ("Mul", "Add"), []),
    ],
)  # fmt: skip
def test_numbers_are_vectors_where_the_convolution_would_take_them_in(
    channels: int, kinds: tuple[str, ...], shapes: list[tuple[int, ...]]
) -> None:
    before = graph(channels, kinds)
    after, notes = applied(before, "spread_addends")
    assert [after[op.inputs[1]].shape for op in after.ops if op.kind in ("Add", "Sub") and op.inputs[1] not in before.tensors] == shapes
    assert bool(notes) is bool(shapes)
    feed = {"x": np.random.default_rng(1).normal(size=(1, 2, 5)).astype(np.float32)}
    assert np.array_equal(outputs(before, feed)[0], outputs(after, feed)[0])


@pytest.mark.parametrize(
    "before",
    [
        graph(3, ("Add",), [[[[3.0]]]]), graph(3, ("Add",), np.ones((3, 1))), graph(1, ("Add",), length="n"),
        graph(3, ("Add",), activation="relu"),
    ],
)  # fmt: skip
def test_others_stay(before: Graph) -> None:
    assert applied(before, "spread_addends") == (before, ())
