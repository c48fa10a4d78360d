"""Gemm and MatMul."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.conv import real_bias
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_gemm(op: Op, b: Builder) -> None:
    """Gemm with transB: weights stay O,I."""
    operands = [b.real(op.inputs[0]), b.real(op.inputs[1]), *real_bias(op, b)]
    b.finish(op, b.node("Gemm", operands, hint=f"{op.outputs[0]}/real_result", transB=1)[0])


def write_matmul(op: Op, b: Builder) -> None:
    """MatMul, with the integers of a transposed operand transposed before it."""
    operands = []
    for name, transposed in zip(op.inputs, (op["trans_a"], op["trans_b"]), strict=True):
        tensor = b.tensor(name)
        if not transposed:
            operands.append(b.real(name))
            continue
        rank = tensor.rank
        if rank is None:
            raise b.unsupported(op, f"operand {name!r} of unknown rank")
        perm = [*range(rank - 2), rank - 1, rank - 2]
        if tensor.data is not None:
            value = b.const(tensor.data.transpose(perm), f"{name}/transposed")
        else:
            value = b.node("Transpose", [b.stored(name)], hint=f"{name}/transposed", perm=perm)[0]
        if tensor.quantization is not None:
            axis = tensor.quantization.axis
            value = b.dequantize(value, tensor.dtype, tensor.quantization, None if axis is None else perm.index(axis))
        operands.append(value)
    b.finish(op, b.node("MatMul", operands, hint=f"{op.outputs[0]}/real_result")[0])


WRITERS: dict[str, WriteFunction] = {"Gemm": write_gemm, "MatMul": write_matmul}
