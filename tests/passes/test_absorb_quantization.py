"""absorb_quantization: every pattern that exporters write, by itself; outputs in onnxruntime stay the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from passes.graphs import CONV, applied, assert_equal, constant, make, q, random_integers

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.graph import Array

pytestmark = pytest.mark.onnxruntime

POOL = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "data_format": "channels_first"}


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def stored(name: str, scale: float, zero: int = 0, dtype: str = "int8") -> Tensor:
    return Tensor(name, dtype, None, None, q(scale, zero))


def image(name: str = "x", scale: float = 0.05, zero: int = 3) -> Tensor:
    return Tensor(name, "int8", (1, 3, 6, 6), None, q(scale, zero))


def weights(scales: Quantization | None = None, seed: int = 1) -> Tensor:
    return constant("w", random_integers((4, 3, 3, 3), "int8", seed), scales or q(0.02))


def dq(source: str) -> Op:
    return Op("Dequantize", (source,), (f"{source}_real",))


def same(graph: Graph, changed: Graph, seed: int = 0) -> None:
    feeds: dict[str, Array] = {}
    for number, name in enumerate(graph.inputs):
        tensor, rng = graph[name], np.random.default_rng(seed + number)
        shape = tensor.static_shape
        assert shape is not None
        feeds[name] = random_integers(shape, tensor.dtype, seed) if "int" in tensor.dtype else rng.normal(size=shape).astype(np.float32)
    assert_equal(graph, changed, feeds)


def conv(*following: Op, tensors: tuple[Tensor, ...] = (), outputs: str = "y", bias: Tensor | None = None) -> Graph:
    """x, w -> Dequantize -> Conv -> c_real -> further operators."""
    inputs = ("x_real", "w_real", *(["b_real"] if bias else []))
    ops = [dq("x"), dq("w"), *([dq("b")] if bias else []), Op("Conv", inputs, ("c",), CONV), *following]
    return make(ops, [image(), weights(), *([bias] if bias else []), *tensors], "x", outputs)


@pytest.mark.cross_section
def test_a_convolution_between_its_quantizations() -> None:
    product = float(np.float32(0.05) * np.float32(0.02))
    bias = constant("b", np.array([900, -800, 7, 0], np.int32), q(product))
    graph = conv(Op("Quantize", ("c",), ("y",)), tensors=(stored("y", 0.4, -7),), bias=bias)
    changed, notes = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv"] and changed.ops[0].inputs == ("x", "w", "b")
    assert notes == ("1 operator is quantized; of 4 Quantize and Dequantize 0 are left",)
    same(graph, changed)
    assert applied(changed, "absorb_quantization")[0] is changed


def test_a_bias_on_another_quantization_stays_real() -> None:
    bias = constant("b", np.array([900, -800, 7, 0], np.int32), q(0.002))
    graph = conv(Op("Quantize", ("c",), ("y",)), tensors=(stored("y", 0.4),), bias=bias)
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Dequantize", "Conv"] and changed.ops[1].inputs == ("x", "w", "b_real")
    same(graph, changed)


def test_a_result_that_others_read_stays_real() -> None:
    graph = conv(Op("Quantize", ("c",), ("y",)), Op("Relu", ("c",), ("z",)), tensors=(stored("y", 0.4),), outputs="y z")
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv", "Quantize", "Relu"] and changed["c"].dtype == "float32"
    same(graph, changed)


@pytest.mark.parametrize("zero", [-128, 0, 127])
def test_a_relu_before_the_quantization(zero: int) -> None:
    """Implied where the quantization begins at zero, an activation where it does not."""
    graph = conv(Op("Relu", ("c",), ("r",)), Op("Quantize", ("r",), ("y",)), tensors=(stored("y", 0.4, zero),))
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv"] and changed.ops[0]["activation"] == ("" if zero == -128 else "relu")
    same(graph, changed)


def test_a_bound_that_is_a_rounding_tie_stays() -> None:
    """6 / 12 is half a step: kernels that round to even and away from zero would clip at different integers."""
    limits = (constant("low", np.float32(0)), constant("high", np.float32(6)))
    graph = conv(Op("Clip", ("c", "low", "high"), ("r",)), Op("Quantize", ("r",), ("y",)), tensors=(stored("y", 12.0), *limits))
    changed, _ = applied(graph, "absorb_quantization")
    assert "Clip" in kinds(changed) and "Quantize" in kinds(changed)
    same(graph, changed)


def test_the_quantization_is_found_behind_movements() -> None:
    sizes = constant("s", np.array([1, -1], np.int64))
    following = [
        Op("MaxPool", ("c",), ("m",), POOL),
        Op("Transpose", ("m",), ("t",), {"perm": (0, 2, 3, 1)}),
        Op("Reshape", ("t", "s"), ("f",)),
    ]
    graph = conv(*following, Op("Quantize", ("f",), ("y",)), tensors=(stored("y", 0.4, 5), sizes))
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv", "MaxPool", "Transpose", "Reshape"]
    assert all(changed[op.outputs[0]].dtype == "int8" for op in changed.ops)
    same(graph, changed)


def test_two_quantizations_behind_one_value_keep_it_real() -> None:
    graph = conv(
        Op("Quantize", ("c",), ("y",)), Op("Quantize", ("c",), ("z",)), tensors=(stored("y", 0.4), stored("z", 0.3)), outputs="y z"
    )
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv", "Quantize", "Quantize"]
    same(graph, changed)


def test_equal_conversions_become_one() -> None:
    ops = [Op("Quantize", ("f",), ("a",)), Op("Quantize", ("f",), ("b",)), dq("a"), dq("b"), Op("Add", ("a_real", "b_real"), ("c",))]
    graph = make(
        [*ops, Op("Quantize", ("c",), ("y",))],
        [Tensor("f", "float32", (1, 20)), *(stored(n, 0.1, 2) for n in "ab"), stored("y", 0.2)],
        "f",
        "y",
    )
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Quantize", "Add"] and changed.ops[1].inputs == ("a", "a")
    same(graph, changed)
    narrow = Tensor("b", "int8", None, None, replace(q(0.1, 2), quant_max=20))  # saturates earlier: another conversion
    changed, _ = applied(graph.evolve(tensors=[narrow]), "absorb_quantization")
    assert kinds(changed) == ["Quantize", "Quantize", "Add"] and changed.ops[2].inputs == ("a", "b")


def test_real_weights_behind_a_quantize_become_the_integers() -> None:
    real = constant("f", np.random.default_rng(2).normal(size=(4, 3, 3, 3)).astype(np.float32))
    w = Tensor("w", "int8", None, None, Quantization.per_axis([0.01, 0.02, 0.03, 0.04], 0))
    ops = [Op("Quantize", ("f",), ("w",)), dq("w"), dq("x"), Op("Conv", ("x_real", "w_real"), ("c",), CONV), Op("Quantize", ("c",), ("y",))]
    graph = make(ops, [image(), real, w, stored("y", 0.4)], "x", "y")
    changed, _ = applied(graph, "absorb_quantization")
    data = changed["w"].data
    assert kinds(changed) == ["Conv"] and data is not None and real.data is not None
    assert data[0, 0, 0, 0] == np.clip(np.rint(real.data[0, 0, 0, 0] / np.float32(0.01)), -128, 127)
    same(graph, changed)


def test_weights_turn_before_their_dequantize() -> None:
    w = constant("w", random_integers((5, 8), "int8"), Quantization.per_axis([0.01, 0.02, 0.03, 0.04, 0.05], 0))
    ops = [
        dq("w"),
        Op("Transpose", ("w_real",), ("t",), {"perm": (1, 0)}),
        dq("x"),
        Op("MatMul", ("x_real", "t"), ("c",)),
        Op("Quantize", ("c",), ("y",)),
    ]
    graph = make(ops, [Tensor("x", "int8", (2, 8), None, q(0.1, 1)), w, stored("y", 0.4)], "x", "y")
    changed, _ = applied(graph, "absorb_quantization")
    found = changed["w"]
    assert kinds(changed) == ["MatMul"] and found.shape == (8, 5)
    assert found.quantization is not None and found.quantization.axis == 1
    same(graph, changed)


@pytest.mark.parametrize(("value", "filled"), [(0.0, False), (1.0, True), (0.33, None)])
def test_padding_is_put_on_the_quantization_if_it_is_a_number_of_it(value: float, filled: bool | None) -> None:
    tensors = [
        Tensor("x", "int8", (1, 6), None, q(0.25, 4)),
        constant("p", np.array([0, 1, 0, 2], np.int64)),
        constant("v", np.float32(value)),
    ]
    ops = [dq("x"), Op("Pad", ("x_real", "p", "v"), ("r",)), Op("Quantize", ("r",), ("y",))]
    graph = make(ops, [*tensors, stored("y", 0.25, 4)], "x", "y")
    changed, _ = applied(graph, "absorb_quantization")
    if filled is None:
        assert kinds(changed) == ["Dequantize", "Pad", "Quantize"]
    else:
        pad = changed.ops[0]
        assert kinds(changed) == ["Pad"] and len(pad.inputs) == 2 + filled
        assert not filled or changed[pad.inputs[2]].data == 8  # 1.0 / 0.25 + 4
    same(graph, changed)


def test_what_fills_gaps_is_moved_with_the_data() -> None:
    """InteriorPad and SparseToDense have to be given it, real zero too."""
    for value in (0.0, 1.0):
        tensors = [Tensor("x", "int8", (2, 3), None, q(0.25, 4)), constant("v", np.float32(value))]
        ops = [dq("x"), Op("InteriorPad", ("x_real", "v"), ("r",), {"low": (0, 1), "high": (1, 0), "interior": (1, 0)})]
        graph = make([*ops, Op("Quantize", ("r",), ("y",))], [*tensors, stored("y", 0.25, 4)], "x", "y")
        changed, _ = applied(graph, "absorb_quantization")
        assert kinds(changed) == ["InteriorPad"] and changed[changed.ops[0].inputs[1]].data == 4 + value / 0.25
        same(graph, changed)


def test_what_is_left_of_pairs() -> None:
    ops = [dq("x"), Op("Quantize", ("x_real",), ("a",)), dq("a"), Op("Quantize", ("a_real",), ("y",))]
    tensors = [Tensor("x", "int8", (1, 50), None, q(0.1, 3)), stored("a", 0.1, 3), stored("y", 0.07, -9)]
    graph = make(ops, tensors, "x", "y")
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Requantize"] and changed.ops[0].inputs == ("x",)
    same(graph, changed)


def test_outputs_keep_their_names() -> None:
    ops = [dq("x"), Op("Quantize", ("x_real",), ("y",))]
    graph = make(ops, [Tensor("x", "int8", (1, 5), None, q(0.1, 3)), stored("y", 0.1, 3)], "x", "y")
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Identity"] and changed.outputs == ("y",)
    same(graph, changed)


def test_float_islands_stay() -> None:
    tensors = [Tensor("x", "int8", (1, 9), None, q(0.1, 3)), stored("y", 1 / 256, -128)]
    graph = make(
        [dq("x"), Op("Exp", ("x_real",), ("e",)), Op("Softmax", ("e",), ("s",)), Op("Quantize", ("s",), ("y",))], tensors, "x", "y"
    )
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Dequantize", "Exp", "Softmax", "Quantize"]
    assert changed["e"].dtype == "float32"


def test_integer_clips_become_activations_or_nothing() -> None:
    """As QDQ models of qconvert and Brevitas have them: Q -> Clip of integers -> DQ."""
    limits = [constant("low", np.float32(0)), constant("high", np.float32(1000))]
    tensors = [Tensor("a", "int8", (1, 30), None, q(0.1)), stored("s", 0.2, -3), stored("y", 0.2, -3), *limits]
    ops = [Op("Add", ("a", "a"), ("s",)), Op("Clip", ("s", "low", "high"), ("y",))]
    graph = make(ops, tensors, "a", "y")
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Add"] and changed.ops[0]["activation"] == "relu" and changed.ops[0].outputs == ("y",)
    same(graph, changed)


LIMITS = (constant("m1", np.float32(-1)), constant("p1", np.float32(1)), constant("p6", np.float32(6)), constant("zero", np.float32(0)))


def test_two_clips_of_one_result_on_one_quantization_stay_two() -> None:
    """Neither may be the activation of the operator that both read."""
    following = (
        Op("Relu", ("c",), ("r",)), Op("Clip", ("c", "m1", "p1"), ("k",)), Op("Quantize", ("r",), ("y",)), Op("Quantize", ("k",), ("z",)),
    )  # fmt: skip
    graph = conv(*following, tensors=(stored("y", 0.25, -7), stored("z", 0.25, -7), *LIMITS), outputs="y z")
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv", "Clip", "Clip"] and not changed.ops[0]["activation"]
    same(graph, changed)


def test_a_result_on_a_quantization_and_a_clip_of_it_on_the_same() -> None:
    following = (Op("Quantize", ("c",), ("y",)), dq("y"), Op("Relu", ("c",), ("r",)), Op("Quantize", ("r",), ("z",)))
    graph = conv(*following, tensors=(stored("y", 0.25, -7), stored("z", 0.25, -7)), outputs="y_real z")
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv", "Dequantize", "Clip"] and changed.ops[0].outputs == ("y",)
    same(graph, changed)


def test_a_second_activation_on_the_same_quantization_joins_the_first() -> None:
    clips = (Op("Relu", ("c",), ("r",)), Op("Quantize", ("r",), ("a",)), dq("a"), Op("Clip", ("a_real", "m1", "p6"), ("k",)),
             Op("Quantize", ("k",), ("y",)))  # fmt: skip
    graph = conv(*clips, tensors=(stored("a", 0.25, -7), stored("y", 0.25, -7), *LIMITS))
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv"] and changed.ops[0]["activation"] == "relu6"
    same(graph, changed)


def test_a_second_activation_that_leaves_no_range_of_one_stays() -> None:
    clips = (Op("Relu", ("c",), ("r",)), Op("Clip", ("r", "m1", "p1"), ("k",)), Op("Quantize", ("k",), ("y",)))
    graph = conv(*clips, tensors=(stored("y", 0.25, -7), *LIMITS))
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv", "Clip"] and changed.ops[0]["activation"] == "relu"
    same(graph, changed)


@pytest.mark.parametrize(("low", "high"), [(-np.inf, np.inf), (0, np.inf), (0, np.finfo(np.float32).max), (np.finfo(np.float32).min, 6)])
def test_bounds_without_end_are_none(low: float, high: float) -> None:
    limits = (constant("low", np.float32(low)), constant("high", np.float32(high)))
    graph = conv(Op("Clip", ("c", "low", "high"), ("r",)), Op("Quantize", ("r",), ("y",)), tensors=(stored("y", 0.25, -128), *limits))
    changed, _ = applied(graph, "absorb_quantization")
    assert kinds(changed) == ["Conv"] and changed.ops[0]["activation"] in ("", "relu6")
    same(graph, changed)


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1.0), (2.0, 1.0), (np.inf, np.inf)])
def test_bounds_that_leave_nothing_are_left_to_the_runtime(low: float, high: float) -> None:
    limits = (constant("low", np.float32(low)), constant("high", np.float32(high)))
    graph = conv(Op("Clip", ("c", "low", "high"), ("r",)), Op("Quantize", ("r",), ("y",)), tensors=(stored("y", 0.25), *limits))
    assert "Clip" in kinds(applied(graph, "absorb_quantization")[0])
