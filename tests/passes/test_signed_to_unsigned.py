"""signed_to_unsigned and unsigned_to_signed: the same float values in the other storage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from passes.graphs import CONV, applied, constant, make, outputs, q, quantized_conv, random_integers

from qconvert import Graph, Op, Tensor, diff, load
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.rules.validation import validate

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
HALF = {"int8": 128, "int16": 2**15}
SCALES = (0.02, 0.004, 0.013, 0.0005)


def assert_shifted(before: Graph, after: Graph, x: Array) -> None:
    """onnxruntime and the exact evaluation give the same float values when the input is shifted too."""
    half = HALF[x.dtype.name]
    moved = (x.astype(np.int64) + half).astype("u" + x.dtype.name)
    (a,), (b,) = outputs(before, {"x": x}), outputs(after, {"x": moved})
    assert b.dtype == "u" + a.dtype.name
    assert np.array_equal(a.astype(np.int64) + half, b)
    exact = evaluate(after, {"x": moved})[after.outputs[0]]
    assert np.array_equal(evaluate(before, {"x": x})[before.outputs[0]].astype(np.int64) + half, exact)


def network(dtype: str = "int8") -> Graph:
    """Operators that look at stored integers in some way: padding, a maximum, limits, a lookup, an activation."""
    quantization = q(0.05, -7)
    rng = np.random.default_rng(7)

    def tensor(name: str) -> Tensor:
        return Tensor(name, dtype, None, None, quantization)

    tensors = [
        Tensor("x", dtype, (1, 4, 6, 6), None, quantization),
        *(tensor(name) for name in "a b c d e f y".split()),
        constant("pads", np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int64)),
        constant("filler", np.array(33, dtype), quantization),
        constant("low", np.array(-1.3, np.float32)),
        constant("high", np.array(2.1, np.float32)),
        constant("w", rng.integers(-127, 128, (4, 1, 3, 3)).astype(np.int8), q(0.01)),
        constant("addend", random_integers((1, 4, 1, 1), dtype), quantization),
        constant("order", np.array([2, 0, 1, 3], np.int64)),
    ]
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 1, 1), "data_format": "channels_first"}
    ops = [
        Op("Pad", ("x", "pads", "filler"), ("a",)),
        Op("MaxPool", ("a",), ("b",), window),
        Op("Clip", ("b", "low", "high"), ("c",)),
        Op("Conv", ("c", "w"), ("d",), {**CONV, "group": 4, "activation": "relu6"}),
        Op("Add", ("d", "addend"), ("e",)),
        Op("Gather", ("e", "order"), ("f",), {"axis": 1}),
        Op("AveragePool", ("f",), ("y",), {**window, "pads": (0, 0, 0, 0), "arithmetic": ""}),
    ]
    return make(ops, tensors, "x", "y")


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("graph", [quantized_conv(), quantized_conv(scales=SCALES), network()], ids=["conv", "per axis", "network"])
def test_8_bits_and_back(graph: Graph) -> None:
    changed, (note,) = applied(graph, "signed_to_unsigned")
    assert not {t.dtype for t in changed.tensors.values() if t.is_quantized} & {"int8"}
    assert "int8 as uint8" in note
    assert [op.kind for op in changed.ops] == [op.kind for op in graph.ops]
    assert_shifted(graph, changed, random_integers(graph["x"].shape, "int8"))  # type: ignore[arg-type]
    back, _ = applied(changed, "unsigned_to_signed")
    assert diff(graph, back) == []
    assert applied(back, "unsigned_to_signed") == (back, ())


@pytest.mark.onnxruntime
def test_16_and_4_bits() -> None:
    nibbles = np.arange(-8, 8).astype(np.int8).reshape(4, 4).astype(ml_dtypes.int4)
    tensors = [
        Tensor("x", "int16", (2, 4), None, q(0.001, -100)),
        constant("w", nibbles, q(0.25)),
        Tensor("y", "int16", None, None, q(0.002, 55)),
    ]
    graph = make([Op("MatMul", ("x", "w"), ("y",))], tensors, "x", "y")
    changed, (note,) = applied(graph, "signed_to_unsigned")
    assert {name: tensor.dtype for name, tensor in changed.tensors.items()} == {"x": "uint16", "w": "uint4", "y": "uint16"}
    assert "(int16 as uint16, int4 as uint4)" in note
    assert changed["w"].data is not None and changed["w"].data.astype(int).ravel().tolist() == list(range(16))
    assert_shifted(graph, changed, random_integers((2, 4), "int16"))
    assert diff(graph, applied(changed, "unsigned_to_signed")[0]) == []


@pytest.mark.formats
@pytest.mark.parametrize("name", ["tiny_kws_dscnn_int8", "tiny_resnet_cifar10_int8", "tiny_ad_toycar_int8"])
def test_whole_models(name: str) -> None:
    graph = load(FIXTURES / f"{name}.tflite")
    changed, _ = applied(graph, "signed_to_unsigned")
    source, result = graph.inputs[0], graph.outputs[0]
    x = random_integers(tuple(1 if isinstance(size, str) else size for size in graph[source].shape or ()), "int8")
    a = evaluate(graph, {source: x})[result]
    b = evaluate(changed, {source: (x.astype(int) + 128).astype(np.uint8)})[result]
    assert b.dtype == np.uint8 and np.array_equal(a.astype(int) + 128, b)


def test_an_operator_outside_the_set_keeps_its_integers() -> None:
    quantization = q(0.1, 3)
    ops = [
        Op("Relu", ("x",), ("a",)),
        Op("Opaque", ("a",), ("b",), {"format": "onnx", "domain": "ai.custom", "op_type": "Twist", "version": 1}),
        Op("Relu", ("b",), ("y",)),
    ]
    graph = make(ops, [Tensor(name, "int8", (4,), None, quantization) for name in "xaby"], "x", "y")
    changed, _ = applied(graph, "signed_to_unsigned")
    assert [op.kind for op in changed.ops] == ["Relu", "Requantize", "Opaque", "Requantize", "Relu"]
    assert [changed[name].dtype for name in "xaby"] == ["uint8", "int8", "int8", "uint8"]


def test_an_int64_bias_keeps_its_data_signed() -> None:
    """Only int16 data may have one (TFLite's 16x8 scheme)."""
    graph = quantized_conv()
    bias = constant("b", np.array([1, 2, 3, 4], np.int64), q(float(np.float32(0.001) * np.float32(0.02))))
    sides = {name: replace(graph[name], dtype="int16", quantization=q(0.001)) for name in "xy"}
    wide = replace(graph, tensors={**graph.tensors, **sides, "b": bias})
    validate(wide)
    changed, _ = applied(wide, "signed_to_unsigned")
    assert changed is wide
