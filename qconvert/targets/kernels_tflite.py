"""The kernels of LiteRT and tflite-micro: types and largest ranks for each operator of TFLite.

kernel_table_tflite.py was found by running a model of one operator for every entry, with LiteRT's default kernels, and comparing the result
with the exact one; tests/targets/test_kernels.py repeats it. Kernels that run but are wrong are not in it: quantized DIV (one or two
steps by many give the extreme value), quantized NEG, FLOOR_DIV and FLOOR_MOD (they take integers for plain numbers), and int8 CUMSUM
of tflite-micro. Ranks above 7 were not tried: tflite-micro reads beyond its shapes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from qconvert.graph import Tensor
from qconvert.targets.kernel_table_tflite import LITERT, LITERT_CASTS, MICRO, MICRO_CASTS

#: The types that were tried. Those of 8 and 16 bits have scales, or are "plain".
SURVEYED = ("int8", "uint8", "int16", "float32", "int32", "int64", "bool", "plain_int8", "plain_uint8", "plain_int16", "uint16", "uint32",
            "uint64", "float16", "bfloat16", "float64")  # fmt: skip

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


#: Runtime -> operator -> "largest rank: types of the data", see kernel_table_tflite.py.
OPERATORS: Mapping[str, Mapping[str, str]] = {"LiteRT": LITERT, "tflite-micro": MICRO}
_CASTS: Mapping[str, Mapping[str, str]] = {"LiteRT": LITERT_CASTS, "tflite-micro": MICRO_CASTS}


def kernel_type(tensor: Tensor) -> str:
    """The type of a tensor as the table has it."""
    plain = tensor.dtype in ("int8", "uint8", "int16") and not tensor.is_quantized
    return f"plain_{tensor.dtype}" if plain else tensor.dtype


def has_cast(runtime: str, source: str, result: str) -> bool:
    """Whether CAST takes values from one type to another."""
    return source == result or result in _CASTS[runtime].get(source, "").split()


@cache
def largest_rank(runtime: str, operator: str, dtype: str) -> int:
    """The largest rank of data of type `dtype` that the operator takes in "LiteRT" or "tflite-micro"; 0 if there is no such kernel."""
    entry = OPERATORS[runtime].get(operator, "")
    for part in entry.split("  "):
        rank, _, types = part.partition(": ")
        if dtype in types.split():
            return int(rank)
    return 0
