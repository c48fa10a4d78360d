"""match_scales: an average to another scale is a depthwise convolution, rounded once, wherever every window has the same count."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate, evaluate_op
from qconvert.passes.operand_scales import match_scales
from qconvert.plugins import target_named
from qconvert.rules.validation import validate


def averaging(own: Quantization, pads: tuple[int, ...] = (0, 0, 0, 0), counts: int = 0, dtype: str = "int8") -> Graph:
    height, width = (4 + pads[0] + pads[2]) // 2, (4 + pads[1] + pads[3]) // 2
    tensors = {
        "x": Tensor("x", dtype, (1, 4, 4, 3), None, Quantization.per_tensor(0.5, 2)),
        "y": Tensor("y", dtype, (1, height, width, 3), None, own),
    }
    attributes = {
        "kernel_shape": (2, 2), "strides": (2, 2), "pads": pads, "count_include_pad": counts, "data_format": "channels_last",
        "activation": "relu",
    }  # fmt: skip
    return Graph("g", tensors, (Op("AveragePool", ("x",), ("y",), attributes),), ("x",), ("y",))


@pytest.mark.parametrize(("dtype", "target"), [("int8", "tflite"), ("uint8", "tflite-uint8")])
@pytest.mark.parametrize(("pads", "counts"), [((0, 0, 0, 0), 0), ((1, 1, 1, 1), 1)])
def test_becomes_a_convolution_with_the_same_values(pads: tuple[int, ...], counts: int, dtype: str, target: str) -> None:
    graph = averaging(Quantization.per_tensor(0.17, 5), pads, counts, dtype)
    changed, (note,) = match_scales(graph, target_named(target))
    validate(changed)
    (op,) = changed.ops
    assert (op.kind, op["group"], op["activation"], op["pads"], op["strides"]) == ("Conv", 3, "relu", pads, (2, 2))
    weights = changed[op.inputs[1]]
    assert weights.data is not None and weights.quantization is not None
    assert (weights.dtype, weights.shape, weights.quantization.step) == (dtype, (3, 1, 2, 2), 0.25)
    assert note.exact
    data = np.random.default_rng(0).integers(-100 if dtype == "int8" else 0, 100, (1, 4, 4, 3)).astype(dtype)
    before = evaluate_op(graph, graph.ops[0], [data])[0]
    after = evaluate_op(changed, op, [data, weights.data])[0]
    assert before.real is not None and after.real is not None
    np.testing.assert_allclose(after.real, before.real, rtol=1e-12, atol=1e-12)
    assert len(np.unique(before.stored)) > 3


@pytest.mark.parametrize(
    ("own", "pads", "kinds"),
    [
        (Quantization.per_tensor(0.5, 2), (0, 0, 0, 0), ["AveragePool"]),
        (Quantization.per_tensor(0.17, 5), (1, 1, 1, 1), ["AveragePool", "Requantize"]),
    ],
)
def test_stays_an_average_on_one_scale_or_where_windows_differ(own: Quantization, pads: tuple[int, ...], kinds: list[str]) -> None:
    changed, _ = match_scales(averaging(own, pads), target_named("tflite"))
    assert [op.kind for op in changed.ops] == kinds


@pytest.mark.parametrize(("window", "arithmetic", "exact"), [(2, "", True), (3, "", False), (2, "ties_up", False), (2, "ties_away", False)])
def test_is_exact_only_where_ties_go_the_same_way(window: int, arithmetic: str, exact: bool) -> None:
    """Float32 holds 1/4 and not 1/9; and a convolution rounds ties to even, as not every average does."""
    attributes = {"kernel_shape": (window, window), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_last"}
    if arithmetic:
        attributes["arithmetic"] = arithmetic
    differing = 0
    for scale in (0.1, 0.025, 0.05 * 4 / 9, 0.2, 0.05 / 3, 0.05):
        tensors = {
            "x": Tensor("x", "int8", (1, 12, 12, 1), None, Quantization.per_tensor(0.05)),
            "y": Tensor("y", "int8", (1, 13 - window, 13 - window, 1), None, Quantization.per_tensor(scale)),
        }
        graph = Graph("g", tensors, (Op("AveragePool", ("x",), ("y",), attributes),), ("x",), ("y",))
        changed, notes = match_scales(graph, target_named("tflite"))
        if scale != 0.05:
            (note,) = notes
            assert changed.ops[0].kind == "Conv" and note.exact is exact
        data = np.random.default_rng(0).integers(-30, 30, (1, 12, 12, 1)).astype(np.int8)
        differing += int((evaluate(graph, {"x": data})["y"] != evaluate(changed, {"x": data})["y"]).sum())
    assert not exact or not differing
