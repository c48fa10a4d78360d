"""fuse_dynamic: the nodes with which a file rounds data when it runs become one operator of dynamic range. Exact, but
for the order in which float32 multiplies both scales.

- DynamicQuantizeLinear, MatMulInteger or ConvInteger of constant weights, a Cast, and the product of both scales after it, as
  onnxruntime's quantize_dynamic writes them.
- Data that are rounded and made real again, part by part, before a product with weights after a Dequantize. torch.export programs choose a
  scale and a zero point of the whole tensor (quantized_decomposed::choose_qparams), quantize with them and dequantize again, which
  formats/torch/ops/quantize.py decomposes; DecomposedRounding walks the same way back. Steps that PyTorch makes no finer than its eps
  become as fine as the data.

What else reads the nodes between keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.operators import kind_of
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["run"]

_KINDS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
#: What goes if nothing needs its results; all other operators stay.
_ROUNDING = ("DynamicQuantizeLinear", "Cast", "Mul", "Dequantize", *_KINDS)


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Change every such product whose weights have one scale, or one for each output channel."""
    if not any(op.kind in ("DynamicQuantizeLinear", "ReduceMin") for op in graph.ops):
        return graph, ()
    rewriter = Rewriter(graph)
    fusing = _Fusing(rewriter)
    count = 0
    for op in rewriter:
        found = fusing.fuse_integer_product(op) or fusing.fuse_float_product(op)
        if found is not None:
            rewriter.replace(op, found)
            count += 1
    if not count:
        return graph, ()
    changed = rewriter.finish(prune=lambda op: op.kind in _ROUNDING or id(op) in fusing.decomposed.seen)
    return changed, (f"{count} products of dynamically quantized data are one operator each",)


class _Fusing:
    """What is found around each Mul, and the weights that got their quantizations."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter, self._graph = rewriter, rewriter.graph
        self.decomposed = DecomposedRounding(rewriter.graph, rewriter.producers)
        self._moved: dict[str, str] = {}

    def _data_of(self, name: str) -> str:
        """Return real data of which `name` are the rounded values, also after data movement, which then follow the data; "" if there are
        none."""
        if name in self._moved:
            return self._moved[name]
        maker = self._rewriter.producers.get(name)
        if maker is None or maker.kind not in ("Reshape", "Transpose", "Squeeze", "Unsqueeze"):
            return self.decomposed.data_of(name)
        data = self._data_of(maker.inputs[0])
        if data:
            self.decomposed.seen.add(id(maker))
            self._moved[name] = moved = self._rewriter.add(f"{name}/data", self._graph[name])
            self._rewriter.emit(replace(maker, inputs=(data, *maker.inputs[1:]), outputs=(moved,)))
            return moved
        return ""

    def fuse_float_product(self, op: Op) -> Op | None:
        """Return a product of rounded data and weights after a Dequantize as an operator of dynamic range; None if it is none."""
        if "arithmetic" not in kind_of(op).attributes or not kind_of(op).sums_products or op["arithmetic"]:
            return None
        unpacking = self._producer_of_kind(op.inputs[1], "Dequantize")
        weights = None if unpacking is None else self._graph[unpacking.inputs[0]]
        if unpacking is None or weights is None or weights.data is None or weights.dtype not in ("int8", "uint8"):
            return None
        quantization, last = weights.quantization, len(weights.data.shape) - 1
        axis = last if op.kind == "MatMul" and not op["trans_b"] else 0
        if quantization is None or quantization.block_size or quantization.axis not in (None, axis) or (op.kind == "MatMul" and last != 1):
            return None
        data = self._data_of(op.inputs[0])
        if not data:
            return None
        return replace(op.with_attributes(arithmetic="dynamic_tensor"), inputs=(data, unpacking.inputs[0], *op.inputs[2:]))

    def fuse_integer_product(self, op: Op) -> Op | None:
        """Return the operator of dynamic range whose last operator is a Mul; None if there is none."""
        if op.kind != "Mul" or op.attributes.get("activation") or len(op.inputs) != 2:
            return None
        for value, factor in (op.inputs, op.inputs[::-1]):
            cast, scales = self._producer_of_kind(value, "Cast"), self._producer_of_kind(factor, "Mul")
            product = self._rewriter.producers.get(cast.inputs[0]) if cast is not None and cast["to"] == "float32" else None
            if cast is None or product is None or scales is None or product.kind not in _KINDS:
                continue
            found = self._build_dynamic_op(op, product, cast, scales)
            if found is not None:
                return found
        return None

    def _producer_of_kind(self, name: str, kind: str) -> Op | None:
        maker = self._rewriter.producers.get(name)
        return maker if maker is not None and maker.kind == kind else None

    def _build_dynamic_op(self, op: Op, product: Op, cast: Op, scales: Op) -> Op | None:
        """Return one operator of the product, if its data, their zero point and one of the scales are of one DynamicQuantizeLinear."""
        rounding = self._producer_of_kind(product.inputs[0], "DynamicQuantizeLinear")
        if rounding is None or product.inputs[2:3] != rounding.outputs[2:3] or product.inputs[0] != rounding.outputs[0]:
            return None
        others = [name for name in scales.inputs if name != rounding.outputs[1]]
        scale = self._graph.constant(others[0]) if len(others) == 1 else None
        point = self._graph.constant(product.inputs[3]) if len(product.inputs) > 3 and product.inputs[3] else np.zeros((), np.int64)
        if scale is None or point is None:
            return None
        whole = all(self._rewriter.is_read_once(name) for name in (*product.outputs, *cast.outputs, *scales.outputs))
        weights = self._weights(product, scale, point, whole)
        if not weights or self._graph[op.outputs[0]].shape != self._graph[product.outputs[0]].shape:
            return None
        attributes = {**product.attributes, "arithmetic": "dynamic_tensor"}
        return Op(_KINDS[product.kind], (rounding.inputs[0], weights), op.outputs, attributes, op.source)

    def _weights(self, product: Op, scale: Array, point: Array, whole: bool) -> str:
        """Return the name of the constant weights with their quantization; "" if they have none that fits.

        They are a constant of their own if somebody else reads them, or what is between `product` and its scales (it is not `whole`).
        """
        name = product.inputs[1]
        tensor = self._graph[name]
        if tensor.data is None or tensor.dtype not in ("int8", "uint8") or tensor.is_quantized:
            return ""
        axis = 0 if product.kind == "ConvInteger" else tensor.data.ndim - 1
        size = tensor.data.shape[axis]
        aligned = scale.ndim <= 1 if axis else scale.ndim in (0, tensor.data.ndim - 1, tensor.data.ndim) and scale.shape[-1:] != (size,)
        if scale.size != 1 and (scale.size != size or not (aligned or size == 1)):
            return ""
        if point.size not in (1, size) or not (np.isfinite(scale) & (scale > 0)).all():
            return ""
        count = max(scale.size, point.size)
        scales, points = (np.broadcast_to(values.reshape(-1), (count,)) for values in (scale, point))
        quantization = Quantization(scales.astype(np.float32), points.astype(np.int64), axis if count > 1 else None)
        if whole and self._rewriter.is_read_once(name):
            return self._rewriter.define(replace(tensor, quantization=quantization), shift=0)
        return self._rewriter.add(f"{name}/weights", tensor, data=tensor.data, quantization=quantization)


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
