"""Gemm and MatMul."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.kernel_faults import kernel_fault
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.ops.conv import apart, real_bias
from qconvert.formats.onnx.ops.dynamic import write_dynamic
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.graph import Op, Quantization
from qconvert.graph.kinds import is_dynamic

__all__ = ["READERS", "WRITERS", "matmul_operand"]


def write_gemm(op: Op, b: Builder) -> None:
    """Gemm with transB: weights stay O,I."""
    weights = b.tensor(op.inputs[1])
    if is_dynamic(op) and weights.data is not None and weights.quantization is not None and not weights.quantization.block_size:
        write_dynamic(op, b, weights.data.swapaxes(0, 1), weights.quantization.transposed((1, 0)), real_bias(op, b))
        return
    operands = [b.real(op.inputs[0]), b.real(op.inputs[1]), *real_bias(op, b)]
    b.finish(op, apart(op, b, b.node("Gemm", operands, hint=f"{op.outputs[0]}/real_result", transB=1)[0]))


def write_matmul(op: Op, b: Builder) -> None:
    """MatMul of real values. In float64 where onnxruntime's integer kernel would be wrong."""
    weights = b.tensor(op.inputs[1])
    if is_dynamic(op) and not op["trans_a"] and weights.data is not None and weights.quantization is not None:
        perm = [*range(weights.data.ndim - 2), *((-1, -2) if op["trans_b"] else (-2, -1))]
        perm = [axis % weights.data.ndim for axis in perm]
        write_dynamic(op, b, weights.data.transpose(perm), weights.quantization.transposed(perm), [])
        return
    operands = []
    for index, name in enumerate(op.inputs):
        value, grid = matmul_operand(op, b, index)
        if value == name:
            operands.append(b.real(name))
        else:
            operands.append(value if grid is None else b.dequantize(value, b.tensor(name).dtype, grid))
    hint = f"{op.outputs[0]}/real_result"
    if kernel_fault(b.graph, op):
        b.finish(op, b.node_in_float64("MatMul", operands, hint))
    else:
        b.finish(op, b.node("MatMul", operands, hint=hint)[0])


def matmul_operand(op: Op, b: Builder, index: int) -> tuple[str, Quantization | None]:
    """The stored value of operand `index` as ONNX's MatMul wants it, and its quantization: transposed if the operator says so."""
    tensor, rank = b.tensor(op.inputs[index]), b.tensor(op.inputs[index]).rank
    if not op[("trans_a", "trans_b")[index]]:
        return b.stored(tensor.name), tensor.quantization
    if rank is None:
        raise b.unsupported(op, f"operand {tensor.name!r} of unknown rank")
    perm = [*range(rank - 2), rank - 1, rank - 2]
    if tensor.data is not None:
        value = b.const(tensor.data.transpose(perm), f"{tensor.name}/transposed")
    else:
        value = b.node("Transpose", [b.stored(tensor.name)], hint=f"{tensor.name}/transposed", perm=perm)[0]
    return value, None if tensor.quantization is None else tensor.quantization.transposed(perm)


def read_gemm(r: Reading) -> None:
    """Gemm y = alpha * A' @ B' + beta * C, with B as O,I: weights that are I,O are transposed. Factors of quantized weights and biases
    become part of their scales; other factors are another operator's case, and so is a bias that differs from row to row."""
    r.require_only(transA=0)
    inputs = [_scaled(r, 0, 1.0), _rows_of_outputs(r)]
    if r.has(2):
        _require_vector(r)
        inputs.append(_scaled(r, 2, float(r.attribute("beta", 1.0))))
    r.emit("Gemm", inputs)


def _require_vector(r: Reading) -> None:
    """Raises NotCoveredError unless the bias has one number for each output, or is a constant that can be spread to them."""
    shape, weights = r.tensor(2).shape, r.tensor(1).shape
    outputs = None if weights is None or len(weights) != 2 else weights[0 if r.attribute("transB", 0) else 1]
    source = r.behind_dequantize(2)
    constant = r.constant(2) is not None or (source is not None and source.data is not None)
    known = shape is not None and all(isinstance(size, int) for size in shape)
    count = math.prod(int(size) for size in shape) if known and shape is not None else None
    if shape is not None and len(shape) == 1 and shape[0] == outputs:
        return
    if shape is None or (constant and (count == 1 or (count == outputs and shape[-1:] == (outputs,)))):
        return
    raise NotCoveredError(f"a bias of shape {shape}")


def _scaled(r: Reading, index: int, factor: float) -> str:
    """Input `index` times a factor, which the scale of a quantized constant takes."""
    if factor == 1.0:
        return r.input(index)
    source = r.behind_dequantize(index)
    if source is None or source.data is None or source.quantization is None or factor <= 0:
        raise NotCoveredError(f"a factor {factor}")
    scaled = r.turned(source, f"times {factor:g}", source.data, _times(source.quantization, factor))
    return r.emit("Dequantize", [scaled], [r.intermediate("scaled", "float32")], dtype="float32")[0]


def _times(quantization: Quantization, factor: float) -> Quantization:
    return replace(quantization, scale=quantization.scale * np.float32(factor))


def _rows_of_outputs(r: Reading) -> str:
    """Input 1 as O,I: as it is with transB, else transposed, before the DequantizeLinear if there is one."""
    alpha = float(r.attribute("alpha", 1.0))
    if r.attribute("transB", 0):
        return _scaled(r, 1, alpha)
    source, data = r.behind_dequantize(1), r.constant(1)
    if alpha != 1.0:
        if source is None or source.data is None or source.quantization is None or alpha <= 0:
            raise NotCoveredError(f"a factor {alpha}")
        source = replace(source, quantization=_times(source.quantization, alpha))
    if source is not None and source.data is not None and source.quantization is not None:
        turned = r.turned(
            source,
            "transposed" if alpha == 1.0 else f"transposed times {alpha:g}",
            source.data.swapaxes(0, 1),
            source.quantization.transposed((1, 0)),
        )
        return r.emit("Dequantize", [turned], [r.intermediate("weights", "float32")], dtype="float32")[0]
    if source is None and data is not None and data.ndim == 2:
        return r.variant(1, "transposed", data.swapaxes(0, 1), None)
    return r.emit("Transpose", [r.input(1)], [r.intermediate("transposed", r.tensor(1).dtype)], dtype=r.tensor(1).dtype, perm=(1, 0))[0]


def read_matmul(r: Reading) -> None:
    """MatMul of tensors of rank 2 and more; a vector is another operator's case."""
    if r.rank(0) < 2 or r.rank(1) < 2:
        raise NotCoveredError("a vector")
    r.emit("MatMul")


def read_matmul_integer(r: Reading) -> None:
    """MatMulInteger: integers without scales; zero points are inputs."""
    if r.rank(0) < 2 or r.rank(1) < 2:
        raise NotCoveredError("a vector")
    r.emit("MatMulInteger", dtype="int32")


def write_matmul_integer(op: Op, b: Builder) -> None:
    """MatMulInteger."""
    b.node("MatMulInteger", [b.stored(name) for name in op.inputs], op.outputs)


WRITERS: dict[str, WriteFunction] = {"Gemm": write_gemm, "MatMul": write_matmul, "MatMulInteger": write_matmul_integer}

READERS: dict[str, ReadFunction] = {"Gemm": read_gemm, "MatMul": read_matmul, "MatMulInteger": read_matmul_integer}
