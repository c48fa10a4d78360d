"""One operator of a TFLite file that is written, and its version: the oldest that has a kernel for its types, shapes and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.graph import Op, Tensor


@dataclass(slots=True, eq=False)
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

    builtin: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Any
    version: int
    custom: bytes | None
    origin: Op | None = None
    intermediates: tuple[str, ...] = ()


#: Versions, each with the facts of an operator that need it, joined by "+" -> operators; the first whose facts all hold is the version, and
#: 1 if none is. An option that is set is a fact; see _facts() for others (tensorflow/compiler/mlir/lite/tools/versioning/op_version.cc).
_VERSIONS = {
    "2:int8 3:int16": "AVERAGE_POOL_2D MAX_POOL_2D TANH LOGISTIC CONCATENATION SOFTMAX MEAN MIRROR_PAD REDUCE_MAX REDUCE_MIN RELU6 RSQRT "
                      "PACK LESS GREATER_EQUAL",
    "2:int8": "SPACE_TO_DEPTH SPLIT_V SUM LOG_SOFTMAX GREATER LESS_EQUAL SQUARED_DIFFERENCE DEPTH_TO_SPACE L2_NORMALIZATION NOT_EQUAL",
    "2:int8 2:int16": "EXP LOG REDUCE_PROD FLOOR_MOD",
    "2:int8 3:bool": "ARG_MAX ARG_MIN",
    "2:int8 4:int16": "EQUAL",
    "2:int8 2:uint8 3:int16": "RELU",
    "2:int8 2:uint8": "GELU",
    "2:int16": "LEAKY_RELU",
    "2:int64": "RANGE",
    "2:int32": "SIGN",
    "3:int8": "TILE",
    "3:int8 2:bool": "REVERSE_V2",
    "3:int8 3:int16 2:float32": "FLOOR_DIV",
    "2:int8 2:uint8 3:bool 4:int16": "UNPACK",
    "8:int16*int8=int16+quantizedBiasType 6:grouped 5:float32*int8=float32+weights-per-axis 2:float32*int8=float32 3:int8*int8=int8 "
    "7:int8*int4=int8": "CONV_2D",
    "6:float32*int8=float32+weights-per-axis 4:float32*int8=float32 3:int8*int8=int8 7:int8*int4=int8 2:dilated": "DEPTHWISE_CONV_2D",
    "13:int16*int4=int16 12:float32*int8=float32+weights-per-axis 9:float32*int8=float32+asymmetricQuantizeInputs "
    "11:int16*int8=int16+quantizedBiasType 6:inputs=2 5:keepNumDims 4:int8*int8=int8 10:int8*int4=int8 "
    "3:float32*int8=float32": "FULLY_CONNECTED",
    "4:float32*int8=float32+asymmetricQuantizeInputs 1:float32*int8=float32 2:int8 3:int16": "BATCH_MATMUL",
    "5:input-1=int8+input-2=int16+quantizedBiasType 4:fusedActivationFunction 3:inputs=4 2:input-1=int8": "TRANSPOSE_CONV",
    "7:uint32 7:int16+without-scale 6:complex64 5:int64 4:int16 3:scales-above-1 2:int8": "MUL",
    "5:int16+without-scale 1:int16+potScaleInt16 3:int16 4:int64 2:int8": "ADD",
    "3:int16+potScaleInt16+broadcast>4 1:int16+potScaleInt16 5:int16 4:int64 3:broadcast>4 2:int8": "SUB",
    "4:int16 3:broadcast>4 2:int8": "MAXIMUM MINIMUM",
    "2:broadcast>4": "DIV",
    "7:int4 6:rank>5 5:int16 4:rank>4 3:bool 2:int8": "TRANSPOSE",
    "5:bool 4:rank>4 3:int16 2:int8": "PAD PADV2",
    "6:uint32 5:rank>4 4:int16 3:string 2:int8": "SLICE",
    "8:offset 7:uint32 6:ellipsisMask 6:newAxisMask 5:string 4:rank>4 3:bool 2:int8": "STRIDED_SLICE",
    "7:int4 6:input-1=int16 5:batchDims 4:int16 3:bool 2:int8": "GATHER",
    "5:bool 4:input-1=int16 3:int16 2:string": "GATHER_ND",
    "4:input-1=int16 3:input-1=int32 2:input-1=int8": "SPLIT",
    "4:int16 3:halfPixelCenters 2:int8": "RESIZE_BILINEAR",
    "4:int16 3:halfPixelCenters 3:alignCorners 2:int8": "RESIZE_NEAREST_NEIGHBOR",
    "5:int8+per-axis 2:int8 6:int4 3:int16 3:float16": "DEQUANTIZE",
    "4:int4 4:output-0=int4 3:result-per-axis 2:output-0=int16": "QUANTIZE",
    "4:int16+without-scale 3:int16 5:int32 2:int8 2:uint8": "ABS",
    "4:int16 2:int8+rank=4 1:rank=4 3:": "SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND",
    "3:int16 3:input-1=int16 3:output-1=int16 2:int8": "TOPK_V2",
    "4:input-1=float16 3:input-1=int8 3:input-1=int16 2:input-1=bool 2:input-1=string": "FILL",
    "3:int8 3:int16 2:": "BROADCAST_TO",
    "7:bfloat16 7:output-0=bfloat16 6:int4+output-0=float32 5:float64 5:output-0=float64 5:float16 5:output-0=float16 4:uint16 "
    "4:output-0=uint16 3:int8 3:output-0=int8 2:uint32 2:output-0=uint32": "CAST",
    "1:bool 2:": "WHERE",
    "2:kernelType": "LSTM",
    "3:": "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "4:float32*int8=float32+asymmetricQuantizeInputs 2:float32*int8=float32 3:int8": "SVDF",
}  # fmt: skip
#: Operator -> (version, the facts that need it), the first that counts first.
_RULES: dict[str, list[tuple[int, frozenset[str]]]] = {
    name: [(int(version), frozenset(filter(None, facts.split("+")))) for version, facts in (rule.split(":") for rule in rules.split())]
    for rules, names in _VERSIONS.items()
    for name in names.split()
}


def version_of(builtin: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], options: Any = None) -> int:
    """The version of the operator `builtin` with these tensors and this option table.

    Args:
        builtin: its name in the schema.
        inputs: None for an absent one.
        outputs: its results.
        options: the object of its option table, or None.
    """
    rules = _RULES.get(builtin)
    if rules is None:
        return 1
    facts = _facts(inputs, outputs)
    facts |= {fact for _, needed in rules for fact in needed if getattr(options, fact, False)}
    if any(getattr(options, f"dilation{axis}Factor", 1) != 1 for axis in "HW"):
        facts.add("dilated")
    return next((version for version, needed in rules if needed <= facts), 1)


def _facts(inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> set[str]:
    """What versions depend on but for options: types of the data, of all tensors by their places, and of data, weights and result together;
    ranks, broadcasting and scales."""
    given = [tensor for tensor in inputs if tensor is not None]
    types = ["" if tensor is None else tensor.dtype for tensor in inputs]
    found = {*types[:1], f"inputs={len(given)}" if len(given) == len(inputs) else ""}
    found |= {f"input-{place}={dtype}" for place, dtype in enumerate(types)}
    found |= {f"output-{place}={tensor.dtype}" for place, tensor in enumerate(outputs)}
    data, weights = [*inputs, None, None][:2]
    if len(types) > 1 and outputs:
        found.add(f"{types[0]}*{types[1]}={outputs[0].dtype}")
    if data is not None:
        rank = data.rank or 0
        found |= {"without-scale"} if data.quantization is None else set()
        found |= {f"rank={rank}", *(f"rank>{least}" for least in (4, 5) if rank > least)}
    for name, tensor in (("per-axis", data), ("weights-per-axis", weights), ("result-per-axis", outputs[0] if outputs else None)):
        if tensor is not None and tensor.quantization is not None and not tensor.quantization.is_per_tensor:
            found.add(name)
    if data is not None and weights is not None and data.shape and weights.shape and data.shape[-1] != weights.shape[-1]:
        found.add("grouped")
    if len(given) > 1 and given[0].shape != given[1].shape and max(tensor.rank or 0 for tensor in given) > 4:
        found.add("broadcast>4")
    scales = [float(tensor.quantization.scale.flat[0]) for tensor in (*given, *outputs) if tensor.quantization is not None]
    if len(scales) == 3 and scales[0] * scales[1] / scales[2] >= 1.0:
        found.add("scales-above-1")
    return found
