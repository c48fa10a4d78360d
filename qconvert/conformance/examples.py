"""Examples of every kind of operator, and graphs of one operator made of them, with random scales, for every type, target and runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qconvert.errors import OptionError
from qconvert.evaluate import evaluate_op, stored_inputs
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, canonical_dtype, integer_range, numpy_dtype
from qconvert.kernels import KERNELS, Kernels
from qconvert.operators import KINDS, Kind, kind_of
from qconvert.operators.properties import Suits
from qconvert.operators.recurrent import CELLS
from qconvert.operators.shapes_and_functions import infer
from qconvert.operators.typing import stated_output_type

#: The storage types in which an example of quantized data is made.
QUANTIZED_TYPES = ("int8", "uint8", "int16")


@dataclass(frozen=True, slots=True)
class Fed:
    """An input of the graph whose values are those of the example, not random ones."""

    data: Array


#: A shape, of random data or weights; an input with its values; a constant; or None for an absent input.
Operand = tuple[int, ...] | Fed | Array | None


@dataclass(frozen=True, slots=True)
class Example:
    """An operator without types and scales.

    Attributes:
        operands: its inputs.
        attributes: of the operator.
        outputs: how many outputs it gives.
        is_positive: whether random data are above zero.
        scales: natural logarithms of the least and the largest scale of the data.
        has_extremes: whether zero points may be the ends of their type, and scales, of 1e-8 to 1e4, far from what values need.
    """

    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    is_positive: bool = False
    scales: tuple[float, float] = (-4, -1)
    has_extremes: bool = False


_IMAGE = (1, 4, 8, 8)
_ROWS = (2, 8, 24)
_FIRST = {"data_format": "channels_first"}
_PLACES = {**_FIRST, "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
_WINDOW = {**_FIRST, "kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}
_RNG = np.random.default_rng(20261128)


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _floats(*values: float) -> Array:
    return np.array(values, np.float32)


def _normal(*shape: int, mean: float = 0.0, deviation: float = 1.0) -> Array:
    return np.asarray(_RNG.normal(mean, deviation, shape), np.float32)


def _whole(low: int, high: int, *shape: int, dtype: str = "int32") -> Array:
    return _RNG.integers(low, high, shape).astype(dtype)


def _bools(*shape: int) -> Array:
    return _RNG.random(shape) < 0.5


def _recurrent(kind: str) -> Example:
    gates, hidden = CELLS[kind].gates, 5
    weights = [_normal(1, gates * hidden, width, deviation=0.5) for width in (3, hidden)]
    return Example(((4, 2, 3), *weights, _normal(1, 2 * gates * hidden, deviation=0.3)), {"hidden_size": hidden})


#: Kinds -> an example of each, or several. Those of functions of each element of operands of one shape are made by examples_of().
_LISTED: Mapping[str, Example | tuple[Example, ...]] = {
    "Exp": Example((_ROWS,), scales=(-5, -3.5)),
    "Sqrt Rsqrt Log Reciprocal": Example((_ROWS,), is_positive=True),
    "Acosh": Example((_ROWS,), is_positive=True, scales=(0.1, 1)),
    "Asin Acos Atanh": Example((_ROWS,), scales=(-6.5, -5.6)),
    "Sinh Cosh Tan": Example((_ROWS,), scales=(-5.5, -4.5)),
    "LeakyRelu": (Example((_ROWS,), {"alpha": 0.1}), Example((_ROWS,), {"alpha": 0.7})),
    "Div FloorDiv FloorMod Mod": Example((_ROWS, _ROWS), is_positive=True),
    "Pow": Example((_ROWS, np.array(2, np.float32))),
    "Sum": Example((_ROWS, _ROWS, _ROWS)),
    "PRelu": Example((_IMAGE, (4, 1, 1))),
    "Where": Example((np.arange(384).reshape(_ROWS) % 3 == 0, _ROWS, _ROWS)),
    "Clip": Example((_ROWS, np.array(-1.5, np.float32), np.array(2.5, np.float32))),
    "FakeQuant": Example((_ROWS,), {"min": -1.1, "max": 1.3}),
    "And Or Xor": Example((Fed(_bools(3, 4)), Fed(_bools(3, 4)))),
    "Not": Example((Fed(_bools(3, 4)),)),
    "BitwiseAnd BitwiseOr BitwiseXor": Example((Fed(_whole(-99, 99, 3, 4)), Fed(_whole(-99, 99, 3, 4)))),
    "BitwiseNot": Example((Fed(_whole(-99, 99, 3, 4)),)),
    "BitShift": Example((Fed(_whole(0, 99, 3, 4)), Fed(_whole(0, 9, 3, 4))), {"direction": "LEFT"}),
    "Cast": Example((Fed(_normal(3, 4)),), {"to": "int32"}),
    "Bitcast": Example((Fed(_normal(3, 4)),), {"to": "int32"}),
    "IsNaN IsInf": Example((Fed(_floats(1, np.nan, -2, np.inf, 0, -np.inf)),)),
    "DynamicQuantizeLinear": Example((Fed(_normal(3, 8)),), outputs=3),
    "Bucketize": Example((_ROWS, _floats(-0.5, 0.0, 0.5))),
    # Sums of products
    "Conv": (Example((_IMAGE, (6, 4, 3, 3), (6,)), {**_PLACES, "group": 1}),
             Example((_IMAGE, (4, 1, 3, 3), (4,)), {**_PLACES, "group": 4})),
    "ConvTranspose": Example((_IMAGE, (6, 4, 3, 3), (6,)), {**_PLACES, "group": 1}),
    "Gemm": Example(((4, 24), (8, 24), (8,))),
    "MatMul": Example((_ROWS, (2, 24, 6))),
    "Einsum": Example(((2, 3, 4), (2, 4, 5)), {"equation": "bij,bjk->bik"}),
    "ConvInteger": Example((Fed(_whole(0, 255, 1, 2, 5, 5, dtype="uint8")), _whole(0, 255, 3, 2, 3, 3, dtype="uint8"),
                            np.array(7, np.uint8), np.array(3, np.uint8)), _PLACES),
    "MatMulInteger": Example((Fed(_whole(0, 255, 4, 6, dtype="uint8")), _whole(-99, 99, 6, 3, dtype="int8"), np.array(7, np.uint8))),
    # Windows, images
    "AveragePool MaxPool L2Pool": Example((_IMAGE,), _WINDOW),
    "GlobalAveragePool GlobalMaxPool": Example((_IMAGE,), _FIRST),
    "Resize": tuple(
        Example((_IMAGE, _ints(16, 12)), {**_FIRST, **more})
        for more in (
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        )
    ),
    "SpaceToDepth DepthToSpace": Example((_IMAGE,), {**_FIRST, "blocksize": 2}),
    "SpaceToBatch": Example(((2, 3, 6, 8), _ints(2, 2), _ints(1, 0, 1, 2)), _FIRST),
    "BatchToSpace": Example(((4, 3, 8, 8), _ints(2, 2), np.zeros(4, np.int64)), _FIRST),
    "LRN": Example((_IMAGE,), {**_FIRST, "size": 3, "alpha": 0.1}),
    "RoiAlign": Example((_IMAGE, np.array([[0, 0, 3, 3], [1.2, 0.5, 7, 5.5]], np.float32), _ints(0, 0)),
                        {"output_height": 3, "output_width": 2, "sampling_ratio": 2}),
    "ReduceWindow": Example((Fed(_normal(4, 5)), np.array(0, np.float32)),
                            {"function": "add", "window": (2, 2), "strides": (1, 2), "dilations": (1, 1)}),
    # Normalization
    "BatchNormalization": Example((_IMAGE, *(_normal(4, mean=1, deviation=0.2) for _ in range(3)), _floats(0.5, 1, 1.5, 2)), _FIRST),
    "InstanceNormalization": Example((_IMAGE, _normal(4, mean=1), _normal(4)), _FIRST),
    "GroupNormalization": Example((_IMAGE, _normal(4, mean=1), _normal(4)), {**_FIRST, "num_groups": 2}),
    "LayerNormalization": Example((_ROWS, _normal(24, mean=1), _normal(24)), {"axis": -1}),
    "RMSNormalization": Example((_ROWS, _normal(24, mean=1)), {"axis": -1}),
    "Softmax LogSoftmax LpNormalization Hardmax": Example((_ROWS,), {"axis": 2}),
    # Reductions, order
    "ReduceMean ReduceSum ReduceMax ReduceMin": Example((_ROWS, _ints(1)), {"keepdims": 1}),
    "ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp": Example((_ROWS, _ints(1)), {"keepdims": 0}),
    "ReduceLogSum": Example((_ROWS, _ints(1)), {"keepdims": 0}, is_positive=True),
    "ReduceProd": Example(((16, 3), _ints(1)), {"keepdims": 0}),
    "ReduceAny ReduceAll": Example((Fed(_bools(3, 4)), _ints(1)), {"keepdims": 0}),
    "CumSum CumProd": Example(((2, 5),), {"axis": 1}),
    "ArgMax ArgMin": Example((_ROWS,), {"axis": 2, "keepdims": 0}),
    "TopK": Example((_ROWS, _ints(3)), {"axis": 2}, outputs=2),
    "NonZero Rank Shape": Example(((3, 4),)),
    "Unique": Example((Fed(_whole(0, 5, 12)),), outputs=2),
    "SegmentSum": Example((Fed(_normal(4, 2)), np.array([0, 0, 1, 1], np.int32))),
    "UnsortedSegment": Example((Fed(_normal(4, 2)), np.array([2, 1, 0, 2], np.int32), _ints(3)), {"reduction": "sum"}),
    # Data movement
    "Concat": Example((_ROWS, _ROWS), {"axis": 1}),
    "Pack": Example((_ROWS, _ROWS), {"axis": 1}),
    "Unpack": Example(((3, 4, 5),), {"axis": 0}, outputs=3),
    "Split": Example((_ROWS, _ints(3, 5)), {"axis": 1}, outputs=2),
    "Reshape": Example((_ROWS, _ints(4, 96))),
    "Squeeze": Example(((2, 1, 24), _ints(1))),
    "Unsqueeze": Example((_ROWS, _ints(1))),
    "Transpose": Example((_ROWS,), {"perm": (0, 2, 1)}),
    "Tile": Example((_ROWS, _ints(1, 2, 1))),
    "Expand": Example(((2, 1, 24), _ints(2, 8, 24))),
    "Slice": Example((_ROWS, _ints(1, 2), _ints(7, 20), _ints(1, 2), _ints(2, 3))),
    "Pad": Example((_ROWS, _ints(0, 1, 2, 0, 3, 0), ())),
    "InteriorPad": Example(((3, 4), ()), {"low": (1, 0), "high": (1, 2), "interior": (1, 2)}),
    "Gather": Example((_ROWS, _ints(5, 0, 3)), {"axis": 1}),
    "GatherND": Example(((3, 4, 5), _ints(0, 1, 2, 3).reshape(2, 2))),
    "GatherElements": Example(((3, 4), _ints(0, 2, 1, 0, 3, 1).reshape(3, 2)), {"axis": 1}),
    "StartGather": Example(((4, 5), np.array([[1], [9]], np.int32)), {"offset_dims": (1, 2), "collapsed_dims": (), "start_index_map": (1,),
                            "index_vector_dim": 1, "slice_sizes": (2, 3)}),
    "ScatterND": tuple(Example(((4, 3), _ints(2, 0).reshape(2, 1), (2, 3)), {"reduction": reduction}) for reduction in ("none", "add")),
    "ScatterElements": tuple(
        Example(((3, 3), _ints(0, 1, 2).reshape(1, 3), (1, 3)), {"axis": 0, "reduction": reduction}) for reduction in ("none", "add")
    ),
    "DynamicUpdateSlice": Example(((4, 5), (2, 2), Fed(np.array([1, 1], np.int32)))),
    "TensorScatter": tuple(
        Example(((2, 3, 4, 5), (2, 3, 2, 5), Fed(_ints(1, start))), {"mode": mode}) for mode, start in (("linear", 2), ("circular", 3))
    ),
    "ReverseSequence": Example(((4, 3, 2), _ints(4, 1, 2)), {"time_axis": 0, "batch_axis": 1}),
    "SparseToDense": Example((np.array([[0, 1], [2, 0]], np.int32), _ints(3, 2), (2,), ())),
    "MatrixDiag": Example((Fed(_normal(2, 3)),)),
    "MatrixSetDiag": Example(((2, 3, 4), (2, 3))),
    "Trilu": Example((Fed(_normal(2, 3, 4)), np.array(1))),
    # Made from nothing, signals, boxes
    "ZerosLike": Example((Fed(_normal(2, 3)),)),
    "Range": Example(tuple(np.array(number, np.float32) for number in (2.0, 4.0, 0.3))),
    "OneHot": Example((Fed(_whole(0, 5, 3, 2, dtype="int64")), np.array(5), _floats(0.5, 2)), {"axis": 1}),
    "BroadcastArgs": Example((Fed(_ints(3, 1, 5)), Fed(_ints(4, 1)))),
    "DFT": Example(((2, 6, 1),), {"axis": 1, "onesided": 1}),
    "STFT": Example(((4, 24), _floats(0.2, 0.9, 0.9, 0.2)), {"length": 4, "step": 3}),
    "Rfft2d": Example((Fed(_normal(2, 8, 8)), np.array([8, 8], np.int32))),
    "Real Imag ComplexAbs": Example((Fed(_normal(3, 2)),)),
    "NonMaxSuppression": Example((Fed(np.sort(_normal(1, 20, 2, 2), axis=2).reshape(1, 20, 4)), Fed(_normal(1, 1, 20)), _ints(6),
                                  _floats(0.25), _floats(0.1))),
    "SelectBoxes": Example((Fed(np.sort(_normal(20, 2, 2), axis=1).reshape(20, 4)), Fed(_normal(20)), np.array(6, np.int32),
                            np.array(0.25, np.float32), np.array(0.1, np.float32)), outputs=2),
    "DetectionPostProcess": Example(((1, 9, 4), (1, 9, 3), np.abs(_normal(9, 4)) + np.float32(0.2)),
                                    {"max_detections": 4, "num_classes": 2, "nms_score_threshold": 0.1, "nms_iou_threshold": 0.5,
                                     "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}, outputs=4),
    **{kind: _recurrent(kind) for kind in CELLS},
}  # fmt: skip

_EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    kind: found if isinstance(found, tuple) else (found,) for kinds, found in _LISTED.items() for kind in kinds.split()
}

#: Why one operator alone says nothing, and the tests that are about it, by the rule of its kind, or "recurs".
_REASONS: Mapping[str, str] = {
    "control": "it runs functions of a graph: tests/formats/onnx/test_control.py",
    "state": "it needs a state of a graph: tests/conversion",
    "recurs": "a kernel of TFLite with states: tests/test_recurrent_arithmetic.py",
    "opaque": "nothing is known of it",
    "relabel": "a kernel of the source makes it",
}

#: The share of graphs whose scales are powers of two, so that results lie in the middle between two integers.
_WITH_TIES = 0.3


def examples_of(kind: Kind) -> tuple[Example, ...]:
    """Return the examples of a kind; one on operands of one shape where it is a function of each element."""
    if kind.name in _EXAMPLES:
        return _EXAMPLES[kind.name]
    is_of_elements = kind.layout.suits is Suits.BROADCASTS and {*kind.roles} == {"data"} and kind.rule not in _REASONS
    return (Example((_ROWS,) * kind.inputs[0]),) if is_of_elements else ()


def find_kinds_without_example() -> dict[str, str]:
    """Return the kinds of which one operator alone says nothing, each with the reason, and the tests that are about it."""
    rules = {name: "recurs" if kind.recurs else kind.rule for name, kind in KINDS.items() if name not in _EXAMPLES}
    return {name: reason for word, reason in _REASONS.items() for name, rule in rules.items() if rule == word}


def types_of(kind: Kind) -> tuple[str, ...]:
    """Return the storage types in which examples of a kind are made: those of the example alone where nothing is quantized."""
    if kind.rule == "plain":
        return ("plain",)
    return QUANTIZED_TYPES if kind.rule == "convert" else (*QUANTIZED_TYPES, "float32")


#: The kinds whose data are random and quantized.
QUANTIZED_KINDS = tuple(name for name, kind in KINDS.items() if examples_of(kind) and kind.rule in ("real", "move", "index", "convert"))


def kinds_with_kernels() -> list[str]:
    """Return those of QUANTIZED_KINDS of which TFLite's runtimes have kernels of integers, as most accelerators have."""
    rows = [row for name in ("litert:default", "tflite-micro:reference") for row in KERNELS[name].rows]
    found = {kind for row in rows if row.runs in ("integers", "inexact") for kind in row.kinds}
    return [name for name in QUANTIZED_KINDS if name in found]


def make_graph(
    kind: str,
    dtype: str,
    rng: np.random.Generator,
    kernels: Kernels,
    layout: str = "channels_first",
    example: Example | None = None,
    has_unsigned_weights: bool = False,
) -> Graph:
    """Return a graph of one operator.

    Args:
        kind: one that has an example.
        dtype: storage of data and result: int8, uint8, int16, whose zero points are 0, or float32; "plain" for that of the example.
        rng: chooses among the examples, scales, zero points and constants.
        kernels: the kernels to test; the graph has the scales that they fix, and equal ones where they require it.
        layout: of images, "channels_first" or "channels_last".
        example: the operator without types and scales, with channels first; by default one of the kind's own.
        has_unsigned_weights: whether weights are uint8, with one scale and any zero point, instead of int8 with a scale for each output.

    Raises:
        OptionError: the kind has no example.
    """
    one = KINDS.get(kind)
    examples = () if one is None else examples_of(one) if example is None else (example,)
    if one is None or not examples:
        raise OptionError(
            f"{kind} has no example in qconvert/conformance/examples.py, of which random operators are made",
            remedy="Give it one there; a plugin compares its runtime with the reference of the row in a test of its own.",
            rule="unknown-kind",
        )
    example = examples[int(rng.integers(len(examples)))]
    if layout == "channels_last" and "data_format" in example.attributes:
        example = replace(
            example,
            operands=tuple(_with_channels_last(item) if one.role(place) == "data" else item for place, item in enumerate(example.operands)),
            attributes={**example.attributes, "data_format": layout},
        )
    scales = _Scales(dtype, rng, example, has_ties=rng.random() < _WITH_TIES, has_unsigned_weights=has_unsigned_weights)
    names = tuple("" if operand is None else f"i{place}" for place, operand in enumerate(example.operands))
    op = Op(kind, names, tuple(f"o{place}" for place in range(example.outputs)), dict(example.attributes), f"{kind} #0")
    tensors: list[Tensor | None] = []
    for place, operand in enumerate(example.operands):
        tensors.append(_operand(op, place, operand, scales, kernels, tensors))
    named = [tensor for tensor in tensors if tensor is not None]
    results = [_result(op, place, named, scales, kernels) for place in range(example.outputs)]
    inputs = tuple(tensor.name for tensor in named if tensor.data is None)
    known = {tensor.name: tensor for tensor in (*named, *results)}
    graph = infer(Graph(f"{kind} of {dtype}", known, (op,), inputs, op.outputs))
    has_own = one.rounds and kernels.fixed_qparams(op, dtype) is None and kernels.one_quantization(op, dtype) != "all"
    return _with_fitting_results(graph, scales) if has_own and not one.quantizes else graph


def random_operands(graph: Graph, kind: str, rng: np.random.Generator, example: Example | None = None) -> dict[str, Array]:
    """Return stored inputs of a graph of make_graph(), before or after passes: all codes, or those of positive numbers alone."""
    found: dict[str, Array] = {}
    example = example or examples_of(KINDS[kind])[0]
    for name in graph.inputs:
        tensor, q = graph[name], graph[name].quantization
        given = example.operands[int(name[1:])]
        if isinstance(given, Fed):
            found[name] = given.data if given.data.shape == tensor.static_shape else np.moveaxis(given.data, 1, -1)
        elif tensor.dtype == "float32":
            values = rng.normal(0, 1, tensor.static_shape or ())
            values = np.abs(values) + 1.01 if example.is_positive else values * math.exp(example.scales[1] + 2)
            found[name] = (np.round(values) if KINDS[kind].rule == "index" else values).astype(np.float32)
        else:
            low, high = integer_range(tensor.dtype)
            if q is not None and example.is_positive:
                low = max(low, q.point + 1)
            found[name] = rng.integers(low, high, tensor.static_shape or (), np.int64, endpoint=True).astype(numpy_dtype(tensor.dtype))
    return found


@dataclass(frozen=True, slots=True)
class _Scales:
    """Random quantization of one operator's tensors."""

    dtype: str
    rng: np.random.Generator
    example: Example
    has_ties: bool
    has_unsigned_weights: bool

    def of_data(self) -> Quantization:
        """Return a quantization of any scale, for data."""
        low, high = integer_range(self.dtype)
        least = low if self.example.is_positive else low // 2 + high // 4
        most = least if self.example.is_positive else high // 2 + low // 4
        step = 2.0**-8 if self.dtype == "int16" else 1.0
        point = int(self.rng.integers(least, most, endpoint=True))
        if self.example.has_extremes and not self.example.is_positive:
            point = int(self.rng.choice([low, high, point]))
        return self._quantize(float(np.exp(self.rng.uniform(*self.example.scales))) * step, point)

    def of_range(self, least: float, most: float) -> Quantization:
        """Return a quantization for values from `least` to `most`, of which it may clip a few."""
        low, high = integer_range(self.dtype)
        share = (-6, 6) if self.example.has_extremes else (-0.15, 0.25)
        kept = float(np.exp(self.rng.uniform(*share))) * (2**0.5 if self.has_ties else 1.0)
        if self.dtype == "int16":
            return self._quantize(max(-least, most, 1e-6) * kept / high, 0)
        scale = max(most - least, 1e-6) * kept / (high - low)
        return self._quantize(scale, int(np.clip(round(low - least * kept / scale), low, high)))

    def _quantize(self, scale: float, zero_point: int) -> Quantization:
        scale = float(np.clip(scale, 1e-8, 1e4)) if self.example.has_extremes else scale
        chosen = 2.0 ** round(math.log2(scale)) if self.has_ties else scale
        return Quantization.per_tensor(float(np.float32(chosen)), 0 if self.dtype == "int16" else zero_point)


def _with_channels_last(operand: Operand) -> Operand:
    """Return data with the channels, which stand first after the batch, as the last axis."""
    if isinstance(operand, Fed):
        return Fed(np.moveaxis(operand.data, 1, -1))
    return (operand[0], *operand[2:], operand[1]) if isinstance(operand, tuple) and len(operand) > 1 else operand


def _operand(op: Op, place: int, operand: Operand, scales: _Scales, kernels: Kernels, before: Sequence[Tensor | None]) -> Tensor | None:
    """Return the tensor of an input; random ones are quantized as their role says."""
    kind = kind_of(op)
    name, role = op.inputs[place], kind.role(place)
    if operand is None:
        return None
    if isinstance(operand, Fed):
        return Tensor(name, canonical_dtype(operand.data.dtype), operand.data.shape)
    if not isinstance(operand, tuple):
        return Tensor(name, canonical_dtype(operand.dtype), operand.shape, operand)
    data = next((tensor for tensor in before if tensor is not None and kind.role(int(tensor.name[1:])) == "data"), None)
    if role in ("weights", "bias"):
        return _weights(name, operand, data, before[1] if role == "bias" else None, scales)
    if kind.quantizes or scales.dtype not in QUANTIZED_TYPES or kind.rule == "plain":
        values = scales.rng.normal(0, 1, operand).astype(np.float32) if role == "filler" else None
        return Tensor(name, "float32", operand, values)
    is_equal = data is not None and (kind.rule in ("move", "index") or kernels.one_quantization(op, scales.dtype) != "")
    quantization = data.quantization if is_equal and data is not None else scales.of_data()
    codes = np.array(5, numpy_dtype(scales.dtype)) if role == "filler" else None
    return Tensor(name, scales.dtype, operand, codes, quantization)


def _weights(name: str, shape: tuple[int, ...], data: Tensor | None, weights: Tensor | None, scales: _Scales) -> Tensor:
    """Return weights with a scale for each output, or a bias on the accumulator's quantization; floats next to floats."""
    rng = scales.rng
    assert data is not None
    if data.quantization is None:
        return Tensor(name, "float32", shape, rng.normal(0, 0.3, shape).astype(np.float32))
    if weights is None:
        is_extreme = scales.example.has_extremes
        steps = np.exp(rng.uniform(*((-15, 5) if is_extreme else (-5, -3)), 1 if scales.has_unsigned_weights else shape[0]))
        steps = (np.exp2(np.rint(np.log2(steps))) if scales.has_ties else steps).astype(np.float32)
        if scales.has_unsigned_weights:
            point = int(rng.choice([0, 255, 128, int(rng.integers(0, 255, endpoint=True))]))
            codes = rng.integers(0, 255, shape, np.int64, endpoint=True).astype(np.uint8)
            return Tensor(name, "uint8", shape, codes, Quantization.per_tensor(float(steps[0]), point))
        stored = rng.integers(-127, 127, shape, np.int64, endpoint=True).astype(np.int8)
        return Tensor(name, "int8", shape, stored, Quantization.per_axis(steps, 0))
    assert weights.quantization is not None
    wide = "int64" if data.dtype == "int16" else "int32"
    bias = rng.integers(-2000, 2000, shape).astype(numpy_dtype(wide))
    products = weights.quantization.scale * data.quantization.scale
    return Tensor(
        name, wide, shape, bias, replace(weights.quantization, scale=products, zero_point=np.zeros_like(weights.quantization.zero_point))
    )


def _result(op: Op, place: int, inputs: Sequence[Tensor], scales: _Scales, kernels: Kernels) -> Tensor:
    kind, name = kind_of(op), op.outputs[place]
    data = next((tensor for tensor in inputs if kind.role(int(tensor.name[1:])) in ("data", "factor")), inputs[0])
    if stated := stated_output_type(kind, op.attributes, place):
        return Tensor(name, stated, None)
    if kind.dequantizes or (kind.rule == "index" and not kind.types):
        return Tensor(name, "float32", None)
    if kind.quantizes:
        return Tensor(name, scales.dtype, None, None, scales.of_data())
    if data.quantization is None:
        return Tensor(name, inputs[-1].dtype if kind.name == "OneHot" else data.dtype, None)
    fixed = kernels.fixed_qparams(op, scales.dtype)
    return Tensor(name, scales.dtype, None, None, data.quantization if fixed is None else Quantization.per_tensor(*fixed))


def _with_fitting_results(graph: Graph, scales: _Scales) -> Graph:
    """Return the graph of one operator with quantizations of its results that fit its values on random inputs."""
    (op,), rng = graph.ops, np.random.default_rng(1)
    values = random_operands(graph, op.kind, rng, scales.example)
    results = evaluate_op(graph, op, stored_inputs(graph, op, values))
    tensors = dict(graph.tensors)
    for name, result in zip(op.outputs, results, strict=True):
        if result.real is not None and tensors[name].quantization is not None:
            finite = result.real[np.isfinite(result.real)]
            least, most = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
            tensors[name] = replace(tensors[name], quantization=scales.of_range(least, most))
    return replace(graph, tensors=tensors)
