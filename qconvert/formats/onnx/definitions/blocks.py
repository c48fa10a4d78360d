"""The definition of MatMulNBits where its weights are more than a quantization in blocks: an order of groups, zero points that are real
numbers, or a coarser product that the node allows (accuracy_level)."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.storage import unpack_bits
from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, NoDefinitionError
from qconvert.formats.onnx.model import carried_node
from qconvert.formats.onnx.qoperator.matrix import count_blocks
from qconvert.graph import Array, Graph, Op

#: The accuracy_level at which onnxruntime's kernels round the data to int8, with a scale for each block of them.
_ROUNDS = 4


def _matmul_nbits(s: Decomposition) -> None:
    """x @ ((integers - zero points) * scales) + bias, in real numbers: accuracy_level names the least that a kernel may do.

    Without an order of groups and with packed zero points it is MatMulNBits of the highest accuracy, whose weights stay integers.
    """
    bits = int(s.attribute("bits", 4))
    points = s.input(3)
    if bits not in (2, 4, 8) or s.rank() < 2:
        raise NoDefinitionError("other bits than 2, 4 and 8, or a vector")
    sizes = {name: int(s.attribute(name, 0)) for name in ("K", "N", "block_size")}
    if s.attribute("weight_prepacked", 0):
        raise NoDefinitionError("weights packed for one device")
    if not s.input(4) and (not points or s.tensor(3).dtype == "uint8"):
        if not s.attribute("accuracy_level", 0):
            raise NoDefinitionError("a form that is read as it is")
        inputs = [s.input(index) for index in range(len(s.op.inputs))]
        s.end(s("MatMulNBits", *inputs, domain="com.microsoft", bits=bits, **sizes))
        return
    if s.input(4) and (bits != 4 or (points and s.tensor(3).dtype == "uint8")):
        raise NoDefinitionError("groups with packed zero points, for which onnxruntime ignores them, or with another number of bits than 4")
    weights = _weights(s, bits, sizes["K"], sizes["N"], sizes["block_size"])
    product = s("MatMul", s.x, s.const(weights))
    s.end(s("Add", product, s.input(5)) if s.input(5) else product)


def _weights(s: Decomposition, bits: int, depth: int, columns: int, block: int) -> Array:
    """The real weights (K,N)."""
    packed, scales = s.known(1), s.known(2)
    blocks, each = count_blocks(packed, scales, (columns, depth, block), bits), 8 // bits
    if not blocks:
        raise NoDefinitionError("sizes that do not fit")
    stored = unpack_bits(packed.reshape(columns, -1), bits)[:, :depth]
    if not s.input(3):
        zeros = np.full((columns, blocks), 2 ** (bits - 1), np.float32)
    elif s.tensor(3).dtype == "uint8":
        zeros = unpack_bits(_require_size(s.known(3), columns * -(-blocks // each)).reshape(columns, -1), bits)[:, :blocks].astype(
            np.float32
        )
    else:
        zeros = _require_size(s.known(3), columns * blocks).reshape(columns, blocks).astype(np.float32)
    groups = _require_size(s.known(4), depth, blocks * block)[:depth].astype(np.int64) if s.input(4) else np.arange(depth) // block
    if groups.min() < 0 or groups.max() >= blocks:
        raise NoDefinitionError("groups that do not exist")
    steps = scales.reshape(columns, blocks).astype(np.float32)
    real = (stored.astype(np.float32) - zeros[:, groups]) * steps[:, groups]
    return np.ascontiguousarray(real.T).astype(scales.dtype)


def coarse_product(graph: Graph, op: Op, data: Array) -> tuple[Array, Array, Array] | None:
    """Compute a MatMulNBits with accuracy_level 4, whose kernels may round the data, and bounds of a kernel's errors.

    Returns:
        the product in float64; the error bound of a kernel with each block of the data rounded to 127 steps of its largest magnitude; the
        error bound of a kernel in float32. None for any other node.
    """
    node = carried_node(op)
    if node is None:
        return None
    try:
        s = Decomposition(graph, op, node)
        bits, block = int(s.attribute("bits", 4)), int(s.attribute("block_size", 0))
        depth = int(s.attribute("K", 0))
        if int(s.attribute("accuracy_level", 0)) != _ROUNDS or bits not in (2, 4, 8) or block < 1 or data.shape[-1:] != (depth,):
            return None
        weights = _weights(s, bits, depth, int(s.attribute("N", 0)), block).astype(np.float64)
        bias = s.known(5).astype(np.float64) if s.input(5) else np.zeros(1)
    except (NoDefinitionError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    real = data.astype(np.float64)
    starts = np.arange(0, depth, block)
    steps = np.repeat(np.maximum.reduceat(np.abs(real), starts, axis=-1) / 127, block, axis=-1)[..., :depth]
    fine = (np.abs(real) @ np.abs(weights) + np.abs(bias)) * 2.0**-20
    return real @ weights + bias, steps / 2 @ np.abs(weights) + fine, fine


def _require_size(data: Array, *sizes: int) -> Array:
    """Flat data of one of the sizes."""
    if data.size not in sizes:
        raise NoDefinitionError("sizes that do not fit")
    return data.reshape(-1)


DEFINITIONS: dict[str, Definition] = {"com.microsoft.MatMulNBits": _matmul_nbits}
