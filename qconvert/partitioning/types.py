"""What a partition is: the graph, its regions, and what stayed outside and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line starts without numpy
    from qconvert.graph import Graph

__all__ = ["Outside", "Partition", "Region"]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a network that one target runs: a function of the partitioned graph.

    Attributes:
        name: of the function.
        target: the name of what runs it.
        operators: kind -> how many, the most frequent first.
        groups: those of the target's groups that it was put together of, name -> how often; "states" for states with what carries them on.
        inputs, outputs: tensors of the graph around.
        bytes_in, bytes_out: of these in one run; sizes that are open count as 1.
        macs: products that it sums in one run, likewise.
    """

    name: str
    target: str
    operators: Mapping[str, int]
    groups: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    macs: int

    @property
    def size(self) -> int:
        """How many operators it has."""
        return sum(self.operators.values())

    def to_dict(self) -> dict[str, Any]:
        """The region as JSON has it."""
        return {
            "name": self.name,
            "target": self.target,
            "operators": dict(self.operators),
            **({"groups": dict(self.groups)} if self.groups else {}),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "macs": self.macs,
        }


@dataclass(frozen=True, slots=True)
class Outside:
    """An operator that no target took.

    Attributes:
        kind: of the operator.
        name: of its first result, or what it is called otherwise.
        source: the operator of the source file that it came from.
        reasons: target -> its rule, in words.
    """

    kind: str
    name: str
    source: str
    reasons: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The operator as JSON has it."""
        return {"kind": self.kind, "name": self.name, "source": self.source, "reasons": dict(self.reasons)}


@dataclass(frozen=True, slots=True)
class Partition:
    """A network cut into regions that targets run, and the rest.

    Attributes:
        source: the model's file; "" of a graph.
        graph: the network with regions as functions, which Call operators run that name the target (attribute `target`).
        targets: the names of those asked, in their order.
        regions: in the order in which they run.
        outside: the operators that no target took.
        operators, macs: of the whole network.
        files: what was written: the partitioned graph, or the manifest of a split.
    """

    source: str
    graph: Graph
    targets: tuple[str, ...]
    regions: tuple[Region, ...]
    outside: tuple[Outside, ...]
    operators: int
    macs: int
    files: tuple[str, ...] = field(default=())

    def taken(self, target: str = "") -> int:
        """How many operators are in regions, of one target or of all."""
        return sum(region.size for region in self.regions if target in ("", region.target))

    def taken_macs(self, target: str = "") -> int:
        """How many products regions sum, of one target or of all."""
        return sum(region.macs for region in self.regions if target in ("", region.target))

    def reasons(self) -> Counter[tuple[str, str, str]]:
        """How many operators stayed outside for each (target, kind, rule)."""
        return Counter((target, item.kind, rule) for item in self.outside for target, rule in item.reasons.items())

    def to_dict(self) -> dict[str, Any]:
        """The partition as `qconvert partition --json` prints it."""
        return {
            "source": self.source,
            "targets": list(self.targets),
            "operators": self.operators,
            "macs": self.macs,
            "regions": [region.to_dict() for region in self.regions],
            "outside": [item.to_dict() for item in self.outside],
            "files": list(self.files),
        }
