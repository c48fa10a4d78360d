"""Passes for tflite-micro: types of indices, and padding apart from SpaceToBatch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qconvert.conformance.examples import make_graph, random_operands
from qconvert.conformance.matrix import run_file, write_graph
from qconvert.conversion import normalize
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.kernels import Kernels
from qconvert.passes.number_types import narrow_indices
from qconvert.passes.pads_and_dilations import separate_pads
from qconvert.plugins import kernels_named, target_named


def test_indices_are_narrow_where_readers_take_them() -> None:
    """One ArgMax feeds a Gather and an output, another one a sum of int64."""
    tensors = [
        Tensor("x", "float32", (2, 5)), Tensor("table", "float32", (5,), np.arange(5, dtype=np.float32)),
        Tensor("one", "int64", (), np.array(1)), Tensor("a", "int64", (2,)), Tensor("b", "int64", (2,)), Tensor("y", "float32", (2,)),
        Tensor("z", "int64", (2,)),
    ]  # fmt: skip
    ops = (
        Op("ArgMax", ("x",), ("a",), {"axis": 1, "keepdims": 0}),
        Op("ArgMin", ("x",), ("b",), {"axis": 1, "keepdims": 0}),
        Op("Gather", ("table", "a"), ("y",), {"axis": 0}),
        Op("Add", ("b", "one"), ("z",)),
    )
    graph = Graph("g", {item.name: item for item in tensors}, ops, ("x",), ("a", "y", "z"))
    found, notes = narrow_indices(graph, None)
    assert (found["a"].dtype, found["b"].dtype) == ("int32", "int64")
    assert notes == ("1 tensor of indices: int32 in place of int64",)
    feed = {"x": np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)}
    assert all(
        np.array_equal(one, other) for one, other in zip(evaluate(graph, feed).values(), evaluate(found, feed).values(), strict=True)
    )


@pytest.mark.parametrize(("dtype", "layout"), [("int8", "channels_last"), ("float32", "channels_first"), ("int16", "channels_last")])
def test_padding_stands_before_space_to_batch(dtype: str, layout: str) -> None:
    rng = np.random.default_rng(1)  # of which the zero point of int8 is not 0, the integer with which the kernel pads
    graph = make_graph("SpaceToBatch", dtype, rng, Kernels(), layout)
    found, _ = separate_pads(graph, target_named("tflite-micro"))
    assert [op.kind for op in found.ops] == ["Pad", "SpaceToBatch"]
    feed = random_operands(graph, "SpaceToBatch", rng)
    assert np.array_equal(evaluate(graph, feed)["o0"], evaluate(found, feed)["o0"])
    assert separate_pads(graph, target_named("tflite"))[0] is graph


def test_an_unpadded_operator_stays() -> None:
    graph = make_graph("SpaceToBatch", "int8", np.random.default_rng(0), Kernels(), "channels_last")
    pads = graph[graph.ops[0].inputs[2]]
    plain = graph.evolve(tensors=[replace(pads, data=np.zeros(4, np.int64)), replace(graph["o0"], shape=None)])
    fitted, _ = normalize(plain, target_named("tflite-micro"))
    assert [op.kind for op in fitted.ops] == ["SpaceToBatch"]


@pytest.mark.tflite_micro
@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_int16_is_mirrored_by_slices(mode: str, tmp_path: Path) -> None:
    """MIRROR_PAD of tflite-micro has int8 and float32."""
    quantization = Quantization.per_tensor(0.5)
    tensors = [Tensor(name, "int16", shape, None, quantization) for name, shape in (("x", (1, 4, 4, 2)), ("y", (1, 7, 6, 2)))]
    tensors.append(Tensor("pads", "int64", (8,), np.array([0, 2, 1, 0, 0, 1, 1, 0])))
    graph = Graph("g", {item.name: item for item in tensors}, (Op("Pad", ("x", "pads"), ("y",), {"mode": mode}),), ("x",), ("y",))
    fitted, path = write_graph(graph, target_named("tflite-micro"), tmp_path)
    assert "Pad" not in {op.kind for op in fitted.ops}
    runtime, kernels = kernels_named("tflite-micro")
    feed = {"x": np.random.default_rng(0).integers(-(2**15), 2**15, (1, 4, 4, 2)).astype(np.int16)}
    (found,) = run_file(path, fitted, feed, runtime, kernels)
    assert np.array_equal(found, evaluate(graph, feed)["y"])
