"""What LiteRT's integer kernels do not support: factors of scales that their fixed-point arithmetic does not hold, and forms of operators;
such operators run in float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, prod
from typing import NamedTuple

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels.litert.references_of_functions import log, lookup_table_of_16_bits
from qconvert.operators import reduced_count
from qconvert.operators.pool import average_pads
from qconvert.operators.sizes import same_pads


class Sides(NamedTuple):
    """What a kernel multiplies.

    Attributes:
        builtin: the operator.
        inputs: what it reads.
        data: the one of these that holds its data.
        result: what it writes.
        beta: of a SOFTMAX.
    """

    builtin: str
    inputs: Sequence[Tensor]
    data: Tensor
    result: Tensor
    beta: float = 1.0


#: A factor, its least value, the first value that is too large, and its name in words.
_Factor = tuple[float, float, float, str]
Factors = Callable[[Sides], Iterator[_Factor]]


def list_unfit_factors(factors: Factors, sides: Sides) -> Iterator[str]:
    """Yield, in words, each factor that a kernel cannot hold."""
    if sides.data.quantization is None or sides.data.dtype not in ("int8", "uint8", "int16"):
        return
    for factor, low, high, words in factors(sides):
        if not low <= factor < high:
            yield f"{words} is {factor:g}; it must be {f'below {high:g}' if factor >= high else f'at least {low:g}'}"


_LARGEST_FLOAT = 3.4028234663852886e38


def _scale(tensor: Tensor) -> float:
    return 1.0 if tensor.quantization is None else max(tensor.quantization.scale.ravel().tolist())


def _wide(data: Tensor, narrow: float, wide: float) -> float:
    """The limit for int16 data, or that for 8 bits."""
    return wide if data.dtype == "int16" else narrow


def linear(s: Sides) -> Iterator[_Factor]:
    """XNNPACK takes less than 2**8, and lets the whole model fail otherwise; the int16 kernels shift by at most 7 (common.h)."""
    weights = s.inputs[1]
    if weights.quantization is not None and s.result.quantization is not None:
        factor = _scale(s.data) * _scale(weights) / _scale(s.result)
        limit = _wide(s.data, 256, 1 if s.builtin == "BATCH_MATMUL" else 128)
        yield factor, 0, limit, "input scale * weight scale / output scale"


def sums(s: Sides) -> Iterator[_Factor]:
    """2 * the larger input scale / (2**shift * output scale) has to be below 1, and the divisor is a float32 (add.cc, sub.cc).

    Masks of the lowest float32 give larger ones, which end the process. XNNPACK's addition saturates wrongly from 2**8 on: 255 steps off
    for 8 bits (measured with LiteRT 2.3; subtractions, which are not its own, are right).
    """
    steps, largest, result = _wide(s.data, 2**20, 2**15), max(map(_scale, s.inputs[:2])), _scale(s.result)
    if s.builtin == "ADD":
        yield largest / result, 0, _wide(s.data, 2**8, inf), "larger input scale / output scale"
    yield 2 * largest / result, 0, steps, "2 * larger input scale / output scale"
    yield steps * result, 0, _LARGEST_FLOAT, f"{steps} * output scale"


def narrow_sums(s: Sides) -> Iterator[_Factor]:
    """TFLite's own optimized ADD of bytes cuts sums in vectors to 16 bits without saturation (vmovn_s32, optimized_ops.h)."""
    yield from sums(s)
    yield 255 * sum(map(_scale, s.inputs[:2])) / _scale(s.result), 0, 2**15, "255 * sum of the input scales / output scale"


def product(s: Sides) -> Iterator[_Factor]:
    """XNNPACK takes less than 2**8, and saturates wrongly otherwise: 255 steps off (measured with LiteRT 2.3).

    The product of two stored integers of 16 bits, shifted left by the factor, has to fit 32 bits (mul.cc).
    """
    factor = _scale(s.inputs[0]) * _scale(s.inputs[1]) / _scale(s.result)
    yield factor, 0, _wide(s.data, 2**8, 2), "product of the input scales / output scale"


def squared_difference(s: Sides) -> Iterator[_Factor]:
    """(2 * the larger input scale)**2 / (2**14 * output scale) has to be below 1 (squared_difference.cc). The square of a difference of
    int16, shifted left by the factor, has to fit 32 bits."""
    limit = _wide(s.data, 2**14, 1)
    yield (2 * max(map(_scale, s.inputs[:2]))) ** 2 / _scale(s.result), 0, limit, "(2 * larger input scale)^2 / output scale"


def rescaling(s: Sides) -> Iterator[_Factor]:
    """A stored integer, shifted left by the factor, has to fit 32 bits."""
    if s.result.quantization is not None:
        yield _scale(s.data) / _scale(s.result), 0, _wide(s.data, 2**23, 2**15), "input scale / output scale"


def total(s: Sides) -> Iterator[_Factor]:
    """The sum of stored integers, shifted left by the factor, has to fit 32 bits (reduce.cc)."""
    count = max(1, prod(s.data.static_shape or (1,)) // max(1, prod(s.result.static_shape or (1,))))
    if s.result.quantization is not None:
        yield count * _scale(s.data) / _scale(s.result), 0, _wide(s.data, 2**23, 2**15), f"{count} * input scale / output scale"


def hard_swish(s: Sides) -> Iterator[_Factor]:
    """input scale / (128 * output scale) has to be at most 1 (activations.cc: output_multiplier_exponent <= 0).

    Input scales below 3 * 2**-24 ask for a shift of 16 bits by more than 15.
    """
    yield _scale(s.data) / _scale(s.result), 0, 128, "input scale / output scale"
    yield _scale(s.data), 3 * 2.0**-24, inf, "input scale"


def exponential(s: Sides) -> Iterator[_Factor]:
    """beta * input scale * 2**26 has to be above 1 (activations.cc); int16 counts steps of 10 / 65535 in 32 bits."""
    high, low = _wide(s.data, inf, 5), _wide(s.data, 1.001 * 2.0**-26, 0)
    yield s.beta * _scale(s.data), low, high, "beta * input scale"


def tables(s: Sides) -> Iterator[_Factor]:
    """The int16 kernels of LOGISTIC and TANH multiply by 3 * 4096 * input scale in 32 bits (reference/integer_ops)."""
    yield _scale(s.data), 0, _wide(s.data, inf, 5), "input scale"


def _comparison(s: Sides) -> Iterator[_Factor]:
    """Comparisons multiply stored integers by 2**8 * scale and need the scale below 1 (comparisons.cc); neighbours must stay apart."""
    for tensor in s.inputs[:2]:
        yield _scale(tensor), 2.0**-8, 1, f"the scale of {tensor.name!r}"


FACTORS: Mapping[str, Factors] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"), linear),
    **dict.fromkeys(("ADD", "SUB"), sums),
    "MUL": product,
    "SQUARED_DIFFERENCE": squared_difference,
    **dict.fromkeys(("RELU", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU", "PRELU", "QUANTIZE", "MEAN"), rescaling),
    "SUM": total,
    "HARD_SWISH": hard_swish,
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX"), exponential),
    **dict.fromkeys(("LOGISTIC", "TANH"), tables),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"), _comparison),
}


def factor_fault(factors: Factors, builtin: str = "") -> Callable[[Graph, Op], str]:
    """Return a function for Kernel.fault: the first factor of an operator's scales that a kernel cannot hold."""

    def fault(graph: Graph, op: Op) -> str:
        inputs, result = [graph[name] for name in op.inputs if name], graph[op.name]
        beta = float(op["beta"]) if "beta" in op.attributes else 1.0
        return next(list_unfit_factors(factors, Sides(builtin, inputs, inputs[0], result, beta)), "")

    return fault


def average_pool(graph: Graph, op: Op) -> str:
    """Averages whose padding is neither counted nor SAME are multiplied by factors that differ from place to place."""
    if len(op["kernel_shape"]) == 3:
        return "it would be two pools, which round twice"
    data, result = graph[op.inputs[0]].static_shape, graph[op.name].static_shape
    if data is None or result is None or len(data) != 4 or len(result) != 4 or op["data_format"] != "channels_last":
        return ""
    pads, share = average_pads(op, data[1:3], result[1:3])
    own = pads == same_pads(data[1:3], op["kernel_shape"], op["strides"], (1, 1)) and not op["count_include_pad"]
    return "" if own or not any(pads) or (share == 1).all() else "its padding is neither counted nor SAME"


def product_of_one(graph: Graph, op: Op) -> str:
    """The optimized REDUCE_PROD of one element is a copy (measured with LiteRT 2.3)."""
    is_one = reduced_count(graph, op) == 1 and not graph[op.inputs[0]].shares_quantization(graph[op.name])
    return "a product of one element is copied, whatever the scales" if is_one else ""


def orders_of_16_bits(graph: Graph, op: Op) -> str:
    """GREATER of int16 gives something else at any scales; LESS and its like are refused (measured with tflite-micro)."""
    return "it does not compare integers of 16 bits"


def clip(graph: Graph, op: Op) -> str:
    """RELU6 of tflite-micro clips by the quantization of its data (activations.cc, Relu6Quantized)."""
    rescales = not graph[op.inputs[0]].shares_quantization(graph[op.name])
    return "its kernel does not rescale" if rescales and graph.is_from("tflite") else ""


def elu(graph: Graph, op: Op) -> str:
    return "" if float(op["alpha"]) == 1.0 else "its kernel supports only alpha 1"


def lp_normalization(graph: Graph, op: Op) -> str:
    return "" if int(op["p"]) == 2 else "its kernel supports only the Euclidean norm"


def curve_in_fixed_point(graph: Graph, op: Op) -> str:
    """From a scale of 8 on, CalculateInputRadius (quantization_util.cc) gives 0 to LOGISTIC and TANH of int8 of tflite-micro: no integer is
    inside, and the one of 0 has the result of the lowest."""
    quantization = graph[op.inputs[0]].quantization
    return "its kernel takes data of 0 for the lowest, at a scale of 8 or more" if quantization and quantization.scale.max() >= 8 else ""


def volume(graph: Graph, op: Op) -> str:
    return "its 3-D kernel computes in float" if graph[op.inputs[0]].rank == 5 else ""


def square_root(graph: Graph, op: Op) -> str:
    """Models of TFLite, also after conversion (passes/match_rounding.py), mean its kernel."""
    own = op["arithmetic"] == "tflite" or graph.metadata.get(SOURCE_KERNELS) == "litert:default"
    return "" if own else "its kernel drops the fraction of its results"


def logarithm(graph: Graph, op: Op) -> str:
    """Points of 16-bit tables are the smallest result up to zero, and the next may be more than 16 bits above it."""
    found = lookup_table_of_16_bits(graph, op, [np.arange(-(2**15), 2**15)], log, -(2**15))
    return "neighbouring points of its 16-bit table differ by more than 16 bits" if found is not None and found.fault else ""


def local_response(graph: Graph, op: Op) -> str:
    """LRN of the reference kernels sums one channel less (reference_ops.h, LocalResponseNormalization; measured with LiteRT 2.3)."""
    return "its reference kernel leaves out the last channel of each window"


def space_to_batch(graph: Graph, op: Op, in_float: bool = False) -> str:
    """SPACE_TO_BATCH_ND of tflite-micro pads with the stored 0, and floats with what stands there (space_to_batch_nd.cc; measured)."""
    quantization, pads = graph[op.inputs[0]].quantization, graph.constant(op.inputs[2])
    shifted = in_float or (quantization is not None and bool(quantization.zero_point.any()))
    return "its kernel does not pad with zero" if shifted and (pads is None or pads.any()) else ""


def empty_slice(graph: Graph, op: Op) -> str:
    """STRIDED_SLICE of XNNPACK goes on to the last element where an end is 0; one with steps, without bounds of every axis, or of integers
    without a scale is left to TFLite's own kernel (measured with LiteRT 2.3)."""
    data, (ends, steps) = graph[op.inputs[0]], (graph.constant(op.inputs[index]) if op.has(index) else None for index in (2, 4))
    if not op.source.startswith("STRIDED_SLICE") or ends is None or ends.size != data.rank or (ends != 0).all():
        return ""
    is_taken = (steps is None or bool((steps == 1).all())) and (data.is_quantized or data.dtype == "float32")
    return "its kernel takes all that is left where a slice ends at 0" if is_taken else ""


def reduce_sum(graph: Graph, op: Op) -> str:
    """SUM of the reference kernels is right only in its first sum (measured with LiteRT 2.3)."""
    return "its reference kernel adds onto what is not cleared"
