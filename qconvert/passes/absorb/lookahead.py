"""What comes behind a value: where it is put on a grid, and through what it goes until then."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import round_half_away, round_half_even
from qconvert.evaluate.known_values import KnownValues
from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.graph.kinds import KINDS

__all__ = ["Lookahead", "is_exact", "is_same_grid"]

#: Readers of readers that are followed; a value that goes further stays real.
_FARTHEST = 64


class Lookahead:
    """The readers of every value in a graph that does not change meanwhile."""

    def __init__(self, graph: Graph, known: KnownValues) -> None:
        self._graph = graph
        self._public = graph.public
        self._known = known
        self.consumers = graph.consumers()

    def bounds(self, op: Op) -> tuple[float | None, float | None] | None:
        """The bounds of a Relu or of a Clip with known ones, else None."""
        if op.kind == "Relu":
            return 0.0, None
        if op.kind != "Clip":
            return None
        values = [self._known.get(name) if name else None for name in (*op.inputs[1:], "", "")[:2]]
        if any(name and value is None for name, value in zip(op.inputs[1:], values, strict=False)):
            return None
        lower, upper = (None if value is None else float(value.reshape(-1)[0]) for value in values)
        return lower, upper

    def grid(self, name: str) -> Tensor | None:
        """The one grid on which every reader puts the real value `name`, at once or after moving or clipping it; None without one."""
        pending, found, seen = [name], None, 0
        while pending:
            current = pending.pop()
            readers = self.consumers.get(current, [])
            if not readers or current in self._public or seen > _FARTHEST:
                return None
            seen += 1
            for reader in readers:
                result = self._graph[reader.outputs[0]]
                if reader.kind == "Quantize":
                    if result.quantization is None or not result.quantization.is_per_tensor:
                        return None
                    if found is not None and not is_same_grid(found, result):
                        return None
                    found = result
                elif _moves_one(reader) or self.bounds(reader) is not None:
                    pending.append(result.name)
                else:
                    return None
        return found if found is not None and self._clips_exactly(name, found) else None

    def _clips_exactly(self, name: str, grid: Tensor) -> bool:
        """Whether clipping integers gives what clipping the real values before rounding gives, for every Clip behind `name`."""
        pending = [name]
        while pending:
            for reader in self.consumers.get(pending.pop(), []):
                bounds = self.bounds(reader)
                if bounds is not None and not is_exact(bounds, grid):
                    return False
                if reader.kind != "Quantize":
                    pending.append(reader.outputs[0])
        return True


def _moves_one(op: Op) -> bool:
    """Whether an operator moves one tensor and nothing else, so that rounding before or after it is the same."""
    spec = KINDS[op.kind]
    return spec.rule == "move" and len(op.outputs) == 1 and set(spec.roles[1:]) <= {"index"} and spec.inputs[1] > 0


def is_same_grid(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.quantization == b.quantization


def is_exact(bounds: tuple[float | None, float | None], grid: Tensor) -> bool:
    """Whether a bound rounds to one stored integer however ties are rounded, so that clipping integers is clipping real values."""
    assert grid.quantization is not None
    if grid.dtype not in ("int8", "uint8", "int16", "uint16", "int4", "uint4"):
        return False
    low, high = integer_range(grid.dtype)
    for bound in bounds:
        if bound is None or not np.isfinite(bound):
            continue
        steps = np.float32(bound) / grid.quantization.scale[0]
        even, away = (int(np.clip(f(steps) + grid.quantization.zero_point[0], low, high)) for f in (round_half_even, round_half_away))
        if even != away:
            return False
    return True
