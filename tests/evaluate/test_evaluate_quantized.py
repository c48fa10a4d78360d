"""The exact evaluation of quantized operators against LiteRT, and of whole graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from qconvert.arithmetic import dequantize, quantize
from qconvert.errors import InvalidGraphError, OptionError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor, numpy_dtype
from tests.evaluate.evaluation import quick, run
from tests.tflite_models import TensorSpec, run_litert, single_op

# Quantized meaning


@pytest.mark.property
@given(st.integers(0, 2**32))
@quick
def test_quantized_result_is_the_rounded_real_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    qs = [Quantization.per_tensor(s, z) for s, z in zip(rng.uniform(0.01, 1, 3), rng.integers(-9, 9, 3), strict=True)]
    a, b = (rng.integers(-128, 128, (4, 4)).astype(np.int8) for _ in range(2))
    (got,) = run("Sub", [(a, qs[0]), (b, qs[1])], ("int8", qs[2]), activation="relu")
    real = np.maximum(dequantize(a, qs[0]) - dequantize(b, qs[1]), 0)
    assert got.real is not None
    assert np.array_equal(got.real, real)
    assert np.array_equal(got.stored, quantize(real, qs[2], "int8"))


def test_scatter_adds_real_values() -> None:
    q = Quantization.per_tensor(0.5, 10)
    zeros, updates = np.full(3, 10, np.int8), np.array([14, 13], np.int8)
    (got,) = run("ScatterND", [(zeros, q), np.array([[1], [1]]), (updates, q)], ("int8", q), reduction="add")
    assert got.stored.tolist() == [10, 17, 10]


def test_concat_requantizes_and_conversions() -> None:
    one, two = Quantization.per_tensor(1.0, 0), Quantization.per_tensor(0.5, 1)
    x = np.array([3, 5], np.int8)
    assert run("Concat", [(x, one), (x, two)], ("int8", one), axis=0)[0].stored.tolist() == [3, 5, 1, 2]
    assert run("Requantize", [(x, one)], ("int8", two))[0].stored.tolist() == [7, 11]
    assert run("Dequantize", [(x, two)], "float32")[0].stored.tolist() == [1, 2]
    assert run("Quantize", [np.array([0.25, 0.75])], ("int8", two))[0].stored.tolist() == [1, 3]
    assert run("Reinterpret", [(x, one)], ("int8", two))[0].stored.tolist() == [3, 5]
    assert run("Greater", [(x, one), (x, two)], "bool")[0].stored.tolist() == [True, True]


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(("dtype", "zero_point", "ties"), [("int8", -3, "ties_away"), ("uint8", 125, "ties_up")])
@pytest.mark.parametrize("padding", [0, 1])
def test_average_pool_ties_equal_litert(dtype: str, zero_point: int, ties: str, padding: int) -> None:
    rng = np.random.default_rng(4)
    q = Quantization.per_tensor(0.1, zero_point)
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (1, 9, 9, 5)).astype(dtype)
    side = 5 if padding == 0 else 4
    options = {"padding": padding, "strideW": 2, "strideH": 2, "filterWidth": 2, "filterHeight": 2}
    options["fusedActivationFunction"] = 3
    specs = [TensorSpec(n, s, dtype, 0.1, zero_point) for n, s in (("x", x.shape), ("y", (1, side, side, 5)))]
    expected = run_litert(single_op("AVERAGE_POOL_2D", options, specs[:1], specs[1:]), [x])[0]
    mode = "SAME_UPPER" if padding == 0 else "VALID"
    (got,) = run("AveragePool", [(x, q)], (dtype, q), kernel_shape=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0),
                 auto_pad=mode, arithmetic=ties, data_format="channels_last", activation="relu6")  # fmt: skip
    assert np.array_equal(got.stored, expected)
    assert got.real is not None
    assert np.abs(got.real - dequantize(expected, q)).max() <= 0.05 + 1e-6


@pytest.mark.parametrize(("ties", "expected"), [("ties_away", [3, -3, 3, 125]), ("ties_up", [3, -2, 3, 125]), ("", [2, -2, 3, 124])])
def test_average_pool_ties_do_not_depend_on_storage(ties: str, expected: list[int]) -> None:
    """Moving int8 storage to uint8 by 128 moves the averages by 128 as well."""
    x = np.array([2, 3, -2, -3, 3, 3, 124, 125], np.int8).reshape(1, 8, 1)
    attributes = {"kernel_shape": (2,), "strides": (2,), "pads": (0, 0), "arithmetic": ties, "data_format": "channels_last"}
    signed, unsigned = Quantization.per_tensor(0.5, 2), Quantization.per_tensor(0.5, 130)
    (got,) = run("AveragePool", [(x, signed)], ("int8", signed), **attributes)
    assert got.stored.ravel().tolist() == expected
    (moved,) = run("AveragePool", [((x.astype(np.int16) + 128).astype(np.uint8), unsigned)], ("uint8", unsigned), **attributes)
    assert (moved.stored.ravel().astype(int) - 128).tolist() == expected


@pytest.mark.litert
@pytest.mark.parametrize("activation", ["", "relu6"])
def test_fixed_point_add_equals_litert(activation: str) -> None:
    a, b = (codes.reshape(1, 256, 256, 1).astype(np.int8) for codes in np.meshgrid(*[np.arange(-128, 128)] * 2))
    found = [(0.0371, 3), (0.0533, -9), (0.0411, 5)]
    specs = [TensorSpec(name, a.shape, "int8", *pair) for name, pair in zip("aby", found, strict=True)]
    data = single_op("ADD", {"fusedActivationFunction": 3 if activation else 0}, specs[:2], specs[2:])
    qs = [Quantization.per_tensor(*pair) for pair in found]
    (got,) = run("Add", [(a, qs[0]), (b, qs[1])], ("int8", qs[2]), arithmetic="xnnpack", activation=activation)
    assert np.array_equal(got.stored, run_litert(data, [a, b])[0])


CONVS = [("CONV_2D", 1), ("DEPTHWISE_CONV_2D", 6), ("CONV_2D", 3)]


@pytest.mark.litert
@pytest.mark.parametrize(("builtin", "group"), CONVS)
@pytest.mark.parametrize("stride", [1, 2])
def test_quantized_conv_equals_litert(builtin: str, group: int, stride: int) -> None:
    """XNNPACK rounds once, in float32; grouped CONV_2D runs in the reference kernel, which rounds twice."""
    rng = np.random.default_rng(group + stride)
    depth, outputs = 6 // group, 12
    sx, sw, sy = float(np.float32(0.05)), rng.uniform(0.005, 0.02, outputs).astype(np.float32), 0.2
    x = rng.integers(-128, 128, (1, 11, 11, 6)).astype(np.int8)
    w = rng.integers(-127, 128, (outputs, depth, 3, 3)).astype(np.int8)
    b = rng.integers(-900, 900, outputs).astype(np.int32)
    depthwise = builtin == "DEPTHWISE_CONV_2D"
    stored = w.transpose(1, 2, 3, 0) if depthwise else w.transpose(0, 2, 3, 1)
    side = -(-11 // stride)
    options = {"padding": 0, "strideW": stride, "strideH": stride, "dilationWFactor": 1, "dilationHFactor": 1}
    options |= {"fusedActivationFunction": 1, **({"depthMultiplier": 2} if depthwise else {})}
    data = single_op(builtin, options, [
        TensorSpec("x", x.shape, "int8", sx, -7), TensorSpec("w", stored.shape, "int8", sw, 0, 3 if depthwise else 0, stored),
        TensorSpec("b", b.shape, "int32", sx * sw, 0, 0, b),
    ], [TensorSpec("y", (1, side, side, outputs), "int8", sy, -20)])  # fmt: skip
    (got,) = run(
        "Conv",
        [(x, Quantization.per_tensor(sx, -7)), (w, Quantization.per_axis(sw, 0)), (b, Quantization.per_axis(sx * sw, 0))],
        ("int8", Quantization.per_tensor(sy, -20)), strides=(stride, stride), pads=(0,) * 4, auto_pad="SAME_UPPER",
        dilations=(1, 1), group=group, data_format="channels_last", activation="relu",
    )  # fmt: skip
    difference = np.abs(run_litert(data, [x])[0].astype(int) - got.stored)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= (0.01 if group == 3 else 0.0005)
    assert got.stored.min() == -20


@pytest.mark.litert
@pytest.mark.parametrize("kernels", ["default", "reference"])
def test_quantized_fully_connected_equals_litert(kernels: str) -> None:
    rng = np.random.default_rng(9)
    # No ties: float32 and float64 multipliers then round alike.
    sx, sw, sy = (float(np.float32(value)) for value in (0.0513, 0.0107, 0.3711))
    x, w = (
        rng.integers(-128, 128, (50, 40)).astype(np.int8),
        rng.integers(-127, 128, (30, 40)).astype(np.int8),
    )
    b = rng.integers(-900, 900, 30).astype(np.int32)
    specs = [TensorSpec("x", x.shape, "int8", sx, 4), TensorSpec("w", w.shape, "int8", sw, 0, 0, w),
             TensorSpec("b", b.shape, "int32", sx * sw, 0, 0, b)]  # fmt: skip
    data = single_op("FULLY_CONNECTED", {}, specs, [TensorSpec("y", (50, 30), "int8", sy, 3)])
    per_tensor = Quantization.per_tensor
    (got,) = run(
        "Gemm",
        [(x, per_tensor(sx, 4)), (w, per_tensor(sw)), (b, per_tensor(sx * sw))],
        ("int8", per_tensor(sy, 3)),
    )
    assert np.array_equal(got.stored, run_litert(data, [x], kernels)[0])


@pytest.mark.litert
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("wanted", [(3, 14), (11, 4)])
def test_nearest_resize_equals_litert(half: bool, corners: bool, wanted: tuple[int, int]) -> None:
    if half and corners:
        half = False
    x = np.random.default_rng(0).integers(-128, 128, (1, 7, 5, 3)).astype(np.int8)
    specs = [TensorSpec("x", x.shape, "int8", 0.1, 1), TensorSpec("s", (2,), "int32", data=wanted)]
    data = single_op("RESIZE_NEAREST_NEIGHBOR", {"alignCorners": corners, "halfPixelCenters": half}, specs,
                     [TensorSpec("y", (1, *wanted, 3), "int8", 0.1, 1)])  # fmt: skip
    q = Quantization.per_tensor(0.1, 1)
    coordinates = "align_corners" if corners else "half_pixel" if half else "asymmetric"
    (got,) = run("Resize", [(x, q), np.array(wanted)], ("int8", q), mode="nearest", data_format="channels_last",
                 coordinate_transformation_mode=coordinates,
                 nearest_mode="floor" if coordinates == "asymmetric" else "round_prefer_ceil")  # fmt: skip
    assert np.array_equal(got.stored, run_litert(data, [x], "reference")[0])


@pytest.mark.litert
@pytest.mark.parametrize("into", [True, False])
def test_space_to_batch_equals_litert(into: bool) -> None:
    shape, other = ((2, 5, 6, 3), (12, 3, 3, 3)) if into else ((12, 3, 3, 3), (2, 5, 6, 3))
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    blocks, edges = np.array([2, 3]), np.array([[1, 0], [1, 2]])
    specs = [TensorSpec("x", shape, "int8", 0.1, 5), TensorSpec("b", (2,), "int32", data=blocks),
             TensorSpec("p", (2, 2), "int32", data=edges)]  # fmt: skip
    builtin = "SPACE_TO_BATCH_ND" if into else "BATCH_TO_SPACE_ND"
    data = single_op(builtin, {}, specs, [TensorSpec("y", other, "int8", 0.1, 5)])
    q = Quantization.per_tensor(0.1, 5)
    (got,) = run("SpaceToBatch" if into else "BatchToSpace", [(x, q), blocks, edges.T.copy()], ("int8", q),
                 data_format="channels_last")  # fmt: skip
    assert np.array_equal(got.stored, run_litert(data, [x], "reference")[0])


@pytest.mark.litert
@pytest.mark.parametrize("regular", [0, 1])
@pytest.mark.parametrize("per_class", [1, 2])
@pytest.mark.parametrize("threshold", [0.2, 0.85, 2.0])
def test_detection_equals_litert(regular: int, per_class: int, threshold: float) -> None:
    rng = np.random.default_rng(int(10 * threshold) + regular + per_class)
    count, classes = 30, 3
    anchors = np.concatenate([rng.random((count, 2)), np.full((count, 2), 0.5)], 1).astype(np.float32)
    boxes, scores = rng.normal(size=(1, count, 4)), rng.random((1, count, classes + 1))
    boxes, scores = boxes.astype(np.float32), scores.astype(np.float32)
    options: dict[str, Any] = {
        "max_detections": 5, "max_classes_per_detection": per_class, "detections_per_class": 2, "use_regular_nms": regular,
        "nms_score_threshold": threshold, "nms_iou_threshold": 0.3, "num_classes": classes,
        "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
    }  # fmt: skip
    rows = 5 * per_class
    shapes = [(1, rows, 4), (1, rows), (1, rows), (1,)]
    data = single_op(
        "TFLite_Detection_PostProcess", {**options, "use_regular_nms": bool(regular)},
        [TensorSpec("b", boxes.shape, "float32"), TensorSpec("s", scores.shape, "float32"),
         TensorSpec("a", anchors.shape, "float32", data=anchors)],
        [TensorSpec(f"y{i}", shape, "float32") for i, shape in enumerate(shapes)], custom=True,
    )  # fmt: skip
    expected = run_litert(data, [boxes, scores])
    got = run("DetectionPostProcess", [boxes, scores, anchors], *["float32"] * 4, **options)
    assert got[3].stored.tolist() == expected[3].tolist()
    filled = int(expected[3][0]) * (1 if regular else per_class)
    assert filled == 0 if threshold > 1 else filled > 2
    for exact, real in zip(got[:3], expected, strict=False):
        assert np.allclose(exact.stored[:, :filled], real[:, :filled], atol=1e-6)


# What models of ONNX hold besides


QUANTIZED: dict[str, tuple[tuple[int, ...], list[Any], dict[str, Any]]] = {
    "ReduceL1": ((2, 3, 4), [np.array([1, 2])], {"keepdims": 0}),
    "ReduceL2": ((2, 3, 4), [np.array([0])], {}),
    "ReduceSumSquare": ((2, 3, 4), [np.array([-1])], {}),
    "ReduceLogSumExp": ((2, 3, 4), [np.array([1])], {}),
    "GlobalAveragePool": ((2, 3, 4, 4), [], {"data_format": "channels_first"}),
    "AveragePool": (
        (2, 3, 6, 5),
        [],
        {
            "data_format": "channels_first",
            "kernel_shape": (3, 3),
            "strides": (2, 2),
            "pads": (1, 0, 0, 1),
            "ceil_mode": 1,
            "count_include_pad": 1,
        },
    ),
    "Einsum": ((2, 3, 4), [], {"equation": "bij->bi"}),
    "Erf": ((2, 3, 4), [], {}),
    "HardSigmoid": ((2, 3, 4), [], {"alpha": 0.25}),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_quantized_operator_is_that_of_its_real_values(kind: str) -> None:
    shape, others, attributes = QUANTIZED[kind]
    x = np.random.default_rng(8).integers(-128, 128, shape).astype(np.int8)
    q, out = Quantization.per_tensor(0.0625, 3), Quantization.per_tensor(0.4, -100)
    got = run(kind, [(x, q), *others], ("int8", out), **attributes)[0]
    real = run(kind, [dequantize(x, q), *others], **attributes)[0].stored
    assert np.allclose(got.real, real, rtol=1e-14)
    assert np.array_equal(got.stored, quantize(real, out, "int8"))


def test_global_max_pool_moves_stored_values() -> None:
    x, q = np.array([[[[3, -7], [5, 1]]]], np.int8), Quantization.per_tensor(0.5, 9)
    got = run("GlobalMaxPool", [(x, q)], ("int8", q), data_format="channels_last")[0]
    assert got.stored.tolist() == [[[[5, 1]]]]
    assert got.real is None


@pytest.mark.parametrize("dtype", ["int4", "uint8", "bfloat16", "float16"])
def test_max_pool_of_every_type(dtype: str) -> None:
    x = np.array([[[[0, 2], [1, 3]]]]).astype(numpy_dtype(dtype))
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (1, 1, 0, 0), "data_format": "channels_first"}
    got = run("MaxPool", [x], dtype, **window)[0].stored
    assert got.dtype == numpy_dtype(dtype)
    assert got.astype(int).tolist() == [[[[0, 2], [1, 3]]]]


@pytest.mark.parametrize("axis", [0, 1])
def test_weights_in_blocks_and_a_float_bias(axis: int) -> None:
    """A Gemm whose weights have a scale for each block of two elements along an axis, checked one product at a time."""
    x, w = np.array([[4, -2, 6]], np.int8), np.array([[1, 2, 3], [-1, 5, 7], [2, 2, -8]], np.int8)
    scales = np.array([[0.5, 0.25], [1, 2], [0.125, 4]], np.float32)
    points = np.array([[0, 1], [2, 0], [-1, 0]])
    blocks = Quantization(scales, points, 1, 2) if axis else Quantization(scales.T.copy(), points.T.copy(), 0, 2)
    bias = np.array([0.3, -0.7, 0.1], np.float32)
    got = run("Gemm", [(x, Quantization.per_tensor(0.5)), (w if axis else w.T.copy(), blocks), bias])[0].stored
    real = [[(int(w[row, i]) - int(points[row, i // 2])) * float(scales[row, i // 2]) for i in range(3)] for row in range(3)]
    weights = real if axis else np.array(real).T.tolist()
    expected = [sum(0.5 * int(x[0, i]) * weights[o][i] for i in range(3)) + float(bias[o]) for o in range(3)]
    assert np.allclose(got, [expected], rtol=1e-15)


@pytest.mark.parametrize("dtype", ["float4e2m1", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"])
def test_small_floats_are_the_nearest_ones(dtype: str) -> None:
    every = np.arange(16 if dtype == "float4e2m1" else 256).astype(np.uint8).view(numpy_dtype(dtype))
    quantization = np.unique(every.astype(np.float64)[np.isfinite(every.astype(np.float64))])
    middles = (quantization[1:] + quantization[:-1]) / 2
    q = Quantization.per_tensor(0.5)
    stored = quantize(0.5 * quantization, q, dtype)
    assert stored.dtype == numpy_dtype(dtype)
    assert np.array_equal(stored.astype(np.float64), quantization)
    # A hair next to the middle of two neighbours: a cast by way of float32 would see a tie.
    hair = np.abs(middles) * 2.0**-40
    assert np.array_equal(quantize(0.5 * (middles + hair), q, dtype).astype(np.float64), quantization[1:])
    assert np.array_equal(quantize(0.5 * (middles - hair), q, dtype).astype(np.float64), quantization[:-1])
    # Ties go to the neighbour whose last bit is 0, as the cast of a float32 has it.
    assert np.array_equal(quantize(0.5 * middles, q, dtype), middles.astype(np.float32).astype(numpy_dtype(dtype)))
    assert quantize(np.array([1e9, -np.inf]), q, dtype).astype(np.float64).tolist() == [quantization[-1], quantization[0]]
    assert np.array_equal(dequantize(stored, q), 0.5 * quantization)
    assert bool(np.isnan(quantize(np.array(np.nan), q, dtype).astype(np.float64))) == (dtype != "float4e2m1")
    got = run("MatMul", [(stored[None], q), (stored[:, None], q)])[0].stored
    assert got == np.sum((0.5 * quantization) ** 2)


# Whole graphs and errors


def _two_layers() -> Graph:
    q = Quantization.per_tensor(0.5)
    weights = Tensor("w", "int8", (2, 3), np.array([[1, 2, 3], [-1, -2, -3]], np.int8), Quantization.per_tensor(0.25))
    tensors = [Tensor("x", "int8", (1, 3), None, q), weights, Tensor("h", "int8", (1, 2), None, q), Tensor("y", "int8", (1, 2), None, q)]
    ops = (Op("Gemm", ("x", "w"), ("h",)), Op("Add", ("h", "h"), ("y",), {"activation": "relu"}))
    return Graph("two", {t.name: t for t in tensors}, ops, ("x",), ("y",))


def test_evaluate_runs_a_graph() -> None:
    # 14 * 0.25 = 3.5 steps is a tie, which rounds to 4 before the addition doubles it.
    assert evaluate(_two_layers(), {"x": np.array([[1, 2, 3]], np.int8)})["y"].tolist() == [[8, 0]]


def test_missing_and_wrong_inputs_are_refused() -> None:
    with refused(OptionError, "input-missing", holds=(" x",)):
        evaluate(_two_layers(), {})
    with refused(InvalidGraphError, "wrong-arguments", holds=("Gemm",)):
        evaluate(_two_layers(), {"x": np.zeros((1, 4), np.int8)})


@pytest.mark.parametrize("largest", [7, 30_000])
@pytest.mark.parametrize(("strides", "dilations", "pads"), [((1, 1), (1, 1), (1, 1, 1, 1)), ((2, 3), (2, 1), (0, 2, 1, 0))])
def test_integer_convolutions_are_exact_below_and_above_what_float32_adds(
    largest: int, strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(largest)
    x = rng.integers(-largest, largest + 1, (2, 5, 9, 8)).astype(np.int16)
    weights = rng.integers(-127, 128, (4, 5, 3, 2)).astype(np.int8)
    zero = np.zeros((), np.int16), np.zeros((), np.int8)
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": 1, "data_format": "channels_first"}
    (found,) = run("ConvInteger", [x, weights, *zero], "int32", **attributes)
    wide = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    sizes = [(wide.shape[2 + i] - (weights.shape[2 + i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(2)]
    expected = np.zeros((2, 4, *sizes), np.int64)
    for row, column in np.ndindex(*sizes):
        top, left = row * strides[0], column * strides[1]
        part = wide[:, :, top : top + 2 * dilations[0] + 1 : dilations[0], left : left + dilations[1] + 1 : dilations[1]]
        expected[:, :, row, column] = np.einsum("ncij,ocij->no", part, weights.astype(np.int64))
    assert np.array_equal(found.stored, expected)
    assert (np.abs(expected).max() > 2**24) == (largest > 7)
