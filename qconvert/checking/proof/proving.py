"""prove(): which operators of a result give the source's integers for every input, and whether its outputs do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Unpack

import numpy as np

from qconvert.arguments import with_checked_arguments
from qconvert.arithmetic import dequantize
from qconvert.checking.comparison_forms import fix_sizes, to_comparison_form
from qconvert.checking.file_in_runtime import Side, sides_of
from qconvert.checking.outputs import Border
from qconvert.checking.proof.classes import EQUAL_CLASSES, Proof, Proved
from qconvert.checking.proof.correspondence import NOT_TRACED, Trace
from qconvert.checking.proof.deciding import Computed, Run, decide, decide_clip, decide_group, rounds_floats
from qconvert.checking.proof.elements import Elements, Followed, clip_elements
from qconvert.checking.proof.groups import collect_operators
from qconvert.checking.proof.running_codes import run_all_codes, run_group
from qconvert.checking.same_codes import has_byte_codes
from qconvert.conversion.in_memory import Model, as_files
from qconvert.conversion.loading import read_literal_graph
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, numpy_dtype
from qconvert.kernels import Kernels
from qconvert.kernels.products import rounded_bias
from qconvert.operators import kind_of
from qconvert.plugins import runtimes
from qconvert.plugins.options import ReadOptions
from qconvert.rewriting import Rewriter
from qconvert.rewriting.parts import trace_back

#: Ways in which averages round that a file's metadata may state of a plain one (passes/restate_attributes.py).
_TIES = ("ties_up", "ties_away")
#: Float types of fewer bits than those in which networks compute elsewhere.
_SHORT_FLOATS = ("float16", "bfloat16")
_OTHER_SIZES = "other operators correspond where sizes that are known only at run time are other ones"


@with_checked_arguments
def prove(
    source: Model,
    result: Model,
    *,
    source_format: str = "",
    result_format: str = "",
    kernels: str | Sequence[str] = (),
    **options: Unpack[ReadOptions],
) -> Proof:
    """Decides which operators of a converted model give the source's integers for every input; neither model is run.

    The result is followed from its inputs, operator by operator: what each reads, its attributes, constants and quantizations have to be
    those of an operator of the source, but for the order of axes and the type that stores the same integers. Then the kernels of both
    runtimes are compared, as their rows state them: of one or two operands of 8 bits for all 256 codes or 65,536 pairs, of sums of products
    by the thresholds between integers, over every accumulator that the weights allow, of averages for all sums. A kernel without a
    reference is run alone, on all codes, and so are operators that compute one of the source's together.

    Args:
        source, result: as of check().
        source_format, result_format: the names of their formats, if suffix and content do not determine them.
        kernels: what runs files of a format, as of check().
        options: of the readers of both formats.

    Raises:
        QConvertError: a file cannot be read, or nothing runs such files.
    """
    with as_files(source, result, (source_format, result_format)) as (files, formats):
        return prove_sides(sides_of(*files, kernels, options, formats)[0])


def prove_sides(sides: tuple[Side, Side]) -> Proof:
    """Proves what can be proved of a result, the second side, next to its source."""
    source, result = sides
    border = Border.of(source.graph, result.graph)
    trace, *others = (
        Trace.of(border, (_make_comparison_graph(source, own), _make_comparison_graph(result, its))) for own, its in fix_sizes(border)
    )
    own, other = _Read(source, trace.source.graph), _Read(result, trace.result.graph)
    found = [
        replace(
            decide(pair, trace, own.resolve_operator(pair.source), other.resolve_operator(pair.result)), output=other.output(pair.result)
        )
        for pair in trace.pairs
    ]
    starts = [
        item
        for pair, item in zip(trace.pairs, found, strict=True)
        if rounds_floats(trace, pair) and trace.result.elements[pair.result.inputs[0]].root in trace.source.graph.inputs
    ]
    same_results = {
        name for pair, item in zip(trace.pairs, found, strict=True) if item.class_ in EQUAL_CLASSES for name in pair.source.outputs
    }
    grouped, proved = set[int](), set[int]()
    for group in trace.groups:
        item = decide_group(group, trace, (own.run_group, other.run_group))
        if item.class_ in EQUAL_CLASSES:
            proved.update(id(op) for op in group.result)
            same_results.update(name for op in group.source for name in op.outputs)
        if item.class_ in EQUAL_CLASSES or group.is_rewritten or (item.method and len(group.result) == 1):
            found.append(item)
            grouped.update(id(op) for op in (*group.source, *group.result))
    found += [Proved(op.label, other.output(op), "?", "", why) for op, why in trace.strange if id(op) not in grouped]
    found += [*_find_wrong_movements(trace.source, own), *_find_wrong_movements(trace.result, other)]
    found += [*own.find_absorbed_faults(), *other.find_absorbed_faults()]
    for ops, side in zip(trace.clips, (own, other), strict=True):
        clips = [side.decide_clip(op) for op in ops]
        found += clips if side is other else [item for item in clips if item.class_ not in EQUAL_CLASSES]
    ends = {name: f"output {name!r} {words}" for name, words in trace.ends.items()}
    problems = (*border.problems, *trace.compare_states(), *ends.values())
    if not all(trace.finds_the_same(other) for other in others):
        problems = (*problems, _OTHER_SIZES)
    faults = [
        f"{item.operator} ({item.output!r}): {pair.other}"
        for pair, item in zip(trace.pairs, found, strict=False)
        if pair.other and pair.is_fault
    ]
    faults += [text for name, text in ends.items() if trace.ends[name] != NOT_TRACED]
    roundings = _find_extra_roundings(trace.source.graph, trace.result.graph)
    faults += [f"{op.label} ({other.output(op)!r}): {words}" for op, words in roundings if id(op) not in proved]
    same_results.difference_update(name for op, _ in trace.strange if id(op) not in proved for name in op.outputs)
    clipped = [*trace.ends, *(name for pair in trace.pairs if pair.other for name in pair.source.inputs)]
    same_results.difference_update(trace.source.elements[name].root for name in clipped if name in trace.source.elements)
    unequal = [item for item in found if item.class_ not in EQUAL_CLASSES]
    lost = tuple(op.label for op in trace.lost_operators if id(op) not in grouped)
    whole, begun = not problems and not unequal, not problems and all(item in starts for item in unequal)
    return Proof(tuple(found), problems, lost, tuple(faults), whole, begun, frozenset(same_results - {""}))


def _find_wrong_movements(followed: Followed, side: _Read) -> Iterator[Proved]:
    """The operators of a side that would only move elements, such as slices, if their kernel had no fault."""
    for op in followed.graph.ops:
        if (words := side.find_fault(op)) and followed.follow_movement(op) is not None:
            yield Proved(op.label, side.output(op), "?", why=words)


def _find_extra_roundings(source: Graph, result: Graph) -> Iterator[tuple[Op, str]]:
    """Where a result rounds float values to a type of fewer bits in which neither side computes or has an input, and how, in words."""
    writers = result.producers()
    for dtype in _SHORT_FLOATS:
        rounding = [op for op in result.ops if any(result[name].dtype == dtype for name in op.outputs if name)]
        casts = [op for op in rounding if kind_of(op).casts and "float" in result[op.inputs[0]].dtype]
        moved = sum(kind_of(op).rule in ("move", "relabel") for op in rounding)
        is_used = any(graph[name].dtype == dtype for graph in (source, result) for name in (*graph.inputs, *graph.outputs))
        is_used = is_used or any(source[name].dtype == dtype for op in source.ops for name in op.outputs if name)
        for op in casts if not is_used and len(casts) + moved == len(rounding) else ():
            if not _holds_codes(result, writers, op.inputs[0], dtype):
                yield op, f"rounds float values to {dtype}, and the source does not"


def _holds_codes(graph: Graph, writers: Mapping[str, Op], name: str, dtype: str) -> bool:
    """Whether float values are dequantized bytes, each of which a type of fewer bits holds as it is."""
    writer = writers.get(trace_back(writers, name, lambda op: kind_of(op).rule in ("move", "relabel")))
    stored = graph[writer.inputs[0]] if writer is not None and kind_of(writer).dequantizes else None
    if stored is None or stored.quantization is None or not has_byte_codes(stored):
        return False
    values = np.asarray(dequantize(codes_of(stored.dtype), stored.quantization), np.float32)
    return np.array_equal(values.astype(numpy_dtype(dtype)).astype(np.float32), values)


def _make_comparison_graph(side: Side, graph: Graph) -> Graph:
    """A side's graph in the form of comparisons. Biases are rounded as its kernels round them, and products of float data have their
    weights as stored, without the Dequantize."""
    rewriter = Rewriter(to_comparison_form(graph))
    graph = rewriter.graph
    for op in rewriter:
        if not kind_of(op).sums_products:
            continue
        if not graph.is_quantized(op.outputs[0]):
            weights = rewriter.producers.get(op.inputs[1])
            if weights is not None and kind_of(weights).dequantizes and graph[weights.inputs[0]].is_constant:
                rewriter.replace(op, op.with_input(1, weights.inputs[0]))
            continue
        if not op.has(2) or graph.is_quantized(op.inputs[2]):
            continue
        row = _find_kernels(side, op.outputs[0]).of(graph, op)
        bias = rounded_bias(graph, op) if row is not None and row.rounds_bias else None
        if bias is not None:
            rewriter.replace(op, op.with_input(2, rewriter.add(f"{bias.name}/int32", bias, data=bias.data)))
    return rewriter.finish(prune=lambda op: kind_of(op).dequantizes)


def _find_kernels(side: Side, name: str) -> Kernels:
    """The kernels that compute a tensor of a side.

    If the runtime replaces the chosen set of kernels by another one that a user may choose, the variant that runs is not known: rows then
    have no reference.
    """
    chosen = side.kernels_of(name)
    runtime, _, kernels = chosen.partition(":")
    own = runtime == side.runtime.name
    rows = (side.runtime if own else runtimes()[runtime]).rows(kernels)
    if chosen == side.choice or (own and kernels not in side.runtime.kernels):
        return rows
    return replace(rows, given=tuple(replace(row, reference=None) for row in rows.rows))


def _run_nothing(graph: Graph, op: Op) -> None:
    """See Computed.run: alone the operator would be computed by other kernels than in its file."""


class _Read:
    """The operators of a side as they were read, and what computes them."""

    def __init__(self, side: Side, restated: Graph) -> None:
        self._side, self._restated, self._producers = side, restated, side.graph.producers()
        self._readers, self._file_readers = restated.consumers(), side.graph.consumers()

    def decide_clip(self, op: Op) -> Proved:
        """The class of an operator of this side that clips codes and is paired with none."""
        exact = clip_elements(self._restated, op, Elements.of(self._restated[op.inputs[0]]))
        assert exact is not None and exact.codes is not None
        return decide_clip(op.label, self.resolve_operator(op), exact.codes)

    def find_fault(self, op: Op) -> str:
        """In words, what the kernel of an operator computes wrongly; "" if nothing."""
        computed = self.resolve_operator(op)
        is_whole = computed.op.kind == op.kind  # else it is the end of what an operator of the file became
        return computed.kernels.fault(computed.graph, computed.op) if is_whole else ""

    def find_absorbed_faults(self) -> Iterator[Proved]:
        """What operators of the file compute wrongly that normal form left out, such as a Clip whose bounds no integer exceeds."""
        for name, op in self._read_ops.items():
            kernels, read = _find_kernels(self._side, name), self._producers.get(name)
            fault = kernels.fault(self._read_graph, op) if op.outputs[0] == name else ""
            if fault and (read is None or not kernels.fault(self._side.graph, read)):
                yield Proved(op.label, name, "?", why=fault)

    def run_group(self, inputs: Sequence[str], output: str) -> Array | None:
        """The results of this side's operators from tensors to another one, for all codes of these."""
        graph = self._side.graph
        found = collect_operators(self._producers, graph, output, set(inputs)) if output in self._producers else None
        if found is None or set(found[1]) != set(inputs):
            return None
        if any(computed.is_merged or computed.kernels.in_file_only for computed in map(self.resolve_operator, found[0])):
            return None
        return run_group(self._side, graph, found[0], inputs, output)

    def output(self, op: Op) -> str:
        """The first result of an operator, by its name in the file."""
        name = next(filter(None, op.outputs), "")
        read = None if name in self._producers else self._find_read_product(op)
        return name if read is None else read.outputs[0]

    def resolve_operator(self, op: Op) -> Computed:
        """An operator in the form of comparisons as the side computes it: as it was read, if it was, and its kernels."""
        side, name = self._side, next(filter(None, op.outputs), "")
        rows = _find_kernels(side, self.output(op))
        read = self._producers.get(name) or self._find_read_product(op)
        alike = read is not None and (
            read.inputs[:1] == op.inputs[:1] or (kind_of(read).sums_products and kind_of(read) is not kind_of(op))
        )
        graph, found, readers = (self._restated, op, self._readers) if not alike or read is None else (side.graph, read, self._file_readers)
        has_ties = kind_of(found).averages and found.attributes.get("arithmetic") in _TIES
        if has_ties and not self._has_form(found, self.output(op)):
            found = found.with_attributes(arithmetic="")
        has_forms = side.kernels == side.runtime.kernels[0] or (has_ties and side.format.name == "tflite")  # all of its kernels round so
        run: Run = _run_nothing if rows.in_file_only else partial(run_all_codes, side)
        if not alike and self._is_in_float(op, read):
            rows = replace(rows, given=tuple(replace(row, reference=None, arithmetic=None) for row in rows.rows))
            run = self._run_in_float
        return Computed(graph, found, readers, rows, run, has_forms, side.format.name, rows.merges_roundings and self._rounds_weights(name))

    def _rounds_weights(self, name: str) -> bool:
        """Whether a tensor is a product of float weights between DequantizeLinear and QuantizeLinear in the file, which onnxruntime
        rounds to int8 (weight_bias_quantization.cc)."""
        op, graph = self._read_ops.get(name), self._read_graph
        if op is None or not kind_of(op).has_weights or not graph[op.inputs[1]].is_constant:
            return False
        data = self._read_ops.get(op.inputs[0])
        is_between = (
            data is not None and kind_of(data).dequantizes and any(graph.is_quantized(item.outputs[0]) for item in self._uses[name])
        )
        return is_between and not graph.is_quantized(op.inputs[1])

    def _has_form(self, op: Op, name: str) -> bool:
        """Whether the file itself has an operator's arithmetic; of a plain average the metadata may say what the source's ties were."""
        read = self._read_ops.get(name)
        return read is not None and read.attributes.get("arithmetic") == op["arithmetic"]

    @cached_property
    def _read_graph(self) -> Graph:
        """What the file says, before its normal form, and before its metadata give operators anything."""
        side = self._side
        return side.graph if side.format.read is None else read_literal_graph(side.path, side.format, side.file.options)

    @cached_property
    def _read_ops(self) -> Mapping[str, Op]:
        """The operators of the file as it says them, by their results."""
        return self._read_graph.producers()

    @cached_property
    def _uses(self) -> Mapping[str, Sequence[Op]]:
        """The operators of that graph that read each tensor."""
        return self._read_graph.consumers()

    def _run_in_float(self, graph: Graph, op: Op) -> Array | None:
        """The results of an operator between Dequantize and Quantize; see Computed.run."""
        return self.run_group([name for name in op.inputs if name and not graph[name].is_constant], op.outputs[0])

    def _find_read_product(self, op: Op) -> Op | None:
        """The product that is computed row by row here, or over more axes, and whose result is brought back to its shape, or cropped."""
        readers = self._readers.get(next(filter(None, op.outputs), ""), []) if kind_of(op).sums_products else []
        return self._producers.get(readers[0].outputs[0]) if len(readers) == 1 and kind_of(readers[0]).rule == "move" else None

    def _is_in_float(self, op: Op, read: Op | None) -> bool:
        """Whether the file has an operator between Dequantize and Quantize, of which `read` writes its result there."""
        if read is not None and kind_of(read).quantizes and not kind_of(op).quantizes:
            return True
        products = (item for item in self._side.graph.ops if kind_of(item).sums_products and item.source == op.source)
        return kind_of(op).sums_products and any(self._is_quantized_later(item) for item in products)

    def _is_quantized_later(self, op: Op) -> bool:
        """Whether the file quantizes the float result of a product, or of what follows it, by an operator of its own."""
        while not self._side.graph.is_quantized(op.outputs[0]):
            readers = self._file_readers.get(op.outputs[0], [])
            if len(readers) != 1 or not readers[0].outputs:
                return True
            op = readers[0]
        return kind_of(op).quantizes
