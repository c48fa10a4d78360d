"""What comes after a value: where it is given a quantization, and through what it goes until then."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qconvert.evaluate.known_values import KnownValues
from qconvert.graph import Array, Op, Tensor
from qconvert.graph.activations import is_exact
from qconvert.operators import kind_of
from qconvert.rewriting import Rewriter

__all__ = ["Lookahead", "clip_bounds"]

#: Readers of readers that are followed; a value that goes further stays real.
_FARTHEST = 64


class Lookahead:
    """What reads each value of the graph as it was."""

    def __init__(self, rewriter: Rewriter, known: KnownValues) -> None:
        self._graph, self._readers, self._known = rewriter.graph, rewriter.readers, known

    def bounds(self, op: Op) -> tuple[float | None, float | None] | None:
        """Return the bounds of a Relu or of a Clip with known ones, else None."""
        if op.kind == "Relu":
            return 0.0, None
        if op.kind != "Clip":
            return None
        return clip_bounds([self._known.get(name) if name else None for name in op.inputs[1:]], op)

    def quantization(self, name: str) -> Tensor | None:
        """Return the quantization on which every reader puts the float value `name`, directly or after moving or clipping it; None without
        one."""
        pending, found, seen = [name], None, 0
        while pending:
            current = pending.pop()
            readers = self._readers.get(current, ())
            if not readers or current in self._graph.public or seen > _FARTHEST:
                return None
            seen += 1
            for reader in readers:
                if not reader.outputs:  # a state keeps the float value
                    return None
                result = self._graph[reader.outputs[0]]
                if reader.kind == "Quantize":
                    if result.quantization is None or not result.quantization.is_per_tensor:
                        return None
                    if found is not None and not found.shares_quantization(result):
                        return None
                    found = result
                elif _is_single_movement(reader) or self.bounds(reader) is not None:
                    pending.append(result.name)
                else:
                    return None
        return found if found is not None and self._clips_exactly(name, found) else None

    def _clips_exactly(self, name: str, quantization: Tensor) -> bool:
        """Whether clipping integers gives what clipping the float values before rounding gives, for every Clip after `name`."""
        pending = [name]
        while pending:
            for reader in self._readers.get(pending.pop(), ()):
                bounds = self.bounds(reader)
                if bounds is not None and not is_exact(bounds, quantization):
                    return False
                if reader.kind != "Quantize":
                    pending.append(reader.outputs[0])
        return True


def clip_bounds(values: Sequence[Array | None], op: Op) -> tuple[float | None, float | None] | None:
    """Return the bounds of a Clip whose inputs for them have these values; an infinite one is none.

    None if a bound is computed at run time, is no number, or leaves no range.
    """
    found: list[float | None] = [None, None]
    for index, (name, value) in enumerate(zip(op.inputs[1:], values, strict=True)):
        if not name:
            continue
        if value is None or value.size != 1:
            return None
        found[index] = float(value.reshape(-1)[0])
    lower, upper = (-math.inf if found[0] is None else found[0]), (math.inf if found[1] is None else found[1])
    if not lower <= upper or lower == math.inf or upper == -math.inf:
        return None
    return (None if lower == -math.inf else lower), (None if upper == math.inf else upper)


def _is_single_movement(op: Op) -> bool:
    """Whether an operator is data movement of one tensor alone, so that rounding before or after it is the same."""
    spec = kind_of(op)
    return spec.rule == "move" and len(op.outputs) == 1 and set(spec.roles[1:]) <= {"index"} and spec.inputs[1] > 0
