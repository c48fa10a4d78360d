"""Random valid TFLite models: operators of all types mixed, constants shared, scales that kernels ignore, outputs in the middle.

    data = strange_tflite(random.Random(7))
    inputs = random_inputs(data, seed=7)

As strange_models.py does for ONNX: a model holds several small networks, and all choices come from a random.Random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from choices import Choices
from tflite_models import OpSpec, TensorSpec, model

Array = np.ndarray[Any, np.dtype[Any]]
Recipe = Callable[["Grown", TensorSpec], "TensorSpec | None"]

_SCALES = (1 / 32, 1 / 16, 0.05, 0.031, 0.0234375, 1 / 8)
_SHAPES = ((1, 4, 4, 4), (1, 4, 5, 3), (2, 3, 5, 2), (2, 3, 4), (1, 6, 3), (2, 5), (3, 4), (1, 2, 3, 4, 3), (6,), (1, 1, 5, 4))
_TYPES = ("int8", "int8", "int8", "uint8", "uint8", "int16", "float32", "float32")
_LARGEST = 500
#: ActivationFunctionType: none, RELU, RELU_N1_TO_1, RELU6.
_FUSED = (0, 0, 0, 1, 2, 3)


class Grown(Choices):
    """A model while it grows."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.ops: list[OpSpec] = []
        self.tensors: dict[str, TensorSpec] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.values: list[TensorSpec] = []
        self.linear: list[tuple[str, str, TensorSpec, TensorSpec | None]] = []  # builtin, type of data, weights, bias
        self._shared: dict[tuple[Any, ...], str] = {}

    def add(self, word: str, shape: Sequence[int], dtype: str, **more: Any) -> TensorSpec:
        tensor = TensorSpec(f"{word}{len(self.tensors)}", tuple(int(size) for size in shape), dtype, **more)
        self.tensors[tensor.name] = tensor
        return tensor

    def random(self, shape: Sequence[int], low: float, high: float, dtype: str) -> Array:
        rng = np.random.default_rng(self.rng.getrandbits(32))
        return (
            rng.uniform(low, high, shape).astype(dtype)
            if dtype == "float32"
            else rng.integers(int(low), int(high) + 1, shape).astype(dtype)
        )

    def ints(self, *values: Any, dtype: str = "int32") -> str:
        """A constant of indices, or an equal one that is there already."""
        data = np.array(values[0] if len(values) == 1 and isinstance(values[0], list) else values, dtype)
        key = (dtype, data.shape, data.tobytes())
        if key not in self._shared or self.chance(0.3):
            self._shared[key] = self.add("c", data.shape, dtype, data=data).name
        return self._shared[key]

    def quantization(self, dtype: str) -> dict[str, Any]:
        """A quantization for a type; none for float values."""
        if dtype == "float32":
            return {}
        if dtype == "int16":
            return {"scale": self.pick(_SCALES) / 256, "zero_point": 0}
        low = -128 if dtype == "int8" else 0
        return {"scale": self.pick(_SCALES), "zero_point": low + self.pick((0, 128, 128, 131, 255, 78))}

    def like(self, x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
        """A result of the type of x, with a quantization of its own or on that of x."""
        if x.scale is None or self.chance(0.3):
            return self.add("v", shape, x.dtype, scale=x.scale, zero_point=x.zero_point)
        return self.add("v", shape, x.dtype, **self.quantization(x.dtype))

    def moved(self, x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
        """A result with the integers of x, which seldom states another quantization."""
        if x.scale is not None and self.chance(0.04):
            return self.add("v", shape, x.dtype, **self.quantization(x.dtype))
        return self.add("v", shape, x.dtype, scale=x.scale, zero_point=x.zero_point)

    def fixed(self, x: TensorSpec, shape: Sequence[int], quantizations: Mapping[str, tuple[float, int]]) -> TensorSpec | None:
        """A result with the one quantization that a kernel has; None if it does not have the type."""
        if x.dtype == "float32":
            return self.add("v", shape, "float32")
        if x.dtype not in quantizations:
            return None
        scale, zero = quantizations[x.dtype]
        return self.add("v", shape, x.dtype, scale=scale, zero_point=zero)

    def op(self, builtin: str, inputs: Sequence[TensorSpec | str | None], y: TensorSpec | None, **options: Any) -> TensorSpec | None:
        if y is not None:
            names = [item.name if isinstance(item, TensorSpec) else item for item in inputs]
            self.ops.append(OpSpec(builtin, names, [y.name], options or None))
        return y

    def constant(self, x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
        """A constant that x is combined with."""
        low, high = {"float32": (-2, 2), "int8": (-128, 127), "uint8": (0, 255), "int16": (-20000, 20000)}[x.dtype]
        return self.add("k", shape, x.dtype, data=self.random(shape, low, high, x.dtype), **self.quantization(x.dtype))

    def partner(self, x: TensorSpec) -> TensorSpec:
        """Something to combine with x: a value of its type that broadcasts to its shape, or a constant."""
        found = [value for value in self.values if value.dtype == x.dtype and _broadcasts(value.shape, x.shape)]
        if found and self.chance(0.65):
            return self.pick(found)
        rank = self.rng.randint(0, len(x.shape))
        shape = [size if self.chance(0.7) else 1 for size in x.shape[len(x.shape) - rank :]]
        return self.constant(x, self.pick((shape, x.shape, x.shape[-1:])))


def _broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) <= len(wanted) and all(a in (1, b) for a, b in zip(shape[::-1], wanted[::-1], strict=False))


def _weights(g: Grown, x: TensorSpec, shape: Sequence[int], axis: int) -> tuple[TensorSpec, Array | None]:
    """Weights for x and the products' scales; None where the products are real."""
    hybrid = x.dtype == "float32" and g.chance(0.2)
    if x.dtype == "float32" and not hybrid:
        return g.add("w", shape, "float32", data=g.random(shape, -1, 1, "float32")), None
    if x.dtype == "uint8":
        data, zero = g.random(shape, 1, 255, "uint8"), g.pick((128, 128, 120, 0, 255))
        scale = np.array([g.pick((0.01, 1 / 64))], np.float32)
        w = g.add("w", shape, "uint8", data=data, scale=scale, zero_point=zero)
    else:
        count = shape[axis] if (len(shape) == 4 if hybrid else g.chance(0.6)) else 1  # hybrid convolutions read a scale for each channel
        scale = np.float32(2.0) ** g.random((count,), -9, -5, "float32") * np.float32(g.pick((1, 1.1)))
        w = g.add("w", shape, "int8", data=g.random(shape, -127, 127, "int8"), scale=scale, zero_point=0, axis=axis if count > 1 else 0)
    return w, None if hybrid else np.float32(x.scale) * scale  # type: ignore[arg-type]


def _bias(g: Grown, x: TensorSpec, products: Array | None, count: int, optional: bool) -> TensorSpec | None:
    if optional and g.chance(0.3):
        return None
    if products is None:
        return g.add("b", (count,), "float32", data=g.random((count,), -1, 1, "float32"))
    dtype = "int64" if x.dtype == "int16" else "int32"
    stated = products * np.float32(g.pick((1, 1, 1, 1.0000001, 0.5)))
    return g.add("b", (count,), dtype, data=g.random((count,), -3000, 3000, dtype), scale=stated, zero_point=0)


def _linear(g: Grown, builtin: str, x: TensorSpec, shape: tuple[int, ...], axis: int) -> list[TensorSpec | None]:
    """Weights and bias, at times those of an earlier operator."""
    for name, dtype, w, b in g.linear:
        if (name, dtype, w.shape) == (builtin, x.dtype, shape) and g.chance(0.5):
            return [w, b if x.dtype == "float32" else _bias(g, x, np.float32(x.scale) * np.float32(w.scale), shape[axis], b is None)]
    w, products = _weights(g, x, shape, axis)
    b = _bias(g, x, products, shape[axis], builtin in ("TRANSPOSE_CONV", "FULLY_CONNECTED"))  # convolutions without one end LiteRT
    g.linear.append((builtin, x.dtype, w, b))
    return [w, b]


def _window(g: Grown, sizes: Sequence[int], square: bool = False) -> tuple[list[int], list[int], list[int], int, list[int]]:
    """Window, strides, dilations, padding and the result's sizes."""
    window = [g.rng.randint(1, min(3, size)) for size in sizes]
    strides = [g.pick((1, 1, 2)) for _ in sizes]
    dilations = [2 if size > 4 and k == 2 and g.chance(0.3) else 1 for size, k in zip(sizes, window, strict=True)]
    if dilations != [1, 1]:
        strides = [1, 1]
    if square:
        strides = [strides[0]] * 2
    padding = g.pick((0, 1))
    span = [d * (k - 1) + 1 for d, k in zip(dilations, window, strict=True)]
    found = [-(-n // s) if padding == 0 else -(-(n - k + 1) // s) for n, s, k in zip(sizes, strides, span, strict=True)]
    return window, strides, dilations, padding, found


def conv(g: Grown, x: TensorSpec) -> TensorSpec | None:
    if len(x.shape) != 4:
        return None
    window, strides, dilations, padding, sizes = _window(g, x.shape[1:3])
    channels = x.shape[3]
    group = 2 if channels % 2 == 0 and g.chance(0.15) else 1
    outputs = group * g.rng.randint(1, 4)
    parts = _linear(g, "CONV_2D", x, (outputs, *window, channels // group), 0)
    y = g.like(x, (x.shape[0], *sizes, outputs))
    return g.op("CONV_2D", [x, *parts], y, padding=padding, strideH=strides[0], strideW=strides[1], dilationHFactor=dilations[0],
                dilationWFactor=dilations[1], fusedActivationFunction=g.pick(_FUSED))  # fmt: skip


def depthwise(g: Grown, x: TensorSpec) -> TensorSpec | None:
    if len(x.shape) != 4:
        return None
    window, strides, dilations, padding, sizes = _window(g, x.shape[1:3], square=True)
    multiplier = g.pick((1, 1, 2))
    outputs = x.shape[3] * multiplier
    parts = _linear(g, "DEPTHWISE_CONV_2D", x, (1, *window, outputs), 3)
    y = g.like(x, (x.shape[0], *sizes, outputs))
    return g.op("DEPTHWISE_CONV_2D", [x, *parts], y, padding=padding, strideH=strides[0], strideW=strides[1], depthMultiplier=multiplier,
                dilationHFactor=dilations[0], dilationWFactor=dilations[1], fusedActivationFunction=g.pick(_FUSED))  # fmt: skip


def conv_1d(g: Grown, x: TensorSpec) -> TensorSpec | None:
    """As converters write it: a picture of one row, or of one column."""
    if len(x.shape) != 3:
        return None
    axis = g.pick((1, 1, 2))
    axes = g.pick((axis, axis - 4))
    shape = (*x.shape[:axis], 1, *x.shape[axis:])
    wide = g.op("EXPAND_DIMS", [x, g.ints([axes] if g.chance(0.5) else axes)], g.moved(x, shape))
    y = g.pick((conv, conv, depthwise))(g, wide)
    if y is None or y.shape[axis] != 1:
        return y
    return g.op("SQUEEZE", [y], g.moved(y, (*y.shape[:axis], *y.shape[axis + 1 :])), squeezeDims=[g.pick((axis, axis - 4))])


def transpose_conv(g: Grown, x: TensorSpec) -> TensorSpec | None:
    if len(x.shape) != 4 or max(x.shape) > 8:
        return None
    stride, window, outputs = g.pick((1, 2)), [g.rng.randint(1, 3) for _ in range(2)], g.rng.randint(1, 4)
    padding = g.pick((0, 1))
    sizes = [n * stride + (max(k - stride, 0) if padding else 0) for n, k in zip(x.shape[1:3], window, strict=True)]
    w, b = _linear(g, "TRANSPOSE_CONV", x, (outputs, *window, x.shape[3]), 0)
    if w is not None and x.dtype == "float32" and w.dtype != "float32":
        return None  # there is no such hybrid kernel
    shape = g.ints(x.shape[0], *sizes, outputs)
    y = g.like(x, (x.shape[0], *sizes, outputs))
    return g.op("TRANSPOSE_CONV", [shape, w, x, *([b] if b else [])], y, padding=padding, strideH=stride, strideW=stride,
                fusedActivationFunction=g.pick((0, 0, 1)))  # fmt: skip


def fully_connected(g: Grown, x: TensorSpec) -> TensorSpec | None:
    if not x.shape:
        return None
    keep = g.chance(0.6)
    outputs = g.rng.randint(1, 5)
    depth = x.shape[-1] if keep or g.chance(0.7) else int(np.prod(x.shape[1:])) or 1
    shape = (*x.shape[:-1], outputs) if keep else (int(np.prod(x.shape)) // depth, outputs)
    parts = _linear(g, "FULLY_CONNECTED", x, (outputs, depth), 0)
    return g.op("FULLY_CONNECTED", [x, *parts], g.like(x, shape), keepNumDims=keep, fusedActivationFunction=g.pick(_FUSED))


def batch_matmul(g: Grown, x: TensorSpec) -> TensorSpec | None:
    if len(x.shape) not in (2, 3, 4) or x.dtype == "uint8":
        return None
    adj_x, adj_y = g.chance(0.3), g.chance(0.3)
    rows, depth = x.shape[-2:][::-1] if adj_x else x.shape[-2:]
    columns = g.rng.randint(1, 4)
    if g.chance(0.3):
        other, adj_x, adj_y, rows, columns = x, False, True, x.shape[-2], x.shape[-2]
    else:
        other = g.constant(x, (*x.shape[:-2], *((columns, depth) if adj_y else (depth, columns))))
    return g.op("BATCH_MATMUL", [x, other], g.like(x, (*x.shape[:-2], rows, columns)), adjX=adj_x, adjY=adj_y)


def pair(g: Grown, x: TensorSpec) -> TensorSpec | None:
    kind = g.pick(("ADD", "ADD", "SUB", "MUL", "MUL", "SQUARED_DIFFERENCE") if x.dtype in ("int8", "float32") else ("ADD", "SUB", "MUL"))
    operands = [x, g.partner(x)] if g.chance(0.6) else [g.partner(x), x]
    fused = {"fusedActivationFunction": g.pick(_FUSED)} if kind != "SQUARED_DIFFERENCE" else {}
    if kind in ("ADD", "SUB") and x.dtype == "int16":
        fused["potScaleInt16"] = False
    if len(x.shape) > (6 if kind in ("ADD", "SUB", "MUL") else 4):
        return None
    return g.op(kind, operands, g.like(x, x.shape), **fused)


def extreme(g: Grown, x: TensorSpec) -> TensorSpec | None:
    other = replace(g.partner(x))
    if other.scale != x.scale or other.zero_point != x.zero_point:
        if other.data is None and not g.chance(0.1):
            return None
        if other.data is not None and not g.chance(0.1):
            other = g.tensors[other.name] = replace(other, scale=x.scale, zero_point=x.zero_point)
    return g.op(g.pick(("MAXIMUM", "MINIMUM")), [x, other], g.moved(x, x.shape))


_UNIT = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}
_SIGNED = {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)}


def unary(g: Grown, x: TensorSpec) -> TensorSpec | None:
    kind = g.pick(
        "LOGISTIC TANH SOFTMAX RELU RELU6 RELU_N1_TO_1 LEAKY_RELU HARD_SWISH ABS ELU GELU L2_NORMALIZATION PRELU NEG RSQRT".split()
    )
    if kind in ("LOGISTIC", "TANH"):
        return g.op(kind, [x], g.fixed(x, x.shape, _UNIT if kind == "LOGISTIC" else _SIGNED))
    if kind == "SOFTMAX":
        return g.op(kind, [x], g.fixed(x, x.shape, _UNIT), beta=g.pick((1.0, 1.0, 0.5))) if len(x.shape) in (2, 3, 4) else None
    if kind == "L2_NORMALIZATION":
        return g.op(kind, [x], g.fixed(x, x.shape, {key: _SIGNED[key] for key in ("int8", "uint8")}), fusedActivationFunction=0)
    if kind == "LEAKY_RELU":
        return g.op(kind, [x], g.like(x, x.shape), alpha=g.pick((0.1, 0.2, 0.5)))
    if kind == "PRELU":
        return None if x.dtype == "int16" else g.op(kind, [x, g.constant(x, (*[1] * (len(x.shape) - 1), x.shape[-1]))], g.like(x, x.shape))
    if kind == "GELU":
        return g.op(kind, [x], g.like(x, x.shape), approximate=g.chance(0.5)) if x.dtype != "int16" else None
    if kind in ("HARD_SWISH", "ELU", "RSQRT", "NEG", "RELU_N1_TO_1") and x.dtype == "int16":
        return None
    if kind in ("ELU", "ABS") and x.dtype == "uint8":
        return None
    if kind in ("RSQRT", "NEG") and x.dtype != "float32":
        return None
    if kind == "RSQRT":
        x = g.op("ABS", [x], g.add("v", x.shape, "float32")) or x
    return g.op(kind, [x], g.like(x, x.shape))


def pool(g: Grown, x: TensorSpec) -> TensorSpec | None:
    if len(x.shape) != 4:
        return None
    window, strides, dilations, padding, _ = _window(g, x.shape[1:3])
    if dilations != [1, 1]:
        return None
    sizes = [-(-n // s) if padding == 0 else -(-(n - k + 1) // s) for n, s, k in zip(x.shape[1:3], strides, window, strict=True)]
    y = g.moved(x, (x.shape[0], *sizes, x.shape[3]))
    return g.op(g.pick(("AVERAGE_POOL_2D", "MAX_POOL_2D")), [x], y, padding=padding, strideH=strides[0], strideW=strides[1],
                filterHeight=window[0], filterWidth=window[1], fusedActivationFunction=g.pick(_FUSED))  # fmt: skip


def reduce(g: Grown, x: TensorSpec) -> TensorSpec | None:
    if not x.shape or len(x.shape) > 4:
        return None
    axes = sorted(g.rng.sample(range(len(x.shape)), g.rng.randint(1, len(x.shape))))
    keep = g.chance(0.5) or len(axes) == len(x.shape)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    kind = g.pick(("MEAN", "MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"))
    y = g.moved(x, shape) if "_" in kind else g.like(x, shape)
    given = [axis - len(x.shape) if g.chance(0.3) else axis for axis in axes]
    return g.op(kind, [x, g.ints(given)], y, keepDims=keep)


def reshape(g: Grown, x: TensorSpec) -> TensorSpec | None:
    total = int(np.prod(x.shape))
    shape = [int(size) for size in g.pick([(total,), (1, total), (x.shape[0], total // max(x.shape[0], 1)), (1, *x.shape), (total, 1, 1)])]
    form = g.pick(("constant", "constant", "open", "option", "computed"))
    y = g.moved(x, shape)
    if form == "option":
        return g.op("RESHAPE", [x], y, newShape=shape)
    if form == "computed" and shape[0] == x.shape[0] and len(shape) == 2:
        sizes = g.op("SHAPE", [x], g.add("t", (len(x.shape),), "int32"), outType=2)
        first = g.op("STRIDED_SLICE", [sizes, g.ints([0]), g.ints([1]), g.ints([1])], g.add("t", (), "int32"), shrinkAxisMask=1)
        rest = g.add("c", (), "int32", data=np.array(shape[1], np.int32))
        packed = g.op("PACK", [first, rest], g.add("t", (2,), "int32"), valuesCount=2, axis=0)
        return g.op("RESHAPE", [x, packed], y)
    stated = list(shape)
    if form == "open":
        stated[g.rng.randrange(len(stated))] = -1
    return g.op("RESHAPE", [x, g.ints(stated)], y, **({"newShape": stated} if g.chance(0.5) else {}))


def move(g: Grown, x: TensorSpec) -> TensorSpec | None:
    rank = len(x.shape)
    if not rank:
        return None
    axis = g.rng.randrange(rank)
    size = x.shape[axis]
    signed = axis - rank if g.chance(0.3) else axis
    form = g.pick("transpose expand squeeze slice strided reverse pad padv2 mirror gather tile broadcast split split_v concat pack unpack "
                  "depth space batch resize bilinear".split())  # fmt: skip
    with_axis = lambda new: (*x.shape[:axis], *new, *x.shape[axis + 1 :])  # noqa: E731
    if form == "transpose" and rank <= 5:
        perm = g.rng.sample(range(rank), rank)
        return g.op("TRANSPOSE", [x, g.ints(perm)], g.moved(x, [x.shape[i] for i in perm]))
    if form == "expand" and rank < 5:
        return g.op("EXPAND_DIMS", [x, g.ints([axis])], g.moved(x, with_axis((1, size))))
    if form == "squeeze" and size == 1 and rank > 1:
        return g.op("SQUEEZE", [x], g.moved(x, with_axis(())), squeezeDims=[signed])
    if form == "slice" and size > 1 and rank <= 5:
        begin, sizes = [0] * rank, [-1 if g.chance(0.4) else n for n in x.shape]
        begin[axis], sizes[axis] = 1, g.pick((-1, size - 1))
        return g.op("SLICE", [x, g.ints(begin), g.ints(sizes)], g.moved(x, with_axis((size - 1,))))
    if form == "strided" and rank <= 5:
        return _strided(g, x, axis)
    if form == "reverse":
        return g.op("REVERSE_V2", [x, g.ints([signed])], g.moved(x, x.shape))
    if form in ("pad", "padv2") and rank <= 5:
        pads = [[g.rng.randint(0, 1), g.rng.randint(0, 1)] for _ in range(rank)]
        shape = [n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)]
        if form == "pad":
            return g.op("PAD", [x, g.ints(pads)], g.moved(x, shape))
        low = 0.3 if x.dtype == "float32" else 7
        filler = g.add("k", (), x.dtype, data=np.array(low, x.dtype), scale=x.scale, zero_point=x.zero_point)
        return g.op("PADV2", [x, g.ints(pads), filler], g.moved(x, shape))
    if form == "mirror" and min(x.shape) > 1 and rank <= 5:
        pads = [[g.rng.randint(0, 1), g.rng.randint(0, 1)] for _ in range(rank)]
        return g.op("MIRROR_PAD", [x, g.ints(pads)], g.moved(x, [n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)]),
                    mode=g.pick((0, 1)))  # fmt: skip
    if form == "gather":
        taken = g.random((2,), 0, size - 1, "int32").tolist()
        return g.op("GATHER", [x, g.ints(taken, dtype=g.pick(("int32", "int64")))], g.moved(x, with_axis((2,))), axis=signed)
    if form == "tile" and rank <= 5:
        times = [2 if i == axis else 1 for i in range(rank)]
        return g.op("TILE", [x, g.ints(times)], g.moved(x, with_axis((2 * size,))))
    if form == "broadcast" and size == 1:
        return g.op("BROADCAST_TO", [x, g.ints(list(with_axis((3,))))], g.moved(x, with_axis((3,))))
    if form == "split" and size % 2 == 0:
        return _several(g, "SPLIT", [g.ints(signed), x], [g.moved(x, with_axis((size // 2,))) for _ in range(2)], numSplits=2)
    if form == "split_v" and size > 1:
        parts = [g.moved(x, with_axis((part,))) for part in (1, size - 1)]
        return _several(g, "SPLIT_V", [x, g.ints([1, -1] if g.chance(0.4) else [1, size - 1]), g.ints(signed)], parts, numSplits=2)
    if form in ("concat", "pack"):
        same = [v for v in g.values if (v.dtype, v.shape) == (x.dtype, x.shape)]
        if x.dtype == "int8" or x.dtype == "int16" or g.chance(0.9):
            same = [v for v in same if (v.scale, v.zero_point) == (x.scale, x.zero_point)]
        parts = [x, *[g.pick(same) for _ in range(g.rng.randint(0, 2)) if same]]
        if form == "pack":
            return g.op("PACK", parts, g.moved(x, (*x.shape[:axis], len(parts), *x.shape[axis:])), valuesCount=len(parts), axis=axis)
        fused = g.pick(_FUSED) if x.dtype == "float32" else 0
        y = g.like(x, with_axis((size * len(parts),))) if x.dtype == "uint8" else g.moved(x, with_axis((size * len(parts),)))
        return g.op("CONCATENATION", parts, y, axis=signed, fusedActivationFunction=fused)
    if form == "unpack" and rank > 1 and size <= 4:
        return _several(g, "UNPACK", [x], [g.moved(x, with_axis(())) for _ in range(size)], num=size, axis=signed)
    if rank != 4:
        return None
    n, h, w, c = x.shape
    if form == "depth" and c % 4 == 0:
        return g.op("DEPTH_TO_SPACE", [x], g.moved(x, (n, 2 * h, 2 * w, c // 4)), blockSize=2)
    if form == "space" and h % 2 == 0 and w % 2 == 0:
        return g.op("SPACE_TO_DEPTH", [x], g.moved(x, (n, h // 2, w // 2, 4 * c)), blockSize=2)
    if form in ("resize", "bilinear"):
        sizes = [g.rng.randint(1, 8), g.rng.randint(1, 8)] if g.chance(0.5) else [2 * h, 2 * w]
        name = "RESIZE_NEAREST_NEIGHBOR" if form == "resize" else "RESIZE_BILINEAR"
        modes = g.pick(({"alignCorners": True}, {"halfPixelCenters": True}, {}))
        return g.op(name, [x, g.ints(sizes)], g.moved(x, (n, *sizes, c)), **modes)
    return None


def _several(g: Grown, builtin: str, inputs: Sequence[Any], ys: Sequence[TensorSpec], **options: Any) -> TensorSpec:
    names = [item.name if isinstance(item, TensorSpec) else item for item in inputs]
    g.ops.append(OpSpec(builtin, names, [y.name for y in ys], options))
    g.values += ys[1:] if g.chance(0.7) else []
    return ys[0]


def _strided(g: Grown, x: TensorSpec, axis: int) -> TensorSpec | None:
    rank, size = len(x.shape), x.shape[axis]
    begin, end, strides = [0] * rank, list(x.shape), [1] * rank
    masks = {"beginMask": 0, "endMask": sum(1 << i for i in range(rank) if g.chance(0.4))}
    form = g.pick(("step", "back", "shrink", "new"))
    if form == "step":
        strides[axis] = 2
        shape: Sequence[int] = (*x.shape[:axis], -(-size // 2), *x.shape[axis + 1 :])
    elif form == "back":
        begin[axis], end[axis], strides[axis] = -1, -size - 1, -1
        shape = x.shape
    elif form == "shrink":
        begin[axis], end[axis] = g.pick(((0, 1), (-1, size), (size - 1, size)))
        masks |= {"shrinkAxisMask": 1 << axis, "endMask": 0}
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    else:
        begin.insert(axis, 0), end.insert(axis, 0), strides.insert(axis, 1)
        masks |= {"newAxisMask": 1 << axis, "endMask": 0}
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        if len(shape) > 5:
            return None
    return g.op("STRIDED_SLICE", [x, g.ints(begin), g.ints(end), g.ints(strides)], g.moved(x, shape), **masks)


def select(g: Grown, x: TensorSpec) -> TensorSpec | None:
    same = [v for v in g.values if (v.dtype, v.shape, v.scale, v.zero_point) == (x.dtype, x.shape, x.scale, x.zero_point)]
    other = g.pick(same)
    if g.chance(0.5) and x.dtype != "int16" and len(x.shape) <= 4:
        compared = g.op(g.pick(("GREATER", "LESS_EQUAL", "EQUAL")), [x, g.partner(x)], g.add("c", x.shape, "bool"))
    else:
        compared = g.add("k", x.shape, "bool", data=g.random(x.shape, 0, 1, "int8").astype(bool))
    return g.op("SELECT_V2", [compared, x, other], g.moved(x, x.shape))


def change(g: Grown, x: TensorSpec) -> TensorSpec | None:
    """QUANTIZE between all types, DEQUANTIZE."""
    dtype = g.pick(_TYPES)
    if dtype == "float32":
        return g.op("DEQUANTIZE", [x], g.add("v", x.shape, "float32")) if x.scale is not None else None
    if {x.dtype, dtype} == {"uint8", "int16"}:
        return None  # there is no such kernel
    return g.op("QUANTIZE", [x], g.add("v", x.shape, dtype, **g.quantization(dtype)))


def index(g: Grown, x: TensorSpec) -> TensorSpec | None:
    """Indices, which nobody reads on: an output."""
    if x.shape and len(x.shape) > 1 and x.dtype != "int16":
        y = g.op("ARG_MAX", [x, g.ints(len(x.shape) - 1)], g.add("i", x.shape[:-1], "int32"), outputType=2)
        g.outputs.append(y.name)  # type: ignore[union-attr]
    return None


RECIPES: Sequence[Recipe] = (
    *[conv] * 3, *[conv_1d] * 2, *[depthwise] * 2, transpose_conv, *[fully_connected] * 2, batch_matmul, *[pair] * 3, extreme, *[unary] * 4,
    *[pool] * 2, *[reduce] * 2, *[reshape] * 2, *[move] * 6, select, *[change] * 3, index,
)  # fmt: skip


def _network(g: Grown, recipes: Sequence[Recipe]) -> None:
    start = len(g.values)
    if g.inputs and g.chance(0.4):
        x = g.tensors[g.pick(g.inputs)]
    else:
        dtype = g.pick(_TYPES)
        x = g.add("x", g.pick(_SHAPES), dtype, **g.quantization(dtype))
        g.inputs.append(x.name)
    g.values.append(x)
    for _ in range(g.rng.randint(1, 8)):
        mine = g.values[start:]
        x = mine[-1] if g.chance(0.7) else g.pick(mine)
        if not x.shape:
            continue
        before = len(g.ops), len(g.values), len(g.linear)
        y = g.pick(recipes)(g, x)
        if y is None:
            continue
        if np.prod(y.shape) > _LARGEST or not all(y.shape):
            del g.ops[before[0] :], g.values[before[1] :], g.linear[before[2] :]
            continue
        g.values.append(g.tensors[y.name])
    read = {name for op in g.ops for name in op.inputs}
    g.outputs += [value.name for value in g.values[start:] if value.name not in read]
    if g.chance(0.3):
        g.outputs.append(g.pick(g.values[start:]).name)


def strange_tflite(rng: Random, networks: int = 3, recipes: Sequence[Recipe] = RECIPES) -> bytes:
    """The bytes of a model of up to so many networks; LiteRT may refuse it, where a kernel lacks a type or a rank."""
    g = Grown(rng)
    for _ in range(rng.randint(1, networks)):
        _network(g, recipes)
    made = {name for op in g.ops for name in op.outputs}
    read = {name for op in g.ops for name in op.inputs}
    outputs = [name for name in dict.fromkeys(g.outputs) if name in made] or [name for name in made if name not in read][:1] or g.inputs[:1]
    used = made | read | set(outputs) | set(g.inputs)
    return model(g.ops, [tensor for tensor in g.tensors.values() if tensor.name in used], g.inputs, outputs)
