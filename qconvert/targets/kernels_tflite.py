"""Which operators of TFLite have kernels for which types, up to which rank, in LiteRT and in tflite-micro.

Found by running a model of one operator for every entry and comparing the result with the exact one; tests/targets/test_kernels.py
repeats it. Versions: ai-edge-litert 2.3.0 with its default kernels, tflite_micro 0.dev20261023182759. Kernels that run but are wrong
are left out: quantized DIV (one or two steps by many give the extreme value), NEG, FLOOR_DIV and FLOOR_MOD of int8 (they ignore the zero
point), and int8 CUMSUM of tflite-micro. Ranks above 7 were not tried: tflite-micro reads beyond its shapes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

__all__ = ["LITERT", "MICRO", "MICRO_CUSTOM", "REQUANTIZE", "SURVEYED", "TRIED", "largest_rank"]

#: The types that were tried.
SURVEYED = ("int8", "uint8", "int16", "float32", "int32", "int64", "bool")

#: The largest rank that was tried. LiteRT has no other limit where it takes this many dimensions.
TRIED = 7

#: The custom operators of tflite-micro: its detection was seen to equal LiteRT's, on the detection model in fixtures/.
MICRO_CUSTOM = frozenset(("TFLite_Detection_PostProcess",))

#: QUANTIZE from integers to integers: runtime -> pairs of types.
REQUANTIZE: Mapping[str, frozenset[tuple[str, str]]] = {
    "LiteRT": frozenset((a, b) for a in ("int8", "uint8", "int16") for b in ("int8", "uint8", "int16")) - {("int16", "uint8")},
    "tflite-micro": frozenset((("int8", "int8"), ("int8", "uint8"), ("int8", "int16"), ("uint8", "int8"), ("int16", "int8"),
                               ("int16", "int16"))),
}  # fmt: skip

#: Operator -> "largest rank: types of the data"; GROUPED_CONV is CONV_2D with groups, QUANTIZE is from float to the type.
LITERT: Mapping[str, str] = {
    "ABS": "7: int8 int16 float32 int32",
    "NEG": "7: int16 float32 int32 int64",
    "EXP": "7: int8 int16 float32",
    "LOG": "7: int8 int16 float32",
    "SQRT": "7: int8 int16 float32",
    "SQUARE": "7: float32",
    "SIN": "7: float32",
    "COS": "7: float32",
    "ROUND": "7: float32",
    "FLOOR": "7: float32",
    "CEIL": "7: float32",
    "SIGN": "7: float32 int32",
    "RELU6": "7: int8 uint8 int16 float32",
    "ELU": "7: int8 float32",
    "HARD_SWISH": "7: int8 uint8 float32",
    "RSQRT": "7: int8 int16 float32",
    "GELU": "7: int8 uint8 int16 float32",
    "RELU": "7: int8 uint8 int16 float32",
    "RELU_N1_TO_1": "7: int8 uint8 float32",
    "RELU_0_TO_1": "7: int8 uint8 float32",
    "LEAKY_RELU": "7: int8 uint8 int16 float32",
    "PRELU": "7: int8 uint8 int16 float32",
    "LOGISTIC": "7: int8 uint8 int16 float32",
    "TANH": "7: int8 uint8 int16 float32",
    "SOFTMAX": "7: int8 uint8 int16  6: float32",
    "LOG_SOFTMAX": "7: int8 uint8 float32",
    "L2_NORMALIZATION": "7: int8 uint8 float32",
    "DEQUANTIZE": "7: int8 uint8 int16",
    "CAST": "7: int8 uint8 int16 float32 int32 int64 bool",
    "ADD": "7: int8 uint8 int16 float32 int32 int64",
    "SUB": "7: int8 uint8 int16 float32 int32 int64",
    "MUL": "7: int8 uint8 int16 float32 int32 int64",
    "DIV": "7: float32 int32",
    "MAXIMUM": "7: int8 uint8 int16 float32 int32 int64",
    "MINIMUM": "7: int8 uint8 int16 float32 int32 int64",
    "POW": "7: float32 int32",
    "FLOOR_DIV": "7: float32 int32",
    "FLOOR_MOD": "7: float32 int32 int64",
    "SQUARED_DIFFERENCE": "7: int8 float32 int32",
    "EQUAL": "7: int8 uint8 int16 float32 int32 int64 bool",
    "NOT_EQUAL": "7: int8 uint8 int16 float32 int32 int64 bool",
    "GREATER": "7: int8 uint8 int16 float32 int32 int64",
    "GREATER_EQUAL": "7: int8 uint8 int16 float32 int32 int64",
    "LESS": "7: int8 uint8 int16 float32 int32 int64",
    "LESS_EQUAL": "7: int8 uint8 int16 float32 int32 int64",
    "LOGICAL_AND": "7: bool",
    "LOGICAL_OR": "7: bool",
    "LOGICAL_NOT": "7: bool",
    "MEAN": "7: int16 int32 int64  6: int8 uint8 float32",
    "SUM": "7: int16 int32 int64  6: int8 uint8 float32",
    "REDUCE_PROD": "7: int8 int16 float32 int32 int64",
    "REDUCE_MAX": "7: int16 int32 int64  6: int8 uint8 float32",
    "REDUCE_MIN": "7: int16 int32 int64  6: int8 uint8 float32",
    "REDUCE_ANY": "7: bool",
    "REDUCE_ALL": "7: bool",
    "ARG_MAX": "7: int8 uint8 float32 int32 bool",
    "ARG_MIN": "7: int8 uint8 float32 int32 bool",
    "CUMSUM": "7: float32 int32 int64",
    "CONV_2D": "4: int8 uint8 int16 float32",
    "GROUPED_CONV": "4: int8 uint8 int16 float32",
    "DEPTHWISE_CONV_2D": "4: int8 uint8 int16 float32",
    "TRANSPOSE_CONV": "4: int8 uint8 int16 float32",
    "FULLY_CONNECTED": "7: int16  6: int8 uint8 float32",
    "BATCH_MATMUL": "6: float32  5: int8 int16",
    "AVERAGE_POOL_2D": "4: int8 uint8 int16 float32",
    "MAX_POOL_2D": "4: int8 uint8 int16 float32",
    "RESIZE_BILINEAR": "4: int8 uint8 int16 float32",
    "RESIZE_NEAREST_NEIGHBOR": "4: int8 uint8 int16 float32 int32 bool",
    "SPACE_TO_DEPTH": "4: int8 uint8 float32 int32 int64",
    "DEPTH_TO_SPACE": "4: int8 uint8 float32 int32 int64",
    "SPACE_TO_BATCH_ND": "4: int8 uint8 int16 float32 int32 int64 bool",
    "BATCH_TO_SPACE_ND": "4: int8 uint8 int16 float32 int32 int64 bool",
    "CONCATENATION": "7: int16 int32 int64 bool  6: int8 uint8 float32",
    "PACK": "7: int8 uint8 int16 float32 int32 int64",
    "UNPACK": "7: int8 uint8 int16 float32 int32 bool",
    "SPLIT": "7: int16 int32 int64  6: int8 uint8 float32",
    "SPLIT_V": "7: int8 uint8 int16 float32 int32 int64",
    "RESHAPE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "EXPAND_DIMS": "7: int8 uint8 int16 float32 int32 int64 bool",
    "TRANSPOSE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "SLICE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "STRIDED_SLICE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "PAD": "6: int8 uint8 float32  5: int16 int32 int64 bool",
    "PADV2": "5: int8 uint8 int16 float32 int32 int64 bool",
    "MIRROR_PAD": "7: int8 uint8 int16 float32 int32 int64 bool",
    "TILE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "BROADCAST_TO": "7: int8 uint8 int16 float32 int32 int64 bool",
    "FILL": "7: int8 uint8 int16 float32 int32 int64 bool",
    "GATHER": "7: int8 uint8 int16 float32 int32 int64 bool",
    "GATHER_ND": "7: int8 uint8 int16 float32 int32 int64 bool",
    "REVERSE_SEQUENCE": "7: uint8 int16 float32 int32 int64",
    "REVERSE_V2": "7: int8 uint8 int16 float32 int32 int64 bool",
    "SCATTER_ND": "7: int8 uint8 float32 int32 int64 bool",
    "SELECT_V2": "7: int8 uint8 int16 float32 int32 int64 bool",
    "TOPK_V2": "7: int8 uint8 int16 float32 int32 int64",
    "ONE_HOT": "7: int8 uint8 float32 int32 int64 bool",
    "SHAPE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "SQUEEZE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "QUANTIZE": "7: int8 uint8 int16",
}

#: The same of tflite-micro, which has no other operators.
MICRO: Mapping[str, str] = {
    "ABS": "7: int8 int16 float32",
    "NEG": "7: float32",
    "EXP": "7: float32",
    "LOG": "7: float32",
    "SQRT": "7: float32",
    "SQUARE": "7: float32",
    "SIN": "7: float32",
    "COS": "7: float32",
    "ROUND": "7: float32",
    "FLOOR": "7: float32",
    "CEIL": "7: float32",
    "RELU6": "7: int8 int16 float32",
    "ELU": "7: int8 float32",
    "HARD_SWISH": "7: int8 float32",
    "RSQRT": "7: int8 int16 float32",
    "RELU": "7: int8 int16 float32",
    "LEAKY_RELU": "7: int8 int16 float32",
    "PRELU": "7: int8  4: float32",
    "LOGISTIC": "7: int8 int16 float32",
    "TANH": "7: int8 int16 float32",
    "SOFTMAX": "7: int8 int16 float32",
    "LOG_SOFTMAX": "7: int8 float32",
    "L2_NORMALIZATION": "4: int8 float32",
    "DEQUANTIZE": "7: int8 uint8 int16",
    "CAST": "7: int8 int16 float32 int32 bool",
    "ADD": "7: int8 int16 float32 int32",
    "SUB": "7: int8 int16 float32 int32",
    "MUL": "7: int8 int16 float32 int32",
    "DIV": "7: float32 int32",
    "MAXIMUM": "7: int8 int16 float32 int32 int64",
    "MINIMUM": "7: int8 int16 float32 int32 int64",
    "FLOOR_DIV": "7: float32",
    "FLOOR_MOD": "7: float32",
    "SQUARED_DIFFERENCE": "7: int8 int16 float32 int32",
    "EQUAL": "7: int8 float32 int32 int64 bool",
    "NOT_EQUAL": "7: int8 float32 int32 int64 bool",
    "GREATER": "7: int8 float32 int32 int64",
    "GREATER_EQUAL": "7: int8 float32 int32 int64",
    "LESS": "7: int8 float32 int32 int64",
    "LESS_EQUAL": "7: int8 float32 int32 int64",
    "LOGICAL_AND": "7: bool",
    "LOGICAL_OR": "7: bool",
    "LOGICAL_NOT": "7: bool",
    "MEAN": "7: int8 int16 float32",
    "SUM": "7: int8 int16 float32",
    "REDUCE_MAX": "7: int8 float32",
    "REDUCE_MIN": "7: int8 float32",
    "REDUCE_ALL": "7: bool",
    "ARG_MAX": "7: int8 float32",
    "ARG_MIN": "7: int8 float32",
    "CUMSUM": "7: float32",
    "CONV_2D": "4: int8 int16 float32",
    "GROUPED_CONV": "4: int8 int16 float32",
    "DEPTHWISE_CONV_2D": "4: int8 int16 float32",
    "TRANSPOSE_CONV": "4: int8 int16 float32",
    "FULLY_CONNECTED": "7: int8 int16 float32",
    "BATCH_MATMUL": "5: int8 int16 float32",
    "AVERAGE_POOL_2D": "4: int8 int16 float32",
    "MAX_POOL_2D": "4: int8 int16 float32",
    "RESIZE_BILINEAR": "4: int8 float32",
    "RESIZE_NEAREST_NEIGHBOR": "4: int8 int16 float32",
    "SPACE_TO_DEPTH": "4: int8 float32",
    "DEPTH_TO_SPACE": "4: int8 float32",
    "SPACE_TO_BATCH_ND": "4: int8 float32",
    "BATCH_TO_SPACE_ND": "4: int8 float32",
    "CONCATENATION": "6: int8 int16 float32 int32 int64 bool",
    "PACK": "7: int8 int16 float32 int32 int64",
    "UNPACK": "7: int8 int16 float32 int32",
    "SPLIT": "7: int8 int16 float32 int32",
    "SPLIT_V": "7: int8 int16 float32 int32",
    "RESHAPE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "EXPAND_DIMS": "7: int8 int16 float32",
    "TRANSPOSE": "5: int8 int16 float32",
    "SLICE": "5: int8 int16 float32 int32 bool",
    "STRIDED_SLICE": "4: int8 int16 float32 int32 bool",
    "PAD": "5: int8 int16 float32 int32",
    "PADV2": "5: int8 int16 float32 int32",
    "MIRROR_PAD": "7: int8 float32",
    "BROADCAST_TO": "5: int8 uint8 int16 float32 int32 int64 bool",
    "GATHER": "7: int8 float32",
    "GATHER_ND": "7: int8 float32",
    "REVERSE_V2": "6: int8 uint8 int16 float32 int32 int64 bool",
    "SELECT_V2": "7: int8 int16 float32",
    "SHAPE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "SQUEEZE": "7: int8 uint8 int16 float32 int32 int64 bool",
    "QUANTIZE": "7: int8 int16",
}


@cache
def largest_rank(runtime: str, operator: str, dtype: str) -> int:
    """The largest rank of data of type `dtype` that the operator takes in "LiteRT" or "tflite-micro"; 0 if there is no such kernel."""
    entry = (LITERT if runtime == "LiteRT" else MICRO).get(operator, "")
    for part in entry.split("  "):
        rank, _, types = part.partition(": ")
        if dtype in types.split():
            return int(rank)
    return 0
