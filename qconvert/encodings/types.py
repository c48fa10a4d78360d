"""Scales without a model: which quantizations, or ranges, the tensors of a network have that stands in another file; quantizations made of
ranges and of weights; and the encodings taken out of a quantized graph, the reverse of the pass apply_encodings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.arithmetic import choose_quantization
from qconvert.arithmetic.storage import INTEGERS, Array, bit_width, canonical_dtype, equal_data, integer_range, read_only
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.graph import Graph, Op, Quantization, Tensor, drop_keys
from qconvert.operators import kind_of, output_axis
from qconvert.rewriting import Rewriter
from qconvert.tables import Rows, Shown, format_sentence, format_text, numbers

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


def quantization_of(range: Range, dtype: str = "int8", *, symmetric: bool = False, narrow: bool = False) -> QParams:
    """The quantization of an integer type that holds a range, which is extended to hold 0 (arithmetic/preparation.py has the formulas).

    Args:
        range: the range.
        dtype: int4 to int16, or unsigned.
        symmetric: with the zero point in the middle: 0, or 128 of uint8.
        narrow: without the smallest stored value, so that both signs have as many.

    Raises:
        OptionError: an unsigned or affine quantization is to be narrow.
    """
    (low, high), bits = integer_range(dtype), bit_width(dtype)
    if narrow and not (symmetric and low < 0):
        raise OptionError("a narrow range requires signed, symmetric quantization", rule="narrow-not-symmetric")
    if not symmetric:
        return QParams(*choose_quantization("google_affine", range.lowest, range.highest, bits, dtype=dtype, axis=range.axis))
    _, chosen = choose_quantization("google_symmetric", range.lowest, range.highest, bits, dtype=f"int{bits}", axis=range.axis)
    if low == 0:
        chosen = chosen.shift_zero_point((high + 1) // 2)
    limits = (-high, high) if narrow else (None, None)
    return QParams(dtype, Quantization(chosen.scale, chosen.zero_point, chosen.axis, 0, *limits))


def weights_quantization(tensor: Tensor, reader: Op) -> QParams:
    """int8 with scale max|w| / 127 of each output channel, as runtimes make them that state no scales of weights.

    Raises:
        InvalidModelError: a weight is NaN or infinite.
    """
    data = tensor.data
    assert data is not None
    axis = output_axis(reader, data.ndim)
    largest = np.abs(data.astype(np.float64)).max(axis=tuple(other for other in range(data.ndim) if other != axis), initial=0)
    if not np.isfinite(largest).all():
        raise InvalidModelError(
            "a weight is NaN or infinite",
            where=repr(tensor.name),
            remedy="Look for what went wrong in training.",
            rule="weights-not-finite",
        )
    return quantization_of(Range(-largest, largest, axis), symmetric=True, narrow=True)


def symmetric_quantization(found: Encoding) -> tuple[QParams, int | None]:
    """The quantization of an entry for a format of symmetric 8-bit quantizations, of a range the symmetric int8 one; and the zero point in
    the middle of its type, None for types of other widths."""
    if found.qparams is not None:
        return found.qparams, {"int8": 0, "uint8": 128}.get(found.qparams.dtype)
    assert found.range is not None
    return quantization_of(found.range, "int8", symmetric=True), 0


def extract_encodings(graph: Graph) -> tuple[Graph, Encodings]:
    """A graph in float, and the quantizations of all its tensors, with the integers of constants.

    Every tensor keeps its name. Inputs and outputs are real. Quantize, Dequantize and Requantize are gone, or an Identity where both
    sides are seen. A Reinterpret that multiplies the scale is a Mul by a number.

    Raises:
        UnsupportedError: the graph has functions, states, or operators that are nothing in float.
    """
    if graph.functions or graph.states:
        raise UnsupportedError("quantization can be removed from graphs without functions and states only", rule="subgraphs-not-covered")
    factors = [_scaling_factor(graph, op) for op in graph.ops]
    for op, factor in zip(graph.ops, factors, strict=True):
        quantized = any(graph[name].is_quantized for name in op.names if name)
        if kind_of(op).rule in ("relabel", "opaque", "stored") and quantized and not factor:
            raise UnsupportedError(
                f"{op.kind} takes integers as they are stored, so its quantization cannot be removed",
                where=str(op),
                rule="integers-required",
            )
    rewriter, entries = Rewriter(graph), dict[Place, Encoding]()
    for name, tensor in graph.tensors.items():
        if tensor.quantization is not None:
            entries[Place(name)] = Encoding(QParams(tensor.dtype, tensor.quantization), integers=tensor.data)
            data = None if tensor.data is None else tensor.float_values().astype(np.float32)
            rewriter.define(Tensor(name, "float32", tensor.shape, data))
    for op, factor in zip(graph.ops, factors, strict=True):
        if factor:
            name = rewriter.constant(f"{op.name}/factor", factor)
            rewriter.replace(op, replace(op, kind="Mul", inputs=(op.inputs[0], name)))
        elif kind_of(op).rule == "convert":
            rewriter.replace(op, op.derive("Identity", op.inputs, op.outputs))
        elif "arithmetic" in op.attributes:  # which says something of integers alone
            rewriter.replace(op, replace(op, attributes=drop_keys(op.attributes, "arithmetic")))
    real = rewriter.finish()
    origin = f"the model {graph.name!r}" if graph.name else "a quantized model"
    return _without_identities(real, entries), Encodings(entries, origin)


def _scaling_factor(graph: Graph, op: Op) -> float:
    """The number by which a Reinterpret multiplies the scale alone, as PyTorch multiplies quantized tensors by a number; 0 for others."""
    if kind_of(op).rule != "relabel":
        return 0.0
    data, result = graph[op.inputs[0]], graph[op.name]
    a, b = data.quantization, result.quantization
    if a is None or b is None or not (a.is_per_tensor and b.is_per_tensor):
        return 0.0
    return b.step / a.step if a.point == b.point and data.dtype == result.dtype else 0.0


def _without_identities(graph: Graph, entries: dict[Place, Encoding]) -> Graph:
    """Conversions are nothing in float: both sides are one tensor, where one of them has no quantization.

    It has the name that is seen outside, or that of the value before, and the quantization. An Identity between two quantizations, or two
    names that are seen, stays; between quantizations it is a Requantize again once they are applied.
    """
    rewriter = Rewriter(graph)
    for op in rewriter:
        if not kind_of(op).copies:
            continue
        source, result = rewriter.resolve(op.inputs[0]), op.name
        quantizations = [entries.get(Place(source)), entries.get(Place(result))]
        seen = source in graph.public or source not in rewriter.producers
        rounds = quantizations[1] is not None and (
            quantizations[0] is not None or source in graph.public or len(rewriter.readers[op.inputs[0]]) > 1
        )
        if rounds or graph[source].is_constant or (seen and result in graph.public):
            continue
        old, new = (source, result) if result in graph.public else (result, source)
        rewriter.rename(old, new)
        rewriter.remove(op)
        encoding = quantizations[0] or quantizations[1]
        entries.pop(Place(old), None)
        if encoding is not None:
            entries[Place(new)] = encoding
    return rewriter.finish()
