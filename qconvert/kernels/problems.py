"""Test problems for kernels: graphs of one quantized operator each, with random scales, for every runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.errors import OptionError
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, canonical_dtype, integer_range, numpy_dtype
from qconvert.kernels.kernel import Kernels
from qconvert.operators import KINDS
from qconvert.operators.shapes_and_functions import infer

__all__ = ["KINDS_TRIED", "problem", "random_codes"]

_SPACE = {"data_format": "channels_first", "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
_SPACE_ALONE = {"data_format": "channels_first"}
_WINDOW = {"data_format": "channels_first", "kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}


@dataclass(frozen=True, slots=True)
class _Form:
    """An operator without types and scales.

    Attributes:
        data: shapes of the operands; codes of any value.
        weights: shape of constant weights after them, O,I,spatial, int8 with a scale for each output.
        constants, leading: further inputs as they are, after the data and before them.
        attributes: of the operator.
        is_positive: whether data are above zero alone.
        scales: natural logarithms of the least and the largest scale of the data.
    """

    data: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...] = ()
    constants: tuple[Array, ...] = ()
    leading: tuple[Array, ...] = ()
    attributes: Mapping[str, Any] | None = None
    is_positive: bool = False
    scales: tuple[float, float] = (-4, -1)


_IMAGE = (1, 4, 8, 8)
_ROWS = (2, 8, 24)
_EACH = _Form((_ROWS,))
_BOTH = _Form((_ROWS, _ROWS))
_AXES = (np.array([1], np.int64),)

_FORMS: Mapping[str, tuple[_Form, ...]] = {
    **dict.fromkeys(("Relu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Gelu", "Abs", "Requantize"), (_EACH,)),
    "Exp": (_Form((_ROWS,), scales=(-5, -3.5)),),
    **dict.fromkeys(("Sqrt", "Rsqrt", "Log"), (_Form((_ROWS,), is_positive=True),)),
    "LeakyRelu": (_Form((_ROWS,), attributes={"alpha": 0.1}), _Form((_ROWS,), attributes={"alpha": 0.7})),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "SquaredDifference", "Max", "Min"), (_BOTH,)),
    **dict.fromkeys(("Equal", "NotEqual", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), (_BOTH,)),
    "Concat": (_Form((_ROWS, _ROWS), attributes={"axis": 1}),),
    "Conv": (
        _Form((_IMAGE,), (6, 4, 3, 3), attributes={**_SPACE, "group": 1}),
        _Form((_IMAGE,), (4, 1, 3, 3), attributes={**_SPACE, "group": 4}),
    ),
    "ConvTranspose": (_Form((_IMAGE,), (6, 4, 3, 3), attributes={**_SPACE, "group": 1}),),
    "Gemm": (_Form(((4, 24),), (8, 24)),),
    "Clip": (_Form((_ROWS,), constants=(np.array(-1.5, np.float32), np.array(2.5, np.float32))),),
    "PRelu": (_Form((_IMAGE, (4, 1, 1))),),
    "Where": (_Form((_ROWS, _ROWS), leading=(np.arange(384).reshape(_ROWS) % 3 == 0,)),),
    "Resize": tuple(
        _Form((_IMAGE,), constants=(np.array([16, 12], np.int64),), attributes={**_SPACE_ALONE, **more})
        for more in (
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        )
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), (_Form((_ROWS,), attributes={"axis": 2, "keepdims": 0}),)),
    **dict.fromkeys(("SpaceToDepth", "DepthToSpace"), (_Form((_IMAGE,), attributes={**_SPACE_ALONE, "blocksize": 2}),)),
    **dict.fromkeys(
        ("SpaceToBatch", "BatchToSpace"),
        (_Form(((4, 3, 8, 8),), constants=(np.array([2, 2], np.int64), np.zeros(4, np.int64)), attributes=_SPACE_ALONE),),
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LpNormalization"), (_Form((_ROWS,), attributes={"axis": 2}),)),
    "ReduceProd": (_Form(((16, 3),), constants=_AXES, attributes={"keepdims": 0}),),
    "MatMul": (_Form((_ROWS, (2, 24, 6))),),
    **dict.fromkeys(("AveragePool", "MaxPool"), (_Form((_IMAGE,), attributes=_WINDOW),)),
    "GlobalAveragePool": (_Form((_IMAGE,), attributes=_SPACE_ALONE),),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax"), (_Form((_ROWS,), constants=_AXES, attributes={"keepdims": 1}),)),
}

#: Kind -> range of results for a range of data; other kinds have the range of the data.
_LARGEST: Mapping[str, Callable[[float], float]] = {
    **dict.fromkeys(("Sigmoid", "Softmax", "HardSigmoid"), lambda span: 1.0),
    "Tanh": lambda span: 2.0,
    "Exp": lambda span: math.exp(min(span / 2, 8.0)),
    "Sqrt": lambda span: span**0.5,
    "Rsqrt": lambda span: 4.0,
    "Log": lambda span: 8.0,
    **dict.fromkeys(("Mul", "SquaredDifference"), lambda span: span**2 / 4),
}

#: The share of problems whose scales are powers of two, so that results lie in the middle between two integers.
_WITH_TIES = 0.3

#: Kinds that problem() makes operators of.
KINDS_TRIED = tuple(_FORMS)


def problem(kind: str, dtype: str, rng: np.random.Generator, kernels: Kernels, layout: str = "channels_first") -> Graph:
    """Return a graph of one operator.

    Args:
        kind: one of KINDS_TRIED.
        dtype: storage of data and result: int8, uint8 or int16, whose zero points are 0.
        rng: chooses among the kind's forms, scales, zero points and constants.
        kernels: the kernels to test; the graph has the scales that they fix, and equal ones where they require it.
        layout: of images, "channels_first" or "channels_last".

    Raises:
        OptionError: the kind is none of these.
    """
    if kind not in _FORMS:
        raise OptionError(
            f"{kind} has no form in qconvert/kernels/problems.py, of which random operators are made",
            remedy="Give it one there; a plugin compares its runtime with the reference of the row in a test of its own.",
            rule="unknown-kind",
        )
    form = _FORMS[kind][int(rng.integers(len(_FORMS[kind])))]
    if layout == "channels_last" and form.attributes is not None and "data_format" in form.attributes:
        moved = tuple((shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape for shape in form.data)
        form = replace(form, data=moved, attributes={**form.attributes, "data_format": layout})
    low, high = integer_range(dtype)
    step = 2.0**-8 if dtype == "int16" else 1.0
    has_ties = rng.random() < _WITH_TIES

    def quantization(scale: float, least: int = low, most: int = high) -> Quantization:
        point = 0 if dtype == "int16" else int(rng.integers(least, most, endpoint=True))
        return Quantization.per_tensor(float(np.float32(2.0 ** round(math.log2(scale)) if has_ties else scale) * np.float32(step)), point)

    tensors: list[Tensor] = []
    for place, shape in enumerate(form.data):
        least = low if form.is_positive else low // 2 + high // 4
        most = least if form.is_positive else high // 2 + low // 4
        q = quantization(float(np.exp(rng.uniform(*form.scales))), least, most)
        tensors.append(Tensor(f"x{place}", dtype, shape, None, q))
    if kernels.one_quantization(kind, dtype):
        tensors = [Tensor(t.name, t.dtype, t.shape, None, tensors[0].quantization) for t in tensors]
    if form.weights:
        tensors += _weights(form, tensors[0], rng, has_ties)
    leading, following = (
        [Tensor(f"{name}{place}", canonical_dtype(data.dtype), data.shape, data) for place, data in enumerate(found)]
        for name, found in (("a", form.leading), ("c", form.constants))
    )
    result = Tensor("y", dtype, None, None, _result(kind, dtype, tensors[0], rng, kernels, quantization))
    tensors = [*leading, *tensors, *following]
    names = tuple(tensor.name for tensor in tensors)
    op = Op(kind, names, ("y",), dict(form.attributes or {}), f"{kind} #0")
    if KINDS[kind].rule == "index":
        result = Tensor("y", "int64" if kind.startswith("Arg") else "bool", None)
    inputs = tuple(tensor.name for tensor in tensors if tensor.data is None)
    return infer(Graph(f"{kind} of {dtype}", {tensor.name: tensor for tensor in (*tensors, result)}, (op,), inputs, ("y",)))


def random_codes(graph: Graph, kind: str, rng: np.random.Generator) -> dict[str, Array]:
    """Return random stored inputs of a problem, before or after passes: all codes, or those of positive numbers alone."""
    found = {}
    for name in graph.inputs:
        tensor, q = graph[name], graph[name].quantization
        low, high = integer_range(tensor.dtype)
        if q is not None and _FORMS[kind][0].is_positive:
            low = max(low, int(q.zero_point[0]) + 1)
        found[name] = rng.integers(low, high, tensor.static_shape or (), np.int64, endpoint=True).astype(numpy_dtype(tensor.dtype))
    return found


def _weights(form: _Form, data: Tensor, rng: np.random.Generator, has_ties: bool) -> Iterator[Tensor]:
    """Weights with a scale for each output, and a bias on the accumulator's quantization."""
    outputs = form.weights[0]
    scales = np.exp(rng.uniform(-5, -3, outputs))
    scales = (np.exp2(np.rint(np.log2(scales))) if has_ties else scales).astype(np.float32)
    stored = rng.integers(-127, 127, form.weights, np.int64, endpoint=True).astype(np.int8)
    assert data.quantization is not None
    wide = "int64" if data.dtype == "int16" else "int32"
    bias = rng.integers(-2000, 2000, outputs).astype(numpy_dtype(wide))
    yield Tensor("w", "int8", form.weights, stored, Quantization.per_axis(scales, 0))
    yield Tensor("b", wide, (outputs,), bias, Quantization.per_axis(scales * data.quantization.scale, 0))


def _result(
    kind: str, dtype: str, data: Tensor, rng: np.random.Generator, kernels: Kernels, quantization: Callable[..., Quantization]
) -> Quantization:
    if (fixed := kernels.fixed_qparams(kind, dtype)) is not None:
        return Quantization.per_tensor(*fixed)
    given = data.quantization
    assert given is not None
    if kernels.one_quantization(kind, dtype) == "all" or KINDS[kind].rule == "move":
        return given
    span = float(given.scale[0]) * 256 * (2.0**8 if dtype == "int16" else 1.0)
    largest = _LARGEST[kind](span) if kind in _LARGEST else span
    return quantization(largest / 256 * float(np.exp(rng.uniform(-1, 0.5))))
