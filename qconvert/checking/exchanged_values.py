"""Stored values of one side of a check as the other side stores them: in another layout, shape or integer type, or as floats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.arithmetic.storage import REALS
from qconvert.checking.memory import Splitting
from qconvert.checking.same_codes import shift_codes
from qconvert.graph import Array, Graph, Tensor
from qconvert.graph.metadata import TRANSPOSED, VERSION, find_layout_changes, origin
from qconvert.operators import kind_of
from qconvert.operators.properties import Suits, permutation

LAYOUTS = ("channels_first", "channels_last")
_OTHER = dict(zip(LAYOUTS, reversed(LAYOUTS), strict=True))


@dataclass(frozen=True, slots=True)
class Form:
    """How the result holds a tensor of the source: with its axes in this order, and then in this shape."""

    order: tuple[int, ...]
    shape: tuple[int, ...]

    def to_result(self, value: Array) -> Array:
        moved = value.transpose(self.order)
        return moved.reshape(self.shape) if moved.size == math.prod(self.shape) else moved

    def to_source(self, value: Array, like: Array) -> Array:
        """`value` in the shape of `like`, if it has as many elements."""
        if value.size != like.size or like.ndim != len(self.order):
            return value
        return value.reshape([like.shape[axis] for axis in self.order]).transpose(np.argsort(self.order))


@dataclass(frozen=True, slots=True)
class Exchange:
    """Between the source's tensors and the pieces of the result.

    Attributes:
        pieces: the result's.
        turned: the result's layout, of the tensors that the two files have in different ones although their shape does not show it.
        layout: the data_format of the result's files.
        forms: of the tensors that the result has under another name.
    """

    pieces: Splitting
    turned: Mapping[str, str]
    layout: str
    forms: Mapping[str, Form]

    def to_result(self, tensor: Tensor, data: Array) -> Array:
        """The source's stored values as the result stores them.

        Zero points do not take part on purpose: a result whose zero point is wrong must not be fed as if it were right.
        """
        moved = _convert_storage(tensor, data, tensor.dtype, self.pieces.dtypes[tensor.name])
        if tensor.name in self.forms:
            return self.forms[tensor.name].to_result(moved)
        permutation = self._permutation(tensor.name, moved.shape, self.pieces.shapes[tensor.name])
        return moved if permutation is None else moved.transpose(permutation)

    def to_source(self, tensor: Tensor, data: Array, like: Array) -> Array:
        """What the result computed, in the layout and storage of the source's values `like`."""
        permutation = None if tensor.name in self.forms else self._permutation(tensor.name, like.shape, data.shape)
        if tensor.name in self.forms:
            data = self.forms[tensor.name].to_source(data, like)
        if permutation is not None:
            back = data.transpose(np.argsort(permutation))
            data = back if back.shape == like.shape else data
        return _convert_storage(tensor, data, self.pieces.dtypes[tensor.name], tensor.dtype)

    def _permutation(self, name: str, own: Sequence[int], other: Sequence[int | None] | None) -> tuple[int, ...] | None:
        """From the source's layout to the result's: as the files say, or as only that fits the result's shape."""
        if other is None or len(own) != len(other) or len(own) < 4:
            return None
        if name in self.turned:
            return permutation(self.turned[name], len(own))
        if self.layout not in LAYOUTS or _fits(own, other):
            return None
        # Parts of a result may have the other layout than most of its runtime's files.
        turns = [permutation(layout, len(own)) for layout in sorted(LAYOUTS, key=lambda layout: layout != self.layout)]
        return next((turn for turn in turns if _fits([own[axis] for axis in turn], other)), None)


def find_transposed(graph: Graph, other: Graph, layout: str, pairs: Mapping[str, str] | None = None) -> dict[str, str]:
    """The result's layout of each tensor that two files have in different ones, whether or not its shape shows it.

    The metadata of a conversion list the tensors that it transposed, from the first file of a chain on. Spatial operators tell the layout
    of what they write and read, and of what is computed of it element by element; without metadata they alone tell it.

    Args:
        graph, other: the source's and the result's graphs.
        layout: of tensors that the metadata list and no spatial operator reads or writes; "" if it is not known.
        pairs: which tensors to compare, the source's name and the result's; None for those of one name.
    """
    own, its = map(_find_layouts, (graph, other))
    if any(TRANSPOSED in side.metadata or VERSION in origin(side.metadata) for side in (graph, other)):
        changed = {name: (pairs or {}).get(name, name) for name in find_layout_changes(graph.metadata, other.metadata)}
        return {name: its.get(there) or _OTHER.get(own.get(name, ""), layout) for name, there in changed.items()} if layout else {}
    pairs = {name: name for name in own} if pairs is None else pairs
    return {name: its[there] for name, there in pairs.items() if there in its and own.get(name, its[there]) != its[there]}


def _find_layouts(graph: Graph) -> dict[str, str]:
    """The layouts of tensors that spatial operators write and read as data, or that have the elements of these in their order, where all of
    them say the same."""
    found: dict[str, set[str]] = {}
    for op in graph.ops:
        if kind_of(op).layout.suits is Suits.DECIDES:
            for name in (*kind_of(op).data(op), *op.outputs[:1]):
                found.setdefault(name, set()).add(str(op["data_format"]))
    elementwise = [op for op in graph.ops if kind_of(op).layout.suits is Suits.BROADCASTS]
    alike = [[name for name in op.names if name and graph[name].shape == graph[op.outputs[0]].shape] for op in elementwise]
    for names in (*alike, *reversed(alike)):
        layouts = set[str]().union(*(found.get(name, ()) for name in names))
        found.update((name, layouts) for name in names if layouts)
    return {name: next(iter(layouts)) for name, layouts in found.items() if len(layouts) == 1}


def _convert_storage(tensor: Tensor, data: Array, have: str, want: str) -> Array:
    """Stored values moved between signed and unsigned types of one width, or as real numbers where only one side has floats, and back."""
    if tensor.quantization is None or have == want or "float32" not in (have, want):
        return shift_codes(data, have, want)
    if want == "float32":
        return np.asarray(dequantize(data, tensor.quantization), np.float32)
    # What the source's limits cut off is seen.
    return quantize(data.astype(np.float64), replace(tensor.quantization, quant_min=None, quant_max=None), want)


def to_float(tensor: Tensor, value: Array) -> Array:
    """The float64 values of stored values of a tensor, or of float values of it."""
    is_stored = tensor.quantization is not None and value.dtype.name not in REALS
    return dequantize(value, tensor.quantization) if is_stored and tensor.quantization else value.astype(np.float64)


def _fits(actual: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return all(w is None or w in (0, a) for a, w in zip(actual, wanted, strict=True))
