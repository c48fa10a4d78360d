"""Operators between DequantizeLinear and QuantizeLinear that HTP runs, and their tolerances (onnxruntime-qnn 2.7).

tests/test_operators.py compares the lists with HTP. HTP pads int8 with a value other than zero, treats stored int8 as uint8 in a Cast or a
Reshape, and has few operators of int16. So the target has data of uint8 and uint16, without these defects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.plugin import (
    ELEMENTWISE,
    KINDS,
    Array,
    Graph,
    Op,
    Quantization,
    Tensor,
    Violation,
    activation_bounds,
    apply,
    integer_range,
)

#: Operators that run on HTP, with data of 8 and 16 bits and in float.
_TAKEN = frozenset(
    "Abs Add ArgMax ArgMin Atan AveragePool BatchNormalization Cast Ceil Clip Concat Conv ConvTranspose Cos CumSum"
    " DepthToSpace Dequantize Div Einsum Elu Equal Exp Expand Flatten Floor FloorDiv Gather GatherElements GatherND Gelu"
    " Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Identity"
    " InstanceNormalization LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization"
    " MatMul Max MaxPool Min Mish Mul Neg NotEqual PRelu Pad Pow Quantize RMSNormalization Reciprocal ReduceL2 ReduceMax ReduceMean"
    " ReduceMin ReduceSum Relu Requantize Reshape Resize Round Rsqrt ScatterElements ScatterND Selu Sigmoid Sign Sin Slice Softmax Softplus"
    " SpaceToDepth Split Sqrt Square SquaredDifference Squeeze Sub Swish Tan Tanh ThresholdedRelu Tile Transpose Unsqueeze"
    " Where".split()
)
_RANK = 5
#: Functions of 16 bits -> scale and zero point of their results; with others HTP's results are wrong by up to their whole range.
_FIXED_16 = {
    "HardSigmoid": (2.0**-16, 0),
    "LpNormalization": (2.0**-15, 2**15),
    "Sigmoid": (2.0**-16, 0),
    "Softmax": (2.0**-16, 0),
    "Tanh": (2.0**-15, 2**15),
}
#: Functions of uint16, and of uint8, whose results wrap around where they lie more than the width of their range beyond it.
_WRAPPED, _WRAPPED_8 = ("Atan", "Cos", "Log", "LogSoftmax", "Sin"), ("LogSoftmax",)
#: Operators that square their data in float16, of which 65504 is the largest number -> the power of the data that their results grow with.
SQUARES = {"RMSNormalization": 0, "ReduceL2": 1, "SquaredDifference": 2}
#: Activations that HTP computes with what gives their data in one, without rounding or clipping the data. It leaves out a Clip of which the
#: data's range implies a bound, with the other bound.
JOINED = ("Clip", "HardSwish", "LeakyRelu", "Relu")
#: Operators that HTP computes in the scale of their data, with 8 bits; results of scales that are smaller by this factor or more are wrong.
_IN_SCALE_OF_DATA, _LARGEST_RATIO = ("Add", "Max", "Min", "Neg", "Sub"), 48.0
#: The largest zero point of uint8 to which HTP clips uint16 rightly; reciprocals of scales are kept as integers of 8 bits.
_MIDDLE, _BYTE = 128, 255
#: Operators of uint16 for which HTP fails, or refuses the whole graph.
_REFUSED_16 = ("GroupNormalization", "LRN")
#: The largest number whose square float16 holds.
_ROOT = 255.0
#: Tolerances in steps: of 8 bits, of 16 bits, and of products of 16 bits, which HTP computes with fewer bits.
_OFF, _OFF_16, _OFF_PRODUCTS_16 = 1.5, 64.0, 512.0


def _list_tensors(graph: Graph, op: Op) -> list[Tensor]:
    return [graph[name] for name in op.names if name]


def lacks(graph: Graph, op: Op) -> str:
    """Return why onnxruntime runs an operator on the CPU; "" if HTP runs it."""
    if op.kind not in _TAKEN:
        name = str(op["op_type"]) if op.kind == "Opaque" else op.kind
        return f"HTP has no {name}"
    tensors = _list_tensors(graph, op)
    rank = max((len(tensor.shape) for tensor in tensors if tensor.shape is not None and not tensor.is_constant), default=0)
    if rank > _RANK:
        return f"{op.kind} of {rank} dimensions, at most {_RANK}"
    if any(tensor.shape is None or any(isinstance(size, str) for size in tensor.shape) for tensor in tensors):
        return f"{op.kind} with dynamic dimensions"
    if (found := float_constant(graph, op)) is not None:
        return f"{op.kind} whose input {found[0]} is a constant of {found[1].dtype}, not of floats"
    if op.kind == "ConvTranspose" and set(op["dilations"]) != {1}:
        return "ConvTranspose with dilations"
    if _has_further_axes(graph.tensors, op):
        return f"{op.kind} over several axes"
    is_output = op.kind == "Dequantize" and op.outputs[0] in graph.outputs and not any(op.outputs[0] in other.inputs for other in graph.ops)
    if is_output or (op.kind == "Quantize" and op.inputs[0] in graph.inputs):
        return "onnxruntime converts float inputs and outputs itself (its option offload_graph_io_quantization)"
    return ""


def float_constant(graph: Graph, op: Op) -> tuple[int, Tensor] | None:
    """Return the place of a quantized constant that HTP takes in float alone, and the constant.

    It is the bias of a Gemm with a float result, or the scale of a LayerNormalization in another type than uint8.
    """
    if op.kind == "Gemm" and not graph[op.outputs[0]].is_quantized:
        place = 2
    elif op.kind == "LayerNormalization":
        place = 1
    else:
        return None
    name = (*op.inputs, "")[place]
    begin = graph.producers().get(name)
    stored = graph.tensors.get(begin.inputs[0] if begin is not None and begin.kind == "Dequantize" else name)
    if stored is None or not stored.is_constant or not stored.is_quantized or (op.kind != "Gemm" and stored.dtype == "uint8"):
        return None
    return place, stored


def _has_further_axes(tensors: Mapping[str, Tensor], op: Op) -> bool:
    if op.kind != "LayerNormalization":
        return False
    rank = len(tensors[op.inputs[0]].shape or ())
    return int(str(op["axis"])) not in (-1, rank - 1)


def counts_padding(op: Op) -> bool:
    """Return whether an average over three dimensions has the attribute with which HTP computes it wrongly, also without a padding."""
    return op.kind == "AveragePool" and len(op["kernel_shape"]) == 3 and bool(op["count_include_pad"])


def lowering_reason(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Return why an operator becomes others: HTP fails for it, or leaves it to the CPU; "" if it stays."""
    if words := refusal_reason(tensors, op):
        return words
    kind = KINDS[op.kind]
    is_function = kind.rule == "real" and kind.inputs == (1, 1) and kind.layout == ELEMENTWISE
    return f"HTP has no {op.kind}" if is_function and op.kind not in _TAKEN else "several axes" if _has_further_axes(tensors, op) else ""


def refusal_reason(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Return why HTP fails for a graph with an operator, or computes it wrongly; "" if it does neither."""
    data = next((tensors[name] for name in op.inputs if name), None)
    if data is None:
        return ""
    wide = data.dtype in ("uint16", "int16")
    wrong = (
        (op.kind == "PRelu" and wide and not tensors[op.inputs[1]].is_constant)
        or (op.kind == "CumSum" and data.is_quantized)
        or (op.kind == "Reciprocal" and data.quantization is not None and not _has_whole_reciprocal(data.quantization))
        or (op.kind in _REFUSED_16 and wide)
        or op.kind == "IntegerSVDF"
        or (counts_padding(op) and any(op["pads"]))
    )
    if wrong or any(tensors[name].dtype == "int32" and tensors[name].is_quantized for name in op.outputs if name):
        return f"{op.kind} of {data.dtype} data"
    return ""


def _has_whole_reciprocal(quantization: Quantization) -> bool:
    """Return whether 1 / scale is an integer of 8 bits: HTP divides 1 by the data with this number rounded."""
    inverse = 1 / float(quantization.scale.reshape(-1)[0])
    return inverse < _BYTE + 0.5 and abs(inverse - round(inverse)) < inverse / (4 * _BYTE)


def right_quantization(op: Op, data: Sequence[Tensor], result: Tensor) -> tuple[str, Quantization] | None:
    """Return the storage type and quantization in which HTP computes a result rightly; None if that is the result's own.

    Args:
        op: the operator, on integers or between Dequantize and Quantize.
        data: its data, as they are stored; those with a scale.
        result: as it is stored.
    """
    q, first = result.per_tensor, next((item.per_tensor for item in data), None)
    if q is None or first is None:
        return None
    is_wide = result.dtype == "uint16"
    if (op.kind in _WRAPPED if is_wide else op.kind in _WRAPPED_8) and (covering := _cover_results(op, data[0], result)) is not None:
        return "uint16", covering
    if op.kind in _FIXED_16 and (is_wide or (op.kind == "Softmax" and q.point != 0)):
        fixed = Quantization.per_tensor(*_FIXED_16[op.kind])
        return None if is_wide and q == fixed else ("uint16", fixed)
    if op.kind == "LeakyRelu" and is_wide and q != first and q.scale[0] == first.scale[0]:  # larger values wrap around
        return data[0].dtype, first
    clips_wrongly = op.kind == "Requantize" and data[0].dtype == "uint16" and q.point > _MIDDLE
    if result.dtype == "uint8" and (clips_wrongly or needs_wide_data(op, data, result)):
        return "uint16", widen_quantization(q)
    return None


def _cover_results(op: Op, data: Tensor, result: Tensor) -> Quantization | None:
    """Return a quantization of uint16 that holds all results of a function; None if its own holds them, or nearly."""
    q, width = result.per_tensor, float(integer_range(result.dtype)[1] + 1)
    assert q is not None
    low, high = range_of(data)
    if op.kind == "LogSoftmax":  # the least result is that of the least value next to the largest ones
        x = np.full((data.static_shape or (1,))[int(str(op["axis"]))], high)
        x[0] = low
        values = apply(op.kind, x, axis=0)
    else:
        values = apply(op.kind, np.linspace(low, high, 2**16))
    values = values[np.isfinite(values)]
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    steps = np.array([low, high]) / float(q.scale[0]) + q.point
    if steps[0] >= -width and steps[1] <= 2 * width:
        return None
    scale = (high - low) / (2**16 - 1)
    return Quantization.per_tensor(scale, round(-low / scale))


def needs_clipped_data(tensors: Mapping[str, Tensor], op: Op, data: Tensor, result: Tensor) -> bool:
    """Return whether an activation gives results more than a step off where HTP computes it with what gives its data in one."""
    q, (low, high) = result.per_tensor, range_of(data)
    if q is None:
        return False
    if not all(tensors[name].is_constant for name in op.inputs[1:] if name):
        return True
    x = np.linspace(2 * low - high, 2 * high - low, 2**10)
    more = [tensors[name].float_values() if name else None for name in op.inputs[1:]]
    attributes: dict[str, Any] = {**op.attributes}
    real, clipped = (apply(op.kind, values, *more, **attributes) for values in (x, np.clip(x, low, high)))
    if op.kind == "Clip" and min(real.min() - low, high - real.max()) < (high - low) / 2**16:
        real = x  # HTP leaves the Clip out
    real, clipped = (np.clip(values / float(q.scale[0]) + q.point, *integer_range(result.dtype)) for values in (real, clipped))
    return bool(np.abs(real - clipped).max() > 1)


def find_square_factor(op: Op, data: Sequence[Tensor], result: Tensor) -> float:
    """Return the power of 2 by which data are to be divided, so that float16 holds sums of their squares; 1 if it holds them so."""
    ends = np.array([range_of(item) for item in data if item.per_tensor is not None])
    if not len(ends):
        return 1.0
    largest = float(np.abs(ends[0] - ends[1][::-1]).max() if len(ends) == 2 else np.abs(ends).max())
    if op.kind == "ReduceL2":
        largest *= float(np.sqrt(np.prod(data[0].static_shape or (1,)) / np.prod(result.static_shape or (1,))))
    return float(2 ** np.ceil(np.log2(largest / _ROOT))) if largest > _ROOT else 1.0


def exceeded_bounds(graph: Graph, op: Op) -> tuple[float | None, float | None]:
    """Return the bounds of a fused activation beyond which the quantization of the result reaches."""
    result, (lowest, highest) = graph[op.outputs[0]], activation_bounds(op)
    if result.per_tensor is None:
        return None, None
    low, high = range_of(result)
    return lowest if lowest is not None and low < lowest else None, highest if highest is not None and high > highest else None


def range_of(tensor: Tensor) -> tuple[float, float]:
    """Return the least and the largest value that a quantized tensor holds."""
    q = tensor.per_tensor
    assert q is not None
    low, high = ((end - q.point) * float(q.scale[0]) for end in integer_range(tensor.dtype))
    return low, high


def widen_quantization(q: Quantization) -> Quantization:
    """Return the quantization of uint16 whose integers are 256 times those of uint8."""
    return Quantization.per_tensor(q.step / 256, q.point * 256)


def needs_wide_data(op: Op, data: Sequence[Tensor], result: Tensor) -> bool:
    """Return whether HTP computes an operator rightly with data of 16 bits alone."""
    scales = [float(item.per_tensor.scale[0]) for item in data if item.per_tensor is not None]
    q = result.per_tensor if op.kind in _IN_SCALE_OF_DATA and result.dtype == "uint8" else None
    return q is not None and max(scales, default=0.0) > _LARGEST_RATIO * float(q.scale[0])


def violations(graph: Graph, op: Op) -> Iterator[Violation]:
    """Yield the violations of the target by an operator of a normalized graph."""
    if dynamic := [name for name in op.inputs if name in graph.inputs and graph[name].static_shape is None]:
        rule = "HTP compiles graphs whose sizes are known; onnxruntime leaves others to the CPU whole"
        yield Violation(f"input {dynamic[0]!r} has the shape {graph[dynamic[0]].shape}", rule, "--batch=1, or --input-shape")
    if words := refusal_reason(graph.tensors, op):
        rule = "HTP compiles the operator, or leaves it to the CPU (measured with onnxruntime-qnn 2.7)"
        yield Violation(f"{op}: {words}", rule, "--target portable, for other clients")


def fault(graph: Graph, op: Op) -> str:
    """See qconvert.plugin.Accelerator: what HTP computes wrongly, and no other form avoids."""
    data, second = (graph[name] if name else None for name in (*op.inputs, "", "")[:2])
    if data is None:
        return ""  # a Loop without a number of turns
    if op.kind == "LSTM" and data.is_quantized:
        return "an LSTM is up to 10 steps off"
    if op.kind == "MatMul" and second is not None and second.dtype == "uint8" and second.per_tensor is not None:
        is_beyond = second.data is None and second.per_tensor.point not in (_MIDDLE - 1, _MIDDLE)
        return (
            "second data whose integers less their zero point are beyond int8 are rounded, results up to 21 steps off" if is_beyond else ""
        )
    if op.kind == "Pow" and data.is_quantized and second is not None and second.data is not None and (second.float_values() < 0).any():
        low, high = range_of(data)
        return "0 to a negative power is the least number" if low <= 0 <= high else ""
    return ""


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel: one step of 8 bits, more of 16 bits."""
    wide = any(tensor.dtype in ("uint16", "int16") for tensor in _list_tensors(graph, op) if tensor.is_quantized)
    steps = _OFF if not wide else _OFF_PRODUCTS_16 if op.kind in ("MatMul", "Gemm", "Conv", "ConvTranspose") else _OFF_16
    return np.full(exact.shape, steps), True
