"""A target: the abilities of one destination, the one judge of its operators, and targets derived from other targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, overload

from qconvert.errors import OptionError
from qconvert.plugins.abilities import IN_THE_FILE, Abilities, OwnRules, Verdict, Violation

if TYPE_CHECKING:
    from qconvert.graph import Graph, Op, Tensor


#: Arguments of derive() that add to a field of the target instead of replacing it.
_FURTHER = ("further_passes", "further_rules")


@dataclass(frozen=True, slots=True)
class Derived:
    """A target that is another one with changes, by the other's name: what Target.derive gives to a plugin.

    Attributes:
        base: the name of the other.
        name: of this one.
        changes: fields of Target.
    """

    base: str
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def replaces(self) -> str:
        """Its own name, where it replaces another plugin's target of that name."""
        return str(self.changes.get("replaces", ""))


def _both(first: OwnRules | None, second: OwnRules | None) -> OwnRules | None:
    """The rules of two."""
    if first is None or second is None:
        return first or second

    def rules(graph: Graph) -> Callable[[Op], Iterable[Violation]]:
        found = [item(graph) for item in (first, second)]
        return lambda op: (violation for rule in found for violation in rule(op))

    return rules


class Target(Abilities):
    """What one destination can do, as data (see Abilities for the fields), and what follows of it for an operator."""

    __slots__ = ()

    def judge(self, graph: Graph, op: Op, *, final: bool = True) -> Verdict:
        """How the target runs an operator. Nobody else decides that: the audit, the refusals and the passes ask here.

        Args:
            graph: that the operator belongs to.
            op: the operator.
            final: whether the graph is normalized, so that what breaks a rule now is refused; before, passes may still mend it, and the
                verdict says only whether the operator would run on integers. To judge many operators of a graph, use verdicts().
        """
        return next(iter(self._judge_operators(graph, (op,), final)))

    def verdicts(self, graph: Graph, *, final: bool = True) -> Iterator[tuple[Op, Verdict]]:
        """Every operator of a graph with what judge() says of it."""
        return zip(graph.ops, self._judge_operators(graph, graph.ops, final), strict=True)

    def violations_alone(self, tensors: Mapping[str, Tensor], op: Op) -> tuple[Violation, ...]:
        """Return what of the target's own rules an operator breaks in a graph that holds it alone; nothing if the accelerator runs it.

        Args:
            tensors: those that the operator names, and others.
            op: the operator.
        """
        if self.own_rules is None:
            return ()
        from qconvert.graph import Graph

        alone = Graph("alone", {name: tensors[name] for name in op.names if name}, (op,), (), ())
        if self.accelerator is not None and not self.accelerator.lacks(alone)(op):
            return ()
        return tuple(self.own_rules(alone)(op))

    def has_no_kernel(self, tensors: Mapping[str, Tensor], op: Op) -> bool:
        """Return whether the rules object to the file of the operator alone. A file that cannot be written holds nothing to object to."""
        return any(broken.order == IN_THE_FILE for broken in self.violations_alone(tensors, op))

    def placements(self, graph: Graph) -> Iterator[tuple[Op, Verdict]]:
        """Every operator of a normalized graph with what judge() says of it; of a target with an accelerator, which of both runs it."""
        if self.accelerator is None:
            yield from self.verdicts(graph, final=False)
            return
        lacks = self.accelerator.lacks(graph)
        for op in graph.ops:
            words = lacks(op)
            fault = self.accelerator.fault(graph, op) if self.accelerator.fault is not None else ""
            runs = f"{self.accelerator.name} runs it" + (f", wrongly: {fault}" if fault else "")
            yield op, Verdict("cpu", words) if words else Verdict("integers", runs)

    def ensures(self, property: str) -> bool:
        """Return whether a pass of the target ensures a property of graphs, in the words of the pass."""
        from qconvert.plugins.registry import pass_named

        return any(property in pass_named(name).ensures for name in self.passes)

    def _judge_operators(self, graph: Graph, ops: tuple[Op, ...], final: bool) -> Iterator[Verdict]:
        from qconvert.plugins.judging import judge_operators

        return judge_operators(self, graph, ops, final)

    def on(self, kernels: str) -> Target:
        """The target on the device that kernels of its runtime stand for; itself where that makes no difference."""
        changes = self.by_kernels.get(kernels)
        return self if changes is None else replace(self, name=f"{self.name} for {kernels.upper()}", **changes)

    @overload
    def derive(self: Target, **changes: Any) -> Target: ...
    @overload
    def derive(self: str, **changes: Any) -> Derived: ...  # type: ignore[misc]  # Target.derive("ort-arm", …), by its name
    def derive(self: Target | str, **changes: Any) -> Target | Derived:
        """Another target with some fields changed: `target.derive(name="mine", …)`, or by name `Target.derive("ort-arm", name="mine", …)`.

        Args:
            changes: fields of Target; `name` is one of them. A dict as `storage` changes these fields of it alone. `further_passes` are
                names of passes that run after the others, and `further_rules` are own_rules besides the others.

        Raises:
            OptionError: there is no such field, or no name other than that of the target itself.
        """
        unknown = changes.keys() - {item.name for item in fields(Abilities)} - {*_FURTHER}
        if unknown or changes.get("name") in (None, "", self.name if isinstance(self, Target) else self):
            reason = f"a target has no {', '.join(sorted(unknown))}" if unknown else "a target that is derived needs a name of its own"
            raise OptionError(
                reason,
                remedy=f"Fields of a target: {', '.join(item.name for item in fields(Abilities))}.",
                rule=("unknown-field" if unknown else "name-missing"),
            )
        if isinstance(self, Target):
            changed = {"replaces": "", **changes}
            if isinstance(storage := changed.get("storage"), Mapping):
                changed["storage"] = replace(self.storage, **storage)
            further, rules = (changed.pop(name, None) for name in _FURTHER)
            found = replace(self, **changed)
            return replace(found, passes=(*found.passes, *(further or ())), own_rules=_both(found.own_rules, rules))
        return Derived(self, changes["name"], changes)
