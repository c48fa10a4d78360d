"""Real data that were rounded to integers when they ran, decomposed operator by operator, for fuse_dynamic.

torch.export programs choose a scale and a zero point of the whole tensor (quantized_decomposed::choose_qparams), quantize with them and
dequantize again. formats/torch/ops/dynamic.py decomposes that; this walks the same way back.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.graph import Graph, Op

__all__ = ["DecomposedRounding"]

_LIMITS = ((0.0, 255.0), (-128.0, 127.0))


class _OtherwiseError(Exception):
    """What was found is something else."""


class DecomposedRounding:
    """Finds the data of what was rounded so.

    Attributes:
        seen: ids of the operators that belong to a rounding that was found.
    """

    def __init__(self, graph: Graph, producers: Mapping[str, Op]) -> None:
        self._graph = graph
        self._producers = producers
        self.seen: set[int] = set()

    def data_of(self, name: str) -> str:
        """The real data x of which `name` is the value after Quantize and Dequantize in 255 steps from min(x) to max(x); "" if of none."""
        ops: list[Op] = []
        try:
            found = self._match_fake_quantize(name, ops)
        except _OtherwiseError:
            return ""
        self.seen.update(map(id, ops))
        return found

    def _match_fake_quantize(self, name: str, ops: list[Op]) -> str:
        """(clip(round(x * (1 / scale)) + point) - point) * scale, with scale and point of x itself."""
        steps, scale = self._inputs(name, "Mul", ops)
        stored, point = self._inputs(steps, "Sub", ops)
        shifted, low, high = self._inputs(stored, "Clip", ops)
        limits = (self._number(low), self._number(high))
        if limits not in _LIMITS:
            raise _OtherwiseError
        rounded, same_point = self._inputs(shifted, "Add", ops)
        (scaled,) = self._inputs(rounded, "Round", ops)
        data, reciprocal = self._inputs(scaled, "Mul", ops)
        one, same_scale = self._inputs(reciprocal, "Div", ops)
        if same_point != point or same_scale != scale or self._number(one) != 1:
            raise _OtherwiseError
        single = self._inputs(scale, "Unsqueeze", ops)[0]
        lowest = self._scale(single, data, ops)
        self._point(self._inputs(point, "Unsqueeze", ops)[0], lowest, single, limits, ops)
        return data

    def _scale(self, name: str, data: str, ops: list[Op]) -> str:
        """max((highest - lowest) / 255, eps), 0 among both; the name of the lowest."""
        quotient, _ = self._inputs(name, "Max", ops)
        span, count = self._inputs(quotient, "Div", ops)
        highest, lowest = self._inputs(span, "Sub", ops)
        if self._number(count) != 255:
            raise _OtherwiseError
        for end, kind in ((lowest, "Min"), (highest, "Max")):
            reduced, zero = self._inputs(end, kind, ops)
            source, axes = self._inputs(reduced, f"Reduce{kind}", ops)
            places = self._graph.constant(axes)
            if source != data or self._number(zero) != 0 or places is None or len(places) != self._graph[data].rank:
                raise _OtherwiseError
        return lowest

    def _point(self, name: str, lowest: str, scale: str, limits: tuple[float, float], ops: list[Op]) -> None:
        """clip(low - round(lowest / scale))."""
        point, low, high = self._inputs(name, "Clip", ops)
        first, steps = self._inputs(point, "Sub", ops)
        (quotient,) = self._inputs(steps, "Round", ops)
        if self._inputs(quotient, "Div", ops) != (lowest, scale) or (self._number(low), self._number(high)) != limits:
            raise _OtherwiseError
        if self._number(first) != limits[0]:
            raise _OtherwiseError

    def _inputs(self, name: str, kind: str, ops: list[Op]) -> tuple[str, ...]:
        op = self._producers.get(name)
        if op is None or op.kind != kind or op.attributes.get("activation"):
            raise _OtherwiseError
        ops.append(op)
        return op.inputs

    def _number(self, name: str) -> float:
        data = self._graph.constant(name)
        if data is None or data.size != 1:
            raise _OtherwiseError
        return float(np.float32(data.reshape(-1)[0]))
