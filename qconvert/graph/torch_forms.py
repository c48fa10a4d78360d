"""Averages, interpolations and first roundings of data as PyTorch's engines round them, in operators that every runtime rounds alike.

An average of an even number of integers often is a tie, which each kernel rounds in its own way. As a convolution with weights of ones it
is an exact sum that is multiplied once and rounded to even. Where PyTorch takes ties by the stored integers, and not by the steps from the
zero point, the convolution sees the data on a grid with zero point 0. An average of an odd number is never near a tie.

First roundings: see torch_quantize.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic import ADDITIONS, TORCH_AVERAGES, adds_alike, adds_as, averages_alike, averaging_scale, saturate
from qconvert.arithmetic.dtypes import Array, integer_range
from qconvert.arithmetic.quantization import Quantization
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.graph.torch_quantize import fused_quantize

__all__ = ["TorchForms", "has_torch_form", "rounds_alike"]


def has_torch_form(op: Op) -> bool:
    """Whether an operator rounds as one of PyTorch's engines does, in a way that TorchForms spells."""
    return op.attributes.get("arithmetic") in (*TORCH_AVERAGES, "torch", "fused") and op.kind != "Add"


def rounds_alike(graph: Graph, op: Op, other: str) -> bool:
    """Whether an addition or an average gives the integers of another of ADDITIONS or TORCH_AVERAGES for all data."""
    own, tensors = str(op["arithmetic"]), [graph[name] for name in (*op.inputs, *op.outputs) if not graph[name].is_constant]
    grids = [tensor.quantization for tensor in tensors if tensor.quantization is not None and tensor.quantization.is_per_tensor]
    if {tensor.dtype for tensor in tensors} not in ({"int8"}, {"uint8"}) or len(grids) != len(tensors):
        return False
    if op.kind == "Add" and len(grids) == 3:
        inputs, result = (grids[0], grids[1]), grids[2]
        return all(adds_as(name, inputs, result) for name in (own, other)) and adds_alike(
            own, ADDITIONS[other], inputs, result, tensors[0].dtype
        )
    window = None if op.kind == "Add" else TorchForms(graph, "onnx").window(op)
    if window is None or not {own, other}.issubset(TORCH_AVERAGES):
        return False
    sizes = list(window["kernel_shape"])
    return averages_alike(own, other, grids[0], [math.prod(sizes)] if op.kind == "ReduceMean" else sizes, tensors[0].dtype)


class TorchForms:
    """Rewrites the operators of a graph one after the other.

    Attributes:
        tensors: what is added.
        ops: the operators of the result.
        done: what was done, in words, and how often.
    """

    def __init__(self, graph: Graph, runtime: str) -> None:
        self._graph, self._runtime = graph, runtime
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.done: Counter[str] = Counter()

    def visit(self, op: Op) -> None:
        """Takes an operator over, in the form that rounds as its `arithmetic` says, or without it where there is none or none is needed."""
        if not has_torch_form(op):
            self.ops.append(op)
        elif op.kind == "Resize":
            self._resize_as(op)
        elif op.kind == "Quantize":
            self._quantize_as(op)
        else:
            self._average_as(op)

    def _plainly(self, op: Op) -> None:
        self.ops.append(op.with_attributes(arithmetic=""))

    def _tensor(self, tensor: Tensor, hint: str) -> str:
        name = self._names.fresh(hint)
        self.tensors[name] = replace(tensor, name=name)
        return name

    def _quantize_as(self, op: Op) -> None:
        found = fused_quantize(self._graph, op, self._runtime, lambda tensor, hint: self._tensor(tensor, f"{op.outputs[0]}/{hint}"))
        if found is None:
            self._plainly(op)
            return
        least = ", but for a few of all float32 numbers" if found[1] else ""
        self.done[f"roundings of data onto a grid as PyTorch's fused sum{least}"] += 1
        self.ops += found[0]

    def _resize_as(self, op: Op) -> None:
        """An interpolation of stored integers as plain numbers, whose sums are exact where weights are: on a grid of steps of 1."""
        data, result = self._graph[op.inputs[0]], self._graph[op.outputs[0]]
        if data.dtype not in ("int8", "uint8") or not data.shares_grid(result):
            self._plainly(op)
            return
        self.done["interpolations of stored integers, whose ties PyTorch takes to the even one"] += 1
        steps = Quantization.per_tensor(1.0, integer_range(data.dtype)[0])
        given, found = (
            self._tensor(replace(t, quantization=steps), f"{result.name}/{hint}") for t, hint in ((data, "of"), (result, "steps"))
        )
        self.ops.append(Op("Reinterpret", (data.name,), (given,), {}, op.source))
        if self._runtime == "tflite":
            real, total = (self._tensor(Tensor("", "float32", t.shape), f"{t.name}/real") for t in (data, result))
            self.ops.append(Op("Dequantize", (given,), (real,), {}, op.source))
            self.ops.append(replace(op.with_attributes(arithmetic=""), inputs=(real, *op.inputs[1:]), outputs=(total,)))
            self.ops.append(Op("Quantize", (total,), (found,), {}, op.source))
        else:
            self.ops.append(replace(op.with_attributes(arithmetic=""), inputs=(given, *op.inputs[1:]), outputs=(found,)))
        self.ops.append(Op("Reinterpret", (found,), op.outputs, {}, op.source))

    def _average_as(self, op: Op) -> None:
        """An average as a depthwise convolution, if it may tie; the grids of its sides are one."""
        data, result = self._graph[op.inputs[0]], self._graph[op.outputs[0]]
        window = self.window(op)
        grid = data.quantization
        if window is None or grid is None or not data.shares_grid(result) or not grid.is_per_tensor:
            self._plainly(op)
            return
        low = integer_range(data.dtype)[0]
        sizes = list(window["kernel_shape"])
        reduced = [math.prod(sizes)] if op.kind == "ReduceMean" else sizes
        found = None if math.prod(sizes) % 2 else averaging_scale(str(op["arithmetic"]), grid.shifted(-low), reduced)
        if found is None:
            self._plainly(op)
            return
        least = ", but for the last bit of a few ties" if found[2] else ""
        self.done[f"averages as convolutions with ones, which round as PyTorch does{least}"] += 1
        own = Quantization.per_tensor(float(grid.scale[0]), found[0] + low)
        name = self._padded(op, data, window, own)
        name, back = self._on_grid(op, name, own), own != grid
        weights = self._ones(result.name, window.pop("channels"), sizes, found[1])
        kept = not op.attributes.get("keepdims", 1)
        target = result.name if not back and not kept else self._tensor(self._summed(op, result, own), f"{result.name}/average")
        attributes = {name: value for name, value in window.items() if name != "kernel_shape"}
        self.ops.append(Op("Conv", (name, weights), (target,), attributes, op.source))
        if kept:
            shape = np.array([size if isinstance(size, int) else -1 for size in result.shape or ()], np.int64)
            sizes_name = self._tensor(Tensor("", "int64", shape.shape, shape), f"{result.name}/shape")
            flat = result.name if not back else self._tensor(replace(result, quantization=own), f"{result.name}/flat")
            self.ops.append(Op("Reshape", (target, sizes_name), (flat,), {}, op.source))
            target = flat
        if back:
            self.ops.append(Op("Reinterpret", (target,), op.outputs, {}, op.source))

    def window(self, op: Op) -> dict[str, Any] | None:
        """The window of an average as attributes of a convolution, with "kernel_shape" and "channels"; None where it has no such form."""
        data, result = self._graph[op.inputs[0]], self._graph[op.outputs[0]]
        shape = data.shape
        if shape is None or len(shape) != 4 or data.dtype not in ("int8", "uint8") or result.shape is None:
            return None
        layout = self._layout(op)
        channels = shape[3 if layout == "channels_last" else 1]
        space = shape[1:3] if layout == "channels_last" else shape[2:]
        if not layout or not isinstance(channels, int) or any(isinstance(size, str) or not size for size in space):
            return None
        kernel, strides, pads = list(map(int, space)), [1, 1], [0, 0, 0, 0]
        if op.kind == "AveragePool":
            kernel, strides, pads = list(op["kernel_shape"]), list(op["strides"]), list(op["pads"])
            counted = bool(op["count_include_pad"]) or not any(pads)
            if op["auto_pad"] != "NOTSET" or op["ceil_mode"] or op["activation"] or not counted:
                return None
        return {"kernel_shape": kernel, "strides": tuple(strides), "pads": tuple(pads), "dilations": (1, 1), "group": channels,
                "data_format": layout, "channels": channels}  # fmt: skip

    def _layout(self, op: Op) -> str:
        """Where the channels of an average are; "" for a mean over other axes than those of space."""
        if op.kind != "ReduceMean":
            return str(op["data_format"])
        axes = self._graph.constant(op.inputs[1]) if len(op.inputs) > 1 else None
        over = sorted(int(axis) % 4 for axis in axes.reshape(-1)) if axes is not None else []
        return "channels_first" if over == [2, 3] else "channels_last" if over == [1, 2] else ""

    def _summed(self, op: Op, result: Tensor, grid: Quantization) -> Tensor:
        """The convolution's result: what is averaged keeps its axes."""
        shape = result.shape or ()
        if not op.attributes.get("keepdims", 1):
            given = self._graph[op.inputs[0]].shape or ()
            last = self._layout(op) == "channels_last"
            shape = (given[0], 1, 1, given[3]) if last else (given[0], given[1], 1, 1)
        return replace(result, shape=shape, quantization=grid)

    def _padded(self, op: Op, data: Tensor, window: dict[str, Any], grid: Quantization) -> str:
        """The data with their padding, where the convolution would pad with another integer."""
        pads = window["pads"]
        if not any(pads) or grid == data.quantization:
            return data.name
        last = window["data_format"] == "channels_last"
        wide = [0, *pads[:2], 0, 0, *pads[2:], 0] if last else [0, 0, *pads[:2], 0, 0, *pads[2:]]
        shape = tuple(size + wide[axis] + wide[axis + 4] if isinstance(size, int) else size for axis, size in enumerate(data.shape or ()))
        amounts = self._tensor(Tensor("", "int64", (8,), np.array(wide, np.int64)), f"{op.outputs[0]}/pads")
        name = self._tensor(replace(data, shape=shape), f"{op.outputs[0]}/padded")
        self.ops.append(Op("Pad", (data.name, amounts), (name,), {}, op.source))
        window["pads"] = (0, 0, 0, 0)
        return name

    def _on_grid(self, op: Op, name: str, grid: Quantization) -> str:
        tensor = self.tensors.get(name) or self._graph[name]
        if tensor.quantization == grid:
            return name
        moved = self._tensor(replace(tensor, data=None, quantization=grid), f"{op.outputs[0]}/from_0")
        self.ops.append(Op("Reinterpret", (name,), (moved,), {}, op.source))
        return moved

    def _ones(self, name: str, channels: int, sizes: Sequence[int], scale: float) -> str:
        ones: Array = saturate(np.ones((channels, 1, *sizes)), "int8")
        return self._tensor(Tensor("", "int8", ones.shape, ones, Quantization.per_tensor(scale)), f"{name}/window")
