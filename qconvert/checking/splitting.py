"""Pieces of a file that run together where the runtime takes them all and their values are not too large, else in smaller parts, down to
single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from qconvert.errors import QConvertError
from qconvert.graph import Array
from qconvert.plugins import Pieces

__all__ = ["OtherKernels", "Splitting"]

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
