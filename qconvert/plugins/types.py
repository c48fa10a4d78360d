"""What plugins give to the hooks: formats, targets and passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qconvert.graph import Graph

__all__ = ["Format", "Pass", "Target", "Violation"]


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. `read` and `write` import what they need when they are called.

    Attributes:
        name: as on the command line, such as "tflite".
        suffixes: file name endings, with the dot.
        summary: one line for `qconvert formats`.
        read: file -> Graph, or None if the format cannot be read.
        write: (Graph, file, options) -> notes, or None. It writes the file at the path given, and further files beside it if the
            format needs them, which the caller moves into place. It may return, in words, what the user should know of the form
            that it chose.
        default_target: the target that a conversion to this format uses when none is named.
        own_target: likewise for a conversion from this format to itself.
        companions: file -> the further files that belong to it, or None if there are never any.
        normal_form: names of the passes that a graph just read goes through, so that a reader stays literal: one function an operator.
    """

    name: str
    suffixes: tuple[str, ...]
    summary: str
    read: Callable[[Path], Graph] | None = None
    write: Callable[[Graph, Path, Mapping[str, Any]], tuple[str, ...] | None] | None = None
    default_target: str = ""
    own_target: str = ""
    companions: Callable[[Path], tuple[Path, ...]] | None = None
    normal_form: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """What one destination can do, as data.

    Attributes:
        name: as in `--target`.
        format: the name of the format that it writes.
        summary: one line for `qconvert formats`.
        passes: names of the passes that fit a graph to the target, in the order in which they run.
        layout: the data_format that spatial operators must have; "" keeps the source's.
        activations: storage of 8-bit activations inside the graph: "uint8", "int8" or "" (as the source has it).
        max_pair_sum: largest magnitude of the sum of two int8 weights adjacent along K, of the same sign, that the target's
            kernels add without saturation; 0 means any. Other weights are stored as uint8 with zero point 128.
        integer_kernels: which quantized operators the runtime runs as integer kernels: kind -> dtypes of the activation. Empty if the
            runtime is not known; then there is no audit.
        symmetric_weights: whether weights are signed with zero point 0.
        fixed_outputs: the quantization that an operator's result must have: kind -> dtype -> (scale, zero point).
        equal_scales: kinds that compute on real values and whose data inputs and results must have one quantization nevertheless,
            with the types of which that is true.
        check: says what in a normalized graph the target does not take; None if it takes all that its format can hold.
    """

    name: str
    format: str
    summary: str
    passes: tuple[str, ...] = ()
    layout: str = ""
    activations: str = ""
    max_pair_sum: int = 0
    integer_kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    symmetric_weights: bool = False
    fixed_outputs: Mapping[str, Mapping[str, tuple[float, int]]] = field(default_factory=dict)
    equal_scales: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    check: Callable[[Graph], Iterable[Violation]] | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """Something in a graph that a target does not take.

    Attributes:
        where: the operator and the tensor concerned.
        rule: what the target's specification says, in words.
        remedy: the pass or the option that would help; "" if there is none.
    """

    where: str
    rule: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewriting: (graph, target, options of its own) -> the new graph and, in words, what was changed.

    Attributes:
        name: as in `--passes`.
        summary: one line for `qconvert passes`.
        run: the function; its target is None where a conversion has none.
        exact: whether every output stays the same, bit for bit; if not, what was changed says by how much.
    """

    name: str
    summary: str
    run: Callable[..., tuple[Graph, tuple[str, ...]]]
    exact: bool = True
