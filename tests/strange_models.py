"""Random valid ONNX models that nobody would export, and some would: quantization anywhere, results read by many, borders in the middle.

    model = strange_model(random.Random(7))
    inputs = feed(model, seed=7)

A model holds several small networks side by side, which share an input or not, so that one conversion tries many. All choices come from a
random.Random: hypothesis gives one that it can shrink, a script one of a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from choices import NamedChoices
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_nodes import model_of

Array = np.ndarray[Any, np.dtype[Any]]

_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8,
          "int16": TensorProto.INT16, "uint16": TensorProto.UINT16}  # fmt: skip
#: Scales that make ties, scales that make none.
_SCALES = (1 / 32, 1 / 16, 0.05, 0.031, 0.0234375, 1 / 8)
_SHAPES = ((1, 4, 4, 4), (1, 4, 5, 3), (2, 3, 4), (1, 4, 6), (2, 5), (3, 4), (1, 2, 3, 4, 3), (6,))
#: Bounds of Clip, ties and the largest float32 among them.
_BOUNDS = (
    (0, 6), (-1, 1), (0, 1), (-0.5, 2), (0, None), (None, 6), (None, None), (-np.inf, 3), (0, np.inf), (0.26, 0.9), (1, 1),
    (0.046875, 1.078125), (0, 3.4028235e38), (-3.4028235e38, 0.7),
)  # fmt: skip
_OPSETS = (11, 12, 13, 13, 14, 15, 17, 17, 18, 19, 20, 21, 21, 22, 23, 24)


@dataclass(frozen=True)
class Value:
    """A float value in a model that grows."""

    name: str
    shape: tuple[int, ...]


class Strange(NamedChoices):
    """A model while it grows."""

    def __init__(self, rng: Random, opset: int) -> None:
        super().__init__(rng)
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.values: list[Value] = []
        self.outputs: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.inputs: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.symbols: set[str] = set()  # inputs whose first size has a name
        self._shared: dict[tuple[Any, ...], str] = {}

    # what recipes use

    def constant(self, data: Any, word: str = "c") -> str:
        """An initializer, a Constant node, or an equal initializer that is there already."""
        data = np.asarray(data)
        key = (data.dtype.str, data.shape, data.tobytes())
        if key in self._shared and self.chance(0.5):
            return self._shared[key]
        name = self.fresh(word)
        if self.chance(0.1):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(data, name)))
        else:
            self.constants[name] = data
        self._shared[key] = name
        return name

    def random(self, shape: Sequence[int], size: float = 1.0) -> Array:
        return (np.random.default_rng(self.rng.getrandbits(32)).standard_normal(shape) * size).astype(np.float32)

    def integers(self, shape: Sequence[int], low: int, high: int, dtype: str) -> Array:
        return np.random.default_rng(self.rng.getrandbits(32)).integers(low, high + 1, shape).astype(dtype)

    def node(self, kind: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.fresh("v") for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def add(self, kind: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> Value:
        """A node with one real result of that shape."""
        return Value(self.node(kind, inputs, **attributes)[0], tuple(shape))

    def axes(self, kind: str, x: Value, axes: Sequence[int], shape: Sequence[int], since: int, **attributes: Any) -> Value:
        """A node whose axes are an attribute before opset `since`, and an input then."""
        if self.opset < since:
            return self.add(kind, [x.name], shape, axes=list(axes), **attributes)
        return self.add(kind, [x.name, self.constant(np.array(axes, np.int64))], shape, **attributes)

    # quantization

    def dtype(self) -> str:
        return str(self.pick(("uint8", "uint8", "int8", "int8", "int16", "uint16") if self.opset >= 21 else ("uint8", "uint8", "int8")))

    def quantization(self, dtype: str) -> tuple[Array, Array]:
        scale = self.pick(_SCALES) / (256 if "16" in dtype else 1)
        limits = np.iinfo(dtype)
        middle = 0 if limits.min else (limits.max + 1) // 2
        zero = self.pick((middle, middle, limits.min, limits.max, middle + 3, middle - 50))
        return np.float32(scale), np.array(zero, dtype)

    def pair(self, x: Value, quantization: tuple[Array, Array] | None = None) -> Value:
        """x between QuantizeLinear and DequantizeLinear; either may be there twice, and the integers an output."""
        dtype = self.dtype()
        scale, zero = quantization or self.quantization(dtype)
        shape = (1,) if self.chance(0.05) and x.shape[1:2] != (1,) else ()
        parameters = [self.constant(scale.reshape(shape), "s"), self.constant(zero.reshape(shape), "z")]
        if str(zero.dtype) == "uint8" and not zero and self.chance(0.5):
            parameters.pop()
        (stored,) = self.node("QuantizeLinear", [x.name, *parameters])
        if self.chance(0.1):  # the exporter that writes one for each reader
            (again,) = self.node("QuantizeLinear", [x.name, *parameters])
            self.values.append(self.add("DequantizeLinear", [again, *parameters], x.shape))
        if self.chance(0.1):
            self.values.append(self.add("DequantizeLinear", [stored, *parameters], x.shape))
        if self.chance(0.06):
            self.outputs[stored] = (str(zero.dtype), x.shape)
        if self.chance(0.05):
            (stored,) = self.node("Identity", [stored])
        return self.add("DequantizeLinear", [stored, *parameters], x.shape)

    def weights(self, shape: Sequence[int], axis: int = 0) -> tuple[str, Array | None]:
        """The name of real weights: float, or integers after a DequantizeLinear in many forms; and their scales if they have some."""
        form = self.pick(("float", "int8", "int8", "int8", "uint8", "axis", "axis", "fake"))
        if form == "float":
            return self.constant(self.random(shape, 0.5), "w"), None
        if form == "fake":
            scale, zero = self.constant(np.float32(0.02), "s"), self.constant(np.int8(0), "z")
            (stored,) = self.node("QuantizeLinear", [self.constant(self.random(shape, 0.5), "w"), scale, zero])
            return self.node("DequantizeLinear", [stored, scale, zero])[0], np.array([0.02], np.float32)
        if form == "axis" and self.opset >= 13:
            scales = np.float32(2.0) ** self.integers((shape[axis],), -8, -5, "float32")
            zeros = np.zeros(shape[axis], np.int8)
            data = self.constant(self.integers(shape, -127, 127, "int8"), "w")
            name = self.node("DequantizeLinear", [data, self.constant(scales, "s"), self.constant(zeros, "z")], axis=axis)[0]
            return name, scales
        dtype = "uint8" if form == "uint8" else "int8"
        zero = np.array(self.pick((128, 128, 120, 0)) if dtype == "uint8" else self.pick((0, 0, 0, 3)), dtype)
        scale = np.float32(self.pick((0.01, 1 / 64)))
        data = self.constant(self.integers(shape, np.iinfo(dtype).min, np.iinfo(dtype).max, dtype), "w")
        name = self.node("DequantizeLinear", [data, self.constant(scale, "s"), self.constant(zero, "z")])[0]
        if self.chance(0.1):
            (name,) = self.node("Identity", [name])
        return name, scale.reshape(1)

    def bias(self, count: int, scales: Array | None) -> list[str]:
        """None, real, or int32 with a quantization of its own: the products' scale is the reader's business."""
        form = self.pick(("none", "float", "int32", "int32"))
        if form == "none":
            return []
        if form == "float" or scales is None:
            return [self.constant(self.random((count,), 0.3), "b")]
        data = self.constant(self.integers((count,), -900, 900, "int32"), "b")
        product = np.float32(self.pick(_SCALES)) * scales.astype(np.float32)
        if product.size == 1:
            return self.node("DequantizeLinear", [data, self.constant(product.reshape(()), "s")])
        return self.node("DequantizeLinear", [data, self.constant(product, "s"), self.constant(np.zeros(count, np.int32), "z")], axis=0)


Recipe = Callable[[Strange, Value], "Value | None"]


def conv(s: Strange, x: Value) -> Value | None:
    if len(x.shape) < 3:
        return None
    channels, sizes = x.shape[1], x.shape[2:]
    group = channels if s.chance(0.3) else 1
    outputs = channels if s.chance(0.6) else channels * 2 if group > 1 else s.rng.randint(1, 5)
    window = [s.rng.randint(1, min(3, size)) for size in sizes]
    attributes: dict[str, Any] = {"group": group} if group > 1 or s.chance(0.3) else {}
    strides, pads, dilations = [1] * len(sizes), [0] * (2 * len(sizes)), [1] * len(sizes)
    if s.chance(0.3):
        attributes["strides"] = strides = [s.pick((1, 2)) for _ in sizes]
    form = s.pick(("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if form == "pads":
        attributes["pads"] = pads = [s.rng.randint(0, 1) for _ in pads]
    elif form != "none":
        attributes["auto_pad"] = form
    if s.chance(0.5):
        attributes["kernel_shape"] = window
    if form.startswith("SAME"):
        found = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    else:
        around = [a + b for a, b in zip(pads[: len(sizes)], pads[len(sizes) :], strict=True)]
        found = [(n + p - d * (k - 1) - 1) // t + 1 for n, p, k, t, d in zip(sizes, around, window, strides, dilations, strict=True)]
    weights, scales = s.weights((outputs, channels // group, *window))
    return s.add("Conv", [x.name, weights, *s.bias(outputs, scales)], (x.shape[0], outputs, *found), **attributes)


def conv_transpose(s: Strange, x: Value) -> Value | None:
    if len(x.shape) != 4 or max(x.shape) > 8:
        return None
    weights, scales = s.weights((x.shape[1], 3, 2, 2), axis=1)
    sizes = [2 * size for size in x.shape[2:]]
    return s.add("ConvTranspose", [x.name, weights, *s.bias(3, scales)], (x.shape[0], 3, *sizes), strides=[2, 2])


def gemm(s: Strange, x: Value) -> Value | None:
    if len(x.shape) != 2:
        return None
    outputs = s.rng.randint(1, 5)
    turned = int(s.chance(0.6))
    weights, scales = s.weights((outputs, x.shape[1]) if turned else (x.shape[1], outputs), axis=0 if turned else 1)
    return s.add("Gemm", [x.name, weights, *s.bias(outputs, scales)], (x.shape[0], outputs), transB=turned)


def matmul(s: Strange, x: Value) -> Value | None:
    if len(x.shape) < 2:
        return None
    if s.chance(0.2):
        rank = len(x.shape)
        turned = s.add("Transpose", [x.name], (*x.shape[:-2], x.shape[-1], x.shape[-2]), perm=[*range(rank - 2), rank - 1, rank - 2])
        return s.add("MatMul", [x.name, turned.name], (*x.shape[:-1], x.shape[-2]))
    outputs = s.rng.randint(1, 5)
    weights, _ = s.weights((x.shape[-1], outputs), axis=1)
    y = s.add("MatMul", [x.name, weights], (*x.shape[:-1], outputs))
    if s.chance(0.5):
        row = s.constant(s.random((outputs,)), "b")
        y = s.add("Add", [y.name, row] if s.chance(0.5) else [row, y.name], y.shape)
    return y


def clip(s: Strange, x: Value) -> Value:
    """Every form of bounds: scalars, absent, infinite, the wrong way round is not one."""
    lower, upper = s.pick(_BOUNDS)
    if lower is None and upper is None:
        return s.add("Clip", [x.name], x.shape)
    names = [x.name, "" if lower is None else s.constant(np.float32(lower), "lo")]
    if upper is not None:
        names.append(s.constant(np.float32(upper), "hi"))
    elif s.chance(0.3):
        names.append("")
    return s.add("Clip", names, x.shape)


def relu(s: Strange, x: Value) -> Value:
    return s.add("Relu", [x.name], x.shape)


def unary(s: Strange, x: Value) -> Value:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("Sigmoid", {}), ("Tanh", {}), ("Neg", {}), ("Abs", {}), ("LeakyRelu", {"alpha": 0.25}), ("HardSigmoid", {}), ("Elu", {}),
        ("Softmax", {"axis": len(x.shape) - 1}), ("Floor", {}), ("Identity", {}), ("Cast", {"to": TensorProto.FLOAT}),
    ]  # fmt: skip
    if s.opset >= 14:
        kinds.append(("HardSwish", {}))
    if s.opset >= 20:
        kinds.append(("Gelu", {}))
    kind, attributes = s.pick(kinds)
    return s.add(kind, [x.name], x.shape, **attributes)


def pair_of(s: Strange, x: Value) -> Value:
    """With another value, itself, a constant row or number, quantized or not."""
    kind = s.pick(("Add", "Add", "Sub", "Mul", "Max", "Min"))
    same = [value for value in s.values if value.shape == x.shape]
    form = s.pick(("value", "value", "self", "row", "number", "stored"))
    if form == "value" and same:
        other = s.pick(same).name
    elif form == "self":
        other = x.name
    elif form == "row":
        other = s.constant(s.random(x.shape[-1:]))
    elif form == "stored":
        data = s.constant(s.integers(x.shape[-1:], 0, 255, "uint8"))
        other = s.node("DequantizeLinear", [data, s.constant(np.float32(0.02)), s.constant(np.uint8(s.pick((0, 128))))])[0]
    else:
        other = s.constant(np.float32(s.pick((0.5, -1, 2, 0))))
    return s.add(kind, [x.name, other] if s.chance(0.6) else [other, x.name], x.shape)


def pool(s: Strange, x: Value) -> Value | None:
    if len(x.shape) < 3:
        return None
    sizes = x.shape[2:]
    kind = s.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if kind.startswith("Global"):
        return s.add(kind, [x.name], (*x.shape[:2], *[1] * len(sizes)))
    window = [s.rng.randint(1, min(2, size)) for size in sizes]
    strides = [s.pick((1, 2)) for _ in sizes]
    pads = [s.rng.randint(0, 1) if k > 1 else 0 for k in window] * 2 if s.chance(0.4) else [0] * 2 * len(sizes)
    found = [(n + 2 * p - k) // t + 1 for n, p, k, t in zip(sizes, pads, window, strides, strict=False)]
    more = {"count_include_pad": 1} if kind == "AveragePool" and s.chance(0.5) else {}
    return s.add(kind, [x.name], (*x.shape[:2], *found), kernel_shape=window, strides=strides, pads=pads, **more)


def reshape(s: Strange, x: Value) -> Value:
    count = int(np.prod(x.shape))
    form = s.pick(("flat", "rows", "back", "zero", "flatten"))
    if form == "flatten":
        return s.add("Flatten", [x.name], (x.shape[0], count // x.shape[0]), axis=1)
    if form == "rows":
        return s.add("Reshape", [x.name, s.constant(np.array([x.shape[0], -1]))], (x.shape[0], count // x.shape[0]))
    if form == "zero":
        return s.add("Reshape", [x.name, s.constant(np.array([0, -1, 1]))], (x.shape[0], count // x.shape[0], 1))
    if form == "back":
        y = s.add("Reshape", [x.name, s.constant(np.array([-1]))], (count,))
        s.values.append(y)
        return s.add("Reshape", [y.name, s.constant(np.array(x.shape))], x.shape)
    return s.add("Reshape", [x.name, s.constant(np.array([1, count]))], (1, count))


def move(s: Strange, x: Value) -> Value | None:
    rank = len(x.shape)
    axis = s.rng.randrange(rank)
    size = x.shape[axis]
    form = s.pick(("transpose", "unsqueeze", "squeeze", "slice", "reverse", "pad", "gather", "tile", "expand", "split", "concat", "depth"))
    if form == "transpose":
        perm = s.rng.sample(range(rank), rank)
        return s.add("Transpose", [x.name], [x.shape[i] for i in perm], perm=perm)
    if form == "unsqueeze" and rank < 5:
        return s.axes("Unsqueeze", x, [axis], (*x.shape[:axis], 1, *x.shape[axis:]), 13)
    if form == "squeeze" and size == 1 and rank > 1:
        return s.axes("Squeeze", x, [axis], (*x.shape[:axis], *x.shape[axis + 1 :]), 13)
    if form == "slice" and size > 1:
        bounds = [s.constant(np.array([value])) for value in (1, 2**40, axis - rank if s.chance(0.5) else axis)]
        return s.add("Slice", [x.name, *bounds], (*x.shape[:axis], size - 1, *x.shape[axis + 1 :]))
    if form == "reverse":
        bounds = [s.constant(np.array([value])) for value in (-1, -(2**62), axis, -1)]
        return s.add("Slice", [x.name, *bounds], x.shape)
    if form == "pad":
        pads = [s.rng.randint(0, 1) for _ in range(2 * rank)]
        mode = s.pick(("constant", "constant", "edge", "reflect"))
        if mode == "reflect" and min(x.shape) < 2:
            mode = "edge"
        filler = [s.constant(np.float32(s.pick((0, 0.5, 0.3))))] if mode == "constant" and s.chance(0.6) else []
        shape = [n + a + b for n, a, b in zip(x.shape, pads[:rank], pads[rank:], strict=True)]
        return s.add("Pad", [x.name, s.constant(np.array(pads)), *filler], shape, mode=mode)
    if form == "gather":
        taken = s.integers((2,), -size, size - 1, "int64")
        return s.add("Gather", [x.name, s.constant(taken)], (*x.shape[:axis], 2, *x.shape[axis + 1 :]), axis=axis)
    if form == "tile":
        times = [1] * rank
        times[axis] = 2
        return s.add("Tile", [x.name, s.constant(np.array(times))], [n * t for n, t in zip(x.shape, times, strict=True)])
    if form == "expand" and size == 1:
        wanted = [*x.shape[:axis], 2, *x.shape[axis + 1 :]]
        return s.add("Expand", [x.name, s.constant(np.array(wanted))], wanted)
    if form == "split" and size > 1:
        parts = [1, size - 1]
        given = [s.constant(np.array(parts))] if s.opset >= 13 else []
        names = s.node("Split", [x.name, *given], 2, axis=axis, **({} if given else {"split": parts}))
        found = [Value(name, (*x.shape[:axis], part, *x.shape[axis + 1 :])) for name, part in zip(names, parts, strict=True)]
        s.values.append(found[0])
        return found[1]
    if form == "concat":
        others = [value for value in s.values if value.shape == x.shape]
        names = [x.name, s.pick(others).name if others else x.name, x.name][: s.rng.randint(1, 3)]
        return s.add("Concat", names, (*x.shape[:axis], size * len(names), *x.shape[axis + 1 :]), axis=axis)
    if form == "depth" and rank == 4 and x.shape[1] % 4 == 0:
        n, c, h, w = x.shape
        return s.add("DepthToSpace", [x.name], (n, c // 4, 2 * h, 2 * w), blocksize=2, mode=s.pick(("DCR", "CRD")))
    return None


def reduce(s: Strange, x: Value) -> Value:
    axis = s.rng.randrange(len(x.shape))
    keep = s.pick((0, 1)) if len(x.shape) > 1 else 1
    shape = [1 if i == axis else n for i, n in enumerate(x.shape) if keep or i != axis]
    kind, since = s.pick((("ReduceMean", 18), ("ReduceMax", 18), ("ReduceSum", 13)))
    return s.axes(kind, x, [axis], shape, since, keepdims=keep)


def resize(s: Strange, x: Value) -> Value | None:
    if len(x.shape) != 4 or max(x.shape) > 8:
        return None
    shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
    scales = s.constant(np.array([1, 1, 2, 2], np.float32))
    mode, method = s.pick((("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"), ("nearest", "half_pixel")))
    more = {"nearest_mode": "floor"} if method == "asymmetric" else {}
    empty = s.constant(np.zeros(0, np.float32)) if s.opset < 13 else ""
    return s.add("Resize", [x.name, empty, scales], shape, mode=mode, coordinate_transformation_mode=method, **more)


def where(s: Strange, x: Value) -> Value:
    condition = s.constant(s.integers(x.shape, 0, 1, "bool"))
    others = [value for value in s.values if value.shape == x.shape]
    return s.add("Where", [condition, x.name, s.pick(others).name if others else s.constant(np.float32(0))], x.shape)


def index(s: Strange, x: Value) -> None:
    """Indices, which nobody reads on: an output."""
    name = s.node("ArgMax", [x.name], axis=len(x.shape) - 1, keepdims=0)[0]
    s.outputs[name] = ("int64", x.shape[:-1])


RECIPES: Sequence[Recipe] = (
    conv, conv, conv, conv_transpose, gemm, gemm, matmul, clip, clip, relu, relu, unary, unary, pair_of, pair_of, pool, reshape, move, move,
    move, reduce, resize, where, index,
)  # fmt: skip

_LARGEST = 500


def _network(s: Strange) -> None:
    """A network of some recipes on one of the model's inputs, or on a new one."""
    start = len(s.values)
    if s.inputs and s.chance(0.4):
        name = s.pick(tuple(s.inputs))
    else:
        name = s.fresh("x")
        s.inputs[name] = ("float32", s.pick(_SHAPES))
        if s.chance(0.15):
            s.symbols.add(name)
    x = Value(name, s.inputs[name][1])
    s.values.append(s.pair(x) if s.chance(0.8) else x)
    for _ in range(s.rng.randint(1, 8)):
        mine = s.values[start:]
        x = mine[-1] if s.chance(0.65) else s.pick(mine)
        y = s.pick(RECIPES)(s, x)
        if y is None or np.prod(y.shape) > _LARGEST or 0 in y.shape:
            continue
        s.values.append(y)
        if s.chance(0.65):
            y = s.pair(y)
            s.values.append(y)
            if s.chance(0.12):  # a second quantization for the same values
                s.values.append(s.pair(s.values[-2]))
            if s.chance(0.08):  # twice in a row
                s.values.append(s.pair(y))
    read = {name for node in s.nodes for name in node.input}
    ends = [value for value in s.values[start:] if value.name not in read]
    if s.chance(0.4):
        ends.append(s.pick(s.values[start:]))
    for value in ends or [s.values[-1]]:
        s.outputs[value.name] = ("float32", value.shape)


def strange_model(rng: Random, networks: int = 3) -> ModelProto:
    """A valid model of up to so many networks, of an opset from 11 to 24."""
    s = Strange(rng, rng.choice(_OPSETS))
    for _ in range(rng.randint(1, networks)):
        _network(s)
    written = {name for node in s.nodes for name in node.output} | set(s.inputs)
    outputs = [(name, *of) for name, of in s.outputs.items() if name in written]
    if rng.random() < 0.03:
        outputs.append(outputs[0])
    graph = helper.make_graph(
        s.nodes, "strange",
        [helper.make_tensor_value_info(name, _TYPES[dtype], [*([f"n{shape[0]}"] if name in s.symbols else shape[:1]), *shape[1:]])
         for name, (dtype, shape) in s.inputs.items()],
        [helper.make_tensor_value_info(name, _TYPES[dtype], None if s.symbols else shape) for name, dtype, shape in outputs],
        [numpy_helper.from_array(data, name) for name, data in s.constants.items()],
    )  # fmt: skip
    return model_of(graph, s.opset)


def feed(model: ModelProto, seed: int = 0) -> dict[str, Array]:
    """Values for the inputs: the sizes with a name get the number that the model was made for."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in model.graph.input:
        sizes = [dim.dim_value or int(dim.dim_param[1:]) for dim in value.type.tensor_type.shape.dim]
        found[value.name] = (rng.standard_normal(sizes) * 2).astype(np.float32)
    return found
