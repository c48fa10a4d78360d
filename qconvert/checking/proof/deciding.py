"""Whether an operator gives the same integers on both sides for every input: as the rows of their kernels say (kernels/), or from a run
with all codes of its operands (running_codes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from qconvert.arithmetic import split_product
from qconvert.checking.proof.classes import EQUAL_CLASSES, ERROR_BOUND, MERGED, Proved
from qconvert.checking.proof.correspondence import Pair, Trace
from qconvert.checking.proof.float_bounds import describe_bound
from qconvert.checking.proof.groups import Group
from qconvert.checking.same_codes import stored_offset
from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Op, integer_range
from qconvert.kernels import Kernel, Kernels
from qconvert.kernels.accumulators import may_wrap
from qconvert.kernels.products import ExactProducts, Requantizer, SumReference, rounded_bias
from qconvert.kernels.proofs import (
    WITH_16_BITS,
    compare_products,
    decided_averages,
    decided_integers,
    find_float_limits,
    floats_in_order,
    integers_for_all,
    integers_for_sums,
    integers_for_windows,
    ways_for_all,
)
from qconvert.kernels.torch_forms import has_exact_form
from qconvert.operators import kind_of

#: Codes of one operand of 8 bits, and of two.
_CODES, _PAIRS = 2**8, 2**16
#: Rules of kinds of which nothing is proved, and why.
_UNKNOWN = {
    "control": "it runs functions, whose operators are not compared",
    "opaque": "what it computes is not known",
}
#: Types whose numbers, times a scale, are rounded once to float32.
_FEW_BITS = ("bool", "int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16")
_REALS = "it computes float values, which runtimes round otherwise"
_ROUNDS_INPUTS = "it rounds real inputs, which its runtime divides by the scale, or multiplies by its inverse"
#: (graph, operator) -> the stored results for all codes of its operands, or None.
Run = Callable[[Graph, Op], "Array | None"]
#: (names of what a group reads, its tensor) -> the stored results for all codes of these, or None.
RunGroup = Callable[[Sequence[str], str], "Array | None"]
#: Makes what is found of an operator: (class, method, why).
Found = Callable[..., Proved]


@dataclass(frozen=True)
class Computed:
    """An operator of one side as its runtime computes it.

    Attributes:
        graph, op: the operator.
        readers: those of each tensor of the graph.
        kernels: those that compute it.
        run: what runs it for all codes of its operands.
        has_forms: whether the kernels are those for which forms of other kernels are made.
        format: of its file, by name.
        rounds_weights: whether the runtime rounds its float weights to int8.
    """

    graph: Graph
    op: Op
    readers: Mapping[str, Sequence[Op]]
    kernels: Kernels
    run: Run
    has_forms: bool = True
    format: str = ""
    rounds_weights: bool = False

    @cached_property
    def row(self) -> Kernel | None:
        """The row of its kernel."""
        return self.kernels.of(self.graph, self.op)

    @property
    def form(self) -> str:
        """The kernel whose integers its form in the file gives; "" for its own."""
        return str(self.op.attributes.get("arithmetic", ""))

    @property
    def arithmetic_name(self) -> str:
        """The name by which forms of other runtimes ask for its integers; "" if there is none."""
        own = self.row.arithmetic if self.row is not None else None
        return self.form or ("" if own is None else own(self.graph, self.op))

    @property
    def _reference(self) -> object:
        """What its kernel computes to the bit, in its own form; None if that is not known."""
        return self.row.reference if self.row is not None and not self.form else None

    @property
    def has_exact_form(self) -> bool:
        """Whether its form gives the integers of the kernel that it names for all data."""
        return has_exact_form(self.graph, self.op, self.format)

    @property
    def scales_data(self) -> bool:
        """Whether its kernel computes with scales of its data, as LiteRT's comparisons do."""
        return self._reference is not None and any(name and self.graph.is_quantized(name) for name in self.op.inputs)

    @property
    def requantizer(self) -> Requantizer | None:
        """How it rounds a sum of products; None if that is not known."""
        return self._reference if isinstance(self._reference, Requantizer) else None

    @property
    def of_integers(self) -> tuple[Graph, Op]:
        """The operator with the bias that its kernel adds, where it rounds a float one."""
        is_float = self.op.has(2) and not self.graph.is_quantized(self.op.inputs[2])
        bias = rounded_bias(self.graph, self.op) if is_float and self.row is not None and self.row.rounds_bias else None
        if bias is None:
            return self.graph, self.op
        name = f"{bias.name}/int32"
        return replace(self.graph, tensors={**self.graph.tensors, name: replace(bias, name=name)}), self.op.with_input(2, name)

    @property
    def is_merged(self) -> bool:
        """Whether its runtime may make one rounding of it and of the one before, so that nothing stores the integers between them."""
        if not self.kernels.merges_roundings or self.form or kind_of(self.op).rule != "convert":
            return False
        data, result = (self.graph[name] for name in (self.op.inputs[0], self.op.outputs[0]))
        if data.quantization is None or result.quantization is None or stored_offset(data, result) is not None:
            return False
        is_seen = data.name in self.graph.inputs or not {data.name, result.name}.isdisjoint(self.graph.outputs)
        return not is_seen and len(self.readers[data.name]) == 1

    def for_all_sums(self) -> Array | None:
        """Its integers for all sums of what it reduces, from the lowest: what the reference of its kernel gives, or the exact averages, if
        none is near a tie; None if sums do not say them all, or they are not known."""
        if isinstance(self._reference, SumReference):
            return integers_for_sums(self.graph, self.op, self._reference)
        if self.requantizer is not None:
            return integers_for_windows(self.graph, self.op, self.requantizer)
        tolerance = self.tolerance()
        if tolerance is None or self.row is None:
            return None
        return decided_averages(self.graph, self.op, tolerance, adds_floats=self.row.reference is None)

    @cached_property
    def for_all_codes(self) -> Array | None:
        """Its integers for all codes of its operands: what its form says, or the reference of its kernel; the exact values, if none is near
        a tie; or what it gives when it is run."""
        if self.form and self.has_exact_form:
            return integers_for_all(self.graph, self.op, None, WITH_16_BITS)
        if self.row is not None and self.row.reference is not None:
            ways = ways_for_all(self.graph, self.op, self.row, WITH_16_BITS)
            if len(ways) > 1:  # which of them it is depends on what is around it
                return None
            found = ways[0] if ways else None
        else:
            found = decided_integers(self.graph, self.op, self.kernels) if self.tolerance() is not None else None
        return self.run(self.graph, self.op) if found is None else found

    def tolerance(self) -> float | None:
        """How far its integers may be from the exact value before they are rounded; None where no row is about it, or its sums may wrap
        around."""
        tensor = self.graph[self.op.outputs[0]]
        if self.requantizer is not None and may_wrap(*self.of_integers):
            return None
        if self.row is None or not (self.row.kinds or self.row.tolerance) or tensor.dtype not in ("int8", "uint8"):
            return None
        if tensor.per_tensor is None:
            return None
        low, high = integer_range(tensor.dtype)
        steps = np.arange(low, high + 1, dtype=np.float64) - tensor.per_tensor.point
        steps = steps.reshape((1,) * ((tensor.rank or 1) - 1) + (-1,))
        return float(self.kernels.tolerance(self.graph, self.op, steps)[0].max(initial=0))


def decide(pair: Pair, trace: Trace, own: Computed, other: Computed) -> Proved:
    """The class of an operator of the result.

    Args:
        pair: the operator and the source's, in the form of comparisons.
        trace: whose graphs have both.
        own, other: the source's and the result's as they are computed.
    """
    name, output = pair.source.label, next(filter(None, pair.result.outputs), "")
    rule = kind_of(pair.result).rule
    found = partial(Proved, name, output)
    if pair.other:
        return found("R1", "256 codes", why=pair.other)
    if rule in _UNKNOWN:
        return found("?", why=_UNKNOWN[rule])
    for side in (own, other):
        if output and (fault := side.kernels.fault(side.graph, side.op)):
            return found("?", why=fault)
    is_compared = bool(output) and own.kernels is not other.kernels and _compares_floats(trace.result.graph, pair.result)
    if not output or (pair.moves and not pair.has_other_scales and not is_compared):  # without an output it writes a state as it is stored
        return found("E0", "identical parameters")
    if rule == "stored" and not pair.has_other_scales:  # the kind is the kernel, whose integers its form gives
        return found("E1", "form of the kernel")
    if not trace.result.graph[output].is_quantized:
        if not _is_exact(trace.result.graph, pair.result):
            if own.rounds_weights or other.rounds_weights:
                return found("?", why="its runtime rounds its float weights to int8")
            bound = describe_bound(trace.source, trace.result, pair)
            return found("A", ERROR_BOUND, bound) if bound else found("?", why=_REALS)
        if _is_the_same(own, other) or not any(side.scales_data for side in (own, other)):
            return found("E0", "identical parameters")
        return _decide_by_all_codes(found, own, other) or found("?", why="the results of its kernels are not known for all inputs")
    if rounds_floats(trace, pair):
        known = all(side.has_forms or not side.form for side in (own, other))
        return _decide_quantize(found, own, other) if known else found("?", why=_ROUNDS_INPUTS)
    item = _decide_by_kernels(found, own, other, pair)
    if item.class_ in (*EQUAL_CLASSES, "A") and (own.is_merged or other.is_merged):
        return found("?", why=MERGED)
    return item


def decide_clip(name: str, side: Computed, codes: Array) -> Proved:
    """The class of an operator of one side that is to clip the codes of its data and does nothing else.

    Args:
        name: the operator's.
        side: as it is computed.
        codes: what it is to make of each code of its data, from the lowest.
    """
    found, values = partial(Proved, name, side.op.outputs[0]), side.for_all_codes
    if values is None:
        return found("?", why="the integers of its kernel are not known for all inputs")
    return _decide_by_codes(found, codes, values.reshape(codes.shape), [side.graph[side.op.outputs[0]].dtype] * 2)


def decide_group(group: Group, trace: Trace, runs: tuple[RunGroup, RunGroup]) -> Proved:
    """The class of operators of the result that together compute a tensor of the source.

    Args:
        group: both sides' operators.
        trace: whose graphs have them.
        runs: what runs the operators of source and result for all codes of what they read.
    """
    graphs = trace.source.graph, trace.result.graph
    found = partial(Proved, group.source[-1].label, group.name)
    if group.is_aligned:
        values = [run(names, group.name) for run, names in zip(runs, zip(*group.inputs, strict=True), strict=True)]
        if values[0] is not None and values[1] is not None:
            return _decide_by_codes(found, values[0], values[1], [graph[group.name].dtype for graph in graphs])
    written = f"it is written as {format_count(len(group.result), 'operator')}"
    names = {name for ops in (group.source, group.result) for op in ops for name in op.outputs if name}
    is_float = any("float" in graph[name].dtype for graph in graphs for name in names if name in graph.tensors)
    return found("?", why=f"{written} of float values, which runtimes round otherwise" if is_float else written)


def _decide_by_kernels(found: Found, own: Computed, other: Computed, pair: Pair) -> Proved:
    """The class of an operator with a quantized result, by what its kernels give."""
    if own.row is None or other.row is None:
        return found("?", why="no kernel is known for it")
    for side in (own, other):
        if side.form and not side.has_forms:
            return found("?", why=f"its form has the integers of {side.form} in another set of kernels")
    if pair.has_other_scales:
        return _decide_by_all_codes(found, own, other) or found("?", why="its data have other scales")
    adds_floats = isinstance(own.requantizer, ExactProducts) and own.requantizer.takes(own.graph, own.op)
    if pair.lost and not (adds_floats and other.requantizer is not None):
        return _decide_by_tolerances(found, own, other, pair.lost, "source")
    if _is_the_same(own, other):
        return found("E0", "identical parameters")
    if (own.form or other.form) and own.arithmetic_name == other.arithmetic_name and own.has_exact_form and other.has_exact_form:
        return found("E1", "form of the kernel")
    if own.requantizer is not None and other.requantizer is not None:
        return _decide_products(found, (own.requantizer, other.requantizer), own, other)
    sums = own.for_all_sums(), other.for_all_sums()
    if sums[0] is not None and sums[1] is not None:
        return _decide_by_codes(found, sums[0], sums[1], [side.graph[side.op.outputs[0]].dtype for side in (own, other)], "sums")
    item = _decide_by_all_codes(found, own, other)
    if item is not None:
        return item
    is_unknown = own.requantizer is None and own.for_all_codes is None
    return _decide_by_tolerances(found, own, other, 0.0, "source" if is_unknown else "result")


def _decide_by_all_codes(found: Found, own: Computed, other: Computed) -> Proved | None:
    """The class of an operator by what both kernels give for all codes of its data; None where that is not known."""
    if own.for_all_codes is None or other.for_all_codes is None:
        return None
    return _decide_by_codes(found, own.for_all_codes, other.for_all_codes, [side.graph[side.op.outputs[0]].dtype for side in (own, other)])


def _is_the_same(own: Computed, other: Computed) -> bool:
    """Whether one kernel computes both, with the same types, quantizations and attributes, whatever stands around them."""
    if own.kernels is not other.kernels or own.row is not other.row or own.op.kind != other.op.kind:
        return False
    if own.kernels.merges_roundings or own.row is None or own.row.by_file:
        return False
    pairs = [(own.graph[a], other.graph[b]) for a, b in zip(own.op.names, other.op.names, strict=False) if a and b]
    same = all(a.shares_quantization(b) for a, b in pairs)
    return same and own.op.attributes == other.op.attributes and [*map(bool, own.op.names)] == [*map(bool, other.op.names)]


def _decide_by_tolerances(found: Found, own: Computed, other: Computed, lost: float, unknown: str) -> Proved:
    """The class of an operator whose integers are not compared one by one; of the `unknown` side they are not known."""
    allowed = own.tolerance(), other.tolerance()
    if allowed[0] is not None and allowed[1] is not None and allowed[0] + allowed[1] + lost < 1:
        why = f"its bias is rounded, by at most {lost:.2g} steps of the result" if lost else "its integers differ by at most one"
        return found("A", "tolerances", why)
    return found("?", why=f"the integers of the {unknown}'s kernel are not known for all inputs")


def _is_exact(graph: Graph, op: Op) -> bool:
    """Whether an operator without a quantized result gives the same bits everywhere: it computes on integers, or makes real numbers of
    few bits, whose product with the scale is rounded once."""
    given, results = ([graph[name] for name in names if name] for names in (op.inputs, op.outputs))
    converts = kind_of(op).rule == "convert" or "to" in kind_of(op).attributes
    if converts and given[0].dtype in _FEW_BITS and results[0].dtype == "float32":
        return True
    return kind_of(op).rule in ("index", "plain") and not any("float" in tensor.dtype for tensor in (*given, *results))


def _compares_floats(graph: Graph, op: Op) -> bool:
    """Whether an operator chooses float values by comparing them, which XNNPACK does with numbers below 2^-126 as zeros."""
    return kind_of(op).rounds_once and not kind_of(op).by_place and "float" in graph[op.outputs[0]].dtype


def rounds_floats(trace: Trace, pair: Pair) -> bool:
    """Whether an operator quantizes float values."""
    if kind_of(pair.result).rule != "convert":
        return False
    given, result = (trace.result.graph[name] for name in (pair.result.inputs[0], pair.result.outputs[0]))
    return result.is_quantized and not given.is_quantized


def _decide_quantize(found: Found, own: Computed, other: Computed) -> Proved:
    """The class of a Quantize of float numbers, by the limits between integers. NaN is none: each runtime makes something else of it."""
    if own.kernels is other.kernels and own.form == other.form:
        return found("E0", "identical parameters")
    limits = [find_float_limits(side.graph, side.op, None if side.form else side.row) for side in (own, other) if side.form or side.row]
    result = other.graph[other.op.outputs[0]]
    if len(limits) < 2 or limits[0] is None or limits[1] is None or result.quantization is None:
        return found("?", why=_ROUNDS_INPUTS)
    apart = np.abs(limits[0] - limits[1])
    differing = int(apart.sum())
    point = result.quantization.point - integer_range(result.dtype)[0]
    if other.form == "fused" and other.format == "tflite" and point:  # which has no float64 for the sum, see rewriting/torch_forms.py
        form = split_product(result.quantization.scale[0], point)
        differing += 0 if form is None else form.missed
    if not differing:
        return found("E1", "thresholds")
    place = int(apart.argmax())
    such = f", such as {floats_in_order(np.minimum(limits[0], limits[1]))[place]!s}" if apart.any() else ""
    return found("R1", "thresholds", f"{differing} of 4294967296 float32 numbers{such} become another integer")


def _decide_products(found: Found, kernels: tuple[Requantizer, Requantizer], own: Computed, other: Computed) -> Proved:
    result = other.of_integers
    source = (own.graph, own.op) if isinstance(kernels[0], ExactProducts) else result  # the bias of which kernels of integers add
    if not kernels[1].takes(*result) or not (source is result or kernels[0].takes(*source)):
        return found("?", why="its accumulator, bias or weights are none that the kernels' arithmetic is known for")
    if may_wrap(*result):
        return found("?", why="its accumulator may leave int32")
    if kernels[0] == kernels[1]:
        return found("E0", "identical parameters")
    difference = compare_products((*source, kernels[0]), (*result, kernels[1]))
    if difference is None:
        return found("?", why="the range of its accumulator is not known")
    if not difference.differing:
        return found("E1", "thresholds")
    channel, acc, before, after = difference.examples[0]
    share = f"{difference.differing} of {difference.total} accumulators"
    return found("R1", "thresholds", f"{share}, such as {acc} in channel {channel}: {before} in the source, {after} in the result")


def _decide_by_codes(found: Found, first: Array, second: Array, dtypes: list[str], of: str = "") -> Proved:
    """The class of an operator by its results for all that it can read: codes, pairs of them, or what `of` says."""
    along_axis = first.shape in ((_PAIRS, 2), (3 * _PAIRS, 3))  # results of two elements, or three, or of one
    count = len(first) if along_axis else first.size
    method = f"{count} {of or ('codes' if count <= _CODES or first.ndim == 1 else 'pairs' if count <= _PAIRS else 'triples')}"
    lowest = [0 if dtype == "bool" else integer_range(dtype)[0] for dtype in dtypes]
    a, b = (values.astype(np.int64) - least for values, least in zip((first, second), lowest, strict=True))
    if a.shape != b.shape:
        return found("?", why="its constants have other values")
    if np.array_equal(a, b):
        return found("E1", method)
    off = np.abs(a - b)
    return found("R1", method, f"{int((off > 0).sum())} of {method} differ, by at most {int(off.max())}")
