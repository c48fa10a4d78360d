"""Both sides cut at the tensors that they share: what each operator computes from the source's values, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.checking.classify import further_tolerance
from qconvert.checking.exchanged_values import Exchange
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.file_values import complete_settled, complete_values, find_settled
from qconvert.checking.findings import CLASSES, KERNELS, OVERFLOW, Finding
from qconvert.checking.memory import OtherKernels, Splitting
from qconvert.checking.operator_finding import Judge
from qconvert.checking.outputs import absolute_difference
from qconvert.checking.recurrent import judge_float_lstm, restart
from qconvert.checking.requantized_operators import Requantized
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Arrays, Graph, Op, in_bytes
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.plugins import Inside
from qconvert.rewriting.parts import cut


@dataclass(slots=True)
class SourceValues:
    """The source: its tensors in a run, and what each operator computes from them by itself."""

    side: Side
    inside: Inside | None
    pieces: Splitting | None = None
    states: dict[str, Array] = field(default_factory=dict)  # as the run before left them

    @property
    def graph(self) -> Graph:
        return self.side.graph

    def use_kernels(self, kernels: str) -> SourceValues:
        side = self.side.use_kernels(kernels)
        return SourceValues(side, side.inside(self.graph))

    def values(self, feed: Arrays) -> dict[str, Array]:
        """Stored values by name, of all tensors that are beyond doubt: those that its runtime computed, and what follows from them."""
        if self.inside is None:
            return complete_values(self.graph, feed, self.states)
        measured = self.inside.values({name: feed[name] for name in self.graph.inputs})
        if not self.graph.states:
            restart(self.inside)  # which gives back what its process holds of the run
        if self.inside.cuts:
            return measured
        found = complete_values(self.graph, measured, self.states)
        sure = find_settled(self.graph, measured.keys() | feed.keys() | (states_by_reader(self.graph).keys() & found.keys()))
        return {name: value for name, value in found.items() if name in sure}

    def compute_pieces(self, values: Arrays) -> dict[str, Array]:
        if self.pieces is not None:
            return self.pieces.run(_make_lookup(values))
        return dict(values)


def _make_lookup(values: Arrays, change: Callable[[str, Array], Array] = lambda name, value: value) -> Callable[[str], Array]:
    """The function that gives a tensor's value, or says that it has none."""

    def look_up(name: str) -> Array:
        if name not in values:
            raise InvalidModelError(f"the value of {name!r} is not known", rule="value-not-known")
        return change(name, values[name])

    return look_up


@dataclass(frozen=True, slots=True)
class _Run:
    """A run: the source's values, the same with the quantizations that the result declares, and with what follows from them; the
    result's own values, as the source stores them; and those of the source's file by other kernels."""

    values: Arrays
    stored: Arrays
    known: Arrays
    own: dict[str, Array] = field(default_factory=dict)
    by: dict[str, Arrays] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides cut at the same tensors, and what judges them.

    Attributes:
        left: the source.
        pieces: of the result.
        change: how values go from one side to the other.
        restated: the source with the quantizations that the result declares.
        concerned: outputs of operators that these are part of; see Requantized.find_affected().
        judge, judge_restated: of what the source computes, and of what it would with those quantizations.
        others: both sides by other kernels of their runtimes.
    """

    left: SourceValues
    pieces: Splitting
    change: Exchange
    restated: Requantized
    concerned: Mapping[str, bool]
    judge: Judge
    judge_restated: Judge
    others: OtherKernels

    @classmethod
    def of(
        cls, sides: tuple[Side, Side], left: SourceValues, pieces: Splitting, change: Exchange, others: OtherKernels, shared: set[str],
        declared: frozenset[str],
    ) -> Comparison:  # fmt: skip
        """
        Args:
            sides: source and result.
            left, pieces, change, others: as above.
            shared: names of the tensors at which both sides are cut.
            declared: names of the tensors of which the conversion declared that they are others.
        """
        graph, other = (side.graph for side in sides)
        writers, computing = graph.producers(), other.producers()
        fixed = graph.tensors.keys() - graph.varying()
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
        self, values: Arrays, progress: Callable[[int, int], None], references: Arrays | None = None
    ) -> Iterator[tuple[str, Finding]]:
        """The finding for each output that both sides have, from the source's tensors in one run; with `references`, what it computes at
        the cuts, from other values than those of a run."""
        graph, restated = self.left.graph, self.restated
        compute = self.pieces.parts if references is None else self.pieces.parts_taken
        references = self.left.compute_pieces(values) if references is None else references
        run = _Run(values, restated.values(values), complete_settled(graph, values))
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
                        if found.is_fault and not self.others.useless:
                            found = self._explain_by_kernels(op, index, pair, run, found)
                        yield name, found
                        reached = position
                        progress(position + 1, len(graph.ops))
            for name in [name for name in run.own if last.get(name, 0) <= reached]:
                del run.own[name]  # what nothing reads any more need not be held
        progress(len(graph.ops), len(graph.ops))

    def judge_file(self, own: Arrays, values: Arrays, names: Collection[str]) -> Iterator[tuple[str, Finding]]:
        """The findings for those tensors of the result's file that are right although their piece, from the same tensors, is wrong.

        Args:
            own: the result's tensors in a run, as it stores them.
            values: the source's in the same run.
            names: of the tensors.
        """
        graph, writers = self.left.graph, self.left.graph.producers()
        if not own.keys() >= set(self.pieces.input_names):
            return
        again = {name: value for part in self.pieces.parts(own.__getitem__) for name, value in part.items() if name in names}
        stored = self.pieces.dtypes.keys()
        whole, alone = (
            {name: self.change.to_source(graph[name], found[name], values[name]) for name in found.keys() & values.keys() & stored}
            for found in (own, again)
        )
        whole |= {name: values[name] for name in graph.inputs if name in values}
        for name in alone.keys() & whole.keys():
            op, known = writers[name], {item: value for item, value in whole.items() if item != name}
            exact = complete_values(graph, known).get(name)
            if exact is not None:
                index, settled = list(op.outputs).index(name), complete_settled(graph, known)
                pairs = [(in_bytes(exact), in_bytes(found[name])) for found in (alone, whole)]
                wrong, right = (self.judge.finding(op, index, settled, pair) for pair in pairs)
                if wrong.is_fault and not right.is_fault:
                    yield name, right

    def is_graph_difference(self, name: str, other: Graph, shared: Collection[str], values: Arrays, references: Arrays) -> bool:
        """Whether a difference is in the result's graph as it is evaluated, not only in how a runtime computes it, or in pieces that
        compute for themselves what the source is fed with."""
        run = _Run(values, self.restated.values(values), complete_settled(self.left.graph, values))
        writer = self.left.graph.producers()[name]
        try:
            part = cut(other, shared, frozenset([name]))
            given = {item: self._make_feed_lookup(run)(item) for item in part.graph.inputs}
            result = evaluate(part.graph, given)[part.computed[name]]
            pair = in_bytes(references[name]), in_bytes(self.change.to_source(self.left.graph[name], result, references[name]))
        except (QConvertError, KeyError):
            return True
        return self._judge_output(writer, list(writer.outputs).index(name), pair, run).is_fault

    def _make_feed_lookup(self, run: _Run) -> Callable[[str], Array]:
        """The values with which the result's pieces are fed."""
        return _make_lookup(run.stored, lambda name, value: self.change.to_result(self.restated.graph[name], value))

    def _convert_results(self, results: Arrays, references: Arrays) -> dict[str, tuple[Array, Array]]:
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
        return self.judge.explain_by_own_values(op, index, run.known, pair, run.own, found) if found.is_fault else found

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
                if again.rank < CLASSES.index(OVERFLOW):
                    return _explain_by_kernels(found, side.runtime.title, (side.kernels, kernels), (pair[place], pairs[place]))
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


def _explain_by_kernels(found: Finding, title: str, kernels: tuple[str, str], values: tuple[Array, Array]) -> Finding:
    """The finding for an operator that a runtime computes otherwise by another set of its kernels, which the other side's result explains.

    A difference of one step is one of rounding; what is more cannot be told from a fault of the runtime, and is not judged.

    Args:
        found: of the kernels that ran.
        title: of the runtime.
        kernels: those that ran, and the others.
        values: what each of them gives.
    """
    integers, shapes = values[0].dtype.kind in "iu", [value.shape for value in values]
    off = absolute_difference(*values).max(initial=0) if shapes[0] == shapes[1] else np.inf
    rounded = integers and found.largest <= 1 and off <= 1
    steps = f"{off:g} {'step' if off == 1 else 'steps'}" if integers else f"{off:.4g}"
    apart = f"differ by {steps}" if shapes[0] == shapes[1] else f"give the shapes {shapes[0]} and {shapes[1]}"
    reason = f"{title}'s own kernels, {kernels[0]} and {kernels[1]}, {apart}"
    return replace(found, verdict="approximate" if rounded else KERNELS, reason=reason, predicted_rate=1.0, unexplained=0)


def _is_equal(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None:
        return False
    a, b = in_bytes(a), in_bytes(b)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")
