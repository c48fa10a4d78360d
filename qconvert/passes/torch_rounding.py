"""Operators of PyTorch's engines, in forms that give the same integers in onnxruntime and LiteRT; a part of match_rounding.

An average of an even number of integers often is a tie, which each kernel rounds in its own way. As a convolution with weights of ones it
is an exact sum that is multiplied once and rounded to even, in either runtime. Where PyTorch takes ties by the stored integers, and not by
the steps from the zero point, the convolution sees the data on a grid with zero point 0. An average of an odd number is never near a tie.

Additions are tried on all 65,536 pairs of integers. QLinearAdd gets other input scales (see nudged_scales), and LiteRT's addition, which
computes with multipliers of 20 bits, becomes one of real values on such scales.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic import (
    ADDITIONS,
    INTEGER_FACTORS,
    TORCH_AVERAGES,
    adds_as,
    averaging_scale,
    onnxruntime_add,
    saturate,
    xnnpack_add,
    xnnpack_adds,
)
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.graph.kinds import KINDS, nudged_scales
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.passes.torch_layers import exact_layer
from qconvert.passes.torch_quantize import fused_quantize
from qconvert.plugins import Target

__all__ = ["TorchRounding", "without_torch"]

#: Kinds for which LiteRT's integer kernels compute with fewer bits than PyTorch's float32 (docs/fidelity.md).
_COARSE = ("LeakyRelu", "HardSwish")
_LAYERS = ("Conv", "ConvTranspose", "Gemm")


def without_torch(graph: Graph) -> Graph:
    """The graph without the roundings of PyTorch's engines, as of a source whose kernels nobody knows."""
    metadata = {key: value for key, value in graph.metadata.items() if key != SOURCE_KERNELS}
    return graph.evolve(ops=[_plain(op) for op in graph.ops], metadata=metadata)


def _plain(op: Op) -> Op:
    known = op.attributes.get("arithmetic") in (*TORCH_AVERAGES, *ADDITIONS, "torch", "fused")
    return op.with_attributes(arithmetic="") if known else op


class TorchRounding:
    """Rewrites the operators of a graph one after the other.

    Attributes:
        tensors: what is added.
        ops: the operators of the result.
        done: what was done, in words, and how often.
    """

    def __init__(self, graph: Graph, target: Target, keeps_biases: bool, integer_inputs: bool) -> None:
        self._graph, self._keeps_biases = graph, keeps_biases
        self._outside = frozenset(graph.inputs if integer_inputs else ())  # what the program around the network rounds
        self._runtime = target.format
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.ops: list[Op] = []
        self.done: Counter[str] = Counter()

    def visit(self, op: Op) -> None:
        """Takes an operator over, in the form that rounds as its `arithmetic` says."""
        arithmetic = op.attributes.get("arithmetic")
        if op.kind == "Add" and arithmetic in ADDITIONS:
            self._add_as(op)
        elif arithmetic in TORCH_AVERAGES:
            self._average_as(op)
        elif self._keeps_biases and op.kind in _LAYERS and (found := exact_layer(self._graph, op)) is not None:
            self.done["layers on real values, since their biases are real"] += 1
            self.ops += found[0]
            self.tensors.update((tensor.name, tensor) for tensor in found[1])
        elif op.kind == "Quantize" and arithmetic == "fused":
            self._quantize_as(op)
        elif op.kind == "Resize" and arithmetic == "torch":
            self._resize_as(op)
        elif self._runtime == "tflite" and op.kind in _COARSE and self._on_8_bits(op):
            self._on_reals(op)
        else:
            self.ops.append(op)

    def _tensor(self, tensor: Tensor, hint: str) -> str:
        name = self._names.fresh(hint)
        self.tensors[name] = replace(tensor, name=name)
        return name

    def _add_as(self, op: Op) -> None:
        grids = self._pair(op)
        if grids is None or self._equals(op, grids):
            self.ops.append(_plain(op))
            return
        nudged = nudged_scales(self._graph, op)
        if nudged is None and not (self._runtime == "onnx" and op["arithmetic"] in INTEGER_FACTORS):
            self.done["additions with another kernel, which rounds otherwise for a few of all pairs of inputs"] += 1
            self.ops.append(_plain(op))
            return
        self.done["additions in a form that rounds as PyTorch does for every pair of inputs"] += 1
        if self._runtime == "onnx" or nudged is None:
            self.ops.append(op)
            return
        real = []
        for name, grid in zip(op.inputs, nudged, strict=True):
            moved = self._tensor(replace(self._graph[name], quantization=grid), f"{name}/nudged")
            real.append(self._tensor(Tensor("", "float32", self._graph[name].shape), f"{name}/real"))
            self.ops += [Op("Reinterpret", (name,), (moved,), {}, op.source), Op("Dequantize", (moved,), (real[-1],), {}, op.source)]
        result = self._graph[op.outputs[0]]
        total = self._tensor(Tensor("", "float32", result.shape), f"{result.name}/real")
        self.ops.append(replace(_plain(op), inputs=tuple(real), outputs=(total,)))
        self.ops.append(Op("Quantize", (total,), op.outputs, {}, op.source))

    def _on_8_bits(self, op: Op) -> bool:
        """Whether data and result are of 8 bits with one scale each."""
        sides = [self._graph[name] for name in (*KINDS[op.kind].data(op), *op.outputs)]
        return all(t.dtype in ("int8", "uint8") and t.quantization is not None and t.quantization.is_per_tensor for t in sides)

    def _on_reals(self, op: Op) -> None:
        """An operator between Dequantize and Quantize."""
        self.done["operators on real values, since LiteRT's kernels for integers are coarser than PyTorch's"] += 1
        data = self._tensor(Tensor("", "float32", self._graph[op.inputs[0]].shape), f"{op.inputs[0]}/real")
        result = self._tensor(Tensor("", "float32", self._graph[op.outputs[0]].shape), f"{op.outputs[0]}/real")
        self.ops.append(Op("Dequantize", op.inputs[:1], (data,), {}, op.source))
        self.ops.append(replace(op, inputs=(data, *op.inputs[1:]), outputs=(result,)))
        self.ops.append(Op("Quantize", (result,), op.outputs, {}, op.source))

    def _quantize_as(self, op: Op) -> None:
        found = None if op.inputs[0] in self._outside else fused_quantize(self._graph, op, self._runtime)
        if found is None:
            self.ops.append(_plain(op))
            return
        least = ", but for a few of all float32 numbers" if found[2] else ""
        self.done[f"roundings of data onto a grid as PyTorch's fused sum{least}"] += 1
        self.ops += found[0]
        self.tensors.update((tensor.name, tensor) for tensor in found[1])

    def _resize_as(self, op: Op) -> None:
        """An interpolation of stored integers as plain numbers, whose sums are exact where weights are: on a grid of steps of 1."""
        data, result = self._graph[op.inputs[0]], self._graph[op.outputs[0]]
        if data.dtype not in ("int8", "uint8") or not data.shares_grid(result):
            self.ops.append(_plain(op))
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
            self.ops.append(replace(_plain(op), inputs=(real, *op.inputs[1:]), outputs=(total,)))
            self.ops.append(Op("Quantize", (total,), (found,), {}, op.source))
        else:
            self.ops.append(replace(_plain(op), inputs=(given, *op.inputs[1:]), outputs=(found,)))
        self.ops.append(Op("Reinterpret", (found,), op.outputs, {}, op.source))

    def _pair(self, op: Op) -> tuple[tuple[Quantization, Quantization], Quantization] | None:
        """The grids of an Add of 8-bit data; None where its `arithmetic` is of no such one."""
        tensors = [self._graph[name] for name in (*op.inputs, *op.outputs)]
        found = [tensor.quantization for tensor in tensors if tensor.quantization is not None]
        if {tensor.dtype for tensor in tensors} not in ({"int8"}, {"uint8"}) or len(found) != 3:
            return None
        grids = (found[0], found[1]), found[2]
        return grids if adds_as(str(op["arithmetic"]), *grids) else None

    def _equals(self, op: Op, grids: tuple[tuple[Quantization, Quantization], Quantization]) -> bool:
        """Whether the runtime's own kernel gives the same for all pairs of inputs."""
        low = integer_range(self._graph[op.outputs[0]].dtype)[0]
        inputs, output = (grids[0][0].shifted(-low), grids[0][1].shifted(-low)), grids[1].shifted(-low)
        if self._runtime != "onnx" and not xnnpack_adds(inputs, output):
            return False
        codes = np.arange(256)
        own = onnxruntime_add if self._runtime == "onnx" else xnnpack_add
        found = [kernel(codes[:, None], codes[None, :], inputs, output, "uint8") for kernel in (own, ADDITIONS[str(op["arithmetic"])])]
        return np.array_equal(found[0], found[1])

    def _average_as(self, op: Op) -> None:
        """An average as a depthwise convolution, if it may tie; the grids of its sides are one."""
        data, result = self._graph[op.inputs[0]], self._graph[op.outputs[0]]
        window = self._window(op)
        grid = data.quantization
        if window is None or grid is None or not data.shares_grid(result) or not grid.is_per_tensor:
            self.ops.append(_plain(op))
            return
        low = integer_range(data.dtype)[0]
        sizes = list(window["kernel_shape"])
        reduced = [math.prod(sizes)] if op.kind == "ReduceMean" else sizes
        found = None if math.prod(sizes) % 2 else averaging_scale(str(op["arithmetic"]), grid.shifted(-low), reduced)
        if found is None:
            self.ops.append(_plain(op))
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

    def _window(self, op: Op) -> dict[str, Any] | None:
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
