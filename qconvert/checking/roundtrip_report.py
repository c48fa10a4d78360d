"""What a round trip found: a Leg for each conversion, and the report of all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qconvert.checking.findings import NOT_EQUAL, NOT_JUDGED, PASSED, OutputComparison
from qconvert.plugins import Change
from qconvert.tables import Rows, Shown, format_sentence, format_share, format_text


@dataclass(frozen=True, slots=True)
class Kept:
    """Counts of what two graphs have in common.

    Attributes:
        constants, constants_equal: constants of the first graph, and those that the second has with the same bits and type.
        integers: elements of the quantized ones among them.
        scales, scales_equal: quantized tensors, and those with the same scales, zero points and axis.
    """

    constants: int
    constants_equal: int
    integers: int
    scales: int
    scales_equal: int


@dataclass(frozen=True, slots=True)
class Leg:
    """One conversion of a round trip.

    Attributes:
        form: what was written, such as "onnx:qoperator".
        file: the file's name.
        changes: what the passes changed that fit the graph to the format.
        notes: what the writer says of the form that it chose.
        differences: what qconvert.diff finds between the model's graph, fitted to the form, and the one read from the file.
        kept: counts of what is equal between the two.
        outputs: the model's outputs compared with the file's, in their runtimes.
        arithmetic: why the outputs may differ by a rounding, or were not compared; "" where they must be equal.
        explained: differing operators by kind and reason, if the outputs differ.
        problems: in sentences, what was lost.
        unjudged: in sentences, what kept the outputs from being compared, such as a custom operator or a runtime that is not installed.
        machine: what the reader should know of how outputs were compared, where it is due to this machine's CPU.
    """

    form: str
    file: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    differences: tuple[str, ...]
    kept: Kept
    outputs: tuple[OutputComparison, ...]
    arithmetic: str
    explained: str
    problems: tuple[str, ...]
    unjudged: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class RoundtripReport(Shown):
    """All conversions of a round trip, in order, and notes on how it was made."""

    source: str
    form: str
    via: str
    legs: tuple[Leg, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """PASSED, NOT_EQUAL or NOT_JUDGED, as of a check: the last if no conversion has a problem, but one could not be run."""
        if any(leg.problems for leg in self.legs):
            return NOT_EQUAL
        return NOT_JUDGED if any(leg.unjudged for leg in self.legs) else PASSED

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED

    @property
    def sentence(self) -> str:
        """The verdict, and what is the same at the end."""
        kept = self.legs[-1].kept
        same = f"{kept.integers} quantized integers in {kept.constants} constants and {kept.scales} quantizations"
        ends = {PASSED: f"are the same after {len(self.legs)} conversions", NOT_EQUAL: "differ after the round trip"}
        return f"{format_text(Path(self.source).name)}: {self.verdict}: {same} {ends.get(self.verdict, 'could not all be run')}."

    def tables(self) -> tuple[Rows, ...]:
        """A row for each conversion, the problems, and the comparison of the outputs."""
        rows = [
            (leg.form, f"{len(leg.differences)} differences" if leg.differences else "equal",
             f"{leg.kept.constants_equal} of {leg.kept.constants}",
             f"{leg.kept.scales_equal} of {leg.kept.scales}", format_share(min(o.equal for o in leg.outputs)) if leg.outputs else "not run")
            for leg in self.legs
        ]  # fmt: skip
        found = [(leg.form, word, format_sentence(text)) for leg in self.legs for word, texts in (
            ("problem", leg.problems), ("inconclusive", leg.unjudged), ("change", tuple(map(str, leg.changes))), ("note", leg.notes),
            ("arithmetic", tuple(filter(None, (leg.arithmetic, leg.explained)))), ("machine", leg.machine),
        ) for text in texts]  # fmt: skip
        found += [(self.form, "note", format_sentence(text)) for text in self.notes]
        return (
            Rows("Conversions", ("to", "graph", ">constants equal", ">scales equal", ">outputs equal"), tuple(rows)),
            Rows("What was found", ("of", "", "in words"), tuple(found)),
        )
