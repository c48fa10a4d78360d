"""Decomposed functions are found as PyTorch, TensorFlow, Keras and tf2onnx write them; what only looks alike is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from passes.graphs import constant, make, q

from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.passes.fuse_functions import Recognizer

KINDS = ("LayerNormalization", "RMSNormalization", "Gelu", "HardSwish", "Mish", "Swish")
SHAPE = (2, 3, 8)


class Net:
    """A network of float32 operators that is written line by line."""

    def __init__(self, shape: Sequence[int | str] = SHAPE) -> None:
        self.tensors, self.ops = [Tensor("x", "float32", tuple(shape))], list[Op]()

    def __call__(self, kind: str, *operands: str | float | Array, **attributes: object) -> str:
        names = [item if isinstance(item, str) else self.constant(item) for item in operands]
        self.ops.append(Op(kind, tuple(names), (f"t{len(self.ops)}",), attributes))
        return f"t{len(self.ops) - 1}"

    def constant(self, data: float | Array) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(
            constant(name, np.asarray(data, np.int64 if isinstance(data, np.ndarray) and data.dtype.kind == "i" else np.float32))
        )
        return name

    def graph(self) -> Graph:
        return make(self.ops, self.tensors, "x", self.ops[-1].outputs[0])


AXES, SCALE, BIAS = np.array([-1]), np.linspace(0.5, 2, 8), np.linspace(-1, 1, 8)


def gelu_of_torch(n: Net) -> None:
    n("Mul", n("Mul", "x", n("Add", n("Erf", n("Div", "x", 2**0.5)), 1.0)), 0.5)


def gelu_of_keras(n: Net) -> None:
    half = n("Mul", 0.5, "x")
    n("Mul", half, n("Add", 1.0, n("Erf", n("Mul", "x", 0.70710678))))


def gelu_of_tf2onnx(n: Net) -> None:
    n("Mul", "x", n("Mul", n("Add", n("Erf", n("Mul", n("Div", "x", 2.0), 2**0.5)), 1.0), 0.5))


def gelu_by_tanh_of_torch(n: Net) -> None:
    inner = n("Mul", n("Add", "x", n("Mul", 0.044715, n("Pow", "x", 3.0))), (2 / np.pi) ** 0.5)
    n("Mul", n("Mul", 0.5, "x"), n("Add", 1.0, n("Tanh", inner)))


def gelu_by_tanh_in_products(n: Net) -> None:
    cube = n("Mul", n("Mul", "x", "x"), n("Mul", "x", 0.044715 * (2 / np.pi) ** 0.5))
    n("Mul", "x", n("Add", 0.5, n("Mul", 0.5, n("Tanh", n("Add", cube, n("Mul", "x", (2 / np.pi) ** 0.5))))))


def layer_norm_of_torch(n: Net) -> None:
    centred = n("Sub", "x", n("ReduceMean", "x", AXES))
    deviation = n("Sqrt", n("Add", n("ReduceMean", n("Pow", centred, 2.0), AXES), 1e-5))
    n("Add", n("Mul", n("Div", centred, deviation), SCALE), BIAS)


def layer_norm_of_keras(n: Net) -> None:
    mean = n("ReduceMean", "x", AXES)
    factor = n("Mul", n("Rsqrt", n("Add", n("ReduceMean", n("SquaredDifference", "x", mean), AXES), 1e-3)), SCALE)
    n("Add", n("Mul", "x", factor), n("Sub", BIAS, n("Mul", mean, factor)))


def layer_norm_by_squares(n: Net) -> None:
    mean = n("ReduceMean", "x", AXES)
    variance = n("Sub", n("ReduceMean", n("Mul", "x", "x"), AXES), n("Mul", mean, mean))
    n("Add", n("Mul", n("Mul", n("Sub", "x", mean), n("Rsqrt", n("Add", variance, 1e-6))), SCALE), BIAS)


def rms_norm(n: Net) -> None:
    n("Mul", SCALE, n("Mul", "x", n("Reciprocal", n("Sqrt", n("Add", n("ReduceMean", n("Pow", "x", 2.0), AXES), 1e-6)))))


def hard_swish_of_torch(n: Net) -> None:
    n("Mul", "x", n("Div", n("Clip", n("Add", "x", 3.0), 0.0, 6.0), 6.0))


def hard_swish_of_keras(n: Net) -> None:
    n("Mul", n("Mul", n("Add", "x", 3.0, activation="relu6"), 1 / 6), "x")


def hard_swish_by_relus(n: Net) -> None:
    n("Div", n("Mul", "x", n("Min", n("Max", n("Add", "x", 3.0), 0.0), 6.0)), 6.0)


def hard_swish_by_hard_sigmoid(n: Net) -> None:
    n("Mul", n("HardSigmoid", "x", alpha=1 / 6, beta=0.5), "x")


def swish(n: Net) -> None:
    n("Mul", n("Sigmoid", "x"), "x")


def swish_with_a_factor(n: Net) -> None:
    n("Mul", "x", n("Sigmoid", n("Mul", 1.702, "x")))


def mish_of_torch(n: Net) -> None:
    n("Mul", "x", n("Tanh", n("Softplus", "x")))


def mish_of_keras(n: Net) -> None:
    n("Mul", "x", n("Tanh", n("Log", n("Add", n("Exp", "x"), 1.0))))


SPELLINGS: dict[str, list[Callable[[Net], None]]] = {
    "Gelu": [gelu_of_torch, gelu_of_keras, gelu_of_tf2onnx, gelu_by_tanh_of_torch, gelu_by_tanh_in_products],
    "LayerNormalization": [layer_norm_of_torch, layer_norm_of_keras, layer_norm_by_squares],
    "RMSNormalization": [rms_norm],
    "HardSwish": [hard_swish_of_torch, hard_swish_of_keras, hard_swish_by_relus, hard_swish_by_hard_sigmoid],
    "Swish": [swish, swish_with_a_factor],
    "Mish": [mish_of_torch, mish_of_keras],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("kind", "decomposition"), [(kind, item) for kind, items in SPELLINGS.items() for item in items])
def test_each_spelling_is_found(kind: str, decomposition: Callable[[Net], None], dynamic: bool) -> None:
    net = Net(("batch", 3, 8) if dynamic else SHAPE)
    decomposition(net)
    graph = net.graph()
    ((end, op),) = Recognizer(graph, KINDS).find_operators()
    assert op.kind == kind and op.inputs[0] == "x" and end is graph.ops[-1]
    x = np.random.default_rng(3).normal(0, 2, SHAPE).astype(np.float32)
    alone = graph.evolve(ops=[op])
    np.testing.assert_allclose(evaluate(alone, {"x": x})[op.outputs[0]], evaluate(graph, {"x": x})[op.outputs[0]], rtol=1e-4, atol=1e-5)


def other_number(n: Net) -> None:
    n("Mul", n("Mul", "x", n("Add", n("Erf", n("Div", "x", 1.5)), 1.0)), 0.5)


def other_tensor(n: Net) -> None:
    y = n("Abs", "x")
    n("Mul", n("Mul", y, n("Add", n("Erf", n("Div", "x", 2**0.5)), 1.0)), 0.5)


def other_limit(n: Net) -> None:
    n("Mul", "x", n("Div", n("Clip", n("Add", "x", 3.0), 0.0, 5.0), 6.0))


def other_axis(n: Net) -> None:
    centred = n("Sub", "x", n("ReduceMean", "x", np.array([1])))
    deviation = n("Sqrt", n("Add", n("ReduceMean", n("Pow", centred, 2.0), np.array([1])), 1e-5))
    n("Mul", n("Div", centred, deviation), SCALE)


def two_axes_of_statistics(n: Net) -> None:
    centred = n("Sub", "x", n("ReduceMean", "x", AXES))
    deviation = n("Sqrt", n("Add", n("ReduceMean", n("Pow", centred, 2.0), np.array([1])), 1e-5))
    n("Add", n("Mul", n("Div", centred, deviation), SCALE), BIAS)


def a_mean_that_broadcasts_otherwise(n: Net) -> None:
    mean = n("ReduceMean", "x", AXES, keepdims=0)
    centred = n("Sub", "x", n("Unsqueeze", mean, np.array([1])))
    n("Mul", n("Div", centred, n("Sqrt", n("Add", n("ReduceMean", n("Pow", centred, 2.0), AXES), 1e-5))), SCALE)


@pytest.mark.parametrize("near", [other_number, other_tensor, other_limit, other_axis, two_axes_of_statistics])
def test_near_misses_stay(near: Callable[[Net], None]) -> None:
    net = Net()
    near(net)
    assert not list(Recognizer(net.graph(), KINDS).find_operators())


def test_statistics_that_broadcast_otherwise_stay() -> None:
    net = Net((8, 8, 8))
    a_mean_that_broadcasts_otherwise(net)
    assert not list(Recognizer(net.graph(), ("LayerNormalization",)).find_operators())


@pytest.mark.parametrize("place", range(4))
def test_what_is_rounded_inside_stays(place: int) -> None:
    """A quantized tensor between the parts was rounded, which one operator for the whole would not do."""
    names = ["x", "d", "e", "g", "p", "y"]
    rounded = names[place + 1]
    tensors = [Tensor(name, "int8", SHAPE, None, q(0.02)) if name == rounded else Tensor(name, "float32", SHAPE) for name in names]
    tensors += [constant(name, np.float32(value)) for name, value in (("root", 2**0.5), ("one", 1), ("half", 0.5))]
    ops = [Op("Div", ("x", "root"), ("d",)), Op("Erf", ("d",), ("e",)), Op("Add", ("e", "one"), ("g",)), Op("Mul", ("x", "g"), ("p",)),
           Op("Mul", ("p", "half"), ("y",))]  # fmt: skip
    assert all(a.outputs[0] in b.inputs for a, b in pairwise(ops))
    assert not list(Recognizer(make(ops, tensors, "x", "y"), KINDS).find_operators())


def test_quantized_data_and_results_are_taken() -> None:
    names = ["d", "e", "g", "p"]
    tensors = [Tensor("x", "int8", SHAPE, None, q(0.03, 2)), Tensor("y", "int8", SHAPE, None, q(0.02, -100)), Tensor("r", "float32", SHAPE)]
    tensors += [Tensor(name, "float32", SHAPE) for name in names]
    tensors += [constant(name, np.float32(value)) for name, value in (("root", 2**0.5), ("one", 1), ("half", 0.5))]
    ops = [Op("Dequantize", ("x",), ("r",)), Op("Div", ("r", "root"), ("d",)), Op("Erf", ("d",), ("e",)), Op("Add", ("e", "one"), ("g",)),
           Op("Mul", ("r", "g"), ("p",)), Op("Mul", ("p", "half"), ("y",))]  # fmt: skip
    graph = make(ops, tensors, "x", "y")
    ((_, op),) = Recognizer(graph, KINDS).find_operators()
    assert (op.kind, op.inputs, op.outputs) == ("Gelu", ("x",), ("y",))
    x = np.arange(48, dtype=np.int8).reshape(SHAPE)
    assert np.array_equal(evaluate(graph.evolve(ops=[op]), {"x": x})["y"], evaluate(graph, {"x": x})["y"])
