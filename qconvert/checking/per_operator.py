"""The per-operator check, between any two runtimes: every operator of the result is fed with the source's own tensors.

Both models are cut at the tensors that both have, by the names of the source's canonical graph, and each piece runs in its side's runtime.
The truth is the source's file: its tensors come from the untouched file in its own runtime; those that the runtime does not know
come from the evaluator. What the source computes in a piece is what its runtime gives for it: the tensor itself where nothing is fused
away, else the piece of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

import numpy as np

from qconvert.checking.classify import further_tolerance
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.file_values import complete_values, find_reading_errors, find_settled, find_varying, follow_movement, keep_varying
from qconvert.checking.findings import (
    CLASSES,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    OVERFLOW,
    Finding,
    explain_by_kernels,
    find_judged_together,
    join_findings,
    make_left_out_findings,
)
from qconvert.checking.full_ranges import run_full_ranges
from qconvert.checking.memory import MOST, OtherKernels, Room, Splitting, first_fitting, nbytes, sizes_of
from qconvert.checking.operator_finding import UNKNOWN, Judge, add_changed_findings
from qconvert.checking.outputs import Border
from qconvert.checking.recurrent import judge_float_lstm, map_state_reads, restart
from qconvert.checking.requantized_operators import Requantized
from qconvert.checking.tensor_correspondence import SAME_CODES, Exchange, Form, find_forms, find_transposed, match_tensors, rename_tensors
from qconvert.conversion.canonical_pieces import canonical_pieces, computed_names
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Tensor, in_bytes
from qconvert.plugins import Inside, LoadedModel
from qconvert.rewriting.parts import cut

__all__ = ["SECONDS", "check_operators"]

#: Operators are compared for so long; with no further input after it, and those that were compared with none are named. A convolution
#: in floats of a large network takes seconds.
SECONDS = 60.0

#: By how many steps kernels may differ between values at both ends of a range; LiteRT's RESIZE_BILINEAR has 10 bits for coordinates.
_COARSE = 4


@dataclass(slots=True)
class _Source:
    """The source: its tensors in a run, and what each operator computes from them by itself."""

    side: Side
    inside: Inside | None
    pieces: Splitting | None = None
    states: dict[str, Array] = field(default_factory=dict)  # as the run before left them

    @property
    def graph(self) -> Graph:
        return self.side.graph

    def use_kernels(self, kernels: str) -> _Source:
        side = self.side.use_kernels(kernels)
        return _Source(side, side.inside(self.graph))

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Stored values by name, of all tensors that are beyond doubt: those that its runtime computed, and what follows from them."""
        if self.inside is None:
            return complete_values(self.graph, feed, self.states)
        measured = self.inside.values({name: feed[name] for name in self.graph.inputs})
        if not self.graph.states:
            restart(self.inside)  # which gives back what its process holds of the run
        if self.inside.cuts:
            return measured
        measured = keep_varying(self.graph, measured)
        found = complete_values(self.graph, measured, self.states)
        sure = find_settled(self.graph, measured.keys() | feed.keys() | (map_state_reads(self.graph).keys() & found.keys()))
        return {name: value for name, value in found.items() if name in sure}

    def compute_pieces(self, values: Mapping[str, Array]) -> dict[str, Array]:
        if self.pieces is not None:
            return self.pieces.run(_make_lookup(values))
        return dict(values)


def _make_lookup(values: Mapping[str, Array], change: Callable[[str, Array], Array] = lambda name, value: value) -> Callable[[str], Array]:
    """The function that gives a tensor's value, or says that it has none."""

    def look_up(name: str) -> Array:
        if name not in values:
            raise InvalidModelError(f"the value of {name!r} is not known", rule="value-not-known")
        return change(name, values[name])

    return look_up


@dataclass(frozen=True, slots=True)
class _Run:
    """A run: the source's values, the same with the quantizations that the result declares, and with what is only moved from them; the
    result's own values, as the source stores them; and those of the source's file by other kernels."""

    values: Mapping[str, Array]
    stored: Mapping[str, Array]
    known: Mapping[str, Array]
    own: dict[str, Array] = field(default_factory=dict)
    by: dict[str, Mapping[str, Array]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Both sides cut at the same tensors, and what judges them.

    Attributes:
        left: the source.
        pieces: of the result.
        change: how values go from one side to the other.
        restated: the source with the quantizations that the result declares.
        concerned: outputs of operators that these are part of; see Requantized.concerned().
        judge, judge_restated: of what the source computes, and of what it would with those quantizations.
        others: both sides by other kernels of their runtimes.
    """

    left: _Source
    pieces: Splitting
    change: Exchange
    restated: Requantized
    concerned: Mapping[str, bool]
    judge: Judge
    judge_restated: Judge
    others: OtherKernels

    @classmethod
    def of(
        cls, sides: tuple[Side, Side], left: _Source, pieces: Splitting, change: Exchange, others: OtherKernels, shared: set[str],
        declared: frozenset[str],
    ) -> _Comparison:  # fmt: skip
        """
        Args:
            sides: source and result.
            left, pieces, change, others: as above.
            shared: names of the tensors at which both sides are cut.
            declared: names of the tensors of which the conversion declared that they are others.
        """
        graph, other = (side.graph for side in sides)
        writers, computing = graph.producers(), other.producers()
        fixed = graph.tensors.keys() - find_varying(graph)
        # An output with which the result's pieces are not fed, as nothing in its file reads it, cuts nothing: they begin further up.
        unread = shared.intersection(graph.outputs) - {*pieces.input_names}
        further = further_tolerance(graph, other, shared, declared)
        cuts = (shared - unread) | fixed  # what is fixed is the same on both sides
        sure = find_settled(graph, cuts)
        restated = Requantized.of(graph, other, declared)
        judge = Judge(graph, writers, other, computing, sides, further, cuts, sure, fixed)
        judge_restated = Judge(restated.graph, writers, other, computing, (sides[1], sides[1]), further, cuts, sure)
        return cls(left, pieces, change, restated, restated.find_affected(shared | sure), judge, judge_restated, others)

    def findings(
        self, values: Mapping[str, Array], progress: Callable[[int, int], None], references: Mapping[str, Array] | None = None
    ) -> Iterator[tuple[str, Finding]]:
        """The finding for each output that both sides have, from the source's tensors in one run; with `references`, what it computes at
        the cuts, from other values than those of a run."""
        graph, restated = self.left.graph, self.restated
        compute = self.pieces.parts if references is None else self.pieces.parts_taken
        references = self.left.compute_pieces(values) if references is None else references
        run = _Run(values, restated.values(values), follow_movement(graph, values))
        last = {name: position for position, op in enumerate(graph.ops) for name in op.inputs}
        for part in compute(self._make_feed_lookup(run)):
            results = self._convert_results(part, references)
            run.own.update((name, value) for name, (value, _) in results.items())
            reached = 0
            for position, op in enumerate(graph.ops):
                for index, name in enumerate(op.outputs):
                    if name in results:
                        pair = in_bytes(references[name]), in_bytes(results[name][1])
                        found = self._judge_output(op, index, pair, run)
                        if found.verdict == "unexplained" and not self.others.useless:
                            found = self._explain_by_kernels(op, index, pair, run, found)
                        yield name, found
                        reached = position
                        progress(position + 1, len(graph.ops))
            for name in [name for name in run.own if last.get(name, 0) <= reached]:
                del run.own[name]  # what nothing reads any more need not be held
        progress(len(graph.ops), len(graph.ops))

    def is_graph_difference(
        self, name: str, other: Graph, shared: Collection[str], values: Mapping[str, Array], references: Mapping[str, Array]
    ) -> bool:
        """Whether a difference is in the result's graph as it is evaluated, not only in how a runtime computes it, or in pieces that
        compute for themselves what the source is fed with."""
        run = _Run(values, self.restated.values(values), follow_movement(self.left.graph, values))
        writer = self.left.graph.producers()[name]
        try:
            part = cut(other, shared, frozenset([name]))
            given = {item: self._make_feed_lookup(run)(item) for item in part.graph.inputs}
            result = evaluate(part.graph, given)[part.computed[name]]
            pair = in_bytes(references[name]), in_bytes(self.change.to_source(self.left.graph[name], result, references[name]))
        except (QConvertError, KeyError):
            return True
        return self._judge_output(writer, list(writer.outputs).index(name), pair, run).verdict == "unexplained"

    def _make_feed_lookup(self, run: _Run) -> Callable[[str], Array]:
        """The values with which the result's pieces are fed."""
        return _make_lookup(run.stored, lambda name, value: self.change.to_result(self.restated.graph[name], value))

    def _convert_results(self, results: Mapping[str, Array], references: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
        """What the result computed, as the source stores it, and as it would with the quantizations that the result declares."""
        found: dict[str, tuple[Array, Array]] = {}
        for name in (name for name in results if name in references):
            old, new = self.left.graph[name], self.restated.graph[name]
            own = self.change.to_source(old, results[name], references[name])
            found[name] = own, own if old is new else self.change.to_source(new, results[name], references[name])
        return found

    def _judge_output(self, op: Op, index: int, pair: tuple[Array, Array], run: _Run) -> Finding:
        """The finding for output `index` of an operator; `pair` is what source and result computed in a run."""
        name = op.outputs[index]
        if name in self.concerned:
            return self.restated.finding(op, index, run.stored, pair, self.judge_restated, self.concerned[name])
        found = self.judge.finding(op, index, run.known, pair)
        if found.verdict != "equal" and (real := judge_float_lstm(self.left.graph, self.judge.other, op, index, run.known, pair)):
            return real
        return self.judge.explain_by_own_values(op, index, run.known, pair, run.own, found) if found.verdict == "unexplained" else found

    def _explain_by_kernels(self, op: Op, index: int, pair: tuple[Array, Array], run: _Run, found: Finding) -> Finding:
        """The finding, which names a fault, unless a side computes, by other kernels of its runtime and from the same values, what the
        other side explains: then its own kernels differ by as much."""
        name, sides = op.outputs[index], list(self.judge.sides)
        for place in (1, 0) if name not in self.concerned else (1,):
            side = sides[place]

            def compute_tensor(kernels: str, place: int = place) -> Array | None:
                value = self.others.compute_tensor(place, kernels, name, self._make_feed_lookup(run) if place else _make_lookup(run.values))
                return value if value is None or not place else self.change.to_source(self.restated.graph[name], value, pair[0])

            for kernels in (kernels for kernels in side.runtime.kernels if kernels != side.kernels):
                value = None if place else self._compute_in_file(kernels, op, name, run)
                # Of the source's graph, written: it has to compute what the untouched file does.
                if value is None and (place or _is_equal(compute_tensor(side.kernels), pair[0])):
                    value = compute_tensor(kernels)
                if value is None:
                    continue
                pairs = [pair[0], pair[1]]
                pairs[place] = in_bytes(value)
                chosen = [*sides[:place], side.use_kernels(kernels), *sides[place + 1 :]]
                judges = replace(self.judge, sides=(chosen[0], chosen[1])), replace(self.judge_restated, sides=(chosen[1], chosen[1]))
                again = replace(self, judge=judges[0], judge_restated=judges[1])._judge_output(op, index, (pairs[0], pairs[1]), run)
                if CLASSES.index(again.verdict) < CLASSES.index(OVERFLOW):
                    return explain_by_kernels(found, side.runtime.title, (side.kernels, kernels), (pair[place], pairs[place]))
        self.others.useless = True
        return found

    def _compute_in_file(self, kernels: str, op: Op, name: str, run: _Run) -> Array | None:
        """What the source's untouched file computes for a tensor by other kernels, where these give its operator the same inputs."""
        feed = {item: run.values[item] for item in self.left.graph.inputs if item in run.values}  # values over ranges begin further down
        if self.left.inside is None or self.left.inside.cuts or self.left.graph.states or len(feed) < len(self.left.graph.inputs):
            return None
        if kernels not in run.by:
            try:
                run.by[kernels] = self.left.use_kernels(kernels).values(feed)
            except QConvertError:
                run.by[kernels] = {}
        found = run.by[kernels]
        given = [item for item in op.inputs if item and not self.left.graph[item].is_constant]
        return found.get(name) if all(_is_equal(found.get(item), run.values.get(item)) for item in given) else None


def _is_equal(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None:
        return False
    a, b = in_bytes(a), in_bytes(b)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")


def _report_progress(progress: Callable[[str, int, int], None], run: int, runs: int, done: int, ops: int) -> None:
    progress("operators", run * ops + done, runs * ops)


def check_operators(
    source: Side,
    result: Side,
    feeds: list[dict[str, Array]],
    model: LoadedModel,
    border: Border,
    changed: Mapping[str, str],
    declared: frozenset[str],
    progress: Callable[[str, int, int], None],
    further: Sequence[Mapping[str, Array]] = (),
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

    Raises:
        QConvertError: a file cannot be read, or the two have no names in common.
    """
    graph = source.graph
    whole, room, planned = graph, Room.for_graphs(graph, result.graph), nbytes(graph, sizes_of(graph, feeds[0]))
    source = _keep_fitting_operators(source, planned, room)
    graph = source.graph
    inner, notes = _open_inside(source, graph)
    left = _Source(source, inner)
    first = left.values(feeds[0])
    names = match_tensors(graph, result.graph, declared)
    probed = graph.evolve(tensors=[result.graph[own] for own in names.values()], outputs=(*graph.outputs, *names.values()))
    inside, said = _open_inside(result, probed)
    forms = _find_forms(graph, result, inside, names, first, border.convert_inputs(feeds[0], model), model)
    if result.graph.states:
        restart(inside)
    names = {name: own for name, own in names.items() if name in forms}
    unnamed = result
    result, inside = rename_tensors(result, inside, names)
    declared = declared | {name for name, own in names.items() if own in declared}
    other = result.graph
    shared = _find_shared_tensors(graph, other, first.keys(), inside, forms, declared)
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
    layouts = source.runtime.layout, result.runtime.layout
    change = Exchange(pieces, find_transposed(graph, other, *layouts), layouts[1], forms)

    def cut_for_kernels(place: int, kernels: str, name: str) -> Splitting:
        side, own, inner_graph = ((source, left.inside, graph), (unnamed, inside, probed))[place]
        side = side.use_kernels(kernels)
        opened = side.inside(inner_graph) if own is not None and own.cuts else None
        side, opened = rename_tensors(side, opened, names) if place else (side, opened)
        return _make_pieces(side, opened, shared, sizes, at_once, {name})

    others = OtherKernels(cut_for_kernels)
    comparison = _Comparison.of((source, result), left, pieces, change, others, shared, declared)
    found: dict[str, list[Finding]] = {}
    misread: dict[str, Finding] = {}
    late: list[str] = []
    missed: dict[str, str] = {}
    computed = pieces.output_names  # before any run: of one that is not finished, pieces that wait are none
    until = monotonic() + SECONDS
    values: Mapping[str, Array] | None = first
    del first  # the values of a large network are held for one run at a time
    for run, feed in enumerate(feeds):
        if run and monotonic() > until:
            late.append(f"with {run} of {len(feeds)} inputs")
            break
        values = left.values(feed) if values is None else values
        for name, finding in comparison.findings(values, partial(_report_progress, progress, run, len(feeds))):
            found.setdefault(name, []).append(finding)
            if monotonic() > until:
                missed = missed if run else dict.fromkeys(computed - found.keys(), OUT_OF_TIME)
                break
        is_whole = run > 0 or bool(getattr(model, "parts", {}))  # parts of a split network may run as they are alone
        for name, finding in _check_full_ranges(comparison, source, other, ranged, values, until) if not is_whole else ():
            found[name] = [*found.get(name, []), finding]
        if not run and monotonic() > until:
            late.append("not with all values over the ranges of tensors")
        values = None
        if inside is not None and not inside.cuts:
            own = border.convert_inputs(feed, model)
            misread.update(find_reading_errors(result, inside, pieces, {name: own[name] for name in model.inputs}))
            if not result.graph.states:
                restart(inside)  # which gives back what its process holds of the run
    for unlikely in further:
        if monotonic() > until:
            late.append("not with all inputs at the ends of their ranges or of other sizes")
            break
        for name, finding in comparison.findings(left.values(unlikely), lambda done, ops: None):
            if finding.verdict not in ("equal", "requantized"):  # what was declared costs more there, and is judged by likely inputs
                found[name] = [*found.get(name, []), finding]
    writers = whole.producers()
    findings = {name: join_findings(writers[name], name, runs) for name, runs in found.items()}
    _add_misread_findings(whole, misread, findings)
    add_changed_findings(whole, changed, findings)
    large = dict.fromkeys((name for op in whole.ops[len(graph.ops) :] for name in op.outputs if name), OUT_OF_MEMORY)
    refused = {**large, **missed, **(left.pieces.refused if left.pieces is not None else {}), **pieces.refused}
    within = find_judged_together(whole, findings.keys() | missed.keys() | large.keys(), shared) | _find_dropped_identities(whole, border)
    findings.update(make_left_out_findings(whole, findings.keys(), within, refused))
    if missed:
        late.insert(0, f"{len(missed)} of them not at all")
    if late:
        notes = (*notes, f"operators were compared for {SECONDS:g} s, the time limit: {', '.join(late)}; outputs with all inputs")
    wide = [f"{len(whole.ops) - len(graph.ops)} of them not at all"] if large else []
    wide += ["not with values over the ranges of all tensors"] if ranged < shared.intersection(sizes) else []
    if wide:
        notes = (
            *notes,
            f"operators were compared within {MOST / 1e9:g} GB, the memory limit: {', '.join(wide)}; outputs were compared in full",
        )
    return tuple(findings.values()), (*notes, *said, _note_combined(whole, len(within)), _note_uncompared(result, inside))


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
    return {
        position for position, op in enumerate(graph.ops) if op.kind == "Identity" and border.outputs.get(op.outputs[0]) == op.inputs[0]
    }


def _check_full_ranges(
    comparison: _Comparison, source: Side, other: Graph, shared: set[str], values: Mapping[str, Array], until: float
) -> Iterator[tuple[str, Finding]]:
    """Yield the unexplained findings for values over the full range of each tensor. Explained and declared differences count in likely runs
    alone: declared ones cost more at the limits of a range."""
    if monotonic() > until:
        return
    for given, references in run_full_ranges(source, other, shared, values):
        for name, finding in comparison.findings(given, lambda done, ops: None, references):
            if finding.verdict != "unexplained" or _is_coarse(finding) or name in comparison.concerned:
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


def _find_forms(
    graph: Graph, result: Side, inside: Inside | None, names: Mapping[str, str], first: Mapping[str, Array], fed: Mapping[str, Array],
    model: LoadedModel,
) -> dict[str, Form]:  # fmt: skip
    """How the result holds the tensors that it has under other names, by the values of the first run."""
    if inside is None or not names:
        return {}
    try:
        found = inside.values({name: fed[name] for name in model.inputs})
    except QConvertError:
        return {}
    return find_forms(graph, result.graph, names, first, found)


def _find_shared_tensors(
    graph: Graph, other: Graph, known: Iterable[str], inside: Inside | None, forms: Collection[str], declared: Collection[str]
) -> set[str]:
    """The names at which both sides are cut: activations of both whose value is known in each."""

    def is_comparable(name: str) -> bool:
        return _is_comparable(graph[name], other[name], name in forms, name in declared)

    names = find_varying(graph).intersection(known)
    if inside is not None and inside.cuts:
        return {name for name in names & inside.names if name not in other.tensors or is_comparable(name)}
    if inside is not None:
        names &= find_settled(other, {*inside.names, *other.inputs, *map_state_reads(other)})
    return {name for name in names & find_varying(other) if is_comparable(name)}


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
        (shared & inside.names).intersection(shared if only is None else only) - {*graph.inputs, *map_state_reads(graph)},
        key=lambda name: order.get(name, len(order)),
    )
    return Splitting(lambda wanted: inside.pieces(frozenset(shared), wanted), computed, sizes, at_once)


def _is_comparable(a: Tensor, b: Tensor, reshaped: bool, declared: bool) -> bool:
    """Whether two tensors of one name hold values that can be exchanged; integers of another width by the quantizations that both state."""
    if a.is_constant or b.is_constant or (not reshaped and a.rank is not None and b.rank is not None and a.rank != b.rank):
        return False
    stored_as_real = "float32" in (a.dtype, b.dtype) and a.quantization is not None and a.quantization.is_per_tensor
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
