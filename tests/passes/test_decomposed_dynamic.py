"""Data that PyTorch's programs round at each run, part by part, become what the product after them does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from passes.graphs import applied, constant, make, random_integers

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate
from qconvert.operators import is_dynamic

_WEIGHTS = Quantization.per_axis([0.01, 0.02, 0.03], 0)


def decomposed(low: int = 0, changed: Mapping[str, object] | None = None, *, rank: int = 2) -> Graph:
    """x -> 255 steps from its smallest value to its largest, and back -> Gemm with integer weights; `changed` replaces single numbers."""
    numbers = {"zero": 0.0, "zero_2": 0.0, "count": 255.0, "eps": 2.0**-12, "one": 1.0, "low": low, "high": low + 255.0, **(changed or {})}
    axes = tuple(numbers.pop("axes", tuple(range(rank))))  # type: ignore[call-overload]
    point = str(numbers.pop("point", "zp"))
    data = (4, 5) if rank == 2 else (2, 2, 5)
    ops = [
        Op("ReduceMin", ("x", "axes"), ("lo",), {"keepdims": 0}), Op("ReduceMax", ("x", "axes"), ("hi",), {"keepdims": 0}),
        Op("Min", ("lo", "zero"), ("lo_0",)), Op("Max", ("hi", "zero_2"), ("hi_0",)), Op("Sub", ("hi_0", "lo_0"), ("span",)),
        Op("Div", ("span", "count"), ("step",)), Op("Max", ("step", "eps"), ("scale",)), Op("Div", ("lo_0", "scale"), ("ratio",)),
        Op("Round", ("ratio",), ("whole",)), Op("Sub", ("low", "whole"), ("shift",)), Op("Clip", ("shift", "low", "high"), ("point",)),
        Op("Unsqueeze", ("scale", "first"), ("s",)), Op("Unsqueeze", ("point", "first"), ("zp",)), Op("Div", ("one", "s"), ("inverse",)),
        Op("Mul", ("x", "inverse"), ("scaled",)), Op("Round", ("scaled",), ("rounded",)), Op("Add", ("rounded", "zp"), ("shifted",)),
        Op("Clip", ("shifted", "low", "high"), ("stored",)), Op("Sub", ("stored", point), ("steps",)), Op("Mul", ("steps", "s"), ("real",)),
        *([Op("Reshape", ("real", "sizes"), ("rows",))] if rank == 3 else []),
        Op("Dequantize", ("w",), ("weights",)), Op("Gemm", ("rows" if rank == 3 else "real", "weights", "b"), ("y",)),
    ]  # fmt: skip
    tensors = [Tensor("x", "float32", data), constant("axes", np.array(axes, np.int64)), constant("first", np.array([0], np.int64))]
    tensors += [constant("w", random_integers((3, 5), "int8"), _WEIGHTS), constant("b", np.float32([1, -2, 3]))]
    tensors += [constant(name, np.float32(value)) for name, value in numbers.items()]
    tensors += [constant("sizes", np.array([4, 5], np.int64))] if rank == 3 else []
    return make(ops, tensors, "x", "y")


@pytest.mark.parametrize("low", [0, -128])
@pytest.mark.parametrize("rank", [2, 3])
def test_rounding_in_front_of_a_product_is_part_of_it(low: int, rank: int) -> None:
    graph = decomposed(low, rank=rank)
    changed, notes = applied(graph, "fuse_dynamic")
    assert [op.kind for op in changed.ops] == [*(["Reshape"] if rank == 3 else []), "Gemm"]
    assert notes == ("1 product of dynamically quantized data is one operator each",)
    (product,) = (op for op in changed.ops if is_dynamic(op))
    assert product["arithmetic"] == "dynamic_tensor" and changed[product.inputs[1]].quantization == _WEIGHTS
    feed = {"x": np.random.default_rng(3).normal(size=graph["x"].shape).astype(np.float32)}
    np.testing.assert_allclose(evaluate(graph, feed)["y"], evaluate(changed, feed)["y"], atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [{"count": 127.0}, {"zero": -1.0}, {"one": 2.0}, {"high": 100.0}, {"low": 1.0}, {"axes": (0,)}, {"point": "low"}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_what_is_rounded_otherwise_stays(change: Mapping[str, object]) -> None:
    graph = decomposed(changed=change)
    assert applied(graph, "fuse_dynamic")[0] is graph


def test_what_others_read_stays() -> None:
    graph = decomposed()
    graph = graph.evolve(outputs=("y", "stored"))
    changed, _ = applied(graph, "fuse_dynamic")
    kinds = [op.kind for op in changed.ops]
    assert kinds.count("Round") == 2 and "Dequantize" not in kinds and is_dynamic(changed.ops[-1])


def test_weights_that_no_kernel_takes_keep_it() -> None:
    graph = decomposed()
    blocks = Quantization(np.full((3, 5), 0.01, np.float32), np.zeros((3, 5), np.int64), 1, 1)
    plain = graph.evolve(tensors=[constant("w", random_integers((3, 5), "int8"), blocks)])
    assert applied(plain, "fuse_dynamic")[0] is plain
