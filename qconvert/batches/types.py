"""What a batch is to do with each model, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from qconvert.tables import Rows, Shown, format_sentence, format_text

__all__ = ["STATUSES", "BatchReport", "Job", "Outcome"]

#: The statuses of a model of a batch, the best first.
STATUSES: Mapping[str, str] = {
    "passed": "converted; the check passed",
    "as declared": "converted; its outputs differ by what passes that the user named cost",
    "converted": "converted; not checked",
    "skipped": "no model: a link, or no plain file",
    "refused": "not converted, or not read: the user's or the model's error",
    "inconclusive": "converted; the check could not judge it",
    "not equal": "converted; the check found differences",
    "ended": "ended, since it took more time or memory than it may",
    "fault": "qconvert, or what it ran, failed",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One model of a batch. It can be pickled, and names everything by absolute paths.

    Attributes:
        name: the model's path within the folder, with slashes.
        source: the model.
        result: where its conversion is written.
        record: the file of its outcome; it exists when the model is done.
        key: of the model, its state and the options: a record with another key is one of an earlier, other batch.
        convert: arguments of `qconvert convert` after the two files.
        check: arguments of `qconvert check` after the two files; None for no check.
        seconds: how long each of the two commands may take.
        memory: bytes of address space that each of them may take; 0 for no limit.
    """

    name: str
    source: str
    result: str
    record: str
    key: str
    convert: tuple[str, ...] = ()
    check: tuple[str, ...] | None = None
    seconds: float = 600.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one model.

    Attributes:
        name: the model's path within the folder, with slashes.
        status: one of STATUSES.
        reason: why, where it did not go well; what the check or the error says.
        result: the file that was written, within the folder of results; "" if there is none.
        target: that it was converted for.
        operators: how many operators were written.
        seconds: how long it took, check included.
        before: whether an earlier run of the batch did it.
    """

    name: str
    status: str
    reason: str = ""
    result: str = ""
    target: str = ""
    operators: int = 0
    seconds: float = 0.0
    before: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class BatchReport(Shown):
    """What came of all models of a folder.

    Attributes:
        folder: that they are in.
        out: the folder of results.
        outcomes: one for each model, by name.
        seconds: how long the run took.
    """

    folder: str
    out: str
    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """How many models ended in each way, in the order of STATUSES; ways in which none did are left out."""
        found = Counter(item.status for item in self.outcomes)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def sentence(self) -> str:
        """How many models ended in which way."""
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        before = sum(item.before for item in self.outcomes)
        return f"{len(self.outcomes)} models: {counts}; {self.seconds:.1f} s" + (f"; {before} were done before" if before else "")

    def tables(self) -> tuple[Rows, ...]:
        """What came of each model."""
        rows = [
            (format_text(item.name), item.status, str(item.operators or ""), f"{item.seconds:.1f}", format_sentence(item.reason))
            for item in self.outcomes
        ]
        return (Rows("Models", ("~model", "status", ">operators", ">seconds", "reason"), tuple(rows)),)
