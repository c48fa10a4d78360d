"""widen_1d: convolutions and pools over one dimension become ones over two, with a height of 1.

Exact: the new dimension has one position, one tap and no padding. TFLite and many accelerators have no operators of rank 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Shape, Tensor
from qconvert.passes import remove_dead_code
from qconvert.plugins import Target

__all__ = ["run"]

_KINDS = ("Conv", "ConvTranspose", "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool")
_RANK = 3


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Puts an Unsqueeze in front of and a Squeeze behind each of them; between two of them there is neither."""
    if not any(_is_narrow(graph, op) for op in graph.ops):
        return graph, ()
    widening = _Widening(graph)
    for op in graph.ops:
        if _is_narrow(graph, op):
            widening.widen(op)
        else:
            widening.ops.append(op)
    changed, _ = remove_dead_code.run(graph.evolve(tensors=widening.tensors.values(), ops=widening.ops), target)
    return changed, (f"{widening.count} operators over one dimension have a second one of size 1",)


def _is_narrow(graph: Graph, op: Op) -> bool:
    return op.kind in _KINDS and graph[op.inputs[0]].rank == _RANK


class _Widening:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._wide: dict[tuple[str, int], str] = {}  # narrow tensor and the axis of the new dimension -> the same data with it
        self._weights: dict[str, str] = {}
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.count = 0

    def widen(self, op: Op) -> None:
        """Takes the operator over in its wide form."""
        axis = 1 if op["data_format"] == "channels_last" else 2
        result = op.outputs[0]
        wide = self._add(f"{result}/wide", self._graph[result], _widened(self._graph[result].shape, axis))
        inputs = [self._data(op.inputs[0], axis), *op.inputs[1:]]
        if op.kind in ("Conv", "ConvTranspose"):
            inputs[1] = self._kernel(op.inputs[1])
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=(wide,), attributes=_attributes(op)))
        self.ops.append(Op("Squeeze", (wide, self._axes(result, axis)), (result,), {}, op.source))
        self._wide[result, axis] = wide
        self.count += 1

    def _data(self, name: str, axis: int) -> str:
        if (name, axis) not in self._wide:
            self._wide[name, axis] = self._add(f"{name}/wide", self._graph[name], _widened(self._graph[name].shape, axis))
            self.ops.append(Op("Unsqueeze", (name, self._axes(name, axis)), (self._wide[name, axis],)))
        return self._wide[name, axis]

    def _kernel(self, name: str) -> str:
        """The weights O,I,1,W; those that are computed get an Unsqueeze."""
        if name not in self._weights:
            tensor = self._graph[name]
            data = None if tensor.data is None else np.expand_dims(tensor.data, 2)
            self._weights[name] = self._add(f"{name}/wide", tensor, _widened(tensor.shape, 2), data)
            if data is None:
                self.ops.append(Op("Unsqueeze", (name, self._axes(name, 2)), (self._weights[name],)))
        return self._weights[name]

    def _add(self, wanted: str, like: Tensor, shape: Shape | None, data: Array | None = None) -> str:
        name = self._names.fresh(wanted)
        quantization: Quantization | None = like.quantization
        self.tensors[name] = Tensor(name, like.dtype, shape, data, quantization)
        return name

    def _axes(self, name: str, axis: int) -> str:
        found = self._names.fresh(f"{name}/height")
        self.tensors[found] = Tensor(found, "int64", (1,), np.array([axis], np.int64))
        return found


def _widened(shape: Shape | None, axis: int) -> Shape | None:
    return None if shape is None else (*shape[:axis], 1, *shape[axis:])


def _attributes(op: Op) -> dict[str, Any]:
    """Every list over dimensions with an entry for the new one in front; pads have one at the begin and one at the end."""
    changed: dict[str, Any] = dict(op.attributes)
    for name, value in (("strides", 1), ("dilations", 1), ("kernel_shape", 1), ("output_padding", 0)):
        if changed.get(name):
            changed[name] = (value, *changed[name])
    if "pads" in changed:
        begin, end = changed["pads"]
        changed["pads"] = (0, begin, 0, end)
    return changed
