"""Whether a target takes parts of a network: they are fitted by the target's own passes, as in a conversion, and then judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qconvert.conversion.losses import LIMIT, refuse_losses
from qconvert.conversion.normalizing import normalize
from qconvert.errors import InternalError, QConvertError
from qconvert.graph import Graph
from qconvert.operators.functions import all_ops
from qconvert.partitioning.expanding import Expanded
from qconvert.plugins import Change, Codegen, Target, Violation, codegen_of, formats, operators
from qconvert.plugins.rules import place
from qconvert.rewriting.lowering import legality, lower
from qconvert.targets.violations import violations

__all__ = ["Judge", "Refusal", "fit_to_target"]

#: Kinds that formats write in another form: calls are inlined, loops have forms of their own.
_WRITTEN_OTHERWISE = ("Call", "Loop", "Scan", "While")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a target does not take a part.

    Attributes:
        rule: in words.
        places: the operators and tensors concerned, as violations name them.
    """

    rule: str
    places: tuple[str, ...] = ()


@dataclass(slots=True)
class Judge:
    """Decides which operators of a graph one target takes.

    Attributes:
        target: the target.
        graph: the graph.
        lossless: whether it refuses operators of which its passes change a value; else convert() sets the limit.
    """

    target: Target
    graph: Expanded
    lossless: bool = False
    _known: dict[frozenset[int], Refusal | None] = field(default_factory=dict)

    @property
    def codegen(self) -> Codegen | None:
        return codegen_of(self.target.name)

    @property
    def holds_states(self) -> bool:
        """Whether files for it can hold states: its format does, or a pass makes them inputs and outputs that its runtime carries."""
        if self.codegen is not None:
            return self.codegen.states
        known = formats().get(self.target.format)
        return "states_to_io" in self.target.passes or (known is not None and "states" in known.scopes)

    def refusal(self, places: Iterable[int]) -> Refusal | None:
        """Return why the target does not take operators as one part; None if it does.

        Args:
            places: of the operators.
        """
        key = frozenset(places)
        if key not in self._known:
            self._known[key] = self._judge(key)
        return self._known[key]

    def _judge(self, places: frozenset[int]) -> Refusal | None:
        piece = self.graph.piece(places)
        try:
            made, changes = fit_to_target(piece, self.target)
        except InternalError:
            raise
        except QConvertError as error:
            return Refusal(" ".join(error.reason.split()), (error.where,))
        made = self._lower_for_format(made)
        costs = [change for change in changes if any(cost.sqnr_db is not None for cost in change.costs)] if self.lossless else ()
        if costs:
            return Refusal(f"{costs[0].by} would change values", tuple(cost.tensor for cost in costs[0].costs))
        found = violations(made, self.target)
        if found:
            return Refusal(_violation_text(found[0], made), tuple(violation.where for violation in found))
        return None if self.codegen is not None else self._writer_refusal(made)

    def _lower_for_format(self, made: Graph) -> Graph:
        """Lower the kinds that the target's format lacks, as its writer does."""
        writers = operators(self.target.format, "write")
        if not writers or all(op.kind in writers or op.kind in _WRITTEN_OTHERWISE for op in all_ops(made)):
            return made
        return lower(made, legality({}, also=frozenset((*writers, *_WRITTEN_OTHERWISE)))).graph

    def _writer_refusal(self, made: Graph) -> Refusal | None:
        """Return the refusal if the target's format cannot hold an operator or functions; else None."""
        known = formats().get(self.target.format)
        if made.functions and known is not None and known.write is not None and "functions" not in known.scopes:
            return Refusal(f"files of the format {known.name} hold no functions")
        writers = {*operators(self.target.format, "write"), *_WRITTEN_OTHERWISE}
        missing = [op for op in all_ops(made) if op.kind not in writers] if len(writers) > len(_WRITTEN_OTHERWISE) else []
        return Refusal(f"files of the format {self.target.format} have no {missing[0].kind}") if missing else None


def _violation_text(violation: Violation, graph: Graph) -> str:
    """Return the violated rule, with the detail if it names no tensor."""
    how = next((text for op in graph.ops if (text := violation.where.removeprefix(f"{place(op)}: ")) != violation.where), "")
    return violation.rule if not how or "'" in how or '"' in how else f"{violation.rule}: {how}"


def fit_to_target(piece: Graph, target: Target) -> tuple[Graph, tuple[Change, ...]]:
    """Fit a part by the target's passes; return it with their changes.

    Raises:
        QConvertError: a pass fails, or the loss is above the default limit of a conversion.
    """
    made, changes = normalize(piece, target)
    refuse_losses(changes, LIMIT)
    return made, changes
