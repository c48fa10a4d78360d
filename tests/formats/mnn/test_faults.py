"""Operators that MNN computes wrongly: written in a form that it computes rightly, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.conformance.matrix import run_file, write_graph
from qconvert.evaluate import evaluate
from qconvert.formats.mnn.faults import fault_of, lower_faults
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, canonical_dtype
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_OPSET
from qconvert.kernels import KERNELS
from qconvert.operators.shapes_and_functions import infer
from qconvert.plugins import kernels_named, target_named

_RNG = np.random.default_rng(3)
_SIGNED = np.array([-2.5, -1.0, -0.0, 0.0, 0.5, 2.0, -1.0, np.inf], np.float32)


def normal(*shape: int) -> Array:
    return _RNG.normal(0, 0.5, shape).astype(np.float32)


def graph_of(kind: str, fed: tuple[Array, ...], constants: tuple[Array | None, ...] = (), outputs: str = "y", **attributes: Any) -> Graph:
    """One operator on inputs, then constants; None for an absent one."""
    inputs = [Tensor(f"x{place}", canonical_dtype(item.dtype), item.shape) for place, item in enumerate(fed)]
    known = [
        None if item is None else Tensor(f"c{place}", canonical_dtype(item.dtype), item.shape, item) for place, item in enumerate(constants)
    ]
    names = tuple("" if tensor is None else tensor.name for tensor in (*inputs, *known))
    results = tuple("" if name == "-" else name for name in outputs.split())
    dtype = "bool" if kind in ("Equal", "NotEqual", "Less", "LessOrEqual", "Greater", "GreaterOrEqual") else str(inputs[0].dtype)
    tensors = {tensor.name: tensor for tensor in (*inputs, *known) if tensor is not None}
    tensors |= {
        name: Tensor(name, "int32" if kind == "Bucketize" else "int64" if name == "index" else dtype, None) for name in results if name
    }
    graph = Graph(
        "g", tensors, (Op(kind, names, results, attributes),), tuple(tensor.name for tensor in inputs), tuple(filter(None, results))
    )
    return infer(graph)


def cell(kind: str, outputs: str, gates: int, **attributes: Any) -> tuple[Graph, tuple[Array, ...]]:
    weights = (normal(1, gates * 5, 3), normal(1, gates * 5, 5), normal(1, 2 * gates * 5))
    fed = (normal(4, 2, 3),)
    return graph_of(kind, fed, weights, outputs, hidden_size=5, **attributes), fed


def _plain(
    kind: str, fed: tuple[Array, ...], constants: tuple[Array | None, ...] = (), **attributes: Any
) -> tuple[Graph, tuple[Array, ...]]:
    return graph_of(kind, fed, constants, **attributes), fed


def _resize(mode: str, coordinates: str, nearest_mode: str, size: int, wanted: int) -> tuple[Graph, tuple[Array, ...]]:
    words = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": nearest_mode, "data_format": "channels_first"}
    return _plain("Resize", (normal(1, 2, size, size),), (np.array([wanted, wanted]),), **words)


_RESIZES = (
    ("nearest", "asymmetric", "ceil", (6, 9)),
    ("nearest", "half_pixel", "ceil", (5, 10)),
    ("nearest", "align_corners", "ceil", (9, 6)),
    ("nearest", "half_pixel", "round_prefer_ceil", (6, 9)),
    ("nearest", "asymmetric", "round_prefer_ceil", (5, 10)),
    ("nearest", "half_pixel_symmetric", "floor", (6, 9)),
    ("linear", "half_pixel_symmetric", "floor", (7, 3)),
)
_SIDES = (np.repeat(_SIGNED, 8), np.tile(_SIGNED, 8))
_BOTH = (np.tile(_SIGNED, 8)[:, None], np.array([-0.5, 0.0, 0.5], np.float32))
_SEGMENTS = {
    reduction: _plain("UnsortedSegment", (normal(5, 2),), (np.array([2, 1, 0, 2, 1], np.int32), np.array([4])), reduction=reduction)
    for reduction in ("sum", "prod", "max", "min")
}
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")


def _of_opset_18(kind: str, keepdims: int) -> tuple[Graph, tuple[Array, ...]]:
    """A reduction, which has its axes as an input in the file that MNN's converter gets."""
    graph, fed = _plain(kind, (np.abs(normal(3, 4)) + 1,), (np.array([1]),), keepdims=keepdims)
    return graph.evolve(metadata={SOURCE_FORMAT: "onnx", SOURCE_OPSET: "18"}), fed


CASES = {
    **{f"{kind}, keepdims {keepdims}": _of_opset_18(kind, keepdims) for kind in _REDUCTIONS for keepdims in (0, 1)},
    "Round": _plain("Round", (np.arange(-40, 40, dtype=np.float32) / 4,)),
    "Shrink": _plain("Shrink", (normal(64),), lambd=0.3, bias=0.1),
    **{kind: _plain(kind, _SIDES) for kind in ("Less", "Equal", "NotEqual")},
    **{f"{kind} of both": _plain(kind, _BOTH) for kind in ("Greater", "GreaterOrEqual", "LessOrEqual", "Less", "Equal")},
    "Bucketize": _plain("Bucketize", (normal(2, 40),), (np.array([-0.5, 0.0, 0.5], np.float32),)),
    "SegmentSum": _plain("SegmentSum", (normal(5, 2),), (np.array([0, 0, 1, 3, 3], np.int32),)),
    **{f"segments, {reduction}": case for reduction, case in _SEGMENTS.items()},
    "CumSum": _plain("CumSum", (normal(2, 5),), axis=1),
    "CumSum in reverse": _plain("CumSum", (normal(2, 5),), axis=0, reverse=1),
    **{f"Resize, {' '.join(words)}": _resize(*words, *sizes) for *words, sizes in _RESIZES},
    "GRU": cell("GRU", "y h", 3, linear_before_reset=0),
    "GRU backwards": cell("GRU", "y h", 3, linear_before_reset=1, direction="reverse"),
    "GRU of hard sigmoids": cell("GRU", "y h", 3, linear_before_reset=1, activations=("HardSigmoid", "Tanh")),
    "GRU, last state": cell("GRU", "- h", 3, linear_before_reset=1),
    "LSTM without states": cell("LSTM", "y", 4),
    "LSTM backwards": cell("LSTM", "y h c", 4, direction="reverse"),
    "RNN backwards": cell("RNN", "y h", 1, direction="reverse"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_has_no_fault(name: str) -> None:
    graph, fed = CASES[name]
    lowered = lower_faults(graph)
    assert lowered is not graph and not any(fault_of(lowered.tensors, op) for op in lowered.ops)
    given = dict(zip(graph.inputs, fed, strict=True))
    for wanted, found in zip(evaluate(graph, given).values(), evaluate(lowered, given).values(), strict=True):
        np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=1e-5, atol=1e-6)


@pytest.mark.mnn
@pytest.mark.parametrize("name", CASES)
def test_mnn_computes_what_is_written(name: str, tmp_path: Path) -> None:
    graph, fed = CASES[name]
    runtime, kernels = kernels_named("mnn:cpu")
    given = dict(zip(graph.inputs, fed, strict=True))
    fitted, path = write_graph(graph, target_named("mnn"), tmp_path)
    for wanted, found in zip(evaluate(graph, given).values(), run_file(path, fitted, given, runtime, kernels), strict=True):
        np.testing.assert_allclose(found.reshape(wanted.shape).astype(float), wanted.astype(float), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "graph",
    [
        graph_of("Unique", (np.array([2, 1, 2], np.int32),), outputs="y index"),
        graph_of("ScatterND", (normal(4, 2),), (np.array([[1], [1]]), normal(2, 2)), reduction="add"),
        graph_of("GRU", (normal(100, 2, 3),), (normal(1, 15, 3), normal(1, 15, 5)), hidden_size=5),
    ],
    ids=["Unique", "ScatterND", "GRU of 100 steps"],
)
def test_what_has_no_other_form_is_refused(graph: Graph) -> None:
    verdicts = list(target_named("mnn").verdicts(graph))
    assert [verdict.runs for _, verdict in verdicts] == ["refused"]
    assert "MNN" in verdicts[0][1].rule


def test_integers_keep_their_comparisons() -> None:
    sides = (np.arange(-4, 4, dtype=np.int32), np.arange(-4, 4, dtype=np.int32)[::-1].copy())
    graph = graph_of("Less", sides)
    assert lower_faults(graph).ops == graph.ops


@pytest.mark.parametrize(("count", "is_wrong"), [(1, False), (3, True)])
def test_equal_values_come_in_any_order(count: int, is_wrong: bool) -> None:
    graph = graph_of("TopK", (normal(2, 8),), (np.array([count]),), "y index", axis=1)
    assert bool(KERNELS["mnn:cpu"].fault(graph, graph.ops[0])) == is_wrong


@pytest.mark.parametrize(
    ("dtype", "scales", "is_refused"), [("int8", [0.1], False), ("int8", [0.1, 0.2], True), ("float8e4m3fn", [0.1], True)]
)
def test_activations_that_the_float_network_does_not_round_are_refused(dtype: str, scales: list[float], is_refused: bool) -> None:
    axis = 1 if len(scales) > 1 else None
    quantization = Quantization(np.float32(scales), np.zeros(len(scales), np.int64), axis)
    tensors = {"x": Tensor("x", "float32", (1, 2)), "y": Tensor("y", dtype, (1, 2), None, quantization)}
    op = Op("Quantize", ("x",), ("y",))
    rules = target_named("mnn").own_rules
    assert rules is not None
    assert bool(list(rules(Graph("g", tensors, (op,), ("x",), ("y",)))(op))) == is_refused
