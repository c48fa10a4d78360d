"""Scales without a model: which quantizations, or ranges, the tensors of a network have that stands in another file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.arithmetic.dtypes import INTEGERS, Array, canonical_dtype, equal_data, integer_range, read_only
from qconvert.errors import InvalidModelError, OptionError
from qconvert.graph import Quantization
from qconvert.tables import Rows, Shown, format_sentence, format_text, numbers

__all__ = ["BATCH_NORM", "FOLDED", "FUSED", "Encoding", "Encodings", "Place", "QParams", "Range"]

ROLES = ("tensor", "input", "output")
#: How weights that have no encoding of their own are given a quantization, where a file leaves them out because its runtime derives
#: them.
WEIGHTS = ("", "max-abs")
#: In the metadata of encodings: whether they were made after folding batch normalizations; or of the network as it is, for a runtime that
#: computes a layer, the normalization and the Relu after it in one, so that it rounds nothing between them.
BATCH_NORM, FOLDED, FUSED = "batch_norm", "folded", "fused"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where an encoding stands.

    Attributes:
        name: of a tensor, or of an operator: its own name in its file, or that of a tensor that it computes, perhaps with an activation
            function after it.
        role: "tensor", or "input" or "output" of the operator; the output of a layer or an addition is that of the Relu or Clip which
            alone reads it, since runtimes compute both in one.
        index: which input or output of the operator, as the canonical operator has them: of a layer 1 are the weights, 2 the bias.
    """

    name: str
    role: str = "tensor"
    index: int = 0

    def __str__(self) -> str:
        return repr(self.name) if self.role == "tensor" else f"{self.role} {self.index} of {self.name!r}"


@dataclass(frozen=True, slots=True)
class QParams:
    """Quantization parameters: the type of the stored integers, and their scales and zero points.

    Attributes:
        dtype: the storage type.
        quantization: its scales. In an Encoding several scales without an axis are those of the output channels of the operator that reads
            the tensor, whose layout the file does not say; with a block_size, of one dimension, they are channel by channel of the output
            those of the blocks along the channels of the input.
        runs_in_float: whether what is quantized so is computed in float, since its zero point is outside of its type.
    """

    dtype: str
    quantization: Quantization
    runs_in_float: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """The float values that a tensor takes.

    Attributes:
        lowest: float64, of one dimension: one value, or one for each index along `axis`.
        highest: likewise.
        axis: as of a Quantization, or, in an Encoding, of a QParams.
    """

    lowest: Array
    highest: Array
    axis: int | None = None

    def __post_init__(self) -> None:
        for name in ("lowest", "highest"):
            object.__setattr__(self, name, read_only(np.atleast_1d(np.asarray(getattr(self, name), np.float64))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Range):
            return NotImplemented
        return self.axis == other.axis and equal_data(self.lowest, other.lowest) and equal_data(self.highest, other.highest)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """How one tensor is quantized: its quantization parameters, or a range from which they are yet to be computed.

    Attributes:
        qparams: its quantization parameters; or None.
        range: the dequantized values that it takes; or None.
        integers: the stored values of a constant, of the tensor's shape in the graph: nothing is rounded then. They need quantization
            parameters.
        origin: what says so, such as "KL of 200 inputs".
        required: whether it is an error if a graph has no such place. Runtimes list tensors that are theirs alone.
    """

    qparams: QParams | None = None
    range: Range | None = None
    integers: Array | None = None
    origin: str = ""
    required: bool = True

    def __post_init__(self) -> None:
        if (self.qparams is None) == (self.range is None):
            raise ValueError("an encoding has either quantization parameters or a range")
        if self.integers is not None:
            if self.qparams is None:
                raise ValueError("integers need quantization parameters")
            object.__setattr__(self, "integers", read_only(self.integers))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Encoding):
            return NotImplemented
        same = (self.qparams, self.range, self.origin, self.required) == (other.qparams, other.range, other.origin, other.required)
        return same and equal_data(self.integers, other.integers)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, repr=False)
class Encodings(Shown):
    """The encodings of a network.

    Attributes:
        entries: by their places; a text stands for the tensor of that name.
        origin: what made them, such as "MNN's Pipeline pipeline.json".
        weights: how weights without an entry, of layers whose data have one, are given quantizations: "" for not at all, "max-abs" for
            int8 with scale max|w| / 127 of each output channel. Runtimes that state no scales of weights use the latter.
        metadata: texts that the file states next to.
        notes: what the user should know.

    Raises:
        InvalidModelError: a place is none, or a quantization is none: a scale that is no positive number, a zero point or integers beyond
            the type, a range that is empty or not finite.
    """

    entries: Mapping[Place, Encoding]
    origin: str = ""
    weights: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise OptionError(
                f"there is no method {self.weights!r} of quantizing weights", remedy="Use max-abs, or an empty text.", rule="unknown-word"
            )
        entries = {Place(place) if isinstance(place, str) else place: found for place, found in self.entries.items()}
        object.__setattr__(self, "entries", entries)
        for place, found in entries.items():
            _require_place(place)
            if found.qparams is not None:
                _require_quantization(found.qparams, str(place))
                _require_integers(found, str(place))
            elif found.range is not None:
                _require_range(found.range, str(place))

    def __getitem__(self, place: Place | str) -> Encoding:
        return self.entries[Place(place) if isinstance(place, str) else place]

    def __len__(self) -> int:
        return len(self.entries)

    def evolve(self, entries: Mapping[Place, Encoding]) -> Encodings:
        """A copy with other entries."""
        return replace(self, entries=entries)

    @property
    def sentence(self) -> str:
        """How many there are, and what made them."""
        return f"{len(self)} encodings" + (f" from {format_sentence(self.origin)}" if self.origin else "")

    def tables(self) -> tuple[Rows, ...]:
        """Each with its quantization or range."""
        rows = tuple((format_text(place), *_cells(found), format_sentence(found.origin)) for place, found in self.entries.items())
        return (
            Rows("Encodings", ("place", "type", ">scale", ">zero point", "range", "integers", "chosen by"), rows, folded=len(rows) > 60),
            Rows("Notes", ("in words",), tuple((format_sentence(text),) for text in self.notes)),
        )


def _cells(found: Encoding) -> tuple[str, ...]:
    integers = "" if found.integers is None else f"{found.integers.size:,}"
    if found.qparams is not None:
        q = found.qparams.quantization
        return found.qparams.dtype, numbers(q.scale), numbers(q.zero_point), "", integers
    assert found.range is not None
    return "", "", "", f"{numbers(found.range.lowest)} to {numbers(found.range.highest)}", integers


def _require_place(place: Place) -> None:
    if not place.name or place.role not in ROLES or place.index < 0:
        raise InvalidModelError(
            f"the place of an encoding is {place!r}; a place requires a name, a known role and an index",
            where=str(place),
            rule="malformed-place",
        )


def _require_quantization(quantization: QParams, where: str) -> None:
    """Raises InvalidModelError where a quantization is none."""
    q = quantization.quantization
    if not (np.isfinite(q.scale).all() and (q.scale > 0).all() and q.scale.size):
        worst = next((float(s) for s in q.scale.reshape(-1) if not (np.isfinite(s) and s > 0)), None)
        reason = "has no scale" if worst is None else f"the scale is {worst}, not a finite, positive float32"
        raise InvalidModelError(reason, where=where, rule="scale-not-positive")
    if q.zero_point.shape != q.scale.shape:
        raise InvalidModelError(f"has {q.scale.size} scales and {q.zero_point.size} zero points", where=where, rule="counts-differ")
    if quantization.dtype not in INTEGERS:
        if not quantization.dtype.startswith("float"):
            raise InvalidModelError(
                f"the type is {quantization.dtype!r}, which is not a type of quantized integers", where=where, rule="unknown-type"
            )
        return
    low, high = integer_range(quantization.dtype)
    used = q.limits(quantization.dtype)
    if not low <= used[0] <= used[1] <= high:
        raise InvalidModelError(
            f"the integers run from {used[0]} to {used[1]}, which is not a range within {quantization.dtype}",
            where=where,
            rule="limits-outside-type",
        )
    if not quantization.runs_in_float and not ((low <= q.zero_point) & (q.zero_point <= high)).all():
        worst_point = next(int(z) for z in q.zero_point.reshape(-1) if not low <= z <= high)
        raise InvalidModelError(
            f"the zero point is {worst_point}, outside of {quantization.dtype}", where=where, rule="zero-point-outside-type"
        )


def _require_integers(found: Encoding, where: str) -> None:
    if found.integers is None or found.qparams is None:
        return
    if canonical_dtype(found.integers.dtype) != found.qparams.dtype:
        raise InvalidModelError(
            f"the integers are {found.integers.dtype}, the quantization is of {found.qparams.dtype}", where=where, rule="types-differ"
        )


def _require_range(found: Range, where: str) -> None:
    if found.lowest.ndim != 1 or found.lowest.shape != found.highest.shape or not found.lowest.size:
        raise InvalidModelError(
            f"has {found.lowest.size} lowest and {found.highest.size} highest values", where=where, rule="counts-differ"
        )
    if not (np.isfinite(found.lowest).all() and np.isfinite(found.highest).all()):
        raise InvalidModelError("the range is not finite", where=where, rule="range-not-finite")
    if (found.lowest > found.highest).any():
        raise InvalidModelError("the lowest value is above the highest", where=where, rule="range-inverted")
