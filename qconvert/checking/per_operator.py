"""The per-operator check, between any two runtimes: every operator of the result is fed with the source's own tensors.

Both models are cut at the tensors that both have, by the names of the source's canonical graph, and each piece runs in its side's runtime.
The truth is the source's file: its tensors come from the untouched file in its own runtime; those that the runtime does not know
come from the evaluator. What the source computes in a piece is what its runtime gives for it: the tensor itself where nothing is fused
away, else the piece of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from qconvert.checking.checked_file import Side
from qconvert.checking.coverage import judged_within, left_out
from qconvert.checking.exchange import SAME_CODES, Exchange, turned
from qconvert.checking.findings import Finding, joined
from qconvert.checking.further_roundings import further_reach
from qconvert.checking.known_tensors import completed, moved, of_inputs, settled, varying
from qconvert.checking.operator_finding import Judge, name_changed
from qconvert.checking.outputs import Border
from qconvert.checking.partners import Form, forms_of, partners, renamed
from qconvert.checking.reading_errors import reading_errors
from qconvert.checking.real_lstms import on_real_values
from qconvert.checking.requantized import Requantized
from qconvert.checking.sequences import restart
from qconvert.checking.splitting import Splitting
from qconvert.conversion.canonical_pieces import canonical_pieces, computed_names
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.graph import Array, Graph, Tensor, in_bytes
from qconvert.plugins import Inside, LoadedModel

__all__ = ["check_operators"]


@dataclass(slots=True)
class _Source:
    """The source: its tensors in a run, and what each operator computes from them by itself."""

    graph: Graph
    inside: Inside | None
    pieces: Splitting | None = None
    states: dict[str, Array] = field(default_factory=dict)  # as the run before left them

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Stored values by name, of all tensors that are beyond doubt: those that its runtime computed, and what follows from them."""
        if self.inside is None:
            return completed(self.graph, feed, self.states)
        measured = self.inside.values({name: feed[name] for name in self.graph.inputs})
        if self.inside.cuts:
            return measured
        measured = of_inputs(self.graph, measured)
        found = completed(self.graph, measured, self.states)
        sure = settled(self.graph, measured.keys() | feed.keys() | (_read(self.graph) & found.keys()))
        return {name: value for name, value in found.items() if name in sure}

    def computed(self, values: Mapping[str, Array]) -> dict[str, Array]:
        if self.pieces is not None:
            return self.pieces.run(_looked_up(values))
        return dict(values)


def _looked_up(values: Mapping[str, Array], change: Callable[[str, Array], Array] = lambda name, value: value) -> Callable[[str], Array]:
    """The function that gives a tensor's value, or says that it has none."""

    def found(name: str) -> Array:
        if name not in values:
            raise InvalidModelError(f"the value of {name!r} is not known")
        return change(name, values[name])

    return found


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Both sides cut at the same tensors, and what judges them.

    Attributes:
        left: the source.
        pieces: of the result.
        change: how values go from one side to the other.
        restated: the source with the grids that the result declares.
        concerned: outputs of operators that these are part of; see Requantized.concerned().
        judge, judge_restated: of what the source computes, and of what it would on those grids.
        unread: outputs with which nothing of the result is fed, though operators of the source read them.
    """

    left: _Source
    pieces: Splitting
    change: Exchange
    restated: Requantized
    concerned: Mapping[str, bool]
    judge: Judge
    judge_restated: Judge
    unread: frozenset[str]

    @classmethod
    def of(
        cls, sides: tuple[Side, Side], left: _Source, pieces: Splitting, change: Exchange, shared: set[str], declared: frozenset[str]
    ) -> _Comparison:
        """
        Args:
            sides: source and result.
            left, pieces, change: as above.
            shared: names of the tensors at which both sides are cut.
            declared: names of the tensors of which the conversion declared that they are others.
        """
        graph, other = (side.graph for side in sides)
        writers, others = graph.producers(), other.producers()
        fixed = graph.tensors.keys() - varying(graph)
        # An output with which the result's pieces are not fed, as nothing in its file reads it, cuts nothing: they begin further up.
        unread = shared.intersection(graph.outputs) - {*pieces.fed}
        further = further_reach(graph, other, shared, declared)
        cuts = (shared - unread) | fixed  # what is fixed is the same on both sides
        sure = settled(graph, cuts)
        restated = Requantized.of(graph, other, declared)
        judge = Judge(graph, writers, other, others, sides, further, cuts, sure, fixed)
        judge_restated = Judge(restated.graph, writers, other, others, (sides[1], sides[1]), further, cuts, sure)
        return cls(left, pieces, change, restated, restated.concerned(shared | sure), judge, judge_restated, frozenset(unread))

    def findings(self, values: Mapping[str, Array], progress: Callable[[int, int], None]) -> Iterator[tuple[str, Finding]]:
        """The finding for each output that both sides have, from the source's tensors in one run."""
        graph, restated = self.left.graph, self.restated
        references = self.left.computed(values)
        stored = restated.values(values)
        known = moved(graph, values)
        results = self.pieces.run(_looked_up(stored, lambda name, value: self.change.to_result(restated.graph[name], value)))
        own = {name: self.change.to_source(graph[name], results[name], references[name]) for name in self.unread
               if name in results and name in references}  # fmt: skip
        for position, op in enumerate(graph.ops):
            for index, name in enumerate(op.outputs):
                if name in results and name in references:
                    given = references[name], self.change.to_source(restated.graph[name], results[name], references[name])
                    pair = in_bytes(given[0]), in_bytes(given[1])
                    if name in self.concerned:
                        yield name, restated.finding(op, index, stored, pair, self.judge_restated, self.concerned[name])
                    else:
                        found = self.judge.finding(op, index, known, pair)
                        if found.verdict != "equal" and (real := on_real_values(graph, self.judge.other, op, index, known, pair)):
                            found = real
                        elif found.verdict == "unexplained":
                            found = self.judge.by_own(op, index, known, pair, own, found)
                        yield name, found
            progress(position + 1, len(graph.ops))


def _step(progress: Callable[[str, int, int], None], run: int, runs: int, done: int, ops: int) -> None:
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
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """A finding for each operator output of the source that both sides have, one for each operator that could not be compared, and lines
    on how it was done.

    Args:
        source, result: the files.
        feeds: stored inputs of each run of the source; of one with states, a sequence.
        model: the result, loaded.
        border: which input and output of one side is which of the other.
        changed: what is not the source's in constants, scales and zero points, by the tensor's name, in words.
        declared: names of the tensors of which the conversion declared that they have other values or another grid.
        progress: is called with (what, done, total).

    Raises:
        QConvertError: a file cannot be read, or the two have no names in common.
    """
    graph = source.graph
    inner, notes = _inside(source, graph)
    left = _Source(graph, inner)
    first = left.values(feeds[0])
    names = partners(graph, result.graph, declared)
    inside, said = _inside(
        result, graph.evolve(tensors=[result.graph[own] for own in names.values()], outputs=(*graph.outputs, *names.values()))
    )
    forms = _forms(graph, result, inside, names, first, border.matched_inputs(feeds[0], model), model)
    if result.graph.states:
        restart(inside)
    names = {name: own for name, own in names.items() if name in forms}
    result, inside = renamed(result, inside, names)
    declared = declared | {name for name, own in names.items() if own in declared}
    other = result.graph
    shared = _shared(graph, other, first.keys(), inside, forms, declared)
    pieces = _pieces(result, inside, shared)
    if left.inside is None or left.inside.cuts:
        left.pieces = _pieces(source, left.inside, shared)
    if not (pieces.computed or pieces.refused) or (left.pieces is not None and not (left.pieces.computed or left.pieces.refused)):
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators")
    layouts = source.runtime.layout, result.runtime.layout
    change = Exchange(pieces, turned(graph, other, *layouts), layouts[1], forms)
    comparison = _Comparison.of((source, result), left, pieces, change, shared, declared)
    found: dict[str, list[Finding]] = {}
    misread: dict[str, Finding] = {}
    for run, feed in enumerate(feeds):
        for name, finding in comparison.findings(left.values(feed) if run else first, partial(_step, progress, run, len(feeds))):
            found.setdefault(name, []).append(finding)
        if inside is not None and not inside.cuts:
            own = border.matched_inputs(feed, model)
            misread.update(reading_errors(result, inside, pieces, {name: own[name] for name in model.inputs}))
    writers = graph.producers()
    findings = {name: joined(writers[name], name, runs) for name, runs in found.items()}
    _name_misread(graph, misread, findings)
    name_changed(graph, changed, findings)
    refused = {**(left.pieces.refused if left.pieces is not None else {}), **pieces.refused}
    within = judged_within(graph, findings.keys(), shared)
    findings.update(left_out(graph, findings.keys(), within, refused))
    return tuple(findings.values()), (*notes, *said, _together(graph, len(within)), _unproven(result, inside))


def _inside(side: Side, graph: Graph) -> tuple[Inside | None, tuple[str, ...]]:
    """The inner tensors of a side; without them, where its runtime refuses to give them out, a line that says so."""
    try:
        return side.inside(graph), ()
    except QConvertError as error:
        return None, (f"{side.runtime.title} does not give out the inner tensors of {side.path.name}: {' '.join(error.reason.split())}",)


def _forms(
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
    return forms_of(graph, result.graph, names, first, found)


def _shared(
    graph: Graph, other: Graph, known: Iterable[str], inside: Inside | None, forms: Collection[str], declared: Collection[str]
) -> set[str]:
    """The names at which both sides are cut: activations of both whose value is known in each."""

    def is_comparable(name: str) -> bool:
        return _comparable(graph[name], other[name], name in forms, name in declared)

    names = varying(graph).intersection(known)
    if inside is not None and inside.cuts:
        return {name for name in names & inside.names if name not in other.tensors or is_comparable(name)}
    if inside is not None:
        names &= settled(other, {*inside.names, *other.inputs, *_read(other)})
    return {name for name in names & varying(other) if is_comparable(name)}


def _pieces(side: Side, inside: Inside | None, shared: set[str]) -> Splitting:
    """The side's file cut at the tensors called `shared`."""
    graph = side.graph
    if inside is None or not inside.cuts:
        return Splitting(
            lambda wanted: canonical_pieces(graph, shared, wanted, side.file, side.format, side.runtime), computed_names(graph, shared)
        )
    order = {name: position for position, name in enumerate(graph.tensors)}
    computed = sorted((shared & inside.names) - {*graph.inputs, *_read(graph)}, key=lambda name: order.get(name, len(order)))
    return Splitting(lambda wanted: inside.pieces(frozenset(shared), wanted), computed)


def _read(graph: Graph) -> set[str]:
    """The tensors that are read of states, whose values are given as those of inputs are."""
    return {name for op in graph.ops if op.kind == "ReadState" for name in op.outputs}


def _comparable(a: Tensor, b: Tensor, reshaped: bool, declared: bool) -> bool:
    """Whether two tensors of one name hold values that can be exchanged; integers of another width by the grids that both state."""
    if a.is_constant or b.is_constant or (not reshaped and a.rank is not None and b.rank is not None and a.rank != b.rank):
        return False
    stored_as_real = "float32" in (a.dtype, b.dtype) and a.quantization is not None and a.quantization.is_per_tensor
    other_width = declared and a.is_quantized and b.is_quantized
    return a.dtype == b.dtype or {a.dtype, b.dtype} in SAME_CODES or stored_as_real or other_width


def _name_misread(graph: Graph, misread: Mapping[str, Finding], findings: dict[str, Finding]) -> None:
    """A reading error outweighs whatever else is true of an operator."""
    for op in graph.ops:
        for name in op.outputs:
            if name in misread:
                findings[name] = joined(op, name, [misread[name]])


def _together(graph: Graph, within: int) -> str:
    """A line on operators that are no tensors of their own in both files."""
    if not within:
        return ""
    are, them = ("are", "them") if within > 1 else ("is", "it")
    return f"{within} of {len(graph.ops)} operators {are} judged together with what reads {them}: no output has the same name in both files"


def _unproven(result: Side, inside: Inside | None) -> str:
    """A line on pieces that could not be held against the file's own tensors."""
    if inside is not None:
        return ""
    return f"{result.runtime.title} gives out no inner tensors: how {result.path.name} was read is not checked against them"
