"""How often a Loop runs, where its condition says so without being run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from qconvert.arithmetic.dtypes import Array
from qconvert.graph.schema import Graph, Op, Tensor

__all__ = ["trip_count"]

#: Whole numbers up to which float32, in which some exporters compare, has each.
_EXACT = 2**24


def trip_count(outer: Mapping[str, Tensor], op: Op, body: Graph) -> float | None:
    """How many turns a Loop runs; None where only a run can say.

    That is its trip count, or less if its condition compares numbers that grow by 1 at each turn with constants.

    Args:
        outer: the tensors of the graph around it.
        op: the Loop.
        body: its function.

    Returns:
        A whole number; infinity for a condition that is always true, without a constant as its count.
    """
    given = outer[op.inputs[1]].data if op.inputs[1] else None
    if op.inputs[1] and (given is None or not given.all()):
        return None
    count = outer[op.inputs[0]].data if op.inputs[0] else None
    least = math.inf if count is None else max(int(count.reshape(-1)[0]), 0)
    counting, waiting = _Counting(outer, op, body), [body.outputs[0]]
    while waiting:
        name = counting.plain(waiting.pop())
        maker, data = counting.makers.get(name), counting.constant(name)
        if maker is not None and maker.kind == "And":
            waiting += maker.inputs
        elif maker is not None and maker.kind == "Less":
            turns = counting.turns_below(*maker.inputs)
            if turns is None:
                return None
            least = min(least, 1 + turns)
        elif name != body.inputs[1] and (data is None or not data.all()):
            return None
    return least


class _Counting:
    """The body of a Loop that is being looked at."""

    def __init__(self, outer: Mapping[str, Tensor], op: Op, body: Graph) -> None:
        self._outer, self._op, self._body, self.makers = outer, op, body, body.producers()
        self._carried = range(2, 2 + int(op["carried"]))

    def plain(self, name: str) -> str:
        """What an Identity gives on."""
        while (maker := self.makers.get(name)) is not None and maker.kind == "Identity":
            name = maker.inputs[0]
        return name

    def constant(self, name: str) -> Array | None:
        """The constant that a name stands for in each turn, of the body or from around it."""
        inputs = self._body.inputs
        place = inputs.index(name) if name in inputs else 0
        if place >= self._carried.stop:
            return self._outer[self._op.inputs[place]].data
        return self._body.constant(name)

    def turns_below(self, value: str, limit: str) -> int | None:
        """In how many turns, from the first on, a number that grows by 1 is below a constant."""
        end, start = self._number(limit), self._start(value)
        if end is None or start is None or max(abs(end), abs(start)) > _EXACT:
            return None
        return max(0, math.ceil(end - start))

    def _number(self, name: str) -> float | None:
        data = self.constant(name)
        if data is None or data.size != 1 or data.dtype.kind not in "iuf":
            return None
        number = float(data.reshape(-1)[0])
        return number if math.isfinite(number) else None

    def _start(self, name: str) -> float | None:
        """What a value is in the first turn, if it is one more in each: the number of the turn, or one that is carried."""
        shift = 0.0
        while (maker := self.makers.get(name)) is not None:
            if maker.kind == "Add":
                summands = [
                    (other, number) for other, own in (maker.inputs, maker.inputs[::-1]) if (number := self._number(own)) is not None
                ]
                if len(summands) != 1 or not summands[0][1].is_integer():
                    return None
                name, shift = summands[0][0], shift + summands[0][1]
            elif maker.kind == "Identity" or (maker.kind == "Cast" and maker["to"] in ("int32", "int64", "float32", "float64")):
                name = maker.inputs[0]
            else:
                return None
        place = self._body.inputs.index(name) if name in self._body.inputs else -1
        if place == 0:
            return shift
        return self._first(place, shift) if place in self._carried else None

    def _first(self, place: int, shift: float) -> float | None:
        """The first value of what is carried, if each turn adds 1."""
        first, after = self._outer[self._op.inputs[place]].data, self.plain(self._body.outputs[place - 1])
        maker = self.makers.get(after)
        if first is None or first.size != 1 or first.dtype.kind != "i" or maker is None or maker.kind != "Add":
            return None
        own = self._body.inputs[place]
        steps = [self._number(other) for name, other in (maker.inputs, maker.inputs[::-1]) if self.plain(name) == own]
        return int(first.reshape(-1)[0]) + shift if steps == [1.0] else None
