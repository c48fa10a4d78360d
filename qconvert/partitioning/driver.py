"""partition(): which regions of a network targets take, largest first, and which operators stay outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.errors import OptionError, QConvertError
from qconvert.graph import Graph, Op, Shape, Tensor, count_kinds
from qconvert.operators import find_kind, kind_of
from qconvert.operators.shapes_and_functions import named_states
from qconvert.partitioning.parts import Judge, expand_graph
from qconvert.partitioning.region_growing import REST, condense, grow_regions, sorted_groups
from qconvert.partitioning.regions import (
    STATES,
    Bases,
    Candidate,
    Part,
    bases_of,
    candidates,
    kinds_of,
    name_parts,
    region_graph,
    with_regions,
)
from qconvert.partitioning.types import Outside, Partition, Region
from qconvert.plugins import Target, find_target, pass_named
from qconvert.rewriting.control_flow import without_calls
from qconvert.rules.validation import validate


@dataclass(frozen=True, slots=True)
class Cut:
    """A network as it is cut, before anything is written.

    Attributes:
        partition: what users see of it.
        bases: the units.
        parts: the regions, in the order of partition.regions.
    """

    partition: Partition
    bases: Bases
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Unwritable:
    """Operators of a region that the writer of its target's format refuses, whatever the target's rules say.

    Attributes:
        target: its name.
        outputs: what the operators compute.
        reason: in words.
    """

    target: str
    outputs: frozenset[str]
    reason: str

    @classmethod
    def of(cls, region: Graph, target: str, error: QConvertError) -> Unwritable:
        """Return the operators that an error names; all of the region if it names none."""
        named = [op for op in region.ops if _is_named(op, (error.where,))] or region.ops
        return cls(target, frozenset(name for op in named for name in op.outputs if name), " ".join(error.reason.split()))


@dataclass(slots=True)
class _Owners:
    """The targets of units, as far as they are known.

    Attributes:
        bases: the smallest units.
        judges: of the targets, by priority.
        refused: (number of the target, unit) -> why it does not get it.
    """

    bases: Bases
    judges: Sequence[Judge]
    listed: Sequence[list[Candidate]]
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    banned: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def of(cls, bases: Bases, judges: Sequence[Judge]) -> _Owners:
        listed = [candidates(bases, judge.target, judge.holds_states) for judge in judges]
        return cls(bases, judges, listed)

    def units(self) -> tuple[list[Candidate], list[int]]:
        """Return all units and their owners: each target in turn takes of what is left, largest candidates first."""
        units: list[Candidate] = []
        owners: list[int] = []
        free = set(range(len(self.bases.ops)))
        for number in range(len(self.judges)):
            for candidate in self.listed[number]:
                if candidate.bases <= free and self._takes(number, candidate):
                    units.append(candidate)
                    owners.append(number)
                    free -= candidate.bases
        units += (Candidate(frozenset((base,))) for base in free)
        owners += [REST] * len(free)
        order = sorted(range(len(units)), key=lambda index: min(units[index].bases))
        return [units[index] for index in order], [owners[index] for index in order]

    def _takes(self, number: int, candidate: Candidate) -> bool:
        if any((number, base) in self.banned for base in candidate.bases):
            return False
        reason = self._outside_group(number, candidate)
        if not reason:
            refusal = self.judges[number].refusal(self.bases.places(candidate.bases))
            reason = refusal.rule if refusal is not None else ""
        for base in candidate.bases if reason and (len(candidate.bases) == 1 or candidate.name == STATES) else ():
            if candidate.name != STATES or named_states(self.bases.graph.graph, [self.bases.op(base)]):
                self.refused.setdefault((number, base), reason)
        return not reason

    def _outside_group(self, number: int, candidate: Candidate) -> str:
        """Return why an operator is in no region by itself: it belongs to states, or the target takes its kind only in groups."""
        graph, judge = self.bases.graph.graph, self.judges[number]
        ops = self.bases.ops_of(candidate.bases)
        if candidate.name != STATES and named_states(graph, ops):
            if not judge.holds_states:
                return f"{judge.target.name} holds no states"
            return "a state belongs to a region only with all operators between its read and its write"
        alone = next((kind for kind in count_kinds(ops) if kind in judge.target.only_in_groups), "") if not candidate.name else ""
        if not alone:
            return ""
        groups = [name for name, pattern in judge.target.groups.items() if alone in kinds_of(pattern)]
        return f"{judge.target.name} takes {alone} only in {' or '.join(groups) or 'groups'}"

    def ban(self, number: int, bases: Iterable[int], reason: str) -> None:
        """Exclude units from a target, even if it takes them by themselves."""
        for base in bases:
            self.banned.add((number, base))
            self.refused[number, base] = reason


def resolve_targets(targets: Sequence[str | Target]) -> list[Target]:
    """Return the targets of a list of targets and names, in order.

    Raises:
        OptionError: a target does not exist, is named twice or has no rules, or the list is empty.
    """
    found = [find_target(target) for target in targets]
    if not found:
        raise OptionError("no target is given", remedy="Name one or more: --target tensorrt.", rule="no-target")
    for index, target in enumerate(found):
        if target.name in [other.name for other in found[:index]]:
            raise OptionError(f"the target {target.name} is named twice", rule="target-twice")
        if not target.has_rules:
            raise OptionError(
                f"the target is {target.name}, which has no rules and would take every operator",
                remedy="Name a target with rules.",
                rule="target-without-rules",
            )
    return found


def cut(
    graph: Graph,
    targets: Sequence[Target],
    *,
    min_ops: int,
    min_macs: int,
    lossless: bool,
    source: str = "",
    unwritable: Sequence[Unwritable] = (),
) -> Cut:
    """Cut a network into regions and the rest.

    Args:
        graph: the network; dead operators are removed, and calls are inlined.
        targets: by priority.
        min_ops, min_macs: regions with less go back: to the next target, or to the rest. Quantize, Dequantize and Requantize do not count.
        lossless: whether nothing is taken of which a target's passes change values.
        source: the model's file.
        unwritable: operators that the writers of the targets' formats refuse.

    Raises:
        OptionError: a limit is negative.
    """
    for name, value in (("min_ops", min_ops), ("min_macs", min_macs)):
        if value < 0:
            raise OptionError(f"{name} is {value}; it must be at least 0", rule="number-negative")
    graph = without_calls(graph)
    for name in ("lift_states", "remove_dead_code"):  # states are the whole network's from here on
        graph, _ = pass_named(name).run(graph, None)
    bases = bases_of(expand_graph(graph))
    owners = _Owners.of(bases, [Judge(target, bases.graph, lossless) for target in targets])
    for item in unwritable:
        number = [target.name for target in targets].index(item.target)
        names = bases.graph.original
        made = ({names.get(name, name) for name in bases.op(base).outputs} for base in range(len(bases.ops)))
        owners.ban(number, [base for base, found in enumerate(made) if not item.outputs.isdisjoint(found)], item.reason)
    while True:
        units, owned = _without_cycles(owners)
        regions = _regions(bases, units, owned)
        if not _ban_small_regions(owners, regions, min_ops, min_macs) and not _ban_refused_regions(owners, regions):
            break
    return _make_cut(graph, owners, units, regions, source)


#: Number of the target, and the units.
_Found = tuple[int, tuple[int, ...]]


def _without_cycles(owners: _Owners) -> tuple[list[Candidate], list[int]]:
    """Return units and owners without a cycle; large units in a cycle, such as those of several states, are taken apart."""
    while True:
        units, owned = owners.units()
        order = sorted_groups(owners.bases.before, [sorted(unit.bases) for unit in units])
        if order is not None:
            return units, owned
        large = next(unit for unit, owner in zip(units, owned, strict=True) if owner != REST and len(unit.bases) > 1)
        for listed in owners.listed:
            if large in listed:
                listed.remove(large)


def _regions(bases: Bases, units: Sequence[Candidate], owned: Sequence[int]) -> list[_Found]:
    """Grow units to regions; return these in an order in which they can run."""
    before, data = (condense(found, [unit.bases for unit in units]) for found in (bases.before, bases.data))
    regions = grow_regions(before, data, owned)
    held = {unit for region in regions for unit in region}
    groups = [*regions, *([unit] for unit in range(len(units)) if unit not in held)]
    order = sorted_groups(before, groups) or []
    return [
        (owned[regions[number][0]], tuple(sorted(base for unit in regions[number] for base in units[unit].bases)))
        for number in order
        if number < len(regions)
    ]


def _ban_small_regions(owners: _Owners, regions: Sequence[_Found], min_ops: int, min_macs: int) -> bool:
    """Exclude too small regions from their targets, one target at a time, as the next one may take them; whether there were any."""
    found: int | None = None
    for number, bases in sorted(regions):
        if found not in (None, number):
            break
        ops = owners.bases.ops_of(bases)
        total = sum(macs(owners.bases.graph.graph, op) for op in ops)
        count = sum(kind_of(op).rule != "convert" for op in ops)
        if count < min_ops:
            reason = f"its region would have {count} operators without conversions, fewer than {min_ops}"
        elif total < min_macs:
            reason = f"its region would have {total:,} MACs, fewer than {min_macs:,}"
        else:
            continue
        owners.ban(number, bases, reason)
        found = number
    return found is not None


def _ban_refused_regions(owners: _Owners, regions: Sequence[_Found]) -> bool:
    """Exclude the operators that a target's refusal of a whole region names; whether there were any."""
    found = False
    for number, bases in regions:
        refusal = owners.judges[number].refusal(owners.bases.places(bases)) if len(bases) > 1 else None
        if refusal is not None:
            named = [base for base in bases if _is_named(owners.bases.op(base), refusal.places)]
            owners.ban(number, named or bases, refusal.rule)
            found = True
    return found


def _is_named(op: Op, places: Iterable[str]) -> bool:
    """Whether an error or a violation names an operator."""
    words = [word for word in (f"{op.source} " if op.source else "", *(repr(name) for name in op.outputs if name)) if word]
    return any(word in place for place in places for word in words)


def _make_cut(graph: Graph, owners: _Owners, units: Sequence[Candidate], regions: Sequence[_Found], source: str) -> Cut:
    bases, targets = owners.bases, [judge.target.name for judge in owners.judges]
    parts = name_parts(graph, [(targets[number], found) for number, found in regions])
    result = with_regions(bases, parts)
    validate(result)
    held = {base for part in parts for base in part.bases}
    partition = Partition(
        source=source,
        graph=result,
        targets=tuple(targets),
        regions=tuple(_region(bases, part, units) for part in parts),
        outside=tuple(_outside(owners, base, targets) for base in range(len(bases.ops)) if base not in held),
        operators=len(graph.ops),
        macs=sum(macs(graph, op) for op in graph.ops),
    )
    return Cut(partition, bases, tuple(parts))


def _region(bases: Bases, part: Part, units: Sequence[Candidate]) -> Region:
    function = region_graph(bases, part)
    groups = Counter(unit.name for unit in units if unit.name and unit.bases <= {*part.bases})
    return Region(
        name=part.name,
        target=part.target,
        operators=dict(count_kinds(function.ops).most_common()),
        groups=dict(groups.most_common()),
        inputs=function.inputs,
        outputs=function.outputs,
        bytes_in=sum(stored_bytes(function[name]) for name in function.inputs),
        bytes_out=sum(stored_bytes(function[name]) for name in function.outputs),
        macs=sum(macs(function, op) for op in function.ops),
    )


def _outside(owners: _Owners, base: int, targets: Sequence[str]) -> Outside:
    op = owners.bases.op(base)
    name = owners.bases.graph.original.get(op.name, op.name)
    reasons = {target: owners.refused.get((number, base), "") for number, target in enumerate(targets)}
    return Outside(op.kind, name, op.source, reasons)


def read(model: str | Path | Graph) -> tuple[Graph, str]:
    """Return the graph of a model, and the name of its file; "" for a graph."""
    from qconvert.conversion import load

    return (model, "") if isinstance(model, Graph) else (load(model), str(model))


def macs(graph: Graph, op: Op) -> int:
    """Return the number of products that an operator sums in one run: convolutions, matrix products and recurrences; 0 for all others.

    Dynamic dimensions count as 1. Products in functions of the operator do not count, since a loop may run them any number of times.
    """
    kind = find_kind(op)
    if kind is None or kind.products is None:
        return 0
    return kind.products(op, [_sizes(graph[name].shape) if name else () for name in op.inputs], _sizes(graph[op.name].shape))


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor between two parts of a network: types below 8 bits take a byte there.

    Dynamic dimensions count as 1, and types without a size, such as text, as 0.
    """
    return 0 if tensor.dtype in ("string", "unknown") else prod(_sizes(tensor.shape)) * numpy_dtype(tensor.dtype).itemsize


def _sizes(shape: Shape | None) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 1 for size in shape or ())
