"""The arithmetic against golden values, exact rational arithmetic, and the runtimes that it models."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from qconvert import arithmetic as ar
from qconvert.arithmetic.storage import contiguous, contiguous_pieces, fits_dtype
from qconvert.errors import OptionError
from qconvert.graph import Quantization, integer_range
from tests.tflite_models import TensorSpec, run_litert, single_op

int32s = st.integers(-(2**31), 2**31 - 1)
finite = st.floats(-1e6, 1e6)
CONV = {"padding": 1, "strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}


# Storage


@pytest.mark.parametrize("dtype", [np.int8, np.float32, object])
@pytest.mark.parametrize("shape", [(3, 500), (128, 128), (300, 129), (129, 300), (4, 130, 140)])
def test_a_transposed_array_in_c_order(shape: tuple[int, ...], dtype: type) -> None:
    data = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    found = contiguous(data.T)
    assert found.flags.c_contiguous and found.dtype == data.dtype and (found == data.T).all()


@pytest.mark.parametrize("dtype", [np.int8, np.float32])
@pytest.mark.parametrize("shape", [(3, 5), (129, 300), (300, 129), (4, 130, 140)])
def test_an_array_in_pieces(shape: tuple[int, ...], dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qconvert.arithmetic.storage._PIECE", 1024)
    data = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    for each in (data, data.T):
        pieces = list(contiguous_pieces(each))
        assert (np.concatenate(pieces) == each.reshape(-1)).all() and (len(pieces) > 1 or each.size < 1024)
        assert not any(piece.size % 8 for piece in pieces[:-1])


# Rounding


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("half_even", [-2, -2, 0, 0, 2, 2, 0]),
        ("half_away", [-3, -2, -1, 1, 2, 3, 0]),
        ("half_up", [-2, -1, 0, 1, 2, 3, 0]),
    ],
)
def test_ties(mode: str, expected: list[int]) -> None:
    values = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999999999999994])
    assert ar.ROUNDINGS[mode](values).tolist() == expected


@pytest.mark.property
@given(finite)
def test_roundings_agree_off_ties_and_are_nearest(x: float) -> None:
    for mode, function in ar.ROUNDINGS.items():
        distance = abs(Fraction(float(function(x))) - Fraction(x))
        assert distance <= Fraction(1, 2), mode


@pytest.mark.parametrize("floats", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", ["int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_numbers_fit_a_type_up_to_its_ends(dtype: str, floats: type[np.floating[Any]]) -> None:
    """Also where no float is the largest integer, and the next one is an integer too many."""
    low, high = integer_range(dtype)
    assert fits_dtype(np.array([low, 1], floats), dtype) and not fits_dtype(np.array([1, high + 1], floats), dtype)
    assert fits_dtype(np.array([np.nextafter(floats(high + 1), floats(0))]).round(), dtype) == (high > 2 ** np.finfo(floats).nmant)
    assert not any(fits_dtype(np.array([1, value], floats), dtype) for value in (0.5, np.nan, np.inf, -np.inf))


@pytest.mark.parametrize("floats", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dtype", ["int4", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_saturate_keeps_ends(dtype: str, floats: type[np.floating[Any]]) -> None:
    low, high = integer_range(dtype)
    got = ar.saturate(np.array([-np.inf, np.nan, 3.0, np.inf], floats), dtype)
    assert got.astype(object).tolist() == [low, low, 3, high]
    assert ar.saturate(np.array([-1e30, 1e30]), dtype).astype(object).tolist() == [low, high]
    assert ar.saturate(np.array([-5, 2**40]), dtype).astype(object).tolist() == [
        max(low, -5),
        min(high, 2**40),
    ]


# Quantize and dequantize


@pytest.mark.parametrize(
    ("rounding", "offset_first", "expected"),
    [
        ("half_even", False, [3, 3, 5, 5]),
        ("half_away", False, [2, 4, 5, 6]),
        ("half_even", True, [2, 4, 4, 6]),
    ],
)
def test_quantize_ties(rounding: str, offset_first: bool, expected: list[int]) -> None:
    # OneFlow rounds x/s + zp, ONNX rounds x/s: they differ at ties when the zero point is odd.
    x = np.array([-0.25, 0.25, 0.75, 1.25], np.float32)
    got = ar.quantize(x, Quantization.per_tensor(0.5, 3), "int8", rounding, offset_first=offset_first)
    assert got.dtype == np.int8
    assert got.tolist() == expected


def test_quantize_saturates_and_maps_nan_to_zero_point() -> None:
    x = np.array([1e9, -1e9, np.inf, -np.inf, np.nan])
    got = ar.quantize(x, Quantization.per_tensor(0.1, 7), "uint8")
    assert got.tolist() == [255, 0, 255, 0, 7]


def test_unknown_names_are_refused() -> None:
    with refused(OptionError, "unknown-rounding", holds=("half_odd",)):
        ar.quantize(np.zeros(1), Quantization.per_tensor(1.0), "int8", "half_odd")
    with refused(OptionError, "unknown-requantizer", holds=("other",)):
        ar.requantize(np.zeros(1, np.int64), 1.0, 0, "int8", "other")


@pytest.mark.property
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 2]))
def test_per_axis_round_trip(seed: int, axis: int) -> None:
    rng = np.random.default_rng(seed)
    stored = rng.integers(-128, 128, (2, 3, 4)).astype(np.int8)
    scales = rng.uniform(1e-3, 1, stored.shape[axis])
    q = Quantization.per_axis(scales, axis, rng.integers(-128, 128, stored.shape[axis]))
    real = ar.dequantize(stored, q)
    at = (1,) * 3
    assert real[at] == float(q.scale[1]) * (int(stored[at]) - int(q.zero_point[1]))
    assert np.array_equal(ar.quantize(real, q, "int8"), stored)


def test_blocks() -> None:
    # Six rows in blocks of 4: the last block is short. Scales have the tensor's rank, shorter along the axis.
    q = Quantization(np.array([[1, 2], [10, 20]], np.float32), np.zeros((2, 2), np.int64), axis=0, block_size=4)
    real = ar.dequantize(np.ones((6, 2), np.int8), q)
    assert real[:, 1].tolist() == [2, 2, 2, 2, 20, 20]


# Fixed point


@pytest.mark.property
@given(st.floats(2.0**-40, 2.0**20))
def test_quantize_multiplier_is_nearest(real: float) -> None:
    multiplier, shift = ar.quantize_multiplier(real)
    if real < 2.0**-33:
        assert multiplier == 0
    elif real >= 2.0**-31:
        assert 2**30 <= multiplier < 2**31
        assert abs(Fraction(int(multiplier)) * Fraction(2) ** int(shift - 31) / Fraction(real) - 1) <= Fraction(1, 2**31)


@pytest.mark.parametrize(
    ("real", "multiplier", "shift"),
    [(0.5, 2**30, 0), (1.0, 2**30, 1), (0.3, 1288490189, -1), (1 - 2.0**-40, 2**30, 1)],
)
def test_quantize_multiplier_values(real: float, multiplier: int, shift: int) -> None:
    assert [int(value) for value in ar.quantize_multiplier(real)] == [multiplier, shift]


@pytest.mark.property
@given(int32s, int32s)
def test_high_mul_is_gemmlowps(a: int, b: int) -> None:
    got = int(ar.high_product(a, b))
    nudge = 2**30 if a * b >= 0 else 1 - 2**30
    total = a * b + nudge
    truncated = abs(total) // 2**31 * (1 if total >= 0 else -1)
    assert got == (2**31 - 1 if a == b == -(2**31) else truncated)


def test_results_of_one_integer_do_not_differ() -> None:
    """As of a Relu, where the zero point is the largest integer."""

    def steps(total: np.ndarray) -> np.ndarray:
        return np.rint(total * 0.01).astype(np.int64)

    assert ar.compare_requantizations(steps, lambda total: steps(total) + 1, (255, 255), -9000, 9000, 0.01).differing == 0


@pytest.mark.property
@given(int32s, st.integers(0, 31))
def test_rounding_divide_by_pot_is_half_away(x: int, exponent: int) -> None:
    exact = Fraction(abs(x), 2**exponent)
    nearest = int(exact + Fraction(1, 2))
    assert int(ar.rounding_divide_by_pot(x, exponent)) == (nearest if x >= 0 else -nearest)


@pytest.mark.property
@given(st.integers(-(2**24), 2**24), st.floats(2.0**-14, 0.99))
def test_requantizers_round_to_a_neighbour(acc: int, scale: float) -> None:
    exact = Fraction(acc) * Fraction(scale)
    for name, function in ar.REQUANTIZERS.items():
        got = int(function(np.array([acc]), np.array([scale]))[0])
        # Half a step; double rounding adds at most another quarter, the 31-bit, 16-bit and float32 multipliers what they lose.
        slack = Fraction(1, 4) + abs(exact) / 2 ** (15 if name == "tflite_16_bits" else 22) if name != "exact" else Fraction(1, 10**6)
        assert abs(got - exact) <= Fraction(1, 2) + slack, name


def test_predicted_rate_of_double_rounding() -> None:
    """The closed form against a count over random accumulators; see Jacob et al. for the two roundings."""
    rng = np.random.default_rng(0)
    scales = rng.uniform(2.0**-9, 2.0**-6, 200)
    acc = rng.integers(-(2**14), 2**14, (4000, 200))
    double = ar.REQUANTIZERS["tflite_double_rounding"](acc, scales)
    single = ar.REQUANTIZERS["tflite_float"](acc, scales)
    predicted = ar.predicted_rate_double_rounding(scales)
    assert np.abs(double - single).max() == 1
    assert (double != single).mean() == pytest.approx(predicted, rel=0.1)
    assert ar.predicted_rate_double_rounding([2.0**-8 * 0.75]) == 2.0**-9
    assert ar.predicted_rate_double_rounding([0.75]) == 0.5


# The runtimes themselves


def _spec(name: str, shape: tuple[int, ...], scale: Any, zero_point: int = 0, dtype: str = "int8", data: Any = None) -> TensorSpec:
    return TensorSpec(name, shape, dtype, scale, zero_point, 0, data)


def _conv_case(rng: np.random.Generator) -> tuple[Any, ...]:
    channels = int(rng.integers(4, 40))
    scales = (np.float32(rng.uniform(0.01, 0.1)), rng.uniform(0.001, 0.02, 24).astype(np.float32))
    output = np.float32(scales[0] * scales[1].mean() * np.sqrt(channels) * rng.uniform(20, 120))
    weights = rng.integers(-127, 128, (24, 1, 1, channels)).astype(np.int8)
    bias = rng.integers(-2000, 2000, 24).astype(np.int32)
    x = rng.integers(-128, 128, (1, 16, 16, channels)).astype(np.int8)
    return channels, scales, output, weights, bias, x


@pytest.mark.litert
@pytest.mark.parametrize(
    ("kernels", "requantizer", "precision"),
    [("reference", "tflite_double_rounding", "float64"), ("default", "single_float32", "float32")],
)
def test_conv_equals_litert(kernels: str, requantizer: str, precision: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        channels, (sx, sw), sy, weights, bias, x = _conv_case(rng)
        data = single_op(
            "CONV_2D",
            CONV,
            [
                _spec("x", x.shape, sx, -5),
                _spec("w", weights.shape, sw, 0, data=weights),
                _spec("b", bias.shape, sx * sw, 0, "int32", bias),
            ],
            [_spec("y", (1, 16, 16, 24), sy, 3)],
        )
        acc = (x.astype(np.int64) + 5).reshape(-1, channels) @ weights.reshape(24, -1).T.astype(np.int64) + bias
        expected = ar.requantize(acc, ar.effective_scale(sx, sw, sy, precision), 3, "int8", requantizer)
        assert np.array_equal(run_litert(data, [x], kernels)[0].reshape(-1, 24), expected)
        other = "single_float32" if kernels == "reference" else "tflite_double_rounding"
        difference = (ar.requantize(acc, ar.effective_scale(sx, sw, sy), 3, "int8", other) != expected).mean()
        assert difference <= 4 * ar.predicted_rate_double_rounding(ar.effective_scale(sx, sw, sy)) + 0.001


@pytest.mark.litert
@pytest.mark.parametrize(
    ("kernels", "requantizer", "precision"),
    [("reference", "tflite_float", "float64"), ("default", "single_float32", "float32")],
)
@pytest.mark.parametrize("per_axis", [False, True])
def test_fully_connected_equals_litert(kernels: str, requantizer: str, precision: str, per_axis: bool) -> None:
    rng = np.random.default_rng(6)
    for _ in range(6):
        channels, (sx, sw), sy, weights, bias, x = _conv_case(rng)
        sw, weights, x = sw if per_axis else sw[:1], weights.reshape(24, -1), x.reshape(-1, channels)
        data = single_op(
            "FULLY_CONNECTED",
            {},
            [
                _spec("x", x.shape, sx, -5),
                _spec("w", weights.shape, sw, 0, data=weights),
                _spec("b", bias.shape, sx * sw, 0, "int32", bias),
            ],
            [_spec("y", (256, 24), sy, 3)],
        )
        acc = (x.astype(np.int64) + 5) @ weights.T.astype(np.int64) + bias
        expected = ar.requantize(acc, ar.effective_scale(sx, sw, sy, precision), 3, "int8", requantizer)
        assert np.array_equal(run_litert(data, [x], kernels)[0], expected)


@pytest.mark.litert
@pytest.mark.parametrize("per_axis", [False, True])
def test_optimised_depthwise_equals_its_model(per_axis: bool) -> None:
    """LiteRT's optimised kernels without XNNPACK: ties of the shift go up, whatever the sign."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    rng = np.random.default_rng(8)
    sx, sy = np.float32(0.05), np.float32(0.04)
    sw = rng.uniform(0.005, 0.02, 24 if per_axis else 1).astype(np.float32)
    x, w = rng.integers(-128, 128, (1, 32, 32, 24)).astype(np.int8), rng.integers(-127, 128, (1, 1, 1, 24)).astype(np.int8)
    b = rng.integers(-900, 900, 24).astype(np.int32)
    data = single_op("DEPTHWISE_CONV_2D", {**CONV, "depthMultiplier": 1}, [
        _spec("x", x.shape, sx, -5), TensorSpec("w", w.shape, "int8", sw, 0, 3, w), _spec("b", b.shape, sx * sw, 0, "int32", b),
    ], [_spec("y", x.shape, sy, 3)])  # fmt: skip
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=resolver, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    acc = (x.astype(np.int64) + 5) * w + b
    scale = ar.effective_scale(sx, sw, sy)
    assert np.array_equal(got, ar.requantize(acc, scale, 3, "int8", "tflite_ruy"))
    assert not np.array_equal(got, ar.requantize(acc, scale, 3, "int8", "tflite_double_rounding"))


def _pairs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    codes = np.arange(-128, 128, dtype=np.int8)
    a, b = np.meshgrid(codes, codes)
    return a.reshape(1, 256, 256, 1), b.reshape(1, 256, 256, 1)


def _binary(builtin: str, scales: Any, zero_points: Any, kernels: str) -> np.ndarray[Any, Any]:
    a, b = _pairs()
    specs = [_spec(name, a.shape, s, z) for name, s, z in zip("aby", scales, zero_points, strict=True)]
    return run_litert(single_op(builtin, {}, specs[:2], specs[2:]), [a, b], kernels)[0]


@pytest.mark.litert
@pytest.mark.parametrize("seed", range(4))
def test_add_equals_litert_on_every_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.01, 0.1, 3).astype(np.float32)
    zero_points = rng.integers(-20, 20, 3)
    first, second, output = (Quantization.per_tensor(s, z) for s, z in zip(scales, zero_points, strict=True))
    for kernels, function in (("reference", partial(ar.tflite_pair, 1)), ("default", ar.xnnpack_add)):
        got = _binary("ADD", scales, zero_points, kernels)
        assert np.array_equal(got, function(*_pairs(), (first, second), output, "int8")), kernels


@pytest.mark.litert
@pytest.mark.parametrize("seed", range(4))
def test_mul_equals_litert_on_every_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.01, 0.1, 3).astype(np.float32)
    scales[2] = scales[0] * scales[1] * 50
    za, zb, zy = (int(z) for z in rng.integers(-20, 20, 3))
    a, b = _pairs()
    acc = (a.astype(np.int64) - za) * (b.astype(np.int64) - zb)
    scale = ar.effective_scale(scales[0], scales[1], scales[2], "float32")
    for kernels, requantizer in (("reference", "tflite_double_rounding"), ("default", "single_float32")):
        got = _binary("MUL", scales, (za, zb, zy), kernels)
        assert np.array_equal(got, ar.requantize(acc, scale, zy, "int8", requantizer)), kernels


@pytest.mark.litert
@pytest.mark.parametrize("seed", range(6))
def test_sums_of_16_bit_data_equal_litert(seed: int) -> None:
    rng = np.random.default_rng(seed)
    depth, outputs = int(rng.integers(4, 200)), 6
    weights = rng.integers(-127, 128, (outputs, 1, 1, depth)).astype(np.int8)
    x, bias = rng.integers(-32768, 32768, (1, 300, 1, depth)).astype(np.int16), rng.integers(-(10**5), 10**5, outputs)
    scale = np.float32(np.exp(rng.uniform(-9, -7)))
    scales = np.exp(rng.uniform(-7, -4, outputs)).astype(np.float32)
    result = np.float32(scale * scales.max() * 127 * np.sqrt(depth) * np.exp(rng.uniform(-1, 0.5)))
    inputs = [
        TensorSpec("x", x.shape, "int16", float(scale), 0),
        TensorSpec("w", weights.shape, "int8", scales, 0, data=weights, axis=0),
        TensorSpec("b", (outputs,), "int64", scale * scales, 0, data=bias, axis=0),
    ]
    options = {"padding": 1, "strideH": 1, "strideW": 1}
    (found,) = run_litert(single_op("CONV_2D", options, inputs, [TensorSpec("y", (1, 300, 1, outputs), "int16", float(result), 0)]), [x])
    sums = x.astype(np.int64) @ weights[:, 0, 0].T.astype(np.int64) + bias
    wanted = ar.requantize(sums, ar.effective_scale(scale, scales, result), 0, "int16", "tflite_16_bits")
    assert np.array_equal(found, wanted)


@pytest.mark.litert
@pytest.mark.parametrize(("name", "sign"), [("ADD", 1), ("SUB", -1), ("MUL", 0)])
def test_pairs_of_16_bit_data_equal_litert(name: str, sign: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        scales = np.exp(rng.uniform(-11, -7, 2)).astype(np.float32)
        widest = np.prod(scales) * 32768 if name == "MUL" else scales.max()
        scales = np.float32([*scales, widest * np.exp(rng.uniform(-0.5, 1.5))])
        pair = [rng.integers(-32768, 32768, 100000).astype(np.int16) for _ in "ab"]
        specs = [TensorSpec(key, pair[0].shape, "int16", float(scale), 0) for key, scale in zip("aby", scales, strict=True)]
        options = {} if name == "MUL" else {"potScaleInt16": False}
        (found,) = run_litert(single_op(name, options, specs[:2], specs[2:]), pair)
        first, second, output = (Quantization.per_tensor(float(scale)) for scale in scales)
        rescale = ar.rescale_once if sign > 0 else ar.rescale_twice
        assert np.array_equal(found, ar.tflite_pair(sign, *pair, (first, second), output, rescale=rescale))


@pytest.mark.litert
@pytest.mark.parametrize("seed", range(8))
def test_leaky_relu_and_requantize_equal_litert_on_every_code(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sx, sy = rng.uniform(0.02, 0.06, 2).astype(np.float32)
    source, output = Quantization.per_tensor(sx, int(rng.integers(-50, 50))), Quantization.per_tensor(sy, -7)
    codes = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)
    specs = [_spec("x", (1, 256), sx, source.point)], [_spec("y", (1, 256), sy, -7)]
    alpha = float(rng.uniform(0.05, 0.6))
    leaky, convert = single_op("LEAKY_RELU", {"alpha": alpha}, *specs), single_op("QUANTIZE", {}, *specs)
    assert np.array_equal(run_litert(leaky, [codes])[0], ar.xnnpack_leaky_relu(codes, source, output, "int8", alpha))
    assert np.array_equal(run_litert(convert, [codes])[0], ar.xnnpack_requantize(codes, source, output, "int8"))
    scale = np.float64(sx) / np.float64(sy)
    acc = codes.astype(np.int64) - source.zero_point[0]
    assert np.array_equal(
        run_litert(convert, [codes], "reference")[0],
        ar.requantize(acc, scale, -7, "int8", "tflite_double_rounding"),
    )


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(("dtype", "zero_point", "average"), [("int8", -3, ar.average_away), ("uint8", 125, ar.average_up)])
@pytest.mark.parametrize("window", [(2, 2), (3, 3), (1, 4)])
def test_average_pool_equals_litert(dtype: str, zero_point: int, average: Any, window: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    low, high = integer_range(dtype)
    h, w = window
    x = rng.integers(low, high + 1, (1, 24, 24, 3)).astype(dtype)
    options = {"padding": 1, "strideW": w, "strideH": h, "filterWidth": w, "filterHeight": h}
    shape = (1, 24 // h, 24 // w, 3)
    specs = [_spec("x", x.shape, 0.1, zero_point, dtype)], [_spec("y", shape, 0.1, zero_point, dtype)]
    total = x.astype(np.int64).reshape(1, 24 // h, h, 24 // w, w, 3).sum(axis=(2, 4))
    expected = average(total, h * w)
    data = single_op("AVERAGE_POOL_2D", options, *specs)
    assert np.array_equal(run_litert(data, [x], "reference")[0], expected)
    assert np.array_equal(run_litert(data, [x])[0], expected)


def _reduced(builtin: str, x: Any, quantizations: tuple[tuple[float, int], tuple[float, int]], kernels: str = "default") -> Any:
    """LiteRT's reduction of the rows of stored values, which all become one."""
    dtype = x.dtype.name
    given, output = (dict(zip(("scale", "zero_point"), quantization, strict=True)) for quantization in quantizations)
    axes = TensorSpec("a", (1,), "int32", data=np.array([1], np.int32))
    inputs = [TensorSpec("x", x.shape, dtype, **given), axes]  # type: ignore[arg-type]
    data = single_op(builtin, {"keepDims": True}, inputs, [TensorSpec("y", (len(x), 1), dtype, **output)])  # type: ignore[arg-type]
    return run_litert(data, [x], kernels)[0]


@pytest.mark.litert
@pytest.mark.parametrize("builtin", ["MEAN", "SUM"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_reductions_equal_litert_where_the_order_of_float32_products_decides(dtype: str, builtin: str) -> None:
    """Random data, and sums for which a product made in another order would round otherwise."""
    rng = np.random.default_rng(7)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    decided = 0
    for trial in range(60):
        count = int(rng.choice([2, 4, 16, 3, 7, 49, 60]))
        scale = np.float32(rng.uniform(0.001, 0.2))
        result = np.float32(scale * rng.choice([1, 0.75, 1.5, rng.uniform(0.2, 2)]) * (count if builtin == "SUM" else 1))
        zeros = (int(rng.integers(low, high + 1)), int(rng.integers(low, high + 1)))
        quantizations = Quantization.per_tensor(float(scale), zeros[0]), Quantization.per_tensor(float(result), zeros[1])
        sums = np.arange(count * low, count * high + 1)
        wanted = ar.xnnpack_reduce(sums, count, builtin == "MEAN", *quantizations, dtype)
        share = count if builtin == "MEAN" else 1
        plain = np.clip(np.rint((sums - count * zeros[0]) * (float(scale) / float(result) / share)) + zeros[1], low, high)
        near = np.flatnonzero(wanted != plain)[:32]
        decided += near.size
        chosen = np.concatenate([near, rng.integers(0, sums.size, 32)])
        rows = np.array([[value // count + (place < value % count) for place in range(count)] for value in sums[chosen].tolist()])
        got = _reduced(builtin, rows.astype(dtype), ((float(scale), zeros[0]), (float(result), zeros[1])))
        assert np.array_equal(got.reshape(-1), wanted[chosen]), trial
    assert decided > 100


@pytest.mark.litert
@pytest.mark.parametrize(("dtype", "kernels"), [("int16", "default"), ("int8", "reference"), ("uint8", "reference")])
def test_means_of_tflite_s_own_kernel_equal_litert(dtype: str, kernels: str) -> None:
    rng = np.random.default_rng(8)
    limits = np.iinfo(dtype)
    for _ in range(30):
        count, scale = int(rng.choice([1, 2, 9, 49, 64, 300])), float(np.float32(rng.uniform(0.001, 0.2)))
        result = float(np.float32(scale * rng.uniform(0.05, 2)))
        zeros = (0, 0) if dtype == "int16" else tuple(int(value) for value in rng.integers(limits.min, limits.max, 2))
        x = rng.integers(limits.min, limits.max, (200, count), endpoint=True).astype(dtype)
        quantizations = Quantization.per_tensor(scale, zeros[0]), Quantization.per_tensor(result, zeros[1])
        wanted = ar.tflite_wrapped_mean(x.astype(np.int64).sum(axis=1), count, *quantizations, dtype)[0]
        got = _reduced("MEAN", x, ((scale, zeros[0]), (result, zeros[1])), kernels)
        assert np.array_equal(got.reshape(-1), wanted)


@pytest.mark.litert
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_softmax_of_16_bits_equals_litert_also_where_it_overflows(beta: float) -> None:
    rng = np.random.default_rng(3)
    overflows = 0
    for scale in (2e-5, 3e-4, 0.01, 0.7, 4.9, 5.5, 80.0, 9e3, 1e6):
        for axis in (7, 40):
            x = rng.integers(-32768, 32767, (60, axis), endpoint=True).astype(np.int16)
            x[:20, axis // 2 :] = -32768
            x[20:40] //= 50
            specs = TensorSpec("x", x.shape, "int16", scale, 0), TensorSpec("y", x.shape, "int16", 1 / 32768, 0)
            found, wraps = ar.tflite_softmax(x, float(np.float32(scale)), beta, -1)
            overflows += wraps
            assert np.array_equal(run_litert(single_op("SOFTMAX", {"beta": beta}, specs[:1], specs[1:]), [x])[0], found)
            turned, _ = ar.tflite_softmax(x.T, float(np.float32(scale)), beta, 0)
            assert np.array_equal(turned.T, found)
    assert overflows > 5


@pytest.mark.litert
@pytest.mark.parametrize(("builtin", "kind"), [("LOGISTIC", "Sigmoid"), ("TANH", "Tanh")])
def test_curves_of_16_bits_equal_litert_also_where_they_overflow(builtin: str, kind: str) -> None:
    x = np.random.default_rng(3).integers(-32768, 32767, (1, 3000), endpoint=True).astype(np.int16)
    x[0, :7] = -32768, -32767, 0, 1, -1, 2, 32767
    overflows = 0
    for scale in (1e-6, 5e-5, 2.0**-12, 2.0**-11, 2.0**-10, 1e-3, 0.3, 5.2, 5.5, 140.0, 6e3, 1.7e5):
        specs = TensorSpec("x", x.shape, "int16", scale, 0), TensorSpec("y", x.shape, "int16", 1 / 32768, 0)
        found, wraps = ar.tflite_curve(x, float(np.float32(scale)), kind)
        overflows += wraps
        assert np.array_equal(run_litert(single_op(builtin, None, specs[:1], specs[1:]), [x])[0], found)
    assert overflows == 4


def _log(x: np.ndarray, outside: np.float32) -> np.ndarray:
    """The logarithm in float32; the smallest result for what is not above zero."""
    return np.where(x > 0, np.log(np.where(x > 0, x, 1).astype(np.float64)).astype(np.float32), outside)


@pytest.mark.litert
def test_logarithm_of_16_bits_equals_litert_also_where_it_overflows() -> None:
    x, overflows = np.arange(-32768, 32768).astype(np.int16)[None], []
    for scale, result in ((3.8, 3.6e-4), (0.04, 2.2e-4), (0.15, 1.9e-4), (1.6e-4, 1e-4), (1.2, 8.2e-4), (1.2, 1e-4)):
        specs = TensorSpec("x", x.shape, "int16", scale, 0), TensorSpec("y", x.shape, "int16", result, 0)
        outside = np.float32(-32768) * np.float32(result)
        found, wraps = ar.tflite_table(x, partial(_log, outside=outside), float(np.float32(scale)), float(np.float32(result)))
        overflows.append(wraps)
        assert np.array_equal(run_litert(single_op("LOG", None, specs[:1], specs[1:]), [x])[0], found)
    assert overflows == [True, False, True, False, False, True]


@pytest.mark.litert
@pytest.mark.parametrize(
    ("given", "result"), [("int16", "int16"), ("int16", "int8"), ("int8", "int16"), ("int32", "int16"), ("int32", "int8")]
)
def test_requantize_of_tflite_s_own_kernel_equals_litert_also_where_it_overflows(given: str, result: str) -> None:
    rng, overflows, limits = np.random.default_rng(4), 0, np.iinfo(given)
    for exponent in (-3, 0, 2, 4, 5, 7, 9):
        scales = [float(np.float32(0.003 * value)) for value in (10.0**exponent, 1 + rng.random())]
        zeros = [int(rng.integers(-128, 128)) if dtype == "int8" else 0 for dtype in (given, result)]
        x = rng.integers(limits.min, limits.max, 400, endpoint=True).astype(given)
        x[:6] = limits.min, limits.max, 0, 1, -1, 2
        x[200:] //= 2**12 if given == "int32" else 1
        specs = [TensorSpec(name, x.shape, *row) for name, *row in zip("xy", (given, result), scales, zeros, strict=True)]
        quantizations = [Quantization.per_tensor(*quantization) for quantization in zip(scales, zeros, strict=True)]
        found, wraps = ar.tflite_requantize(x, *quantizations, result)
        overflows += wraps
        assert np.array_equal(run_litert(single_op("QUANTIZE", {}, specs[:1], specs[1:]), [x])[0], found)
    assert overflows


@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [0.01, 0.9, 1.5, 300.0, 7e4, 1e6, 1e9, 1e15, 1.33e36])
def test_comparisons_are_litert_s_where_shifts_are_undefined_too(scale: float, dtype: str) -> None:
    """The last elements, which fill no vector of 8, are compared by other numbers from 2**16 on."""
    rng, count, limits = np.random.default_rng(5), 61, np.iinfo(dtype)
    differing = 0
    for _ in range(20):
        pairs = (
            (scale, int(rng.integers(limits.min, limits.max))),
            (10.0 ** rng.uniform(-5, -0.001), int(rng.integers(limits.min, limits.max))),
        )
        quantizations = [Quantization.per_tensor(float(np.float32(own)), point) for own, point in pairs]
        specs = [TensorSpec(name, (count,), dtype, *pair) for name, pair in zip("ab", pairs, strict=True)]
        values = [rng.integers(limits.min, limits.max, count, endpoint=True).astype(dtype) for _ in quantizations]
        tables = [ar.tflite_comparison_tables(quantization, dtype) for quantization in quantizations]
        places = [value.astype(int) - limits.min for value in values]
        vectors, last = (tables[0][end][places[0]] < tables[1][end][places[1]] for end in (0, -1))
        (found,) = run_litert(single_op("LESS", None, specs, [TensorSpec("y", (count,), "bool")]), values)
        assert np.array_equal(found, np.where(np.arange(count) < count - count % 8, vectors, last))
        differing += int((vectors != last).sum())
    assert bool(differing) == (scale > 2**16)


@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_quotients_are_litert_s_where_shifts_are_undefined_too(dtype: str) -> None:
    rng = np.random.default_rng(3)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    undefined, defined = 0, 0
    for _ in range(40):
        scales = np.float32(2.0 ** rng.uniform((-9, -9, -6), (3, 3, 6)))
        scales[2] *= scales[0] / scales[1]
        quantizations = [Quantization.per_tensor(float(scale), 0 if dtype == "int16" else int(rng.integers(low, high))) for scale in scales]
        x, y = (rng.integers(low, high + 1, (1, 400)).astype(dtype) for _ in range(2))
        y[y == quantizations[1].point] += 1
        named = zip("abq", quantizations, strict=True)
        specs = [TensorSpec(name, x.shape, dtype, quantization.step, quantization.point) for name, quantization in named]
        found, is_undefined = ar.tflite_divide(x, y, *quantizations, (low, high))
        undefined, defined = undefined + is_undefined, defined + (not is_undefined)
        assert np.array_equal(run_litert(single_op("DIV", {}, specs[:2], specs[2:]), [x, y])[0], found)
    assert undefined > 5 and defined
