"""Scales that kernels want of operands and results.

match_scales: results get the scales that the target's kernels fix, and operands one common scale where kernels demand it.

A Requantize stands only where scales differ. Before Concat, Max, Min, Where and Clip it is exact, since these move or compare: what they
give is rounded once either way; constants are rounded here. After a Softmax or a Sigmoid it rounds a second time. An average with a scale
of its own becomes a depthwise convolution by 1 / elements of the window, which is rounded once, ties to even; that is exact where the
average rounds so and float32 holds 1 / elements. Where padding does not count it stays, with a Requantize after.
A constant of zeros in an Add takes the scale of what it is added to, which is exact: its own may be any, and the larger it is, the fewer
bits LiteRT's kernel has for the other operand.
Operands of an operator that computes, such as Add, meet on the finest of their quantizations that holds all of them, and are rounded once
more.

quantize_operands: real constants next to quantized data become quantized too, so that the operator runs on integers.

A single value c is exact: the integer 1 or -1 with a quantization of scale |c|, or 64 and c / 64 for slopes of a PRelu. So are values that
an operator chooses or copies (Concat, Max, Where): they are rounded to the result's quantization. A list of values gets a symmetric 8-bit
quantization (16-bit next to 16-bit data), stored as unsigned next to unsigned data, and the note says the largest error. A division by
constants becomes a multiplication by their reciprocals. Quantized operands of 8 bits next to data of int16 become int16, less their zero
points, which is exact: one operator reads one type.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import affine_range, dequantize, quantize
from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.operators import kind_of
from qconvert.operators.sizes import channel_count
from qconvert.passes.quantizations.scales_and_costs import activation_cost, cost, tensor_cost
from qconvert.passes.stored_types import SIGNED, UNSIGNED, shift_to_dtype
from qconvert.plugins import Change, Cost, PassResult, Target, describe_worst
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import requantize_tensor
from qconvert.rewriting.torch_forms import add_windows


def match_scales(graph: Graph, target: Target | None) -> PassResult:
    """Insert what a target's kernels ask for: results with the quantization that they fix, sides with one quantization."""
    if target is None or not target.kernels.kinds(lambda row: bool(row.result or row.one_quantization)):
        return graph, ()
    matching = _Matching(graph, target)
    for op in matching:
        matching.replace(op, *matching.match_scales(op))
    notes = [_describe_change(key, text, matching) for key, text in _TEXTS.items() if matching.counts[key]]
    return (matching.finish(), tuple(notes)) if notes else (graph, ())


_WINDOWS = "AveragePool to another scale are depthwise convolutions by 1 / elements of the window"
#: What is done, in the order in which it is told; stored constants are rounded as the source rounds them, but the file holds other values.
_TEXTS = {
    "before": "Requantize before operators whose operands must share a scale",
    "averages": _WINDOWS,
    "tied_averages": f"{_WINDOWS}: ties go to even, or to where float32's 1 / elements rounds them",
    "stored": "constant: are stored, before they are concatenated, with the scale and zero point of the result",
    "zeros": "constant: hold zeros, with the scale of the other operand",
    "met": "operand: share a scale with others of its operator: one more rounding",
    "rounded": "Requantize after operators whose kernels fix the scale: a second rounding",
}
_EXACT = ("before", "averages", "zeros")


def _describe_change(key: str, text: str, matching: _Matching) -> Change:
    costs = tuple(matching.costs[key])
    cost = f"; {describe_worst(costs)}" if costs else ""
    count, (noun, _, words) = matching.counts[key], text.partition(": ")  # kinds of operators have no plural
    said = format_count(count, noun, words) if noun in ("constant", "operand") else f"{count} {text}"
    return Change(f"{said}{cost}", exact=key in _EXACT, costs=costs)


class _Matching(Rewriter):
    def __init__(self, graph: Graph, target: Target) -> None:
        super().__init__(graph)
        self._target = target
        self.counts: Counter[str] = Counter()
        self.costs: dict[str, list[Cost]] = defaultdict(list)

    def match_scales(self, op: Op) -> tuple[Op, ...]:
        """Return the operator with what it needs after it; emit what it needs in front."""
        result = self.graph[op.name] if op.outputs and op.name else None
        if result is None or result.quantization is None:
            return (op,)
        op = self._scaled_zeros(op)
        fixed = self._target.kernels.fixed_result(self.graph, op)
        if fixed is not None:
            return self._requantize_result(op, result, replace(result, quantization=fixed[1]))
        sides = self._target.kernels.one_quantization(op, result.dtype)
        if sides != "all":
            return (self._unify_scales(op, None) if sides == "data" else op,)
        if kind_of(op).chooses or kind_of(op).clips:  # both commute with rounding
            return (self._join(op, result),)
        if kind_of(op).averages and kind_of(op).has_windows and self._is_convolution(op, result):
            return (self._convolve(op, result),)
        if len(self._data(op)) > 1:
            met = self._unify_scales(op, result)
            return self._requantize_result(met, result, self[met.inputs[0]])
        data = self.graph[op.inputs[0]]
        return (op,) if data.quantization is None else self._requantize_result(op, result, data)

    def _scaled_zeros(self, op: Op) -> Op:
        """Return the operator; of a sum with an operand of zeros, with these on the quantization of the other operand."""
        if not kind_of(op).sum_sign:
            return op
        names = list(op.inputs)
        for index, name in enumerate(op.inputs):
            tensor, other = self.graph[name], self.graph[op.inputs[1 - index]]
            q, quantization = tensor.per_tensor, other.per_tensor
            if tensor.data is None or q is None or quantization is None or other.is_constant or tensor.dtype != other.dtype:
                continue
            if not tensor.shares_quantization(other) and (tensor.data == q.zero_point).all():
                zeros = np.full_like(tensor.data, quantization.point)
                quantization = replace(quantization, quant_min=None, quant_max=None)
                names[index] = self.constant(f"{name}/zeros", zeros, tensor.dtype, quantization)
                self.counts["zeros"] += 1
        return replace(op, inputs=tuple(names))

    def _requantize_result(self, op: Op, result: Tensor, like: Tensor) -> tuple[Op, ...]:
        """Return the operator with its result with the quantization of `like`, and what brings it from there to its own."""
        wanted = like.quantization
        if wanted is None or like.shares_quantization(result):
            return (op,)
        name = self.add(f"{result.name}/kernel_scale", result, dtype=like.dtype, quantization=wanted)
        self.counts["rounded"] += 1
        if result.quantization is not None:
            self._add_cost("rounded", activation_cost(result.name, _limit_to_kernel(result, wanted), result.dtype, wanted))
        return replace(op, outputs=(name, *op.outputs[1:])), op.derive("Requantize", (name,), (result.name,))

    def _is_convolution(self, op: Op, result: Tensor) -> bool:
        """Whether an average is one of the same count of elements everywhere, with another quantization than its data."""
        data = self.graph[op.inputs[0]]
        counts = not any(op["pads"]) or bool(op["count_include_pad"])
        plain = op["auto_pad"] == "NOTSET" and not op["ceil_mode"] and len(op["kernel_shape"]) == 2
        known = data.rank == 4 and isinstance(self._channels(op), int)
        same = data.quantization is None or data.shares_quantization(result)
        return counts and plain and known and not same and data.dtype == result.dtype

    def _channels(self, op: Op) -> int | str:
        return channel_count(op, self.graph[op.inputs[0]].shape or ())

    def _convolve(self, op: Op, result: Tensor) -> Op:
        channels, window = int(self._channels(op)), tuple(op["kernel_shape"])
        ones = np.ones((channels, 1, *window), "uint8" if result.dtype == "uint8" else "int8")
        kept = {name: op[name] for name in ("strides", "pads", "data_format", "activation")}
        is_tied = bool(op["arithmetic"]) or not np.log2(np.prod(window)).is_integer()
        self.counts["tied_averages" if is_tied else "averages"] += 1
        return add_windows(self, op.inputs[0], ones, 1 / int(np.prod(window)), result.name, op.source).with_attributes(**kept)

    def _join(self, op: Op, result: Tensor) -> Op:
        """Return the operator with every operand with the quantization of the result."""
        names = list(op.inputs)
        for index, name in enumerate(names):
            tensor = self.graph.tensors.get(name)
            if tensor is None or tensor.quantization is None or tensor.shares_quantization(result):
                continue
            joined = requantize_tensor(tensor, result.require_quantization(), result.dtype)
            names[index] = self.add(f"{name}/{result.name}_scale", joined, data=joined.data)
            if tensor.is_constant:
                self.counts["stored"] += 1
            else:
                self.emit(op.derive("Requantize", (name,), (names[index],)))
                self.counts["before"] += 1
        return replace(op, inputs=tuple(names))

    def _unify_scales(self, op: Op, result: Tensor | None) -> Op:
        """Return the operator with all data on one quantization, that holds what they and the result, if it is given, hold."""
        data = [tensor for tensor in self._data(op) if tensor.quantization is not None]
        quantization = _common_quantization(data if result is None else [*data, result])
        moved: dict[str, str] = {}
        for tensor in data:
            if quantization is None or tensor.quantization is None or tensor.quantization == quantization or tensor.name in moved:
                continue
            met = requantize_tensor(tensor, quantization)
            moved[tensor.name] = self.add(f"{tensor.name}/common_scale", met, data=met.data)
            self.counts["met"] += 1
            if tensor.is_constant:
                self._add_cost("met", tensor_cost(tensor, met))
            else:
                self.emit(op.derive("Requantize", (tensor.name,), (moved[tensor.name],)))
                self._add_cost("met", activation_cost(tensor.name, tensor.quantization, tensor.dtype, quantization))
        return op.with_names(moved) if moved else op

    def _data(self, op: Op) -> list[Tensor]:
        return [self[name] for name in kind_of(op).moved_inputs(op) if name]

    def _add_cost(self, step: str, cost: Cost | None) -> None:
        self.costs[step] += [cost] if cost is not None else []


def _limit_to_kernel(result: Tensor, kernel: Quantization) -> Quantization:
    """Return the result's quantization, without the values that a kernel whose results have another quantization never gives."""
    q = result.require_quantization()
    if not q.is_per_tensor:
        return q
    ends = [float(limits[0]) for limits in affine_range(kernel, result.dtype)]
    low, high = (int(quantize(np.array(end), q, result.dtype)) for end in ends)
    return replace(q, quant_min=low, quant_max=high)


def _common_quantization(tensors: Sequence[Tensor]) -> Quantization | None:
    """Return the finest of the tensors' quantizations that holds the ranges of all, or a new one; None where they have several types or
    scales."""
    quantizations = [found for tensor in tensors if (found := tensor.per_tensor) is not None]
    dtype = tensors[0].dtype if tensors else ""
    if len(quantizations) != len(tensors) or len(quantizations) < 2 or any(tensor.dtype != dtype for tensor in tensors):
        return None
    ranges = [affine_range(quantization, dtype) for quantization in quantizations]
    lowest, highest = min(float(low.min()) for low, _ in ranges), max(float(high.max()) for _, high in ranges)
    holding = [
        quantization
        for quantization, (low, high) in zip(quantizations, ranges, strict=True)
        if float(low.min()) <= lowest and float(high.max()) >= highest
    ]
    if holding:
        return min(holding, key=lambda quantization: quantization.step)
    bottom, top = integer_range(dtype)
    if all(quantization.is_symmetric for quantization in quantizations):
        return max(quantizations, key=lambda quantization: quantization.step)
    scale = np.float32((highest - lowest) / (top - bottom))
    point = int(np.clip(bottom - np.rint(lowest / scale), bottom, top))
    return Quantization.per_tensor(float(scale), point)


#: The integer of a PRelu's only slope. LiteRT's PRELU rounds data times slope twice, first to parts of a step, which are finer for larger
#: integers: its results are up to 0.75 off with the integer 1 (measured with LiteRT 2.3).
_SLOPE = 64


def quantize_operands(graph: Graph, target: Target | None) -> PassResult:
    """Change operators with a quantized result, at least one quantized operand, and real constants for the rest."""
    rewriter = Rewriter(graph)
    count, widened, costs = 0, 0, list[Cost]()
    inverted = False
    for old in rewriter:
        op, narrow, names = old, _narrow_operands(graph, old), _real_constants(graph, old, target)
        if names:
            count += len(names)
            inverted |= _divides(op)
            op, found = _quantize_constants(rewriter, op, names)
            costs += found
        for name in narrow:
            new = _widen_to_int16(rewriter, graph[name])
            op = op.with_names({name: new})
            widened += 1
        if op is not old:
            rewriter.replace(old, op)
    wide = (
        (Change(f"{format_count(widened, 'operand')} of 8 bits that are combined with data of 16 bits become 16 bits wide", exact=True),)
        if widened
        else ()
    )
    if not count:
        return rewriter.finish(), wide
    words = f"{format_count(count, 'float operand')} of quantized operators {format_verb(count, 'are quantized')}"
    note = Change(f"{words}, {describe_worst(costs)}", costs=tuple(costs)) if costs else Change(words, exact=not inverted)
    return rewriter.finish(), (*wide, note)


def _divides(op: Op) -> bool:
    """Whether an operator becomes a multiplication by reciprocals."""
    return kind_of(op).product_sign < 0


def _multiplied(op: Op) -> Op:
    return replace(op, kind="Mul") if _divides(op) else op


def _runs_on_integers(op: Op, dtype: str, target: Target | None) -> bool:
    """Whether there is an integer kernel to gain, for data of as many bits."""
    if target is None:
        return True
    types = target.kernels.types(_multiplied(op))
    return types is not None and (not types or not {dtype, f"u{dtype}", dtype.removeprefix("u")}.isdisjoint(types))


def _real_constants(graph: Graph, op: Op, target: Target | None) -> list[str]:
    kind = kind_of(op)
    if kind.rule != "real" or kind.sums_products:
        return []
    result = graph[op.name]
    if not result.is_quantized or not _runs_on_integers(op, result.dtype, target):
        return []
    operands = [graph[name] for name in kind.data(op)]
    real = [tensor for tensor in operands if not tensor.is_quantized]
    known = all(tensor.dtype == "float32" and tensor.data is not None and np.isfinite(tensor.data).all() for tensor in real)
    if not known or len(real) == len(operands):
        return []
    if _divides(op) and (op.inputs[0] in (tensor.name for tensor in real) or not all(map(_has_reciprocals, real))):
        return []
    return [tensor.name for tensor in real]


def _has_reciprocals(tensor: Tensor) -> bool:
    """Whether float32 holds 1 / value of each value of a constant, which it does not of 0 and of most subnormal ones."""
    with np.errstate(divide="ignore", over="ignore"):
        return tensor.data is not None and bool(np.isfinite(np.float32(1) / tensor.data).all())


def _narrow_operands(graph: Graph, op: Op) -> list[str]:
    """Return the quantized tensors of 8 bits that an operator reads as data next to int16, weights left out."""
    kind = kind_of(op)
    if kind.rule != "real" or kind.has_weights or not op.outputs or graph[op.name].dtype != "int16":
        return []
    operands = [graph[name] for name in dict.fromkeys(kind.data(op))]
    if all(tensor.is_constant or tensor.dtype != "int16" for tensor in operands):
        return []
    return [tensor.name for tensor in operands if tensor.dtype in ("int8", "uint8") and tensor.per_tensor is not None]


def _widen_to_int16(rewriter: Rewriter, tensor: Tensor) -> str:
    """Add a tensor as int16, less its zero point."""
    quantization = Quantization.per_tensor(tensor.require_quantization().step)
    if tensor.is_constant:
        return rewriter.constant(f"{tensor.name}/int16", tensor.steps().astype(np.int16), quantization=quantization)
    wide = rewriter.add(f"{tensor.name}/int16", replace(tensor, dtype="int16", quantization=quantization))
    rewriter.emit(Op("Requantize", (tensor.name,), (wide,)))
    return wide


def _quantize_constants(rewriter: Rewriter, op: Op, names: list[str]) -> tuple[Op, list[Cost]]:
    """Return the operator with quantized constants in the place of those of these names, and what they cost."""
    renamed: dict[str, str] = {}
    costs: list[Cost] = []
    result = rewriter[op.name]
    dtype = "int16" if result.dtype in ("int16", "uint16") else "int8"
    for name in names:
        data = rewriter[name].data
        assert data is not None
        values = 1 / data.astype(np.float64) if _divides(op) else data.astype(np.float64)
        if kind_of(op).chooses and result.per_tensor is not None:
            stored = quantize(values, result.per_tensor, result.dtype)
            renamed[name] = rewriter.constant(f"{name}/{dtype}", stored, result.dtype, result.quantization)
            continue
        quantization, stored = _quantization(values, dtype, _SLOPE if op.kind == "PRelu" else 1)
        renamed[name] = rewriter.constant(f"{name}/{dtype}", stored, dtype, quantization)
        if result.dtype in SIGNED:
            rewriter.define(shift_to_dtype(rewriter[renamed[name]], UNSIGNED[dtype]))
        error = dequantize(stored, quantization) - values
        if np.abs(error).max(initial=0.0) > 1e-6 * quantization.step:  # else only the scale's own rounding to float32
            found = cost(name, values, error, quantization.scale)
            costs += [found] if found is not None else []
    return _multiplied(op).with_names(renamed), costs


def _quantization(values: Array, dtype: str, one: int) -> tuple[Quantization, Array]:
    """Return a symmetric quantization of values and their integers: `one` for a single value, whose scale is exact."""
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    steps = one if np.isin(np.abs(values), (0.0, largest)).all() else integer_range(dtype)[1]
    quantization = Quantization.per_tensor(largest / steps)
    return quantization, quantize(values, quantization, dtype)
