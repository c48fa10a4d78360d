"""What benchmark() finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qconvert.tables import Rows, Shown, format_sentence, format_text, shorten_text

__all__ = ["BenchmarkReport", "Measured"]

_COLUMNS = ("~file", "runtime", ">median ms", ">best", ">processor", ">times the first", ">first run", ">file MB", ">memory MB")
_MEGA = 1e6
#: Characters of a reason in a table.
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class Measured:
    """A file in a runtime.

    Attributes:
        file: its path; of one that the benchmark converted, that of the model.
        target: what the benchmark converted it for; "" of a file that was there.
        kernels: what ran it, as `--kernels` names it; the target if that refuses the model.
        ran: the runtime with its version and the form of the file that ran, in words.
        runs: how many runs were measured.
        median, best: seconds that a run took.
        processor: median of the seconds in which processors worked on a run, all threads together.
        first: seconds for loading the file and its first run, with the runtime's package imported and the file read once before.
        file_bytes: size of the file and of those that belong to it.
        memory: bytes that the process held at most, beyond what it held before it loaded the file; 0 where the system does not say.
        note: what the runtime says of how it runs.
        problem: why nothing was measured; "" if it was.
    """

    file: str
    kernels: str
    target: str = ""
    ran: str = ""
    runs: int = 0
    median: float = 0.0
    best: float = 0.0
    processor: float = 0.0
    first: float = 0.0
    file_bytes: int = 0
    memory: int = 0
    note: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """The file without its folder, and the target."""
        return format_text(Path(self.file).name + (f" for {self.target}" if self.target else ""))


@dataclass(frozen=True, slots=True)
class BenchmarkReport(Shown):
    """How long files took in their runtimes, all in one go.

    Attributes:
        measured: in the order in which the files were named; the first that could be measured is what the others are compared with.
        machine: the processor, and how many there are.
        threads: how many a runtime was allowed.
    """

    measured: tuple[Measured, ...]
    machine: str
    threads: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What the runtimes say of how they ran, each once."""
        return tuple(dict.fromkeys(item.note for item in self.measured if item.note))

    @property
    def done(self) -> tuple[Measured, ...]:
        """What was measured."""
        return tuple(item for item in self.measured if not item.problem)

    def relative(self, item: Measured) -> float:
        """The median time of a run, the first one's being 1."""
        return item.median / self.done[0].median if self.done[0].median else 1.0

    @property
    def sentence(self) -> str:
        """The fastest one."""
        fastest = min(self.done, key=lambda item: item.median)
        text = f"fastest: {fastest.name} in {format_sentence(fastest.ran)}, {1000 * fastest.median:.3g} ms a run"
        first = self.done[0]
        return text if fastest is first else f"{text}, {self.relative(fastest):.2f} of {first.name} in {format_sentence(first.ran)}"

    def tables(self) -> Sequence[Rows]:
        """A row for each file in each runtime, and what could not be measured."""
        rows = tuple(
            (
                item.name, format_sentence(item.ran), f"{1000 * item.median:.3f}", f"{1000 * item.best:.3f}",
                f"{1000 * item.processor:.3f}",
                f"{self.relative(item):.2f}", f"{1000 * item.first:.1f}", f"{item.file_bytes / _MEGA:.2f}",
                f"{item.memory / _MEGA:.1f}" if item.memory else "",
            )
            for item in self.done
        )  # fmt: skip
        failed = tuple(
            (item.name, item.kernels, shorten_text(format_sentence(item.problem), _LONGEST)) for item in self.measured if item.problem
        )
        threads = "1 thread" if self.threads == 1 else f"{self.threads or 'any number of'} threads"
        found = [Rows(f"{threads}, {self.machine}", _COLUMNS, rows)]
        return [*found, Rows("Not measured", ("~file", "runtime", "why"), failed)] if failed else found
