"""Matrix products."""

from __future__ import annotations

import math

import numpy as np

from qconvert.plugin import Op
from qconvert_openvino.ops.bias import read_bias, write_bias
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing


def read_matmul(r: Reading) -> None:
    """MatMul: a Gemm where a matrix meets constant weights."""
    flipped = r.flag("transpose_a"), r.flag("transpose_b")
    ranks, item = (r.rank(0), r.rank(1)), r.constant(1)
    if min(ranks) < 2:
        raise r.unsupported_error("with a vector")
    if item is None or ranks != (2, 2) or flipped[0]:
        r.emit("MatMul", [r.value(0), r.value(1)], trans_a=int(flipped[0]), trans_b=int(flipped[1]))
        return
    item = item if flipped[1] else item.transpose((1, 0))
    result, bias = read_bias(r, item.data.shape[0], 2, 1)
    result.emit("Gemm", [r.value(0), r.draft.constant(item, "weights"), *bias])


def write_matmul(op: Op, w: Writing) -> None:
    w.finish(op, w.op.matmul(*w.inputs(op), bool(op["trans_a"]), bool(op["trans_b"])))


def write_gemm(op: Op, w: Writing) -> None:
    """A MatMul with weights O,I, and an Add."""
    found = w.op.matmul(w.value(op.inputs[0]), w.value(op.inputs[1]), False, True)
    w.finish(op, write_bias(op, w, found, 1))


def read_einsum(r: Reading) -> None:
    r.emit("Einsum", [r.value(index) for index in range(r.count)], equation=r.text("equation"))


def write_einsum(op: Op, w: Writing) -> None:
    w.finish(op, w.op.einsum(w.inputs(op), op["equation"]))


def read_attention(r: Reading) -> None:
    """ScaledDotProductAttention (query, key, value, mask?, scale?): products, a Softmax and a product."""
    if r.flag("causal"):
        raise r.unsupported_error("that is causal")
    query, key = r.port(0).shape, r.port(1).shape
    if min(len(query), len(key)) < 2:
        raise r.unsupported_error("with a vector")
    scale = r.data(4) if r.count > 4 else np.array(1 / math.sqrt(query[-1]) if query[-1] > 0 else 0.0)
    if scale is None or scale.size != 1 or not scale.any() or len(query) != len(key):
        raise r.unsupported_error("whose scale, or the size that it follows from, is computed when the model runs", rule="not-constant")
    mask = r.data(3) if r.count > 3 else np.zeros(())
    if r.count > 3 and r.port(3).type == "boolean":
        raise r.unsupported_error("with a mask of truth values")
    sizes = tuple(size if size >= 0 else f"{r.node.name}.{axis}" for axis, size in enumerate((*query[:-1], key[-2])))
    found = r.step("MatMul", [r.value(0), r.value(1)], sizes, trans_b=1)
    factor = r.draft.add(f"{r.node.name}/scale", "float32", (), np.array(scale.reshape(()), np.float32))
    found = r.step("Mul", [found, factor], sizes)
    if mask is None or mask.any():
        found = r.step("Add", [found, r.value(3)], sizes)
    r.emit("MatMul", [r.step("Softmax", [found], sizes, axis=-1), r.value(2)])


READERS = {"MatMul": read_matmul, "ScaledDotProductAttention": read_attention, "Einsum": read_einsum}
WRITERS = {"MatMul": write_matmul, "Gemm": write_gemm, "Einsum": write_einsum}
