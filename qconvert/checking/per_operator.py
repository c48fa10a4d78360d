"""The per-operator check, between any two runtimes: every operator of the result is fed with the source's own tensors.

Both models are cut at the tensors that both have, by the names of the source's canonical graph, and each piece runs in its side's runtime.
The truth is the source's file: its tensors come from the untouched file in its own runtime; those that the runtime does not know
come from the evaluator. What the source computes in a piece is what its runtime gives for it: the tensor itself where nothing is fused
away, else the piece of the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from qconvert.arguments import Progress
from qconvert.checking.classify import UNKNOWN
from qconvert.checking.exchanged_values import LAYOUTS, Exchange, Form, find_transposed
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.file_values import find_reading_errors, find_settled
from qconvert.checking.findings import (
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    Finding,
    add_changed_findings,
    find_judged_together,
    join_findings,
    make_left_out_findings,
    name_judged_together,
)
from qconvert.checking.full_ranges import run_full_ranges
from qconvert.checking.memory import MOST, OtherKernels, Room, Splitting, first_fitting, nbytes, sizes_of
from qconvert.checking.operator_comparison import Comparison, SourceValues
from qconvert.checking.outputs import Border
from qconvert.checking.recurrent import restart
from qconvert.checking.renamed_tensors import find_forms, match_tensors, rename_tensors
from qconvert.checking.same_codes import SAME_CODES
from qconvert.conversion.pieces import canonical_pieces, computed_names
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.graph import Array, Arrays, Graph, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.plugins import Inside, LoadedModel

#: Operators are compared for so long; with no further input after it, and those that were compared with none are named. A convolution
#: in floats of a large network takes seconds.
SECONDS = 60.0

#: By how many steps kernels may differ between values at both ends of a range; LiteRT's RESIZE_BILINEAR has 10 bits for coordinates.
_COARSE = 4


def check_operators(
    source: Side,
    result: Side,
    feeds: list[dict[str, Array]],
    model: LoadedModel,
    border: Border,
    changed: Mapping[str, str],
    declared: frozenset[str],
    progress: Progress,
    further: Sequence[Arrays] = (),
    larger: Sequence[Arrays] = (),
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """A finding for each operator output of the source that both sides have, one for each operator that could not be compared, and lines
    on how it was done.

    Args:
        source, result: the files.
        feeds: stored inputs of each run of the source; of one with states, a sequence.
        model: the result, loaded.
        border: which input and output of one side is which of the other.
        changed: what is not the source's in constants, scales and zero points, by the tensor's name, in words.
        declared: names of the tensors of which the conversion declared that they have other values or another quantization.
        progress: is called with (what, done, total).
        further: inputs that are not likely ones, at the ends of their ranges or of other sizes, for which the outputs differ.
        larger: inputs of other sizes for which they do not; only what no rounding explains is told of these.

    Raises:
        QConvertError: a file cannot be read, or the two have no names in common.
    """
    whole = source.graph
    runs = _cut_sides(source, result, feeds[0], model, border, declared)
    runs.compare(feeds, progress)
    runs.compare_further(further)
    runs.compare_further(larger, faults_alone=True)
    writers = whole.producers()
    findings = {name: join_findings(writers[name], name, found) for name, found in runs.found.items()}
    _add_misread_findings(whole, runs.misread, findings)
    add_changed_findings(whole, changed, findings)
    left, pieces, judged = runs.comparison.left, runs.comparison.pieces, findings.keys() | runs.missed.keys()
    large = dict.fromkeys((name for op in whole.ops[len(left.graph.ops) :] for name in op.outputs if name), OUT_OF_MEMORY)
    refused = {**large, **runs.missed, **(left.pieces.refused if left.pieces is not None else {}), **pieces.refused}
    within = find_judged_together(whole, judged | large.keys(), runs.shared) | _find_dropped_identities(whole, border)
    name_judged_together(whole, within, findings)
    findings.update(make_left_out_findings(whole, findings.keys(), within, refused))
    limits = runs.describe_limits(len(whole.ops) - len(left.graph.ops))
    notes = (*runs.notes, *limits, *runs.said, _note_combined(whole, len(within)), _note_uncompared(*runs.result))
    return tuple(findings.values()), notes


def _cut_sides(source: Side, result: Side, feed: Arrays, model: LoadedModel, border: Border, declared: frozenset[str]) -> _Runs:
    """Cut both sides at the tensors that they share, as far as they fit into memory, and compute the values of the first run.

    Args:
        source, result, model, border, declared: as in check_operators().
        feed: stored inputs of the first run.
    """
    room, planned = Room.for_graphs(source.graph, result.graph), nbytes(source.graph, sizes_of(source.graph, feed))
    source = _keep_fitting_operators(source, planned, room)
    graph = source.graph
    inner, notes = _open_inside(source, graph)
    left = SourceValues(source, inner)
    first = left.values(feed)
    names = match_tensors(graph, result.graph, declared)
    probed = graph.evolve(tensors=[result.graph[own] for own in names.values()], outputs=(*graph.outputs, *names.values()))
    inside, said = _open_inside(result, probed)
    forms = _find_forms(graph, result, inside, names, first, border.convert_inputs(feed, model))
    if result.graph.states:
        restart(inside)
    names = {name: own for name, own in names.items() if name in forms}
    unnamed = result
    result, inside = rename_tensors(result, inside, names)
    declared = declared | {name for name, own in names.items() if own in declared}
    shared = _find_shared_tensors(graph, result.graph, first.keys(), inside, forms, declared)
    sizes = {name: value.nbytes for name, value in first.items()}
    held = sum(sizes.values())
    at_once, ranged = room.piece_bytes(held), {*first_fitting(sizes, room.range_bytes(held), shared)}
    pieces = _make_pieces(result, inside, shared, sizes, at_once)
    if left.inside is None or left.inside.cuts:
        left.pieces = _make_pieces(source, left.inside, shared, sizes, at_once)
    if not (pieces.output_names or pieces.refused) or (left.pieces is not None and not (left.pieces.output_names or left.pieces.refused)):
        raise InvalidModelError(
            "source and result have no tensor names in common", where="comparison of operators", rule="no-common-tensors"
        )
    layouts = source.layout, result.layout
    wanted = layouts[1] if layouts[0] != layouts[1] else next((layout for layout in LAYOUTS if layout != layouts[1]), "")
    turned = find_transposed(graph, result.graph, wanted if wanted in LAYOUTS else "")
    change = Exchange(pieces, turned, layouts[1], forms)

    def cut_for_kernels(place: int, kernels: str, name: str) -> Splitting:
        side, own, inner_graph = ((source, left.inside, graph), (unnamed, inside, probed))[place]
        side = side.use_kernels(kernels)
        opened = side.inside(inner_graph) if own is not None and own.cuts else None
        side, opened = rename_tensors(side, opened, names) if place else (side, opened)
        return _make_pieces(side, opened, shared, sizes, at_once, {name})

    comparison = Comparison.of((source, result), left, pieces, change, OtherKernels(cut_for_kernels), shared, declared)
    return _Runs(comparison, (result, inside), model, border, shared, ranged, ranged >= shared.intersection(sizes), notes, said, first)


@dataclass(slots=True)
class _Runs:
    """The runs of a comparison, and what they find.

    Attributes:
        comparison: of both sides.
        result: the result, with the source's names, and its inner tensors.
        model, border: as in check_operators().
        shared: the tensors at which both sides are cut.
        ranged: those of them that fit into memory with values over their ranges.
        is_ranged: whether these are all.
        notes: on the inner tensors of the source, in words.
        said: likewise of the result.
        first: the values of the first run, which are held until it is compared.
        until: when the time limit ends.
        found: the findings for each tensor.
        misread: the reading errors.
        wrong_pieces: the tensors whose piece is wrong where the file is right.
        missed: the tensors that there was no time for.
        late: what else there was no time for, in words.
    """

    comparison: Comparison
    result: tuple[Side, Inside | None]
    model: LoadedModel
    border: Border
    shared: set[str]
    ranged: set[str]
    is_ranged: bool
    notes: tuple[str, ...]
    said: tuple[str, ...]
    first: Arrays | None
    until: float = 0.0
    found: dict[str, list[Finding]] = field(default_factory=dict)
    misread: dict[str, Finding] = field(default_factory=dict)
    wrong_pieces: set[str] = field(default_factory=set)
    missed: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)

    def compare(self, feeds: list[dict[str, Array]], progress: Progress) -> None:
        """Compare the operators in each run, and with values over the ranges of tensors after the first one."""
        comparison = self.comparison
        computed = comparison.pieces.output_names  # before any run: of one that is not finished, pieces that wait are none
        is_split = bool(getattr(self.model, "parts", {}))  # parts of a split network may run as they are alone
        self.until = monotonic() + SECONDS
        for run, feed in enumerate(feeds):
            if run and monotonic() > self.until:
                self.late.append(f"with {run} of {len(feeds)} inputs")
                break
            # The values of a large network are held for one run at a time.
            values, self.first = comparison.left.values(feed) if self.first is None else self.first, None

            def report(done: int, ops: int, run: int = run) -> None:
                progress("operators", run * ops + done, len(feeds) * ops)

            for name, finding in comparison.findings(values, report):
                self.found.setdefault(name, []).append(finding)
                if monotonic() > self.until:
                    self.missed = self.missed if run else dict.fromkeys(computed - self.found.keys(), OUT_OF_TIME)
                    break
            if not run and not is_split:
                self._add(_check_full_ranges(comparison, self.ranged, values, self.until))
            if not run and monotonic() > self.until:
                self.late.append("not with all values over the ranges of tensors")
            self._compare_with_file(feed, values)
            del values

    def compare_further(self, feeds: Sequence[Arrays], faults_alone: bool = False) -> None:
        """Compare the operators for inputs that are not likely ones."""
        for feed in feeds:
            if monotonic() > self.until:
                self.late.append("not with all inputs at the ends of their ranges or of other sizes")
                break
            findings = self.comparison.findings(self.comparison.left.values(feed), lambda done, ops: None)
            # What was declared costs more there, and is judged by likely inputs.
            found = ((name, finding) for name, finding in findings if finding.verdict not in ("equal", "requantized"))
            told = (item for item in found if item[1].is_fault) if faults_alone else found
            self._add((name, finding) for name, finding in told if name not in self.wrong_pieces)

    def describe_limits(self, left_out: int) -> Iterator[str]:
        """Yield in sentences what the limits of time and memory left out; `left_out` operators did not fit into memory."""
        late = [f"{len(self.missed)} of them not at all", *self.late] if self.missed else self.late
        if late:
            yield f"operators were compared for {SECONDS:g} s, the time limit: {', '.join(late)}; outputs with all inputs"
        wide = [f"{left_out} of them not at all"] * bool(left_out)
        wide += ["not with values over the ranges of all tensors"] * (not self.is_ranged)
        if wide:
            yield f"operators were compared within {MOST / 1e9:g} GB, the memory limit: {', '.join(wide)}; outputs were compared in full"

    def _add(self, findings: Iterable[tuple[str, Finding]]) -> None:
        for name, finding in findings:
            self.found[name] = [*self.found.get(name, []), finding]

    def _compare_with_file(self, feed: Arrays, values: Arrays) -> None:
        """Compare the result's pieces with its file, for inputs of the source and its values for them.

        A piece that the runtime itself cuts out of the file says nothing of the file if it is wrong for values for which the file is right:
        the runtime may compute it in float. The file's own tensors are then judged in its place."""
        (side, inside), comparison = self.result, self.comparison
        if inside is None:
            return
        fed = self.border.convert_inputs(feed, self.model)
        if not inside.cuts:
            self.misread.update(find_reading_errors(side, inside, comparison.pieces, fed))
        elif faults := {name for name, found in self.found.items() if any(item.is_fault for item in found)}:
            for name, finding in comparison.judge_file(inside.values(fed), values, faults):
                self.wrong_pieces.add(name)
                self.found[name] = [*(item for item in self.found[name] if not item.is_fault), finding]
        if not side.graph.states:
            restart(inside)  # which gives back what its process holds of the run


def _keep_fitting_operators(source: Side, sizes: Mapping[str, int], room: Room) -> Side:
    """The source with the first of its operators, whose tensors of a run fit into memory; with all of them where it has states, which the
    last ones write."""
    graph = source.graph
    fitting = {*first_fitting(sizes, room.run_bytes)}
    count = next((place for place, op in enumerate(graph.ops) if not fitting.issuperset(filter(None, op.outputs))), len(graph.ops))
    if count == len(graph.ops) or graph.states:
        return source
    ops = graph.ops[: max(count, 1)]
    read = {name for op in ops for name in op.inputs}
    outputs = (name for op in ops for name in op.outputs if name and (name in graph.outputs or name not in read))
    return replace(source, _graph=graph.evolve(ops=ops, outputs=tuple(outputs), signatures=()))


def _find_dropped_identities(graph: Graph, border: Border) -> set[int]:
    """Positions of Identities that give an output, for which the result gives out the tensor itself, under its own name."""
    return {position for position, op in enumerate(graph.ops) if kind_of(op).copies and border.outputs.get(op.outputs[0]) == op.inputs[0]}


def _check_full_ranges(comparison: Comparison, shared: set[str], values: Arrays, until: float) -> Iterator[tuple[str, Finding]]:
    """Yield the unexplained findings for values over the full range of each tensor. Explained and declared differences count in likely runs
    alone: declared ones cost more at the limits of a range."""
    if monotonic() > until:
        return
    source, other = comparison.left.side, comparison.judge.other
    for given, references in run_full_ranges(source, other, shared, values):
        for name, finding in comparison.findings(given, lambda done, ops: None, references):
            if not finding.is_fault or _is_coarse(finding) or name in comparison.concerned:
                continue
            if comparison.is_graph_difference(name, other, shared, given, references):
                yield name, finding
        if monotonic() > until:
            return


def _is_coarse(finding: Finding) -> bool:
    """Whether a difference may be the kernels' own where values are far apart, of an operator whose exact value nobody knows."""
    return finding.reason == UNKNOWN and finding.largest <= _COARSE


def _open_inside(side: Side, graph: Graph) -> tuple[Inside | None, tuple[str, ...]]:
    """The inner tensors of a side; without them, where its runtime refuses to give them out, a line that says so."""
    try:
        return side.inside(graph), ()
    except QConvertError as error:
        return None, (f"{side.runtime.title} does not return the inner tensors of {side.path.name}: {' '.join(error.reason.split())}",)


def _find_forms(graph: Graph, result: Side, inside: Inside | None, names: Mapping[str, str], first: Arrays, fed: Arrays) -> dict[str, Form]:
    """How the result holds the tensors that it has under other names, by the values of the first run."""
    if inside is None or not names:
        return {}
    try:
        found = inside.values(fed)
    except QConvertError:
        return {}
    return find_forms(graph, result.graph, names, first, found)


def _find_shared_tensors(
    graph: Graph, other: Graph, known: Iterable[str], inside: Inside | None, forms: Collection[str], declared: Collection[str]
) -> set[str]:
    """The names at which both sides are cut: activations of both whose value is known in each."""

    def is_comparable(name: str) -> bool:
        return _is_comparable(graph[name], other[name], name in forms, name in declared)

    names = graph.varying().intersection(known)
    if inside is not None and inside.cuts:
        return {name for name in names & inside.names if name not in other.tensors or is_comparable(name)}
    if inside is not None:
        names &= find_settled(other, {*inside.names, *other.inputs, *states_by_reader(other)})
    return {name for name in names & other.varying() if is_comparable(name)}


def _make_pieces(
    side: Side, inside: Inside | None, shared: set[str], sizes: Mapping[str, int], at_once: int, only: Collection[str] | None = None
) -> Splitting:
    """The side's file cut at the tensors called `shared`, of sizes in bytes, and what computes these, or `only` some of them, with so many
    bytes `at_once`."""
    graph = side.graph
    if inside is None or not inside.cuts:
        names = [name for name in computed_names(graph, shared) if only is None or name in only]
        return Splitting(
            lambda wanted: canonical_pieces(graph, shared, wanted, side.file, side.format, side.runtime), names, sizes, at_once
        )
    order = {name: position for position, name in enumerate(graph.tensors)}
    computed = sorted(
        (shared & inside.names).intersection(shared if only is None else only) - {*graph.inputs, *states_by_reader(graph)},
        key=lambda name: order.get(name, len(order)),
    )
    return Splitting(lambda wanted: inside.pieces(frozenset(shared), wanted), computed, sizes, at_once)


def _is_comparable(a: Tensor, b: Tensor, reshaped: bool, declared: bool) -> bool:
    """Whether two tensors of one name hold values that can be exchanged; integers of another width by the quantizations that both state."""
    if a.is_constant or b.is_constant or (not reshaped and a.rank is not None and b.rank is not None and a.rank != b.rank):
        return False
    stored_as_real = "float32" in (a.dtype, b.dtype) and a.per_tensor is not None
    other_width = declared and a.is_quantized and b.is_quantized
    return a.dtype == b.dtype or {a.dtype, b.dtype} in SAME_CODES or stored_as_real or other_width


def _add_misread_findings(graph: Graph, misread: Mapping[str, Finding], findings: dict[str, Finding]) -> None:
    """A reading error outweighs whatever else is true of an operator."""
    for op in graph.ops:
        for name in op.outputs:
            if name in misread:
                findings[name] = join_findings(op, name, [misread[name]])


def _note_combined(graph: Graph, within: int) -> str:
    """A line on operators that are no tensors of their own in both files."""
    if not within:
        return ""
    are, them = ("are", "them") if within > 1 else ("is", "it")
    return f"{within} of {len(graph.ops)} operators {are} judged together with what reads {them}: no output has the same name in both files"


def _note_uncompared(result: Side, inside: Inside | None) -> str:
    """A line on pieces that could not be held against the file's own tensors."""
    if inside is not None:
        return ""
    return f"{result.runtime.title} returns no inner tensors: they are not compared with what was read of {result.path.name}"
