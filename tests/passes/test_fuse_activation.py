"""fuse_activation: activations move into operators and vanish after quantizations; ambiguous bounds stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from passes.graphs import CONV, applied, assert_equal, constant, make, q, quantized_conv, random_integers

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate

BOUNDS = {"relu": (0.0, None), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}


def clip(name: str, result: str, bounds: tuple[float | None, float | None]) -> tuple[Op, list[Tensor]]:
    limits = [constant(f"{result}_{i}", np.array(b, np.float32)) for i, b in enumerate(bounds) if b is not None]
    names = tuple(f"{result}_{i}" if b is not None else "" for i, b in enumerate(bounds))
    return Op("Clip", (name, *names), (result,)), limits


def after_conv(bounds: tuple[float | None, float | None], quantization: Quantization) -> Graph:
    """A quantized convolution with a Clip after it with the same quantization."""
    graph = quantized_conv()
    op, limits = clip("y", "z", bounds)
    y = replace(graph["y"], quantization=quantization, shape=None)
    tensors = [*graph.tensors.values(), y, replace(y, name="z"), *limits]
    return make([*graph.ops, op], tensors, "x", "z")


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("activation", list(BOUNDS))
def test_a_clip_of_integers_behind_a_convolution(activation: str) -> None:
    graph = after_conv(BOUNDS[activation], q(0.07, -20))
    changed, notes = applied(graph, "fuse_activation")
    (conv,) = changed.ops
    assert (conv.kind, conv["activation"], conv.outputs) == ("Conv", activation, ("z",))
    assert notes == ("1 Relu and Clip operators are fused into the operators before them",)
    x = random_integers((1, 3, 5, 5), "int8")
    assert_equal(graph, changed, {"x": x})
    assert np.array_equal(evaluate(graph, {"x": x})["z"], evaluate(changed, {"x": x})["z"])


@pytest.mark.parametrize(("bounds", "scale"), [((0.0, 6.0), 4.0), ((-1.0, 1.0), 0.4), ((0.0, 6.0), 6 / 2.5)])
def test_a_bound_on_a_tie_stays(bounds: tuple[float, float], scale: float) -> None:
    """6 / 4 = 1.5 is 2 either way, but 1 / 0.4 = 2.5 is 2 to even and 3 away from zero."""
    changed, _ = applied(after_conv(bounds, q(scale, 0)), "fuse_activation")
    half = np.float32(bounds[1]) / np.float32(scale)
    differs = np.rint(half) != np.floor(half + np.float32(0.5))
    assert [op.kind for op in changed.ops] == (["Conv", "Clip"] if differs else ["Conv"])
    assert differs == (scale != 4.0)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Conv", "AveragePool", "MaxPool"])
def test_floats(kind: str) -> None:
    rng = np.random.default_rng(1)
    shape = (1, 2, 4, 4) if kind in ("Conv", "AveragePool", "MaxPool") else (4, 4)
    other = rng.normal(0, 4, (3, 2, 3, 3) if kind == "Conv" else (4, 4)).astype(np.float32)
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    attributes = {"Conv": CONV, "AveragePool": window, "MaxPool": window}.get(kind, {})
    inputs = ("x",) if kind in ("AveragePool", "MaxPool") else ("x", "c")
    op, limits = clip("a", "y", (0.0, 6.0))
    graph = make([Op(kind, inputs, ("a",), attributes), op], [Tensor("x", "float32", shape), constant("c", other), *limits], "x", "y")
    changed, _ = applied(graph, "fuse_activation")
    assert [(op.kind, op["activation"]) for op in changed.ops] == [(kind, "relu6")]
    assert_equal(graph, changed, {"x": rng.normal(0, 4, shape).astype(np.float32)})


def test_a_concat_carries_no_activation() -> None:
    ops = [Op("Concat", ("x", "x"), ("a",), {"axis": 0}), Op("Relu", ("a",), ("y",))]
    graph = make(ops, [Tensor("x", "float32", (4,))], "x", "y")
    assert applied(graph, "fuse_activation") == (graph, ())


def test_a_result_that_others_read_stays() -> None:
    ops = [Op("Add", ("x", "x"), ("a",)), Op("Relu", ("a",), ("y",)), Op("Neg", ("a",), ("z",))]
    graph = make(ops, [Tensor("x", "float32", (4,))], "x", "y z")
    assert applied(graph, "fuse_activation") == (graph, ())
    graph = make(ops[:2], [Tensor("x", "float32", (4,))], "x", "y a")
    assert applied(graph, "fuse_activation") == (graph, ())


def test_only_one_activation_is_fused() -> None:
    first, limits = clip("b", "y", (0.0, 6.0))
    graph = make([Op("Add", ("x", "x"), ("b",), {"activation": "relu"}), first], [Tensor("x", "float32", (4,)), *limits], "x", "y")
    assert applied(graph, "fuse_activation") == (graph, ())


@pytest.mark.onnxruntime
def test_limits_that_follow_each_other_are_one() -> None:
    """Quantization-aware training: a reduced range, what an activation leaves with the quantization, and the range once more."""
    clips = [clip(f"t{index}", f"t{index + 1}", bounds) for index, bounds in enumerate([(None, 6.79), (0.0, 5.976), (None, 6.79)])]
    ops = [Op("Mul", ("x", "x"), ("t0",)), *(op for op, _ in clips), Op("Relu", ("t3",), ("t4",)), Op("Neg", ("t2",), ("y",))]
    quantization = q(0.0818590298295021, -84)
    tensors = [Tensor("x", "int8", (1, 256), None, q(0.1)), *(Tensor(f"t{index}", "int8", None, None, quantization) for index in range(5))]
    tensors += [Tensor("y", "int8", None, None, quantization), *(limit for _, limits in clips for limit in limits)]
    whole = make(ops[:5], tensors, "x", "t4")
    changed, notes = applied(whole, "fuse_activation")
    assert [op.kind for op in changed.ops] == ["Mul"] and changed.ops[0]["activation"] == "relu6"
    assert notes[0] == "3 Relu and Clip operators are merged with the one after them"
    feed = {"x": np.arange(-128, 128).astype(np.int8)[None]}
    assert_equal(whole, changed, feed)
    read = make(ops, tensors, "x", "t4 y")  # somebody else reads what is between the second and the third
    changed, _ = applied(read, "fuse_activation")
    assert [op.kind for op in changed.ops] == ["Mul", "Clip", "Neg"]
    assert_equal(read, changed, feed)


def test_limits_that_leave_nothing_stay() -> None:
    clips = [clip("x", "a", (None, 1.0)), clip("a", "y", (2.0, None))]
    graph = make([op for op, _ in clips], [Tensor("x", "float32", (4,)), *(limit for _, limits in clips for limit in limits)], "x", "y")
    assert applied(graph, "fuse_activation") == (graph, ())


VALUES = np.concatenate([np.linspace(-9, 9, 1001), [0, -0.0, 6, 5.99999, 1e30, -1e30]]).astype(np.float32)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("bounds", "dtype", "scale", "zero_point", "implied"),
    [
        ((0.0, None), "uint8", 0.02, 0, True),
        ((0.0, None), "int8", 0.02, -128, True),
        ((0.0, None), "uint8", 0.02, 1, False),
        ((0.0, 6.0), "uint8", 6 / 255.1, 0, True),
        ((0.0, 6.0), "uint8", 0.024, 0, False),
        ((None, 6.0), "int8", 0.03, 100, True),
        ((-1.0, 1.0), "int8", 1 / 128.1, 0, True),
        ((0.0, 3.4e38), "uint8", 0.02, 0, True),
        ((0.05, None), "uint8", 0.02, 0, False),
    ],
)  # fmt: skip
def test_what_the_quantization_implies(
    bounds: tuple[float | None, float | None], dtype: str, scale: float, zero_point: int, implied: bool
) -> None:
    op, limits = clip("a", "b", bounds)
    tensors = [Tensor("x", "float32", VALUES.shape), Tensor("y", dtype, None, None, q(scale, zero_point)), *limits]
    graph = make([Op("Neg", ("x",), ("a",)), op, Op("Quantize", ("b",), ("y",))], tensors, "x", "y")
    changed, _ = applied(graph, "fuse_activation")
    assert [op.kind for op in changed.ops] == (["Neg", "Quantize"] if implied else ["Neg", "Clip", "Quantize"])
    assert_equal(graph, changed, {"x": VALUES})


def test_every_reader_must_imply_it() -> None:
    quantizations = {"y": q(0.02, 0), "z": q(0.02, 5)}
    tensors = [
        Tensor("x", "float32", (4,)),
        *(Tensor(name, "uint8", None, None, quantization) for name, quantization in quantizations.items()),
    ]
    ops = [Op("Relu", ("x",), ("a",)), Op("Quantize", ("a",), ("y",)), Op("Quantize", ("a",), ("z",))]
    graph = make(ops, tensors, "x", "y z")
    assert applied(graph, "fuse_activation") == (graph, ())


@pytest.mark.onnxruntime
def test_an_average_that_rounds_like_its_source_stays() -> None:
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    tensors = [Tensor("x", "int8", (1, 2, 4, 4), None, q(0.1)), *(Tensor(name, "int8", None, None, q(0.1)) for name in "ay")]
    for ties, kinds in (("ties_away", ["AveragePool", "Relu"]), ("", ["AveragePool"])):
        graph = make([Op("AveragePool", ("x",), ("a",), {**window, "arithmetic": ties}), Op("Relu", ("a",), ("y",))], tensors, "x", "y")
        changed, _ = applied(graph, "fuse_activation")
        assert [op.kind for op in changed.ops] == kinds
        assert_equal(graph, changed, {"x": random_integers((1, 2, 4, 4), "int8")})


def test_a_relu_behind_the_second_part_of_a_split_stays() -> None:
    """Found by random graphs: the first part, which nobody reads, was looked up among what is read."""
    parts = [Tensor(name, "float32", (1, 2)) for name in ("a", "b")]
    sizes = constant("sizes", np.array([2, 2], np.int64))
    ops = [Op("Split", ("x", "sizes"), ("a", "b"), {"axis": 1}), Op("Relu", ("b",), ("y",))]
    graph = make(ops, [Tensor("x", "float32", (1, 4)), sizes, *parts], "x", "y")
    assert applied(graph, "fuse_activation") == (graph, ())


def test_a_relu_behind_an_operator_whose_type_nobody_knows_stays() -> None:
    """Without it a Quantize would read what is perhaps no real number."""
    odd = {"format": "onnx", "domain": "own", "op_type": "Odd", "version": 1}
    ops = [Op("Opaque", ("x",), ("a",), odd), Op("Relu", ("a",), ("b",)), Op("Quantize", ("b",), ("y",))]
    tensors = [Tensor("x", "float32", (3,)), Tensor("a", "unknown", (3,)), Tensor("y", "uint8", (3,), None, q(0.1))]
    graph = make(ops, tensors, "x", "y")
    assert applied(graph, "fuse_activation") == (graph, ())


def test_a_relu_behind_a_concat_stays() -> None:
    """TFLite's CONCATENATION states an activation, but no kernel computes it."""
    graph = make([Op("Concat", ("x", "x"), ("a",), {"axis": 1}), Op("Relu", ("a",), ("y",))], [Tensor("x", "float32", (1, 4))], "x", "y")
    assert applied(graph, "fuse_activation") == (graph, ())
