"""The canonical operator set: one line an operator.

Names, attributes and meaning are ONNX's newest opset's, with these differences, which keep the graph independent of formats:

- spatial operators carry `data_format` (channels_first or channels_last); weights are always O,I,spatial, for ConvTranspose too;
- Gemm is y = A @ B.T + C (B is O,I); MatMul has `trans_a` and `trans_b`; Softmax has `beta`; Gather has `batch_dims`;
- Resize takes (X, sizes) with one size for each spatial dimension; CumSum, ArgMax, TopK take their axis as an attribute;
- AveragePool's `ties` says how its source rounds x.5 of stored integers: even, up, or away (from the
  stored zero of a signed type); averages of few integers often are ties, so this is the one rounding that a graph must know;
- padding of a quantized tensor is real zero, that is, the zero point;
- `activation` on an operator is a fused relu, relu6 or relu_n1_to_1: it only narrows the range of the output;
- `fixed_point` on an Add asks for a kernel's own integer arithmetic, such as xnnpack (passes/match_add.py);
- Quantize, Dequantize and Requantize take scale and zero point from their tensors, not from inputs;
- GroupNormalization has one scale and bias for each channel (opset 21); BatchNormalization is that of inference;
- the bias of a quantized Conv, ConvTranspose or Gemm is int32 at input scale * weight scale, or float32;
- Opaque is an operator outside this set, carried unchanged from one file of a format to another of the same format;
- Reinterpret, Pack, Unpack, FloorDiv, FloorMod, SquaredDifference, Square, Rsqrt, ReduceAny, ReduceAll, SpaceToBatch, BatchToSpace and
  DetectionPostProcess are not in ONNX.

`rule` says how quantization goes through an operator:
    real      the real-valued function of the dequantized inputs, rounded once onto the output's grid
    move      stored integers are moved, never changed: data inputs and outputs have equal quantization
    convert   Quantize, Dequantize, Requantize
    index     inputs may be quantized, outputs are plain numbers (ArgMax, comparisons)
    relabel   Reinterpret: the same stored integers under another quantization, where a source's kernel does just that
    plain     nothing is quantized
    opaque    nothing is known: stored values pass as they are
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["KINDS", "REQUIRED", "Kind"]

REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Kind:
    """What is true of every operator of one kind.

    Attributes:
        kind: the name.
        shape: the name of its rule in shapes.RULES.
        rule: how quantization goes through it (see the module's text).
        inputs: fewest and most inputs; most -1 means any number.
        outputs: likewise.
        data: how many leading inputs hold data (the rest are shapes, axes, indices …); -1 means all.
        attributes: every attribute with its default; REQUIRED where there is none.
    """

    kind: str
    shape: str
    rule: str = "real"
    inputs: tuple[int, int] = (1, 1)
    outputs: tuple[int, int] = (1, 1)
    data: int = -1
    attributes: Mapping[str, Any] = field(default_factory=dict)


_ACT: dict[str, Any] = {"activation": ""}
_LAYOUT: dict[str, Any] = {"data_format": REQUIRED}
_WINDOW: dict[str, Any] = {"strides": REQUIRED, "pads": REQUIRED, "auto_pad": "NOTSET", **_LAYOUT, **_ACT}
_CONV: dict[str, Any] = {"dilations": REQUIRED, "group": 1, **_WINDOW}
_POOL: dict[str, Any] = {"kernel_shape": REQUIRED, "ceil_mode": 0, **_WINDOW}
_KEEP: dict[str, Any] = {"keepdims": 1}


def _spec(kind: str, shape: str, rule: str = "real", inputs: Any = 1, outputs: Any = 1, data: int = -1, **attributes: Any) -> Kind:
    return Kind(kind, shape, rule, _span(inputs), _span(outputs), data, attributes)


def _span(count: Any) -> tuple[int, int]:
    """A number of inputs or outputs as (fewest, most)."""
    return (count, count) if isinstance(count, int) else (count[0], count[1])


def _family(kinds: str, shape: str, rule: str = "real", **more: Any) -> list[Kind]:
    return [_spec(kind, shape, rule, **more) for kind in kinds.split()]


_TABLE = [
    _spec("Conv", "conv", inputs=(2, 3), data=1, **_CONV),
    _spec("ConvTranspose", "conv_transpose", inputs=(2, 3), data=1, output_padding=(0, 0), **_CONV),
    _spec("Gemm", "gemm", inputs=(2, 3), **_ACT),
    _spec("MatMul", "matmul", inputs=2, trans_a=0, trans_b=0, **_ACT),
    _spec("ConvInteger", "conv", "plain", inputs=(2, 4), data=1, dilations=REQUIRED, group=1, strides=REQUIRED, pads=REQUIRED,
          auto_pad="NOTSET", **_LAYOUT),
    _spec("MatMulInteger", "matmul", "plain", inputs=(2, 4)),
    _spec("AveragePool", "pool", ties="even", count_include_pad=0, **_POOL),
    _spec("MaxPool", "pool", "move", dilations=(), **_POOL),
    _spec("GlobalAveragePool", "global_pool", **_LAYOUT),
    _spec("GlobalMaxPool", "global_pool", "move", **_LAYOUT),
    _spec("BatchNormalization", "same", inputs=5, data=1, epsilon=1e-5, **_LAYOUT),
    _spec("InstanceNormalization", "same", inputs=3, data=1, epsilon=1e-5, **_LAYOUT),
    _spec("GroupNormalization", "same", inputs=3, data=1, num_groups=REQUIRED, epsilon=1e-5, **_LAYOUT),
    _spec("LayerNormalization", "same", inputs=(2, 3), data=1, axis=-1, epsilon=1e-5),
    _spec("RMSNormalization", "same", inputs=2, data=1, axis=-1, epsilon=1e-5),
    _spec("Resize", "resize", inputs=2, data=1, mode=REQUIRED, coordinate_transformation_mode=REQUIRED,
          nearest_mode="floor", **_LAYOUT),
    _spec("DepthToSpace", "depth_to_space", "move", blocksize=REQUIRED, **_LAYOUT),
    _spec("SpaceToDepth", "space_to_depth", "move", blocksize=REQUIRED, **_LAYOUT),
    _spec("SpaceToBatch", "space_to_batch", "move", inputs=3, data=1, **_LAYOUT),
    _spec("BatchToSpace", "batch_to_space", "move", inputs=3, data=1, **_LAYOUT),
    _spec("Add", "broadcast", inputs=2, fixed_point="", **_ACT),
    *_family("Sub Mul Div", "broadcast", inputs=2, **_ACT),
    *_family("Max Min Pow FloorDiv FloorMod SquaredDifference PRelu", "broadcast", inputs=2),
    *_family("Equal NotEqual Greater GreaterOrEqual Less LessOrEqual", "broadcast_bool", "index", inputs=2),
    *_family("And Or Xor", "broadcast_bool", "plain", inputs=2),
    *_family("Abs Neg Exp Log Sqrt Rsqrt Square Reciprocal Erf Round Floor Ceil Sign", "same"),
    *_family("Sin Cos Tan Asin Acos Atan Sinh Cosh", "same"),
    *_family("Relu HardSwish Sigmoid Tanh Softplus Softsign Mish", "same"),
    *_family("IsNaN IsInf", "same", "index"),
    _spec("Clip", "same", inputs=(1, 3), data=1),
    _spec("LeakyRelu", "same", alpha=0.01),
    _spec("Elu", "same", alpha=1.0),
    _spec("Celu", "same", alpha=1.0),
    _spec("Selu", "same", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    _spec("ThresholdedRelu", "same", alpha=1.0),
    _spec("HardSigmoid", "same", alpha=0.2, beta=0.5),
    _spec("Gelu", "same", approximate="none"),
    _spec("Softmax", "same", axis=-1, beta=1.0),
    _spec("LogSoftmax", "same", axis=-1),
    _spec("LpNormalization", "same", axis=-1, p=2, **_ACT),
    _spec("Not", "same", "plain"),
    _spec("Identity", "same", "move"),
    _spec("Cast", "same", "plain", to=REQUIRED),
    *_family("Quantize Dequantize Requantize", "same", "convert"),
    _spec("DynamicQuantizeLinear", "dynamic_quantize", "plain", outputs=3),
    _spec("Reinterpret", "same", "relabel"),
    *_family("ReduceMean ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp", "reduce",
             inputs=2, data=1, **_KEEP),
    *_family("ReduceMax ReduceMin", "reduce", "move", inputs=2, data=1, **_KEEP),
    *_family("ReduceAny ReduceAll", "reduce", "plain", inputs=2, data=1, **_KEEP),
    *_family("ArgMax ArgMin", "arg", "index", axis=0, **_KEEP),
    _spec("CumSum", "same", axis=REQUIRED, exclusive=0, reverse=0),
    _spec("Concat", "concat", inputs=(1, -1), axis=REQUIRED, **_ACT),
    _spec("Pack", "pack", "move", inputs=(1, -1), axis=REQUIRED),
    _spec("Unpack", "unpack", "move", outputs=(1, -1), axis=REQUIRED),
    _spec("Split", "split", "move", inputs=2, outputs=(1, -1), data=1, axis=REQUIRED),
    _spec("Reshape", "reshape", "move", inputs=2, data=1, allowzero=0),
    _spec("Squeeze", "squeeze", "move", inputs=2, data=1),
    _spec("Unsqueeze", "unsqueeze", "move", inputs=2, data=1),
    _spec("Transpose", "transpose", "move", perm=REQUIRED),
    _spec("Slice", "slice", "move", inputs=(4, 5), data=1),
    _spec("Pad", "pad", "move", inputs=(2, 3), data=1, mode="constant"),
    _spec("Tile", "tile", "move", inputs=2, data=1),
    _spec("Expand", "expand", "move", inputs=2, data=1),
    _spec("Gather", "gather", "move", inputs=2, data=1, axis=0, batch_dims=0),
    _spec("GatherND", "gather_nd", "move", inputs=2, data=1, batch_dims=0),
    _spec("ScatterND", "scatter_nd", "move", inputs=3, data=1, reduction="none"),
    _spec("GatherElements", "gather_elements", "move", inputs=2, data=1, axis=0),
    _spec("ScatterElements", "same", "move", inputs=3, data=1, axis=0, reduction="none"),
    _spec("Trilu", "same", "plain", inputs=(1, 2), data=1, upper=1),
    _spec("Einsum", "einsum", inputs=(1, -1), equation=REQUIRED),
    _spec("Where", "where", inputs=3),
    _spec("TopK", "topk", "move", inputs=2, outputs=2, data=1, axis=-1, largest=1, sorted=1),
    _spec("OneHot", "one_hot", "plain", inputs=3, axis=-1),
    _spec("NonZero", "non_zero", "index"),
    _spec("Shape", "shape", "index"),
    _spec("Range", "range", "plain", inputs=3),
    _spec("Opaque", "opaque", "opaque", inputs=(0, -1), outputs=(0, -1), format=REQUIRED, domain=REQUIRED, op_type=REQUIRED,
          version=REQUIRED, payload="", captures=()),
    _spec("DetectionPostProcess", "detection", "index", inputs=3, outputs=4, max_detections=REQUIRED,
          max_classes_per_detection=1, detections_per_class=100, use_regular_nms=0, nms_score_threshold=REQUIRED,
          nms_iou_threshold=REQUIRED, num_classes=REQUIRED, y_scale=REQUIRED, x_scale=REQUIRED, h_scale=REQUIRED,
          w_scale=REQUIRED),
]  # fmt: skip

KINDS: Mapping[str, Kind] = {spec.kind: spec for spec in _TABLE}
