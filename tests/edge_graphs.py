"""Canonical graphs of one quantized operator at its edge sizes: an axis of one, no element, a kernel as large as its input, and so on.

`edges(dtype, kinds)` makes those of some kinds, each with several quantizations: zero points in the middle and at both ends of the type,
results that fill their range and results that saturate. Spatial data are channels first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, canonical_dtype, integer_range, numpy_dtype
from qconvert.operators import KINDS
from qconvert.operators.shapes_and_functions import infer

#: Real functions of one operand, with what they need next to it.
UNARY: dict[str, dict[str, Any]] = {
    "Sigmoid": {}, "Tanh": {}, "HardSwish": {}, "Relu": {}, "LeakyRelu": {"alpha": 0.1}, "Elu": {}, "Gelu": {}, "Abs": {},
    "Exp": {}, "Neg": {}, "Requantize": {},
}  # fmt: skip
#: Shapes of an operand: one element, none, a batch of none, a vector, ranks up to 5, odd sizes.
SHAPES = ((1,), (0,), (0, 3), (1, 1), (7,), (1, 1, 1, 1), (1, 3, 1, 5), (2, 1, 3, 1, 2), (1, 17, 3, 3))
#: Shapes of two operands that are broadcast.
PAIRS = (((1,), (1,)), ((2, 3), (1,)), ((1,), (2, 3)), ((2, 3), ()), ((), (2, 3)), ((0, 3), (1, 3)), ((0, 3), (0, 3)),
         ((2, 1, 3), (1, 4, 1)),
         ((1, 3, 1, 1), (1, 3, 5, 5)), ((1, 3, 5, 5), (1, 3, 1, 1)), ((1, 3, 5, 5), (5,)),
         ((3,), (1, 2, 1, 3)), ((1, 33), (1, 33)))  # fmt: skip


@dataclass(frozen=True)
class Form:
    """An operator at an edge, without types and quantizations.

    Attributes:
        kind: the operator.
        name: the edge in words.
        data: shapes of the operands.
        weights: shape of weights after the data, if any; `bias` says whether a bias follows.
        constants: further inputs, as they are, after the data; those of `leading` are before it.
        attributes: of the operator.
        alike: whether all data inputs have one quantization.
    """

    kind: str
    name: str
    data: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...] | None = None
    bias: bool = False
    constants: tuple[Array, ...] = ()
    leading: tuple[Array, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    alike: bool = False


@dataclass(frozen=True)
class Edge:
    """A graph of one operator: its form, and its quantizations in words."""

    form: Form
    quantizations: str
    graph: Graph

    def __str__(self) -> str:
        return f"{self.form.kind} {self.form.name}, {self.quantizations}"

    @property
    def op(self) -> Op:
        return self.graph.ops[0]


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _spatial(**more: Any) -> tuple[tuple[str, Any], ...]:
    return tuple({"data_format": "channels_first", **more}.items())


def _window(strides: Sequence[int], pads: Sequence[int], **more: Any) -> tuple[tuple[str, Any], ...]:
    return _spatial(strides=tuple(strides), pads=tuple(pads), **more)


def _convolutions() -> Iterator[Form]:
    # name, data, weights O,I,…, strides, pads, dilations, group
    table: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int], ...] = (
        ("1x1 input", (1, 3, 1, 1), (4, 3, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
        ("1x1 input padded", (1, 3, 1, 1), (4, 3, 3, 3), (1, 1), (1,) * 4, (1, 1), 1),
        ("kernel = input", (1, 3, 5, 4), (2, 3, 5, 4), (1, 1), (0,) * 4, (1, 1), 1),
        ("one channel", (1, 1, 5, 5), (3, 1, 3, 3), (1, 1), (0,) * 4, (1, 1), 1),
        ("one output channel", (1, 3, 5, 5), (1, 3, 3, 3), (1, 1), (1,) * 4, (1, 1), 1),
        ("one of each", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
        ("batch of 0", (0, 3, 5, 5), (2, 3, 3, 3), (1, 1), (0,) * 4, (1, 1), 1),
        ("batch of 3", (3, 2, 3, 3), (2, 2, 2, 2), (1, 1), (0,) * 4, (1, 1), 1),
        ("stride > kernel", (1, 3, 9, 9), (2, 3, 2, 2), (4, 5), (0,) * 4, (1, 1), 1),
        ("padding >= kernel", (1, 2, 3, 3), (2, 2, 2, 2), (1, 1), (2, 3, 2, 3), (1, 1), 1),
        ("padding on one side", (1, 2, 3, 4), (2, 2, 3, 3), (1, 1), (0, 2, 1, 0), (1, 1), 1),
        ("dilated", (1, 2, 9, 9), (2, 2, 3, 3), (1, 1), (0,) * 4, (3, 2), 1),
        ("dilated and padded", (1, 2, 4, 4), (2, 2, 3, 3), (1, 1), (4,) * 4, (4, 3), 1),
        ("depthwise, 1 channel", (1, 1, 5, 5), (1, 1, 3, 3), (1, 1), (1,) * 4, (1, 1), 1),
        ("depthwise, 3 channels", (1, 3, 5, 5), (3, 1, 3, 3), (1, 1), (1,) * 4, (1, 1), 3),
        ("depthwise, 17 channels, 1x1", (1, 17, 2, 2), (17, 1, 1, 1), (1, 1), (0,) * 4, (1, 1), 17),
        ("depthwise, kernel = input", (1, 5, 4, 4), (5, 1, 4, 4), (1, 1), (0,) * 4, (1, 1), 5),
        ("depthwise, multiplier 2", (1, 3, 5, 5), (6, 1, 3, 3), (2, 2), (1,) * 4, (1, 1), 3),
        ("depthwise, multiplier 3 of 1 channel", (1, 1, 5, 5), (3, 1, 3, 3), (1, 1), (0,) * 4, (1, 1), 1),
        ("depthwise dilated", (1, 3, 7, 7), (3, 1, 3, 3), (1, 1), (2,) * 4, (2, 2), 3),
        ("depthwise, 25 taps", (1, 9, 7, 7), (9, 1, 5, 5), (1, 1), (2,) * 4, (1, 1), 9),
        ("groups of 2", (1, 4, 3, 3), (6, 2, 3, 3), (1, 1), (1,) * 4, (1, 1), 2),
        ("groups of one output", (1, 4, 3, 3), (2, 2, 1, 1), (1, 1), (0,) * 4, (1, 1), 2),
        ("depth 2", (1, 2, 4, 4), (2, 2, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
        ("depth 4", (1, 4, 4, 4), (5, 4, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
        ("depth 17", (1, 17, 3, 3), (19, 17, 1, 1), (1, 1), (0,) * 4, (1, 1), 1),
        ("depth 67, strided 1x1", (1, 67, 3, 3), (5, 67, 1, 1), (2, 2), (0,) * 4, (1, 1), 1),
        ("one row", (1, 3, 1, 9), (2, 3, 1, 3), (1, 1), (0, 1, 0, 1), (1, 1), 1),
        ("one column", (1, 3, 9, 1), (2, 3, 3, 1), (1, 2), (1, 0, 1, 0), (1, 1), 1),
        ("1-D", (1, 3, 7), (2, 3, 3), (1,), (1, 1), (1,), 1),
        ("1-D of one", (1, 1, 1), (1, 1, 1), (1,), (0, 0), (1,), 1),
        ("3-D", (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), (1, 1, 1), (0,) * 6, (1, 1, 1), 1),
    )  # fmt: skip
    for name, data, weights, strides, pads, dilations, group in table:
        attributes = _window(strides, pads, dilations=dilations, group=group)
        yield Form("Conv", name, (data,), weights, True, attributes=attributes)
    yield Form("Conv", "without bias", ((1, 3, 3, 3),), (2, 3, 3, 3), attributes=_window((1, 1), (1,) * 4, dilations=(1, 1), group=1))
    for name, data, weights, strides, pads in (
        ("1x1 input", (1, 3, 1, 1), (2, 3, 3, 3), (2, 2), (0,) * 4),
        ("one of each", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0,) * 4),
        ("one channel", (1, 1, 3, 3), (1, 1, 2, 2), (2, 2), (0,) * 4),
        ("stride > kernel", (1, 2, 3, 3), (3, 2, 2, 2), (4, 4), (0,) * 4),
        ("cropped", (1, 2, 4, 4), (3, 2, 3, 3), (2, 2), (1, 1, 1, 1)),
        ("batch of 0", (0, 2, 3, 3), (3, 2, 2, 2), (2, 2), (0,) * 4),
    ):
        yield Form("ConvTranspose", name, (data,), weights, True, attributes=_window(strides, pads, dilations=(1, 1), group=1))


def _products() -> Iterator[Form]:
    for name, data, weights in (
        ("1 by 1", (1, 1), (1, 1)), ("batch of 0", (0, 3), (2, 3)), ("depth 1", (2, 1), (3, 1)), ("depth 2", (2, 2), (3, 2)),
        ("depth 3", (2, 3), (3, 3)), ("depth 4", (1, 4), (5, 4)), ("depth 17", (3, 17), (4, 17)), ("one output", (3, 5), (1, 5)),
        ("one row", (1, 35), (33, 35)),
    ):  # fmt: skip
        yield Form("Gemm", name, (data,), weights, True)
    yield Form("Gemm", "without bias", ((2, 5),), (3, 5))
    for name, first, second in (
        ("1 by 1", (1, 1), (1, 1)), ("batch of 0", (0, 2, 3), (3, 2)), ("no rows", (0, 3), (3, 2)), ("depth 1", (2, 1), (1, 3)),
        ("depth 0", (2, 0), (0, 3)), ("depth 3", (1, 2, 3), (1, 3, 2)), ("one column", (2, 5), (5, 1)),
        ("a batch that is repeated", (2, 1, 2, 3), (4, 3, 2)),
        ("odd", (1, 3, 17), (1, 17, 5)),
    ):  # fmt: skip
        yield Form("MatMul", name, (first, second))


def _pools() -> Iterator[Form]:
    for name, data, kernel, strides, pads, more in (
        ("kernel = input", (1, 3, 5, 4), (5, 4), (1, 1), (0,) * 4, {}),
        ("1x1 window", (1, 3, 3, 3), (1, 1), (1, 1), (0,) * 4, {}),
        ("1x1 input", (1, 3, 1, 1), (1, 1), (1, 1), (0,) * 4, {}),
        ("1x1 input padded", (1, 3, 1, 1), (3, 3), (1, 1), (1,) * 4, {}),
        ("one channel", (1, 1, 4, 4), (2, 2), (2, 2), (0,) * 4, {}),
        ("stride > kernel", (1, 2, 7, 7), (2, 2), (3, 4), (0,) * 4, {}),
        ("padded", (1, 2, 4, 4), (3, 3), (1, 1), (1,) * 4, {}),
        ("padded on one side", (1, 2, 4, 4), (3, 3), (2, 2), (0, 0, 1, 1), {}),
        ("padding counts", (1, 2, 4, 4), (3, 3), (1, 1), (1,) * 4, {"count_include_pad": 1}),
        ("rounded up", (1, 2, 5, 5), (2, 2), (2, 2), (0,) * 4, {"ceil_mode": 1}),
        ("batch of 0", (0, 2, 4, 4), (2, 2), (2, 2), (0,) * 4, {}),
        ("odd channels", (2, 17, 3, 3), (2, 3), (1, 1), (0,) * 4, {}),
        ("1-D", (1, 3, 6), (3,), (2,), (0, 0), {}),
    ):  # fmt: skip
        known = {key: value for key, value in more.items() if key != "count_include_pad"}  # type: ignore[attr-defined]
        yield Form("AveragePool", name, (data,), attributes=_window(strides, pads, kernel_shape=kernel, **more))  # type: ignore[arg-type]
        if "count_include_pad" not in more:
            yield Form("MaxPool", name, (data,), attributes=_window(strides, pads, kernel_shape=kernel, **known))
    for name, shape in (("1x1", (1, 3, 1, 1)), ("one channel", (1, 1, 3, 3)), ("batch of 0", (0, 2, 3, 3)), ("17 channels", (2, 17, 5, 3)),
                        ("1 by 7", (1, 2, 1, 7)), ("large", (1, 2, 40, 41))):  # fmt: skip
        yield Form("GlobalAveragePool", name, (shape,), attributes=_spatial())
        yield Form("GlobalMaxPool", name, (shape,), attributes=_spatial())


def _reductions() -> Iterator[Form]:
    for kind in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"):
        for name, shape, axes in (
            ("axis of one", (2, 1, 3), (1,)), ("one element", (1,), (0,)), ("all axes", (2, 3), (0, 1)), ("last", (2, 5), (1,)),
            ("first", (5, 2), (0,)), ("batch of 0", (0, 3), (1,)), ("two apart", (2, 3, 4), (0, 2)), ("spatial", (1, 3, 4, 4), (2, 3)),
        ):  # fmt: skip
            for keep in (0, 1):
                yield Form(kind, f"{name}{', kept' * keep}", (shape,), constants=(_ints(*axes),), attributes=(("keepdims", keep),))
    for name, shape, axis in (("axis of one", (2, 1), 1), ("one element", (1,), 0), ("middle axis of one", (2, 1, 3), 1),
                              ("all equal", (1, 4), 1), ("axis of two", (3, 2), 1), ("batch of 0", (0, 4), 1), ("first axis", (5, 2), 0),
                              ("middle axis", (2, 3, 4), 1), ("long", (1, 1001), 1), ("picture", (1, 3, 2, 2), 1)):  # fmt: skip
        yield Form("Softmax", name, (shape,), attributes=(("axis", axis),))
        yield Form("LogSoftmax", name, (shape,), attributes=(("axis", axis),))
        yield Form("ArgMax", name, (shape,), attributes=(("axis", axis), ("keepdims", 0)))
        yield Form("ArgMin", name, (shape,), attributes=(("axis", axis), ("keepdims", 0)))


def _elementwise() -> Iterator[Form]:
    for kind, more in UNARY.items():
        for shape in SHAPES:
            yield Form(kind, str(shape), (shape,), attributes=tuple(more.items()))
    for alpha in (0.0, 1.0, -0.5, 3.0):
        yield Form("LeakyRelu", f"alpha {alpha}", ((2, 5),), attributes=(("alpha", alpha),))
    for kind in ("Add", "Sub", "Mul", "Max", "Min"):
        for first, second in PAIRS:
            yield Form(kind, f"{first} and {second}", (first, second), alike=kind in ("Max", "Min"))
    for first, second in PAIRS:
        condition = np.random.default_rng(len(first)).random(np.broadcast_shapes(first, second)) < 0.5
        yield Form("Where", f"{first} and {second}", (first, second), leading=(condition,))
    yield Form("Where", "one condition", ((2, 3), (2, 3)), leading=(np.array([True]),))
    yield Form("Clip", "both bounds", ((2, 5),), constants=(np.array(-1, np.float32), np.array(6, np.float32)))
    yield Form("Clip", "bounds beyond the quantization", ((2, 5),), constants=(np.array(-1e9, np.float32), np.array(1e9, np.float32)))
    yield Form("PRelu", "one slope", ((1, 3, 2, 2),), constants=(np.full((1, 1, 1), 0.25, np.float32),))


def _movements() -> Iterator[Form]:
    for name, shapes, axis in (("of one", ((2, 3),), 1), ("with an empty one", ((2, 3), (2, 0)), 1), ("of empty ones", ((0, 3), (0, 3)), 0),
                               ("of ones", ((1, 1), (1, 1)), 0), ("of three", ((1, 2, 3, 3), (1, 1, 3, 3), (1, 4, 3, 3)), 1),
                               ("first", ((2, 3), (1, 3)), 0)):  # fmt: skip
        yield Form("Concat", name, shapes, attributes=(("axis", axis),))
        yield Form("Concat", f"{name}, one quantization", shapes, attributes=(("axis", axis),), alike=True)
    for name, shape, indices, axis in (("one index", (3, 4), _ints(2), 0), ("a scalar index", (3, 4), np.array(1, np.int64), 1),
                                       ("no index", (3, 4), np.zeros(0, np.int64), 0), ("a table of one", (1, 4), _ints(0, 0), 0),
                                       ("batch of 0", (0, 4), _ints(1), 1)):  # fmt: skip
        yield Form("Gather", name, (shape,), constants=(indices,), attributes=(("axis", axis),))
    for mode in ("nearest", "linear"):
        method = "asymmetric" if mode == "nearest" else "half_pixel"
        for name, shape, sizes in (("1x1 input", (1, 3, 1, 1), (3, 2)), ("to 1x1", (1, 3, 4, 4), (1, 1)),
                                   ("same size", (1, 2, 3, 3), (3, 3)),
                                   ("one channel", (1, 1, 3, 4), (7, 5)),
                                   ("batch of 0", (0, 2, 3, 3), (6, 6)), ("one row", (1, 2, 1, 4), (1, 8))):  # fmt: skip
            more = _spatial(mode=mode, coordinate_transformation_mode=method)
            yield Form("Resize", f"{mode} {name}", (shape,), constants=(_ints(*sizes),), attributes=more)
    for shape in SHAPES:
        rank = len(shape)
        yield Form("Transpose", str(shape), (shape,), attributes=(("perm", tuple(reversed(range(rank)))),))
        yield Form("Pad", str(shape), (shape,), constants=(_ints(*[1] * rank, *[2] * rank),))
        yield Form("Reshape", str(shape), (shape,), constants=(_ints(*reversed(shape)),), attributes=(("allowzero", 1),))
        yield Form("Tile", str(shape), (shape,), constants=(_ints(*[2] * rank),))
    yield Form("Pad", "nothing", ((2, 3),), constants=(_ints(0, 0, 0, 0),))
    yield Form("Slice", "to nothing", ((2, 3),), constants=(_ints(1), _ints(1), _ints(1), _ints(1)))
    yield Form("Slice", "backwards", ((2, 5),), constants=(_ints(4), _ints(-9), _ints(1), _ints(-2)))
    yield Form("DepthToSpace", "1x1", ((1, 4, 1, 1),), attributes=_spatial(blocksize=2))
    yield Form("SpaceToDepth", "to 1x1", ((1, 1, 2, 2),), attributes=_spatial(blocksize=2))


FORMS: tuple[Form, ...] = (*_convolutions(), *_products(), *_pools(), *_reductions(), *_elementwise(), *_movements())

#: In words -> zero points of data and result, as shares of the type's range, and steps that the result's range has for 256 that it needs.
GRIDS = {
    "middle": (0.5, 0.5, 256.0),
    "zero points at the lower end": (0.0, 0.0, 256.0),
    "zero points at the upper end": (1.0, 1.0, 256.0),
    "saturating": (0.4, 0.6, 2000.0),
    "coarse result": (0.5, 0.3, 20.0),
    "results of no step": (0.5, 0.5, 1e-4),
    "results far beyond": (0.5, 0.5, 1e7),
}


def _point(dtype: str, share: float) -> int:
    low, high = integer_range(dtype)
    return 0 if dtype == "int16" else int(low + round(share * (high - low)))


def _graph(form: Form, dtype: str, words: str, scale: float) -> Graph:
    """The graph; the result's scale is such that its values fill the range as GRIDS says."""
    shares, rng = GRIDS[words], np.random.default_rng(len(form.name))
    scale = scale / 128 if dtype == "int16" else scale
    tensors: list[Tensor] = []
    names: list[str] = []

    def constant(data: Array, q: Quantization | None = None) -> None:
        names.append(f"c{len(tensors)}")
        tensors.append(Tensor(names[-1], canonical_dtype(data.dtype), data.shape, data, q))

    for data in form.leading:
        constant(data)
    inputs = []
    for index, shape in enumerate(form.data):
        inputs.append(f"x{index}")
        own = scale * (1 if form.alike else (1, 0.6, 2.3)[index])
        tensors.append(Tensor(inputs[-1], dtype, shape, None, Quantization.per_tensor(own, _point(dtype, shares[0]))))
    names += inputs
    if form.weights is not None:
        data = rng.integers(-127, 128, form.weights).astype(np.int8)
        scales = np.float32(rng.uniform(0.005, 0.02, form.weights[0]))
        constant(data, Quantization.per_axis(scales, 0))
        if form.bias:
            wide = np.int64 if dtype == "int16" else np.int32
            bias = rng.integers(-2000, 2000, form.weights[0]).astype(wide)
            constant(bias, Quantization.per_axis(np.float32(scale) * scales, 0))
    for data in form.constants:
        constant(data)
    moves = KINDS[form.kind].rule in ("move", "index") or (form.alike and form.kind in ("Concat", "Max", "Min")) or form.kind in ("Clip",)
    moves = moves or (form.kind == "Resize" and dict(form.attributes)["mode"] == "nearest")
    first = next(tensor for tensor in tensors if tensor.name == inputs[0])
    real = Tensor("y", "float32", None)
    if KINDS[form.kind].rule == "index":
        real = Tensor("y", "int64", None)
    op = Op(form.kind, tuple(names), ("y",), dict(form.attributes), f"{form.kind} {form.name}")
    graph = infer(Graph("edge", {tensor.name: tensor for tensor in (*tensors, real)}, (op,), tuple(inputs), ("y",)))
    if KINDS[form.kind].rule == "index":
        return graph
    q = first.quantization if moves else _result_quantization(graph, dtype, shares)
    return graph.evolve(tensors=[replace(graph["y"], dtype=dtype, quantization=q)])


def _result_quantization(graph: Graph, dtype: str, shares: tuple[float, float, float]) -> Quantization:
    """A quantization on which the values of the first random feed take as many steps as wanted."""
    feed = feeds(graph)[0]
    values = evaluate_op(graph, graph.ops[0], [feed[name] if name in feed else graph.constant(name) for name in graph.ops[0].inputs])
    real = values[0].real
    assert real is not None
    low, high = integer_range(dtype)
    known = real[np.isfinite(real)]
    span = max(float(np.abs(known).max(initial=0)), 1e-3) * (1 if shares[1] in (0.0, 1.0) else 2)
    return Quantization.per_tensor(span / shares[2] * 256 / (high - low + 1), _point(dtype, shares[1]))


def feeds(graph: Graph, seed: int = 0) -> list[dict[str, Array]]:
    """Random integers over the whole range, the smallest alone, the largest alone, and all zero points."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, Array]] = [{}, {}, {}, {}]
    for name in graph.inputs:
        tensor = graph[name]
        (low, high), dtype = integer_range(tensor.dtype), numpy_dtype(tensor.dtype)
        shape = tensor.static_shape
        assert shape is not None and tensor.quantization is not None
        found[0][name] = rng.integers(low, high + 1, shape).astype(dtype)
        for feed, value in zip(found[1:], (low, high, tensor.quantization.point), strict=True):
            feed[name] = np.full(shape, value, dtype)
    return found


def one_edge(form: Form, dtype: str, quantizations: str, scale: float = 0.03) -> Edge:
    """A form quantized as `dtype` with quantizations that a key of GRIDS names; `scale` is that of the first operand."""
    return Edge(form, quantizations, _graph(form, dtype, quantizations, scale))


def edges(dtype: str, kinds: Sequence[str], quantizations: Sequence[str] = tuple(GRIDS)) -> Iterator[Edge]:
    """Every form of the kinds on every quantization; where integers are moved, quantizations make no difference."""
    for form in FORMS:
        if form.kind in kinds:
            moves = KINDS[form.kind].rule in ("move", "index")
            yield from (one_edge(form, dtype, words) for words in (quantizations[:1] if moves else quantizations))


def joined(graphs: Sequence[Graph]) -> Graph:
    """One graph of many side by side: the tensors of graph i end in _i."""
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for index, graph in enumerate(graphs):
        renamed = graph.with_names({name: f"{name}_{index}" for name in graph.tensors})
        tensors |= renamed.tensors
        ops += [replace(op, source=f"{op.source}, {index}") for op in renamed.ops]
    inputs, outputs = (tuple(f"{name}_{i}" for i, g in enumerate(graphs) for name in getattr(g, side)) for side in ("inputs", "outputs"))
    return Graph("edges", tensors, tuple(ops), inputs, outputs)
