"""widen_1d: convolutions and pools over one dimension become ones over two, with a height of 1.

Exact: the new dimension has one position, one tap and no padding. TFLite and many accelerators have no operators of rank 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.graph import Graph, Op, Shape
from qconvert.operators import kind_of
from qconvert.operators.properties import Suits
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

_RANK = 3


def run(graph: Graph, target: Target | None) -> PassResult:
    """Put an Unsqueeze before and a Squeeze after each of them; between two of them there is neither."""
    widening = _Widening(graph)
    for op in widening:
        if _is_narrow(graph, op):
            widening.widen(op)
    return widening.finish_with("{} 1-D operators have a second dimension of size 1".format, prune=True)


def _is_narrow(graph: Graph, op: Op) -> bool:
    """Whether it is a convolution or a pool, which takes the largest or the mean of each channel, over one dimension."""
    kind = kind_of(op)
    is_spatial = kind.layout.suits is Suits.DECIDES and (kind.has_weights or kind.scales_channels)
    return is_spatial and graph[op.inputs[0]].rank == _RANK


class _Widening(Rewriter):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._wide: dict[tuple[str, int], str] = {}  # narrow tensor and the axis of the new dimension -> the same data with it
        self._weights: dict[str, str] = {}

    def widen(self, op: Op) -> None:
        """Put the operator's wide form, between an Unsqueeze and a Squeeze, in its place."""
        axis = 1 if op["data_format"] == "channels_last" else 2
        result = self.graph[op.name]
        wide = self.add(f"{result.name}/wide", result, shape=_insert_axis(result.shape, axis))
        inputs = [self._data(op.inputs[0], axis), *op.inputs[1:]]
        if kind_of(op).has_weights:
            inputs[1] = self._kernel(op.inputs[1])
        widened = replace(op, inputs=tuple(inputs), outputs=(wide,), attributes=_attributes(op))
        self.replace(op, widened, op.derive("Squeeze", (wide, self._axes(result.name, axis)), (result.name,)))
        self._wide[result.name, axis] = wide

    def _data(self, name: str, axis: int) -> str:
        if (name, axis) not in self._wide:
            data = replace(self.graph[name], shape=_insert_axis(self.graph[name].shape, axis))
            self._wide[name, axis] = self.compute("Unsqueeze", (name, self._axes(name, axis)), f"{name}/wide", data)
        return self._wide[name, axis]

    def _kernel(self, name: str) -> str:
        """Return the weights O,I,1,W; those that are computed get an Unsqueeze."""
        if name not in self._weights:
            tensor = self.graph[name]
            data = None if tensor.data is None else np.expand_dims(tensor.data, 2)
            self._weights[name] = self.add(f"{name}/wide", tensor, shape=_insert_axis(tensor.shape, 2), data=data)
            if data is None:
                self.emit(Op("Unsqueeze", (name, self._axes(name, 2)), (self._weights[name],)))
        return self._weights[name]

    def _axes(self, name: str, axis: int) -> str:
        return self.constant(f"{name}/height", [axis])


def _insert_axis(shape: Shape | None, axis: int) -> Shape | None:
    return None if shape is None else (*shape[:axis], 1, *shape[axis:])


def _attributes(op: Op) -> dict[str, Any]:
    """Return every list over dimensions with an entry for the new one in front; pads have one at the begin and one at the end."""
    changed: dict[str, Any] = dict(op.attributes)
    for name, value in (("strides", 1), ("dilations", 1), ("kernel_shape", 1), ("output_padding", 0)):
        if changed.get(name):
            changed[name] = (value, *changed[name])
    if "pads" in changed:
        begin, end = changed["pads"]
        changed["pads"] = (0, begin, 0, end)
    return changed
