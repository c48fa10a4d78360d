"""What a check finds: one Finding for each operator output, those of operators that were not judged among them, and the report of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qconvert.checking.proof.classes import Proof
from qconvert.errors import format_count, format_some
from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of
from qconvert.tables import Rows, Shown, format_sentence, format_share, format_text

#: An operator that a runtime refuses by itself, or that has no counterpart by name: nothing is known of it.
EQUAL, NOT_COMPARED = "equal", "not compared"
#: Reasons of operators that were not compared, because the check ran out of time or of memory.
OUT_OF_TIME = "the time limit for comparing operators was exceeded"
OUT_OF_MEMORY = "the tensors up to it exceed the memory limit of a check"
BEYOND_BOUNDS = (OUT_OF_TIME, OUT_OF_MEMORY)
#: From the best to the worst. "dynamic range": a kernel that quantizes its real input at each run; "requantized": to a quantization that
#: the conversion declared, as the result's own integers and scales say. OVERFLOW: of the source's own kernel, whose result is known to the
#: last bit and is not what the operator means; the result's is.
#: KERNELS: of a runtime whose own sets of kernels differ by as much as source and result do.
OVERFLOW, KERNELS = "source overflows", "kernels differ"
CLASSES = (EQUAL, "one rounding", "approximate", "dynamic range", "requantized", OVERFLOW, KERNELS, NOT_COMPARED, "unexplained")
#: Classes with their reasons that the note on a table of operators counts one by one.
_NAMED_CLASSES = 6
#: Verdicts of a check. AS_DECLARED: what the passes that the user named make of the source, to the last integer, at their cost.
PASSED, AS_DECLARED, NOT_EQUAL, NOT_JUDGED = "passed", "as declared", "not equal", "inconclusive"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is true of one operator output, in one run or, joined, in the worst of all.

    Attributes:
        verdict: one of CLASSES.
        reason: rounding tie, order of requantization, coarse arithmetic, saturation …
        equal: share of equal elements.
        largest: largest difference, in steps of the output's scale (of the range for float outputs).
        predicted_rate: the share that may differ at most.
        unexplained: how many elements are unexplained.
        operator, output: the operator as the source names it, and the tensor; "" before findings are joined.
        sqnr_db: of a "requantized" one, the source's signal to the difference from it, in dB; None if they are equal.
    """

    verdict: str
    reason: str = ""
    equal: float = 0.0
    largest: float = 0.0
    predicted_rate: float = 0.0
    unexplained: int = 0
    operator: str = ""
    output: str = ""
    sqnr_db: float | None = None

    @property
    def rank(self) -> int:
        """The place of the verdict among CLASSES."""
        return CLASSES.index(self.verdict)

    @property
    def is_fault(self) -> bool:
        """Whether nothing explains the difference."""
        return self.verdict == "unexplained"

    @classmethod
    def of_shapes(cls, a: Array, b: Array) -> Finding:
        """Of results of two shapes, the source's and the other."""
        return cls("unexplained", f"shape {b.shape} instead of {a.shape}", largest=float("inf"), unexplained=a.size)


def join_findings(op: Op, name: str, runs: Sequence[Finding]) -> Finding:
    """The findings of one output of an operator in several runs: the worst verdict, the largest difference, the mean share."""
    worst = max(runs, key=lambda item: item.rank)
    return replace(
        worst,
        equal=sum(item.equal for item in runs) / len(runs),
        largest=max(item.largest for item in runs),
        predicted_rate=max(item.predicted_rate for item in runs),
        unexplained=sum(item.unexplained for item in runs),
        sqnr_db=lowest_sqnr(runs),
        operator=op.label,
        output=name,
    )


def lowest_sqnr(items: Iterable[Finding | OutputComparison]) -> float | None:
    """The lowest signal to difference, in dB; None where nothing differs."""
    return min((item.sqnr_db for item in items if item.sqnr_db is not None), default=None)


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """One graph output over all runs.

    Attributes:
        name: the source's name of the output.
        equal: share of equal elements.
        largest, mean: difference, in `unit`.
        unit: "LSB" (steps of the output's scale), or "of range" for float outputs.
        sqnr_db: signal to difference, in dB; None if there is no difference.
        same_top1: share of runs with the same best class; None if the output is no row of scores.
        nan: how many elements are no number on both sides, and so cannot be compared.
        varied: share of the elements that are not the same in every run of the source.
        quantizations: "" if both sides have one quantization, or only one of them has one; else what differs, and `unit` is steps of the
            coarser one.
        shapes: "" if both sides give one shape; else both, and nothing is equal.
    """

    name: str
    equal: float
    largest: float
    mean: float
    unit: str
    sqnr_db: float | None
    same_top1: float | None
    nan: int = 0
    varied: float = 1.0
    quantizations: str = ""
    shapes: str = ""

    @property
    def differs(self) -> bool:
        """Whether an element that can be compared differs."""
        return self.largest > 0


@dataclass(frozen=True, slots=True)
class TextComparison:
    """How well two language models predict texts.

    Attributes:
        windows: how many pieces of the texts were run.
        tokens: how many tokens were predicted.
        perplexities: of source and result.
        sqnr_db: signal to difference of the logits, in dB; None if there is no difference.
    """

    windows: int
    tokens: int
    perplexities: tuple[float, float]
    sqnr_db: float | None

    @property
    def sentence(self) -> str:
        """Both perplexities, and the distance of the logits."""
        logits = "the logits are equal" if self.sqnr_db is None else f"SQNR of the logits {self.sqnr_db:.1f} dB"
        size = f"{format_count(self.tokens, 'token')} in {format_count(self.windows, 'window')}"
        before, after = self.perplexities
        return f"perplexity {before:.6g} of the source, {after:.6g} of the result, on {size}; {logits}"


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Shown):
    """What a check found.

    Attributes:
        source, result: the files.
        runs: how many inputs were run.
        outputs, operators: what was compared.
        problems: in sentences, why the two are not equal.
        unjudged: in sentences, what kept the check from judging; without problems that is the verdict.
        kernels: what ran the source and what ran the result, such as "litert:default".
        notes: what the reader should know of how the check was done.
        machine: likewise, where it is due to this machine's CPU.
        costs: in sentences, what the passes that the user named cost at the outputs.
        ran: the runtime and form of each side, and the runtimes of a target that were not run, in words.
        rebuilt: those of both files that were not run themselves, but rebuilt from what was read of them.
        float_outputs: outputs of a quantized model compared with those of its float source for the same inputs; `outputs` compares the
            result with the source quantized with the same scales.
        float_verdict: the summary of float_outputs in one sentence; "" if the source is not float.
        proof: what is proved for all inputs; None where no runtime takes a model.
        texts: how well both predict the texts that they were run on; None where the inputs are no texts.
    """

    source: str
    result: str
    runs: int
    outputs: tuple[OutputComparison, ...]
    operators: tuple[Finding, ...]
    problems: tuple[str, ...]
    unjudged: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()
    ran: str = ""
    rebuilt: tuple[str, ...] = ()
    float_outputs: tuple[OutputComparison, ...] = ()
    float_verdict: str = ""
    proof: Proof | None = None
    texts: TextComparison | None = None

    @property
    def verdict(self) -> str:
        """PASSED, AS_DECLARED, NOT_EQUAL or NOT_JUDGED."""
        if self.problems:
            return NOT_EQUAL
        return NOT_JUDGED if self.unjudged else AS_DECLARED if self.costs else PASSED

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong with the result: PASSED or AS_DECLARED."""
        return self.verdict in (PASSED, AS_DECLARED)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        names = f"{format_text(Path(self.result).name)} vs. {format_text(Path(self.source).name)}"
        if self.rebuilt:
            rebuilt = "" if self.rebuilt == (self.source,) else " and ".join(format_text(Path(item).name) for item in self.rebuilt) + " "
            names += f" ({rebuilt}rebuilt from what was read, not run as the file is)"
        inputs = f"{self.runs} inputs" if self.runs != 1 else "1 input"
        inputs += f"; {self.float_verdict}" if self.float_verdict else ""
        if self.verdict == PASSED:
            equal = all(item.equal == 1 for item in self.outputs)
            explained = f"each operator that differs is explained{self._describe_merged_roundings()}"
            how = "every output element is equal" if equal else f"{explained}; {self._describe_distance()}"
            if equal and self.proof is not None and self.proof.claim:
                how = f"{self.proof.claim}, and {how}"
            same = sum(item.verdict == EQUAL for item in self.operators)
            operators = f", {same} of {len(self.operators)} operators equal" if self.operators else ""
            return f"passed: {names}: {how}, on {inputs}{operators}"
        if self.verdict == AS_DECLARED:
            distance = self._describe_distance()
            return f"as declared: {names}: what differs is the cost of the passes that were asked for; {distance}, on {inputs}"
        if self.verdict == NOT_EQUAL:
            return f"not equal: {names}: {format_sentence(self.problems[0])}"
        return f"inconclusive: {names}: {format_sentence(self.unjudged[0])}"

    def _describe_merged_roundings(self) -> str:
        """Which roundings the runtime may leave out in the whole model, which no operator alone shows."""
        merged = () if self.proof is None else self.proof.merged_roundings
        return f", and the runtime may make one rounding of {format_some(merged, 3)} and of the one before" if merged else ""

    def _describe_distance(self) -> str:
        """How far the outputs are apart, in words."""
        worst = max(self.outputs, key=lambda item: item.largest if item.unit == "LSB" else 255 * item.largest)
        sqnr = lowest_sqnr(self.outputs)
        unit = ("step" if worst.largest == 1 else "steps") if worst.unit == "LSB" else worst.unit
        steps = f"{worst.largest:.4g} {unit}"
        return f"outputs differ by up to {steps}" + ("" if sqnr is None else f", SQNR {sqnr:.1f} dB")

    def tables(self) -> tuple[Rows, ...]:
        """What is wrong, the outputs, the operators, and what the reader should know."""
        found = [(word, format_sentence(text)) for word, texts in (
            ("ran", filter(None, (self.ran,))), ("proof", () if self.proof is None else (self.proof.sentence,)),
            ("float against quantized", filter(None, (self.float_verdict,))),
            ("texts", () if self.texts is None else (self.texts.sentence,)),
            ("problem", self.problems), ("inconclusive", self.unjudged), ("cost", self.costs), ("note", self.notes),
            ("machine", self.machine),
        ) for text in texts]  # fmt: skip
        floats = (replace(outputs_table(self.float_outputs), title="Float against quantized"),) if self.float_outputs else ()
        proved = () if self.proof is None else self.proof.tables()
        return (
            Rows("What was found", ("", "in words"), tuple(found)), *floats, outputs_table(self.outputs), operators_table(self.operators),
            *proved,
        )  # fmt: skip


def outputs_table(outputs: Sequence[OutputComparison]) -> Rows:
    """How far each output is equal."""
    rows = [
        (format_text(item.name), format_share(item.equal), f"{item.largest:.6g} {item.unit}", f"{item.mean:.2g}",
         "exact" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB", "" if item.same_top1 is None else format_share(item.same_top1))
        for item in outputs
    ]  # fmt: skip
    return Rows("Outputs", ("~output", ">equal", ">largest", ">mean", ">SQNR", ">same top-1"), tuple(rows))


def operators_table(operators: Sequence[Finding]) -> Rows:
    """How far each operator is equal, and of which class it is; the note says how many are of each."""
    rows = [
        (format_text(op.operator), format_text(op.output), format_share(op.equal), f"{op.largest:.4g}", f"{100 * op.predicted_rate:.3g}%",
         op.verdict if op.sqnr_db is None else f"{op.verdict}, {op.sqnr_db:.1f} dB", format_text(op.reason))
        for op in operators
    ]  # fmt: skip
    heads = ("~operator", "~output", ">equal", ">largest", ">predicted", "class", "reason")
    return Rows("Operators", heads, tuple(rows), tuple(op.verdict for op in operators), _count_classes(operators), len(rows) > 40)


def _count_classes(operators: Sequence[Finding]) -> str:
    """How many operators are of each class, with the range of what those cost that cost something."""
    classes = Counter((op.verdict, op.reason) for op in operators)
    found = []
    for (verdict, reason), count in classes.most_common():
        costs = [op.sqnr_db for op in operators if (op.verdict, op.reason) == (verdict, reason) and op.sqnr_db is not None]
        cost = f"SQNR {min(costs):.1f} to {max(costs):.1f} dB" if len(costs) > 1 else f"SQNR {costs[0]:.1f} dB" if costs else ""
        words = ", ".join(filter(None, (format_text(reason), cost)))
        found.append(f"{count} {verdict}" + (f" ({words})" if words else ""))
    if len(found) > _NAMED_CLASSES:
        found[_NAMED_CLASSES:] = [f"{sum(count for _, count in classes.most_common()[_NAMED_CLASSES:])} of other classes or reasons"]
    return "; ".join(found)


def find_judged_together(graph: Graph, compared: Collection[str], cuts: Collection[str]) -> set[int]:
    """Positions of the operators without a finding of their own that are part of what others were compared for.

    Where neither side is cut at a tensor, the result computes it again for whatever reads it, so the comparison of that judges both.

    Args:
        graph: the source's.
        compared: names of the tensors that were compared.
        cuts: names of those at which both sides are cut.
    """
    needed: set[str] = set()
    found: set[int] = set()
    for position, op in reversed(list(enumerate(graph.ops))):
        by_itself = any(name in compared for name in op.outputs)
        if by_itself or any(name in needed for name in op.outputs):
            needed.update(name for name in op.inputs if name not in cuts)
            if not by_itself:
                found.add(position)
    return found


def name_judged_together(graph: Graph, within: Collection[int], findings: dict[str, Finding]) -> None:
    """Name in each finding of a fault the operators judged together with it: any of them may be wrong.

    Args:
        graph: the source's.
        within: see find_judged_together().
        findings: by the tensor.
    """
    writers = {name: (position, op) for position, op in enumerate(graph.ops) for name in op.outputs if name}
    for name, finding in findings.items():
        waiting, found = [*writers[name][1].inputs] if finding.is_fault else [], dict[int, Op]()
        while waiting:
            position, op = writers.get(waiting.pop(), (-1, None))
            if op is not None and position in within and position not in found:
                found[position] = op
                waiting += op.inputs
        if found:
            words = [f"{op.label} ({op.outputs[0]!r})" for op in {op.label: op for op in found.values()}.values()]
            findings[name] = replace(finding, reason=f"{finding.reason}, judged together with {format_some(words, 3)}")


def make_left_out_findings(
    graph: Graph, compared: Collection[str], within: Collection[int], refused: Mapping[str, str]
) -> dict[str, Finding]:
    """A finding for each operator that was not judged, by its first output.

    Operators that lead to no output or state of the graph do not count, nor do reads of a state: their values are fed to their readers.

    Args:
        graph: the source's.
        compared: names of the tensors that were compared.
        within: see find_judged_together().
        refused: why a runtime refused what computes a tensor.
    """
    useful = set(graph.outputs)
    found: dict[str, Finding] = {}
    for position, op in reversed(list(enumerate(graph.ops))):
        if kind_of(op).rule == "state":
            useful.update(op.inputs)
            continue
        if not any(name in useful for name in op.outputs):
            continue
        useful.update(op.inputs)
        if position in within or any(name in compared for name in op.outputs):
            continue
        reason = next((refused[name] for name in op.outputs if name in refused), "no output has the same name in both files")
        name = next(name for name in op.outputs if name)
        found[name] = Finding(NOT_COMPARED, reason, operator=op.label, output=name)
    return dict(reversed(found.items()))


def add_changed_findings(graph: Graph, changed: Mapping[str, str], findings: dict[str, Finding]) -> None:
    """Operators that read a constant or write a tensor whose integers, scale or zero point are not the source's."""
    for op in graph.ops:
        reasons = [changed[name] for name in op.inputs if name in changed and graph[name].is_constant]
        for name in op.outputs:
            own = [*reasons, *([changed[name]] if name in changed else [])]
            if own:
                nothing = Finding("unexplained", operator=op.label, output=name)
                findings[name] = replace(findings.get(name, nothing), verdict="unexplained", reason=", ".join(own))
