"""What passes share about the weights and biases of Conv, ConvTranspose, Gemm and MatMul."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import is_accumulator_scale, saturate, scale_and_zero_point
from qconvert.arithmetic.storage import fits_dtype
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.kernels.products import bias_quantization
from qconvert.operators import kind_of, output_axis
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import quantized_bias


class WeightUse(NamedTuple):
    """A quantized constant, and the linear operators that read it as weights in one way.

    Attributes:
        name: of the constant.
        axis: of its output channels, as these operators read it.
        readers: these operators.
        alone: whether nothing else reads it: no operator of another role or axis or type of data, and no graph output.
    """

    name: str
    axis: int
    readers: tuple[Op, ...]
    alone: bool


def weight_uses(graph: Graph) -> list[WeightUse]:
    """Return every quantized constant that linear operators read as weights, once for each axis and type of the data next to it."""
    uses: dict[tuple[str, int, str], list[Op]] = {}
    ways: Counter[str] = Counter(graph.outputs)
    others: set[str] = set()
    for op in graph.ops:
        for position, name in enumerate(op.inputs):
            tensor = graph[name] if name else None
            if tensor is None or tensor.quantization is None or tensor.data is None:
                continue
            if kind_of(op).sums_products and position == 1 and (tensor.rank or 0) >= 2:
                key = (name, output_axis(op, tensor.rank or 0), graph[op.inputs[0]].dtype)
                ways[name] += key not in uses
                uses.setdefault(key, []).append(op)
            elif name not in others:
                others.add(name)
                ways[name] += 1
    return [WeightUse(name, axis, tuple(readers), ways[name] == 1) for (name, axis, _), readers in uses.items()]


def replace_weights(graph: Graph, new: Sequence[tuple[WeightUse, Tensor]], suffix: str) -> tuple[Graph, set[str]]:
    """Return the graph with other weights, and their names; where something else reads the old ones, these stay.

    Args:
        graph: what is changed.
        new: the weights for each use.
        suffix: of the name of weights next to the old ones.
    """
    rewriter, names = Rewriter(graph), set[str]()
    for use, tensor in new:
        name = rewriter.define(tensor) if use.alone else rewriter.add(f"{use.name}/{suffix}", tensor, data=tensor.data)
        for op in use.readers:
            rewriter.replace(op, op.with_input(1, name))
        _relate_copy(rewriter, use.name, name)
        names.add(name)
    return rewriter.finish(), names


def _relate_copy(rewriter: Rewriter, name: str, copy: str) -> None:
    """Record that the values of a constant are in its copy, if no operator reads the constant itself any more."""
    if copy != name and name not in rewriter.graph.public and all(map(rewriter.is_replaced, rewriter.readers[name])):
        rewriter.relate(name, copy)


def separate_weights(graph: Graph) -> Graph:
    """Copy weights that something else reads too for each way of reading; their data are shared until a pass changes them."""
    shared = [(use, graph[use.name]) for use in weight_uses(graph) if not use.alone]
    return replace_weights(graph, shared, "weights")[0]


class BiasQuantizations(Rewriter):
    """A graph whose biases get another quantization, one tensor for each bias and scale.

    Attributes:
        made: (name of the bias, bytes of its new scales, its type) -> its new tensor, which finish() names.
    """

    def __init__(self, graph: Graph, suffix: str) -> None:
        super().__init__(graph)
        self._suffix = suffix
        self.made: dict[tuple[str, bytes, str], Tensor] = {}
        self._users: dict[tuple[str, bytes, str], list[Op]] = {}

    def put(self, op: Op, bias: Tensor, new: Tensor) -> None:
        """Let an operator read `new` in place of `bias`."""
        key = (bias.name, b"" if new.quantization is None else new.quantization.scale.tobytes(), new.dtype)
        self.made.setdefault(key, new)
        self._users.setdefault(key, []).append(op)

    def finish(self, *, prune: bool | Callable[[Op], bool] = False, **changes: Any) -> Graph:
        """Name the new tensors: as the bias, or with the suffix where something else reads that. See Rewriter.finish()."""
        for key, new in self.made.items():
            name, users = key[0], self._users[key]
            is_alone = name not in self.graph.public and len(users) == len(self.readers[name])
            self.made[key] = replace(new, name=name if is_alone else self.fresh(f"{name}/{self._suffix}"))
            self.define(self.made[key])
            for op in users:
                self.replace(op, op.with_input(2, self.made[key].name))
            _relate_copy(self, name, self.made[key].name)
        return super().finish(prune=prune, **changes)


def with_biases(graph: Graph, names: set[str], suffix: str, *, wide: bool = True) -> Graph:
    """Return the graph with integer biases at the new scale of the products, wherever the scale of data or weights changed.

    The integers of channels whose products keep their scale stay as they are. A bias that would leave its type gets the wider one next to
    16-bit data, and else becomes float32, as does one whose products have no scale for each channel.

    Args:
        graph: with the new scales.
        names: of the data and weights that have them.
        suffix: of the name of a bias that something else reads too.
        wide: whether biases of 32 bits may get 64.
    """
    biases = BiasQuantizations(graph, suffix)
    for op in biases:
        bias = quantized_bias(graph, op)
        if bias is None or bias.quantization is None or bias.data is None or names.isdisjoint(op.inputs[:2]):
            continue
        data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
        quantization = bias_quantization(data.require_quantization(), weights.require_quantization(), bias.data.shape)
        dtypes = tuple(dict.fromkeys((bias.dtype, *(["int64"] if wide else [])))) if data.dtype == "int16" else ("int32",)
        if bias.dtype in dtypes and quantization is not None and is_accumulator_scale(quantization.scale, bias.quantization.scale):
            continue
        biases.put(op, bias, _requantize_bias(bias, quantization, dtypes))
    return biases.finish()


def _requantize_bias(bias: Tensor, quantization: Quantization | None, dtypes: Sequence[str]) -> Tensor:
    """Return a bias with another quantization in the first type that holds it, else of float values."""
    real = bias.float_values()
    if quantization is not None:
        old, new = (scale_and_zero_point(q, real.shape)[0] for q in (bias.require_quantization(), quantization))
        steps = np.where(np.isclose(old, new, rtol=1e-6, atol=0), np.asarray(bias.data), np.rint(real / new))
        for dtype in dtypes:
            if fits_dtype(steps, dtype):
                return replace(bias, dtype=dtype, data=saturate(steps, dtype), quantization=quantization)
    return replace(bias, dtype="float32", data=real.astype(np.float32), quantization=None)
