"""A partition: the graph, its regions, and the operators outside with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from qconvert.errors import format_count, format_some
from qconvert.tables import Rows, Shown, format_sentence, format_text, shorten_text

if TYPE_CHECKING:  # the command line starts without numpy
    from qconvert.graph import Graph


#: So many names stand in a row of a table, each of at most so many characters.
_NAMES, _LONGEST = 2, 32


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a network that one target runs: a function of the partitioned graph.

    Attributes:
        name: of the function.
        target: the name of its target.
        operators: kind -> how many, the most frequent first.
        groups: the target's groups in it, name -> how often; "states" for states with the operators between read and write.
        inputs, outputs: tensors of the graph around.
        bytes_in, bytes_out: of these in one run; dynamic dimensions count as 1.
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
        return {name: value for name, value in asdict(self).items() if name != "groups" or value}


@dataclass(frozen=True, slots=True)
class Outside:
    """An operator that no target took.

    Attributes:
        kind: of the operator.
        name: of its first result, or of the operator itself.
        source: the operator of the source file that it came from.
        reasons: target -> its rule, in words.
    """

    kind: str
    name: str
    source: str
    reasons: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The operator as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, repr=False)
class Partition(Shown):
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

    def taken_macs(self) -> int:
        """How many products regions sum."""
        return sum(region.macs for region in self.regions)

    def reasons(self) -> Counter[tuple[str, str, str]]:
        """How many operators stayed outside for each (target, kind, rule)."""
        return Counter((target, item.kind, rule) for item in self.outside for target, rule in item.reasons.items())

    @property
    def sentence(self) -> str:
        """How much of the network is in regions."""
        products = f", {self.taken_macs():,} of {self.macs:,} MACs inside" if self.macs else ""
        return f"{format_count(len(self.regions), 'region')}; {len(self.outside)} of {self.operators} operators outside{products}"

    def tables(self) -> tuple[Rows, Rows]:
        """The regions, and what stayed outside and why."""
        regions = tuple(
            (
                format_text(region.name), region.target, str(region.size), f"{region.macs:,}", f"{region.bytes_in:,}",
                f"{region.bytes_out:,}",
                _shorten_list(region.inputs), _shorten_list(region.outputs),
            )
            for region in self.regions
        )  # fmt: skip
        reasons = tuple((str(count), kind, target, format_sentence(rule)) for (target, kind, rule), count in self.reasons().most_common())
        heads = ("region", "target", ">operators", ">MACs", ">bytes in", ">bytes out", "inputs", "outputs")
        return Rows("Regions", heads, regions), Rows("Outside", (">operators", "kind", "target", "why"), reasons)

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


def _shorten_list(names: tuple[str, ...]) -> str:
    """Return the first names of a list, and the number of further ones."""
    return format_some([shorten_text(format_text(name), _LONGEST) for name in names], _NAMES)
