"""One operator of a TFLite file that is written, and its version: the oldest that has a kernel for its types, shapes and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qconvert.graph import Op, Tensor

__all__ = ["Operator", "version_of"]


class Operator:
    """One TFLite operator that will be written.

    Attributes:
        builtin: its name in the schema, such as "CONV_2D"; the name of a custom operator if `custom` is set.
        inputs, outputs: tensor names; "" for an absent input.
        options: the object of its option table, or None.
        version: of the operator, as its types need it.
        custom: the bytes of a custom operator's options; None for a builtin one.
        origin: the canonical operator that it comes from.
        intermediates: tensors that carry the quantizations of what it computes inside.
    """

    def __init__(
        self,
        builtin: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        options: Any,
        version: int,
        custom: bytes | None,
        origin: Op | None = None,
        intermediates: Sequence[str] = (),
    ) -> None:
        self.builtin = builtin
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.options = options
        self.version = version
        self.custom = custom
        self.origin = origin
        self.intermediates = tuple(intermediates)


Inputs = Sequence[Tensor | None]
Outputs = Sequence[Tensor]

#: Operator -> type of its data -> version; other types have version 1.
_BY_TYPE: dict[str, dict[str, int]] = {
    **{name: {"int8": 2, "int16": 3} for name in (
        "AVERAGE_POOL_2D MAX_POOL_2D TANH LOGISTIC CONCATENATION SOFTMAX MEAN MIRROR_PAD REDUCE_MAX REDUCE_MIN RELU6 RSQRT "
        "BATCH_MATMUL PACK LESS GREATER_EQUAL").split()},
    **{name: {"int8": 2} for name in (
        "SPACE_TO_DEPTH SPLIT_V SUM LOG_SOFTMAX GREATER LESS_EQUAL SQUARED_DIFFERENCE DEPTH_TO_SPACE L2_NORMALIZATION "
        "NOT_EQUAL").split()},
    **{name: {"int8": 2, "int16": 2} for name in ("EXP", "LOG", "REDUCE_PROD")},
    **{name: {"int8": 2, "bool": 3} for name in ("ARG_MAX", "ARG_MIN")},
    "EQUAL": {"int8": 2, "int16": 4},
    "RELU": {"int8": 2, "uint8": 2, "int16": 3},
    "GELU": {"int8": 2, "uint8": 2},
    "LEAKY_RELU": {"int16": 2},
    "RANGE": {"int64": 2},
    "SIGN": {"int32": 2},
    "TILE": {"int8": 3},
    "REVERSE_V2": {"int8": 3, "bool": 2},
    "FLOOR_DIV": {"int8": 3, "int16": 3, "float32": 2},
    "FLOOR_MOD": {"int8": 2, "int16": 2},
    "UNPACK": {"int8": 2, "uint8": 2, "bool": 3, "int16": 4},
    "SELECT_V2": {},
}  # fmt: skip


def version_of(builtin: str, inputs: Inputs, outputs: Outputs, options: Any = None) -> int:
    """The version of the operator `builtin` with these tensors and this option table.

    Args:
        builtin: its name in the schema.
        inputs: None for an absent one.
        outputs: at least one.
        options: the object of its option table, or None.
    """
    if builtin in _SPECIAL:
        return _SPECIAL[builtin](inputs, outputs, options)
    return _BY_TYPE.get(builtin, {}).get(_type(inputs, 0), 1)


def _type(tensors: Inputs, index: int) -> str:
    tensor = tensors[index] if index < len(tensors) else None
    return "" if tensor is None else tensor.dtype


def _types(inputs: Inputs, outputs: Outputs) -> tuple[str, str, str]:
    """The types of data, weights and result."""
    return _type(inputs, 0), _type(inputs, 1), outputs[0].dtype


def _rank(inputs: Inputs) -> int:
    return max((tensor.rank or 0 for tensor in inputs if tensor is not None), default=0)


def _broadcasts(inputs: Inputs) -> bool:
    shapes = [tensor.shape for tensor in inputs if tensor is not None]
    return len(shapes) > 1 and shapes[0] != shapes[1]


def _is_per_axis(inputs: Inputs) -> bool:
    weights = inputs[1] if len(inputs) > 1 else None
    return weights is not None and weights.quantization is not None and not weights.quantization.is_per_tensor


def _is_grouped(inputs: Inputs) -> bool:
    data, weights = inputs[0], inputs[1]
    if data is None or weights is None or not data.shape or not weights.shape:
        return False
    return data.shape[-1] != weights.shape[-1]


def _conv_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    types = _types(inputs, outputs)
    if types == ("int16", "int8", "int16") and options.quantizedBiasType:
        return 8
    if _is_grouped(inputs):
        return 6
    if types == ("float32", "int8", "float32"):
        return 5 if _is_per_axis(inputs) else 2
    return {("int8", "int8", "int8"): 3, ("int8", "int4", "int8"): 7}.get(types, 1)


def _depthwise_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    types = _types(inputs, outputs)
    if types == ("float32", "int8", "float32"):
        return 6 if _is_per_axis(inputs) else 4
    found = {("int8", "int8", "int8"): 3, ("int8", "int4", "int8"): 7}.get(types)
    return found or (2 if (options.dilationWFactor, options.dilationHFactor) != (1, 1) else 1)


def _fully_connected_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    types = _types(inputs, outputs)
    if types == ("int16", "int4", "int16"):
        return 13
    if types == ("float32", "int8", "float32") and _is_per_axis(inputs):
        return 12
    if types == ("float32", "int8", "float32") and options.asymmetricQuantizeInputs:
        return 9
    if types == ("int16", "int8", "int16") and options.quantizedBiasType:
        return 11
    if sum(tensor is not None for tensor in inputs) == 2 and len(inputs) == 2:
        return 6
    if options.keepNumDims:
        return 5
    return {("int8", "int8", "int8"): 4, ("int8", "int4", "int8"): 10, ("float32", "int8", "float32"): 3}.get(types, 1)


def _batch_matmul_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    if _types(inputs, outputs) == ("float32", "int8", "float32"):
        return 4 if options.asymmetricQuantizeInputs else 1
    return _BY_TYPE["BATCH_MATMUL"].get(_type(inputs, 0), 1)


def _transpose_conv_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    if (_type(inputs, 2), _type(inputs, 1)) == ("int16", "int8") and options.quantizedBiasType:
        return 5
    if options.fusedActivationFunction:
        return 4
    if len(inputs) == 4 and inputs[3] is not None:
        return 3
    return 2 if _type(inputs, 1) == "int8" else 1


def _mul_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype, quantizations = _type(inputs, 0), [t.quantization for t in (*inputs, *outputs) if t is not None]
    if dtype == "uint32" or (dtype == "int16" and quantizations[0] is None):
        return 7
    wide = {"complex64": 6, "int64": 5, "int16": 4}.get(dtype)
    if wide:
        return wide
    scales = [float(q.scale[0]) for q in quantizations if q is not None]
    if len(scales) == 3 and scales[0] * scales[1] / scales[2] >= 1.0:
        return 3
    return 2 if dtype == "int8" else 1


def _add_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype, first = _type(inputs, 0), inputs[0]
    if dtype == "int16":
        if first is None or first.quantization is None:
            return 5
        return 1 if options.potScaleInt16 else 3
    return {"int64": 4, "int8": 2}.get(dtype, 1)


def _sub_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "int16" and not options.potScaleInt16:
        return 5
    if dtype == "int64":
        return 4
    if _broadcasts(inputs) and _rank(inputs) > 4:
        return 3
    return 2 if dtype == "int8" else 1


def _extreme_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "int16":
        return 4
    if _broadcasts(inputs) and _rank(inputs) > 4:
        return 3
    return 2 if dtype == "int8" else 1


def _div_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    return 2 if _broadcasts(inputs) and _rank(inputs) > 4 else 1


def _transpose_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype, rank = _type(inputs, 0), inputs[0].rank or 0 if inputs[0] is not None else 0
    if dtype == "int4":
        return 7
    if rank > 5:
        return 6
    if dtype == "int16":
        return 5
    return 4 if rank > 4 else {"bool": 3, "int8": 2}.get(dtype, 1)


def _pad_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "bool":
        return 5
    if inputs[0] is not None and (inputs[0].rank or 0) > 4:
        return 4
    return {"int16": 3, "int8": 2}.get(dtype, 1)


def _slice_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "uint32":
        return 6
    if inputs[0] is not None and (inputs[0].rank or 0) > 4:
        return 5
    return {"int16": 4, "string": 3, "int8": 2}.get(dtype, 1)


def _strided_slice_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if options.offset:
        return 8
    if dtype == "uint32":
        return 7
    if options.ellipsisMask or options.newAxisMask:
        return 6
    if dtype == "string":
        return 5
    if inputs[0] is not None and (inputs[0].rank or 0) > 4:
        return 4
    return {"bool": 3, "int8": 2}.get(dtype, 1)


def _gather_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "int4":
        return 7
    if _type(inputs, 1) == "int16":
        return 6
    if options.batchDims:
        return 5
    return {"int16": 4, "bool": 3, "int8": 2}.get(dtype, 1)


def _gather_nd_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "bool":
        return 5
    if _type(inputs, 1) == "int16":
        return 4
    return {"int16": 3, "string": 2}.get(dtype, 1)


def _split_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    return {"int16": 4, "int32": 3, "int8": 2}.get(_type(inputs, 1), 1)


def _resize_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "int16":
        return 4
    if options.halfPixelCenters or (options.alignCorners and options.table.startswith("ResizeNearest")):
        return 3
    return 2 if dtype == "int8" else 1


def _dequantize_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype, q = _type(inputs, 0), inputs[0].quantization if inputs[0] is not None else None
    if dtype == "int8":
        return 5 if q is not None and not q.is_per_tensor else 2
    return {"int4": 6, "int16": 3, "float16": 3}.get(dtype, 1)


def _quantize_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    result = outputs[0]
    if "int4" in (_type(inputs, 0), result.dtype):
        return 4
    if result.quantization is not None and not result.quantization.is_per_tensor:
        return 3
    return 2 if result.dtype == "int16" else 1


def _abs_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype, first = _type(inputs, 0), inputs[0]
    if dtype == "int16":
        return 3 if first is not None and first.is_quantized else 4
    return {"int32": 5, "int8": 2, "uint8": 2}.get(dtype, 1)


def _space_batch_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    dtype = _type(inputs, 0)
    if dtype == "int16":
        return 4
    if inputs[0] is not None and inputs[0].rank != 4:
        return 3
    return 2 if dtype == "int8" else 1


def _topk_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    if "int16" in (_type(inputs, 0), _type(inputs, 1), outputs[1].dtype):
        return 3
    return 2 if _type(inputs, 0) == "int8" else 1


def _fill_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    return {"float16": 4, "int8": 3, "int16": 3, "bool": 2, "string": 2}.get(_type(inputs, 1), 1)


def _broadcast_to_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    return 3 if _type(inputs, 0) in ("int8", "int16") else 2


def _cast_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    types = {_type(inputs, 0), outputs[0].dtype}
    if "bfloat16" in types:
        return 7
    if (_type(inputs, 0), outputs[0].dtype) == ("int4", "float32"):
        return 6
    if types & {"float64", "float16"}:
        return 5
    return 4 if "uint16" in types else 3 if "int8" in types else 2 if "uint32" in types else 1


def _where_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    return 1 if _type(inputs, 0) == "bool" else 2


def _svdf_version(inputs: Inputs, outputs: Outputs, options: Any) -> int:
    if _types(inputs, outputs) == ("float32", "int8", "float32"):
        return 4 if options.asymmetricQuantizeInputs else 2
    return 3 if _type(inputs, 0) == "int8" else 1


_SPECIAL: dict[str, Callable[[Inputs, Outputs, Any], int]] = {
    "CONV_2D": _conv_version,
    "DEPTHWISE_CONV_2D": _depthwise_version,
    "FULLY_CONNECTED": _fully_connected_version,
    "BATCH_MATMUL": _batch_matmul_version,
    "TRANSPOSE_CONV": _transpose_conv_version,
    "MUL": _mul_version,
    "ADD": _add_version,
    "SUB": _sub_version,
    "DIV": _div_version,
    "MAXIMUM": _extreme_version,
    "MINIMUM": _extreme_version,
    "TRANSPOSE": _transpose_version,
    "PAD": _pad_version,
    "PADV2": _pad_version,
    "SLICE": _slice_version,
    "STRIDED_SLICE": _strided_slice_version,
    "GATHER": _gather_version,
    "GATHER_ND": _gather_nd_version,
    "SPLIT": _split_version,
    "RESIZE_BILINEAR": _resize_version,
    "RESIZE_NEAREST_NEIGHBOR": _resize_version,
    "DEQUANTIZE": _dequantize_version,
    "QUANTIZE": _quantize_version,
    "ABS": _abs_version,
    "SPACE_TO_BATCH_ND": _space_batch_version,
    "BATCH_TO_SPACE_ND": _space_batch_version,
    "TOPK_V2": _topk_version,
    "FILL": _fill_version,
    "BROADCAST_TO": _broadcast_to_version,
    "CAST": _cast_version,
    "WHERE": _where_version,
    "LSTM": lambda inputs, outputs, options: 2 if options.kernelType else 1,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lambda inputs, outputs, options: 3,
    "SVDF": _svdf_version,
}
