"""What one destination can do, as data: the fields of a Target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qconvert.kernels import Kernels
from qconvert.plugins.storage import Storage, require_words
from qconvert.plugins.verdict import Violation

if TYPE_CHECKING:
    from qconvert.graph import Graph, Op
    from qconvert.rewriting import Pattern

__all__ = ["Abilities", "Accelerator", "OwnRules"]

#: Graph -> (operator of it -> what it breaks). What has to be worked out for the whole graph is worked out once.
OwnRules = Callable[["Graph"], "Callable[[Op], Iterable[Violation]]"]

#: Fields that are one word of a few.
_WORDS: Mapping[str, tuple[str, ...]] = {"cpu": ("x86", "arm", ""), "layout": ("channels_first", "channels_last", "")}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A processor next to a CPU: it runs what it can of a file, and the CPU's kernels run the rest.

    Attributes:
        name: as in reports, such as "Ethos-U55".
        lacks: normalized graph -> (operator of it -> why the CPU runs it; "" where the accelerator does).
    """

    name: str
    lacks: Callable[[Graph], Callable[[Op], str]]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one destination can do, as data. Every field but the first three may be left out: then nothing is demanded there.

    What it is:
        name: as in `--target`.
        format: the name of the format that it writes.
        summary: one line for `qconvert formats`.
        cpu: "x86" or "arm" where the target stands for that family alone: a machine of another family gives no evidence.
        passes: names of the passes that fit a graph to the target, in the order in which they run; the other fields say what they do.
        checked_by: the runtime of a check where the user names none, as in `--kernels`; "" for the format's first runtime. State it where
            that one computes otherwise than the destination.
        write_options: options of the format's writer that are otherwise than by default here, unless the user states them.
        with_scales: the name of the target that stands in for this one where an option of the writer puts the scales in a file compared
            with the model; "" where the same one does.
        needs_scales: whether it is such a one, and files of it without that option say nothing of scales.
        command: (graph that is written, the model's file, the file of its scales or "") -> the command line that a user runs next to make
            it run, with a comment; None where there is none.

    How values are stored, and where operators run:
        layout: the data_format that spatial operators must have; "" keeps the source's.
        storage: the types that values are stored in, and what is demanded of their quantization.
        kernels: the rows of its runtime's kernels: operators that run on integers, their types, faults, gaps and fixed scales; by default
            every quantized operator runs on integers.
        groups: what its kernels run as one: name -> Pattern. A partition takes the operators of a group together or not at all, groups that
            stand first here first.
        only_in_groups: kinds that a partition takes in such groups alone.
        floats: whether operators may run in float, between Dequantize and Quantize.
        accelerator: the device that runs every operator it has; the audit lists those left to the CPU. None where the CPU runs all.

    What no field says:
        own_rules: graph -> operator -> what the target does not take of it beyond the fields above; None if there is nothing.
        by_kernels: kernels of its runtime that stand for a device -> the fields that are others there; the audit asks, nobody else: what is
            written is the same.
        edge_rules: graph -> what the target does not take of inputs and outputs that no operator need read or write; None if there is
            nothing.
        sources: name of one of the demands above -> who demands it (a specification, a file, a measurement), for documentation.
        replaces: its own name, where it replaces another plugin's target of that name.
    """

    name: str
    format: str
    summary: str
    passes: tuple[str, ...] = ()
    write_options: Mapping[str, Any] = field(default_factory=dict)
    checked_by: str = ""
    cpu: str = ""
    with_scales: str = ""
    needs_scales: bool = False
    command: Callable[[Graph, str, str], str] | None = None
    layout: str = ""
    storage: Storage = field(default_factory=Storage)
    kernels: Kernels = field(default_factory=Kernels)
    groups: Mapping[str, Pattern] = field(default_factory=dict)
    only_in_groups: tuple[str, ...] = ()
    floats: bool = True
    accelerator: Accelerator | None = None
    own_rules: OwnRules | None = None
    by_kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    edge_rules: Callable[[Graph], Iterable[Violation]] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    replaces: str = ""

    def __post_init__(self) -> None:
        """Raises OptionError for words that mean nothing: they would demand nothing, in silence."""
        require_words(self, _WORDS, f"the target {self.name}")

    @property
    def has_rules(self) -> bool:
        """Whether it says anything of which operators it takes; without, a partition would give it whole networks."""
        demands = (self.storage.activation_dtypes, self.storage.weight_dtypes, self.own_rules)
        told = (self.kernels.known, self.groups, self.only_in_groups, *demands)
        return any(map(bool, told)) or not self.floats

    @property
    def knows_kernels(self) -> bool:
        """Whether it is known what the runtime runs as integers, or the accelerator at all; without it there is no audit."""
        return self.kernels.known or not self.floats or self.accelerator is not None
