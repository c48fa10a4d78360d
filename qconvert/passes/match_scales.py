"""match_scales: results get the scales that the target's kernels fix, and operands one common scale where kernels demand it.

A Requantize stands only where scales differ. In front of Concat, Max, Min and Where it is exact, since these move or compare: what they
give is rounded once either way. Behind a Softmax or a Sigmoid it rounds a second time. An average with a scale of its own becomes a
depthwise convolution by 1 / elements of the window, which is rounded once; where padding does not count it stays, with a Requantize behind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.plugins import Target

__all__ = ["run"]

_JOINING = ("Concat", "Max", "Min", "Where")


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Inserts what target.fixed_outputs and target.equal_scales ask for."""
    if target is None or not (target.fixed_outputs or target.equal_scales):
        return graph, ()
    matching = _Matching(graph, target)
    for op in graph.ops:
        matching.visit(op)
    notes = []
    if matching.exact:
        notes.append(f"{matching.exact} Requantize in front of operators whose operands must share a scale (exact)")
    if matching.averages:
        notes.append(f"{matching.averages} AveragePool to another scale are depthwise convolutions by 1 / elements of the window (exact)")
    if matching.rounded:
        notes.append(f"{matching.rounded} Requantize behind operators whose kernels fix the scale: a second rounding, up to 1 LSB")
    if not notes:
        return graph, ()
    return graph.evolve(tensors=matching.tensors.values(), ops=matching.ops), tuple(notes)


class _Matching:
    def __init__(self, graph: Graph, target: Target) -> None:
        self._graph = graph
        self._target = target
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.exact = self.rounded = self.averages = 0

    def visit(self, op: Op) -> None:
        """Takes an operator over, with what it needs around it."""
        result = self._graph[op.outputs[0]] if op.outputs and op.outputs[0] else None
        if result is None or result.quantization is None:
            self.ops.append(op)
            return
        fixed = self._target.fixed_outputs.get(op.kind, {}).get(result.dtype)
        if fixed is not None:
            wanted = Quantization(np.array([fixed[0]], np.float32), np.array([fixed[1]], np.int64))
            self._give(op, result, wanted)
        elif result.dtype not in self._target.equal_scales.get(op.kind, ()):
            self.ops.append(op)
        elif op.kind in _JOINING:
            self._join(op, result)
        elif op.kind == "AveragePool" and self._is_convolution(op, result):
            self._convolve(op, result)
        elif self._graph[op.inputs[0]].quantization is not None:
            self._give(op, result, self._graph[op.inputs[0]].quantization)
        else:
            self.ops.append(op)

    def _give(self, op: Op, result: Tensor, wanted: Quantization | None) -> None:
        """The result on the grid `wanted`, and from there on its own."""
        if wanted is None or wanted == result.quantization:
            self.ops.append(op)
            return
        name = self._add(f"{result.name}/kernel_scale", replace(result, quantization=wanted))
        self.ops += [replace(op, outputs=(name, *op.outputs[1:])), Op("Requantize", (name,), (result.name,), {}, op.source)]
        self.rounded += 1

    def _is_convolution(self, op: Op, result: Tensor) -> bool:
        """Whether an average is one of the same count of elements everywhere, on another grid than its data."""
        data = self._graph[op.inputs[0]]
        counts = not any(op["pads"]) or bool(op["count_include_pad"])
        plain = op["auto_pad"] == "NOTSET" and not op["ceil_mode"] and len(op["kernel_shape"]) == 2
        known = data.rank == 4 and isinstance(self._channels(op), int)
        same = data.quantization is None or data.quantization == result.quantization
        return counts and plain and known and not same and data.dtype == result.dtype

    def _channels(self, op: Op) -> int | str:
        shape = self._graph[op.inputs[0]].shape or ()
        return shape[-1 if op["data_format"] == "channels_last" else 1]

    def _convolve(self, op: Op, result: Tensor) -> None:
        channels, window = int(self._channels(op)), tuple(op["kernel_shape"])
        dtype = "uint8" if result.dtype == "uint8" else "int8"
        ones = np.ones((channels, 1, *window), dtype)
        grid = Quantization.per_tensor(1 / int(np.prod(window)))
        weights = self._add(f"{result.name}/window", Tensor("", dtype, ones.shape, ones, grid))
        kept = {name: op[name] for name in ("strides", "pads", "data_format", "activation")}
        attributes = {**kept, "dilations": (1, 1), "group": channels}
        self.ops.append(Op("Conv", (op.inputs[0], weights), op.outputs, attributes, op.source))
        self.averages += 1

    def _join(self, op: Op, result: Tensor) -> None:
        """Every operand on the grid of the result."""
        names = list(op.inputs)
        for index, name in enumerate(names):
            tensor = self._graph.tensors.get(name)
            if tensor is None or tensor.quantization is None or tensor.quantization == result.quantization:
                continue
            moved = replace(tensor, dtype=result.dtype, data=None, quantization=result.quantization)
            names[index] = self._add(f"{name}/{result.name}_scale", moved)
            self.ops.append(Op("Requantize", (name,), (names[index],), {}, op.source))
            self.exact += 1
        self.ops.append(replace(op, inputs=tuple(names)))

    def _add(self, wanted: str, tensor: Tensor) -> str:
        name = self._names.fresh(wanted)
        self.tensors[name] = replace(tensor, name=name)
        return name
