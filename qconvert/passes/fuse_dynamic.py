"""fuse_dynamic: the nodes with which a file rounds data when it runs become one operator of dynamic range. Exact, but
for the order in which float32 multiplies both scales.

- DynamicQuantizeLinear, MatMulInteger or ConvInteger of constant weights, a Cast, and the product of both scales after it, as
  onnxruntime's quantize_dynamic writes them.
- Data that are rounded and made real again, part by part, before a product with weights after a Dequantize. torch.export programs choose a
  scale and a zero point of the whole tensor (quantized_decomposed::choose_qparams), quantize with them and dequantize again, which
  formats/torch/ops/quantize.py decomposes; _round_data() says it once more, to find it. Steps that PyTorch makes no finer than its eps
  become as fine as the data.

What else reads the nodes between keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.operators import kind_of, output_axis
from qconvert.operators.values import Value, apply, clip, maximum, minimum
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Pattern, Rewriter, dequantized_source
from qconvert.rewriting.parts import draw_pattern

_PLAIN = {"activation": ""}
#: Integers of data that are rounded, as onnxruntime's quantize_dynamic multiplies them, and their product with both scales.
_INTEGERS = Pattern("MatMulInteger|ConvInteger", Pattern("DynamicQuantizeLinear", name="rounding"), "weights", name="product")
_PRODUCT = Pattern("Cast", _INTEGERS, name="cast", attributes={"to": "float32"})
_SCALED_PRODUCT = Pattern("Mul", _PRODUCT, Pattern("Mul", name="scales", attributes=_PLAIN), any_order=True, attributes=_PLAIN)


def _round_data(low: float, high: float) -> Callable[..., Value]:
    """Return what PyTorch computes between data and their float values after they were rounded, in steps from `low` to `high`."""

    def round_data(data: Value, low_axes: Value, high_axes: Value, eps: Value) -> Value:
        lowest = minimum(apply("ReduceMin", data, low_axes), 0.0)
        highest = maximum(apply("ReduceMax", data, high_axes), 0.0)
        least_scale = maximum((highest - lowest) / 255.0, eps)
        first_point = clip(low - apply("Round", lowest / least_scale), low, high)
        scale, point = (apply("Unsqueeze", item, None) for item in (least_scale, first_point))
        return (clip(apply("Round", data * (1.0 / scale)) + point, low, high) - point) * scale

    return round_data


#: By the limits of uint8 and int8.
_ROUNDED = tuple(
    draw_pattern(_round_data(*limits), "data", "lowest_axes", "highest_axes", "eps") for limits in ((0.0, 255.0), (-128.0, 127.0))
)


def fuse_dynamic(graph: Graph, target: Target | None) -> PassResult:
    """Change every such product whose weights have one scale, or one for each output channel."""
    fusing = _Fusing(graph)
    for op in fusing:
        found = fusing.fuse_integer_product(op) or fusing.fuse_float_product(op)
        if found is not None:
            fusing.replace(op, found)
    return fusing.finish_with(
        lambda count: f"{format_count(count, 'product')} of dynamically quantized data {format_verb(count, 'are')} one operator each",
        prune=lambda op: id(op) in fusing.fused,
    )


class _Fusing(Rewriter):
    """What is found before each product, and the weights that got their quantizations.

    Attributes:
        fused: ids of the operators that became a part of a product; they go if nothing else needs their results.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.fused: set[int] = set()
        self._moved: dict[str, str] = {}

    def _find_data(self, name: str) -> str:
        """Return float data of which `name` are the rounded values, also after data movement, which then follow the data; "" if there are
        none."""
        if name in self._moved:
            return self._moved[name]
        maker = self.producers.get(name)
        if maker is None or not kind_of(maker).keeps_elements:
            return self._find_rounded_data(name)
        data = self._find_data(maker.inputs[0])
        if data:
            self.fused.add(id(maker))
            self._moved[name] = self.add(f"{name}/data", self.graph[name])
            self.emit(replace(maker.with_input(0, data), outputs=(self._moved[name],)))
            return self._moved[name]
        return ""

    def _find_rounded_data(self, name: str) -> str:
        """Return the float data x of which `name` is the value after Quantize and Dequantize in 255 steps from min(x) to max(x); "" if of
        none."""
        match = next((found for pattern in _ROUNDED if (found := self.match(pattern, name)) is not None), None)
        if match is None:
            return ""
        data = self.graph[match.tensors["data"]]
        reduced = [self.graph.constant(match.tensors[axes]) for axes in ("lowest_axes", "highest_axes")]
        if data.shape != self.graph[name].shape or not all(axes is not None and len(axes) == data.rank for axes in reduced):
            return ""
        self.fused.update(map(id, match.ops))
        return data.name

    def fuse_float_product(self, op: Op) -> Op | None:
        """Return a product of rounded data and weights after a Dequantize as an operator of dynamic range; None if it is none."""
        kind = kind_of(op)
        if "arithmetic" not in kind.attributes or not kind.sums_products or op["arithmetic"]:
            return None
        stored = dequantized_source(self.producers, op.inputs[1])
        weights = self.graph[stored] if stored else None
        if weights is None or weights.data is None or weights.dtype not in ("int8", "uint8"):
            return None
        quantization, rank = weights.quantization, weights.data.ndim
        if quantization is None or quantization.block_size or quantization.axis not in (None, output_axis(op, rank)):
            return None
        data = self._find_data(op.inputs[0]) if kind.has_weights or rank == 2 else ""
        if not data:
            return None
        self.fused.add(id(self.producers[op.inputs[1]]))
        return op.with_attributes(arithmetic="dynamic_tensor").with_input(0, data).with_input(1, weights.name)

    def fuse_integer_product(self, op: Op) -> Op | None:
        """Return the operator of dynamic range that a DynamicQuantizeLinear, a product of integers, a Cast and this Mul by both scales are;
        None if it is no such Mul."""
        match = self.match(_SCALED_PRODUCT, op.name)
        if match is None:
            return None
        rounding, product, cast, scales = (match.named[word] for word in ("rounding", "product", "cast", "scales"))
        if product.inputs[2:3] != rounding.outputs[2:3] or product.inputs[0] != rounding.name:
            return None
        others = [name for name in scales.inputs if name != rounding.outputs[1]]
        scale = self.graph.constant(others[0]) if len(others) == 1 else None
        point = self.graph.constant(product.inputs[3]) if product.has(3) else np.zeros((), np.int64)
        if scale is None or point is None:
            return None
        whole = all(self.is_read_once(name) for name in (*product.outputs, *cast.outputs, *scales.outputs))
        weights = self._weights(product, scale, point, whole)
        if not weights or self.graph[op.name].shape != self.graph[product.name].shape:
            return None
        self.fused.update(map(id, match.ops))
        attributes = {**product.attributes, "arithmetic": "dynamic_tensor"}
        return op.derive(kind_of(product).float_kind, (rounding.inputs[0], weights), op.outputs, **attributes)

    def _weights(self, product: Op, scale: Array, point: Array, whole: bool) -> str:
        """Return the name of the constant weights with their quantization; "" if they have none that fits.

        They are a constant of their own if somebody else reads them, or what is between `product` and its scales (it is not `whole`).
        """
        name = product.inputs[1]
        tensor = self.graph[name]
        if tensor.data is None or tensor.dtype not in ("int8", "uint8") or tensor.is_quantized:
            return ""
        axis = 0 if kind_of(product).role(1) == "weights" else tensor.data.ndim - 1
        size = tensor.data.shape[axis]
        aligned = scale.ndim <= 1 if axis else scale.ndim in (0, tensor.data.ndim - 1, tensor.data.ndim) and scale.shape[-1:] != (size,)
        if scale.size != 1 and (scale.size != size or not (aligned or size == 1)):
            return ""
        if point.size not in (1, size) or not (np.isfinite(scale) & (scale > 0)).all():
            return ""
        quantization = Quantization.of_channels(scale, point, axis)
        if whole and self.is_read_once(name):
            return self.define(replace(tensor, quantization=quantization), shift=0)
        return self.add(f"{name}/weights", tensor, data=tensor.data, quantization=quantization)
