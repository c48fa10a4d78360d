"""The canonical operator set: one object a kind, one file a family.

Names, attributes and meaning are ONNX's newest opset's, with these differences, which keep the graph independent of formats:

- spatial operators carry `data_format` (channels_first or channels_last); weights are always O,I,spatial, for ConvTranspose too;
- Gemm is y = A @ B.T + C (B is O,I); MatMul has `trans_a` and `trans_b`; Softmax has `beta`; Gather has `batch_dims`;
- Resize takes (X, sizes) with one size for each spatial dimension; CumSum, ArgMax, TopK take their axis as an attribute;
- Mod has the sign of the dividend (ONNX's with fmod), FloorMod that of the divisor;
- padding of a quantized tensor is real zero, that is, the zero point;
- `arithmetic` on an AveragePool, ReduceMean, ReduceSum, Add, Sub, Mul or Conv names a kernel's own rounding (attributes.ARITHMETIC), and
  on a sum of products with integer weights with float data how these are rounded when it runs;
- `activation` on an operator is a fused relu, relu6 or relu_n1_to_1: it only narrows the range of the output;
- Quantize, Dequantize and Requantize take scale and zero point from their tensors, not from inputs;
- the bias of a quantized Conv, ConvTranspose or Gemm is int32 at input scale * weight scale, or float32;
- Rfft2d, Real, Imag and ComplexAbs have the two parts of complex numbers along a last axis; BitShift keeps the sign;
- Reinterpret, Pack, Unpack, FloorDiv, FloorMod, SquaredDifference, Square, Rsqrt, ReduceAny, ReduceAll, SpaceToBatch, BatchToSpace,
  DetectionPostProcess, SegmentSum, UnsortedSegment, DynamicUpdateSlice, SparseToDense, MatrixDiag, MatrixSetDiag, InteriorPad, Rfft2d,
  Real, Imag, ComplexAbs, Bucketize, FakeQuant, Bitcast, Atan2, ZerosLike, Rank, BroadcastArgs, L2Pool, SelectBoxes, ReduceWindow,
  StartGather, SVDF, IntegerLSTM, IntegerSVDF, BasicLSTM, While, Call, ReadState, WriteState and Opaque are not in ONNX;
- If, Loop and Scan name functions of the graph, and take what these capture as inputs after their own (control.py).

Plugins add kinds through the hook qconvert_kinds; register() is where they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

from qconvert.graph.schema import DEFAULTS, Op
from qconvert.operators.attributes import (
    REQUIRED,
    AttributeSpec,
    choice,
    flag,
    function,
    has,
    integer,
    integers,
    number,
    numbers,
    text,
    texts,
)
from qconvert.operators.binary import has_onnx_addition, is_onnxruntime_add, nudge_input_scales, onnxruntime_additions
from qconvert.operators.call import Call, ExactResult
from qconvert.operators.kind import ROLES, RULES, Kind
from qconvert.operators.products import is_dynamic, output_axis, range_axes
from qconvert.operators.properties import FunctionCall, Port
from qconvert.operators.reduce import reduce_as_xnnpack, reduced_count

__all__ = [
    "KINDS",
    "REQUIRED",
    "ROLES",
    "RULES",
    "AttributeSpec",
    "Call",
    "ExactResult",
    "FunctionCall",
    "Kind",
    "Port",
    "choice",
    "find_kind",
    "flag",
    "function",
    "has",
    "has_onnx_addition",
    "integer",
    "integer_weights",
    "integers",
    "is_dynamic",
    "is_onnxruntime_add",
    "kind_of",
    "nudge_input_scales",
    "number",
    "numbers",
    "onnxruntime_additions",
    "output_axis",
    "range_axes",
    "reduce_as_xnnpack",
    "reduced_count",
    "register",
    "text",
    "texts",
]

_FAMILIES = (
    "convolution",
    "matrix",
    "pool",
    "normalize",
    "binary",
    "logic",
    "elementwise",
    "convert",
    "reduce",
    "join",
    "reshape",
    "slice",
    "gather",
    "segments",
    "space",
    "create",
    "detection",
    "signal",
    "recurrent",
    "control",
    "integer_recurrent",
    "opaque",
)

_known: dict[str, Kind] = {}

#: Every kind by its name.
KINDS: Mapping[str, Kind] = MappingProxyType(_known)


def kind_of(op: Op) -> Kind:
    """Everything that is true of operators of its kind. Raises KeyError for a kind that is not registered."""
    return KINDS[op.kind]


def find_kind(op: Op) -> Kind | None:
    """Everything that is true of operators of its kind; None for a kind that is not registered."""
    return KINDS.get(op.kind)


def integer_weights(op: Op) -> tuple[int, ...]:
    """The inputs of an operator of dynamic range that are integer weights, those alone that it has."""
    return tuple(index for index in kind_of(op).weights if op.has(index))


def register(kinds: Iterable[Kind]) -> None:
    """Adds kinds to KINDS.

    Raises:
        ValueError: there is another kind of that name already; replacing one would change what existing graphs mean. None is added then.
    """
    new: dict[str, Kind] = {}
    for item in kinds:
        if _known.get(item.name, new.get(item.name, item)) is not item:
            raise ValueError(f"there is a kind {item.name!r} already")
        new[item.name] = item
    _known.update(new)
    DEFAULTS.update((item.name, item.defaults) for item in new.values())


for _family in _FAMILIES:
    register(import_module(f"qconvert.operators.{_family}").KINDS)
