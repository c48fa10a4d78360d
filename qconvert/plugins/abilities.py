"""What one destination can do, as data: the fields of a Target, how it stores values and what it demands of their quantization; and what
it says of an operator, and of a graph that it does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from qconvert.errors import OptionError
from qconvert.kernels import Kernels

if TYPE_CHECKING:
    from qconvert.graph import Graph, Op
    from qconvert.rewriting import Pattern


#: Fields that are one word of a few.
_STORAGE_WORDS: Mapping[str, tuple[str, ...]] = {
    "activations": ("uint8", "int8", "unsigned", "source", "int8_or_source", ""),
    "weights": ("uint8", "int8", "source", ""),
    "activation_granularity": ("per_tensor", ""),
    "weight_granularity": ("per_tensor", "per_axis", "per_axis_signed", ""),
}


@dataclass(frozen=True, slots=True)
class Storage:
    """The types that values are stored in, and what quantized operators demand. What is left out demands nothing.

    Attributes:
        activations: storage of 8-bit activations inside the graph: "uint8", "int8", "unsigned" (uint8, and those of 16 bits as uint16), ""
            (left alone), "source": the type that the first source of the model had, if integer kernels take the weights next to
            it, or "int8_or_source": int8 where there are weights and none changes by that, and else "source".
        weights: storage of 8-bit weights: "int8" (signed, zero point 0), "uint8" (where they have one scale), "" (left alone), or "source":
            what weight_dtypes names first next to the data that they have.
        activation_dtypes: storage types of activations.
        conversion_dtypes: further types that conversions between quantizations may give.
        activation_granularity: "per_tensor", or "" for any.
        symmetric_activations: storage types whose activations have the zero point 0.
        moves_in_float: whether data movement, selection and comparison of quantized data stand between Dequantize and Quantize.
        free_edges: whether conversions at graph inputs and outputs, which the program around may run, take any type and zero point.
        one_type: whether all quantized data of an operator have one type.
        explicit_conversions: whether only Quantize and Dequantize stand between real and quantized data.
        weight_dtypes: storage type of the data -> those of the weights next to them.
        symmetric_weights: whether signed weights have the zero point 0.
        weight_granularity: "per_tensor"; "per_axis": one scale, or one for each output channel; "per_axis_signed": likewise, but
            unsigned weights have one scale; "" for any.
        bias_dtypes: storage type of the data -> those of the bias, at data scale * weight scale with zero point 0.
        quant_ranges: storage type of weights -> smallest and largest stored integer, for kernels without -128.
        power_of_two_scales: whether scales are powers of two.
    """

    activations: str = ""
    weights: str = ""
    activation_dtypes: tuple[str, ...] = ()
    conversion_dtypes: tuple[str, ...] = ()
    activation_granularity: str = ""
    symmetric_activations: tuple[str, ...] = ()
    moves_in_float: bool = False
    free_edges: bool = True
    one_type: bool = False
    explicit_conversions: bool = False
    weight_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    symmetric_weights: bool = False
    weight_granularity: str = ""
    bias_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quant_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    power_of_two_scales: bool = False

    def __post_init__(self) -> None:
        """Raises OptionError for words that mean nothing: they would demand nothing, in silence."""
        require_words(self, _STORAGE_WORDS, "a target's storage")
        for name in ("weight_dtypes", "bias_dtypes"):
            for dtype, others in getattr(self, name).items():
                if not others:
                    raise OptionError(f"the field {name} of a target's storage has no types for data of {dtype}", rule="empty-field")


def require_words(item: Any, words: Mapping[str, tuple[str, ...]], what: str) -> None:
    """Raises OptionError for a field that is none of the words which mean something."""
    for name, known in words.items():
        if getattr(item, name) not in known:
            raise OptionError(
                f"the field {name} of {what} is {getattr(item, name)!r}",
                remedy=f"Use one of {', '.join(map(repr, known))}.",
                rule="unknown-word",
            )


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
        fault: what it computes wrongly, in words; "" for what it computes rightly.
    """

    name: str
    lacks: Callable[[Graph], Callable[[Op], str]]
    fault: Callable[[Graph, Op], str] | None = None


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
