"""Roundings that MNN does not do by itself: written as operators, they give the source's integers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from passes.graphs import CONV, constant, make, q, random_integers

from qconvert import Graph, Op, Tensor, check, convert, save
from qconvert.evaluate import evaluate
from qconvert.formats.mnn.float_network import insert_roundings, split_encodings
from qconvert.formats.mnn.layers import layers_of
from qconvert.formats.mnn.network import Node
from qconvert.formats.mnn.scales import find_misnamed
from qconvert.graph import Array
from qconvert.rules.validation import validate
from qconvert.runtimes.mnn import MNNModel

pytestmark = pytest.mark.mnn

FIXTURES = Path(__file__).parents[3] / "fixtures"
needs_mnn = pytest.mark.skipif(find_spec("MNN") is None, reason="MNN is not installed")
IMAGE = (1, 4, 6, 6)


def int8(name: str, scale: float, zero_point: int = 0, shape: tuple[int, ...] = IMAGE) -> Tensor:
    return Tensor(name, "int8", shape, None, q(scale, zero_point))


def weights(name: str = "w", kernel: int = 3) -> Tensor:
    return constant(name, random_integers((4, 4, kernel, kernel), "int8"), q(0.004))


def on_reals(graph: Graph) -> tuple[Graph, list[str]]:
    network, encodings = split_encodings(graph)
    layers, _ = layers_of(network, encodings)
    stored = {name for name in network.inputs if graph[name].is_quantized}
    network, names = insert_roundings(network, encodings, layers, stored, {})
    validate(network)
    return network, names


def in_mnn(graph: Graph, folder: Path, x: Array, **options: str) -> dict[str, Array]:
    """The outputs of the graph's .mnn, in steps of the source's quantizations where there are some."""
    save(graph, folder / "model.qgraph", force=True)
    convert(folder / "model.qgraph", folder / "model.mnn", force=True, min_tensor_sqnr=float("-inf"), **options)
    return MNNModel(folder / "model.mnn").run({graph.inputs[0]: x})


@needs_mnn
def test_ties_go_to_even_and_ends_saturate(tmp_path: Path) -> None:
    """Halves of whole numbers, with a quantization of whole numbers: all of them ties, or beyond the quantization."""
    tensors = [int8("x", 1.0), constant("half", np.array([4], np.int8), q(0.125)), int8("y", 1.0, 100), Tensor("read", "float32", IMAGE)]
    graph = make([Op("Mul", ("x", "half"), ("y",)), Op("Dequantize", ("y",), ("read",))], tensors, "x", "read")
    x = np.arange(-72, 72, dtype=np.int8).reshape(IMAGE)
    expected = evaluate(graph, {"x": x})["read"]
    assert np.array_equal(expected, np.minimum(np.rint(x / 2), 27))
    found = in_mnn(graph, tmp_path, x.astype(np.float32))["read"]
    assert np.array_equal(found, expected)
    fast = in_mnn(graph, tmp_path, x.astype(np.float32), numerics="fast")["read"]
    assert np.abs(fast - x / 2).max() < 1e-4 and fast.max() > 35


@needs_mnn
@pytest.mark.parametrize("activation", ["", "relu", "relu6"])
def test_a_float_layer_s_result_is_rounded(tmp_path: Path, activation: str) -> None:
    """MNN makes constants that are added after a convolution a part of its bias: large ones would cost all of its precision."""
    tensors = [int8("x", 0.1, 3), weights(), int8("y", 6 / 255, -128), Tensor("read", "float32", IMAGE)]
    ops = [Op("Conv", ("x", "w"), ("y",), {**CONV, "activation": activation}), Op("Dequantize", ("y",), ("read",))]
    graph = make(ops, tensors, "x", "read")
    x = random_integers(IMAGE, "int8", seed=1)
    found = in_mnn(graph, tmp_path, (x.astype(np.float32) - 3) * np.float32(0.1), float_layers="*")["read"]
    assert np.array_equal(found, evaluate(graph, {"x": x})["read"])


@needs_mnn
def test_a_requantized_tensor_between_layers(tmp_path: Path) -> None:
    tensors = [int8("x", 0.1, 3), weights(), weights("w2"), int8("a", 0.05), int8("b", 0.11, -9), int8("y", 0.1)]
    ops = [Op("Conv", ("x", "w"), ("a",), CONV), Op("Requantize", ("a",), ("b",)), Op("Conv", ("b", "w2"), ("y",), CONV)]
    graph = make(ops, tensors, "x", "y")
    x = random_integers(IMAGE, "int8", seed=2)
    found = in_mnn(graph, tmp_path, (x.astype(np.float32) - 3) * np.float32(0.1))["y"] / np.float32(0.1)
    assert (np.rint(found) == evaluate(graph, {"x": x})["y"]).mean() > 0.99


def test_what_layers_and_sums_between_them_round_is_not_spelled() -> None:
    """A residual block: MNN rounds all of it; the mean after it is in float, and an output."""
    tensors = [int8("x", 0.1), weights(), weights("w2"), weights("w3"), *(int8(name, 0.1) for name in "abcdy"), int8("m", 0.02)]
    ops = [
        Op("Conv", ("x", "w"), ("a",), CONV), Op("Conv", ("a", "w2"), ("b",), CONV), Op("Add", ("a", "b"), ("c",)),
        Op("Conv", ("c", "w3"), ("d",), CONV), Op("Transpose", ("d",), ("y",), {"perm": (0, 2, 3, 1)}),
    ]  # fmt: skip
    network, names = on_reals(make(ops, [*tensors[:-2], int8("y", 0.1, 0, (1, 6, 6, 4))], "x", "y"))
    assert names == [] and [op.kind for op in network.ops] == ["Conv", "Conv", "Add", "Conv", "Transpose"]


def test_what_is_moved_is_rounded_once() -> None:
    tensors = [int8("x", 0.1), int8("s", 1 / 256, -128), int8("t", 1 / 256, -128, (1, 6, 6, 4)), int8("y", 0.003, 0, (1, 6, 6, 4))]
    ops = [Op("Sigmoid", ("x",), ("s",)), Op("Transpose", ("s",), ("t",), {"perm": (0, 2, 3, 1)}), Op("Mul", ("t", "t"), ("y",))]
    network, names = on_reals(make(ops, tensors, "x", "y"))
    assert names == ["s", "y"]
    decomposed = ["Clip", "Div", "Add", "Sub", "Mul"]
    assert [op.kind for op in network.ops] == ["Sigmoid", *decomposed, "Transpose", "Mul", *decomposed]
    assert network.ops[0].outputs == ("s/real",) and network.ops[5].outputs == ("s",)


@pytest.mark.cross_section
@needs_mnn
@pytest.mark.parametrize("reads_real", [False, True])
def test_real_inputs_that_are_rounded_for_some(tmp_path: Path, reads_real: bool) -> None:
    """Of a layer and a float operator one reads rounded values; with `reads_real` a third reads them as they are."""
    tensors = [Tensor("x", "float32", IMAGE), int8("xq", 0.1, 3), weights(), int8("y", 0.1), *(Tensor(n, "float32", IMAGE) for n in "den")]
    ops = [Op("Quantize", ("x",), ("xq",)), Op("Conv", ("xq", "w"), ("y",), CONV), Op("Dequantize", ("xq",), ("d",))]
    ops += [Op("Exp", ("d",), ("e",)), *([Op("Neg", ("x",), ("n",))] if reads_real else [])]
    graph = make(ops, tensors if reads_real else tensors[:-1], "x", "y e n" if reads_real else "y e")
    x = np.random.default_rng(0).normal(0, 5, IMAGE).astype(np.float32)
    expected, found = evaluate(graph, {"x": x}), in_mnn(graph, tmp_path, x)
    assert np.allclose(found["e"], expected["e"], rtol=1e-5)
    assert np.array_equal(np.rint(found["y"] / np.float32(0.1)), expected["y"])
    assert not reads_real or np.array_equal(found["n"], -x)


@needs_mnn
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool", "GlobalAveragePool"])
def test_scales_are_not_passed_back_to_real_values(tmp_path: Path, pool: str) -> None:
    """A sum of two layers stays real up to a pool, after which it is rounded for a third. MNN would have it on that scale before, and
    its Relu at the integer 0."""
    shape = (1, 4, 1, 1) if pool == "GlobalAveragePool" else (1, 4, 3, 3)
    tensors = [
        int8("x", 0.1, 3),
        weights(),
        weights("w2"),
        weights("w3", 1),
        int8("a", 0.05),
        int8("b", 0.05, 7),
        int8("q", 0.02, -128, shape),
    ]
    tensors += [*(Tensor(name, "float32", IMAGE) for name in "cdsr"), Tensor("p", "float32", shape), int8("y", 0.05, 0, shape)]
    window = {} if pool == "GlobalAveragePool" else {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}
    ops = [
        Op("Conv", ("x", "w"), ("a",), CONV), Op("Conv", ("x", "w2"), ("b",), CONV), Op("Dequantize", ("a",), ("c",)),
        Op("Dequantize", ("b",), ("d",)), Op("Add", ("c", "d"), ("s",)), Op("Relu", ("s",), ("r",)),
        Op(pool, ("r",), ("p",), {**window, "data_format": "channels_first"}), Op("Quantize", ("p",), ("q",)),
        Op("Conv", ("q", "w3"), ("y",), {**CONV, "pads": (0, 0, 0, 0)}),
    ]  # fmt: skip
    graph = make(ops, tensors, "x", "y")
    x = random_integers(IMAGE, "int8", seed=3)
    found = in_mnn(graph, tmp_path, (x.astype(np.float32) - 3) * np.float32(0.1))["y"] / np.float32(0.05)
    expected = evaluate(graph, {"x": x})["y"]
    assert expected.std() > 5 and np.abs(np.rint(found) - expected).max() <= 1


_WINDOW = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 0, 0)}


@needs_mnn
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    ("kind", "size", "attributes"),
    [
        ("MaxPool", 3, _WINDOW), ("GlobalMaxPool", 1, {}), ("AveragePool", 3, {**_WINDOW, "count_include_pad": 0}),
        ("Resize", 9, {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
    ],
)  # fmt: skip
def test_kernels_of_integers_that_are_wrong_are_not_used(
    tmp_path: Path, kind: str, size: int, attributes: dict[str, object], is_last: bool
) -> None:
    """MNN's own maximum of integers is a negative one where a window has both signs, on CPUs with AVX-512; averages and linear Resizes are
    truncated."""
    shape = (1, 4, size, size)
    tensors = [int8("x", 0.1, 3), weights(), weights("w2", 1), int8("a", 0.4), int8("p", 0.4, 0, shape), int8("y", 0.4, 0, shape)]
    tensors += [Tensor("sizes", "int64", (2,), np.array([size, size]))] if kind == "Resize" else []
    inputs = ("a", "sizes") if kind == "Resize" else ("a",)
    ops = [Op("Conv", ("x", "w"), ("a",), CONV), Op(kind, inputs, ("p",), {**attributes, "data_format": "channels_first"})]
    ops += [] if is_last else [Op("Conv", ("p", "w2"), ("y",), {**CONV, "pads": (0, 0, 0, 0)})]
    graph = make(ops, [tensor for tensor in tensors if not is_last or tensor.name not in ("w2", "y")], "x", "p" if is_last else "y")
    x = random_integers(IMAGE, "int8", seed=3)
    (found,) = in_mnn(graph, tmp_path, (x.astype(np.float32) - 3) * np.float32(0.1)).values()
    (expected,) = evaluate(graph, {"x": x}).values()
    off = np.abs(np.rint(found / np.float32(0.4)) - expected)
    assert expected.std() > 5 and off.max() <= 1 and (off > 0).mean() < 0.1  # ties


@pytest.mark.onnxruntime
@needs_mnn
def test_a_real_value_and_what_it_is_rounded_to_keep_their_names(tmp_path: Path) -> None:
    source = FIXTURES / "onnx" / "brevitas_int4.onnx"
    convert(source, tmp_path / "model.mnn")
    names = {op.output for op in check(source, tmp_path / "model.mnn", samples=1).operators}
    gate = "/gate/act_quant"
    assert {f"{gate}/activation_impl/Sigmoid_output_0", f"{gate}/export_handler/QuantizeLinear_output_0"} <= names


@pytest.mark.onnxruntime
@needs_mnn
@pytest.mark.parametrize(
    "source",
    [
        "onnx/brevitas_int4", "onnx/micro_kws_m_static_qdq", "onnx/micro_kws_m_static_qoperator", "onnx/modelopt_torch_vision",
        "onnx/modelopt_ptq_attention", "onnx/ort_qdq_with_multi_consumer_dq_nodes.fixed.qdq16", "onnx/torch_pt2e_x86_vision",
        "onnx/torch_fx_qnnpack_attention", "qonnx/residual", "qonnx/mlp_2_bits",
    ],
)  # fmt: skip
def test_models_that_round_between_float_operators(tmp_path: Path, source: str) -> None:
    convert(FIXTURES / f"{source}.onnx", tmp_path / "model.mnn", min_tensor_sqnr=float("-inf"))
    report = check(FIXTURES / f"{source}.onnx", tmp_path / "model.mnn", samples=2)
    assert report.passed, report.problems


@pytest.mark.litert
@needs_mnn
def test_a_float_convolution_that_mnn_computes_by_tiles_is_explained(tmp_path: Path) -> None:
    """Of windows of 5 x 5 each sum is off by 4e-4 of the largest one, far more than by its own roundings."""
    rng = np.random.default_rng(3)
    kernel = constant("w", rng.normal(0, 0.1, (16, 3, 5, 5)).astype(np.float32))
    tensors = [Tensor("x", "float32", (1, 3, 24, 24)), kernel, Tensor("y", "float32", (1, 16, 24, 24))]
    save(make([Op("Conv", ("x", "w"), ("y",), {**CONV, "pads": (2, 2, 2, 2)})], tensors, "x", "y"), tmp_path / "source.qgraph")
    convert(tmp_path / "source.qgraph", tmp_path / "source.tflite")
    convert(tmp_path / "source.tflite", tmp_path / "result.mnn")
    report = check(tmp_path / "source.tflite", tmp_path / "result.mnn", samples=1)
    assert report.passed, report.problems


def test_tensors_that_have_another_result_s_name() -> None:
    """MNN moves a Reshape after a Relu: operators keep their names, tensors theirs. Fused activations and outputs are called as ever."""
    names = ["x", "flat", "limited", "y", "y__before_tr", "behind"]
    nodes = [
        Node("x", "Input", (), (0,)), Node("limited", "ReLU", (0,), (1,)), Node("flat", "Reshape", (1,), (2,)),
        Node("conv", "Convolution", (2,), (5,)), Node("y", "Reshape", (5,), (4,)), Node("y__before_tr", "ConvertTensor", (4,), (3,)),
    ]  # fmt: skip
    assert find_misnamed(nodes, names) == {1, 2}


@pytest.mark.onnxruntime
@needs_mnn
def test_wrong_steps_weights_and_biases_are_not_equal(tmp_path: Path) -> None:
    """Constants of float operators, changed in the .mnn: what rounds, what is multiplied, what is added."""
    source, result = FIXTURES / "onnx" / "modelopt_torch_vision.onnx", tmp_path / "out"
    convert(source, result, result_format="mnn")
    model, data = onnx.load(result / "model.onnx"), (result / "model.mnn").read_bytes()
    roles = {name: (node.op_type, index) for node in model.graph.node for index, name in enumerate(node.input)}
    seen: set[tuple[str, int]] = set()
    for tensor in model.graph.initializer:
        value, role = onnx.numpy_helper.to_array(tensor), roles.get(tensor.name, ("", 0))
        wanted = role in (("Div", 1), ("Conv", 1), ("Conv", 2)) and role not in seen
        if not wanted or value.dtype != np.float32 or data.count(value.tobytes()) != 1:
            continue
        seen.add(role)
        changed = (value * np.float32(1.25)).tobytes()
        (tmp_path / "other.mnn").write_bytes(data.replace(value.tobytes(), changed))
        assert check(source, tmp_path / "other.mnn", samples=2).verdict == "not equal", tensor.name
    assert seen == {("Div", 1), ("Conv", 1), ("Conv", 2)}


def after_layer(op: Op, result: Tensor, *further: Tensor) -> Graph:
    """An int8 convolution, and an operator on its integers."""
    tensors = [int8("x", 0.05), weights(), int8("h", 0.02), *further, result]
    layer = Op("Conv", ("x", "w"), ("h",), {**CONV, "pads": (1, 1, 1, 1)})
    return make([layer, op], tensors, "x", result.name)


@needs_mnn
def test_a_sum_of_a_layer_s_integers_has_its_first_element(tmp_path: Path) -> None:
    graph = after_layer(Op("CumSum", ("h",), ("y",), {"axis": 2}), int8("y", 0.1))
    stored = random_integers(IMAGE, "int8")
    found = in_mnn(graph, tmp_path, stored.astype(np.float32) * np.float32(0.05))
    (result,) = found.values()
    wanted = evaluate(graph, {"x": stored})["y"].astype(np.float64) * 0.1
    assert np.abs(result - wanted).max() < 0.11


@needs_mnn
@pytest.mark.onnxruntime
def test_indices_of_equal_values_may_come_in_another_order(tmp_path: Path) -> None:
    op = Op("TopK", ("h", "k"), ("v", "y"), {"axis": 3})
    graph = after_layer(op, Tensor("y", "int64", (1, 4, 6, 3)), constant("k", np.array([3])), int8("v", 0.02, 0, (1, 4, 6, 3)))
    save(graph, tmp_path / "model.onnx", force=True)
    convert(tmp_path / "model.onnx", tmp_path / "model.mnn", force=True, min_tensor_sqnr=float("-inf"))
    report = check(tmp_path / "model.onnx", tmp_path / "model.mnn", samples=8, per_op=True)
    (chosen,) = [found for found in report.operators if found.output == "y"]
    assert (chosen.verdict, chosen.reason) == ("approximate", "indices of equal values in another order")


@needs_mnn
@pytest.mark.onnxruntime
def test_a_convolution_of_floats_before_one_of_integers_is_rounded_early(tmp_path: Path) -> None:
    """MNN stores its result as the integers that the next one reads, so that values beyond their range are cut off within the piece."""
    rng = np.random.default_rng(0)
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,4,12,12] x) => (float[1,4,11,11] o) <float so = {0.01}, uint8 z = {128}, float sw = {0.01}, int8 zw = {0}> {
            y = Conv (x, w, b)
            yq = QuantizeLinear(y, so, z)
            yf = DequantizeLinear(yq, so, z)
            vf = DequantizeLinear(v, sw, zw)
            p = Conv <group = 4, pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (yf, vf)
            pq = QuantizeLinear(p, so, z)
            o = DequantizeLinear(pq, so, z)
        }""")
    weights = {"w": rng.normal(0, 0.3, (4, 4, 2, 2)).astype(np.float32), "b": rng.normal(0, 0.3, 4).astype(np.float32)}
    weights["v"] = rng.integers(-127, 127, (4, 1, 3, 3)).astype(np.int8)
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    source, result = tmp_path / "source.onnx", tmp_path / "result.mnn"
    source.write_bytes(model.SerializeToString())
    convert(source, result)
    report = check(source, result, per_op=True)
    assert report.passed, report.problems
