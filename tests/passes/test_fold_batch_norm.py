"""fold_batch_norm: equal up to float32 rounding; what cannot be folded is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes.graphs import CONV, applied, constant, make, outputs, q

from qconvert import Graph, Op, Tensor
from qconvert.evaluate import evaluate

RNG = np.random.default_rng(4)
STATISTICS = [
    constant("scale", RNG.uniform(0.5, 2, 4).astype(np.float32)),
    constant("offset", RNG.normal(0, 1, 4).astype(np.float32)),
    constant("mean", RNG.normal(0, 1, 4).astype(np.float32)),
    constant("variance", RNG.uniform(0.1, 3, 4).astype(np.float32)),
]
NORM = Op("BatchNormalization", ("a", "scale", "offset", "mean", "variance"), ("y",), {"data_format": "channels_first", "epsilon": 1e-3})
SHAPES = {"Conv": (4, 3, 3, 3), "ConvTranspose": (4, 3, 3, 3), "Gemm": (4, 6)}


def network(kind: str, bias: np.ndarray[Any, Any] | None, *more: Op, wanted: str = "y", **attributes: Any) -> Graph:
    tensors = [constant("w", RNG.normal(0, 1, SHAPES[kind]).astype(np.float32)), *STATISTICS]
    tensors.append(Tensor("x", "float32", (2, 6) if kind == "Gemm" else (2, 3, 5, 5)))
    names = ("x", "w")
    if bias is not None:
        tensors.append(constant("b", bias))
        names += ("b",)
    op = Op(kind, names, ("a",), {**({} if kind == "Gemm" else CONV), **attributes})
    return make([op, NORM, *more], tensors, "x", wanted)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("bias", [None, RNG.normal(0, 1, 4).astype(np.float32)], ids=["no bias", "bias"])
def test_folded_and_equal_up_to_rounding(kind: str, bias: Any) -> None:
    graph = network(kind, bias)
    changed, notes = applied(graph, "fold_batch_norm")
    assert [op.kind for op in changed.ops] == [kind] and changed.ops[0].outputs == ("y",)
    assert notes == ("1 BatchNormalization is folded into the weights before them; equal up to float32 rounding",)
    x = RNG.normal(0, 1, graph["x"].shape).astype(np.float32)
    a, b = (evaluate(g, {"x": x})["y"] for g in (graph, changed))
    assert np.abs(a - b).max() < 1e-5 * np.abs(a).max()
    (a,), (b,) = outputs(graph, {"x": x}), outputs(changed, {"x": x})
    assert np.abs(a - b).max() < 1e-5 * np.abs(a).max()
    s, o, m, v = (np.asarray(t.data, np.float64) for t in STATISTICS)
    factor = s / np.sqrt(v + 1e-3)
    expected = (factor.reshape(-1, *[1] * (len(SHAPES[kind]) - 1)) * graph["w"].data).astype(np.float32)
    assert np.array_equal(changed[changed.ops[0].inputs[1]].data, expected)  # type: ignore[arg-type]
    wanted = ((0 if bias is None else bias.astype(np.float64)) - m) * factor + o
    assert np.array_equal(changed[changed.ops[0].inputs[2]].data, wanted.astype(np.float32))  # type: ignore[arg-type]


def test_weights_of_two_operators_are_copied() -> None:
    graph = network("Gemm", np.float32([[7]]), Op("Gemm", ("x", "w"), ("z",)), wanted="y z")
    changed, _ = applied(graph, "fold_batch_norm")
    assert changed["w"] == graph["w"]
    x = RNG.normal(0, 1, (2, 6)).astype(np.float32)
    before, after = evaluate(graph, {"x": x}), evaluate(changed, {"x": x})
    assert np.array_equal(before["z"], after["z"])
    assert np.abs(before["y"] - after["y"]).max() < 1e-4


def stays(graph: Graph, reason: str) -> None:
    changed, notes = applied(graph, "fold_batch_norm")
    assert changed is graph
    assert notes == (f"BatchNormalization 'y' stays: {reason}",)


def test_what_stays_is_named() -> None:
    stays(network("Conv", None, Op("Neg", ("a",), ("z",)), wanted="y z"), "something else reads its input")
    stays(network("Conv", None, activation="relu"), "the Conv before it has an activation")
    stays(network("Gemm", np.ones((2, 4), np.float32)), "its channels differ from those of the weights")


def test_quantized_weights_stay() -> None:
    stored = constant("stored", np.int8(RNG.integers(-127, 128, (4, 6))), q(0.02))
    tensors = [Tensor("x", "float32", (2, 6)), stored, *STATISTICS]
    graph = make([Op("Dequantize", ("stored",), ("w",)), Op("Gemm", ("x", "w"), ("a",)), NORM], tensors, "x", "y")
    stays(graph, "weights or statistics are not float32 constants")
    tensors[0] = Tensor("x", "int8", (2, 6), None, q(0.1))
    graph = make([Op("Gemm", ("x", "stored"), ("a",)), NORM], tensors, "x", "y")
    stays(graph, "the Gemm before it is quantized")
