"""Rules about the operators that a .tflite file would hold: kernels, types, ranks, and the multipliers that kernels compute of scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qconvert.graph import Tensor
from qconvert.plugins.rules import Breach
from qconvert.targets.kernels_tflite import MICRO_CUSTOM, OPERATORS, REQUANTIZE, SURVEYED, TRIED, has_cast, kernel_type, largest_rank

if TYPE_CHECKING:
    from qconvert.formats.tflite.writing import Operator, Writing

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


def has_no_kernel(w: Writing, operator: Operator) -> Iterator[Breach]:
    """LiteRT has no kernel for the type or the rank of the data; types that were not tried are left to LiteRT."""
    if operator.custom is None and operator.builtin in OPERATORS["LiteRT"]:
        yield from _missing(w, operator, "LiteRT", SURVEYED)


def has_no_micro_kernel(w: Writing, operator: Operator) -> Iterator[Breach]:
    """The same for tflite-micro, where what is not in the table does not exist."""
    carried = operator.origin is not None and operator.origin.kind == "Opaque"
    if operator.custom is not None and (operator.builtin in MICRO_CUSTOM or carried):
        return
    if operator.custom is not None or operator.builtin not in OPERATORS["tflite-micro"]:
        yield operator.outputs[0], f"there is no {operator.builtin}"
    else:
        yield from _missing(w, operator, "tflite-micro", ())
        weights = w.tensor(operator.inputs[1]) if _FACTORS.get(operator.builtin) is _linear else None
        if weights is not None and weights.is_quantized and not w.tensor(operator.outputs[0]).is_quantized:
            yield weights.name, f"{operator.builtin} of real data with weights of {weights.dtype}"


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
    if operator.custom is not None or operator.builtin not in _FACTORS:
        return
    inputs = [w.tensor(name) for name in operator.inputs if name]
    data = w.tensor(operator.inputs[_DATA.get(operator.builtin, 0)])
    result = w.tensor(operator.outputs[0])
    if data.quantization is None or data.dtype not in ("int8", "uint8", "int16"):
        return
    for factor, low, high, words in _FACTORS[operator.builtin](operator, inputs, data, result):
        if not low <= factor < high:
            bounds = f"below {high:g}" if factor >= high else f"at least {low:g}"
            yield result.name, f"{words} is {factor:g}, and has to be {bounds}"


#: A factor, its least value, the first value that is too large, and its name in words.
_Factor = tuple[float, float, float, str]


def _scale(tensor: Tensor) -> float:
    return 1.0 if tensor.quantization is None else float(tensor.quantization.scale.max())


def _wide(data: Tensor, narrow: float, wide: float) -> float:
    """The limit for int16 data, or that for 8 bits."""
    return wide if data.dtype == "int16" else narrow


def _linear(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """XNNPACK takes less than 2**8, and lets the whole model fail otherwise; the int16 kernels shift by at most 7 (common.h)."""
    weights = inputs[1]
    if weights.quantization is not None and result.quantization is not None:
        factor = _scale(data) * _scale(weights) / _scale(result)
        limit = _wide(data, 256, 1 if operator.builtin == "BATCH_MATMUL" else 128)
        yield factor, 0, limit, "input scale * weight scale / output scale"


def _sum(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """2 * the larger input scale / (2**shift * output scale) has to be below 1, and the divisor is a float32 (add.cc, sub.cc)."""
    steps = _wide(data, 2**20, 2**15)
    yield 2 * max(map(_scale, inputs[:2])) / _scale(result), 0, steps, "2 * larger input scale / output scale"
    yield steps * _scale(result), 0, float(np.finfo(np.float32).max), f"{steps} * output scale"


def _product(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """The product of two stored integers, shifted left by the factor, has to fit 32 bits (mul.cc)."""
    yield _scale(inputs[0]) * _scale(inputs[1]) / _scale(result), 0, _wide(data, 2**15, 2), "product of the input scales / output scale"


def _squared(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """(2 * the larger input scale)**2 / (2**14 * output scale) has to be below 1 (squared_difference.cc)."""
    yield (2 * max(map(_scale, inputs[:2]))) ** 2 / _scale(result), 0, 2**14, "(2 * larger input scale)^2 / output scale"


def _rescaled(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """A stored integer, shifted left by the factor, has to fit 32 bits."""
    if result.quantization is not None:
        yield _scale(data) / _scale(result), 0, _wide(data, 2**23, 2**15), "input scale / output scale"


def _hard_swish(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """input scale / (128 * output scale) has to be at most 1 (activations.cc: output_multiplier_exponent <= 0)."""
    yield _scale(data) / _scale(result), 0, 128, "input scale / output scale"


def _exponential(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """beta * input scale * 2**26 has to be above 1 (activations.cc); int16 counts steps of 10 / 65535 in 32 bits."""
    beta = float(getattr(operator.options, "beta", 1.0) or 1.0)
    high, low = _wide(data, np.inf, 5), _wide(data, 2.0**-26, 0)
    yield beta * _scale(data), low, high, "beta * input scale"


def _table(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """The int16 kernels of LOGISTIC and TANH multiply by 3 * 4096 * input scale in 32 bits (reference/integer_ops)."""
    yield _scale(data), 0, _wide(data, np.inf, 5), "input scale"


def _comparison(operator: Operator, inputs: Sequence[Tensor], data: Tensor, result: Tensor) -> Iterator[_Factor]:
    """Comparisons multiply stored integers by 2**8 * scale and need the scale below 1 (comparisons.cc); neighbours must stay apart."""
    for tensor in inputs[:2]:
        yield _scale(tensor), 2.0**-8, 1, f"the scale of {tensor.name!r}"


_FACTORS: Mapping[str, Callable[[Operator, Sequence[Tensor], Tensor, Tensor], Iterator[_Factor]]] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"), _linear),
    **dict.fromkeys(("ADD", "SUB"), _sum),
    "MUL": _product,
    "SQUARED_DIFFERENCE": _squared,
    **dict.fromkeys(("RELU", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU", "PRELU", "QUANTIZE", "MEAN", "SUM"), _rescaled),
    "HARD_SWISH": _hard_swish,
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX"), _exponential),
    **dict.fromkeys(("LOGISTIC", "TANH"), _table),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"), _comparison),
}
