"""The kernels of onnxruntime's CPU provider, measured with 1.31 and 1.32, whose QLinearSoftmax alone gives other integers.

Integer kernels are those that its optimizer puts in the place of operators between DequantizeLinear and QuantizeLinear
(qdq_selector_action_transformer.cc), each verified by tests/targets/test_audit.py against the graph that onnxruntime saves after
optimizing. They multiply by a float32 (24 bits). Faults were found by running every kernel at its edge sizes
(tests/targets/test_edges_onnxruntime.py, docs/measured/kernels.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic import dequantize_float32, onnxruntime_softmax
from qconvert.graph import Array, Graph, Op, integer_range
from qconvert.kernels.float_arithmetic import IN_FLOAT32, compute_in_float32
from qconvert.kernels.kernel import (
    IN_ANY_ORDER,
    Integers,
    Kernel,
    Reference,
    activated_range,
    constant_tolerance,
    quantizations_of,
    quantizing_form,
)
from qconvert.kernels.products import Requantizer, SumReference, Sums, addition_error
from qconvert.kernels.tolerances import Found, fine, is_linear, partial_sums
from qconvert.operators import kind_of, onnxruntime_additions, reduce_as_xnnpack, reduced_count
from qconvert.operators.call import Call, channels_first, channels_last
from qconvert.operators.pool import extract_windows

_BYTES = ("uint8", "int8")
_float = constant_tolerance(0.01)
_FLOAT32 = (2 - 2.0**-23) * 2.0**127
#: Sums that are compared at most; of 64 x 64 elements.
_MOST_SUMS = 2**20


def _softmax_fault(graph: Graph, op: Op) -> str:
    """Before onnxruntime 1.32 the last entry of the table of qlinear_softmax.cc, e^-5 * (largest float32) / size, is multiplied by
    floor(1 / scale) in float32."""
    data, result = graph[op.inputs[0]], graph[op.name]
    output = result.per_tensor
    if data.dtype not in _BYTES or result.dtype != data.dtype or output is None:
        return ""
    if data.shape is None or 0 in data.shape:
        return "QLinearSoftmax gives no result without elements" if data.shape else ""
    size = data.shape[op["axis"]]
    if not isinstance(size, int):
        return ""
    largest = math.exp(max(0.0, math.log(_FLOAT32 / size) - 5))
    if largest * math.floor(1 / output.step) < _FLOAT32 * (1 - 1e-6):
        return ""
    return f"QLinearSoftmax overflows float32 over an axis of {size} with results of so small a scale"


def _matmul_fault(graph: Graph, op: Op) -> str:
    """qlinear_matmul.cc does not write its result if there are no products to add, and refuses scales along the products, or in blocks,
    which the optimizer gives it nonetheless."""
    data, other, result = (graph[name] for name in (*op.inputs[:2], op.name))
    if not data.is_quantized or not result.is_quantized or data.shape is None or other.shape is None:
        return ""
    columns, factors = len(other.shape) - 1 - bool(op["trans_b"]), other.quantization
    if factors is not None and other.dtype in _BYTES and (factors.block_size or factors.axis not in (None, columns)):
        return "QLinearMatMul takes one scale, or one for each column"
    if other.dtype in ("int2", "uint2") or (factors is not None and "float" in other.dtype):
        return f"onnxruntime has no QLinearMatMul of {other.dtype}, and refuses the model"
    depth = data.shape[-2 if op["trans_a"] else -1]
    return "QLinearMatMul gives no zeros for sums without products" if depth == 0 else ""


def _global_average_pool_fault(graph: Graph, op: Op) -> str:
    """qgavgpool.cpp of MLAS: data scale / (result scale * positions) has to lie in 2^-32 to 2^8."""
    data, result = graph[op.inputs[0]], graph[op.name]
    if data.dtype not in _BYTES or result.dtype != data.dtype or data.quantization is None or result.quantization is None:
        return ""
    if data.shape is None or len(data.shape) < 3:
        return ""
    sizes = [size for size in data.shape[2:] if isinstance(size, int)]  # those known only at run time are 1 at least
    factor = data.quantization.step / result.quantization.step / max(1, math.prod(sizes))
    if 2.0**-32 <= factor < 2.0**8:
        return ""
    return f"QLinearGlobalAveragePool refuses to multiply by {factor:.3g}"


def _average_pool_fault(graph: Graph, op: Op) -> str:
    """With count_include_pad qlinear_pool.cc divides by whole windows; ONNX does not count the part of a window past the padding
    (ceil_mode)."""
    narrow = graph[op.inputs[0]].dtype in _BYTES and graph[op.name].dtype in _BYTES
    return "QLinearAveragePool counts what hangs over the end" if narrow and op["ceil_mode"] and op["count_include_pad"] else ""


def covers_all(graph: Graph, op: Op) -> bool:
    """Whether a pool has one window, of all positions."""
    shape = graph[op.inputs[0]].shape
    return shape is not None and tuple(op["kernel_shape"]) == tuple(shape[2:]) and op["auto_pad"] == "NOTSET" and not any(op["pads"])


def _several_windows(graph: Graph, op: Op) -> str:
    """An average of all positions is run by the kernel of GlobalAveragePool (qlinear_pool.cc)."""
    return "" if covers_all(graph, op) else "several windows"


def stored_types(graph: Graph, op: Op) -> list[str]:
    """Return as which type onnxruntime stores each tensor of bytes of an operator when it runs; "" where that is not known.

    On x86 CPUs it makes uint8 of int8 between a QuantizeLinear and the one DequantizeLinear that reads it (qdq_s8_to_u8.cc), and of nothing
    else: no inputs and outputs, what several operators read, what is clipped as integers, and what nodes of the QOperator form store.
    """
    writers, readers = graph.ends()
    return [_stored_type(graph, op, name, writers.get(name), readers.get(name, ())) for name in op.names if name]


def _stored_type(graph: Graph, op: Op, name: str, writer: Op | None, readers: Sequence[Op]) -> str:
    tensor = graph[name]
    if tensor.dtype != "int8" or name in graph.inputs or name in graph.outputs or any(of_integers(item) for item in (op, writer) if item):
        return tensor.dtype
    if writer is None or _is_moved(writer):
        return ""
    if len(readers) > 1:  # also one that reads it twice
        return tensor.dtype
    if tensor.per_tensor is not None and activated_range(graph, writer) != integer_range(tensor.dtype):
        return tensor.dtype
    return "" if any(map(_is_moved, readers)) else "uint8"


def _is_moved(op: Op) -> bool:
    """Whether onnxruntime may move a QuantizeLinear or DequantizeLinear past an operator, so that no pair of both is left: past data
    movement, and not past a MaxPool."""
    kind = kind_of(op)
    return (kind.rule in ("move", "relabel") and not kind.has_windows) or kind.chooses


def of_integers(op: Op) -> bool:
    """Whether the file that an operator was read from has it as a node of the QOperator form."""
    return op.source.startswith("QLinear")


def is_left_in_float(graph: Graph, op: Op) -> bool:
    """Whether onnxruntime takes no integer kernel for an operator between DequantizeLinear and QuantizeLinear, whose tensors are not all
    stored as one type of 8 bits."""
    return {"int8", "uint8"} <= set(stored_types(graph, op))


def _as_stored(reference: Reference) -> Reference:
    """Return the reference of a kernel in whose roundings zero points take part: the integers for each type of 8 bits as which
    onnxruntime may store the tensors."""
    rows = {dtype: Kernel(types=(dtype,), reference=reference) for dtype in _BYTES}

    def compute_ways(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
        if {graph[name].dtype for name in op.names if name} != {"int8"}:
            return reference(graph, op, stored)
        types = set(stored_types(graph, op))
        found = [rows[dtype].compute_integers(graph, op, stored) for dtype in (types if len(types) == 1 and "" not in types else _BYTES)]
        known = [item for item in found if item is not None]
        return Integers.of_parts(way for item in known for way in item.ways) if len(known) == len(found) else None

    return compute_ways


def _add_integers(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """QLinearAdd of bytes; see onnxruntime_additions()."""
    tensors, quantizations = [graph[name] for name in op.names], quantizations_of(graph, op, None)
    if not quantizations or {tensor.dtype for tensor in tensors} not in ({"int8"}, {"uint8"}) or any(value is None for value in stored):
        return None
    first, second, output = quantizations
    if 255 * (first.step + second.step) >= 2.0**31 * output.step:
        return None  # what C makes of larger float32 numbers differs between vectors and what is left over
    a, b = (np.asarray(value, np.int64) for value in stored)
    return Integers.of_parts(
        Integers.clip_to_limits(graph, op, add(a, b, (first, second), output, tensors[0].dtype)).ways[0]
        for add in onnxruntime_additions(graph, op)
    )


def _mul_integers(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """QLinearMul of bytes: a float32 multiplies the product of the steps, and the zero point joins before it is rounded (MlasQLinearMul,
    qlmul.cpp)."""
    if any(value is None for value in stored) or not _PRODUCTS.takes(graph, op):
        return None
    a, b, y = quantizations_of(graph, op, None)
    steps = [np.asarray(value, np.int64) - quantization.zero_point[0] for value, quantization in zip(stored, (a, b), strict=True)]
    product = (steps[0] * steps[1]).astype(np.float32) * (a.scale[0] * b.scale[0] / y.scale[0])
    return Integers.clip_to_limits(graph, op, np.rint(product + np.float32(y.zero_point[0])))


def _softmax_integers(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """QLinearSoftmax of any version: 1.32 rounds ties otherwise; before, it overflows over an axis of one element, and at scales below that
    of any softmax."""
    data, result = graph[op.inputs[0]], graph[op.name]
    quantizations, values = quantizations_of(graph, op), stored[0]
    if not quantizations or not values.size or data.dtype != result.dtype or float(op["beta"]) != 1:
        return None
    scale, output = quantizations[0].step, quantizations[1]
    found, overflows = onnxruntime_softmax(values, scale, output, result.dtype, int(op["axis"]))
    return Integers.of_parts(found)._replace(fault="overflows" if overflows else "")


def _square_integers(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """A Square is written as a Mul of a tensor by itself, which is fused to QLinearMul."""
    return _mul_integers(graph, Op("Mul", op.inputs * 2, op.outputs), [*stored, *stored])


def _average_integers(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """QLinearAveragePool adds the float values of a window one by one, and the zero point before it rounds (qlinear_pool.cc)."""
    quantizations = quantizations_of(graph, op)
    if not quantizations or op["arithmetic"] or _average_pool_fault(graph, op):
        return None
    data, result = quantizations
    call = Call(op, tuple(stored), (graph[op.inputs[0]],), (graph[op.name],))
    values = channels_last(call, dequantize_float32(stored[0], data))
    windows = extract_windows(call, values, np.float32(0))
    total = np.add.accumulate(windows.reshape(*windows.shape[: values.ndim], -1), axis=-1, dtype=np.float32)[..., -1]
    counted = extract_windows(call, np.ones((1, *values.shape[1:-1], 1)), 0.0, float(op["count_include_pad"]))
    count = counted.reshape(*counted.shape[: values.ndim], -1).sum(axis=-1).astype(np.float32)
    steps = np.rint(total / count / np.float32(result.scale[0]) + np.float32(result.zero_point[0]))
    return Integers.clip_to_limits(graph, op, channels_first(call, steps))


def _global_average_integers(graph: Graph, op: Op, found: Sums) -> Integers | None:
    """QLinearGlobalAveragePool multiplies the sum of the steps by a float32 (MlasQLinearGlobalAveragePoolNchw, qgavgpool.cpp)."""
    if op.attributes.get("arithmetic"):
        return None
    factor = np.float32(found.given.scale[0]) / (np.float32(found.output.scale[0]) * np.float32(found.size))
    total = (found.sums - found.size * found.given.point).astype(np.float32)
    return Integers.clip_to_limits(graph, op, np.rint(total * factor) + found.output.point)


_GLOBAL_AVERAGE = SumReference(_global_average_integers)


def _unlike_average(graph: Graph, op: Op) -> str:
    """Say why a mean that is to round as XNNPACK does is not written for the kernel of GlobalAveragePool: both agree for all sums."""
    data, result, quantizations = graph[op.inputs[0]], graph[op.name], quantizations_of(graph, op)
    axes, count = graph.constant(op.inputs[1]) if op.has(1) else None, reduced_count(graph, op) or _MOST_SUMS
    low, high = integer_range(result.dtype)
    if not str(op["arithmetic"]).startswith("xnnpack") or not quantizations or data.rank is None or axes is None:
        return op.kind
    if data.rank < 3 or sorted(int(axis) % data.rank for axis in axes.reshape(-1)) != [*range(2, data.rank)]:
        return "means over some positions"
    if count * (high - low) >= _MOST_SUMS or _global_average_pool_fault(graph, op):
        return "means of so many elements or scales so far apart"
    sums = np.arange(count * low, count * high + 1, dtype=np.int64)
    given, output = quantizations
    wanted = reduce_as_xnnpack(str(op["arithmetic"]), sums, count, True, (given, output), result.dtype)
    found = _mean_integers(graph, op, Sums(sums, count, given, output))
    agrees = found is not None and np.array_equal(found.ways[0], wanted)
    return "" if agrees else "means of these scales"


def _mean_integers(graph: Graph, op: Op, found: Sums) -> Integers | None:
    """The integers of the kernel of GlobalAveragePool for a mean; see _unlike_average()."""
    return _global_average_integers(graph, op.with_attributes(arithmetic=""), found)


def _softmax_overflow(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    found = _softmax_integers(graph, op, stored)
    return found if found is not None and found.fault else None


def _sixteen_bits(graph: Graph, op: Op, exact: Array) -> Found:
    """Float arithmetic between 16-bit integers, whose steps float32 holds with few bits to spare."""
    return np.maximum(np.maximum(0.02, np.abs(exact) * 2.0**-20), partial_sums(graph, op, exact)), False


def _mean_of_sixteen_bits(graph: Graph, op: Op, exact: Array) -> Found:
    """Terms of means of float values are as large as the data, whose scale may be far above that of the result."""
    (found, _), quantizations = _sixteen_bits(graph, op, exact), quantizations_of(graph, op, of_any_axis=True)
    if not quantizations:
        return found, False
    largest = 2.0**15 * float(quantizations[0].scale.max()) / float(quantizations[1].scale.min())
    off = float(np.sqrt(reduced_count(graph, op) or 1) * 2.0**-23 * largest)
    return np.maximum(found, off), off > 0.1


def _sum(graph: Graph, op: Op, exact: Array) -> Found:
    return 10 * fine(exact), False


def _product(graph: Graph, op: Op, exact: Array) -> Found:
    """A real bias is rounded to input scale * weight scale (weight_bias_quantization.cc), which few bits leave coarse."""
    found = 10 * fine(exact)
    quantizations = quantizations_of(graph, op, 2, of_any_axis=True)
    if not op.has(2) or graph.is_quantized(op.inputs[2]) or not quantizations:
        return found, False
    data, weights, result = (float(quantization.scale.max()) for quantization in quantizations)
    lost = data * weights / result / 2
    return found + lost, lost > 0.1


def _average_pool(graph: Graph, op: Op, exact: Array) -> Found:
    """It adds floats one by one. Averages are nearer to zero where the kernel divides by more elements than ONNX counts."""
    if not _average_pool_fault(graph, op):
        return 10 * fine(exact) + addition_error(graph, op, math.prod(op["kernel_shape"])), False
    return 10 * fine(exact) + np.abs(exact), True


def _resize(graph: Graph, op: Op, exact: Array) -> Found:
    return (_sum if is_linear(op) else _float)(graph, op, exact)


def _resize_layout(graph: Graph, op: Op) -> str:
    """Linear interpolation to many elements takes half the time with the channels last (upsample.cc: UpsampleBilinear for each channel, or
    NhwcUpsampleBilinear for all; 5.5 million elements of 21 channels: 12.6 and 6.9 ms)."""
    sizes = [graph[name].static_shape for name in (op.inputs[0], op.name)]
    if op["mode"] != "linear" or any(shape is None or len(shape) != 4 for shape in sizes):
        return ""
    data, result = (math.prod(shape or ()) for shape in sizes)
    return "channels_last" if result >= 4 * data else ""


def _softmax(graph: Graph, op: Op, exact: Array) -> Found:
    """It multiplies by the whole part of 1 / scale (qlinear_softmax.cc)."""
    result = graph[op.name].quantization
    if result is None:
        return np.full(exact.shape, 0.01), False
    steps = np.floor(1 / result.step)
    found = 0.01 + np.abs(exact) * (1 - steps * result.step)
    return found, bool((found > 0.1).any())


#: MlasRequantizeOutput (qlinearconv.cc, qlinear_matmul.cc, quant_gemm.cc): a float32 multiplies, ties to even.
_PRODUCTS = Requantizer("single_float32", "float32")
_OF_BYTES = (
    Kernel(("Conv",), _BYTES, real=("bias",), rounds_bias=True, tolerance=_product, reference=_PRODUCTS),
    Kernel(("Gemm",), _BYTES, real=("bias", "result"), rounds_bias=True, tolerance=_product, reference=_PRODUCTS),
    Kernel(("MatMul",), _BYTES, real=("result",), tolerance=_sum, fault=_matmul_fault, reference=_PRODUCTS),
    Kernel(("Add",), _BYTES, tolerance=_sum, reference=_as_stored(_add_integers)),
    Kernel(("Mul",), _BYTES, tolerance=_sum, reference=_as_stored(_mul_integers)),
    Kernel(("LeakyRelu",), _BYTES, tolerance=_sum, reference=compute_in_float32),  # tables (qlinear_lookup_table.h)
    Kernel(("AveragePool",), _BYTES, lacks=_several_windows, tolerance=_sum, fault=_global_average_pool_fault, reference=_GLOBAL_AVERAGE),
    Kernel(("AveragePool",), _BYTES, tolerance=_average_pool, fault=_average_pool_fault, reference=_as_stored(_average_integers)),
    Kernel(("ReduceMean",), _BYTES, lacks=_unlike_average, tolerance=_sum, reference=SumReference(_mean_integers)),
    Kernel(("GlobalAveragePool",), _BYTES, tolerance=_sum, fault=_global_average_pool_fault, reference=_GLOBAL_AVERAGE),
    Kernel(("Softmax",), _BYTES, tolerance=_softmax, fault=_softmax_fault, reference=_softmax_integers, below_largest=True),
    Kernel(("Sigmoid", "Where", "Concat"), _BYTES, tolerance=_float, reference=compute_in_float32),
    Kernel(("MaxPool",), _BYTES),
)


_EITHER_FORM = "it depends on the form of the file: in float, or by an integer kernel"


def _without_optimizer(row: Kernel) -> Kernel:
    """Return a row without the optimizer: files in QDQ form run in float, and only those in QOperator form have integer kernels."""
    kept = compute_in_float32 if row.reference in (compute_in_float32, _square_integers) else None
    reference = _softmax_overflow if row.reference is _softmax_integers else kept
    is_open = reference is not row.reference
    return replace(row, reference=reference, rounds_bias=False, unknown=row.unknown or (_EITHER_FORM if is_open else ""), by_file=is_open)


def _in_float(row: Kernel) -> Kernel:
    """Return a row for operators that the optimizer leaves in float (runtimes/onnx_layers.py): its kernel is none for integers."""
    if row.reference in (None, compute_in_float32):
        return row
    reference = compute_in_float32 if set(row.kinds) <= set(IN_FLOAT32) else None
    return replace(row, fault=None, reference=reference, unknown="" if reference else IN_ANY_ORDER)


def _exponential(graph: Graph, op: Op, exact: Array) -> Found:
    """What is left of a difference of numbers of about 1, such as exp(x) - 1 (activations.h), lacks their last bits."""
    found, is_coarse = _float(graph, op, exact)
    quantizations = quantizations_of(graph, op, of_any_axis=True)
    factor = max(1.0, abs(float(op["alpha"]))) if "alpha" in op.attributes else 1.0
    lost = 2.0**-22 * factor / float(quantizations[-1].scale.min()) if quantizations else 0.0
    return found + lost, is_coarse or lost > 0.1


_SIXTEEN = ("int16", "uint16")
ROWS = (
    Kernel(IN_FLOAT32, _SIXTEEN, "float", tolerance=_sixteen_bits, reference=compute_in_float32),
    Kernel(("ReduceMean",), _SIXTEEN, "float", tolerance=_mean_of_sixteen_bits, unknown=IN_ANY_ORDER),
    Kernel((), _SIXTEEN, "float", tolerance=_sixteen_bits, unknown=IN_ANY_ORDER),
    *_OF_BYTES,
    # What ONNX's operators do on integers themselves.
    Kernel(("Relu", "Clip", "Concat", "Max", "Min"), runs="stored", tolerance=_float, reference=compute_in_float32),
    Kernel(("ArgMax", "ArgMin"), runs="stored"),
    Kernel(("Resize",), runs="stored", tolerance=_resize, layout=_resize_layout, unknown=IN_ANY_ORDER),
    Kernel(("Square",), _BYTES, "float", tolerance=_float, reference=_square_integers),
    Kernel(("Sub", "Requantize"), runs="float", tolerance=_sum, reference=compute_in_float32),
    Kernel(("ReduceMean", "ReduceSum"), runs="float", tolerance=_sum, unknown=IN_ANY_ORDER),
    Kernel(("ConvTranspose",), runs="float", rounds_bias=True, tolerance=_product, unknown=IN_ANY_ORDER),
    *(replace(row.as_float_row(), types=()) for row in _OF_BYTES),
    Kernel(("Quantize",), runs="float", tolerance=_float, reference=compute_in_float32, arithmetic=quantizing_form("divided")),
    Kernel(IN_FLOAT32, runs="float", tolerance=_float, reference=compute_in_float32),
    Kernel(("Elu", "Celu", "Selu", "Softplus", "Mish"), runs="float", tolerance=_exponential, unknown=IN_ANY_ORDER),
    Kernel(runs="float", tolerance=_float, unknown=IN_ANY_ORDER),
)
IN_FLOAT = tuple(map(_in_float, ROWS))
#: Kinds whose integers are other ones where the optimizer leaves them in float.
FUSED = tuple(kind for row, real in zip(ROWS, IN_FLOAT, strict=True) if row is not real for kind in row.kinds)
UNOPTIMIZED = tuple(map(_without_optimizer, ROWS))
