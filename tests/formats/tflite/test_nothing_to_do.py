"""Operators that have nothing to do: reductions over no axes, and reshaped data without elements."""

from __future__ import annotations

import numpy as np
import pytest
from formats.tflite.written import random_stored, require_same_outputs, rewritten
from loaded import tflite_graph
from tflite_models import TensorSpec, run_litert, single_op

from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build

pytestmark = pytest.mark.litert

NO_AXES = TensorSpec("a", (0,), "int32", data=np.zeros(0, np.int32))
REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_over_no_axes_copies(name: str, dtype: str) -> None:
    scale = 0.05 if dtype == "int8" else None
    x, y = (TensorSpec(tensor, (2, 3), dtype, scale, 3 if scale else 0) for tensor in "xy")
    source = single_op(name, {"keepDims": False}, [x, NO_AXES], [y])
    graph = tflite_graph(source, "model")
    data = random_stored(graph["x"], np.random.default_rng(2))
    assert np.array_equal(evaluate(graph, {"x": data})["y"], data)
    require_same_outputs(source, build(graph, {}), [data])


@pytest.mark.parametrize("name", ["REDUCE_ANY", "REDUCE_ALL"])
def test_truth_values_too(name: str) -> None:
    source = single_op(name, {}, [TensorSpec("x", (2, 3), "bool"), NO_AXES], [TensorSpec("y", (2, 3), "bool")])
    require_same_outputs(source, build(tflite_graph(source, "model"), {}), [np.array([[True, False, True], [False, False, True]])])


def test_averages_and_sums_over_no_axes_reach_the_quantization_of_the_result() -> None:
    x, y = TensorSpec("x", (16, 16), "int8", 0.1, 3), TensorSpec("y", (16, 16), "int8", 0.23, -5)
    codes = np.arange(-128, 128).astype(np.int8).reshape(16, 16)
    for name in ("MEAN", "SUM"):
        source = single_op(name, {}, [x, NO_AXES], [y])
        (wanted,) = run_litert(source, [codes], "default")
        found = evaluate(tflite_graph(source, "model"), {"x": codes})["y"].astype(int)
        assert np.abs(found - wanted).max() <= 1  # the kernels round by fixed-point multipliers
        assert np.unique(found).size == 112
    source = single_op("REDUCE_PROD", {}, [x, NO_AXES], [y])  # copied as they are
    assert np.array_equal(run_litert(source, [codes], "default")[0], evaluate(tflite_graph(source, "model"), {"x": codes})["y"])


@pytest.mark.cross_section
@pytest.mark.parametrize(("before", "after"), [((0,), (1, 0)), ((0, 3), (0, 3)), ((3, 0), (0, 5)), ((0, 3), (-1, 3))])
def test_sizes_of_0_are_sizes_where_there_are_no_elements(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    sizes = TensorSpec("s", (len(after),), "int32", data=np.array(after, np.int32))
    shape = tuple(0 if size < 0 else size for size in after)
    source = single_op("RESHAPE", {}, [TensorSpec("x", before, "float32"), sizes], [TensorSpec("y", shape, "float32")])
    graph = tflite_graph(source, "model")
    assert graph["y"].shape == shape
    require_same_outputs(source, rewritten(source), [np.zeros(before, np.float32)])
