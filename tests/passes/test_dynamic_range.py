"""Dynamic range between TFLite and ONNX: integer weights next to real data, which kernels round when they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from onnxruntime.quantization import QuantType, quantize_dynamic
from tflite_models import OpSpec, TensorSpec, model

from qconvert import check, convert, load, roundtrip, save
from qconvert.graph import metadata
from qconvert.operators import is_dynamic
from qconvert.runtimes.litert import LiteRT

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

KINDS = ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "pointwise", "dilated")
OPTIONS = {"paddingless": {"padding": 1, "strideW": 1, "strideH": 1}, "strided": {"padding": 0, "strideW": 2, "strideH": 2}}


def hybrid(path: Path, kind: str, *, per_channel: bool = True, asymmetric: bool = True, relu: bool = False, wrong: bool = False) -> Path:
    """A model with one operator that has int8 weights and float data, in two images or six rows."""
    rng = np.random.default_rng(3)
    fused = {"fusedActivationFunction": 1 if relu else 0}
    shapes = {
        "FULLY_CONNECTED": ((6, 32), (8, 32), (6, 8), 0),
        "BATCH_MATMUL": ((2, 3, 32), (2, 32, 8), (2, 3, 8), 0),
        "CONV_2D": ((2, 9, 9, 4), (8, 3, 3, 4), (2, 5, 5, 8), 0),
        "pointwise": ((2, 5, 5, 16), (8, 1, 1, 16), (2, 5, 5, 8), 0),
        "dilated": ((2, 9, 9, 4), (8, 3, 3, 4), (2, 5, 5, 8), 0),
        "DEPTHWISE_CONV_2D": ((2, 9, 9, 8), (1, 3, 3, 8), (2, 7, 7, 8), 3),
        "TRANSPOSE_CONV": ((2, 4, 4, 6), (8, 3, 3, 6), (2, 8, 8, 8), 0),
    }
    data, weights, result, axis = shapes[kind]
    stored = rng.integers(-127, 128, weights).astype(np.int8)
    if wrong:
        stored.reshape(-1)[7] ^= 0x40
    name_of_weights = "another" if wrong else "w"  # so that a check compares no constants
    # BATCH_MATMUL takes one scale alone, DEPTHWISE_CONV_2D one for each channel.
    count = weights[axis] if (per_channel or kind == "DEPTHWISE_CONV_2D") and kind != "BATCH_MATMUL" else 1
    scales = np.linspace(0.004, 0.02, count).astype(np.float32) if count > 1 else 0.01
    tensors = {
        "x": TensorSpec("x", data, "float32"),
        "w": TensorSpec(name_of_weights, weights, "int8", scales, 0, axis, stored),
        "b": TensorSpec("b", (8,), "float32", data=rng.normal(size=8).astype(np.float32)),
        "y": TensorSpec("y", result, "float32"),
        "s": TensorSpec("s", (4,), "int32", data=np.array(result[:4], np.int32)) if len(result) == 4 else None,
    }
    builtin, inputs = {"pointwise": "CONV_2D", "dilated": "CONV_2D"}.get(kind, kind), ["x", "w", "b"]
    if kind == "FULLY_CONNECTED":
        options = {"asymmetricQuantizeInputs": asymmetric, **fused}
    elif kind == "BATCH_MATMUL":
        options, inputs = {"asymmetricQuantizeInputs": asymmetric}, ["x", "w"]
    elif kind == "TRANSPOSE_CONV":
        options, inputs = {"padding": 0, "strideW": 2, "strideH": 2}, ["s", "w", "x"]
    elif kind == "CONV_2D":
        options = {**OPTIONS["strided"], **fused}
    else:
        options = {**OPTIONS["paddingless"], **fused}
        options |= {"dilationWFactor": 2, "dilationHFactor": 2} if kind == "dilated" else {}
        options |= {"depthMultiplier": 1} if kind == "DEPTHWISE_CONV_2D" else {}
    inputs[1] = name_of_weights
    used = [tensor for name, tensor in tensors.items() if tensor is not None and name in (*inputs, "w", "y")]
    path.write_bytes(model([OpSpec(builtin, inputs, ["y"], options)], used, ["x"], ["y"]))
    return path


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_stay_integers_in_onnx_and_come_back(kind: str, relu: bool, tmp_path: Path) -> None:
    source = hybrid(tmp_path / "source.tflite", kind, relu=relu)
    convert(source, tmp_path / "model.onnx")
    convert(tmp_path / "model.onnx", tmp_path / "back.tflite")
    middle, back = load(tmp_path / "model.onnx"), load(tmp_path / "back.tflite")
    assert not any(is_dynamic(op) for op in middle.ops)
    (stored,) = (tensor for tensor in middle.constants() if tensor.dtype == "int8")
    (again,) = (tensor for tensor in back.constants() if tensor.dtype == "int8")
    (first,) = (tensor for tensor in load(source).constants() if tensor.dtype == "int8")
    for other in (stored, again):
        assert np.array_equal(np.sort(other.data, axis=None), np.sort(first.data, axis=None))
        assert np.array_equal(other.quantization.scale, first.quantization.scale)
    assert [op["arithmetic"] for op in back.ops if is_dynamic(op)] == ["dynamic"]
    assert not any(op.kind == "Dequantize" for op in back.ops)
    for result, verdicts in (("model.onnx", {"dynamic range"}), ("back.tflite", {"equal", "approximate"})):
        report = check(source, tmp_path / result, samples=3, per_op=True)
        assert report.passed, report.problems
        assert {op.verdict for op in report.operators if op.output == "y"} <= verdicts


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("kind", ["FULLY_CONNECTED", "BATCH_MATMUL"])
def test_asymmetric_quantize_inputs_comes_back(kind: str, asymmetric: bool, tmp_path: Path) -> None:
    source = hybrid(tmp_path / "source.tflite", kind, asymmetric=asymmetric)
    convert(source, tmp_path / "model.onnx")
    convert(tmp_path / "model.onnx", tmp_path / "back.tflite")
    wanted = "dynamic" if asymmetric else "dynamic_symmetric"
    assert [op["arithmetic"] for path in (source, tmp_path / "back.tflite") for op in load(path).ops if is_dynamic(op)] == [wanted] * 2


@pytest.mark.parametrize("kernels", ["litert:default", "litert:reference"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_do_what_their_model_says(kind: str, asymmetric: bool, per_channel: bool, kernels: str, tmp_path: Path) -> None:
    """Each is within the order of its sums of one of the roundings: nothing is explained by a step of the data."""
    source = hybrid(tmp_path / "source.tflite", kind, asymmetric=asymmetric, per_channel=per_channel)
    convert(source, tmp_path / "model.onnx")
    report = check(source, tmp_path / "model.onnx", samples=3, per_op=True, kernels=kernels)
    assert report.passed, report.problems
    assert {op.verdict for op in report.operators if op.output == "y"} == {"dynamic range"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_weight_is_found_where_kernels_round_otherwise(kind: str, tmp_path: Path) -> None:
    """Also where constants are not compared: the sums of one channel are off by more than any rounding explains."""
    source = hybrid(tmp_path / "source.tflite", kind)
    convert(hybrid(tmp_path / "wrong.tflite", kind, wrong=True), tmp_path / "wrong.onnx")
    report = check(source, tmp_path / "wrong.onnx", samples=2, per_op=True)
    assert report.verdict == "not equal"
    assert any(op.verdict == "unexplained" and "wrong" in op.reason for op in report.operators if op.output == "y")


def test_microcontrollers_get_real_data(tmp_path: Path) -> None:
    convert(hybrid(tmp_path / "source.tflite", "FULLY_CONNECTED"), tmp_path / "micro.tflite", target="tflite-micro")
    graph = load(tmp_path / "micro.tflite")
    assert not any(is_dynamic(op) for op in graph.ops)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_rounds_data_when_it_runs_if_asked_to(kind: str, numerics: str, tmp_path: Path) -> None:
    """Exact is LiteRT's rounding by rows and images, fast DynamicQuantizeLinear's of the whole tensor."""
    source = hybrid(tmp_path / "source.tflite", kind)
    convert(source, tmp_path / "model.onnx", dynamic="keep", numerics=numerics)
    report = check(source, tmp_path / "model.onnx", samples=3, per_op=True)
    assert report.passed, report.problems
    exact = numerics == "exact"
    assert {op.verdict for op in report.operators if op.output == "y"} <= ({"equal", "approximate"} if exact else {"dynamic range"})
    nodes = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert ("DynamicQuantizeLinear" in nodes) == (not exact and kind != "TRANSPOSE_CONV")
    assert kind not in ("FULLY_CONNECTED", "BATCH_MATMUL") or "MatMulInteger" in nodes


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_onnx_rounds_as_litert_does_is_one_operator_again(kind: str, asymmetric: bool, tmp_path: Path) -> None:
    """However it was decomposed, with its int8 weights, which ONNX may have as uint8."""
    source = hybrid(tmp_path / "source.tflite", kind, asymmetric=asymmetric)
    convert(source, tmp_path / "model.onnx", dynamic="keep")
    convert(tmp_path / "model.onnx", tmp_path / "back.tflite")
    graphs = [load(path) for path in (source, tmp_path / "model.onnx", tmp_path / "back.tflite")]
    found = [[op["arithmetic"] for op in graph.ops if is_dynamic(op)] for graph in graphs]
    assert found[0] == found[1] == found[2] != []
    assert sum(op.kind not in ("Transpose", "Reshape") for op in graphs[2].ops) == 1
    weights = [next(tensor for tensor in graph.constants() if tensor.dtype == "int8") for graph in graphs[::2]]
    assert np.array_equal(*(np.sort(item.data, axis=None) for item in weights))
    assert np.array_equal(*(item.quantization.scale for item in weights))
    report = check(source, tmp_path / "back.tflite", samples=2, per_op=True)
    assert report.passed, report.problems


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_weight_is_found_where_onnx_rounds_too(kind: str, numerics: str, tmp_path: Path) -> None:
    source = hybrid(tmp_path / "source.tflite", kind)
    convert(hybrid(tmp_path / "wrong.tflite", kind, wrong=True), tmp_path / "wrong.onnx", dynamic="keep", numerics=numerics)
    assert check(source, tmp_path / "wrong.onnx", samples=2, per_op=True).verdict == "not equal"


def dynamically_quantized(folder: Path, **options: object) -> Path:
    """A convolution, a depthwise one, a product of matrices with a bias and a Gemm, as onnxruntime's quantize_dynamic leaves them."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 1, 3, 3), "w3": (16, 32), "b3": (32,), "w4": (32, 10), "b4": (10,)}
    constants = [numpy_helper.from_array(rng.normal(0, 0.1, shape).astype(np.float32), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], group=16, pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["m"]),
        helper.make_node("Add", ["m", "b3"], ["a"]),
        helper.make_node("Gemm", ["a", "w4", "b4"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 3, 16, 16]), ("y", [1, 10]))]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], constants)
    onnx.save(model_of(graph), folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "source.onnx", **options)
    return folder / "source.onnx"


@pytest.mark.parametrize(
    "options",
    [{"weight_type": QuantType.QInt8}, {"weight_type": QuantType.QInt8, "per_channel": True},
     {"weight_type": QuantType.QUInt8, "reduce_range": True}],
    ids=["int8", "per channel", "uint8 of 7 bits"],
)  # fmt: skip
def test_dynamic_quantization_of_onnx_becomes_tflite_s(options: dict[str, object], tmp_path: Path) -> None:
    source = dynamically_quantized(tmp_path, **options)
    assert [op["arithmetic"] for op in load(source).ops if is_dynamic(op)] == ["dynamic_tensor"] * 4
    for name in ("result.tflite", "again.onnx"):
        convert(source, tmp_path / name)
        report = check(source, tmp_path / name, samples=3, per_op=True)
        assert report.passed, report.problems
        wanted = "dynamic" if name.endswith("tflite") else "dynamic_tensor"
        assert [op["arithmetic"] for op in load(tmp_path / name).ops if is_dynamic(op)] == [wanted] * 4
    assert {op.verdict for op in report.operators} == {"equal"}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_a_bias_behind_a_product_of_several_rows_is_judged_with_it(moved: bool, wrong: bool, tmp_path: Path) -> None:
    """The result adds it inside one operator, whose rows have ranges of their own."""
    rng = np.random.default_rng(1)
    weights, bias = rng.normal(0, 0.1, (32, 8)).astype(np.float32), rng.normal(0, 0.1, 8).astype(np.float32)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["t" if moved else "x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    shapes = {"x": [2, 6, 32], "y": [6, 2, 8] if moved else [2, 6, 8]}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes[not moved :], "rows", ends[:1], ends[1:], constants)
    onnx.save(model_of(graph), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "source.onnx", weight_type=QuantType.QInt8)
    model = onnx.load(tmp_path / "source.onnx")
    (stored,) = (item for item in model.graph.initializer if item.name == "b")
    stored.CopyFrom(numpy_helper.from_array(bias + np.float32(2e-4 if wrong else 0), "b"))
    onnx.save(model, tmp_path / "other.onnx")
    convert(tmp_path / "other.onnx", tmp_path / "result.tflite")
    report = check(tmp_path / "source.onnx", tmp_path / "result.tflite", samples=2, per_op=True)
    assert report.verdict == ("not equal" if wrong else "passed")
    assert wrong or {op.verdict for op in report.operators if op.output == "y"} == {"dynamic range"}


def test_weights_that_int8_does_not_hold_keep_their_values(tmp_path: Path) -> None:
    """uint8 weights with a zero point of their own: steps beyond 127 have no place in TFLite's kernels, so the data stay real."""
    source = dynamically_quantized(tmp_path, weight_type=QuantType.QUInt8)
    report = convert(source, tmp_path / "result.tflite")
    assert "not int8 with zero point 0" in str(report.tables())
    assert check(source, tmp_path / "result.tflite", samples=2, per_op=True).passed


@pytest.mark.parametrize(("kind", "dtype", "kept"), [
    ("FULLY_CONNECTED", "int4", "int4"), ("FULLY_CONNECTED", "int2", "int2"), ("CONV_2D", "int4", "int4"), ("CONV_2D", "int2", "int8"),
])  # fmt: skip
def test_weights_of_few_bits_stay_what_kernels_take(kind: str, dtype: str, kept: str, tmp_path: Path) -> None:
    """LiteRT takes int2 of FULLY_CONNECTED alone; its convolutions read beyond such weights, which become int8 with the same integers."""
    rng = np.random.default_rng(4)
    data, weights, result = ((6, 32), (8, 32), (6, 8)) if kind == "FULLY_CONNECTED" else ((2, 9, 9, 4), (8, 3, 3, 4), (2, 5, 5, 8))
    few = {"int2": 1, "int4": 7}[dtype]
    stored = rng.integers(-few, few + 1, weights).astype(np.int8)
    tensors = [
        TensorSpec("x", data, "float32"), TensorSpec("w", weights, dtype, np.linspace(0.2, 0.5, 8), 0, 0, stored),
        TensorSpec("b", (8,), "float32", data=rng.normal(size=8).astype(np.float32)), TensorSpec("y", result, "float32"),
    ]  # fmt: skip
    options = {"asymmetricQuantizeInputs": True} if kind == "FULLY_CONNECTED" else OPTIONS["strided"]
    source, back = tmp_path / "source.tflite", tmp_path / "back.tflite"
    source.write_bytes(model([OpSpec(kind, ["x", "w", "b"], ["y"], options)], tensors, ["x"], ["y"]))
    convert(source, back)
    (op,) = [op for op in load(back).ops if op.kind in ("Gemm", "Conv")]
    tensor = load(back)[op.inputs[1]]
    assert (is_dynamic(op), tensor.dtype) == (True, kept)
    assert tensor.data is not None
    np.testing.assert_array_equal(tensor.data.astype(np.int8), stored if kind == "FULLY_CONNECTED" else stored.transpose(0, 3, 1, 2))
    if kept == dtype:
        report = check(source, back, per_op=True)
        assert report.passed, report
        assert [item.verdict for item in report.operators] == ["equal"]


def test_a_matrix_that_int8_does_not_hold_with_zero_point_0_stays_8_bits(tmp_path: Path) -> None:
    """After a DEQUANTIZE, as int8 with the zero point that this takes; it comes back to ONNX as 8 bits too."""
    rng = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array((rng.normal(size=(96, 128)) + 0.7).astype(np.float32), "w")
    values = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [7, 96]), ("y", [7, 128]))]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    onnx.save(model_of(graph), tmp_path / "float.onnx")
    source, result, back = (tmp_path / name for name in ("source.onnx", "result.tflite", "back.onnx"))
    quantize_dynamic(tmp_path / "float.onnx", source, weight_type=QuantType.QUInt8)
    convert(source, result)
    convert(result, back)
    for path in (result, back):
        assert path.stat().st_size < 2 * 96 * 128
    assert check(source, result, samples=2, per_op=True).passed
    assert check(result, back, samples=2, per_op=True).passed


@pytest.mark.cross_section
@pytest.mark.parametrize(("form", "via"), [("tflite", "tflite"), ("tflite", "onnx:qdq"), ("onnx", "onnx:qoperator")])
def test_a_round_trip_keeps_what_rounds_data(form: str, via: str, tmp_path: Path) -> None:
    source = hybrid(tmp_path / "source.tflite", "FULLY_CONNECTED") if form == "tflite" else dynamically_quantized(tmp_path)
    report = roundtrip(source, via=via)
    assert report.passed, report


def attention_of_products(folder: Path, bias: float = 0.0) -> Path:
    """Products with biases, one after the other and after data movement, as an encoder has them; quantized dynamically."""
    rng = np.random.default_rng(5)
    names = ("in", "query", "key", "out")
    constants = [numpy_helper.from_array(rng.normal(0, 0.2, (32, 32)).astype(np.float32), f"{name}.w") for name in names]
    constants += [numpy_helper.from_array((rng.normal(0, 0.2, 32) + bias).astype(np.float32), f"{name}.b") for name in names]
    for name, shape in (("heads", [1, 6, 2, 16]), ("whole", [1, 6, 32])):
        constants.append(numpy_helper.from_array(np.array(shape, np.int64), name))

    def linear(data: str, name: str) -> list[onnx.NodeProto]:
        return [helper.make_node("MatMul", [data, f"{name}.w"], [f"{name}.m"]), helper.make_node("Add", [f"{name}.b", f"{name}.m"], [name])]

    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]), *linear("t", "in"), *linear("in", "query"), *linear("in", "key"),
        *(helper.make_node("Reshape", [name, "heads"], [f"{name}.heads"]) for name in ("query", "key")),
        helper.make_node("Transpose", ["query.heads"], ["query.t"], perm=(0, 2, 1, 3)),
        helper.make_node("Transpose", ["key.heads"], ["key.t"], perm=(0, 2, 3, 1)),
        helper.make_node("MatMul", ["query.t", "key.t"], ["scores"]), helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "query.t"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=(0, 2, 1, 3)), helper.make_node("Reshape", ["back", "whole"], ["rows"]),
        *linear("rows", "out"), helper.make_node("Add", ["in", "out"], ["y"]),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 6, 32]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], constants)
    onnx.save(model_of(graph), folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / f"source{bias}.onnx")
    return folder / f"source{bias}.onnx"


def test_data_rounded_otherwise_are_found_behind_biases_and_moves(tmp_path: Path) -> None:
    source, result = attention_of_products(tmp_path), tmp_path / "result.tflite"
    convert(source, result)
    report = check(source, result, samples=3, per_op=True)
    assert report.passed, report.problems
    assert sum(op.verdict == "dynamic range" for op in report.operators) >= 4
    convert(attention_of_products(tmp_path, bias=0.01), result, force=True)
    assert not check(source, result, samples=1, per_op=True).passed


@pytest.mark.parametrize("dynamic", ["real", "keep"])
@pytest.mark.parametrize("other", ["dynamic", "dynamic_symmetric", "dynamic_tensor"])
def test_data_rounded_in_a_way_that_nobody_declared_are_found(dynamic: str, other: str, tmp_path: Path) -> None:
    """The source's own rounding is declared where the result computes in float; any other one is a fault, as one of real weights is."""
    source, sound, changed = hybrid(tmp_path / "source.tflite", "FULLY_CONNECTED"), tmp_path / "sound.onnx", tmp_path / "changed.onnx"
    convert(source, sound, dynamic="keep")
    graph = load(sound)
    graph = replace(
        graph, metadata={key: value for key, value in graph.metadata.items() if key not in (metadata.OPTIONS, metadata.DYNAMIC_RANGE)}
    )
    ops = [op.with_attributes(arithmetic=other) if is_dynamic(op) else op for op in graph.ops]
    save(graph.evolve(ops=ops), changed, force=True)
    if dynamic == "real":  # the rounding is one of a source that rounds nothing
        convert(source, tmp_path / "real.onnx", dynamic="real")
        source = tmp_path / "real.onnx"
    report = check(source, changed, samples=2, per_op=True)
    assert report.verdict == ("passed" if other == "dynamic" and dynamic == "keep" else "not equal"), report.problems


@pytest.mark.parametrize("kind", ["FULLY_CONNECTED", "CONV_2D"])
def test_unsigned_targets_keep_signed_weights_beside_real_data(kind: str, tmp_path: Path) -> None:
    """LiteRT's hybrid kernels take uint8 for int8 with zero point 0."""
    source = hybrid(tmp_path / "m.tflite", kind, per_channel=False)
    convert(source, tmp_path / "r.tflite", target="tflite-uint8")
    x = np.random.default_rng(0).normal(size=next(iter(LiteRT(source.read_bytes()).inputs.values()))[1]).astype(np.float32)
    wanted, found = (LiteRT(path.read_bytes()).run_in_order([x])[0] for path in (source, tmp_path / "r.tflite"))
    assert np.array_equal(wanted, found)
