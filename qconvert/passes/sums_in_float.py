"""sums_in_float: MatMulInteger and ConvInteger become products of real numbers, for targets that lack them; every sum stays exact.

Differences of integers and zero points are whole numbers, and so is every sum of their products; float32 holds those below 2^24, in
whatever order they are added. Where a sum may be larger, the operator becomes several over parts of the depth. Their sums are added as
int32, the type of ONNX's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.storage import EXACT_IN_FLOAT32
from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Shape, integer_range
from qconvert.operators import kind_of
from qconvert.operators.sizes import reshape_sizes
from qconvert.plugins import PassResult, Target, operators
from qconvert.rewriting import Rewriter

#: More parts than this make no model that anybody would want to run.
_MOST_PARTS = 64


def sums_in_float(graph: Graph, target: Target | None) -> PassResult:
    """Decompose both kinds where the target's format lacks them, or without one; what is too deep, or of unknown depth, stays."""
    kept = operators(target.format, "write") if target is not None and target.format else {}
    decomposition = _Decomposition(graph)
    for op in decomposition:
        if kind_of(op).float_kind and op.kind not in kept:
            decomposition.decompose(op)
    return decomposition.finish_with(
        lambda count: (
            f"{format_count(count, 'sum')} of products of integers {format_verb(count, 'are')} computed in float32, which holds "
            "each of them exactly"
        )
    )


class _Decomposition(Rewriter):
    def decompose(self, op: Op) -> None:
        """Put sums of real products in the place of an operator; it stays if it has no such form."""
        left, right, result = self.graph[op.inputs[0]], self.graph[op.inputs[1]], self.graph[op.name]
        if left.is_quantized or right.is_quantized or not {left.dtype, right.dtype} <= {"int8", "uint8"}:
            return
        depth = _depth(op, left.shape, right.shape)
        parts = [] if depth is None else self._parts(op, depth, (self._largest(op, 0), self._largest(op, 1)))
        if not parts:
            return
        operands = self._emit_float_operand(op, 0), self._emit_float_operand(op, 1)
        total = ""
        for part in parts:
            pieces = operands if len(parts) == 1 else self._slice_depth(op, operands, *part)
            real = self.compute_plain(kind_of(op).float_kind, pieces, result, "float32", "", **op.attributes)
            if len(parts) == 1:
                self.replace(op, op.derive("Cast", (real,), op.outputs, to="int32"))
                return
            whole = self.compute_plain("Cast", (real,), result, "int32", to="int32")
            if part == parts[-1]:
                self.replace(op, op.derive("Add", (total, whole), op.outputs))
                return
            total = self.compute_plain("Add", (total, whole), result, "int32") if total else whole

    def _parts(self, op: Op, depth: int, bounds: tuple[int, int]) -> list[tuple[int, int]]:
        """Return ranges of the depth with all sums below 2^24; none if they are too many, or the depth cannot be divided."""
        each = bounds[0] * bounds[1]
        right = self.graph[op.inputs[1]]
        if _is_convolution(op):
            each *= int(np.prod([size for size in (right.shape or ())[2:] if isinstance(size, int)]))
        steps = self._steps(op)
        if steps is not None:
            axes = tuple(range(1, steps.ndim)) if _is_convolution(op) else (steps.ndim - 2,)
            if bounds[0] * int(np.abs(steps).sum(axis=axes).max(initial=0)) < EXACT_IN_FLOAT32:
                return [(0, depth)]
        size = (EXACT_IN_FLOAT32 - 1) // max(1, each)
        if depth <= size:
            return [(0, depth)]
        if size < 1 or -(-depth // size) > _MOST_PARTS or op.attributes.get("group", 1) != 1:
            return []
        return [(start, min(depth, start + size)) for start in range(0, depth, size)]

    def _steps(self, op: Op) -> Array | None:
        """Constant weights less their zero points."""
        data, point = self.graph.constant(op.inputs[1]), self._point(op, 1)
        if data is None or (point is None and op.input(3)):
            return None
        return data.astype(np.int64) - (0 if point is None else point)

    def _largest(self, op: Op, index: int) -> int:
        """Return the largest magnitude of an operand's integers less their zero points."""
        tensor, point = self.graph[op.inputs[index]], self._point(op, index)
        low, high = integer_range(tensor.dtype)
        if tensor.data is not None and tensor.data.size:
            low, high = int(tensor.data.min()), int(tensor.data.max())
        if point is None:
            return max(abs(low), abs(high)) if not op.input(2 + index) else 255
        return max(abs(high - int(point.min())), abs(low - int(point.max())))

    def _point(self, op: Op, index: int) -> Array | None:
        """Return known zero points of an operand, of a shape that fits it."""
        data = self.graph.constant(op.input(2 + index))
        if data is None or not data.size:
            return None
        return data.astype(np.int64).reshape(_broadcast_shape(op, index, data.shape, self._rank(op)))

    def _rank(self, op: Op) -> int:
        return self.graph[op.inputs[1]].rank or 0

    def _emit_float_operand(self, op: Op, index: int) -> str:
        """Return an operand's integers less their zero points, as float32."""
        tensor = self.graph[op.inputs[index]]
        value = self.compute_plain("Cast", (tensor.name,), tensor, "float32", to="float32")
        name, point = op.input(2 + index), self._point(op, index)
        if not name or (point is not None and not point.any()):
            return value
        if point is not None:
            other = self.constant(f"{name}/real", point.astype(np.float32))
        else:
            given = self.graph[name]
            other = self.compute_plain("Cast", (name,), given, "float32", to="float32")
            shape = _broadcast_shape(op, index, given.shape or (), self._rank(op))
            if shape != given.shape:
                sizes = self.constant(f"{name}/sizes", shape)
                other = self.compute_plain("Reshape", (other, sizes), replace(given, shape=None), "float32")
        return self.compute_plain("Sub", (value, other), tensor, "float32")

    def _slice_depth(self, op: Op, operands: tuple[str, str], start: int, end: int) -> tuple[str, str]:
        """Return both operands from `start` to `end` of the depth."""
        found = []
        for index, name in enumerate(operands):
            tensor = self.graph[op.inputs[index]]
            axis = _depth_axis(op, index, tensor.rank or 0)
            shape = tuple(end - start if i == axis else size for i, size in enumerate(tensor.shape or ()))
            places = (self.constant(f"{tensor.name}/sizes", [number]) for number in (start, end, axis))
            found.append(self.compute_plain("Slice", (name, *places), replace(tensor, shape=shape), "float32"))
        return found[0], found[1]


def _is_convolution(op: Op) -> bool:
    """Whether the second operand are weights, not a matrix of inputs x outputs."""
    return kind_of(op).role(1) == "weights"


def _depth(op: Op, left: Shape | None, right: Shape | None) -> int | None:
    """Return how many products a sum has, but for a kernel's positions; None where that is not known."""
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    if _is_convolution(op):
        sizes: Sequence[int | str] = [right[1]] if all(isinstance(tap, int) for tap in right) else []
    else:
        sizes = [right[-2], left[-1]]
    found = next((size for size in sizes if isinstance(size, int)), 0)
    return found if found > 0 else None


def _depth_axis(op: Op, index: int, rank: int) -> int:
    """Return the axis of an operand over which products are added."""
    if not _is_convolution(op):
        return rank - 2 if index else rank - 1
    return 1 if index or op.attributes.get("data_format", "channels_first") == "channels_first" else rank - 1


def _broadcast_shape(op: Op, index: int, shape: Shape, rank: int) -> tuple[int, ...]:
    """Return a shape in which zero points meet the rows (index 0), columns or output channels (1) that they belong to."""
    if all(size == 1 for size in shape):
        return ()
    sizes = tuple(reshape_sizes(shape))
    if len(sizes) > 1:
        return sizes
    if _is_convolution(op):
        return (-1, *[1] * (rank - 1))
    return sizes if index else (-1, 1)
