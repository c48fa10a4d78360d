"""audit_all(): what of a model each target would run as integers, side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.checking.auditing import audit
from qconvert.conversion import load
from qconvert.conversion.in_memory import Model, model_title
from qconvert.errors import QConvertError, format_some
from qconvert.graph import Graph
from qconvert.plugins import Target, targets
from qconvert.plugins.options import ReadOptions
from qconvert.tables import Rows, Shown, format_sentence, format_text
from qconvert.targets.audit import count_operators

#: Reasons in the table; an audit for the one target has the others.
_NAMED = 2


@dataclass(frozen=True, slots=True)
class TargetAudit:
    """What a target would run.

    Attributes:
        target: its name.
        format: the format of its files.
        integers: how many operators are predicted to run on integers.
        total: how many there are, but for those that only convert between float and stored integers.
        reasons: why the others run in float, with the number of operators, the most frequent first.
        refused: why the target does not take the model; "" if it does.
    """

    target: str
    format: str
    integers: int = 0
    total: int = 0
    reasons: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TargetAudits(Shown):
    """The audits of a model for all targets whose kernels are known.

    Attributes:
        source: the file.
        targets: one for each.
    """

    source: str
    targets: tuple[TargetAudit, ...]

    @property
    def sentence(self) -> str:
        """How many targets take the model, and how many of these run all of it on integers."""
        taken = [item for item in self.targets if not item.refused]
        whole = sum(item.integers == item.total for item in taken)
        return (
            f"{format_text(Path(self.source).name)}: {len(taken)} of {len(self.targets)} targets take it, {whole} run all of it on integers"
        )

    def tables(self) -> tuple[Rows, ...]:
        """A row for each target."""
        rows = tuple(
            (
                item.target, item.format, "" if item.refused else f"{item.integers} of {item.total}",
                format_sentence(f"refused: {_first_rule(item.refused)}" if item.refused else format_some(item.reasons, _NAMED)),
            )
            for item in self.targets
        )  # fmt: skip
        marks = tuple("unexplained" if item.refused else "" if item.integers == item.total else "approximate" for item in self.targets)
        return (Rows("Quantized operators that run on integers", ("target", "format", ">on integers", "why not all"), rows, marks),)


def _first_rule(reason: str) -> str:
    """Of what a target refuses in several places the first rule, else the reason."""
    rules = [line.removeprefix("- rule: ").partition(". Broken by")[0] for line in reason.splitlines() if line.startswith("- rule: ")]
    return rules[0] if rules else reason


@with_checked_arguments
def audit_all(model: Model, *, format: str = "", **options: Unpack[ReadOptions]) -> TargetAudits:
    """Predict for every target whose kernels are known which operators of a model it runs as integers; nothing is written.

    Args:
        model: a model file, its content as bytes, or a graph.
        format: the name of its format, if suffix and content do not determine it.
        options: of the model's reader, such as input_shape.

    Raises:
        QConvertError: the model cannot be read.
    """
    graph = load(model, format, **options)
    return TargetAudits(model_title(model), tuple(_audit_target(graph, target) for target in targets().values() if target.knows_kernels))


def _audit_target(graph: Graph, target: Target) -> TargetAudit:
    try:
        lines = audit(graph, target.name).lines
    except QConvertError as error:
        return TargetAudit(target.name, target.format, refused=error.reason)
    integers, total, _ = count_operators(lines)
    floats = Counter[str]()
    for line in lines:
        if not line.integer and not line.converts:
            floats[line.reason] += line.count
    return TargetAudit(target.name, target.format, integers, total, tuple(f"{count}: {reason}" for reason, count in floats.most_common()))
