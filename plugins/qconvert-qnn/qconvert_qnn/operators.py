"""Operators between DequantizeLinear and QuantizeLinear that HTP runs, and their tolerances (onnxruntime-qnn 2.7).

tests/test_operators.py compares the lists with HTP. HTP pads int8 with a value other than zero, treats stored int8 as uint8 in a Cast or a
Reshape, and has few operators of int16. So the target has data of uint8 and uint16, without these defects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from qconvert.plugin import Array, Graph, Op, Tensor, Violation

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
#: Curves of 16 bits -> scale and zero point of their results; with others HTP's results are wrong by up to their whole range.
FIXED_16 = {
    "HardSigmoid": (2.0**-16, 0),
    "Sigmoid": (2.0**-16, 0),
    "Softmax": (2.0**-16, 0),
    "Tanh": (2.0**-15, 2**15),
}
#: Tolerances in steps: of 8 bits, of 16 bits, and of products of 16 bits, which HTP computes with fewer bits.
_OFF, _OFF_16, _OFF_PRODUCTS_16 = 1.5, 64.0, 512.0


def _list_tensors(graph: Graph, op: Op) -> list[Tensor]:
    return [graph[name] for name in op.names if name]


def _is_only_output(graph: Graph, name: str) -> bool:
    return name in graph.outputs and not any(name in op.inputs for op in graph.ops)


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
    if op.kind == "Gemm" and graph[op.inputs[0]].is_quantized and not graph[op.outputs[0]].is_quantized:
        return "Gemm of quantized data with a float result"
    if (op.kind == "Quantize" and op.inputs[0] in graph.inputs) or (op.kind == "Dequantize" and _is_only_output(graph, op.outputs[0])):
        return "onnxruntime converts float inputs and outputs itself (its option offload_graph_io_quantization)"
    return ""


def refusal_reason(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Return why HTP fails for a graph with an operator, or computes it wrongly; "" if it does neither."""
    data = next((tensors[name] for name in op.inputs if name), None)
    if data is None:
        return ""
    wide = data.dtype in ("uint16", "int16")
    wrong = (
        (op.kind == "PRelu" and wide and not tensors[op.inputs[1]].is_constant)
        or (op.kind == "CumSum" and data.dtype == "uint8")
        or op.kind == "IntegerSVDF"
    )
    if wrong or any(tensors[name].dtype == "int32" and tensors[name].is_quantized for name in op.outputs if name):
        return f"{op.kind} of {data.dtype} data"
    return ""


def violations(graph: Graph, op: Op) -> Iterator[Violation]:
    """Yield the violations of the target by an operator of a normalized graph."""
    if words := refusal_reason(graph.tensors, op):
        rule = "HTP compiles the operator, or leaves it to the CPU (measured with onnxruntime-qnn 2.7)"
        yield Violation(f"{op}: {words}", rule, "--target portable, for other clients")


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel: one step of 8 bits, more of 16 bits."""
    wide = any(tensor.dtype in ("uint16", "int16") for tensor in _list_tensors(graph, op) if tensor.is_quantized)
    steps = _OFF if not wide else _OFF_PRODUCTS_16 if op.kind in ("MatMul", "Gemm", "Conv", "ConvTranspose") else _OFF_16
    return np.full(exact.shape, steps), True
