"""Random valid canonical graphs for tests: quantized and real operators of many kinds, fed from one input or two.

A seed is a graph. Each operator is one of RECIPES, which takes a tensor that is there already and adds what it needs; one that does not fit
its tensor adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.graph import Array, canonical_dtype, integer_range, numpy_dtype
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.operators import KINDS
from qconvert.operators.shapes_and_functions import output_shapes
from qconvert.rules.validation import validate

_ACTIVATIONS = ("", "", "relu", "relu6", "relu_n1_to_1")
_LARGEST = 600  # elements of a tensor


class Growing:
    """A graph while it grows. `rng` makes data and all choices, so that a seed is a graph."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.inputs: list[str] = []
        self.made: list[str] = []  # what a later operator may read

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def fresh(self, wanted: str) -> str:
        return f"{wanted}{len(self.tensors)}"

    def quantization(self, dtype: str, scale: float | None = None) -> Quantization:
        """A quantization of one scale; signed 16-bit and half of the others are symmetric."""
        low, high = integer_range(dtype)
        scale = float(np.float32(2.0 ** self.rng.uniform(-6, 0))) if scale is None else scale
        middle = 0 if low < 0 else (high + 1) // 2
        point = middle if dtype == "int16" or self.rng.random() < 0.4 else int(self.rng.integers(low // 2, high // 2 + 1))
        return Quantization.per_tensor(scale, point)

    def input(self, dtype: str, shape: tuple[int, ...]) -> None:
        name = self.fresh("x")
        self.tensors[name] = Tensor(name, dtype, shape, None, None if dtype == "float32" else self.quantization(dtype))
        self.inputs.append(name)
        self.made.append(name)

    def constant(self, data: Array, q: Quantization | None = None, dtype: str = "") -> str:
        name = self.fresh("c")
        self.tensors[name] = Tensor(name, dtype or canonical_dtype(data.dtype), data.shape, data, q)
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def like(self, x: Tensor, shape: tuple[int, ...]) -> str:
        """A constant of data as `x` is, quantized with a quantization of its own or real."""
        if x.quantization is None:
            return self.constant(self.rng.standard_normal(shape).astype(np.float32))
        low, high = integer_range(x.dtype)
        data = self.rng.integers(low, high + 1, shape).astype(numpy_dtype(x.dtype))
        return self.constant(data, self.quantization(x.dtype), x.dtype)

    def add(self, kind: str, inputs: Sequence[str], *results: tuple[str, Quantization | None], **attributes: Any) -> list[str]:
        """An operator with a result for each (dtype, quantization); too large ones are not kept."""
        names = [f"t{len(self.tensors) + index}" for index in range(len(results))]
        op = Op(kind, tuple(inputs), tuple(names), attributes, f"{kind} #{len(self.ops)}")
        shapes = output_shapes(self.tensors, op)
        if any(shape is None or np.prod(shape) > _LARGEST or 0 in shape for shape in shapes):
            return []
        for name, (dtype, q), shape in zip(names, results, shapes, strict=True):
            self.tensors[name] = Tensor(name, dtype, shape, None, q)
        self.ops.append(op)
        self.made += names
        return names

    def real(self, kind: str, inputs: Sequence[str], x: Tensor, scale: float | None = None, **attributes: Any) -> list[str]:
        """An operator of float values: quantized as `x` is, with a quantization of its own, or real."""
        return self.add(kind, inputs, (x.dtype, None if x.quantization is None else self.quantization(x.dtype, scale)), **attributes)

    def moved(self, kind: str, inputs: Sequence[str], x: Tensor, **attributes: Any) -> list[str]:
        """An operator that moves stored values."""
        return self.add(kind, inputs, (x.dtype, x.quantization), **attributes)


Recipe = Callable[..., Any]


def _weights(g: Growing, x: Tensor, shape: tuple[int, ...]) -> tuple[str, Array | None]:
    """Weights O,I,… next to x: signed or unsigned, per tensor or per axis; and the scales of their products with x."""
    if x.quantization is None:
        return g.constant((g.rng.standard_normal(shape) / 4).astype(np.float32)), None
    dtype = g.pick(("int8", "int8", "uint8")) if x.dtype != "int16" else "int8"
    low, high = integer_range(dtype)
    data = g.rng.integers(low + 1, high + 1, shape).astype(dtype)
    zero = 0 if low < 0 else 128 if g.rng.random() < 0.6 else int(g.rng.integers(*g.pick(((100, 150), (0, 256)))))
    per_axis = dtype == "int8" and g.rng.random() < 0.5
    scales = np.float32(2.0 ** g.rng.uniform(-9, -6, shape[0] if per_axis else 1))
    q = Quantization.per_axis(scales, 0, zero) if per_axis else Quantization.per_tensor(float(scales[0]), zero)
    return g.constant(data, q, dtype), x.quantization.scale * scales


def _bias(g: Growing, products: Array | None, count: int) -> str:
    """No bias, an integer one at the products' scale, or a real one."""
    if g.rng.random() < 0.3:
        return ""
    if products is None or g.rng.random() < 0.2:
        return g.constant((g.rng.standard_normal(count) / 4).astype(np.float32))
    q = Quantization.per_axis(products, 0) if products.size > 1 else Quantization.per_tensor(float(products[0]))
    return g.constant(g.rng.integers(-3000, 3000, count).astype(np.int32), q)


def _channels(x: Tensor, form: str) -> int:
    assert x.shape is not None
    return int(x.shape[-1 if form == "channels_last" else 1])


def _form(g: Growing) -> str:
    return str(g.pick(("channels_first", "channels_last")))


def _window(g: Growing, x: Tensor, form: str) -> tuple[int, ...] | None:
    """A window that fits; None for data that are no picture and no row."""
    if x.rank not in (3, 4):
        return None
    sizes = x.shape[1:-1] if form == "channels_last" else x.shape[2:]  # type: ignore[index]
    return tuple(int(g.rng.integers(1, min(int(size), 3) + 1)) for size in sizes)


def conv(g: Growing, x: Tensor, form: str = "") -> None:
    form = form or _form(g)
    window = _window(g, x, form)
    if window is None:
        return
    channels = _channels(x, form)
    group = channels if g.rng.random() < 0.4 else 1
    outputs = channels * g.pick((1, 2)) if group > 1 else int(g.rng.integers(1, 5))
    weights, products = _weights(g, x, (outputs, channels // group, *window))
    bias = _bias(g, products, outputs)
    pads = tuple(int(g.rng.integers(0, 2)) for _ in range(2 * len(window)))
    attributes = {"strides": tuple(g.pick((1, 2)) for _ in window), "pads": pads, "dilations": (1,) * len(window), "group": group,
                  "data_format": form, "activation": g.pick(_ACTIVATIONS)}  # fmt: skip
    g.real("Conv", [x.name, weights, *([bias] if bias else [])], x, **attributes)


def padded(g: Growing, x: Tensor) -> None:
    """Real zero around the data of a convolution."""
    if x.rank == 4:
        form = _form(g)
        around = [int(value) for value in g.rng.integers(0, 3, 4)]
        begin, end = ([0, *around[:2], 0], [0, *around[2:], 0]) if form == "channels_last" else ([0, 0, *around[:2]], [0, 0, *around[2:]])
        for name in g.moved("Pad", [x.name, g.integers(*begin, *end)], x):
            conv(g, g.tensors[name], form)


def dilated(g: Growing, x: Tensor) -> None:
    """A convolution between blocks that go to the batch and come back, mostly such as TensorFlow writes for dilations."""
    if x.rank != 4:
        return
    form = _form(g)
    blocks = [int(value) for value in g.rng.integers(1, 4, 2)]
    sizes: Any = (x.shape or ())[1:3] if form == "channels_last" else (x.shape or ())[2:]
    begins = [int(value) for value in g.rng.integers(0, 3, 2)]
    missing = [-(size + begin) % block for size, begin, block in zip(sizes, begins, blocks, strict=True)]
    pads = g.integers(*begins, *(more + block for more, block in zip(missing, blocks, strict=True)))
    (split,) = g.moved("SpaceToBatch", [x.name, g.integers(*blocks), pads], x, data_format=form) or [""]
    count = len(g.made)
    if split:
        conv(g, g.tensors[split], form)
    if len(g.made) > count:
        result = g.tensors[g.made[-1]]
        crops = g.integers(0, 0, *(missing if g.rng.random() < 0.7 else (1, 0)))
        g.moved("BatchToSpace", [result.name, g.integers(*blocks), crops], result, data_format=form)


def normalized(g: Growing, x: Tensor) -> None:
    """A real convolution with its normalization."""
    if x.rank == 4 and x.quantization is None:
        form = _form(g)
        conv(g, x, form)
        normalization(g, g.tensors[g.made[-1]], form)


def gemm(g: Growing, x: Tensor) -> None:
    if x.rank != 2:
        return
    outputs = int(g.rng.integers(1, 6))
    weights, products = _weights(g, x, (outputs, int(x.shape[1])))  # type: ignore[index]
    bias = _bias(g, products, outputs)
    g.real("Gemm", [x.name, weights, *([bias] if bias else [])], x, activation=g.pick(_ACTIVATIONS))


def shared(g: Growing, x: Tensor) -> None:
    """A second operator with the weights and the bias of an earlier one, or with weights of the same scale and another zero point."""
    linear = [op for op in g.ops if op.kind in ("Conv", "Gemm") and op.inputs[1] in g.tensors]
    if not linear:
        return
    op = g.pick(linear)
    data, weights = g.tensors[op.inputs[0]], g.tensors[op.inputs[1]]
    q = weights.quantization
    inputs = list(op.inputs)
    if q is not None and weights.data is not None and weights.dtype == "uint8" and g.rng.random() < 0.5:
        inputs[1] = g.constant(weights.data, Quantization(q.scale, (q.zero_point + 31) % 256, q.axis), "uint8")
    g.real(op.kind, inputs, data, **op.attributes)


def tied(g: Growing, x: Tensor) -> None:
    """A table whose rows are looked up and which multiplies data too."""
    if x.rank != 2 or x.quantization is None:
        return
    count = int(x.shape[-1])  # type: ignore[index]
    dtype = g.pick(("int8", "uint8")) if x.dtype != "int16" else "int8"
    low, high = integer_range(dtype)
    table = g.constant(g.rng.integers(low, high + 1, (count, count)).astype(dtype), g.quantization(dtype), dtype)
    g.moved("Gather", [table, g.integers(0, count - 1)], g.tensors[table], axis=0)
    g.real(g.pick(("Gemm", "MatMul")), [x.name, table], x)


def matmul(g: Growing, x: Tensor) -> None:
    if x.rank is None or x.rank < 2:
        return
    (product,) = g.real("MatMul", [x.name, g.like(x, (int(x.shape[-1]), 3))], x) or [""]  # type: ignore[index]
    if product and g.rng.random() < 0.5:
        y = g.tensors[product]
        g.real("Add", [product, g.like(y, (3,))], y)


def pool(g: Growing, x: Tensor) -> None:
    form = _form(g)
    window = _window(g, x, form)
    if window is None:
        return
    attributes = {
        "kernel_shape": window,
        "strides": tuple(g.pick((1, 2)) for _ in window),
        "pads": (0,) * 2 * len(window),
        "data_format": form,
    }
    if g.rng.random() < 0.5:
        g.moved("MaxPool", [x.name], x, **attributes)
    elif g.rng.random() < 0.5 or x.quantization is None:
        g.real("AveragePool", [x.name], x, **attributes)
    else:
        own = g.pick(("", "ties_up", "ties_away")) if x.dtype in ("int8", "uint8") else ""
        g.moved("AveragePool", [x.name], x, arithmetic=own, **attributes)


def global_pool(g: Growing, x: Tensor) -> None:
    if x.rank == 4:
        g.real("GlobalAveragePool", [x.name], x, data_format=_form(g))


def unary(g: Growing, x: Tensor) -> None:
    kind = g.pick(("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Softmax", "Abs", "Neg", "Elu", "Gelu", "Exp", "Floor"))
    g.real(kind, [x.name], x)


def relu(g: Growing, x: Tensor) -> None:
    if g.rng.random() < 0.5:
        g.moved("Relu", [x.name], x)
    else:
        bounds = g.pick(((0, 6), (-1, 1), (-0.5, 2)))
        g.moved("Clip", [x.name, *(g.constant(np.array(bound, np.float32)) for bound in bounds)], x)


def pair(g: Growing, x: Tensor) -> None:
    kind = g.pick(("Add", "Add", "Sub", "Mul", "Max", "Min"))
    others = [g.tensors[name] for name in g.made if (g.tensors[name].dtype, g.tensors[name].shape) == (x.dtype, x.shape)]
    if g.rng.random() < 0.6:
        other = g.pick(others).name
    elif g.rng.random() < 0.5 or x.quantization is None:
        other = g.like(x, (int(x.shape[-1]),))  # type: ignore[index]
    else:
        other = g.constant(np.float32(g.rng.uniform(-2, 2, 1)))
    more = {"activation": g.pick(_ACTIVATIONS)} if kind in ("Add", "Sub", "Mul") else {}
    if other != x.name:
        g.real(kind, [x.name, other], x, **more)


def concat(g: Growing, x: Tensor) -> None:
    others = [name for name in g.made if (g.tensors[name].dtype, g.tensors[name].shape) == (x.dtype, x.shape)]
    names = [x.name, g.pick(others), g.like(x, x.shape)][: int(g.rng.integers(1, 4))]  # type: ignore[arg-type]
    g.real("Concat", names, x, axis=int(g.rng.integers(0, x.rank)))  # type: ignore[arg-type]


def where(g: Growing, x: Tensor) -> None:
    """By a constant condition, or by one that is computed, whose layout has to follow that of the data."""
    condition = g.constant(g.rng.random(x.shape) < 0.5)  # type: ignore[arg-type]
    if g.rng.random() < 0.5:
        (condition,) = g.add("Greater", [x.name, g.like(x, x.shape)], ("bool", None))  # type: ignore[arg-type]
        g.made.remove(condition)  # truth values are for this operator alone
    g.real("Where", [condition, x.name, g.like(x, x.shape)], x)  # type: ignore[arg-type]


def reshape(g: Growing, x: Tensor) -> None:
    sizes = [int(size) for size in x.shape]  # type: ignore[union-attr]
    wanted = g.pick(([sizes[0], -1], [1, 1, *sizes][-4:] if len(sizes) < 4 else sizes, [int(np.prod(sizes))]))
    if np.prod([size for size in wanted if size > 0]) in (np.prod(sizes), sizes[0]):
        g.moved("Reshape", [x.name, g.integers(*wanted)], x)


def squeeze(g: Growing, x: Tensor) -> None:
    if g.rng.random() < 0.5 and x.rank and x.rank < 4:
        g.moved("Unsqueeze", [x.name, g.integers(int(g.rng.integers(0, x.rank + 1)))], x)
    elif x.rank and x.rank > 1 and x.shape[0] == 1:  # type: ignore[index]
        g.moved("Squeeze", [x.name, g.integers(0)], x)


def transpose(g: Growing, x: Tensor) -> None:
    g.moved("Transpose", [x.name], x, perm=tuple(int(axis) for axis in g.rng.permutation(x.rank)))  # type: ignore[arg-type]


def pad(g: Growing, x: Tensor) -> None:
    pads = g.rng.integers(0, 2, 2 * x.rank)  # type: ignore[operator]
    g.moved("Pad", [x.name, g.integers(*(int(value) for value in pads))], x)


def cut(g: Growing, x: Tensor) -> None:
    axis = int(g.rng.integers(0, x.rank))  # type: ignore[arg-type]
    size = int(x.shape[axis])  # type: ignore[index]
    if size < 2:
        return
    if g.rng.random() < 0.5:
        g.moved("Slice", [x.name, g.integers(1), g.integers(size), g.integers(axis), g.integers(1)], x)
    else:
        g.add("Split", [x.name, g.integers(1, size - 1)], (x.dtype, x.quantization), (x.dtype, x.quantization), axis=axis)


def take(g: Growing, x: Tensor) -> None:
    axis = int(g.rng.integers(0, x.rank))  # type: ignore[arg-type]
    indices = g.constant(g.rng.integers(0, x.shape[axis], 2).astype(np.int64))  # type: ignore[index]
    g.moved("Gather", [x.name, indices], x, axis=axis)


def repeat(g: Growing, x: Tensor) -> None:
    if g.rng.random() < 0.5:
        g.moved("Tile", [x.name, g.integers(*(int(g.pick((1, 2))) for _ in range(x.rank)))], x)  # type: ignore[arg-type]
    else:
        g.moved("Identity", [x.name], x)


def reduce(g: Growing, x: Tensor) -> None:
    axes = g.integers(int(g.rng.integers(0, x.rank)))  # type: ignore[arg-type]
    kind = g.pick(("ReduceMean", "ReduceSum", "ReduceMax"))
    (g.moved if kind == "ReduceMax" else g.real)(kind, [x.name, axes], x, keepdims=g.pick((0, 1)))


def resize(g: Growing, x: Tensor) -> None:
    if x.rank != 4:
        return
    mode = g.pick(("nearest", "linear"))
    method = "asymmetric" if mode == "nearest" else "half_pixel"
    sizes = g.integers(int(g.rng.integers(1, 6)), int(g.rng.integers(1, 6)))
    (g.moved if g.rng.random() < 0.6 else g.real)(
        "Resize", [x.name, sizes], x, mode=mode, coordinate_transformation_mode=method, data_format=_form(g)
    )


def space(g: Growing, x: Tensor) -> None:
    form = _form(g)
    if x.rank == 4 and _channels(x, form) % 4 == 0:
        g.moved("DepthToSpace", [x.name], x, blocksize=2, data_format=form)
    elif x.rank == 4 and all(int(size) % 2 == 0 for size in (x.shape[1:3] if form == "channels_last" else x.shape[2:])):  # type: ignore[index]
        g.moved("SpaceToDepth", [x.name], x, blocksize=2, data_format=form)


def normalization(g: Growing, x: Tensor, form: str = "") -> None:
    form = form or _form(g)
    if x.rank != 4 or x.quantization is not None:
        return
    count = _channels(x, form)
    parts = [g.constant(g.rng.uniform(0.5, 1.5, count).astype(np.float32)) for _ in range(4)]
    g.real("BatchNormalization", [x.name, *parts], x, data_format=form)


def gelu(g: Growing, x: Tensor) -> None:
    """The Gelu that exporters decompose, with or without quantizations between its parts: x * 0.5 * (1 + erf(x / sqrt 2))."""
    number = [g.constant(np.array(value, np.float32)) for value in (np.sqrt(2), 1, 0.5)]
    (inner,) = g.real("Div", [x.name, number[0]], x) or [""]
    (erf,) = g.real("Erf", [inner], x) if inner else [""]
    (more,) = g.real("Add", [erf, number[1]], x) if erf else [""]
    (scaled,) = g.real("Mul", [x.name, more], x) if more else [""]
    if scaled:
        g.real("Mul", [scaled, number[2]], x)


def convert(g: Growing, x: Tensor) -> None:
    """Between float values and quantizations, and between quantizations."""
    dtype = g.pick(("int8", "uint8", "int8", "uint8", "int16"))
    if x.quantization is None:
        g.add("Quantize", [x.name], (dtype, g.quantization(dtype)))
    elif g.rng.random() < 0.5:
        g.add("Dequantize", [x.name], ("float32", None))
    else:
        g.add("Requantize", [x.name], (dtype, g.quantization(dtype)))


def few_bits(g: Growing, x: Tensor) -> None:
    """Data of 2 or 4 bits that are moved, chosen and compared, and their float values after that."""
    dtype = g.pick(("int4", "uint4", "int2", "uint2"))
    quantization, kept = g.quantization(dtype), list(g.made)
    found = g.add("Quantize" if x.quantization is None else "Requantize", [x.name], (dtype, quantization))
    for _ in range(int(g.rng.integers(1, 4))):
        data = g.tensors[found[0]]
        flat = [int(np.prod(data.shape))]  # type: ignore[arg-type]
        found = g.pick((
            lambda data, flat: g.moved("Reshape", [data.name, g.integers(*flat)], data),
            lambda data, flat: g.moved("Transpose", [data.name], data, perm=tuple(range(len(data.shape)))[::-1]),
            lambda data, flat: g.moved("Unsqueeze", [data.name, g.integers(0)], data),
            lambda data, flat: g.add("Relu", [data.name], (dtype, quantization)),
            lambda data, flat: g.add("Concat", [data.name, data.name], (dtype, g.pick((quantization, g.quantization(dtype)))), axis=0),
        ))(data, flat) or found  # fmt: skip
    g.made = kept
    g.add("Dequantize", [found[0]], ("float32", None))


def rounded(g: Growing, x: Tensor) -> None:
    """A product of data that are rounded when it runs, in the nodes that ONNX has for it."""
    if x.rank != 2 or any(op.kind == "DynamicQuantizeLinear" for op in g.ops):
        return  # a second one would round what differs in its last bit to another step
    real = _real(g, x)
    if real is None:
        return
    data, scale, zero = g.add("DynamicQuantizeLinear", [real], ("uint8", None), ("float32", None), ("uint8", None))
    inner, count = int(x.shape[-1]), int(g.rng.integers(2, 5))  # type: ignore[index]
    weights = g.constant(g.rng.integers(-127, 128, (inner, count)).astype(g.pick((np.int8, np.int8, np.uint8))))
    signed = g.tensors[weights].dtype == "int8"
    point = g.constant(np.array(0 if signed else 128, np.int8 if signed else np.uint8))
    total = g.add("MatMulInteger", [data, weights, zero, point], ("int32", None))
    scales = g.constant(np.float32(2.0 ** g.rng.uniform(-9, -6, g.pick(((), (count,))))))
    wide = g.add("Cast", total, ("float32", None), to="float32")
    both = g.add("Mul", [scale, scales], ("float32", None))
    done = g.add("Mul", [*wide, *both][:: g.pick((1, -1))], ("float32", None))
    inside = {data, scale, zero, *total, *wide, *both}
    g.made = [name for name in g.made if name not in inside or (name not in done and g.rng.random() < 0.1 and name in wide)]


def hybrid(g: Growing, x: Tensor) -> None:
    """An operator of integer weights next to real data, which it rounds when it runs."""
    real = _real(g, x)
    if real is None or x.rank not in (2, 4):
        return
    form, rounding = _form(g), g.pick(KINDS["Gemm"].attributes["arithmetic"].choices[1:])
    inner = _channels(x, form) if x.rank == 4 else int(x.shape[-1])  # type: ignore[index]
    count = int(g.rng.integers(2, 5))
    shape = (count, inner, *(_window(g, x, form) or ()))
    scales = np.float32(2.0 ** g.rng.uniform(-9, -6, g.pick((1, count))))
    quantization = Quantization.per_axis(scales, 0, 0) if scales.size > 1 else Quantization.per_tensor(float(scales[0]), 0)
    inputs = [real, g.constant(g.rng.integers(-127, 128, shape).astype(np.int8), quantization)]
    inputs += [_bias(g, None, count)]
    if x.rank == 4:
        window = {"strides": (1, g.pick((1, 2))), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1, "data_format": form}
        g.add("Conv", inputs, ("float32", None), arithmetic=rounding, **window)
    else:
        g.add("Gemm", inputs, ("float32", None), arithmetic=rounding)


def narrow(g: Growing, x: Tensor) -> None:
    """Part of a network of float16: a product by weights, and what follows it, with casts around."""
    real = _real(g, x)
    if real is None or x.rank != 2:
        return
    (value,) = g.add("Cast", [real], ("float16", None), to="float16")
    inner, count = int(x.shape[-1]), int(g.rng.integers(2, 5))  # type: ignore[index]
    weights = g.constant((g.rng.standard_normal((count, inner)) / 4).astype(np.float16))
    (product,) = g.add("Gemm", [value, weights, ""], ("float16", None))
    (curve,) = g.add(g.pick(("Relu", "Tanh", "Sigmoid")), [product], ("float16", None))
    g.add("Cast", [curve], ("float32", None), to="float32")
    g.made = [name for name in g.made if name not in (value, product, curve)]


def _real(g: Growing, x: Tensor) -> str | None:
    """The name of the float values of x within bounds, as a range needs them; None if it has none."""
    if x.dtype != "float32" and x.quantization is None:
        return None
    real = x.name if x.dtype == "float32" else g.add("Dequantize", [x.name], ("float32", None))[0]
    bounds = [g.constant(np.float32(value)) for value in (-8, 8)]
    return g.add("Clip", [real, *bounds], ("float32", None))[0]


def weighted(g: Growing, x: Tensor) -> None:
    """Real data times the float values of constant integers: weights of 8 or 16 bits of an operator that computes in float."""
    if x.dtype == "float32" and x.shape:
        dtype, count = g.pick(("int8", "uint8", "int16", "uint16")), int(x.shape[-1])
        low, high = integer_range(dtype)
        quantization = g.quantization(dtype)
        if g.rng.random() < 0.5:
            quantization = Quantization(
                np.float32(2.0 ** g.rng.uniform(-9, -6, count)), np.full(count, quantization.zero_point[0]), len(x.shape) - 1
            )
        data = g.rng.integers(low, high + 1, x.shape).astype(dtype)
        (weights,) = g.add("Dequantize", [g.constant(data, quantization, dtype)], ("float32", None)) or [""]
        if weights:
            g.real("Mul", [x.name, weights], x)


def lowest(g: Growing, x: Tensor) -> None:
    """A product by weights that use the lowest integer of their type, with a zero point or without."""
    if x.quantization is None or x.dtype not in ("int8", "uint8") or not x.shape:
        return
    inner, count = int(x.shape[-1]), int(g.rng.integers(2, 5))
    flat = x.name if x.rank == 2 else g.moved("Reshape", [x.name, g.integers(-1, inner)], x)[0]
    dtype = g.pick(("int8", "uint8"))
    low, high = integer_range(dtype)
    data = g.rng.integers(low, high + 1, (count, inner)).astype(dtype)
    data[0, 0] = low
    quantization = Quantization.per_tensor(0.01, int(g.rng.integers(low + 100, high - 100)))
    g.real("Gemm", [flat, g.constant(data, quantization, dtype), ""], x)


def search(g: Growing, x: Tensor) -> None:
    """Plain numbers that nobody reads on: a graph output."""
    if g.rng.random() < 0.5:
        g.add("ArgMax", [x.name], ("int64", None), axis=-1, keepdims=0)
    else:
        g.add("Less", [x.name, g.like(x, x.shape)], ("bool", None))  # type: ignore[arg-type]
    g.made.pop()


def dead(g: Growing, x: Tensor) -> None:
    """A constant computed at run time: equal constants, of which a pass may keep one."""
    shape = (2, 2)
    copies = [g.constant(np.arange(4, dtype=np.float32).reshape(shape)) for _ in range(2)]
    g.add("Add", copies, ("float32", None))


RECIPES: Sequence[Recipe] = (
    conv, conv, conv, gemm, gemm, shared, tied, matmul, pool, global_pool, unary, unary, relu, pair, pair, concat, where, reshape, squeeze,
    transpose, pad, cut, take, repeat, reduce, resize, space, normalized, padded, gelu, convert, convert, convert, search, dead, weighted,
)  # fmt: skip

#: No cubes: their layout does not show.
_SHAPES = ((1, 4, 6, 4), (1, 3, 5, 4), (2, 3, 4, 1), (1, 6, 3), (2, 5), (3, 4))


def random_graph(seed: int, favoured: Sequence[Recipe] = ()) -> Graph:
    """The valid graph of a seed, of up to ten recipes; half of them from `favoured`, if there are any."""
    g = Growing(np.random.default_rng(seed))
    for _ in range(g.pick((1, 1, 2))):
        g.input(g.pick(("int8", "uint8", "float32", "int16", "int8", "uint8", "float32")), g.pick(_SHAPES))
    for _ in range(int(g.rng.integers(2, 11))):
        x = g.tensors[g.made[-1] if g.rng.random() < 0.7 else g.pick(g.made)]
        if x.shape:
            g.pick(favoured if favoured and g.rng.random() < 0.5 else RECIPES)(g, x)
    return _graph(g)


def _graph(g: Growing) -> Graph:
    """What has grown: nearly every tensor that nobody reads is an output, the others are dead."""
    read = {name for op in g.ops for name in op.inputs}
    ends = [name for op in g.ops for name in op.outputs if name not in read]
    outputs = tuple(name for name in ends if g.rng.random() < 0.9) or tuple(ends) or (g.inputs[0],)
    used = read | {name for op in g.ops for name in op.outputs} | set(outputs)
    metadata = {SOURCE_KERNELS: "litert:default"} if g.rng.random() < 0.5 else {}
    tensors = {name: tensor for name, tensor in g.tensors.items() if name in used}
    graph = Graph("random", tensors, tuple(g.ops), tuple(name for name in g.inputs if name in used), outputs, metadata=metadata)
    validate(graph)
    return graph
