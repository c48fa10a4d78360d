"""Rules about the operators that a .tflite file would hold: kernels, types, ranks, and the multipliers that kernels compute of scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qconvert.formats.tflite.variables import VARIABLE_OPERATORS
from qconvert.kernels.litert.factors import FACTORS, outside
from qconvert.plugins.rules import Breach
from qconvert.targets.kernels_tflite import MICRO_CUSTOM, OPERATORS, REQUANTIZE, SURVEYED, TRIED, has_cast, kernel_type, largest_rank

if TYPE_CHECKING:
    from qconvert.formats.tflite.operator import Operator
    from qconvert.formats.tflite.writing import Writing

__all__ = ["has_no_kernel", "has_no_micro_kernel", "has_wild_multiplier"]

#: Where an operator's data are, if they are not its first input.
_DATA = {"TRANSPOSE_CONV": 2, "SPLIT": 1, "FILL": 1, "SCATTER_ND": 1, "SELECT": 1, "SELECT_V2": 1, "ONE_HOT": 2}

#: Operators whose result may have more dimensions than their data.
_BROADCAST = frozenset(
    "ADD SUB MUL DIV MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE PRELU EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS "
    "LESS_EQUAL LOGICAL_AND LOGICAL_OR SELECT_V2 BROADCAST_TO FILL BATCH_MATMUL".split()
)


#: Operators of two operands, which have one type.
_PAIRS = _BROADCAST - {"SELECT_V2", "BROADCAST_TO", "FILL", "BATCH_MATMUL"}


#: Operators with weights.
_WITH_WEIGHTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL")


#: Recurrent operators of tflite-micro -> types of data, weights and state that it takes (svdf.cc, lstm_eval.cc; measured).
_MICRO_RECURRENT = {
    "SVDF": (("float32", "float32", "float32"), ("int8", "int8", "int16"), ("int8", "int8", "int8")),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (("float32", "float32", "float32"), ("int8", "int8", "int8")),
}
#: Where the first weights and the first state of these are; and inputs of an LSTM that tflite-micro wants (the input gate), or has none of
#: (peepholes, projection, layer normalization).
_WEIGHTS_AND_STATE = {"SVDF": (1, 4), "UNIDIRECTIONAL_SEQUENCE_LSTM": (2, 18)}
_SVDF_BIAS = 3
_WANTED, _UNKNOWN = (1, 5, 12), (9, 10, 11, 16, 17, 20, 21, 22, 23)


def has_no_kernel(w: Writing, operator: Operator) -> Iterator[Breach]:
    """LiteRT has no kernel for the type or the rank of the data; types that were not tried are left to LiteRT."""
    if operator.custom is None and operator.builtin in OPERATORS["LiteRT"]:
        yield from _missing(w, operator, "LiteRT", SURVEYED)


def has_no_micro_kernel(w: Writing, operator: Operator) -> Iterator[Breach]:
    """The same for tflite-micro, where what is not in the table does not exist."""
    if operator.custom is None and operator.builtin in VARIABLE_OPERATORS:
        return
    carried = operator.origin is not None and operator.origin.kind == "Opaque"
    if operator.custom is not None and (operator.builtin in MICRO_CUSTOM or carried):
        return
    if operator.custom is None and operator.builtin in _MICRO_RECURRENT:
        yield from _not_micros(w, operator)
    elif operator.custom is not None or operator.builtin not in OPERATORS["tflite-micro"]:
        yield operator.outputs[0], f"there is no {operator.builtin}"
    else:
        yield from _missing(w, operator, "tflite-micro", ())
        weights = w.tensor(operator.inputs[1]) if operator.builtin in _WITH_WEIGHTS else None
        if weights is not None and weights.is_quantized and not w.tensor(operator.outputs[0]).is_quantized:
            yield weights.name, f"{operator.builtin} of float data with weights of {weights.dtype}"


def _not_micros(w: Writing, operator: Operator) -> Iterator[Breach]:
    """In what a recurrent operator is none of tflite-micro's."""
    types = tuple(w.tensor(operator.inputs[index]).dtype for index in (0, *_WEIGHTS_AND_STATE[operator.builtin]))
    if types not in _MICRO_RECURRENT[operator.builtin]:
        yield operator.inputs[0], f"{operator.builtin} of {types[0]} with weights of {types[1]} and a state of {types[2]}"
    if operator.builtin == "SVDF" and not operator.inputs[_SVDF_BIAS]:
        yield operator.outputs[0], "an SVDF without a bias, which tflite-micro reads all the same"
    if operator.builtin == "UNIDIRECTIONAL_SEQUENCE_LSTM":
        given = {index for index, name in enumerate(operator.inputs) if name}
        for index in sorted(given & {*_UNKNOWN}):
            yield operator.inputs[index], "tflite-micro has no peepholes, projections and layer normalizations"
        if not given.issuperset(_WANTED):
            yield operator.outputs[0], "tflite-micro has no LSTM without an input gate"


def _missing(w: Writing, operator: Operator, runtime: str, judged: Sequence[str]) -> Iterator[Breach]:
    data = w.tensor(operator.inputs[_DATA.get(operator.builtin, 0)])
    result = w.tensor(operator.outputs[0])
    if operator.builtin == "QUANTIZE" and data.dtype != "float32":
        if {data.dtype, result.dtype} <= {"int8", "uint8", "int16"} and (data.dtype, result.dtype) not in REQUANTIZE[runtime]:
            yield result.name, f"QUANTIZE from {data.dtype} to {result.dtype}"
        return
    dtype = kernel_type(result if operator.builtin == "QUANTIZE" else data)
    if (judged and dtype not in judged) or (runtime == "LiteRT" and operator.builtin == "DEQUANTIZE" and dtype == "float16"):
        return
    if operator.builtin == "CAST" and (not judged or kernel_type(result) in judged):
        if not has_cast(runtime, data.dtype, result.dtype):
            yield result.name, f"CAST from {data.dtype} to {result.dtype}"
        return
    other = w.tensor(operator.inputs[1]) if operator.builtin in _PAIRS else data
    if other.dtype != data.dtype:
        yield other.name, f"{operator.builtin} of {data.dtype} and {other.dtype}"
    if operator.builtin == "PRELU" and dtype == "float16" and not other.is_constant:  # XNNPACK's, which takes constants alone
        yield other.name, "PRELU of float16 with factors that are computed"
    rank = max(data.rank or 0, (result.rank or 0) if operator.builtin in _BROADCAST else 0)
    most = largest_rank(runtime, operator.builtin, dtype)
    if most == 0:
        yield data.name, f"{operator.builtin} of {dtype.replace('_', ' ')}"
    elif rank > most and (runtime != "LiteRT" or most < TRIED):
        yield data.name, f"{operator.builtin} of {dtype.replace('_', ' ')} with {rank} dimensions, at most {most}"


def has_wild_multiplier(w: Writing, operator: Operator) -> Iterator[Breach]:
    """The factor that a kernel computes of its scales is outside what its fixed-point arithmetic holds."""
    if operator.custom is not None or operator.builtin not in FACTORS:
        return
    inputs = [w.tensor(name) for name in operator.inputs if name]
    data = w.tensor(operator.inputs[_DATA.get(operator.builtin, 0)])
    result = w.tensor(operator.outputs[0])
    beta = float(getattr(operator.options, "beta", 1.0) or 1.0)
    yield from ((result.name, words) for words in outside(operator.builtin, inputs, data, result, beta))
