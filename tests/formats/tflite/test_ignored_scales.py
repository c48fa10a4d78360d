"""Scales that a file states and no kernel uses: biases of another scale, and scales of zero and infinity. The integers are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from differential import compare
from loaded import tflite_graph
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import convert
from qconvert.errors import InvalidModelError
from qconvert.evaluate import evaluate
from qconvert.graph.metadata import IGNORED_SCALES

pytestmark = pytest.mark.litert

WEIGHTS = np.random.default_rng(1).integers(-127, 128, (4, 4), dtype=np.int8)


def _linear(builtin: str, dtype: str, scale: Any, point: Any = 0) -> tuple[bytes, np.ndarray[Any, Any]]:
    """CONV_2D or FULLY_CONNECTED with a bias that states `scale` and `point`, and data for it."""
    wide = dtype == "int16"
    shape, kernel = ((1, 4, 4, 4), (4, 1, 1, 4)) if builtin == "CONV_2D" else ((3, 4), (4, 4))
    bias = TensorSpec("b", (4,), "int64" if wide else "int32", scale, point, data=np.array([0, 1000, -2000, 3000]))
    weights = TensorSpec("w", kernel, "int8", [0.01] * 4 if builtin == "CONV_2D" else 0.01, 0, data=WEIGHTS.reshape(kernel))
    x, y = TensorSpec("x", shape, dtype, 0.05, 0 if wide else 3), TensorSpec("y", shape, dtype, 0.1, 0)
    options = {"padding": 1, "strideH": 1, "strideW": 1} if builtin == "CONV_2D" else {}
    data = np.random.default_rng(2).integers(-100, 100, shape).astype(dtype)
    return single_op(builtin, options, [x, weights, bias], [y]), data


STATED = [(0.1, 0), ([0.1, 0.2, 0.3, 0.4], 0), (0.0, 0), (np.inf, 0), (0.0005, 7), (1 / 32768, 0)]


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("builtin", ["CONV_2D", "FULLY_CONNECTED"])
@pytest.mark.parametrize(("scale", "point"), STATED, ids=[str(case) for case in STATED])
def test_a_bias_is_its_integers_whatever_it_states(builtin: str, dtype: str, scale: Any, point: int) -> None:
    data, feed = _linear(builtin, dtype, scale, point)
    graph = tflite_graph(data)
    bias = next(tensor for tensor in graph.constants() if tensor.dtype in ("int32", "int64"))
    assert bias.name == "b" and bias.quantization is not None and bias.data is not None
    assert np.allclose(bias.quantization.scale, 0.05 * 0.01) and bias.quantization.is_symmetric and bias.data[3] == 3000
    if scale != 0.0:
        first = json.loads(graph.metadata[IGNORED_SCALES])["b"][0]
        assert first[1] == point and float(first[0]) == np.float32(np.ravel(scale)[0])
    sound, _ = _linear(builtin, dtype, [0.05 * 0.01] * 4 if builtin == "CONV_2D" else 0.05 * 0.01)
    (wanted,) = run_litert(sound, [feed])
    (found,) = evaluate(graph, {"x": feed}).values()
    assert np.abs(found.astype(np.int64) - wanted).max() <= 1


@pytest.mark.onnxruntime
def test_litert_runs_such_a_bias_by_its_integers() -> None:
    data, feed = _linear("CONV_2D", "int16", 1 / 32768)
    (item,) = compare(data, [feed], target="generic")
    assert item.largest <= 1


def test_a_shared_bias_is_read_for_each_operator() -> None:
    """Two operators with other input scales read one bias: each has it on its own accumulator."""
    bias = TensorSpec("b", (4,), "int32", 0.0005, 0, data=np.array([0, 1000, -2000, 3000], np.int32))
    kernel = TensorSpec("w", (4, 4), "int8", 0.01, 0, data=WEIGHTS)
    tensors = [TensorSpec("x", (3, 4), "int8", 0.05, 3), TensorSpec("y", (3, 4), "int8", 0.1, 0), TensorSpec("z", (3, 4), "int8", 0.2, 0)]
    ops = [OpSpec("FULLY_CONNECTED", [a, "w", "b"], [c], {}) for a, c in (("x", "y"), ("y", "z"))]
    graph = tflite_graph(model(ops, [*tensors, kernel, bias], ["x"], ["z"]))
    scales = [float(graph[op.inputs[2]].quantization.scale[0]) for op in graph.ops]  # type: ignore[union-attr]
    assert scales == pytest.approx([0.05 * 0.01, 0.1 * 0.01])


def test_the_conversion_warns(tmp_path: Path) -> None:
    source = tmp_path / "a.tflite"
    source.write_bytes(_linear("CONV_2D", "int8", [0.1] * 4)[0])
    report = convert(source, tmp_path / "a.onnx")
    words = "warning: 1 tensor states scales that its kernels do not use ('b'): integers are read as kernels take them"
    assert (report.changes[0].by, report.changes[0].text) == ("tflite", words)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan, -1.0])
def test_a_scale_without_meaning_is_refused_where_something_computes_with_it(scale: float) -> None:
    shape = TensorSpec("s", (1,), "int32", data=np.array([4], np.int32))
    moved = single_op("RESHAPE", {}, [TensorSpec("x", (4, 1), "int8", scale, 0), shape], [TensorSpec("y", (4,), "int8", scale, 0)])
    (item,) = compare(moved, [np.array([[1], [-2], [3], [-4]], np.int8)], "reference")  # XNNPACK refuses such scales
    assert item.largest == 0
    added = single_op("ADD", {}, [TensorSpec("x", (4,), "int8", scale, 0), TensorSpec("b", (4,), "int8", 0.1, 0)],
                      [TensorSpec("y", (4,), "int8", 0.1, 0)])  # fmt: skip
    with refused(InvalidModelError, "scale-not-positive", holds=("'x'",)):
        tflite_graph(added)
    kernel = TensorSpec("w", (4, 4), "int8", scale, 0, data=WEIGHTS)
    numbers = [TensorSpec("x", (1, 4), "float32"), kernel, None], [TensorSpec("y", (1, 4), "float32")]
    with refused(InvalidModelError, "scale-not-positive", holds=("'w'",)):
        tflite_graph(single_op("FULLY_CONNECTED", {}, *numbers))


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("value", "is_read"), [(0, True), (5, False)])
def test_zeros_on_a_scale_of_zero_are_zeros(value: int, is_read: bool) -> None:
    """TensorFlow's converter writes them so in int16: its scale is the largest value divided by 32767."""
    zeros, bounds = TensorSpec("c", (), "int16", 0.0, 0, data=np.int16(value)), TensorSpec("z", (), "int16", 0.001, 0)
    x, y = (TensorSpec(name, (2, 3), "int16", 0.001, 0) for name in "xy")
    ops = [OpSpec("QUANTIZE", ["c"], ["z"], None), OpSpec("MINIMUM", ["x", "z"], ["y"], None)]
    data, feed = model(ops, [zeros, x, bounds, y], ["x"], ["y"]), np.array([[-500, 7, 0], [32767, -1, 40]], np.int16)
    if not is_read:
        with refused(InvalidModelError, "scale-not-positive"):
            tflite_graph(data)
        return
    assert run_litert(data, [feed])[0].tolist() == [[-500, 0, 0], [0, -1, 0]]
    (item,) = compare(data, [feed])
    assert item.largest == 0


@pytest.mark.onnxruntime
@pytest.mark.parametrize("values", [0, 3])
def test_a_channel_of_zeros_on_a_scale_of_zero_is_zeros(values: int) -> None:
    """TensorFlow's converter gives channels without weights the scale 0 next to int16; the kernel multiplies the bias by 0 there, too."""
    kernel = WEIGHTS.reshape(4, 1, 1, 4).copy()
    kernel[1] = values
    x, y = TensorSpec("x", (1, 4, 4, 4), "int16", 0.05, 0), TensorSpec("y", (1, 4, 4, 4), "int16", 0.1, 0)
    weights = TensorSpec("w", kernel.shape, "int8", [0.01, 0.0, 0.02, 0.01], 0, data=kernel)
    bias = TensorSpec("b", (4,), "int64", [0.0005, 0.0, 0.001, 0.0005], 0, data=np.array([0, 1 << 30, -2000, 3000]))
    data = single_op("CONV_2D", {"padding": 1, "strideH": 1, "strideW": 1}, [x, weights, bias], [y])
    feed = np.random.default_rng(2).integers(-100, 100, x.shape).astype(np.int16)
    assert not run_litert(data, [feed])[0][..., 1].any()
    if values:
        with refused(InvalidModelError, "scale-not-positive", holds=("'w'",)):
            tflite_graph(data)
        return
    (item,) = compare(data, [feed])
    assert item.largest <= 1 and not evaluate(tflite_graph(data), {"x": feed})["y"][..., 1].any()


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["int16", "uint8"])
def test_a_constant_that_overflows_its_kernel_is_what_the_kernel_makes_of_it(dtype: str) -> None:
    """As the bound 1e7 of a normalization in int16: shifted left, the integers wrap around 32 bits."""
    steps = np.array([32767, -32767, 3, -8, 0] if dtype == "int16" else [255, 127, 3, 8, 0], dtype)
    scale = 305.1851 * 256 ** (dtype == "uint8")
    large, bounds = TensorSpec("c", (5,), dtype, scale, 0, data=steps), TensorSpec("z", (5,), "int16", 6e-5, 0)
    x, y = (TensorSpec(name, (2, 5), "int16", 6e-5, 0) for name in "xy")
    ops = [OpSpec("QUANTIZE", ["c"], ["z"], None), OpSpec("MINIMUM", ["x", "z"], ["y"], None)]
    data = model(ops, [large, x, bounds, y], ["x"], ["y"])
    (item,) = compare(data, [np.random.default_rng(1).integers(-100, 100, (2, 5)).astype(np.int16)])
    assert item.largest == 0
