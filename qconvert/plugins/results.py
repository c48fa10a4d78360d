"""What functions of formats and passes return besides graphs, as data: the tensors and quantizations of a file without a graph, by the
names of modules; and what passes and writers changed, which reports, the metadata of files and JSON carry alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qconvert.errors import OptionError
from qconvert.tables import Rows, format_sentence, format_text

if TYPE_CHECKING:
    from qconvert.encodings import QParams
    from qconvert.graph import Array, Graph, Tensor

__all__ = ["Change", "Cost", "Decoding", "Folding", "Parameters", "changes_table", "describe_worst", "name_changes"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a lossy step costs one tensor.

    Attributes:
        tensor: its name.
        sqnr_db: power of its float values over that of their error, in decibels: of weights over their values, of activations over all
            codes of their quantization. None if nothing was measured.
        largest: the largest error in steps of the new quantization; None if it is not known.
    """

    tensor: str
    sqnr_db: float | None
    largest: float | None

    def __str__(self) -> str:
        sqnr = None if self.sqnr_db is None else f"SQNR {self.sqnr_db:.1f} dB"
        steps = None if self.largest is None else f"by at most {self.largest:.2g} LSB"
        return f"{', '.join(part for part in (sqnr, steps) if part) or 'not measured'} ({self.tensor!r})"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a pass or a writer changed.

    Attributes:
        text: in words.
        exact: whether it declares that every float value stays what it is.
        costs: of each tensor that loses something.
        by: the name of the pass, or of the format that was written.
        user_named: whether the user named the pass himself; else a target, or the format, took the step.
        code: of a warning, stable, so that scripts can rely on it; "" of all else.
    """

    text: str
    exact: bool = False
    costs: tuple[Cost, ...] = ()
    by: str = ""
    user_named: bool = False
    code: str = ""

    def __str__(self) -> str:
        return f"{self.by}: {self.text}{' (exact)' if self.exact else ''}"


def describe_worst(costs: Iterable[Cost]) -> str:
    """The costs of several tensors in words: of the one that loses most."""
    found = sorted(costs, key=lambda cost: (cost.sqnr_db is None, cost.sqnr_db, -(cost.largest or 0)))
    return str(found[0]) if len(found) == 1 else f"at worst {found[0]}"


def name_changes(notes: Iterable[Change | str] | None, *, by: str, exact: bool = False, user_named: bool = False) -> tuple[Change, ...]:
    """What a pass or a writer returned, with its name. A text alone is as exact as the pass that says it.

    Raises:
        OptionError: it is something else, as a plugin may return.
    """
    notes = () if notes is None else notes
    if not isinstance(notes, tuple | list) or not all(isinstance(note, Change | str) for note in notes):
        raise OptionError(
            f"{by} returned {notes!r}", remedy="Return a tuple of texts or Changes that states what was changed.", rule="wrong-result"
        )
    found = (note if isinstance(note, Change) else Change(note, exact) for note in notes)
    return tuple(replace(note, by=by, user_named=user_named) for note in found)


def changes_table(changes: Iterable[Change]) -> Rows:
    """What passes and the writer did, and what it cost."""
    found = tuple(changes)
    rows = [
        (
            format_text(change.by),
            format_sentence(change.text),
            "yes" if change.exact else "no",
            format_sentence(describe_worst(change.costs)) if change.costs else "",
        )
        for change in found
    ]
    marks = tuple("" if change.exact else "requantized" for change in found)
    return Rows("What passes changed", ("pass", "what it did", "exact", "cost"), tuple(rows), marks)


@dataclass(frozen=True, slots=True)
class Folding:
    """What gives the tensors of a module whose weights are quantized as they stand in the graph.

    Attributes:
        tensors: epsilon of the batch normalization after the module -> its tensors by their names.
        has_norm: whether that normalization is part of them.
    """

    tensors: Callable[[float], Mapping[str, Tensor]]
    has_norm: bool


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """How the codes of a weight in blocks, [N, K], become real where no quantization says it.

    Attributes:
        scales: float32 [N, G], one for each block of K / G inputs.
        table: float32 [codes]: the value is table[code] * scale, and the weight has the quantization of scale 1 and zero point 0.
        offsets: float32 [N, G]: the value is code * scale + offset, and the weight has the scales as its quantization.
        factor: the value is (code * scale) * factor, and the weight has the scales as its quantization.
    """

    scales: Array
    table: Array | None = None
    offsets: Array | None = None
    factor: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """A network without its graph. Modules are named by their paths, such as "features.0.conv", tensors "features.0.conv.weight".

    Attributes:
        tensors: by name; quantized ones with their quantizations, weights as PyTorch lays them out: outputs first, but for transposed
            convolutions.
        absent: names of tensors that a module can have and this one has not: biases.
        folded: of modules whose weights have yet to be given their quantization, perhaps with the batch normalization after them.
        results: the quantizations of what modules compute.
        inputs: the quantizations of inputs of the network, in order, by the module that rounds them.
        data: the quantizations that modules round their first input onto.
        functions: those of what stands in a module's own code, in order, by the module, in whose path "_" stands for ".".
        fixed: kinds of operators whose quantized results have one quantization: it stands in no file.
        dynamic: modules with weights that round their data at each run -> `arithmetic`, see operators/attributes.py.
        orders: modules whose weights have their inputs in another order -> int64, which input of the network stands at each place.
        factors: modules whose data are multiplied first -> float32, the factor of each input.
        decodings: weights, by their names, whose float values no quantization expresses.
        trained: whether values are rounded where `results` and `inputs` say alone, and are real between, as in quantization-aware training.
            Else what has a quantization stays on one until an operator without a quantized form comes.
        finished: the last step on the resulting graph of quantized operators, such as noting whose kernels they have.
        places: module -> name of a tensor in the graph, as the user states it.
        metadata: of the graph.
        notes: what the user should know.
    """

    tensors: Mapping[str, Tensor]
    absent: frozenset[str] = frozenset()
    folded: Mapping[str, Folding] = field(default_factory=dict)
    results: Mapping[str, QParams] = field(default_factory=dict)
    inputs: Mapping[str, QParams] = field(default_factory=dict)
    data: Mapping[str, QParams] = field(default_factory=dict)
    functions: Mapping[str, tuple[QParams, ...]] = field(default_factory=dict)
    fixed: Mapping[str, QParams] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[str, Array] = field(default_factory=dict)
    factors: Mapping[str, Array] = field(default_factory=dict)
    decodings: Mapping[str, Decoding] = field(default_factory=dict)
    trained: bool = False
    finished: Callable[[Graph], Graph] = lambda graph: graph
    places: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
