"""MatMulNBits: float data times weights of 2, 4 or 8 bits with one scale for each block of them (onnxruntime, docs/ContribOperators.md).

B is packed as (N, blocks of K, bytes of a block), several weights a byte, the first in the lowest bits; scales are (N, blocks); zero points
are packed likewise along the blocks, and half of the range if there are none. Two bits are read as four, as onnxruntime has no other use
for them.
"""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.reading import Reading
from qconvert.graph import Array, Op, Quantization, Tensor, numpy_dtype

__all__ = ["read_matmul_nbits", "unpack_bits", "write_matmul_nbits"]

_SMALLEST_BLOCK = 16
#: Bits -> the type that weights are read as.
_STORAGE = {2: "uint4", 4: "uint4", 8: "uint8"}
_BITS = {"uint4": 4, "uint8": 8, "int4": 4, "int8": 8}
#: Where the bias stands among the inputs, after zero points and the order of groups.
_BIAS = 5


def read_matmul_nbits(r: Reading) -> None:
    """MatMulNBits as a MatMul with the float values of weights (K,N), which have blocks of scales along K."""
    r.require_only(accuracy_level=0, weight_prepacked=0)
    bits, real_type = int(r.attribute("bits", 4)), r.tensor(2).dtype
    if r.has(4) or r.rank(0) < 2 or bits not in _STORAGE or (r.has(3) and r.tensor(3).dtype != "uint8"):
        raise NotCoveredError("an order of groups, a vector, other bits than 2, 4 and 8, or zero points that are not packed")
    packed, scales, points = r.constant(1), r.constant(2), r.constant(3)
    if packed is None or scales is None or (points is None and r.has(3)):
        raise NotCoveredError("weights that are computed at run time")
    columns, depth, block = (int(r.attribute(name, 0)) for name in ("N", "K", "block_size"))
    blocks = -(-depth // block) if block > 0 else 0
    each = 8 // bits
    if (
        min(columns, depth, blocks) < 1
        or block % each
        or packed.size != columns * blocks * block // each
        or scales.size != columns * blocks
    ):
        raise r.invalid(
            f"weights of shape {packed.shape} and {scales.size} scales for N {columns}, K {depth} in blocks of {block}", rule="block-scales"
        )
    if packed.dtype != np.uint8:
        raise r.invalid(f"weights of {packed.dtype}, which are not packed", rule="block-scales")
    if points is None:
        zeros = np.full((columns, blocks), 2 ** (bits - 1), np.int64)
    elif points.size != columns * -(-blocks // each):
        raise r.invalid(f"{points.size} bytes of zero points for {columns} columns of {blocks} blocks", rule="block-scales")
    else:
        zeros = unpack_bits(points.reshape(columns, -1), bits)[:, :blocks].astype(np.int64)
    quantization = Quantization(
        np.ascontiguousarray(scales.reshape(columns, blocks).T, np.float32), np.ascontiguousarray(zeros.T), 0, block
    )
    weights = np.ascontiguousarray(unpack_bits(packed.reshape(columns, -1), bits)[:, :depth].T).astype(numpy_dtype(_STORAGE[bits]))
    stored = r.variant(1, f"unpacked_{_quantization_key(quantization)}", weights, quantization)
    (real,) = r.emit("Dequantize", [stored], [r.intermediate("weights", real_type)], dtype=real_type)
    if not r.has(5):
        r.emit("MatMul", [r.input(0), real], dtype=real_type)
        return
    product = r.emit("MatMul", [r.input(0), real], [r.intermediate("product", real_type)], dtype=real_type)
    r.emit("Add", [*product, r.input(5)], dtype=real_type)


def _quantization_key(quantization: Quantization) -> str:
    """Tells two readings of one packed constant with different scales apart."""
    import hashlib

    return hashlib.sha256(quantization.scale.tobytes() + quantization.zero_point.tobytes()).hexdigest()[:8]


def unpack_bits(data: Array, bits: int) -> Array:
    """Rows of bytes as rows of the numbers in them, those in the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray((data[..., None] >> shifts) & (2**bits - 1), np.uint8).reshape(len(data), -1)


def _pack_bits(data: Array, bits: int) -> Array:
    """The mirror of unpack_bits()."""
    each = 8 // bits
    padded = np.pad(data, ((0, 0), (0, -data.shape[1] % each)))
    parts = padded.reshape(len(data), -1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(parts, axis=2), np.uint8)


def write_matmul_nbits(op: Op, b: Builder) -> str:
    """MatMul or Gemm of float data with weights of 4 or 8 bits in blocks along K as MatMulNBits."""
    weights = _stored_weights(op.inputs[1], b)
    reason = _reason(op, b, weights)
    if reason or weights is None or weights.data is None or weights.quantization is None:
        return reason
    bits = _BITS[weights.dtype]
    offset = 2 ** (bits - 1) if weights.dtype.startswith("int") else 0
    quantization, data = weights.quantization.shift_zero_point(offset), weights.data.astype(np.int16) + offset
    if not _has_rows(op):
        quantization, data = quantization.transpose((1, 0)), data.T
    columns, depth = data.shape
    blocks = quantization.scale.shape[1]
    real_type = b.tensor(op.outputs[0]).dtype
    rows = np.pad(data.astype(np.uint8), ((0, 0), (0, blocks * quantization.block_size - depth)))
    name = weights.name
    inputs = [
        b.stored_value(op.inputs[0]),
        b.const(_pack_bits(rows, bits).reshape(columns, blocks, quantization.block_size * bits // 8), f"{name}/packed"),
        b.const(np.ascontiguousarray(quantization.scale).astype(numpy_dtype(real_type)), f"{name}/packed_scale"),
    ]
    if (quantization.zero_point != 2 ** (bits - 1)).any():
        inputs.append(b.const(_pack_bits(quantization.zero_point.astype(np.uint8), bits), f"{name}/packed_zero_point"))
    if op.kind == "Gemm" and len(op.inputs) > 2 and op.inputs[2]:
        inputs += [*[""] * (_BIAS - len(inputs)), b.stored_value(op.inputs[2])]
    sizes = {"K": depth, "N": columns, "bits": bits, "block_size": quantization.block_size}
    b.finish(op, b.node("MatMulNBits", inputs, hint=f"{op.outputs[0]}/real_result", domain="com.microsoft", **sizes)[0])
    return ""


def _has_rows(op: Op) -> bool:
    """Whether weights have their outputs first: those of a Gemm, and of a MatMul that says so."""
    return op.kind == "Gemm" or bool(op["trans_b"])


def _stored_weights(name: str, b: Builder) -> Tensor | None:
    """The quantized constant whose float values `name` are."""
    op = b.producer(name)
    tensor = b.tensor(op.inputs[0] if op is not None and op.kind == "Dequantize" else name)
    return tensor if tensor.data is not None and tensor.quantization is not None else None


def _reason(op: Op, b: Builder, weights: Tensor | None) -> str:
    """Why a MatMul with a real left operand is no MatMulNBits; "" if it is one."""
    if weights is None or weights.quantization is None:
        return "QOperator has no product of real and quantized operands"
    quantization = weights.quantization
    if weights.dtype not in _BITS or not quantization.block_size:
        return f"MatMulNBits takes weights of 4 and 8 bits in blocks, not {weights.dtype}{'' if quantization.block_size else ' without'}"
    if weights.rank != 2 or quantization.axis != int(_has_rows(op)) or (op.kind == "MatMul" and op["trans_a"]):
        return "MatMulNBits takes a matrix with blocks along its rows"
    if op.kind == "Gemm" and (op["activation"] or any(b.tensor(name).quantization is not None for name in filter(None, op.inputs[2:3]))):
        return "MatMulNBits takes a float bias, and fuses no activation"
    if quantization.block_size < _SMALLEST_BLOCK or quantization.block_size & (quantization.block_size - 1):
        return f"MatMulNBits takes blocks of 16, 32, 64 and so on, not {quantization.block_size}"
    types = {b.tensor(name).dtype for name in (op.inputs[0], op.outputs[0])}
    return "" if types in ({"float32"}, {"float16"}) else "MatMulNBits takes and gives float32 or float16"
