"""Gemm and MatMul, and Fourier transforms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.conv import real_bias, write_product
from qconvert.formats.onnx.ops.dynamic import write_dynamic
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.graph import Op, Quantization, numpy_dtype
from qconvert.operators import is_dynamic
from qconvert.rewriting.lowering import conditions, since


def write_gemm(op: Op, b: Builder) -> None:
    """Gemm with transB: weights stay O,I."""
    weights = b.operand(op, 1)
    if is_dynamic(op) and weights.data is not None and weights.quantization is not None and not weights.quantization.block_size:
        write_dynamic(op, b, weights.data.swapaxes(0, 1), weights.quantization.transpose((1, 0)), real_bias(op, b))
        return
    operands = [b.float_value(op.inputs[0]), b.float_value(op.inputs[1]), *real_bias(op, b)]
    write_product(op, b, operands, transB=1)


def write_matmul(op: Op, b: Builder) -> None:
    """MatMul of float values. In float64 where onnxruntime's integer kernel would be wrong."""
    weights = b.operand(op, 1)
    if is_dynamic(op) and not op["trans_a"] and weights.data is not None and weights.quantization is not None:
        perm = [*range(weights.data.ndim - 2), *((-1, -2) if op["trans_b"] else (-2, -1))]
        perm = [axis % weights.data.ndim for axis in perm]
        write_dynamic(op, b, weights.data.transpose(perm), weights.quantization.transpose(perm), [])
        return
    operands = []
    for index, name in enumerate(op.inputs):
        value, quantization = matmul_operand(op, b, index)
        if value == name:
            operands.append(b.float_value(name))
        else:
            operands.append(value if quantization is None else b.dequantize(value, b.tensor(name).dtype, quantization))
    b.compute(op, operands, in_float64=bool(b.kernel_fault(op)))


def matmul_operand(op: Op, b: Builder, index: int) -> tuple[str, Quantization | None]:
    """The stored value of operand `index` as ONNX's MatMul wants it, and its quantization: transposed if the operator says so."""
    tensor, rank = b.operand(op, index), b.operand(op, index).rank
    if not op[("trans_a", "trans_b")[index]]:
        return b.stored_value(tensor.name), tensor.quantization
    if rank is None:
        raise b.unsupported_error(op, f"operand {tensor.name!r} of unknown rank", rule="unknown-rank")
    perm = [*range(rank - 2), rank - 1, rank - 2]
    if tensor.data is not None:
        value = b.const(tensor.data.transpose(perm), f"{tensor.name}/transposed")
    else:
        value = b.node("Transpose", [b.stored_value(tensor.name)], hint=f"{tensor.name}/transposed", perm=perm)[0]
    return value, None if tensor.quantization is None else tensor.quantization.transpose(perm)


def read_gemm(r: Reading) -> None:
    """Gemm y = alpha * A' @ B' + beta * C, with B as O,I: weights that are I,O are transposed, and so are data with transA. Factors of
    quantized weights and biases become part of their scales; another one, and a bias that differs from row to row, is an operator of its
    own after the product."""
    alpha, beta = (r.attribute(name, 1.0) for name in ("alpha", "beta"))
    dtype, takes_alpha = r.tensor(0).dtype, _can_fold_factor(r, 1, alpha)
    if (alpha, beta) != (1.0, 1.0) and "float" not in dtype:
        raise NotCoveredError(f"factors of {dtype}")
    bias = [_scale_bias(r, alpha, beta)] if r.has(2) else []
    within = [_broadcast_bias(r, bias[0])] if bias and takes_alpha and _is_vector(r) else []
    product = r.outputs[0] if takes_alpha and len(within) == len(bias) else r.intermediate("product", dtype)
    if not within and r.constant(0) is not None and r.constant(1) is None and r.after_dequantize(1) is None:
        r.emit("MatMul", r.inputs[:2], [product], dtype=dtype, trans_a=r.attribute("transA", 0), trans_b=r.attribute("transB", 0))
    else:
        rows = r.emit_inner("Transpose", [r.input(0)], "rows", perm=(1, 0)) if r.attribute("transA", 0) else r.input(0)
        r.emit("Gemm", [rows, _rows_of_outputs(r, alpha if takes_alpha else 1.0), *within], [product], dtype=dtype)
    if not takes_alpha:
        scaled = r.intermediate("scaled", dtype) if bias else r.outputs[0]
        (product,) = r.emit("Mul", [product, r.const(np.asarray(alpha, numpy_dtype(dtype)), "alpha")], [scaled], dtype=dtype)
    if bias and not within:
        r.emit("Add", [product, *bias], dtype=dtype)


def _is_vector(r: Reading) -> bool:
    """Whether the bias has one number for each output, or is a constant that can be spread to them."""
    if not r.has(2):
        return False
    shape, weights = r.tensor(2).shape, r.tensor(1).shape
    outputs = None if weights is None or len(weights) != 2 else weights[0 if r.attribute("transB", 0) else 1]
    source = r.after_dequantize(2)
    constant = r.constant(2) is not None or (source is not None and source.data is not None)
    known = shape is not None and all(isinstance(size, int) for size in shape)
    count = math.prod(int(size) for size in shape) if known and shape is not None else None
    if shape is None or (len(shape) == 1 and shape[0] == outputs):
        return True
    return constant and (count == 1 or (count == outputs and shape[-1:] == (outputs,)))


def _broadcast_bias(r: Reading, bias: str) -> str:
    """A constant float bias as one number for each output."""
    data, weights = r.constant(2), r.tensor(1).static_shape
    if data is None or weights is None or not np.issubdtype(data.dtype, np.floating) or bias != r.input(2):
        return bias
    outputs = weights[0 if r.attribute("transB", 0) else 1]
    return bias if data.shape == (outputs,) else r.variant(2, f"for {outputs} outputs", np.broadcast_to(data.reshape(-1), (outputs,)), None)


def _can_fold_factor(r: Reading, index: int, factor: float) -> bool:
    """Whether a constant takes a factor without rounding: in the scale of a quantized one, or as a power of two."""
    if factor == 1.0:
        return True
    source = r.after_dequantize(index)
    if source is not None:
        return source.data is not None and source.quantization is not None and factor > 0
    return r.constant(index) is not None and math.frexp(abs(factor))[0] == 0.5


def _scale_input(r: Reading, index: int, factor: float) -> str:
    """Input `index` times a factor, in the constant itself if that takes it."""
    if factor == 1.0:
        return r.input(index)
    source, data, key = r.after_dequantize(index), r.constant(index), f"times {factor:g}"
    if not _can_fold_factor(r, index, factor):
        dtype = r.tensor(index).dtype
        operands = [r.input(index), r.const(np.asarray(factor, numpy_dtype(dtype)), key)]
        return r.emit_inner("Mul", operands, f"input {index} {key}")
    if source is None or source.data is None or source.quantization is None:
        assert data is not None
        return r.variant(index, key, np.asarray(data * data.dtype.type(factor)), None)
    scaled = r.draft.variant(source.name, key, source.data, _times(source.quantization, factor))
    return r.emit_inner("Dequantize", [scaled], f"input {index} {key}", r.tensor(index).dtype)


def _scale_bias(r: Reading, alpha: float, beta: float) -> str:
    """Return the bias times beta. A quantized one whose scale would not stay that of the products becomes float: kernels that add its
    integers to the products' read no scale of it."""
    source = r.after_dequantize(2)
    if source is None or source.data is None or source.quantization is None or beta in (1.0, alpha):
        return _scale_input(r, 2, beta)
    scaled = dequantize(source.data, source.quantization) * beta
    return r.variant(2, f"times {beta:g}", scaled.astype(numpy_dtype(r.tensor(2).dtype)), None)


def _times(quantization: Quantization, factor: float) -> Quantization:
    return replace(quantization, scale=quantization.scale * np.float32(factor))


def _rows_of_outputs(r: Reading, alpha: float) -> str:
    """Input 1 times a factor that it takes, as O,I: as it is with transB, else transposed, before the DequantizeLinear if there is one."""
    if r.attribute("transB", 0):
        return _scale_input(r, 1, alpha)
    source, data = r.after_dequantize(1), r.constant(1)
    key = "transposed" if alpha == 1.0 else f"transposed times {alpha:g}"
    if source is not None and source.data is not None and source.quantization is not None:
        turned = r.draft.variant(source.name, key, source.data.swapaxes(0, 1), _times(source.quantization, alpha).transpose((1, 0)))
        return r.emit_inner("Dequantize", [turned], "weights", r.tensor(1).dtype)
    if source is None and data is not None and data.ndim == 2:
        return r.variant(1, key, data.swapaxes(0, 1) if alpha == 1.0 else data.swapaxes(0, 1) * data.dtype.type(alpha), None)
    return r.emit_inner("Transpose", [r.input(1)], "transposed", perm=(1, 0))


def read_matmul(r: Reading) -> None:
    """MatMul, and MatMulInteger of integers without scales, of tensors of rank 2 and more; a vector is another operator's case."""
    if r.rank(0) < 2 or r.rank(1) < 2:
        raise NotCoveredError("a vector")
    r.emit(r.op_type)


#: The opset from which on the axis of a DFT is an input.
_AXIS_AS_INPUT = 20


def read_dft(r: Reading) -> None:
    """DFT; the axis is an input from opset 20 on."""
    halves, inverse = r.attribute("onesided", 0), r.attribute("inverse", 0)
    if halves and inverse:
        raise NotCoveredError("the inverse of one side")
    if r.version < _AXIS_AS_INPUT:
        axis = r.attribute("axis", 1)
    else:
        axis = r.ints(2)[0] if r.has(2) else -2
    r.emit("DFT", [r.input(0)], axis=axis, length=r.ints(1)[0] if r.has(1) else 0, inverse=inverse, onesided=halves)


@conditions(since(17))
def write_dft(op: Op, b: Builder) -> None:
    name, axis = op.outputs[0], int(op["axis"]) % (b.operand(op).rank or 1)
    length = b.const(np.int64(op["length"]), f"{name}/length") if op["length"] else ""
    inputs = [b.float_value(op.inputs[0]), length]
    stated = b.own_attributes(op)
    if "axis" in stated:
        stated["axis"] = axis
    else:
        inputs.append(b.const(np.int64(axis), f"{name}/axis"))
    b.finish(op, b.node("DFT", inputs, hint=f"{name}/DFT", **stated)[0])


def read_stft(r: Reading) -> None:
    window = r.input(2) if r.has(2) else ""
    shape = r.tensor(2).shape if window else None
    length = r.ints(3)[0] if r.has(3) else shape[0] if shape else None
    if not isinstance(length, int):
        raise NotCoveredError("frames of an unknown length")
    inputs = [r.input(0), window] if window else [r.input(0)]
    r.emit("STFT", inputs, length=length, step=r.ints(1)[0], **r.own_attributes())


@conditions(since(17))
def write_stft(op: Op, b: Builder) -> None:
    step, length = (b.const(np.int64(op[name]), f"{op.outputs[0]}/{name}") for name in ("step", "length"))
    window = b.float_value(op.inputs[1]) if op.has(1) else ""
    inputs = [b.float_value(op.inputs[0]), step, window, length]
    b.finish(op, b.node("STFT", inputs, hint=f"{op.outputs[0]}/STFT", **b.own_attributes(op))[0])


READERS: Readers = {
    "Gemm": read_gemm,
    "MatMul": read_matmul,
    "MatMulInteger": read_matmul,
    "DFT": read_dft,
    "STFT": read_stft,
}

WRITERS: Writers = {
    "Gemm": write_gemm,
    "MatMul": write_matmul,
    "DFT": write_dft,
    "STFT": write_stft,
}
