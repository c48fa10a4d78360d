"""What one destination can do, as data: the fields of a Target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qconvert.errors import OptionError
from qconvert.kernels import Kernels
from qconvert.plugins.verdict import Violation

if TYPE_CHECKING:
    from qconvert.graph import Graph, Op
    from qconvert.rewriting import Pattern

__all__ = ["Abilities", "OwnRules"]

#: Graph -> (operator of it -> what it breaks). What has to be worked out for the whole graph is worked out once.
OwnRules = Callable[["Graph"], "Callable[[Op], Iterable[Violation]]"]

#: Fields that are one word of a few.
_WORDS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("x86", "arm", ""),
    "layout": ("channels_first", "channels_last", ""),
    "activations": ("uint8", "int8", "source", ""),
    "weights": ("uint8", "int8", "source", ""),
    "dynamic_range": ("tflite", "onnx", ""),
    "activation_granularity": ("per_tensor", ""),
    "weight_granularity": ("per_tensor", "per_axis", "per_axis_signed", ""),
}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What one destination can do, as data. Every field but the first three may be left out: then nothing is demanded there.

    What it is:
        name: as in `--target`.
        format: the name of the format that it writes.
        summary: one line for `qconvert formats`.
        cpu: "x86" or "arm" where the target stands for that family alone, so that a machine of another cannot tell how it runs.
        passes: names of the passes that fit a graph to the target, in the order in which they run; the other fields say what they do.
        checked_by: what runs its files in a check where the user names nothing, as in `--kernels`, since what its format's first runtime
            does with them is not what the destination does; "" for that runtime.
        write_options: options of the format's writer that are otherwise than by default here, unless the user states them.
        with_scales: the name of the target that stands in for this one where an option of the writer puts the scales in a file beside
            the model; "" where the same one does.
        needs_scales: whether it is such a one, and files of it without that option say nothing of scales.
        command: (graph that is written, the model's file, the file of its scales or "") -> the command line that a user runs next to make
            it run, with a comment; None where there is none.

    What the passes make of a graph:
        layout: the data_format that spatial operators must have; "" keeps the source's.
        activations: storage of 8-bit activations inside the graph: "uint8", "int8", "" (left alone), or "source": the type that the first
            source of the model had, if integer kernels take the weights beside it.
        weights: storage of 8-bit weights: "int8" (signed, zero point 0), "uint8" (where they have one scale), "" (left alone), or "source":
            what weight_dtypes names first beside the data that they have.
        max_pair_sum: largest magnitude of the sum of two int8 weights adjacent along K, of the same sign, that the target's
            kernels add without saturation; 0 means any. Other weights are stored as uint8 with zero point 128.
        same_kernels: the kernels (metadata key source.kernels) whose models the target's runtime computes as they are; what a source
            spells out for these kernels is left alone.

    Where operators run:
        kernels: the rows of its runtime's kernels: which operators run on integers, for which types, what is wrong or missing, which
            scales they fix; by default all that is quantized does.
        product_types: types of real values that kernels multiply by weights in; empty for any.
        dynamic_range: whose rounding of real data beside integer weights the runtime has: "tflite" (rows and images by themselves),
            "onnx" (whole tensors, and others spelled out), or "": such operators compute on real values.
        unpacked_weights: storage type of constant weights behind a Dequantize that the runtime makes real once, when it loads a model; ""
            if it would do so at each run: weights of operators on real values are then stored as real values.
        unpacked_blocks: storage types, the narrowest first, of constant weights in blocks behind a Dequantize, with the zero point 0, that
            the runtime takes; without any such weights are stored as real values.
        spelled_bounds: kinds into which the runtime fuses no activation rightly: spell_activations puts a Clip behind them whose bounds are
            those of the grid.
        groups: what its kernels run as one: name -> Pattern. A partition takes the operators of a group together or not at all, groups that
            stand first here first.
        only_in_groups: kinds that a partition takes in such groups alone.
        exact_on_reals: kinds whose kernels fix the scale of their result that run on real values, as fast, where their result has another
            grid and `numerics` is "exact": a rounding onto the fixed grid, and from there onto another, costs bits.
        floats: whether operators may run on real values, between Dequantize and Quantize.

    What quantized operators demand:
        activation_dtypes: storage types of activations.
        conversion_dtypes: further types that conversions between grids may give.
        activation_granularity: "per_tensor", or "" for any.
        symmetric_activations: storage types whose activations have the zero point 0.
        free_edges: whether conversions at graph inputs and outputs, which the program around may run, take any type and zero point.
        one_type: whether all quantized data of an operator have one type.
        explicit_conversions: whether only Quantize and Dequantize stand between real and quantized data.
        weight_dtypes: storage type of the data -> those of the weights beside them.
        symmetric_weights: whether signed weights have the zero point 0.
        weight_granularity: "per_tensor"; "per_axis": one scale, or one for each output channel; "per_axis_signed": likewise, but
            unsigned weights have one scale; "" for any.
        bias_dtypes: storage type of the data -> those of the bias, at data scale * weight scale with zero point 0.
        quant_ranges: storage type of weights -> smallest and largest stored integer, for kernels without -128.
        power_of_two_scales: whether scales are powers of two.

    What no field says:
        own_rules: graph -> operator -> what the target does not take of it beyond the fields above; None if there is nothing.
        by_kernels: kernels of its runtime that stand for a device -> the fields that are others there; the audit asks, nobody else: what is
            written is the same.
        edge_rules: graph -> what the target does not take of inputs and outputs that no operator need read or write; None if there is
            nothing.
        sources: name of one of the demands above -> who demands it (a specification, a file, a measurement), for documentation.
        replaces: its own name, where it takes the place of what another plugin gives under that name.
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
    activations: str = ""
    weights: str = ""
    max_pair_sum: int = 0
    same_kernels: tuple[str, ...] = ()
    kernels: Kernels = field(default_factory=Kernels)
    product_types: tuple[str, ...] = ()
    dynamic_range: str = ""
    unpacked_weights: str = ""
    unpacked_blocks: tuple[str, ...] = ()
    spelled_bounds: tuple[str, ...] = ()
    groups: Mapping[str, Pattern] = field(default_factory=dict)
    only_in_groups: tuple[str, ...] = ()
    exact_on_reals: tuple[str, ...] = ()
    floats: bool = True
    activation_dtypes: tuple[str, ...] = ()
    conversion_dtypes: tuple[str, ...] = ()
    activation_granularity: str = ""
    symmetric_activations: tuple[str, ...] = ()
    free_edges: bool = True
    one_type: bool = False
    explicit_conversions: bool = False
    weight_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    symmetric_weights: bool = False
    weight_granularity: str = ""
    bias_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quant_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    power_of_two_scales: bool = False
    own_rules: OwnRules | None = None
    by_kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    edge_rules: Callable[[Graph], Iterable[Violation]] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    replaces: str = ""

    def __post_init__(self) -> None:
        """Raises OptionError for words that mean nothing: they would demand nothing, in silence."""
        for name, known in _WORDS.items():
            if getattr(self, name) not in known:
                words = ", ".join(map(repr, known))
                raise OptionError(
                    f"the field {name} of the target {self.name} is {getattr(self, name)!r}",
                    remedy=f"Use one of {words}.",
                    rule="unknown-word",
                )
        for name in ("weight_dtypes", "bias_dtypes"):
            for dtype, others in getattr(self, name).items():
                if not others:
                    raise OptionError(f"the field {name} of the target {self.name} has no types for data of {dtype}", rule="empty-field")

    @property
    def has_rules(self) -> bool:
        """Whether it says anything of which operators it takes; without, a partition would give it whole networks."""
        told = (self.kernels.known, self.groups, self.only_in_groups, self.activation_dtypes, self.weight_dtypes, self.own_rules)
        return any(map(bool, told)) or not self.floats

    @property
    def knows_kernels(self) -> bool:
        """Whether it is known what the runtime runs as integers; without it there is no audit, and nothing is put on real values."""
        return self.kernels.known or not self.floats
