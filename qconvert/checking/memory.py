"""How much of a check fits into memory, and the pieces of a file that run together where the runtime takes them all and their values are
not too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from qconvert.data.input_limits import number_of
from qconvert.errors import QConvertError
from qconvert.graph import Array, Arrays, Graph, numpy_dtype
from qconvert.plugins import Pieces

#: Bytes that the processes of a check hold together, of models up to 50 MB.
MOST = 1_000_000_000
#: What they hold of it without tensors: Python, its packages, and runtimes (measured).
_BASE = 300_000_000
#: How often constants are held: as the graphs of both sides, in files, and as runtimes pack them (measured).
_COPIES = 6
#: Of larger models, what is left for tensors all the same.
_LEAST = 64 << 20
#: Bytes of the tensors that pieces compute together at most, and what they take a multiple of: both sides, exchanged and in float64.
_AT_ONCE, _MULTIPLE = 64 << 20, 5


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that a check has for tensors."""

    bytes: int

    @classmethod
    def for_graphs(cls, *graphs: Graph) -> Room:
        """What the constants of these graphs leave."""
        constants = max(sum(tensor.data.nbytes for tensor in graph.constants() if tensor.data is not None) for graph in graphs)
        return cls(max(MOST - _BASE - _COPIES * constants, _LEAST))

    def samples(self, wanted: int, each: int) -> int:
        """How many inputs are run, whose inputs and outputs of both sides have so many bytes: they stay while operators are compared."""
        return max(1, min(wanted, self.bytes // 4 // max(each, 1)))

    @property
    def run_bytes(self) -> int:
        """Bytes of the tensors of one run, which the runtime's process and this one hold."""
        return self.bytes // 2

    def range_bytes(self, held: int) -> int:
        """Bytes of the tensors whose values over full ranges are computed next to those of a run: fed, computed, and both in the runtime's
        process, which holds what it sends besides (measured: 4.6 times as much)."""
        return max(0, self.bytes - held) // 5

    def piece_bytes(self, held: int) -> int:
        """Bytes of the tensors that pieces compute together next to those of a run; 0 is one after the other (measured: 4 times as
        much)."""
        return min(_AT_ONCE, max(0, self.bytes - held) // _MULTIPLE)


def sizes_of(graph: Graph, feed: Arrays) -> dict[str, int]:
    """The numbers that the names of sizes have with these inputs."""
    pairs = ((graph[name].shape or (), value.shape) for name, value in feed.items() if name in graph)
    return {size: found for shape, sizes in pairs for size, found in zip(shape, sizes, strict=False) if isinstance(size, str)}


def nbytes(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """The bytes of each activation, in the order in which they are computed, with numbers for the names of sizes.

    A size without one counts as 1, a tensor of unknown shape as nothing.
    """
    number = number_of(sizes)

    def size(name: str) -> int:
        tensor = graph[name]
        dtype = "int64" if tensor.dtype in ("string", "unknown") else tensor.dtype
        return 0 if tensor.shape is None else math.prod(map(number, tensor.shape)) * numpy_dtype(dtype).itemsize

    return {name: size(name) for name in (*graph.inputs, *(name for op in graph.ops for name in op.outputs if name))}


def first_fitting(sizes: Mapping[str, int], most: int, of: Iterable[str] | None = None) -> list[str]:
    """The names in order, or those `of` them, before the first with which their bytes are more than `most`."""
    found, total = list[str](), 0
    chosen = sizes.keys() if of is None else {*of}
    for name in (name for name in sizes if name in chosen):
        total += sizes[name]
        if total > most:
            break
        found.append(name)
    return found


_LONGEST = 200


class Splitting:
    """The pieces that compute `wanted`; what the runtime refuses is left out and named.

    Args:
        make: gives the pieces that compute some of the names. Raises QConvertError where the runtime refuses them.
        wanted: names of what is computed, in order.
        sizes: of these in bytes, as far as they are known.
        at_once: how many bytes are computed together at most; one that is larger is computed by itself.

    Attributes:
        refused: why it refused a piece, in a line, by the name of what the piece computes.
        dtypes, shapes: see plugins.Pieces.
    """

    def __init__(
        self, make: Callable[[frozenset[str]], Pieces], wanted: Sequence[str], sizes: Mapping[str, int] = MappingProxyType({}),
        at_once: int = 0,
    ) -> None:  # fmt: skip
        self.refused: dict[str, str] = {}
        self.dtypes: dict[str, str] = {}
        self.shapes: dict[str, tuple[int | None, ...] | None] = {}
        self._make = make
        self._parts = [part for group in _group_names(wanted, sizes, at_once) for part in self._make_pieces(group)]

    @property
    def output_names(self) -> frozenset[str]:
        """What the parts compute that nothing refused so far."""
        return frozenset(name for wanted, _ in self._parts for name in wanted)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, part in self._parts for name in part.fed))

    def run(self, value: Callable[[str], Array]) -> dict[str, Array]:
        """What the pieces compute, by name.

        Args:
            value: the stored values of a tensor that is fed, as the file stores it. A QConvertError that it raises counts as a refusal.
        """
        return {name: found for part in self.parts(value) for name, found in part.items()}

    def parts(self, value: Callable[[str], Array]) -> Iterator[dict[str, Array]]:
        """Likewise, part by part, in order."""
        waiting, self._parts = self._parts, []
        try:
            while waiting:
                wanted, part = waiting.pop(0)
                try:
                    found = part.run({name: value(name) for name in part.fed})
                    self._parts.append((wanted, part))
                except QConvertError as error:
                    waiting[:0] = self._split_refused(wanted, error)
                    continue
                yield found
        finally:
            self._parts += waiting

    def parts_taken(self, value: Callable[[str], Array]) -> Iterator[dict[str, Array]]:
        """Likewise, of values that need not be legal: a part that refuses them is left out of this run alone."""
        for _, part in self._parts:
            try:
                found = part.run({name: value(name) for name in part.fed})
            except QConvertError:
                continue
            yield found

    def _make_pieces(self, wanted: tuple[str, ...]) -> list[tuple[tuple[str, ...], Pieces]]:
        try:
            pieces = self._make(frozenset(wanted))
        except QConvertError as error:
            return self._split_refused(wanted, error)
        self.dtypes.update(pieces.dtypes)
        self.shapes.update(pieces.shapes)
        return [(wanted, pieces)]

    def _split_refused(self, wanted: tuple[str, ...], error: QConvertError) -> list[tuple[tuple[str, ...], Pieces]]:
        """Both halves of what was refused together; what is refused by itself is named."""
        if len(wanted) > 1:
            half = len(wanted) // 2
            return [*self._make_pieces(wanted[:half]), *self._make_pieces(wanted[half:])]
        said = " ".join(error.reason.split())
        self.refused.update(dict.fromkeys(wanted, said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"))
        return []


def _group_names(wanted: Sequence[str], sizes: Mapping[str, int], at_once: int) -> Iterator[tuple[str, ...]]:
    """Names in order, those together whose values are at most so many bytes, or one that is larger."""
    group: list[str] = []
    for name in wanted:
        if group and sum(sizes.get(item, 0) for item in (*group, name)) > at_once:
            yield tuple(group)
            group = []
        group.append(name)
    if group:
        yield tuple(group)


@dataclass(slots=True)
class OtherKernels:
    """The operators of both sides of a check one by one, cut as they are, by other kernels of the runtimes.

    Attributes:
        make: gives what computes a tensor: of the source (0) or the result (1), the kernels, the tensor's name.
        useless: whether an operator remains without an explanation, so that it does not matter whether others have one.
    """

    make: Callable[[int, str, str], Splitting]
    useless: bool = False
    _made: dict[tuple[int, str, str], Splitting | None] = field(default_factory=dict)

    def compute_tensor(self, place: int, kernels: str, name: str, value: Callable[[str], Array]) -> Array | None:
        """What a side gives for a tensor, or None where the runtime refuses it; `value` is as in Splitting.run()."""
        key = place, kernels, name
        if key not in self._made:
            try:
                self._made[key] = self.make(*key)
            except QConvertError:
                self._made[key] = None
        made = self._made[key]
        return None if made is None else made.run(value).get(name)
