"""Random valid ONNX models of the QOperator form: QLinear operators of both domains, integer products, dynamic quantization, QDQ between.

model = strange_qoperator(random.Random(7))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from choices import NamedChoices
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]

_TYPES = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}
_SCALES = (1 / 32, 1 / 16, 0.05, 0.031, 0.0234375, 1 / 8)
_SHAPES = ((1, 4, 4, 4), (1, 4, 5, 3), (2, 3, 4), (1, 4, 6), (2, 5), (3, 4), (6,))
_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class Stored:
    """Integers with a quantization; without one they are float values."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 0.0
    zero: int = 0

    @property
    def quantization(self) -> tuple[str, float, int]:
        return self.dtype, self.scale, self.zero


Recipe = Callable[["Linear", Stored], "Stored | None"]


class Linear(NamedChoices):
    """A model while it grows."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.values: list[Stored] = []
        self.inputs: list[Stored] = []
        self.extra: list[Stored] = []
        self._shared: dict[tuple[Any, ...], str] = {}

    def constant(self, data: Any) -> str:
        data = np.asarray(data)
        key = (data.dtype.str, data.shape, data.tobytes())
        if key not in self._shared or self.chance(0.4):
            self._shared[key] = self.fresh("c")
            self.constants[self._shared[key]] = data
        return self._shared[key]

    def integers(self, shape: Sequence[int], dtype: str, low: int | None = None, high: int | None = None) -> Array:
        limits = np.iinfo(dtype)
        rng = np.random.default_rng(self.rng.getrandbits(32))
        return rng.integers(limits.min if low is None else low, (limits.max if high is None else high) + 1, shape).astype(dtype)

    def node(self, kind: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes: Any) -> list[str]:
        names = [self.fresh("v") for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def quantization(self, dtype: str) -> tuple[str, float, int]:
        low = -128 if dtype == "int8" else 0
        return dtype, self.pick(_SCALES), low + self.pick((0, 128, 128, 131, 255, 78))

    def named(self, scale: Any, zero: Any, dtype: str) -> list[str]:
        return [self.constant(np.asarray(scale, np.float32)), self.constant(np.asarray(zero, dtype))]

    def parts(self, x: Stored) -> list[str]:
        """The stored values, scale and zero point of an operand."""
        return [x.name, *self.named(x.scale, x.zero, x.dtype)]

    def linear(self, kind: str, inputs: Sequence[str], shape: Sequence[int], quantization: tuple[str, float, int], domain: str = _CONTRIB,
               following: Sequence[str] = (), **attributes: Any) -> Stored:  # fmt: skip
        """A node with the quantization of its result after its operands."""
        names = self.named(quantization[1], quantization[2], quantization[0])
        return Stored(self.node(kind, [*inputs, *names, *following], 1, domain, **attributes)[0], tuple(shape), *quantization)

    def weights(self, x: Stored, shape: Sequence[int], axis: int) -> list[str]:
        """The integers, scale and zero point of weights."""
        dtype = self.pick(("int8", "int8", "uint8")) if x.dtype == "uint8" else "int8"
        count = shape[axis] if self.chance(0.5) and dtype == "int8" else 1
        scales = np.float32(2.0) ** self.integers((count,), "int8", -9, -5)
        zero = self.pick((128, 128, 120)) if dtype == "uint8" else self.pick((0, 0, 0, 3)) if count == 1 else 0
        data = self.constant(self.integers(shape, dtype, 1 if dtype == "uint8" else -127))
        alone = scales.reshape(()) if count == 1 else scales
        return [data, *self.named(alone, np.full(alone.shape, zero), dtype)]

    def other(self, x: Stored) -> Stored:
        """A second operand of the type of x: another value, x itself, or a constant."""
        found = [v for v in self.values if v.dtype == x.dtype and v.shape == x.shape]
        if found and self.chance(0.6):
            return self.pick(found)
        shape = self.pick((x.shape, x.shape[-1:], ()))
        return Stored(self.constant(self.integers(shape, x.dtype)), tuple(shape), *self.quantization(x.dtype))


def conv(g: Linear, x: Stored) -> Stored | None:
    if len(x.shape) not in (3, 4):
        return None
    channels, sizes = x.shape[1], x.shape[2:]
    group = channels if g.chance(0.3) else 1
    outputs = channels * g.pick((1, 2)) if group > 1 else g.rng.randint(1, 5)
    window = [g.rng.randint(1, min(3, size)) for size in sizes]
    pads = [g.rng.randint(0, 1) if max(window) > 1 else 0 for _ in range(2 * len(sizes))]
    strides = [g.pick((1, 1, 2)) for _ in sizes]
    found = [(n + a + b - k) // t + 1 for n, a, b, k, t in zip(sizes, pads, pads[len(sizes) :], window, strides, strict=False)]
    shape = (x.shape[0], outputs, *found)
    if g.chance(0.15):
        zeros = [g.constant(np.array(x.zero, x.dtype))] if g.chance(0.7) else []
        w = g.constant(g.integers((outputs, channels // group, *window), "int8", -64, 63))
        name = g.node("ConvInteger", [x.name, w, *zeros], group=group, pads=pads, strides=strides)[0]
        return _scaled(g, name, shape)
    w = g.weights(x, (outputs, channels // group, *window), 0)
    bias = [g.constant(g.integers((outputs,), "int32", -3000, 3000))] if g.chance(0.7) else []
    return g.linear("QLinearConv", [*g.parts(x), *w], shape, g.quantization(x.dtype), "", bias, group=group, pads=pads, strides=strides)


def _scaled(g: Linear, name: str, shape: Sequence[int]) -> Stored:
    """Sums of integers as float values, as onnxruntime's dynamic quantization leaves them; or as they are, at the end."""
    if g.chance(0.15):
        g.extra.append(Stored(name, tuple(shape), "int32"))
    (real,) = g.node("Cast", [name], to=TensorProto.FLOAT)
    factor = g.constant(np.float32(g.pick((0.001, 1 / 4096))))
    return Stored(g.node("Mul", [real, factor])[0], tuple(shape))


def matmul(g: Linear, x: Stored) -> Stored | None:
    if len(x.shape) < 2:
        return None
    outputs = g.rng.randint(1, 5)
    shape = (*x.shape[:-1], outputs)
    form = g.pick(("linear", "linear", "integer", "gemm", "gemm", "to_float"))
    if form == "integer":
        w = g.constant(g.integers((x.shape[-1], outputs), "int8", -64, 63))
        zeros = [g.constant(np.array(x.zero, x.dtype))] if g.chance(0.7) else []
        return _scaled(g, g.node("MatMulInteger", [x.name, w, *zeros])[0], shape)
    w = g.weights(x, (x.shape[-1], outputs), 1)
    if form == "to_float":
        real = g.node("MatMulIntegerToFloat", [x.name, w[0], g.parts(x)[1], w[1], g.parts(x)[2], w[2]], 1, _CONTRIB)
        return Stored(real[0], shape)
    if form == "gemm" and len(x.shape) == 2:
        bias = g.constant(g.integers((outputs,), "int32", -3000, 3000)) if g.chance(0.7) else ""
        if g.chance(0.2):
            return Stored(g.node("QGemm", [*g.parts(x), *w, bias], 1, _CONTRIB)[0], shape)
        return g.linear("QGemm", [*g.parts(x), *w, bias], shape, g.quantization(x.dtype))
    return g.linear("QLinearMatMul", [*g.parts(x), *w], shape, g.quantization(x.dtype), "")


def pair(g: Linear, x: Stored) -> Stored:
    operands = [x, g.other(x)]
    if g.chance(0.3):
        operands.reverse()
    names = [name for value in operands for name in g.parts(value)]
    return g.linear(g.pick(("QLinearAdd", "QLinearMul")), names, x.shape, g.quantization(x.dtype))


def concat(g: Linear, x: Stored) -> Stored:
    axis = g.rng.randrange(len(x.shape))
    same = [v for v in g.values if v.dtype == x.dtype and v.shape == x.shape]
    parts = [x, *[g.pick(same) for _ in range(g.rng.randint(0, 2)) if same]]
    quantization = g.quantization(x.dtype)
    names = [*g.named(quantization[1], quantization[2], quantization[0]), *(name for part in parts for name in g.parts(part))]
    shape = (*x.shape[:axis], x.shape[axis] * len(parts), *x.shape[axis + 1 :])
    return Stored(g.node("QLinearConcat", names, 1, _CONTRIB, axis=axis - len(x.shape) if g.chance(0.3) else axis)[0], shape, *quantization)


def pool(g: Linear, x: Stored) -> Stored | None:
    if len(x.shape) != 4:
        return None
    form = g.pick(("average", "global", "max"))
    if form == "global":
        return g.linear("QLinearGlobalAveragePool", g.parts(x), (*x.shape[:2], 1, 1), g.quantization(x.dtype))
    window = [g.rng.randint(1, min(3, size)) for size in x.shape[2:]]
    pads = [g.rng.randint(0, 1) if min(window) > 1 else 0 for _ in range(4)]
    shape = (*x.shape[:2], *(n + a + b - k + 1 for n, a, b, k in zip(x.shape[2:], pads, pads[2:], window, strict=False)))
    if form == "max":
        return Stored(g.node("MaxPool", [x.name], kernel_shape=window, pads=pads)[0], shape, *x.quantization)
    return g.linear("QLinearAveragePool", g.parts(x), shape, g.quantization(x.dtype), kernel_shape=window, pads=pads,
                    count_include_pad=g.pick((0, 1)))  # fmt: skip


def unary(g: Linear, x: Stored) -> Stored:
    kind = g.pick(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"))
    if kind == "QLinearSoftmax":
        quantization = (x.dtype, 1 / 256, -128 if x.dtype == "int8" else 0)
        return g.linear(kind, g.parts(x), x.shape, quantization, axis=len(x.shape) - 1, opset=13)
    more = {"alpha": g.pick((0.1, 0.2))} if kind == "QLinearLeakyRelu" else {}
    return g.linear(kind, g.parts(x), x.shape, g.quantization(x.dtype), **more)


def where(g: Linear, x: Stored) -> Stored:
    condition = g.constant(g.integers(x.shape, "int8", 0, 1).astype(bool))
    return g.linear("QLinearWhere", [condition, *g.parts(x), *g.parts(g.other(x))], x.shape, g.quantization(x.dtype))


def move(g: Linear, x: Stored) -> Stored | None:
    rank = len(x.shape)
    axis = g.rng.randrange(rank)
    form = g.pick(("transpose", "reshape", "slice", "unsqueeze", "gather", "identity"))
    if form == "transpose":
        perm = g.rng.sample(range(rank), rank)
        return Stored(g.node("Transpose", [x.name], perm=perm)[0], tuple(x.shape[i] for i in perm), *x.quantization)
    if form == "reshape":
        return Stored(g.node("Reshape", [x.name, g.constant(np.array([x.shape[0], -1]))])[0],
                      (x.shape[0], int(np.prod(x.shape[1:]))), *x.quantization)  # fmt: skip
    if form == "slice" and x.shape[axis] > 1:
        bounds = [g.constant(np.array([value])) for value in (1, 2**40, axis)]
        return Stored(g.node("Slice", [x.name, *bounds])[0], (*x.shape[:axis], x.shape[axis] - 1, *x.shape[axis + 1 :]), *x.quantization)
    if form == "unsqueeze" and rank < 4:
        return Stored(
            g.node("Unsqueeze", [x.name, g.constant(np.array([axis]))])[0], (*x.shape[:axis], 1, *x.shape[axis:]), *x.quantization
        )
    if form == "gather":
        taken = g.constant(np.array([0, -1]))
        return Stored(g.node("Gather", [x.name, taken], axis=axis)[0], (*x.shape[:axis], 2, *x.shape[axis + 1 :]), *x.quantization)
    return Stored(g.node("Identity", [x.name])[0], x.shape, *x.quantization)


def real(g: Linear, x: Stored) -> Stored:
    """Float values between: DequantizeLinear, perhaps a function, perhaps QuantizeLinear."""
    (y,) = g.node("DequantizeLinear", g.parts(x))
    if g.chance(0.5):
        (y,) = g.node(g.pick(("Relu", "Tanh", "Abs")), [y])
    return quantize(g, Stored(y, x.shape)) if g.chance(0.7) else Stored(y, x.shape)


def quantize(g: Linear, x: Stored) -> Stored:
    quantization = g.quantization(g.pick(("uint8", "uint8", "int8")))
    (stored,) = g.node("QuantizeLinear", [x.name, *g.named(quantization[1], quantization[2], quantization[0])])
    return Stored(stored, x.shape, *quantization)


def dynamic(g: Linear, x: Stored) -> Stored:
    """Integers whose quantization is found at run time, multiplied and scaled as onnxruntime's quantize_dynamic writes it."""
    if len(x.shape) < 2:
        return quantize(g, x)
    stored, scale, zero = g.node("DynamicQuantizeLinear", [x.name], 3)
    outputs = g.rng.randint(1, 4)
    w = g.constant(g.integers((x.shape[-1], outputs), "int8", -64, 63))
    (sums,) = g.node("MatMulInteger", [stored, w, zero, *([g.constant(np.int8(0))] if g.chance(0.5) else [])])
    (sums,) = g.node("Cast", [sums], to=TensorProto.FLOAT)
    (factor,) = g.node("Mul", [scale, g.constant(np.float32(0.01))])
    return Stored(g.node("Mul", [sums, factor])[0], (*x.shape[:-1], outputs))


_ON_INTEGERS: Sequence[Recipe] = (conv, conv, conv, matmul, matmul, pair, pair, concat, pool, pool, unary, where, move, move, real)
_ON_REALS: Sequence[Recipe] = (quantize, quantize, dynamic)


def _network(g: Linear) -> None:
    start = len(g.values)
    if g.inputs and g.chance(0.4):
        x = g.pick(g.inputs)
    else:
        x = Stored(g.fresh("x"), g.pick(_SHAPES))
        if g.chance(0.4):
            x = Stored(x.name, x.shape, *g.quantization(g.pick(("uint8", "int8"))))
        g.inputs.append(x)
    g.values.append(x)
    for _ in range(g.rng.randint(1, 8)):
        mine = g.values[start:]
        x = mine[-1] if g.chance(0.7) else g.pick(mine)
        y = g.pick(_ON_REALS if x.dtype == "float32" else _ON_INTEGERS)(g, x)
        if y is not None and np.prod(y.shape) <= 500:
            g.values.append(y)


def strange_qoperator(rng: Random, networks: int = 3) -> ModelProto:
    """A valid model of up to so many networks."""
    g = Linear(rng)
    for _ in range(rng.randint(1, networks)):
        _network(g)
    read = {name for node in g.nodes for name in node.input}
    given = {x.name for x in g.inputs}
    ends = [v for v in g.values if v.name not in read | given] + [g.pick(g.values)] + g.extra
    outputs = {v.name: v for v in ends if v.name not in given} or {g.values[-1].name: g.values[-1]}
    graph = helper.make_graph(
        g.nodes, "strange", [helper.make_tensor_value_info(x.name, _TYPES[x.dtype], x.shape) for x in g.inputs],
        [helper.make_tensor_value_info(y.name, _TYPES[y.dtype], y.shape) for y in outputs.values()],
        [numpy_helper.from_array(data, name) for name, data in g.constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", rng.choice((13, 17, 21))), helper.make_opsetid(_CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
