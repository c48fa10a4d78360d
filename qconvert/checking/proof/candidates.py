"""Whether an operator of the source and one of the result are one: they have the same operands, attributes and results, but for how they
compute, the order of axes, and the type that stores the same integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.arithmetic import accumulator_scale, scale_and_zero_point
from qconvert.checking.proof.elements import Followed, is_clipped_sum
from qconvert.checking.same_codes import has_byte_codes, has_scales_along, limit_steps, stored_offset
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, drop_keys, equal_data
from qconvert.kernels.kernel import activated_range
from qconvert.operators import kind_of
from qconvert.operators.properties import ELEMENTWISE, Suits, permutation
from qconvert.rules.differences import operator_differences

#: What a bias may be off a tie by rounding alone, in steps of the accumulator.
_CLOSE = 1e-3


def compare_constants(before: Tensor, after: Tensor, perm: Sequence[int]) -> str:
    """In words, how constants differ in what they mean; "" if they do not. Constants next to data may be turned with these."""
    if not perm and before.shares_quantization(after) and equal_data(before.data, after.data):
        return ""
    for word, a, b in zip(("values", "scales"), _remove_zero_point(before), _remove_zero_point(after), strict=True):
        if perm and max(a.ndim, b.ndim) > len(perm):
            return f"has other {word}"
        if perm and a.ndim and b.ndim:
            a, b = (side.reshape((1,) * (len(perm) - side.ndim) + side.shape) for side in (a, b))
            a = a.transpose(perm)
        elif a.size == b.size == 1:
            a, b = a.reshape(()), b.reshape(())
        alike = a.shape == b.shape or word == "scales"
        if not alike or not (np.array_equal(a, b, equal_nan=a.dtype.kind == "f") or (word == "scales" and bool(np.all(a == b)))):
            return f"has other {word}"
    return ""


def _remove_zero_point(tensor: Tensor) -> tuple[Array, Array]:
    """A constant's integers from the zero point, and its scales, which broadcast against them; or plain values and 0."""
    assert tensor.data is not None
    if tensor.quantization is None:
        return tensor.data, np.zeros(())
    scale, point = scale_and_zero_point(tensor.quantization, tensor.data.shape)
    if "int" not in tensor.dtype:
        return tensor.data, np.asarray(scale)
    wide = {1: np.int16, 2: np.int32}.get(tensor.data.dtype.itemsize, np.int64)
    return tensor.data.astype(wide) - point.astype(wide), np.asarray(scale)


def is_rounded_bias(first: Tensor, second: Tensor, scales: Sequence[Quantization | None]) -> bool:
    """Whether the bias of one of two products is that of the other, rounded to the scale of the accumulator.

    Args:
        first, second: constants.
        scales: the quantizations of data and weights.
    """
    data, weights = scales
    if first.is_quantized == second.is_quantized or first.shape != second.shape or data is None or weights is None:
        return False
    apart = np.abs(first.float_values() - second.float_values())
    return bool((apart <= (0.5 + _CLOSE) * accumulator_scale(data, weights)).all())


#: Attributes that say how operators compute, or the order of their axes, but not what they compute.
_HOW = ("arithmetic", "data_format", "activation", "axis")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An operator of the source that one of the result may be: of one kind, with operands of the same roots.

    Attributes:
        source, result: the graphs, with what is known of their tensors.
        op, other: the operator of each.
    """

    source: Followed
    op: Op
    result: Followed
    other: Op

    def find_permutation(self) -> tuple[tuple[int, ...] | None, str]:
        """The transposition of the source's results that gives the result's, if the operators are one; else None, and why not."""
        if len(self.op.inputs) != len(self.other.inputs) or len(self.op.outputs) != len(self.other.outputs):
            return None, "it has other operands"
        words = ""
        for perm in self.list_orders():
            reason = self._compare(perm)
            if not reason:
                return perm, ""
            words = words or reason
        return None, words or "its data are in another order"

    def list_orders(self) -> Iterator[tuple[int, ...]]:
        """Transpositions of the data that may be meant."""
        layout = kind_of(self.other).layout.suits
        rank = (self.result.graph[self.other.inputs[0]].rank if self.other.has(0) else 0) or 0
        if layout is Suits.DECIDES:
            wanted = str(self.other["data_format"])
            yield tuple(range(rank)) if wanted == self.op["data_format"] else permutation(wanted, rank)
            return
        for before, after in zip(self.op.inputs, self.other.inputs, strict=True):
            own, given = self.source.elements.get(before), self.result.elements.get(after)
            if own is not None and given is not None and (perm := own.find_permutation(given)) is not None:
                if layout is not Suits.PINNED or perm == tuple(range(len(perm))):
                    yield perm
        yield tuple(range(rank))

    def describe_other_codes(self) -> str:
        """In words, which codes of the result's data are other ones than those of the source's; "" if none is."""
        sides = zip(map(self.source.elements.get, self.op.inputs), map(self.result.elements.get, self.other.inputs), strict=True)
        found = (self.source.describe_other_codes(own, given) for own, given in sides if own is not None and given is not None)
        return next(filter(None, found), "")

    def is_likely(self) -> bool:
        """Whether the operators are one although codes of their data differ: by their names, or products by their weights."""
        named = any(a and (b == a or b.startswith(f"{a}/")) for a, b in zip(self.op.outputs[:1], self.other.outputs[:1], strict=False))
        return named or (kind_of(self.other).sums_products and self.result.graph[self.other.inputs[1]].data is not None)

    def has_other_scales(self) -> bool:
        """Whether the data of operators that are one have other scales in the result."""
        for before, after in zip(self.op.inputs, self.other.inputs, strict=True):
            if before in self.source.elements and after in self.result.elements:
                scales = [tensor.quantization for tensor in (self.source.graph[before], self.result.graph[after])]
                if scales[0] is not None and scales[1] is not None and not np.array_equal(scales[0].scale, scales[1].scale):
                    return True
        return False

    def _is_decided_by_codes(self) -> bool:
        """Whether what an operator gives is compared for all codes of its data, whatever these mean on either side."""
        graphs = ((self.source.graph, self.op), (self.result.graph, self.other))
        return kind_of(self.other).layout is ELEMENTWISE and all(
            has_byte_codes(graph[name]) for graph, op in graphs for name in op.names if name
        )

    def measure_bias_distance(self) -> float:
        """How far the biases of two products are apart at most, in steps of the result; 0 for equal ones and for other operators."""
        quantization = self.result.graph[self.other.outputs[0]].quantization if kind_of(self.other).sums_products else None
        if quantization is None or not (self.op.has(2) and self.other.has(2)):
            return 0.0
        biases = self.source.graph[self.op.inputs[2]], self.result.graph[self.other.inputs[2]]
        if any(item.data is None for item in biases) or not compare_constants(*biases, ()):
            return 0.0
        return float(np.abs(np.subtract(*(item.float_values() for item in biases))).max(initial=0) / quantization.scale.min())

    def find_result_permutation(self, name: str, perm: Sequence[int]) -> tuple[int, ...] | None:
        """How a result of the source's operator is turned whose data are: axes that go are left out; None where it is not known."""
        count, rank = len(perm), self.source.graph[name].rank or 0
        if rank == count:
            return tuple(perm)
        if tuple(perm) == tuple(range(count)):
            return tuple(range(rank))
        if kind_of(self.op).layout.suits is not Suits.REDUCES or self.op.attributes.get("keepdims", 1):
            return None
        axes = self.source.graph.constant(self.op.inputs[1]) if self.op.has(1) else None
        named = [int(self.op["axis"])] if "axis" in self.op.attributes else [] if axes is None else axes.reshape(-1).tolist()
        left = [axis for axis in range(count) if axis not in {int(item) % count for item in named}]
        return tuple(left.index(axis) for axis in perm if axis in left)

    def _compare(self, perm: tuple[int, ...]) -> str:
        """In words, in what the operators differ apart from how they compute; "" in nothing."""
        for index, (before, after) in enumerate(zip(self.op.inputs, self.other.inputs, strict=True)):
            if bool(before) != bool(after):
                return f"input {index} is given on one side alone"
            if before and (reason := self._compare_operand(index, perm)):
                return f"input {index} {reason}"
        what = (replace(op, attributes=drop_keys(op.attributes, *_HOW)) for op in (self.op, self.other))
        if words := next(operator_differences(*what), "") or compare_axes(self.op, self.other, perm):
            return words
        for before, after in zip(self.op.outputs, self.other.outputs, strict=True):
            turned = self.find_result_permutation(before, perm) if before and after else None
            if before and after and stored_offset(self.source.graph[before], self.result.graph[after], turned) is None:
                return "its result has another quantization"
            if before and after and not self._has_shape(before, after, perm):
                return "its result has another shape"
        sides = (self.source.graph, self.op), (self.result.graph, self.other)
        if all(is_clipped_sum(op, graph) for graph, op in sides):
            return ""
        limits = [_activation_limits(graph, op) for graph, op in sides]
        return "" if limits[0] == limits[1] else "another range of its result is left"

    def _compare_operand(self, index: int, perm: tuple[int, ...]) -> str:
        """In words, in what an operand is another one; "" if it is the source's."""
        before, after = self.source.graph[self.op.inputs[index]], self.result.graph[self.other.inputs[index]]
        if before.data is not None and after.data is not None:
            return self._compare_constants(index, before, after, perm)
        own, given, rank = self.source.elements.get(before.name), self.result.elements.get(after.name), before.rank or 0
        if own is None or given is None:
            return "is constant on one side alone"
        turned = perm if len(perm) == rank else tuple(range(rank))
        broadcasts = kind_of(self.other).layout.suits is Suits.BROADCASTS
        stretched = broadcasts and len(perm) != rank and perm != tuple(range(len(perm))) and before.static_shape != (1,) * rank
        if stretched or not own.is_transposed(given, turned):
            return "has its elements in another order"
        if (before.quantization is None) != (after.quantization is None):
            return "is quantized on one side alone"
        if before.quantization is None or after.quantization is None:
            return "" if before.dtype == after.dtype else f"is {after.dtype}, not {before.dtype}"
        if not np.array_equal(before.quantization.scale, after.quantization.scale) and not self._is_decided_by_codes():
            return "is on another scale"
        if not has_scales_along(before.quantization, after.quantization, turned):
            return "has its scales along another axis"
        points = before.quantization.zero_point - own.offset, after.quantization.zero_point - given.offset
        return "" if np.array_equal(*points) else "has another zero point"

    def _compare_constants(self, index: int, before: Tensor, after: Tensor, perm: tuple[int, ...]) -> str:
        """In words, in what a constant operand is another one; "" if it means the same."""
        assert before.data is not None and after.data is not None
        kind = kind_of(self.other)
        if kind.layout.axes == index and kind.role(index) == "index":
            named = sorted(perm.index(int(axis) % len(perm)) for axis in before.data.reshape(-1))
            return "" if named == sorted(int(axis) % len(perm) for axis in after.data.reshape(-1)) else "names other axes"
        if kind.layout.per_axis == index:
            each = before.data.reshape(-1, len(perm))[:, perm].reshape(-1)
            return "" if np.array_equal(each, after.data.reshape(-1)) else f"has other {kind.layout.word}"
        if index == 2 and kind.sums_products:
            if is_rounded_bias(before, after, [self.result.graph[name].quantization for name in self.other.inputs[:2]]):
                return ""
        return compare_constants(before, after, perm if kind.layout.suits is Suits.BROADCASTS else ())

    def _has_shape(self, before: str, after: str, perm: tuple[int, ...]) -> bool:
        """Whether a result has the shape of the source's, turned; nothing is said of one that is not followed."""
        turned = self.find_result_permutation(before, perm)
        return turned is None or transpose_shape(self.source.graph[before], turned) == self.result.graph[after].shape


def moves_integers(graph: Graph, op: Op) -> bool:
    """Whether an operator is data movement, or a choice of stored integers of one quantization, or a Concat of plain values."""
    kind = kind_of(op)
    if kind.rule in ("move", "state"):
        return True
    result = graph[op.outputs[0]] if op.outputs else None
    if result is None or not kind.chooses or op.attributes.get("activation", ""):
        return False
    if not result.is_quantized and "axis" not in kind.attributes:  # of two float values each runtime chooses another one if one is NaN
        return False
    return all(graph[name].shares_quantization(result) for name in kind.data(op))


def compare_axes(op: Op, other: Op, perm: tuple[int, ...]) -> str:
    """In words, along which other axis an operator computes whose data are transposed; "" if it is the source's."""
    if not perm or any("axis" not in kind_of(item).attributes for item in (op, other)):
        return ""
    axes = [int(item["axis"]) % len(perm) for item in (op, other)]
    return "" if perm.index(axes[0]) == axes[1] else f"axis {axes[0]} -> {axes[1]}"


def transpose_shape(tensor: Tensor, perm: Sequence[int]) -> tuple[int | str, ...] | None:
    """The sizes of a tensor with its axes in another order; None where they are not known."""
    return None if tensor.shape is None else tuple(tensor.shape[axis] for axis in perm)


def _activation_limits(graph: Graph, op: Op) -> Any:
    """What a fused activation and the limits of the result's quantization leave: integers from the zero point, or the activation's name
    and integers from the lowest."""
    if not op.outputs or not op.outputs[0]:
        return ""
    tensor = graph[op.outputs[0]]
    if tensor.per_tensor is None:
        return op.attributes.get("activation", ""), limit_steps(tensor) if tensor.is_quantized else ()
    return tuple(limit - tensor.per_tensor.point for limit in activated_range(graph, op))
