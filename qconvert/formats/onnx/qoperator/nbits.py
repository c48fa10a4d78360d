"""MatMulNBits: real data times 4-bit weights with one scale for each block of them (onnxruntime, docs/ContribOperators.md).

B is packed as (N, blocks of K, bytes of a block), two weights a byte, the first in the low half; scales are (N, blocks); zero points are
packed likewise along the blocks, and 8 if there are none.
"""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.reading import Reading
from qconvert.graph import Array, Op, Quantization, Tensor, numpy_dtype

__all__ = ["read_matmul_nbits", "write_matmul_nbits"]

_DEFAULT_ZERO_POINT = 8
_SMALLEST_BLOCK = 16


def read_matmul_nbits(r: Reading) -> None:
    """MatMulNBits as a MatMul with the real values of uint4 weights (K,N), which have blocks of scales along K."""
    r.require_only(accuracy_level=0, bits=4, weight_prepacked=0)
    if r.has(4) or r.rank(0) < 2 or r.tensor(2).dtype != "float32" or (r.has(3) and r.tensor(3).dtype != "uint8"):
        raise NotCoveredError("an order of groups, a vector, or other types than float32 and packed zero points")
    packed, scales, points = r.constant(1), r.constant(2), r.constant(3)
    if packed is None or scales is None or (points is None and r.has(3)):
        raise NotCoveredError("weights that are computed at run time")
    if (scales < 0).any():  # onnxruntime's quantizer makes such scales for symmetric weights
        raise NotCoveredError("negative scales")
    columns, depth, block = (int(r.attribute(name, 0)) for name in ("N", "K", "block_size"))
    blocks = -(-depth // block) if block > 0 else 0
    if min(columns, depth, blocks) < 1 or packed.size != columns * blocks * block // 2 or scales.size != columns * blocks:
        raise r.invalid(f"weights of shape {packed.shape} and {scales.size} scales for N {columns}, K {depth} in blocks of {block}")
    if points is None:
        zeros = np.full((columns, blocks), _DEFAULT_ZERO_POINT, np.int64)
    elif points.size != columns * -(-blocks // 2):
        raise r.invalid(f"{points.size} bytes of zero points for {columns} columns of {blocks} blocks")
    else:
        zeros = _unpacked(points.reshape(columns, -1))[:, :blocks].astype(np.int64)
    grid = Quantization(np.ascontiguousarray(scales.reshape(columns, blocks).T), np.ascontiguousarray(zeros.T), 0, block)
    weights = np.ascontiguousarray(_unpacked(packed.reshape(columns, -1))[:, :depth].T).astype(numpy_dtype("uint4"))
    stored = r.variant(1, f"unpacked_{_grid_key(grid)}", weights, grid)
    (real,) = r.emit("Dequantize", [stored], [r.intermediate("weights", "float32")], dtype="float32")
    if not r.has(5):
        r.emit("MatMul", [r.input(0), real], dtype="float32")
        return
    product = r.emit("MatMul", [r.input(0), real], [r.intermediate("product", "float32")], dtype="float32")
    r.emit("Add", [*product, r.input(5)], dtype="float32")


def _grid_key(grid: Quantization) -> str:
    """Tells two readings of one packed constant with different scales apart."""
    import hashlib

    return hashlib.sha256(grid.scale.tobytes() + grid.zero_point.tobytes()).hexdigest()[:8]


def _unpacked(data: Array) -> Array:
    """Rows of bytes as rows of their halves, the low one first."""
    return np.stack([data & 15, data >> 4], -1).reshape(len(data), -1)


def _packed(data: Array) -> Array:
    """The mirror of _unpacked()."""
    if data.shape[1] % 2:
        data = np.pad(data, ((0, 0), (0, 1)))
    return np.asarray(data[:, ::2] | data[:, 1::2] << 4, np.uint8)


def write_matmul_nbits(op: Op, b: Builder) -> str:
    """MatMul of real data with uint4 weights in blocks along K as MatMulNBits."""
    weights = _stored_weights(op.inputs[1], b)
    reason = _reason(op, b, weights)
    if reason or weights is None or weights.data is None or weights.quantization is None:
        return reason
    depth, columns = weights.data.shape
    grid = weights.quantization
    blocks = len(grid.scale)
    rows = np.pad(weights.data.T.astype(np.uint8), ((0, 0), (0, blocks * grid.block_size - depth)))
    name = weights.name
    inputs = [
        b.stored(op.inputs[0]),
        b.const(_packed(rows).reshape(columns, blocks, grid.block_size // 2), f"{name}/packed"),
        b.const(np.ascontiguousarray(grid.scale.T), f"{name}/packed_scale"),
    ]
    if (grid.zero_point != _DEFAULT_ZERO_POINT).any():
        inputs.append(b.const(_packed(grid.zero_point.T.astype(np.uint8)), f"{name}/packed_zero_point"))
    sizes = {"K": depth, "N": columns, "bits": 4, "block_size": grid.block_size}
    b.finish(op, b.node("MatMulNBits", inputs, hint=f"{op.outputs[0]}/real_result", domain="com.microsoft", **sizes)[0])
    return ""


def _stored_weights(name: str, b: Builder) -> Tensor | None:
    """The quantized constant whose real values `name` are."""
    op = b.producer(name)
    tensor = b.tensor(op.inputs[0] if op is not None and op.kind == "Dequantize" else name)
    return tensor if tensor.data is not None and tensor.quantization is not None else None


def _reason(op: Op, b: Builder, weights: Tensor | None) -> str:
    """Why a MatMul with a real left operand is no MatMulNBits; "" if it is one."""
    if weights is None or weights.quantization is None:
        return "QOperator has no product of real and quantized operands"
    grid = weights.quantization
    if weights.dtype != "uint4" or not grid.block_size:
        return f"MatMulNBits takes uint4 weights in blocks, not {weights.dtype}{'' if grid.block_size else ' without'}"
    if weights.rank != 2 or grid.axis != 0 or op["trans_a"] or op["trans_b"]:
        return "MatMulNBits takes a matrix with blocks along its rows"
    if grid.block_size < _SMALLEST_BLOCK or grid.block_size & (grid.block_size - 1):
        return f"MatMulNBits takes blocks of 16, 32, 64 and so on, not {grid.block_size}"
    sides = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    return "" if all(tensor.dtype == "float32" for tensor in sides) else "MatMulNBits takes and gives float32"
