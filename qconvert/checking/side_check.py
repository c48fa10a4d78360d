"""The check of two sides as their runtimes take them: inputs, outputs, what stands in the files, and the judgement of all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qconvert.arguments import Progress
from qconvert.checking import verdicts
from qconvert.checking.attributes import compare_attributes
from qconvert.checking.file_in_runtime import Side, describe_runtimes
from qconvert.checking.file_values import find_fixed_outputs
from qconvert.checking.findings import BEYOND_BOUNDS, CheckReport, Finding, OutputComparison, TextComparison
from qconvert.checking.memory import MOST, Room, nbytes, sizes_of
from qconvert.checking.missing_results import find_missing_results
from qconvert.checking.outputs import Border, compare_texts
from qconvert.checking.proof.classes import Proof
from qconvert.checking.recurrent import STEPS, Sequences, describe_drift, describe_drift_costs, state_problems
from qconvert.checking.repeated_conversion import RepeatedConversion, repeat_conversion
from qconvert.checking.requantized_operators import find_costly_constants
from qconvert.checking.stand_ins import (
    LEAST_OF_FLOAT,
    compare_with_float_source,
    explain_missing_encodings,
    is_quantized_of_float,
)
from qconvert.checking.value_limits import compare_limits
from qconvert.conversion.judging import LIMIT
from qconvert.data import Preparation, accepted_inputs, extreme_inputs, inputs_of_other_sizes, load_inputs, zero_inputs
from qconvert.data.input_limits import sizes_to_try
from qconvert.data.texts import TextInputs, are_texts
from qconvert.errors import MissingPackageError, QConvertError, RuntimeRefusedError, name_file_in_errors
from qconvert.graph import Array, Arrays, Graph
from qconvert.plugins import LoadedModel, Runtime
from qconvert.rules.changed_values import changed_values, declared_names

#: Most elements of an input of other sizes, where the result equals the repeated conversion, or operators are compared.
_SMALL = 2**16

Feeds = list[dict[str, Array]]
Outputs = tuple[OutputComparison, ...]


@dataclass(frozen=True, slots=True)
class Demands:
    """The arguments of check() on its inputs and its criteria."""

    data: Sequence[str | Path]
    preparation: Preparation
    samples: int
    seed: int
    per_op: bool
    quick: bool
    max_lsb: float | None
    min_sqnr: float | None


@dataclass(slots=True)
class SideCheck:
    """A check in progress: its findings so far.

    `files` are those that the user named, `sides` these or copies of them. `chosen` says whether the user named kernels, `read` how the
    files are read, `proof` what holds for all inputs. `encodings` has the scales with which the source is quantized first. `altered` lists
    what the result's file has otherwise than the graph for it.
    """

    sides: tuple[Side, Side]
    demands: Demands
    chosen: bool
    progress: Progress
    files: tuple[Side, Side]
    read: str
    proof: Proof
    encodings: Path | None = None
    findings: tuple[Finding, ...] = ()
    notes: list[str] = field(default_factory=list)
    altered: Mapping[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    lossy: tuple[str, ...] = ()  # inexact passes that the user named, if the result is their output
    costs: list[str] = field(default_factory=list)
    drifts: dict[str, str] = field(default_factory=dict)  # of a model with states: by the output, which steps differ, in words
    absent: list[str] = field(default_factory=list)  # what runtimes did not run, in words
    steps: int = 0  # of a sequence, where the source has states
    least: float = 0.0  # the SQNR that outputs keep
    undefined: dict[str, str] = field(default_factory=dict)  # outputs that are NaN on one side alone at the ends of ranges or for zeros
    texts: TextComparison | None = None  # of source and result, where the inputs are texts
    further: Feeds = field(default_factory=list)  # inputs at the ends of their ranges, or of other sizes, for which the outputs differ
    larger: Feeds = field(default_factory=list)  # of other sizes, with which operators are compared, although outputs are equal
    border: Border = field(init=False)
    models: tuple[LoadedModel, LoadedModel] = field(init=False)
    declared: frozenset[str] = frozenset()  # tensors that the conversion declared to be others
    feeds: Feeds = field(init=False)
    outputs: Outputs = field(init=False)  # compared for these

    def report(self) -> CheckReport:
        """Run both sides, judge their outputs and, unless outputs alone are asked for, what stands in the files."""
        quick, min_sqnr = self.demands.quick, self.demands.min_sqnr
        source, result = self.sides
        graph, other = source.graph, result.graph
        is_float = self.encodings is None and is_quantized_of_float(graph, other)
        self.least = verdicts.least_sqnr(min_sqnr, LEAST_OF_FLOAT if is_float else LIMIT)
        self.declared = frozenset() if quick else declared_names(other, graph)
        self.border = Border.of(graph, other, self.declared, result.find_other_layout(source))
        self.steps = STEPS if graph.states or other.states else 0
        self.problems += (*self.border.problems, *state_problems(graph, other, self.declared))
        try:
            self.models = self._open_models()
            self.feeds, self.outputs = self._run_inputs()
        except (RuntimeRefusedError, MissingPackageError) as error:
            return self._report_unrun(error.sentence)
        models, outputs = self.models, self.outputs
        self.problems += verdicts.shape_problems(outputs)
        self.unjudged += verdicts.list_nan_outputs(outputs)
        self.absent = [text for model in models if (text := getattr(model, "unjudged", ""))]
        self.unjudged += self.absent
        if quick or self.demands.max_lsb is not None:
            self.problems += verdicts.limit_problems(outputs, 1.0 if self.demands.max_lsb is None else self.demands.max_lsb)
        if quick and min_sqnr is not None:
            self.problems += verdicts.distant_outputs(graph, outputs, self.least, "more than --min-sqnr allows")
        floats = (
            compare_with_float_source(self.files[0], self.sides, models[1], self.feeds, self.steps) if self.encodings is not None else ()
        )
        held = ""
        if is_float or floats:
            held, wrong = verdicts.compare_with_float(self.files[0].graph, floats or outputs, verdicts.least_sqnr(min_sqnr, LEAST_OF_FLOAT))
            self.problems += wrong
        lacking = explain_missing_encodings(*self.sides)
        if lacking and not quick:
            self.unjudged.append(lacking)
        elif not quick:
            self._judge_files()
        machine = tuple(dict.fromkeys(model.note for model in models if model.note))
        notes = tuple(dict.fromkeys(filter(None, (self.read, *self.notes))))
        return CheckReport(
            str(self.files[0].path), str(result.path), len(self.feeds), outputs, self.findings, tuple(dict.fromkeys(self.problems)),
            tuple(self.unjudged), tuple(side.choice for side in self.sides), notes, machine,
            tuple(self.costs), describe_runtimes(self.sides, models),
            tuple(str(side.path) for side, model in zip(self.files, models, strict=True)
            if getattr(model, "rebuilt", False)), floats, held, texts=self.texts,
        )  # fmt: skip

    def _report_unrun(self, why: str) -> CheckReport:
        """What the files alone say, where a runtime does not run one of them."""
        if not self.demands.quick:
            again = repeat_conversion(*self.files, self.encodings)
            missing = find_missing_results(self.sides[0].graph, self.border.other, self.declared)
            self.notes += again.notes
            self.problems += verdicts.static_problems(self.sides[0].graph, {**missing, **self._find_changes(again)}, ())
        source, result = (str(side.path) for side in self.files)
        return CheckReport(source, result, 0, (), (), tuple(dict.fromkeys(self.problems)), (why,), notes=tuple(self.notes))

    def _run_inputs(self) -> tuple[Feeds, Outputs]:
        """Return the user's inputs, or random ones, and the outputs of both sides compared."""
        graph, data, samples = self.sides[0].graph, self.demands.data, self.demands.samples
        if are_texts(data):
            texts = TextInputs.read(self.files[0].graph, data, [side.path.parent for side in self.files], samples)
            self.texts = compare_texts(texts, self.border, self.models, self.progress)
            feeds = texts.feeds[: self._limit_samples(len(texts.feeds), sizes_of(graph, texts.feeds[0]))]
            notes: tuple[str, ...] = (f"texts are tokenized by {texts.tokenizer}",)
        else:
            samples = self._limit_samples(samples, sizes_to_try(graph)[0])
            if not data:
                return self._run_random(samples)
            most = samples * (self.steps or 1)
            feeds, notes = load_inputs(self.files[0].graph, data, most, self.demands.preparation.with_stretch())
        feeds = _complete_inputs(feeds, graph, self.demands.seed, self.models[0])
        outputs = self._compare_outputs(feeds)
        self.notes += notes
        return feeds, outputs

    def _judge_files(self) -> None:
        """Judge what the result's file has otherwise than the source's, and than the conversion that it names."""
        again = repeat_conversion(*self.files, self.encodings)
        self.notes += again.notes
        self.lossy = again.lossy
        if not (self.demands.data or self.steps or self._find_whole_runtime()):  # only operators explain what differs there
            self._run_extremes(again.same)
            self.unjudged += self.undefined.values()
        self._judge(again)

    def _find_changes(self, again: RepeatedConversion) -> dict[str, str]:
        """What the files state otherwise and the conversion did not declare, by the tensor, in words.

        What operators state that are proved to be the source's is left out: it computes the same."""
        graph, other = (side.graph for side in self.sides)
        changed = changed_values(graph, other, self.declared)
        changed |= find_costly_constants(graph, other, self.declared, bool(again.lossy))
        stated = {**compare_limits(graph, other, self.declared), **compare_attributes(graph, other)}
        readers, writers, same_results = graph.consumers(), graph.producers(), self.proof.same_results

        def is_proved(name: str) -> bool:
            ops = filter(None, (writers.get(name), *readers.get(name, ())))
            return name not in (*graph.inputs, *graph.outputs) and all(same_results.issuperset(filter(None, op.outputs)) for op in ops)

        stated = {name: text for name, text in stated.items() if name not in self.declared and name not in same_results}
        changed = {name: text for name, text in changed.items() if not is_proved(name)}
        return {**again.altered, **stated, **changed, **self.altered}

    def _limit_samples(self, samples: int, sizes: Mapping[str, int]) -> int:
        """How many inputs are run, of which all are held with the outputs of both sides; `sizes` are those of names in shapes."""
        graph = self.sides[0].graph
        own = nbytes(graph, sizes)
        each = sum(own[name] for name in graph.inputs) + 2 * sum(own.get(name, 0) for name in graph.outputs)
        fitting = Room.for_graphs(graph, self.sides[1].graph).samples(samples, each * (self.steps or 1))
        if fitting < samples:
            what = "with the outputs of both sides, all inputs require more memory than"
            self.notes.append(f"compared with {fitting} of {samples} inputs: {what} {MOST / 1e9:g} GB")
        return fitting

    def _run_random(self, samples: int) -> tuple[Feeds, Outputs]:
        """Return random inputs, and the outputs of both sides compared; a note says how the inputs were chosen.

        If the result refuses them and dimensions are dynamic, inputs get sizes that both sides take, such as no empty inner tensor."""
        (source, result), border, seed = self.models, self.border, self.demands.seed
        feeds, computed, note = accepted_inputs(border.graph, samples * (self.steps or 1), seed, source.run)
        if self.steps:
            self.notes.append(f"{samples} sequences of {self.steps} steps, with states carried on both sides")
        try:
            outputs = self._compare_outputs(feeds, None if self.steps else computed)
        except RuntimeRefusedError:
            if self.steps or all(border.graph[name].static_shape is not None for name in border.graph.inputs):
                raise

            def run(feed: Arrays) -> dict[str, Array]:
                result.run(border.convert_inputs(feed, result))
                return source.run(feed)

            feeds, computed, note = accepted_inputs(border.graph, samples, seed, run, "one of both")
            outputs = self._compare_outputs(feeds, computed)
        self.notes.append(note)
        return feeds, outputs

    def _run_extremes(self, same: bool) -> None:
        """Run both sides at the limits of the inputs' ranges and with other sizes, and keep the inputs for which they differ.

        Statistics of the outputs leave these inputs out: they are unlikely. If the result equals the repeated conversion (`same`), few are
        run, to save time: all inputs at either limit or zero, and small ones of other sizes. Else operators are compared for the
        last of other sizes too, if it is small: outputs may not show rows that are wrong. Inputs of zero show outputs that are NaN on one
        side alone, and truth values that differ; other differences for them are not kept, since every value is a tie or 0 / 0 there."""
        (source, result), border, seed, like = self.models, self.border, self.demands.seed, self.feeds[0]
        extreme, others = list(extreme_inputs(border.graph, like, seed)), inputs_of_other_sizes(border.graph, like, seed)
        if same:
            extreme, others = extreme[1:3], list(filter(_is_small, others))
        zero, last = zero_inputs(border.graph, like), others[-1] if others and not same else None
        for feed in (*extreme, *others, zero):
            try:
                given = border.convert_inputs(feed, result)
                if not _has_sizes(result, given):
                    continue  # of which some runtimes compute something else, as MNN does
                found = border.pair_outputs(source.run(feed), result.run(given))
            except QConvertError:
                continue  # an input need not be legal
            judged = (each for each in found if feed is not zero or each[1].dtype == np.bool_)
            if any(border.compare_output(name, [(a, b)]).differs for name, a, b in judged):
                self.further.append(feed)
            elif feed is last and _is_small(feed):
                self.larger.append(feed)
            for name, a, b in found:
                if a.dtype.kind == b.dtype.kind == "f" and a.shape == b.shape and not np.array_equal(np.isnan(a), np.isnan(b)):
                    self.undefined[name] = f"output {name!r} is NaN in only one of source and result at the ends of the inputs' ranges"

    def _compare_outputs(
        self, feeds: Feeds, computed: Feeds | None = None, models: Sequence[LoadedModel] = (), border: Border | None = None
    ) -> Outputs:
        """What both sides give for the same inputs, compared over all runs; of a model with states, what differs in words.

        Args:
            feeds: the source's inputs.
            computed: what the source computed from them; None if it has not run yet.
            models: both, loaded, where they are others than those of the check.
            border: which output is which, likewise.
        """
        models, border = models or self.models, border or self.border
        if self.steps:
            models = [Sequences(model, side.open, self.steps) for model, side in zip(models, self.sides, strict=True)]
        source, result = models
        computed = [source.run(feed) for feed in feeds] if computed is None else computed

        def run_result() -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
            for done, (feed, expected) in enumerate(zip(feeds, computed, strict=True)):
                actual = result.run(border.convert_inputs(feed, result))
                self.notes += border.describe_orders(expected, actual)
                yield expected, actual
                self.progress("inputs", done + 1, len(feeds))

        pairs = border.pair_runs(run_result())
        if self.steps:
            self.drifts = {name: text for name, found in pairs.items() if (text := describe_drift(border, name, found, self.steps))}
            self.notes += self.drifts.values()
        return tuple(border.compare_output(name, found) for name, found in pairs.items())

    def _open_models(self) -> tuple[LoadedModel, LoadedModel]:
        """Both models; without optimizations, if the user did not ask for any and the source is refused with them."""
        with name_file_in_errors(self.files[0].path):
            model = self._open_source()
        with name_file_in_errors(self.files[1].path):
            return model, self.sides[1].open()

    def _open_source(self) -> LoadedModel:
        """See _open_models()."""
        source = self.sides[0]
        try:
            return source.open()
        except RuntimeRefusedError as refused:
            if self.chosen:  # a conversion does not change the source
                refused.remedy = "Name other kernels, which run the source too: `qconvert formats` lists them."
            if self.chosen or "unoptimized" not in source.runtime.kernels:
                raise
            self.sides = source, _ = _disable_optimizations(source), _disable_optimizations(self.sides[1])
            try:
                model = source.open()
            except RuntimeRefusedError:
                raise refused from None
            self.notes.append(f"optimizations are off, because the runtime refuses the source with them: {refused.reason}")
            return model

    def _find_whole_runtime(self) -> Runtime | None:
        """The runtime of a side that runs whole models alone, if one does."""
        return next((side.runtime for side in self.sides if side.runtime.whole), None)

    def _judge(self, again: RepeatedConversion) -> None:
        """The operators, if they are needed for a verdict, and what all of it comes to.

        Nothing is compared where the outputs are proved equal, runs agree with that, and nothing was altered in the file. If the result is
        not what the conversion gives, its operators are compared too if the outputs are equal, since what stands in the file may show in
        no output of these inputs."""
        graph, outputs = self.border.graph, self.outputs
        equal = not any(item.differs for item in outputs) and not self.further
        fixed = find_fixed_outputs(graph)
        dull, per_op = verdicts.describe_dull_outputs(outputs, fixed), self.demands.per_op or again.rebuilt
        if self.proof.equal_for_all_inputs and equal and not (dull or per_op or again.altered or self.altered):
            return
        changed = self._find_changes(again)
        missing = find_missing_results(graph, self.border.other, self.declared)
        if equal and not changed and not missing and not dull and not per_op:
            if again.same:
                return
            alone = self._compare_operators(self.feeds[:1], changed)
            if isinstance(alone, str):
                self.unjudged += verdicts.list_untraced(self.proof, alone)
                return
            self.findings = tuple(item for item in alone if item.is_fault)
            self.problems += verdicts.operator_problems(self.findings)
            return
        found = self._compare_operators(self.feeds, changed)
        cannot, self.findings = (found, ()) if isinstance(found, str) else ("", found)
        self.notes += verdicts.overflow_notes(self.findings)
        self.problems += verdicts.operator_problems(self.findings)
        self.unjudged += verdicts.kernel_differences(self.findings)
        self.problems += verdicts.differing_parts(getattr(self.models[1], "parts", {}), self.findings)
        self.problems += verdicts.static_problems(graph, {**missing, **changed}, self.findings)
        if cannot:
            problems, unjudged = verdicts.judge_without_operators(outputs, cannot, fixed)
            if problems:
                problems, unjudged = verdicts.judge_without_operators(outputs, cannot, fixed, self._compare_own_kernels())
            self.problems += problems
            unsure = dull if equal else "the outputs differ at the ends of the inputs' ranges, or with other sizes" if self.further else ""
            self.unjudged += unjudged or ([f"{unsure}, and operators cannot be compared: {cannot}"] if unsure and not problems else [])
            self.unjudged += verdicts.list_untraced(self.proof, cannot) if equal and not problems else []
            return
        if equal:
            return
        own = [op for op in self.findings if op.reason not in BEYOND_BOUNDS]
        self.problems += verdicts.list_uncompared_outputs(graph, outputs, own)
        self.unjudged += verdicts.list_uncompared_outputs(graph, outputs, [op for op in self.findings if op.reason in BEYOND_BOUNDS])
        costly = bool(self.declared) and not verdicts.is_declared_exact(self.findings)
        why = "after changes that the conversion declared" if costly else verdicts.describe_growth(self.findings)
        judged = verdicts.select_limited_outputs(graph, outputs, self.findings)
        distant = verdicts.distant_outputs(graph, judged, self.least, why, top1=costly)
        if self.lossy:
            self.problems += verdicts.list_costly_operators(self.findings)
            drifting = describe_drift_costs(outputs, self.findings, self.drifts)
            self.costs += drifting or verdicts.output_costs(outputs)
            self.notes = [note for note in self.notes if not drifting or note not in self.drifts.values()]
        none_differs = not self.problems and all(op.equal == 1 for op in self.findings)
        if none_differs and self._check_unoptimized(changed):
            infinite = [item for item in judged if not np.isfinite(item.largest)]
            self.unjudged += verdicts.distant_outputs(graph, infinite, self.least, "caused by optimizations alone")
        else:
            self.problems += distant
        if self.costs:
            makes = "make" if self.lossy[1:] else "makes"
            self.notes.append(f"the result is what {' and '.join(self.lossy)} {makes} of the source, as requested")

    def _compare_own_kernels(self) -> dict[str, float]:
        """By how much the sets of kernels of the source's runtime differ at each output, in its unit."""
        source, found = self.sides[0], dict[str, float]()
        border = Border.of(source.graph, source.graph, frozenset())
        for kernels in () if self.steps else source.runtime.kernels:
            try:
                outputs = self._compare_outputs(self.feeds, None, (source.open(), source.use_kernels(kernels).open()), border)
            except QConvertError:
                continue
            found.update((item.name, max(item.largest, found.get(item.name, 0.0))) for item in outputs)
        return found

    def _compare_operators(self, feeds: Feeds, changed: Mapping[str, str]) -> tuple[Finding, ...] | str:
        """What is found of each operator; or why operators cannot be compared."""
        from qconvert.checking.per_operator import check_operators

        if (whole := self._find_whole_runtime()) is not None:
            return f"{whole.title} returns no inner tensors"
        try:
            first = feeds[: self.steps] if self.steps else feeds
            findings, notes = check_operators(
                *self.sides, first, self.models[1], self.border, changed, self.declared, self.progress, self.further, self.larger
            )
        except QConvertError as error:
            if self.demands.per_op:
                raise
            return f"{error.where}: {error.reason}" if error.where else error.reason
        self.notes += notes
        return findings

    def _check_unoptimized(self, changed: Mapping[str, str]) -> bool:
        """Return whether outputs that differ although no operator does are equal without optimizations, and so the work of an optimizer.

        Where they are not, the operators are compared without optimizations too."""
        plain = [_disable_optimizations(side) for side in self.sides]
        words = "every operator is equal when compared alone, the outputs are not"
        if all(new.kernels == old.kernels for new, old in zip(plain, self.sides, strict=True)):
            self.problems.append(words)
            return False
        models = plain[0].open(), plain[1].open()
        outputs = self._compare_outputs([*self.feeds, *self.further], None, models)
        if not any(item.differs for item in outputs):
            self.notes.append(f"{words}; without optimizations the outputs are equal: a runtime optimizes the two graphs differently")
            return True
        self.sides, self.models = (plain[0], plain[1]), models
        found = self._compare_operators(self.feeds, changed)
        if isinstance(found, str) or all(op.equal == 1 for op in found):
            self.problems.append(f"{words}, with and without optimizations")
            return False
        self.findings = found
        self.problems += verdicts.operator_problems(found)
        self.problems += verdicts.list_uncompared_outputs(self.border.graph, outputs, found)
        self.notes.append(f"{words}; the operators are compared without optimizations")
        return False


def _has_sizes(model: LoadedModel, feed: Arrays) -> bool:
    """Whether inputs have the sizes that a model fixes."""
    return all(
        isinstance(size, str) or size == own
        for name, value in feed.items()
        for size, own in zip(model.inputs[name][1], value.shape, strict=False)
    )


def _is_small(feed: Arrays) -> bool:
    return sum(value.size for value in feed.values()) <= _SMALL


def _complete_inputs(feeds: Feeds, graph: Graph, seed: int, model: LoadedModel) -> Feeds:
    """The inputs, with random ones for what custom operators compute in the user's file."""
    if not feeds or feeds[0].keys() >= set(graph.inputs):
        return feeds
    others = accepted_inputs(graph, len(feeds), seed, model.run)[0]
    return [{name: feed.get(name, other[name]) for name in graph.inputs} for feed, other in zip(feeds, others, strict=False)]


def _disable_optimizations(side: Side) -> Side:
    return side.use_kernels("unoptimized") if "unoptimized" in side.runtime.kernels else side
