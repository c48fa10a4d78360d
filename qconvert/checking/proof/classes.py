"""The classes of operators in a proof, and the proof of a whole result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from qconvert.errors import format_count
from qconvert.tables import Rows, Shown, format_text

#: Of an operator, in words.
CLASSES = {
    "E0": "identical parameters, and kernels that compute alike",
    "E1": "other forms or parameters, with equal integers for every input",
    "R1": "integers that differ for inputs that are named",
    "A": "integers that differ by at most one, as the kernels' tolerances allow, or float values by at most a bound",
    "?": "nothing is proved",
}
#: Those with equal integers for every input.
EQUAL_CLASSES = ("E0", "E1")
#: The method by which float values of class A are bounded.
ERROR_BOUND = "error bound"
#: Why nothing is proved of a rounding that comparing operators alone does not show.
MERGED = "its runtime may make one rounding of it and of the one before"


@dataclass(frozen=True, slots=True)
class Proved:
    """What is proved of an operator of the result.

    Attributes:
        operator: as the source names it; as the result does where it is none of the source's.
        output: the result's tensor; "" where there is none.
        class_: one of CLASSES; "class" in documents.
        method: "identical parameters", "form of the kernel", "256 codes", "65536 pairs", "1021 sums", "thresholds", "tolerances", "error
            bound" or "".
        why: of those that are not equal, in words.
    """

    operator: str
    output: str
    class_: str
    method: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Proof(Shown):
    """What is proved of a result compared with its source.

    Attributes:
        operators: of the result's operators that compute something, each with its class.
        problems: in sentences, what else keeps the outputs from being proved equal, such as one that is not traced to the source's.
        lost: operators of the source that none of the result stands for.
        faults: in sentences, which values are other ones in the result whatever the kernels do, as where a Clip is lost or one too
            many, or floats are rounded to float16.
        equal_for_all_inputs: whether every output has the source's integers for every input.
        equal_once_quantized: the same, except for operators that quantize float inputs: runtimes round these in several ways.
        same_results: the source's tensors whose operators are proved equal: what constants, attributes and quantizations the result states
            there is compared.
    """

    operators: tuple[Proved, ...]
    problems: tuple[str, ...]
    lost: tuple[str, ...]
    faults: tuple[str, ...]
    equal_for_all_inputs: bool
    equal_once_quantized: bool
    same_results: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def claim(self) -> str:
        """What is proved of the outputs, in words; "" if nothing is."""
        if self.equal_for_all_inputs:
            return "proved equal for all inputs"
        return "proved equal for all inputs once they are quantized" if self.equal_once_quantized else ""

    @property
    def sentence(self) -> str:
        """What is proved, in one sentence."""
        counts = Counter(item.class_ for item in self.operators)
        equal, count = sum(counts[name] for name in EQUAL_CLASSES), len(self.operators)
        if self.claim:
            return f"{self.claim}: {format_count(count, 'operator')} ({_format_counts(counts)})"
        text = f"proved: {equal} of {format_count(count, 'operator')} equal for all inputs ({_format_counts(counts)})"
        steps = sum(item.class_ == "A" and item.method != ERROR_BOUND for item in self.operators)
        near = "each of the others differs by at most one step" if steps == count - equal > 0 else ""
        return "; ".join(filter(None, (text, near, *self.problems[:1])))

    @property
    def merged_roundings(self) -> tuple[str, ...]:
        """The operators of which the runtime may make one rounding with the one before."""
        return tuple(item.operator for item in self.operators if item.why == MERGED)

    def tables(self) -> tuple[Rows, ...]:
        """The operators with their classes, and what else keeps the outputs from being equal."""
        problems = Rows("Problems", ("problem",), tuple((text,) for text in self.problems))
        return (self.table(self.operators), *([problems] if self.problems else []))

    @staticmethod
    def table(operators: Sequence[Proved]) -> Rows:
        """Operators with their classes."""
        rows = [
            (format_text(item.operator), format_text(item.output), item.class_, item.method, format_text(item.why)) for item in operators
        ]
        return Rows("Proof", ("~operator", "~output", "class", "method", "why"), tuple(rows), folded=len(rows) > 40)


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in CLASSES if counts[name])
