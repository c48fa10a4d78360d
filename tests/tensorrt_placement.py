"""What TensorRT-RTX does with Quantize and Dequantize around other operators: which keep the Conv after them on integers.

Each operator stands once on integers, between Quantize and Dequantize, and once in float, between Dequantize and a Conv.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tensorrt_case import Case
from tensorrt_network import INT8, Network

_Step = Callable[[Network, str], str]


def _sizes(net: Network, *values: int) -> str:
    return net.constant(values, "int64")


#: Operators that move data -> how one is added after a tensor of 8 channels.
MOVING: dict[str, _Step] = {
    "Reshape": lambda net, x: net.op("Reshape", x, _sizes(net, 1, 8, 4, 16)),
    "Transpose": lambda net, x: net.op("Transpose", x, perm=[0, 1, 3, 2]),
    "Slice": lambda net, x: net.op("Slice", x, _sizes(net, 1), _sizes(net, 7), _sizes(net, 2)),
    "Split": lambda net, x: net.op("Split", x, _sizes(net, 4, 4), axis=3, outputs=2),
    "Gather": lambda net, x: net.op("Gather", x, _sizes(net, 6, 2, 1, 0), axis=2),
    "Concat": lambda net, x: net.op("Concat", x, x, axis=2),
    "Pad with 0": lambda net, x: net.op("Pad", x, _sizes(net, 0, 0, 1, 1, 0, 0, 1, 1)),
    "Tile": lambda net, x: net.op("Tile", x, _sizes(net, 1, 1, 2, 1)),
    "Expand": lambda net, x: net.op("Expand", x, _sizes(net, 2, 8, 8, 8)),
    "Identity": lambda net, x: net.op("Identity", x),
    "MaxPool": lambda net, x: net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]),
    "SpaceToDepth and DepthToSpace": lambda net, x: net.op("DepthToSpace", net.op("SpaceToDepth", x, blocksize=2), blocksize=2),
    "Unsqueeze and Squeeze": lambda net, x: net.op("Squeeze", net.op("Unsqueeze", x, _sizes(net, 1)), _sizes(net, 1)),
    "Flatten and Reshape": lambda net, x: net.op("Reshape", net.op("Flatten", x), _sizes(net, 1, 8, 8, 8)),
    "ReduceMax": lambda net, x: net.op("ReduceMax", x, _sizes(net, 2), keepdims=1),
    "Where": lambda net, x: net.op("Where", net.constant(np.eye(8), "bool"), x, x),
}
#: What holds for MOVING on integers alone: between Dequantize and Conv it makes the Conv real.
_ON_INTEGERS: dict[str, _Step] = {
    "Resize nearest": lambda net, x: net.op("Resize", x, "", net.constant([1, 1, 2, 2]), mode="nearest"),
    "Relu": lambda net, x: net.op("Relu", x),
}
#: Operators that compute and that the Conv after them lets pass: signs are changed on integers, a factor becomes part of the scale.
PASSING: dict[str, _Step] = {
    "Abs": lambda net, x: net.op("Abs", x),
    "Neg": lambda net, x: net.op("Neg", x),
    "Mul": lambda net, x: net.op("Mul", x, net.constant(1.5)),
    "Div": lambda net, x: net.op("Div", x, net.constant(1.5)),
}
#: Divisions of one number by a Dequantize's result: they are gone, and the Conv reads the integers.
LOST: dict[str, _Step] = {
    "Reciprocal": lambda net, x: net.op("Reciprocal", x),
    "1 / x": lambda net, x: net.op("Div", net.constant(1.0), x),
    "2 / x": lambda net, x: net.op("Div", net.constant(2.0), x),
}
#: Operators that compute, of a tensor of 8 channels: they are real, and so is a Conv right after them.
FLOATING: dict[str, _Step] = {
    "AveragePool": lambda net, x: net.op("AveragePool", x, kernel_shape=[2, 2]),
    "Clip": lambda net, x: net.op("Clip", x, net.constant(0.0), net.constant(3.0)),
    "Add of a constant": lambda net, x: net.op("Add", x, net.constant(0.5)),
    "Sub of a constant": lambda net, x: net.op("Sub", x, net.constant(0.5)),
    "Mul by a vector": lambda net, x: net.op("Mul", x, net.constant(np.full((8, 1, 1), 1.5))),
    "1 / x, a vector": lambda net, x: net.op("Div", net.constant(np.ones((1, 8, 1, 1))), x),
    "Pow": lambda net, x: net.op("Pow", x, net.constant(2.0)),
    "Min": lambda net, x: net.op("Min", x, net.constant(1.0)),
    "Max": lambda net, x: net.op("Max", x, net.constant(1.0)),
    "PRelu": lambda net, x: net.op("PRelu", x, net.constant(np.full((8, 1, 1), 0.1))),
    "Softmax": lambda net, x: net.op("Softmax", x, axis=1),
    "BatchNormalization": lambda net, x: net.op("BatchNormalization", x, *(net.constant(np.full(8, value)) for value in (1, 0.1, 0.2, 2))),
    "LayerNormalization": lambda net, x: net.op("LayerNormalization", x, net.constant(np.ones(8)), net.constant(np.ones(8))),
    "Resize linear": lambda net, x: net.op("Resize", x, "", net.constant([1, 1, 2, 2]), mode="linear"),
    "ReduceMean": lambda net, x: net.op("ReduceMean", x, _sizes(net, 2), keepdims=1),
    "GlobalAveragePool": lambda net, x: net.op("GlobalAveragePool", x),
    "Gelu": lambda net, x: net.op("Gelu", x),
    **{
        kind: lambda net, x, kind=kind: net.op(kind, x)  # type: ignore[misc]
        for kind in (
            "Ceil", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Round",
            "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh",
        )
    },
}  # fmt: skip


def _on_integers(step: _Step) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        return net.model(net.conv(net.dequantize(step(net, net.quantize(net.input())))))

    return make


def _on_real(step: _Step, *, paired: bool = False) -> Callable[[], Any]:
    """Between Dequantize and Conv; with another pair before the Conv if `paired`."""

    def make() -> Any:
        net = Network()
        x = step(net, net.pair(net.input()))
        return net.model(net.conv(net.pair(x, 0.07) if paired else x))

    return make


def _itself(step: _Step, *, before: bool = True) -> Callable[[], Any]:
    """The operator itself is the target, between pairs."""

    def make() -> Any:
        net = Network()
        x = step(net, net.pair(net.input()) if before else net.input())
        net.nodes[-1].name = "target"
        return net.model(net.pair(x))

    return make


def _activation(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        y = net.conv(net.pair(net.input()), bias=net.constant(np.ones(8)))
        bounds = (net.constant(0.0), net.constant(6.0)) if kind == "Clip" else ()
        return net.model(net.pair(net.op(kind, y, *bounds)))

    return make


def _residual(skip: bool, own: bool) -> Callable[[], Any]:
    """Two Conv and the Add around them, with pairs on either branch of the Add."""

    def make() -> Any:
        net = Network()
        x = net.input()
        real = net.pair(x)
        y = net.conv(real)
        total = net.op("Add", net.pair(y, 0.07) if own else y, real if skip else x)
        return net.model(net.conv(net.pair(total, 0.09)))

    return make


def _pad(value: float, *, following: bool) -> Callable[[], Any]:
    """Pad with a value, after the Dequantize or before the Quantize."""

    def pad(net: Network, x: str) -> str:
        return net.op("Pad", x, _sizes(net, 0, 0, 1, 1, 0, 0, 1, 1), net.constant(value))

    def make() -> Any:
        net = Network()
        x = pad(net, net.pair(net.input())) if following else net.pair(pad(net, net.input()))
        return net.model(net.conv(x, pads=[0, 0, 0, 0]))

    return make


def _stored_pad() -> Any:
    net = Network()
    padded = net.op("Pad", net.quantize(net.input()), _sizes(net, 0, 0, 1, 1, 0, 0, 1, 1), net.constant(-3, "int8"))
    return net.model(net.conv(net.dequantize(padded)))


def _table(*, following: bool) -> Callable[[], Any]:
    """Rows of a table of integers, gathered after its Dequantize or before."""

    def make() -> Any:
        net = Network()
        table, rows = net.constant(np.ones((32, 16)), "int8"), net.input("rows", (4,), "INT64")
        real = net.op("Gather", net.dequantize(table), rows) if following else net.dequantize(net.op("Gather", table, rows))
        return net.model(net.op("MatMul", real, net.weights((16, 8), 0.01, INT8, axis=None), name="target"))

    return make


def _constant(shape: tuple[int, ...]) -> Callable[[], Any]:
    """A constant of integers after Dequantize that is added."""

    def make() -> Any:
        net = Network()
        added = net.dequantize(net.constant(np.full(shape, 5), "int8"))
        return net.model(net.conv(net.pair(net.op("Add", net.input(), added))))

    return make


def _clipped_integers() -> Any:
    net = Network()
    stored = net.op("Clip", net.quantize(net.input()), net.constant(-5, "int8"), net.constant(100, "int8"))
    return net.model(net.conv(net.dequantize(stored)))


def _classifier() -> Any:
    net = Network()
    mean = net.pair(net.op("GlobalAveragePool", net.pair(net.input())), 0.03)
    weights = net.weights((16, 8))
    return net.model(net.op("Gemm", net.op("Flatten", mean), weights, name="target", transB=1))


def _two_scales() -> Any:
    net = Network()
    joined = net.op("Concat", net.pair(net.input("a", (1, 4, 8, 8))), net.pair(net.input("b", (1, 4, 8, 8)), 0.08), axis=1)
    return net.model(net.conv(net.pair(joined, 0.08)))


def _shape_of_conv(channels: int, group: int = 1, **attributes: Any) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        x = net.pair(net.input("x", (1, channels, 8, 8)))
        return net.model(net.conv(x, net.weights((8, channels // group, 3, 3)), group=group, **attributes))

    return make


def _channels_last(net: Network, x: str) -> str:
    return net.op("Transpose", x, perm=[0, 3, 1, 2])


def _edge(kind: str) -> Callable[[], Any]:
    """Graph inputs and outputs of other types."""

    def make() -> Any:
        from onnx import TensorProto

        net = Network()
        if kind == "int8 input":
            return net.model(net.conv(net.dequantize(net.input(dtype="INT8"))))
        if kind == "uint8 input":
            real = net.op("Cast", net.input(dtype="UINT8"), to=TensorProto.FLOAT)
            shifted = net.op("Mul", net.op("Sub", real, net.constant(128.0)), net.constant(0.05))
            return net.model(net.conv(net.pair(shifted)))
        if kind == "int64 input":
            return net.model(net.conv(net.pair(net.op("Cast", net.input(dtype="INT64"), to=TensorProto.FLOAT))))
        if kind == "input of rank 0":
            scalar = net.pair(net.input("s", ()), 0.01)
            return net.model(net.conv(net.pair(net.op("Mul", net.input(), scalar))))
        y = net.conv(net.pair(net.input()))
        if kind == "int8 output":
            return net.model(net.quantize(y), dtype="INT8")
        return net.model(net.op("Cast", net.op("Round", y), to=TensorProto.UINT8), dtype="UINT8")

    return make


def _dynamic() -> Any:
    net = Network()
    return net.model(net.conv(net.pair(net.input("x", ("n", 8, "h", 8)))))


#: They run in a generated kernel whose metadata leaves them out.
_UNNAMED = ("Elu", "Mul by a vector")
_PAIRED = ("AveragePool", "Clip", "Add of a constant", "Softmax", "GlobalAveragePool", "Resize linear")
_MOVES_ALL = {**MOVING, **_ON_INTEGERS}
_BEFORE_DQ = "is only allowed before DQ"
_NO_PROFILE = "Network has dynamic or shape inputs, but no optimization profile has been defined"

PLACEMENT = (
    *(Case(f"{name} on integers", _on_integers(step), "int8") for name, step in _MOVES_ALL.items()),
    *(Case(f"{name} after Dequantize", _on_real(step), "int8" if name in MOVING else "float") for name, step in _MOVES_ALL.items()),
    *(Case(f"{name} after Dequantize", _on_real(step), "float") for name, step in FLOATING.items()),
    *(Case(f"{name} after Dequantize", _on_real(step), "int8") for name, step in {**PASSING, **LOST}.items()),
    *(Case(f"{name} after Dequantize, with a pair", _on_real(FLOATING[name], paired=True), "int8") for name in _PAIRED),
    *(Case(f"{name} itself", _itself(step), "unnamed" if name in _UNNAMED else "float") for name, step in FLOATING.items()),
    Case("MaxPool itself", _itself(MOVING["MaxPool"]), "int8"),
    Case("MaxPool itself, a pair after it", _itself(MOVING["MaxPool"], before=False), "int8"),
    *(Case(f"Conv, {kind}", _activation(kind), "int8") for kind in ("Relu", "Clip", "HardSwish")),
    *(Case(f"Add, pairs: skip {skip}, own {own}", _residual(skip, own), "int8") for skip in (True, False) for own in (True, False)),
    Case("Clip on integers", _clipped_integers, "int8"),
    Case("Pad with 1 after Dequantize", _pad(1.0, following=True), "float"),
    Case("Pad with 0.0 after Dequantize", _pad(0.0, following=True), "int8"),
    Case("Pad with 1 before Quantize", _pad(1.0, following=False), "int8"),
    Case("Pad with -3 on integers", _stored_pad, "builder", _BEFORE_DQ),
    Case("Gather of a table before Dequantize", _table(following=False), "builder", _BEFORE_DQ),
    Case("Gather of a table after Dequantize", _table(following=True), "int8"),
    Case("constant of rank 0", _constant(()), "builder", _BEFORE_DQ),
    Case("constant of shape [1]", _constant((1,)), "int8"),
    Case("GlobalAveragePool, pair, Flatten, Gemm", _classifier, "int8"),
    Case("Concat of two scales, with a pair", _two_scales, "int8"),
    Case("Conv, 2 groups", _shape_of_conv(8, 2), "int8"),
    Case("Conv, SAME_UPPER", _shape_of_conv(8, auto_pad="SAME_UPPER", strides=[2, 2]), "int8"),
    Case("Conv, one-sided pads", _shape_of_conv(8, pads=[0, 0, 1, 1]), "int8"),
    Case("Conv, 3 channels", _shape_of_conv(3), "int8"),
    Case("Transpose on integers from channels last", _on_integers(_channels_last), "int8"),
    Case("Transpose after Dequantize from channels last", _on_real(_channels_last), "int8"),
    *(
        Case(kind, _edge(kind), "int8")
        for kind in ("int8 input", "uint8 input", "int64 input", "input of rank 0", "int8 output", "uint8 output")
    ),
    Case("dynamic dimensions without bounds", _dynamic, "builder", _NO_PROFILE),
    Case("dynamic dimensions", _dynamic, "int8", bounds={"x": ((1, 8, 8, 8), (2, 8, 8, 8), (4, 8, 16, 8))}),
)
