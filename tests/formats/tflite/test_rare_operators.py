"""Operators whose options or sizes a damaged or hostile file leaves out or blows up: one error, and no large constant."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from differential import compare, converted
from formats.tflite.written import codes, rewritten
from loaded import onnx_graph, tflite_graph
from passes.graphs import constant, make
from refusals import refused
from tflite_models import OpSpec, TensorSpec, run_litert, single_op
from tflite_models import model as model_of

from qconvert.conversion import normalize
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.graph import Op, Tensor
from qconvert.plugins import target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime

X = TensorSpec("x", (4, 5), "float32")
Y = TensorSpec("y", (4, 5), "float32")
AXES = TensorSpec("axes", (1,), "int32", data=np.array([1], np.int32))


@pytest.mark.litert
@pytest.mark.parametrize(
    ("builtin", "inputs", "rule", "holds"),
    [
        ("STABLEHLO_PAD", [X, TensorSpec("v", (), "float32", data=np.float32(0))], "option-missing", ("edgePaddingLow",)),
        ("STABLEHLO_GATHER", [X, TensorSpec("i", (2, 1), "int32")], "window-too-large", ("()",)),
        ("RELU", [TensorSpec("x", (4, 5), "int8")], "scale-missing", ("int8",)),
        ("REDUCE_WINDOW", [X, *(TensorSpec(name, (1,), "int64", data=np.ones(1, np.int64)) for name in "isdw")],
         "function-not-covered", (0,)),
    ],
)  # fmt: skip
def test_options_that_are_absent_are_named(builtin: str, inputs: list[TensorSpec], rule: str, holds: tuple[object, ...]) -> None:
    with refused(QConvertError, rule, holds=holds):
        tflite_graph(single_op(builtin, None, inputs, [Y]))


@pytest.mark.litert
@pytest.mark.parametrize(
    ("builtin", "dtype"),
    [*((name, dtype) for name in ("ADD", "SUB", "MUL", "DIV") for dtype in ("int8", "uint8")),
     ("DIV", "int16"), ("SUB", "int16"), ("NOT_EQUAL", "int16"), ("EXP", "int8"),
     ("SQRT", "int16"), ("LEAKY_RELU", "uint8"), ("SOFTMAX", "int8"), ("PRELU", "int8"), ("MEAN", "int8"), ("MEAN", "int16"),
     ("SUM", "uint8"), ("REDUCE_PROD", "int8")],
)  # fmt: skip
def test_kernels_that_divide_by_scales_are_refused_without_them(builtin: str, dtype: str) -> None:
    x = TensorSpec("x", (4, 5), dtype)
    second = {"MEAN": AXES, "SUM": AXES, "REDUCE_PROD": AXES}.get(builtin, x)
    inputs = [x] if builtin in ("EXP", "SQRT", "LEAKY_RELU", "SOFTMAX") else [x, second]
    result = TensorSpec("y", (4,) if second is AXES else (4, 5), "bool" if builtin == "NOT_EQUAL" else dtype)
    with refused(InvalidModelError, "scale-missing", holds=("'x'", dtype)):
        tflite_graph(single_op(builtin, {"keepDims": False} if second is AXES else None, inputs, [result]))


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_factors_of_int16_are_no_factors_of_int16_data() -> None:
    """LiteRT's kernel takes the bytes of int16 factors for int8."""
    x, y = TensorSpec("x", (2, 3), "int16", 0.0002, 0), TensorSpec("y", (2, 3), "int16", 0.0003, 0)
    slopes = [TensorSpec("a", (3,), dtype, 0.01, 0, data=np.array([-120, 3, 90], dtype)) for dtype in ("int16", "int8")]
    with refused(InvalidModelError, "type-misread-by-kernel", holds=("'a'", "int16", "int8")):
        tflite_graph(single_op("PRELU", None, [x, slopes[0]], [y]))
    compared = compare(single_op("PRELU", None, [x, slopes[1]], [y]), [np.array([[-30000, -9000, 7], [12, -5, -20000]], np.int16)])
    assert compared[0].largest <= 1


@pytest.mark.litert
def test_a_comparison_of_bytes_stays_one_where_its_kernel_keeps_the_order() -> None:
    """With 0 it does for any scale from 1 / 512 on; of two tensors at 0.002 it takes neighbours for equal."""
    x, y = TensorSpec("x", (8,), "int8", 0.002, -16), TensorSpec("y", (8,), "bool")
    for number, kinds in ((0, ["Greater"]), (None, ["Cast", "Add", "Gather", "Cast", "Add", "Gather", "Greater"])):
        other = TensorSpec("b", (8,), "int8", 0.0021, 0, data=None if number is None else np.full(8, number, np.int8))
        graph = tflite_graph(single_op("GREATER", None, [x, other], [y]))
        assert [op.kind for op in graph.ops if op.kind != "Reinterpret"] == kinds


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "uint16", "uint64", "float16"])
def test_choices_of_types_that_onnxruntime_has_no_where_of(dtype: str) -> None:
    data = [TensorSpec(name, (2, 3), dtype) for name in "aby"]
    model = single_op("SELECT_V2", None, [TensorSpec("c", (2, 1), "bool"), *data[:2]], data[2:])
    rng = np.random.default_rng(3)
    values = [rng.integers(0, 2, (2, 3)).astype(dtype) if dtype == "bool" else rng.integers(0, 90, (2, 3)).astype(dtype) for _ in "ab"]
    condition = np.array([[True], [False]])
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run(dict(zip(fitted.inputs, [condition, *values], strict=True))).values()
    np.testing.assert_array_equal(found, np.where(condition, *values))
    assert [code for code, _ in codes(rewritten(model))] == ["SELECT_V2"]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("builtin", "dtype"), [("REDUCE_MAX", "int16"), ("REDUCE_MIN", "int16"), ("REDUCE_PROD", "uint8")])
def test_reductions_of_plain_integers_of_few_bits(builtin: str, dtype: str) -> None:
    model = single_op(builtin, {"keepDims": False}, [TensorSpec("x", (4, 5), dtype), AXES], [TensorSpec("y", (4,), dtype)])
    values = np.random.default_rng(3).integers(1, 120, (4, 5)).astype(dtype)
    wanted = run_litert(model, [values])
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run({fitted.inputs[0]: values}).values()
    np.testing.assert_array_equal(found, wanted[0])


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("builtin", ["NEG", "FLOOR_DIV", "FLOOR_MOD"])
def test_arithmetic_on_plain_integers_of_few_bits_wraps_around(builtin: str, dtype: str) -> None:
    low = np.iinfo(dtype).min
    values = [np.array([[low, low, -7, 7, 7, -7]], dtype), np.array([[-1, 1, 2, -2, 2, -2]], dtype)][: 1 + (builtin != "NEG")]
    data = [TensorSpec(name, (1, 6), dtype) for name in "aby"]
    model = single_op(builtin, {}, data[: len(values)], data[2:])
    (wanted,) = run_litert(model, values)
    assert wanted[0, 0] in (low, 0)
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run(dict(zip(fitted.inputs, values, strict=True))).values()
    np.testing.assert_array_equal(found, wanted)
    graph = tflite_graph(model)
    (exact,) = evaluate(graph, dict(zip(graph.inputs, values, strict=True))).values()
    np.testing.assert_array_equal(exact, wanted)
    assert _codes_of_the_way_back(written) == [builtin]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_one_hot_values_may_be_computed(dtype: str) -> None:
    values = [TensorSpec(name, (), dtype) for name in ("on", "off")]
    depth = TensorSpec("d", (), "int32", data=np.int32(4))
    model = single_op("ONE_HOT", {"axis": 1}, [TensorSpec("i", (2, 3), "int32"), depth, *values], [TensorSpec("y", (2, 4, 3), dtype)])
    inputs = [np.array([[0, 3, 1], [2, 2, 9]], np.int32), np.array(7, dtype), np.array(-2, dtype)]
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run(dict(zip(fitted.inputs, inputs, strict=True))).values()
    np.testing.assert_array_equal(
        found,
        run_litert(model, inputs)[0]
        if dtype != "float16"
        else np.moveaxis(np.where(inputs[0][..., None] == np.arange(4), np.float16(7), np.float16(-2)), -1, 1),
    )
    assert "ONE_HOT" in _codes_of_the_way_back(written)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("builtin", ["NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"])
def test_suppression_has_no_batch_whatever_the_file_says(builtin: str) -> None:
    """TensorFlow's converter states the shape (1, 3) for what its kernel makes (3,)."""
    numbers = {"most": np.int32(3), "overlap": np.float32(0.5), "least": np.float32(0.1), "sigma": np.float32(0)}
    constants = [TensorSpec(name, (), data.dtype.name, data=data) for name, data in numbers.items()][: 3 + (builtin[-1] == "5")]
    results = [TensorSpec("y", (1, 3), "int32"), TensorSpec("s", (1, 3), "float32"), TensorSpec("n", (), "int32")]
    data = [TensorSpec("b", (8, 4), "float32"), TensorSpec("x", (8,), "float32")]
    model = single_op(builtin, None, [*data, *constants], results if builtin[-1] == "5" else results[::2])
    rng = np.random.default_rng(3)
    corners = rng.random((8, 2), np.float32)
    for compared in compare(model, [np.concatenate([corners, corners + rng.random((8, 2), np.float32)], 1), rng.random(8, np.float32)]):
        assert compared.largest == 0


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("builtin", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_PROD"])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions_of_nothing(builtin: str, keep: bool) -> None:
    """The mean of no numbers is none, where onnxruntime's own kernel has 0."""
    results = TensorSpec("y", (2, 1) if keep else (2,), "float32")
    model = single_op(builtin, {"keepDims": keep}, [TensorSpec("x", (2, 0), "float32"), AXES], [results])
    (compared,) = compare(model, [np.zeros((2, 0), np.float32)])
    assert np.array_equal(compared.source, compared.result, equal_nan=True)
    assert np.isnan(compared.source).all() == (builtin == "MEAN")
    _, written = converted(model)
    assert _codes_of_the_way_back(written) == [builtin]


_OPEN = {
    "DYNAMIC_UPDATE_SLICE": [
        ((-1, 6, 8), (-1, 2, 3), ((3, 6, 8), (3, 2, 3), (0, 9, 2))), ((4, -1), (2, -1), ((4, 7), (2, 3), (-1, 3))),
        ((-1,), (2,), ((5,), (2,), (9,))), ((5, 3), (-1, 3), ((5, 3), (4, 3), (1, 1))),
        ((-1, 3, 2), (2, 3, 2), ((4, 3, 2), (2, 3, 2), (1, 0, 0))),
        ((4, -1, 2), (2, -1, 2), ((4, 3, 2), (2, 0, 2), (1, 1, 0))),
    ],
    "MATRIX_DIAG": [((-1,), None, ((5,),)), ((2, -1), None, ((2, 3),))],
    "MATRIX_SET_DIAG": [((2, -1, -1), (2, -1), ((2, 3, 4), (2, 3))), ((-1, 3), (-1,), ((5, 3), (3,))), ((2, -1), (-1,), ((2, 6), (2,)))],
}  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("builtin", "number"), [(name, number) for name, found in _OPEN.items() for number in range(len(found))])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_places_in_tensors_of_open_sizes(builtin: str, number: int, dtype: str) -> None:
    first, second, given = _OPEN[builtin][number]
    quantization = (0.1, 3) if dtype == "int8" else (None, None)
    result = (*first, first[-1]) if builtin == "MATRIX_DIAG" else first
    x, u, y = (None if sizes is None else TensorSpec(name, tuple(map(abs, sizes)), dtype, *quantization, shape_signature=sizes)
               for name, sizes in (("x", first), ("u", second), ("y", result)))  # fmt: skip
    inputs = [item for item in (x, u) if item is not None]
    if builtin == "DYNAMIC_UPDATE_SLICE":
        inputs.append(TensorSpec("starts", (len(first),), "int32"))
    model = single_op(builtin, None, inputs, [y])
    rng = np.random.default_rng(number)
    values = [rng.integers(-128, 128, shape).astype(dtype) for shape in given[:2]]
    values += [np.array(given[2], np.int32)] if len(given) > 2 else []
    for compared in compare(model, values):
        assert compared.source.shape == compared.result.shape
        assert compared.largest == 0
    _, written = converted(model)
    codes = _codes_of_the_way_back(written)
    assert [code for code in codes if code != "SHAPE"] == [builtin]  # of a RESHAPE that gives a result its label back


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(("stated", "made"), [((7, 12), (7, 9)), ((10, 4), (8, 10)), ((6, 9), (8, 9))])
def test_sizes_that_do_not_lead_back_to_the_data_are_those_that_xnnpack_makes(
    stated: tuple[int, int], made: tuple[int, int], dtype: str
) -> None:
    """TensorFlow's converter writes them for atrous_conv2d_transpose, whose dilations it drops."""
    rng = np.random.default_rng(2)
    quantizations = [(None, None), (None, None), (None, None)] if dtype == "float32" else [(0.1, 3), (0.02, 0), (0.3, -5)]
    tensors = [TensorSpec(n, s, dtype, *g) for n, s, g in zip("xy", ((1, 3, 3, 2), (1, *stated, 4)), quantizations[::2], strict=True)]
    values = rng.integers(-90, 90, (4, 3, 2, 2))
    weights = TensorSpec("w", (4, 3, 2, 2), dtype, *quantizations[1], data=values.astype(dtype))
    sizes = TensorSpec("sizes", (4,), "int32", data=np.array([1, *stated, 4], np.int32))
    model = single_op("TRANSPOSE_CONV", {"padding": 1, "strideH": 2, "strideW": 3}, [sizes, weights, tensors[0]], tensors[1:])
    (x,) = [rng.integers(-128, 128, (1, 3, 3, 2)).astype(dtype)]
    (own,) = run_litert(model, [x])
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run(dict(zip(fitted.inputs, [x], strict=True))).values()
    assert own.shape == found.shape == (1, *made, 4)
    assert np.allclose(own, found, atol=0 if dtype == "int8" else 1e-3)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("form", ["constant", "float16", "input"])
@pytest.mark.parametrize("overlap", [0.5, 1 / 3, 0.625])
def test_suppression_at_a_threshold_that_boxes_meet_exactly(overlap: float, form: str) -> None:
    """Thresholds of a float16 model stand after a DEQUANTIZE; those that are inputs are lowered by one float at run time."""
    boxes = np.float32([[0, 0, 8, 1], [0, 0, 4, 1], [0, 2, 8, 3], [0, 2, 5, 3], [0, 4, 3, 5], [0, 4, 1, 5], [0, 6, 1, 7], [0, 6, 1, 7]])
    scores = np.float32([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    most = TensorSpec("most", (), "int32", data=np.int32(8))
    values = {"overlap": np.float32(overlap), "least": np.float32(0.25)}
    narrow = np.float16 if form == "float16" else np.float32
    stated = [TensorSpec(f"{k}/stated", (), narrow.__name__, data=None if form == "input" else narrow(v)) for k, v in values.items()]
    real = [TensorSpec(name, (), "float32") for name in values] if form == "float16" else stated
    ops = [OpSpec("DEQUANTIZE", [a.name], [b.name]) for a, b in zip(stated, real, strict=True) if a is not b]
    tensors = [TensorSpec("b", (8, 4), "float32"), TensorSpec("s", (8,), "float32"), most, *real]
    results = [TensorSpec("y", (8,), "int32"), TensorSpec("n", (), "int32")]
    ops.append(OpSpec("NON_MAX_SUPPRESSION_V4", [t.name for t in tensors], ["y", "n"]))
    inputs = ["b", "s", *(spec.name for spec in stated if form == "input")]
    held = {t.name: t for t in (*tensors, *stated, *results)}
    model = model_of(ops, list(held.values()), inputs, ["y", "n"])
    for compared in compare(model, [boxes, scores, *(values.values() if form == "input" else ())]):
        assert compared.largest == 0
    _, written = converted(model)
    assert _codes_of_the_way_back(written) == ["NON_MAX_SUPPRESSION_V4"]


@pytest.mark.litert
@pytest.mark.parametrize(("builtin", "scale"), [("RELU", 0.05), ("RELU6", 0.05), ("RELU6", 0.01)])
def test_bounds_on_bytes_come_back_as_the_operator_that_has_them(builtin: str, scale: float) -> None:
    tensors = [TensorSpec(name, (4, 5), "int8", scale, -100) for name in "xy"]
    _, written = converted(single_op(builtin, None, tensors[:1], tensors[1:]))
    assert _codes_of_the_way_back(written) in ([builtin], ["RELU"])


@pytest.mark.litert
def test_volumes_have_weights_of_float16() -> None:
    rng = np.random.default_rng(3)
    tensors = [
        TensorSpec("x", (1, 3, 4, 4, 2), "float32"),
        TensorSpec("h", (2, 2, 2, 2, 3), "float16", data=rng.normal(size=(2, 2, 2, 2, 3)).astype(np.float16)),
        TensorSpec("w", (2, 2, 2, 2, 3), "float32"), TensorSpec("y", (1, 2, 3, 3, 3), "float32"),
    ]  # fmt: skip
    options = {"padding": 1, **{f"stride{axis}": 1 for axis in "DHW"}}
    ops = [OpSpec("DEQUANTIZE", ["h"], ["w"], {}), OpSpec("CONV_3D", ["x", "w"], ["y"], options)]
    data, x = model_of(ops, tensors, ["x"], ["y"]), rng.normal(size=(1, 3, 4, 4, 2)).astype(np.float32)
    back = rewritten(data)
    assert [code for code, _ in codes(back)] == ["DEQUANTIZE", "CONV_3D"]
    np.testing.assert_allclose(run_litert(back, [x])[0], run_litert(data, [x])[0], atol=1e-5)


def _codes_of_the_way_back(written: onnx.ModelProto) -> list[str]:
    graph, _ = normalize(onnx_graph(written.SerializeToString()), target_named("tflite"))
    return [code for code, _ in codes(build(graph, {})) if code != "RESHAPE"]


@pytest.mark.formats
@pytest.mark.parametrize(
    ("builtin", "reason"),
    [("STABLEHLO_RNG_BIT_GENERATOR", "gives random numbers"), ("LSH_PROJECTION", "hashes"), ("SKIP_GRAM", "works on text")],
)
def test_operators_without_a_form_in_onnx_say_why(builtin: str, reason: str) -> None:
    with refused(UnsupportedError, "operators-not-covered", holds=(1, builtin, reason)):
        tflite_graph(single_op(builtin, None, [X], [Y], version=1))


@pytest.mark.onnxruntime
def test_a_softmax_of_float16_has_a_factor_of_float16() -> None:
    model = single_op("SOFTMAX", {"beta": 0.7}, [TensorSpec("x", (2, 5), "float16")], [TensorSpec("y", (2, 5), "float16")])
    values = np.linspace(-3, 3, 10).reshape(2, 5).astype(np.float16)
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run({fitted.inputs[0]: values}).values()
    powers = np.exp(0.7 * values.astype(np.float64))
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=2e-3)


@pytest.mark.formats
def test_a_mask_of_a_huge_diagonal_is_not_made() -> None:
    data = single_op("MATRIX_DIAG", {}, [TensorSpec("x", (100_000,), "float32")], [TensorSpec("y", (100_000, 100_000), "float32")])
    _, written = converted(data)
    assert max(np.prod(item.dims) for item in written.graph.initializer) < 10
    assert "Range" in [node.op_type for node in written.graph.node]


@pytest.mark.formats
def test_nearest_resizes_of_two_kinds_at_once_are_refused() -> None:
    flags = {"alignCorners": True, "halfPixelCenters": True}
    inputs = [TensorSpec("x", (1, 4, 4, 1), "float32"), TensorSpec("s", (2,), "int32", data=np.array([8, 8], np.int32))]
    with refused(UnsupportedError, "form-not-covered"):
        tflite_graph(single_op("RESIZE_NEAREST_NEIGHBOR", flags, inputs, [TensorSpec("y", (1, 8, 8, 1), "float32")]))


@pytest.mark.formats
def test_a_product_of_no_elements_has_a_reach() -> None:
    from qconvert.graph import Graph, Op, Quantization, Tensor
    from qconvert.kernels.litert.tolerances import reduce_prod

    quantization = Quantization.per_tensor(0.1, 0)
    tensors = [
        Tensor("x", "int8", (2, 0), None, quantization),
        Tensor("a", "int64", (1,), np.array([1])),
        Tensor("y", "int8", (2,), None, quantization),
    ]
    op = Op("ReduceProd", ("x", "a"), ("y",), {"keepdims": 0})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    assert (reduce_prod(graph, op, np.ones(2))[0] > 0).all()


@pytest.mark.formats
def test_a_product_along_no_axes_is_one_of_all_elements() -> None:
    from qconvert.graph import Graph, Op, Quantization, Tensor
    from qconvert.kernels.litert.tolerances import reduce_prod

    quantization, found = Quantization.per_tensor(0.1, 0), []
    for axes in ([0, 1], []):
        tensors = [
            Tensor("x", "int8", (2, 4), None, quantization),
            Tensor("a", "int64", (len(axes),), np.array(axes, np.int64)),
            Tensor("y", "int8", (), None, quantization),
        ]
        op = Op("ReduceProd", ("x", "a"), ("y",), {"keepdims": 0})
        graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
        found.append(reduce_prod(graph, op, np.ones(()))[0])
    assert found[0] == found[1] > 1


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("scales", [(0.05, 0.05), (0.001, 0.001), (0.05, 0.031), (2.0**-10, 2.0**-9)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("builtin", ["EQUAL", "NOT_EQUAL", "LESS", "GREATER_EQUAL"])
def test_comparisons_of_bytes_are_as_coarse_as_the_kernel(builtin: str, dtype: str, scales: tuple[float, float]) -> None:
    """LiteRT compares 256 times the float values, rounded to integers."""
    rng = np.random.default_rng(3)
    values = [rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (4, 2000)).astype(dtype) for _ in scales]
    operands = [TensorSpec(name, (4, 2000), dtype, scale, 7) for name, scale in zip("ab", scales, strict=True)]
    model = single_op(builtin, None, operands, [TensorSpec("y", (4, 2000), "bool")])
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run(dict(zip(fitted.inputs, values, strict=True))).values()
    np.testing.assert_array_equal(found, run_litert(model, values)[0])


@pytest.mark.litert
@pytest.mark.parametrize("divisor", [2, 3, 441, 1024])
@pytest.mark.parametrize("shape", [(), (12,), (3, 4)])
def test_int64_is_divided_by_a_constant_as_a_mean(divisor: int, shape: tuple[int, ...]) -> None:
    """LiteRT has no quotient of int64; ONNX cuts it off towards zero."""
    tensors = [Tensor(name, "int64", shape) for name in "xy"] + [constant("d", np.array(divisor))]
    values = np.array([5, -5, 7, -7, 2**40 + 1, -(2**40) - 1, 2**62, -(2**62), 0, 2047, 2**63 - 1, -(2**63)])
    values = values[1].reshape(()) if not shape else values.reshape(shape)
    graph, _ = normalize(make([Op("Div", ("x", "d"), ("y",))], tensors, "x", "y"), target_named("tflite"))
    wanted = np.where(values < 0, -(-values.astype(object) // divisor), values.astype(object) // divisor).astype(np.int64)
    np.testing.assert_array_equal(run_litert(build(graph, {}), [values])[0], wanted)


@pytest.mark.formats
def test_int64_is_divided_by_nothing_else() -> None:
    tensors = [Tensor(name, "int64", (3,)) for name in "xy"] + [constant("d", np.array([2, 3, 4]))]
    target = target_named("tflite")
    graph, _ = normalize(make([Op("Div", ("x", "d"), ("y",))], tensors, "x", "y"), target)
    assert [verdict.runs for _, verdict in target.verdicts(graph)] == ["refused"]


def _windows_by_a_body(function: str, dtype: str, edges: tuple[int, ...], gaps: tuple[int, ...] = (1, 1)) -> bytes:
    """STABLEHLO_REDUCE_WINDOW of (4, 5), 2 by 3, every second column."""
    size = [(n - 1) * gap + 1 + low + high for n, gap, low, high in zip((4, 5), gaps, edges[::2], edges[1::2], strict=True)]
    shape = (size[0] - 1, (size[1] - 3) // 2 + 1)
    first = {"ADD": 0, "MUL": 1, "MINIMUM": 100, "MAXIMUM": -100, "SUB": 0}[function]
    lists = {"windowDimensions": (2, 3), "windowStrides": (1, 2), "baseDilations": gaps, "windowDilations": (1, 1), "padding": edges}
    options = {name: np.array(values, np.int64) for name, values in lists.items()}
    scalars = [TensorSpec(name, (), dtype) for name in "pqr"]
    return model_of(
        [OpSpec("STABLEHLO_REDUCE_WINDOW", ["x", "v"], ["y"], {**options, "bodySubgraphIndex": 1})],
        [TensorSpec("x", (4, 5), dtype), TensorSpec("v", (), dtype, data=np.array(first, dtype)), TensorSpec("y", shape, dtype)],
        ["x"], ["y"], further=[([OpSpec(function, ["p", "q"], ["r"])], scalars, ["p", "q"], ["r"])],
    )  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("function", ["ADD", "MUL", "MINIMUM", "MAXIMUM"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(("edges", "gaps"), [((0, 0, 0, 0), (1, 1)), ((1, 0, 1, 2), (1, 1)), ((0, 1, 1, 0), (2, 1))])
def test_windows_that_a_body_combines(function: str, dtype: str, edges: tuple[int, ...], gaps: tuple[int, ...]) -> None:
    """A subgraph says how the elements of a window are combined, as litert-torch writes average pools over three axes."""
    model = _windows_by_a_body(function, dtype, edges, gaps)
    x = np.random.default_rng(0).integers(-3, 4, (4, 5)).astype(dtype)
    (wanted,) = run_litert(model, [x])
    fitted, written = converted(model)
    (found,) = OnnxRuntime(written.SerializeToString()).run(dict(zip(fitted.inputs, [x], strict=True))).values()
    np.testing.assert_array_equal(found, wanted)
    (again,) = run_litert(rewritten(model), [x])
    np.testing.assert_array_equal(again, wanted)
    assert not tflite_graph(model).functions


@pytest.mark.formats
def test_other_bodies_of_windows_are_named() -> None:
    with refused(UnsupportedError, "body-not-covered", holds=("Sub",)):
        tflite_graph(_windows_by_a_body("SUB", "float32", (0, 0, 0, 0)))
