"""MatMul of two activations, whose shifts are products with sums of the other side.

Of float values a = a' - s and b = b' - t, where a' and b' are what the integers stand for without zero points, a product over the depth K
is a' b' - s * (sums of b' along K) - t * (sums of a' along K) + K s t. The first term is a product of symmetric quantizations; the others
are computed in float32 next to it.
"""

from __future__ import annotations

from qconvert.graph import Op, Shape
from qconvert.passes.shifting.shifted_graph import Shifting

__all__ = ["is_shifted_product", "shift_product"]


def is_shifted_product(s: Shifting, op: Op) -> bool:
    """Whether an operator is such a product, with a shift on any side."""
    if op.kind != "MatMul" or any(s.graph[name].is_constant for name in op.inputs[:2]):
        return False
    return any(s.shift(name) for name in (*op.inputs[:2], op.outputs[0]))


def shift_product(s: Shifting, op: Op) -> None:
    """Emit the product of the integers and what the shifts add to it."""
    first, second = (_transpose_operand(s, name, bool(op.attributes.get(turned)), op.source)
                     for name, turned in zip(op.inputs, ("trans_a", "trans_b"), strict=True))  # fmt: skip
    name, shifts = op.outputs[0], [s.shift(side) for side in op.inputs]
    result = s.graph[name]
    value = s.compute("MatMul", (first, second), f"{name}/real", name, op.source)
    for side, shift, axis in ((second, shifts[0], -2), (first, shifts[1], -1)):
        if shift:
            value = s.compute("Sub", (value, _sums(s, side, shift, axis, op.source)), f"{name}/less", name, op.source)
    shape = s.graph[op.inputs[0]].shape
    depth = shape[-2 if op.attributes.get("trans_a") else -1] if shape else 0
    total = int(depth) * shifts[0] * shifts[1] + s.shift(name)
    if result.is_quantized:
        s.quantize(s.plus(value, total, op.source), name, op.source)
    else:
        s.plus(value, total, op.source, name)


def _transpose_operand(s: Shifting, name: str, turned: bool, source: str) -> str:
    """Return what stands for an operand, its last two axes exchanged if it is stored turned."""
    shape = s.graph[name].shape
    if not turned or shape is None:
        return s[name]
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    new = s.rewriter.add(f"{name}/turned", s.rewriter[s[name]], shape=tuple(shape[axis] for axis in order))
    return s.emit("Transpose", (s[name],), new, source, perm=order)


def _sums(s: Shifting, side: str, shift: float, axis: int, source: str) -> str:
    """Emit the sums of an operand's float values along the depth, times the other's shift."""
    tensor = s.rewriter[side]
    shape: Shape = tuple(1 if index == len(tensor.shape or ()) + axis else size for index, size in enumerate(tensor.shape or ()))
    real = s.compute("Dequantize", (side,), f"{side}/summed_value", side, source)
    axes = s.rewriter.constant(f"{side}/depth", [axis])
    total = s.rewriter.add(f"{side}/sums", s.rewriter[real], shape=shape)
    s.emit("ReduceSum", (real, axes), total, source, keepdims=1)
    return s.compute("Mul", (total, s.rewriter.constant(f"{side}/other_shift", shift)), f"{side}/shifted_sums", total, source)
