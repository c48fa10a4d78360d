"""What operators.py says of operators is what HTP does with them, and what the target avoids is wrong on HTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qconvert_qnn.operators import lacks
from qconvert_qnn.running import HtpModel, layers

import qconvert
from qconvert.plugin import (
    Graph,
    ModelFile,
    Op,
    Quantization,
    Tensor,
    apply,
    choose_quantization,
    evaluate,
    infer,
    load,
    normalize,
    refuse_violations,
    save,
    target_named,
)
from qconvert.testing import kinds_with_kernels, make_graph, random_inputs, random_operands

P = Quantization.per_tensor
#: Steps by which uint8 results may be off the exact ones.
ONE = 1
#: The same of products of two data, whose second HTP rounds.
FAR = {"MatMul": 32}


def htp(graph: Graph, path: Path, feed: Mapping[str, Any], target: str = "") -> dict[str, Any]:
    """What HTP gives for a graph, fitted to a target or as it is."""
    fitted = normalize(graph, target)[0] if target else graph
    save(fitted, path, force=True, **target_named("portable").write_options)
    return HtpModel(ModelFile(path, "sm8650")).run(feed)


def steps(graph: Graph, path: Path, feed: Mapping[str, Any], target: str = "") -> int:
    """By how many steps HTP is off the exact result."""
    found, exact = htp(graph, path, feed, target), evaluate(graph, feed)
    return max(int(np.abs(found[name].astype(np.int64) - exact[name].astype(np.int64)).max()) for name in exact)


@pytest.mark.parametrize("kind", kinds_with_kernels())
def test_random_operators_run_where_it_is_said_and_are_within_a_step(kind: str, tmp_path: Path) -> None:
    target, rng = target_named("qnn-htp"), np.random.default_rng(3)
    graph = make_graph(kind, "uint8", rng, target.kernels)
    fitted, _ = normalize(graph, target)
    refuse_violations(fitted, target)
    path = tmp_path / "one.onnx"
    save(fitted, path, **target.write_options)
    placed = {name: layer.by for layer in layers(ModelFile(path, "sm8650")) for name in layer.outputs}
    for op in fitted.ops:
        if op.kind not in ("Quantize", "Dequantize") and op.outputs[0] in placed:  # conversions go with what they convert for
            assert placed[op.outputs[0]] == ("CPU" if lacks(fitted, op) else "HTP"), (op, placed)
    feed = random_operands(fitted, kind, rng)
    if kind == "Div":  # a divisor of zero gives either end
        point = fitted["i1"].quantization
        assert point is not None
        feed["i1"] = np.maximum(feed["i1"], point.point + 20).astype(np.uint8)
    found, exact = HtpModel(ModelFile(path, "sm8650")).run(feed), evaluate(fitted, feed)
    for name, value in exact.items():
        off = np.abs(found[name].astype(np.float64) - value.astype(np.float64))
        in_float16 = 0.005 * np.abs(value) if value.dtype.kind == "f" else 0.0  # corners are exp() of float16
        assert np.all(off <= FAR.get(kind, ONE) + in_float16)


def layer(kind: str, attributes: dict[str, Any], data: Tensor, result: Tensor, *more: Tensor) -> Graph:
    names = (data.name, *(tensor.name for tensor in more))
    inputs = tuple(tensor.name for tensor in (data, *more) if tensor.data is None)
    return infer(Graph(kind, {item.name: item for item in (data, *more, result)}, (Op(kind, names, ("y",), attributes),), inputs, ("y",)))


def image(dtype: str, point: int, name: str = "x", shape: tuple[int, ...] | None = (1, 4, 6, 6), scale: float = 0.05) -> Tensor:
    return Tensor(name, dtype, shape, None, P(scale, point))


RNG = np.random.default_rng(0)
SPACE = {"data_format": "channels_first", "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
CODES = RNG.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8)


def test_weights_beyond_int8_are_rounded_by_the_target_and_else_by_htp(tmp_path: Path) -> None:
    """HTP has no weights whose integers less their zero point are beyond int8: it rounds them, and says nothing."""
    codes = np.clip(np.rint(RNG.normal(126, 15, (32, 16, 1, 1))), 0, 254).astype(np.uint8)
    codes[3, 2] = 255
    weights = Tensor("w", "uint8", codes.shape, codes, P(0.0477, 126))
    data, result = (Tensor(name, "uint8", shape, None, P(0.0235, 0)) for name, shape in (("x", (1, 16, 8, 8)), ("y", None)))
    graph = layer("Conv", {**SPACE, "pads": (0, 0, 0, 0)}, data, result, weights)
    feed = {"x": RNG.integers(0, 256, (1, 16, 8, 8)).astype(np.uint8)}
    assert steps(graph, tmp_path / "m.onnx", feed) > 3
    fitted, changes = normalize(graph, "qnn-htp")
    assert steps(fitted, tmp_path / "m.onnx", feed) <= ONE
    assert any("symmetric" in str(change) for change in changes)


@pytest.mark.parametrize(("dtype", "point"), [("uint8", 128), ("int16", 0)])
def test_a_relu_that_the_zero_point_does_not_imply_stands_after_the_gemm(dtype: str, point: int, tmp_path: Path) -> None:
    """onnxruntime-qnn takes no Gemm with a Relu in float before the Quantize, but one with a Relu of its own."""
    weights = Tensor("w", "int8", (5, 8), RNG.integers(-127, 128, (5, 8)).astype(np.int8), P(0.01, 0))
    data, result = Tensor("x", dtype, (1, 8), None, P(0.1, point)), Tensor("y", dtype, None, None, P(0.05, point))
    fitted, _ = normalize(layer("Gemm", {"activation": "relu"}, data, result, weights), "qnn-htp")
    kinds = " ".join(op.kind for op in fitted.ops)
    assert "Gemm Dequantize Relu Quantize" in kinds, kinds
    assert steps(fitted, tmp_path / "m.onnx", {"x": RNG.integers(0, 100, (1, 8)).astype(dtype)}) <= (
        ONE if dtype == "uint8" else 8
    )  # of 65,536
    assert {layer.integer for layer in layers(ModelFile(tmp_path / "m.onnx", "sm8650"))} <= {True, None}


@pytest.mark.parametrize(
    ("activation", "scale", "after"),
    [("relu", 0.05, "Relu"), ("relu6", 0.05, "Clip"), ("relu6", 0.02, "Relu"), ("relu_n1_to_1", 0.02, "Clip")],
)
def test_an_activation_that_the_quantization_does_not_imply_stands_after_the_conv(
    activation: str, scale: float, after: str, tmp_path: Path
) -> None:
    weights = Tensor("w", "int8", (8, 4, 1, 1), RNG.integers(-127, 128, (8, 4, 1, 1)).astype(np.int8), P(0.02, 0))
    attributes = {**SPACE, "pads": (0, 0, 0, 0), "activation": activation}
    graph = layer("Conv", attributes, image("uint8", 128), image("uint8", 60, "y", None, scale), weights)
    fitted, _ = normalize(graph, "qnn-htp")
    kinds = " ".join(op.kind for op in fitted.ops)
    assert f"Conv Dequantize {after} Quantize" in kinds, kinds
    assert steps(graph, tmp_path / "m.onnx", {"x": CODES}, "qnn-htp") <= ONE
    assert {layer.integer for layer in layers(ModelFile(tmp_path / "m.onnx", "sm8650"))} <= {True, None}


def test_sums_are_clipped_between_operators_whose_activations_are_not_implied(tmp_path: Path) -> None:
    """HTP runs them in float, and leaves out the rounding and clipping of the sum between them: 27 steps in a ResNet."""
    rng = np.random.default_rng(7)
    tensors, ops = {}, []

    def conv(data: str, name: str, count: int, activation: str = "") -> None:
        weights = rng.integers(-127, 128, (count, 4, 3, 3)).astype(np.int8)
        tensors[f"{name}/w"] = Tensor(f"{name}/w", "int8", weights.shape, weights, P(0.004, 0))
        tensors[name] = image("uint8", 128, name, None, 0.03)
        ops.append(Op("Conv", (data, f"{name}/w"), (name,), {**SPACE, "activation": activation}))

    for name in "ab":
        tensors[name] = image("uint8", 128, name, scale=0.03)
        conv(name, f"c{name}", 4)
    tensors["sum"] = image("uint8", 128, "sum", None, 0.03)
    ops.append(Op("Add", ("ca", "cb"), ("sum",), {"activation": "relu"}))
    conv("sum", "y", 8, "relu")
    graph = infer(Graph("residual", tensors, tuple(ops), ("a", "b"), ("y",)))
    feed = {name: rng.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8) for name in "ab"}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 10
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 4


def test_products_with_a_constant_are_clipped_before_the_sum_with_another(tmp_path: Path) -> None:
    """HTP computes both in one after a Conv and a Relu, so that the product is neither rounded nor clipped."""
    rng = np.random.default_rng(5)
    weights = Tensor("w", "int8", (8, 4, 1, 1), rng.integers(-127, 128, (8, 4, 1, 1)).astype(np.int8), P(0.01, 0))
    factors = Tensor("f", "uint8", (1, 8, 1, 1), rng.integers(100, 256, (1, 8, 1, 1)).astype(np.uint8), P(0.02, 0))
    offsets = Tensor("o", "uint8", (1, 8, 1, 1), rng.integers(0, 100, (1, 8, 1, 1)).astype(np.uint8), P(0.02, 100))
    tensors = [image("uint8", 128, scale=0.03), weights, factors, offsets, *(image("uint8", 128, name, None, 0.03) for name in "cpy")]
    attributes = {**SPACE, "pads": (0, 0, 0, 0), "activation": "relu"}
    ops = (Op("Conv", ("x", "w"), ("c",), attributes), Op("Mul", ("c", "f"), ("p",)), Op("Add", ("p", "o"), ("y",)))
    graph = infer(Graph("normalized", {item.name: item for item in tensors}, ops, ("x",), ("y",)))
    assert steps(graph, tmp_path / "m.onnx", {"x": CODES}, "portable") > 10
    assert steps(graph, tmp_path / "m.onnx", {"x": CODES}, "qnn-htp") <= 4


def activated(first: str, activation: str, scale: float, result: Quantization) -> tuple[Graph, dict[str, Any]]:
    """An operator on uint8, whose results have a scale, and an activation after it."""
    rng = np.random.default_rng(5)
    x = image("uint8", 128, scale=0.03) if first != "Gemm" else image("uint8", 128, "x", (9, 16), 0.03)
    weights = rng.integers(-127, 128, (8, 16) if first == "Gemm" else (8, 4, 1, 1)).astype(np.int8)
    second = Tensor("w", "int8", weights.shape, weights, P(0.01, 0)) if first in ("Conv", "ConvTranspose", "Gemm") else replace(x, name="w")
    attributes: dict[str, Any] = {**SPACE, "pads": (0, 0, 0, 0)} if "Conv" in first else {}
    ops = (Op(first, ("x", "w"), ("c",), attributes), Op(activation, ("c",), ("y",), {"alpha": 0.2} if activation == "LeakyRelu" else {}))
    tensors = (x, second, image("uint8", 128, "c", None, scale), Tensor("y", "uint8", None, None, result))
    names = tuple(item.name for item in tensors[:2] if item.data is None)
    graph = infer(Graph("activated", {item.name: item for item in tensors}, ops, names, ("y",)))
    return graph, {name: rng.integers(0, 256, x.shape).astype(np.uint8) for name in names}


@pytest.mark.parametrize(
    ("first", "activation"),
    [("Conv", "Relu"), ("Conv", "LeakyRelu"), ("ConvTranspose", "HardSwish"), ("Gemm", "LeakyRelu"), ("Add", "Relu"), ("Mul", "Relu")],
)
def test_data_of_an_activation_are_clipped(first: str, activation: str, tmp_path: Path) -> None:
    """HTP computes both in one, and leaves out the Quantize between: off by what a Relu of 5 is beyond a sum that is clipped to 1."""
    graph, feed = activated(first, activation, 0.008, P(0.02, 100 * (activation != "Relu")))
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 50
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


@pytest.mark.parametrize(("point", "bounds"), [(0, (0.0, 6.0)), (20, (-1.0, 1.0)), (128, (None, 1.0)), (128, (-1.0, None))])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_clip_with_a_bound_that_the_data_imply_is_kept(dtype: str, point: int, bounds: tuple[float | None, ...], tmp_path: Path) -> None:
    """HTP leaves out such a Clip after a Conv, with its other bound: off by what the data's range holds beyond that."""
    one = 2 ** (8 * np.dtype(dtype).itemsize - 8)
    weights = Tensor("w", "int8", (8, 4, 1, 1), RNG.integers(-127, 128, (8, 4, 1, 1)).astype(np.int8), P(0.05, 0))
    ends = [
        Tensor(name, "float32", (), np.array(end, np.float32)) for name, end in zip(("low", "high"), bounds, strict=True) if end is not None
    ]
    data = [image(dtype, point * one, name, None, 0.05 / one) for name in "cy"]
    names = ["" if bounds[0] is None else "low", *["high"] * (bounds[1] is not None)]
    ops = (Op("Conv", ("x", "w"), ("c",), {**SPACE, "pads": (0, 0, 0, 0)}), Op("Clip", ("c", *names), ("y",)))
    x = image(dtype, 128 * one, scale=0.03 / one)
    graph = infer(Graph("clipped", {item.name: item for item in (x, weights, *ends, *data)}, ops, ("x",), ("y",)))
    feed = {"x": RNG.integers(0, 256 * one, (1, 4, 6, 6)).astype(dtype)}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 10 * one
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= (ONE if one == 1 else 64)  # of 65,536


def test_data_of_an_activation_are_not_rounded(tmp_path: Path) -> None:
    """The result is that of one rounding, or next to it near a tie; of two roundings a third of the results are a step off."""
    graph, feed = activated("Conv", "LeakyRelu", 0.05, P(0.02, 24))
    (found,), (twice,) = (item.values() for item in (htp(graph, tmp_path / "m.onnx", feed, "qnn-htp"), evaluate(graph, feed)))
    data, weights = 0.03 * (feed["x"] - 128.0), graph["w"].float_values()
    real = np.einsum("nihw,oi->nohw", data, weights[:, :, 0, 0])
    once = np.clip(np.where(real < 0, 0.2 * real, real) / 0.02 + 24, 0, 255)
    assert (found != twice).mean() > 0.3
    assert np.abs(found - once).max() < 0.6


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_values_between_float_operators_are_rounded_and_clipped(dtype: str, tmp_path: Path) -> None:
    """HTP leaves out a Quantize of values that it computes and reads in float, unless a MaxPool stands after it."""
    one = 2 ** (8 * np.dtype(dtype).itemsize - 8)
    x, a, d, y = (Tensor(name, "float32", (1, 8, 8, 8)) for name in "xady")
    q = Tensor("q", dtype, (1, 8, 8, 8), None, P(0.027 / one, 128 * one))
    w = Tensor("w", "float32", (8, 1, 1, 1), np.ones((8, 1, 1, 1), np.float32))
    conv = Op("Conv", ("x", "w"), ("a",), {**SPACE, "pads": (0, 0, 0, 0), "group": 8})
    ops = (conv, Op("Quantize", ("a",), ("q",)), Op("Dequantize", ("q",), ("d",)), Op("HardSwish", ("d",), ("y",)))
    graph = Graph("between", {item.name: item for item in (x, w, a, q, d, y)}, ops, ("x",), ("y",))
    feed = {"x": np.linspace(-6, 6, 512, dtype=np.float32).reshape(1, 8, 8, 8)}
    (exact,) = evaluate(graph, feed).values()
    for target, is_right in (("portable", False), ("qnn-htp", True)):
        (found,) = htp(graph, tmp_path / "m.onnx", feed, target).values()
        assert (np.abs(found - exact).max() < 0.04) == is_right


def test_int8_is_taken_for_uint8_on_stored_integers(fixtures: Path, tmp_path: Path) -> None:
    """Why an int8 ResNet for onnxruntime on Arm is wrong on HTP: it has a Cast and a Reshape on stored integers before its last layer."""
    source, path = fixtures / "tiny_resnet_cifar10_int8.tflite", tmp_path / "m.onnx"
    differences = {}
    for target in ("ort-arm", "qnn-htp"):
        qconvert.convert(source, path, target=target, batch=1, force=True)
        graph = load(path)
        feed = random_inputs(graph)
        found, exact = HtpModel(ModelFile(path, "sm8650")).run(feed), evaluate(graph, feed)
        differences[target] = max(int(np.abs(found[name].astype(int) - exact[name].astype(int)).max()) for name in exact)
    assert differences["ort-arm"] > 100 and differences["qnn-htp"] <= 12


def test_int8_is_padded_with_another_value(tmp_path: Path) -> None:
    pads = Tensor("pads", "int64", (8,), np.array([0, 0, 1, 1] * 2))
    graph = layer("Pad", {"mode": "constant"}, image("int8", -8), image("int8", -8, "y", None), pads)
    fitted, _ = normalize(graph, "portable")
    feed = {"x": (CODES.astype(np.int16) - 128).astype(np.int8)}
    assert steps(fitted, tmp_path / "m.onnx", feed) > 50
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") == 0


@pytest.mark.parametrize("point", [0, 3, 50])
def test_softmax_with_a_zero_point(point: int, tmp_path: Path) -> None:
    graph = layer("Softmax", {"axis": 3}, image("uint8", 120), image("uint8", point, "y", None, 1 / 256))
    wrong = steps(graph, tmp_path / "m.onnx", {"x": CODES})
    assert (wrong > ONE) == (point != 0)
    assert steps(graph, tmp_path / "m.onnx", {"x": CODES}, "qnn-htp") <= ONE


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize(("kind", "sizes"), [("Reshape", (1, 4, 36)), ("Reshape", (1, 4, 4, 9)), ("Add", (1, 4, 6, 6))])
def test_inputs_of_a_concat_keep_their_scales(kind: str, sizes: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    """HTP gives the Concat's scale to the Reshape, which copies integers, and to the Add, which then clips to another range."""
    one = 2 ** (8 * np.dtype(dtype).itemsize - 8)
    narrow, wide = P(0.010 / one, 142 * one), P(0.018 / one, 123 * one)
    x = Tensor("x", dtype, (1, 4, 6, 6), None, narrow)
    z = Tensor("z", dtype, sizes, None, wide)
    other = Tensor("other", "int64", (len(sizes),), np.array(sizes)) if kind == "Reshape" else replace(x, name="other")
    between, y = Tensor("between", dtype, sizes, None, narrow), Tensor("y", dtype, None, None, wide)
    tensors = {item.name: item for item in (x, z, other, between, y)}
    ops = (Op(kind, ("x", "other"), ("between",), {}), Op("Concat", ("between", "z"), ("y",), {"axis": 1}))
    graph = infer(Graph(kind, tensors, ops, tuple(name for name in ("x", "z", "other") if tensors[name].data is None), ("y",)))
    rng = np.random.default_rng(2)
    feed = {name: rng.integers(0, 256 * one, tensors[name].shape).astype(dtype) for name in graph.inputs}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 40 * one
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "HardSigmoid"])
def test_curves_of_16_bits_have_the_scale_that_htp_computes_them_in(kind: str, tmp_path: Path) -> None:
    data = Tensor("x", "uint16", (2, 30), None, P(2**-13, 2**15))
    graph = layer(kind, {}, data, Tensor("y", "uint16", None, None, P(1 / 20_000, 30_000)))
    feed = {"x": RNG.integers(0, 2**16, (2, 30)).astype(np.uint16)}
    assert steps(graph, tmp_path / "m.onnx", feed) > 1000
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 8


def test_int16_becomes_uint16(tmp_path: Path) -> None:
    data, result = Tensor("x", "int16", (2, 30), None, P(2**-12, 0)), Tensor("y", "int16", None, None, P(2**-12, 0))
    graph = layer("LeakyRelu", {"alpha": 0.1}, data, result)
    feed = {"x": RNG.integers(-(2**15), 2**15, (2, 30)).astype(np.int16)}
    fitted, _ = normalize(graph, "qnn-htp")
    assert [fitted[op.outputs[0]].dtype for op in fitted.ops if op.kind == "LeakyRelu"] == ["uint16"]
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 4


def test_what_htp_fails_at_becomes_other_operators(tmp_path: Path) -> None:
    data, slopes = (Tensor(name, "uint16", (2, 30), None, P(2**-12, 2**15)) for name in "xs")
    graph = layer("PRelu", {}, data, Tensor("y", "uint16", None, None, P(2**-9, 2**15)), slopes)
    feed = {name: RNG.integers(0, 2**16, (2, 30)).astype(np.uint16) for name in "xs"}
    with pytest.raises(qconvert.QConvertError):
        htp(graph, tmp_path / "m.onnx", feed)
    fitted, _ = normalize(graph, "qnn-htp")
    assert "PRelu" not in {op.kind for op in fitted.ops}
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 64  # of 65,536: float16 between


def pair(kind: str, first: Tensor, second: Tensor, result: Quantization) -> tuple[Graph, dict[str, Any]]:
    """An operator on two data, whose second is a constant if it has data, and random data."""
    y = Tensor("y", first.dtype, None, None, result)
    names = (first.name, second.name)
    inputs = tuple(item.name for item in (first, second) if item.data is None)
    graph = infer(Graph(kind, {item.name: item for item in (first, second, y)}, (Op(kind, names, ("y",), {}),), inputs, ("y",)))
    rng = np.random.default_rng(4)
    return graph, {
        name: rng.integers(0, 2 ** (8 * np.dtype(first.dtype).itemsize), graph[name].shape).astype(first.dtype) for name in inputs
    }


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_constant_of_zeros_is_not_added(dtype: str, tmp_path: Path) -> None:
    """HTP leaves such an Add out and keeps the integers of its data, in a scale that is not the result's."""
    one = 2 ** (8 * np.dtype(dtype).itemsize - 8)
    zeros = Tensor("zeros", dtype, (4, 1, 1), np.full((4, 1, 1), 7, dtype), P(0.01, 7))
    graph, feed = pair("Add", image(dtype, 100 * one, scale=0.02 / one), zeros, P(0.033 / one, 40 * one))
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 100 * one
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


@pytest.mark.parametrize("kind", ["Add", "Sub", "Min", "Max"])
def test_data_of_much_larger_scales_than_the_result_have_16_bits(kind: str, tmp_path: Path) -> None:
    """With 8 bits HTP loses the digits below the larger scale: a result of a scale 500 times smaller is off by up to 16 steps."""
    data = image("uint8", 128, "large", (1, 4000), 10.0), image("uint8", 60, "small", (1, 4000), 0.3)
    graph, feed = pair(kind, *data, P(0.02, 200))
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 3
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


def test_a_reciprocal_is_divided_with_the_exact_scale(tmp_path: Path) -> None:
    """HTP divides by the data with 1 / scale as an integer: 7 in place of 6.67."""
    data, codes = Tensor("x", "uint8", (1, 255), None, P(0.15, 0)), np.arange(1, 256, dtype=np.uint8)[None]
    graph = layer("Reciprocal", {}, data, Tensor("y", "uint8", None, None, P(0.0119, 0)))
    assert steps(graph, tmp_path / "m.onnx", {"x": codes}, "portable") > 5
    assert steps(graph, tmp_path / "m.onnx", {"x": codes}, "qnn-htp") <= ONE


def test_sums_along_an_axis_are_not_clipped_on_the_way(tmp_path: Path) -> None:
    """HTP goes on from a sum that it has clipped to the range of the result, with 16 bits too."""
    data, result = (Tensor(name, "uint16", shape, None, P(1e-4, 2**15)) for name, shape in (("x", (2, 6)), ("y", None)))
    graph = layer("CumSum", {"axis": 1}, data, result)
    feed = {"x": np.array([[65535, 65535, 0, 0, 32768, 32768], [0, 0, 65535, 60000, 1, 2]], np.uint16)}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 10_000
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 64


def test_a_leaky_relu_of_another_zero_point_does_not_wrap_around(tmp_path: Path) -> None:
    data = Tensor("x", "uint16", (1, 400), None, P(1e-4, 30_000))
    graph = layer("LeakyRelu", {"alpha": 0.1}, data, Tensor("y", "uint16", None, None, P(1e-4, 2**15)))
    feed = {"x": np.linspace(0, 65535, 400).astype(np.uint16)[None]}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") == 65535
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 2


@pytest.mark.parametrize("point", [129, 255])
def test_16_bits_are_clipped_to_8_with_large_zero_points(point: int, tmp_path: Path) -> None:
    graph = layer(
        "Requantize", {}, Tensor("x", "uint16", (1, 400), None, P(2**-16, 0)), Tensor("y", "uint8", None, None, P(1 / 256, point))
    )
    feed = {"x": np.linspace(0, 65535, 400).astype(np.uint16)[None]}
    assert (steps(graph, tmp_path / "m.onnx", feed, "generic") > ONE) == (point == 255)
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") <= ONE
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


def test_a_norm_of_16_bits_has_the_scale_that_htp_computes_it_in(tmp_path: Path) -> None:
    graph = layer(
        "LpNormalization",
        {"axis": 1},
        Tensor("x", "uint16", (2, 24), None, P(1e-4, 2**15)),
        Tensor("y", "uint16", None, None, P(5e-6, 2**15)),
    )
    feed = {"x": RNG.integers(0, 2**16, (2, 24)).astype(np.uint16)}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 60_000
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 16


def runs_wholly(graph: Graph, path: Path, feed: Mapping[str, Any], target: str) -> bool:
    """Whether HTP runs all of a graph that is fitted to a target, as it is said before, and rightly."""
    fitted = normalize(graph, target)[0]
    found, exact = htp(fitted, path, feed), evaluate(graph, feed)
    is_whole = all(
        item.by == "HTP" for item in layers(ModelFile(path, "sm8650")) if item.type not in ("QuantizeLinear", "DequantizeLinear")
    )
    assert is_whole == (not any(lacks(fitted, op) for op in fitted.ops if op.kind not in ("Quantize", "Dequantize")))
    for name, value in exact.items():
        limit = ONE if value.dtype.kind in "iu" else 1e-3 * np.ptp(value)
        assert np.abs(found[name].astype(np.float64) - value).max() <= limit
    return is_whole


@pytest.mark.parametrize("kind", ["Acosh", "Asinh", "Atanh", "Celu", "Cosh", "Erf", "Shrink", "Sinh", "Softsign"])
def test_functions_that_htp_lacks_become_others(kind: str, tmp_path: Path) -> None:
    low, high = {"Acosh": (1.0, 8.0), "Atanh": (-0.95, 0.95)}.get(kind, (-4.0, 4.0))
    attributes = {"Celu": {"alpha": 0.5}, "Shrink": {"lambd": 0.5, "bias": 0.1}}.get(kind, {})
    _, quantization = choose_quantization("onnxruntime_affine", min(low, 0.0), high, 8, dtype="uint8")
    data = Tensor("x", "uint8", (1, 256), None, quantization)
    codes = np.arange(256, dtype=np.uint8)[None]
    codes = np.maximum(codes, int(np.ceil(low / quantization.step)) + quantization.point).astype(np.uint8)
    real = apply(kind, quantization.step * (codes.astype(np.float64) - quantization.point), **attributes)
    _, ends = choose_quantization("onnxruntime_affine", min(real.min(), 0.0), max(real.max(), 0.0), 8, dtype="uint8")
    graph = layer(kind, attributes, data, Tensor("y", "uint8", None, None, ends))
    assert not runs_wholly(graph, tmp_path / "m.onnx", {"x": codes}, "portable")
    assert runs_wholly(graph, tmp_path / "m.onnx", {"x": codes}, "qnn-htp")


def test_a_gemm_with_a_float_result_has_a_float_bias(tmp_path: Path) -> None:
    """HTP takes no bias of int32 next to it."""
    weights = Tensor("w", "int8", (5, 8), RNG.integers(-127, 128, (5, 8)).astype(np.int8), P(0.01, 0))
    bias = Tensor("b", "int32", (5,), RNG.integers(-900, 900, (5,)).astype(np.int32), P(0.0005, 0))
    graph = layer("Gemm", {}, Tensor("x", "uint8", (3, 8), None, P(0.05, 120)), Tensor("y", "float32", None), weights, bias)
    feed = {"x": RNG.integers(0, 256, (3, 8)).astype(np.uint8)}
    assert not runs_wholly(graph, tmp_path / "m.onnx", feed, "portable")
    assert runs_wholly(graph, tmp_path / "m.onnx", feed, "qnn-htp")


@pytest.mark.parametrize("axis", [-1, -3])
def test_a_layer_normalization_has_a_float_scale_and_one_axis(axis: int, tmp_path: Path) -> None:
    """HTP takes no scale of int8, and normalizes along the last axis alone."""
    sizes = (4, 6, 6)[axis:]
    scale = Tensor("s", "int8", sizes, RNG.integers(50, 128, sizes).astype(np.int8), P(0.01, 0))
    tensors = [image("uint8", 120), scale, Tensor("real", "float32", sizes), image("uint8", 100, "y", None, 0.03)]
    ops = (Op("Dequantize", ("s",), ("real",)), Op("LayerNormalization", ("x", "real"), ("y",), {"axis": axis}))
    graph = infer(Graph("normalized", {item.name: item for item in tensors}, ops, ("x",), ("y",)))
    assert not runs_wholly(graph, tmp_path / "m.onnx", {"x": CODES}, "portable")
    assert runs_wholly(graph, tmp_path / "m.onnx", {"x": CODES}, "qnn-htp")


@pytest.mark.parametrize("pad", [0, 1])
def test_averages_over_three_dimensions_count_no_padding(pad: int, tmp_path: Path) -> None:
    """HTP computes them wrongly where count_include_pad is set, also without a padding."""
    window = {"kernel_shape": (3, 3, 3), "strides": (1, 1, 1), "pads": (pad,) * 6, "count_include_pad": 1, "data_format": "channels_first"}
    data, result = image("uint8", 3, shape=(1, 4, 8, 8, 8), scale=0.02), image("uint8", 5, "y", None, 0.01)
    graph, feed = layer("AveragePool", window, data, result), {"x": RNG.integers(0, 256, (1, 4, 8, 8, 8)).astype(np.uint8)}
    assert steps(graph, tmp_path / "m.onnx", feed) > 20
    if pad:
        with pytest.raises(qconvert.QConvertError, match="AveragePool of uint8 data"):
            refuse_violations(normalize(graph, "qnn-htp")[0], target_named("qnn-htp"))
    else:
        assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


@pytest.mark.parametrize("group", [1, 4])
def test_a_transposed_convolution_has_groups_but_no_dilations(group: int, tmp_path: Path) -> None:
    weights = RNG.integers(-127, 128, (8, 4 // group, 3, 3)).astype(np.int8)
    attributes = {**SPACE, "pads": (2, 1, 2, 1), "dilations": (2, 2), "strides": (2, 1), "output_padding": (0, 0), "group": group}
    stored = Tensor("w", "int8", weights.shape, weights, P(0.01, 0))
    graph = layer("ConvTranspose", attributes, image("uint8", 128), image("uint8", 120, "y", None, 0.1), stored)
    assert not runs_wholly(graph, tmp_path / "m.onnx", {"x": CODES}, "portable")
    assert runs_wholly(graph, tmp_path / "m.onnx", {"x": CODES}, "qnn-htp")
    (conv,) = (op for op in load(tmp_path / "m.onnx").ops if op.kind == "ConvTranspose")
    assert conv["group"] == group and load(tmp_path / "m.onnx")[conv.inputs[1]].shape == (8, 4 // group, 5, 5)


def test_a_depthwise_convolution_with_a_bias_of_64_bits_has_unsigned_data(tmp_path: Path) -> None:
    """TFLite's have such biases next to int16, and HTP takes no depthwise convolution of int16."""
    steps_of_weights = np.full(4, 0.02, np.float32)
    weights = Tensor(
        "w", "int8", (4, 1, 3, 3), RNG.integers(-127, 128, (4, 1, 3, 3)).astype(np.int8), Quantization.per_axis(steps_of_weights, 0)
    )
    bias = Tensor("b", "int64", (4,), np.array([-900, 5, 70, 4000]), Quantization.per_axis(steps_of_weights * np.float32(1e-4), 0))
    graph = layer("Conv", {**SPACE, "group": 4}, image("int16", 0, scale=1e-4), image("int16", 0, "y", None, 1e-3), weights, bias)
    feed = {"x": RNG.integers(-(2**15), 2**15, (1, 4, 6, 6)).astype(np.int16)}
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 2


@pytest.mark.parametrize("kind", ["LRN", "GroupNormalization"])
def test_normalizations_of_16_bits_are_lowered_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    graph = make_graph(kind, "int16", np.random.default_rng(0), target_named("qnn-htp").kernels)
    if kind == "LRN":
        with pytest.raises(qconvert.QConvertError, match="LRN of uint16 data"):
            refuse_violations(normalize(graph, "qnn-htp")[0], target_named("qnn-htp"))
    else:
        feed = random_operands(graph, kind, np.random.default_rng(0))
        assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 512


@pytest.mark.parametrize(("kind", "attributes", "scale"), [("Log", {}, 2e-5), ("LogSoftmax", {"axis": 1}, 1e-5), ("Atan", {}, 1e-6)])
def test_functions_of_16_bits_do_not_wrap_around(kind: str, attributes: dict[str, Any], scale: float, tmp_path: Path) -> None:
    """HTP computes them in integers that do not hold results far beyond the range of 16 bits; the target rounds to a larger range first."""
    point = 65535 if kind == "LogSoftmax" else 1000
    data = Tensor("x", "uint16", (64, 100), None, P(1e-3, 2**15 if kind != "Log" else 0))
    graph = layer(kind, attributes, data, Tensor("y", "uint16", None, None, P(scale, point)))
    feed = {"x": np.random.default_rng(0).integers(1, 2**16, (64, 100)).astype(np.uint16)}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 10_000
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= 256  # of 65,536


def test_a_log_softmax_of_uint8_below_its_range_does_not_wrap_around(tmp_path: Path) -> None:
    data, result = Tensor("x", "uint8", (8, 20), None, P(0.05, 0)), Tensor("y", "uint8", None, None, P(0.001, 255))
    graph = layer("LogSoftmax", {"axis": 1}, data, result)
    feed = {"x": np.random.default_rng(0).integers(0, 256, (8, 20)).astype(np.uint8)}
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") == 255
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


@pytest.mark.parametrize("kind", ["SquaredDifference", "ReduceL2", "RMSNormalization"])
def test_squares_beyond_float16_are_divided_first(kind: str, tmp_path: Path) -> None:
    """Squares above 65504 are none of float16: data are divided by a power of 2 before, and results multiplied after, with their scales."""
    data, codes = image("uint8", 0, "x", (16, 16), 3.0), RNG.integers(0, 256, (16, 16)).astype(np.uint8)
    more: tuple[Tensor, ...] = (replace(data, name="other"),)
    attributes: dict[str, Any] = {}
    feed, scale = {"x": codes, "other": codes.T.copy()}, 2300.0
    if kind == "ReduceL2":
        more, attributes, scale = (Tensor("axes", "int64", (1,), np.array([1])),), {"keepdims": 1}, 12.0
    elif kind == "RMSNormalization":
        more, attributes = (Tensor("s", "float32", (16,), np.ones(16, np.float32)),), {"axis": -1, "epsilon": 1e-5}
        scale = 0.02
    feed = {name: value for name, value in feed.items() if name == "x" or kind == "SquaredDifference"}
    graph = layer(kind, attributes, data, Tensor("y", "uint8", None, None, P(scale, 0)), *more)
    assert steps(graph, tmp_path / "m.onnx", feed, "portable") > 20
    assert steps(graph, tmp_path / "m.onnx", feed, "qnn-htp") <= ONE


def test_loops_without_a_number_of_turns_are_written(fixtures: Path, tmp_path: Path) -> None:
    report = qconvert.convert(fixtures / "recurrent" / "while_float.tflite", tmp_path / "loop.onnx", target="qnn-htp")
    assert report.operators["Loop"] == 1


def test_the_audit_names_what_no_other_form_avoids(tmp_path: Path) -> None:
    """0 to a negative power, and products whose second data are beyond int8 where they are less their zero point."""
    power = Tensor("e", "float32", (), np.float32(-1).reshape(()))
    inverse = layer("Pow", {}, Tensor("x", "uint8", (1, 256), None, P(0.1, 3)), Tensor("y", "uint8", None, None, P(0.1, 0)), power)
    assert steps(inverse, tmp_path / "m.onnx", {"x": np.arange(256, dtype=np.uint8)[None]}, "qnn-htp") == 255
    for point, largest in ((128, ONE), (0, 32)):
        first, second = image("uint8", 128, "a", (1, 8, 256), 0.02), image("uint8", point, "b", (1, 256, 8), 0.02)
        product, feed = pair("MatMul", first, second, P(0.032, 128))
        product = infer(product)
        found = steps(product, tmp_path / "m.onnx", feed, "qnn-htp")
        named = ["wrongly" in line.reason for line in qconvert.audit(product, "qnn-htp").lines if line.kind == "MatMul"]
        assert found <= largest and (found > ONE) == (point == 0) and named == [point == 0]
    assert any("wrongly: 0 to a negative power" in line.reason for line in qconvert.audit(inverse, "qnn-htp").lines)
