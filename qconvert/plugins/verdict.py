"""What a target says of an operator, and what of a graph it does not take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["IN_THE_FILE", "Runs", "Verdict", "Violation"]

#: The order of violations of what a file would hold.
IN_THE_FILE = 2

#: How an operator runs on a target.
Runs = Literal["integers", "floats", "cpu", "refused"]


@dataclass(frozen=True, slots=True)
class Violation:
    """Something in a graph that a target does not take.

    Attributes:
        where: the operator and the tensor concerned.
        rule: what the target's specification says, in words.
        remedy: the pass or the option that would help; "" if there is none.
        order: 0 for the graph itself, 1 for an operator that cannot be written, 2 for the file's content: the order of refusals.
    """

    where: str
    rule: str
    remedy: str = ""
    order: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a target runs an operator, by which rule, and what helps.

    Attributes:
        runs: on stored integers, in float, on the CPU next to an accelerator, or not at all.
        rule: why, in words, as a line of the audit says it.
        remedy: the pass or the option that helps where it does not run on integers; "" if there is none.
        isolated_for: why the operator has to stand in float between Dequantize and Quantize, in the words of a list of many
            such operators; "" if it need not (pass isolate_float).
        violations: every rule that it breaks, if it is refused.
    """

    runs: Runs
    rule: str
    remedy: str = ""
    isolated_for: str = ""
    violations: tuple[Violation, ...] = ()
