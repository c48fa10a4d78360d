"""dynamic_range: operators with integer weights next to real data, which round the data to integers when they run.

TFLite's kernels take a range for each row or image, ONNX's DynamicQuantizeLinear one for the whole tensor. What a target has no operator
for is computed on the real data, with the weights as they are after a Dequantize: more exact than the source, and the weights keep
their bits in the file. With dynamic "keep" an ONNX model rounds as the source does, decomposed, or with numerics "fast" by
DynamicQuantizeLinear. What it was is noted, so that a TFLite model made of the result has such operators again.

For TFLite the weights have to be int8 with zero point 0, or as few bits as LiteRT's kernels take: those that cannot be so with the
scales that they have stay after a Dequantize.

fuse_dynamic: the nodes with which a file rounds data when it runs become one operator of dynamic range. Exact, but
for the order in which float32 multiplies both scales.

- DynamicQuantizeLinear, MatMulInteger or ConvInteger of constant weights, a Cast, and the product of both scales after it, as
  onnxruntime's quantize_dynamic writes them.
- Data that are rounded and made real again, part by part, before a product with weights after a Dequantize. torch.export programs choose a
  scale and a zero point of the whole tensor (quantized_decomposed::choose_qparams), quantize with them and dequantize again, which
  formats/torch/ops/quantize.py decomposes; _round_data() says it once more, to find it. Steps that PyTorch makes no finer than its eps
  become as fine as the data.

What else reads the nodes between keeps them.

fuse_integer_products: the same of data that a Quantize rounds with a known scale. MatMulInteger, an Add of a bias and a Dequantize of the
sums by the product of both scales are a MatMul of quantized operands, and an Add of the bias with that scale. Exact, but for the order in
which float32 adds and multiplies. It comes before absorb_quantization, which moves a Dequantize past data movement.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import DYNAMIC_ROUNDINGS, OF_ROWS, OF_WHOLE_TENSORS
from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Quantization, drop_keys
from qconvert.graph.metadata import DYNAMIC_RANGE, read_entry
from qconvert.operators import integer_weights, is_dynamic, kind_of, output_axis
from qconvert.operators.products import is_depthwise
from qconvert.operators.values import Value, apply, clip, maximum, minimum
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Pattern, Rewriter, dequantized_source
from qconvert.rewriting.parts import draw_pattern

#: The rank of the weights of a convolution over two dimensions.
_FLAT_RANK = 4
_TEXTS = {
    "real": "operators with dynamic quantization compute in float; their integer weights are kept, before a Dequantize",
    "tensor": "operators quantize their data by the range of the whole tensor, not of each row or image",
    "wider": "operators quantize their data in 255 steps, not in 127 as the source's do",
    "decomposed": "operators are decomposed, to quantize their data as the source's kernels do",
    "rows": "operators quantize their data by the range of each row or image, not of the whole tensor",
    "again": "operators quantize their data at run time again, as the source's did",
    "sequences": "recurrent operators compute in float, because TFLite's quantize each row by its own range",
    "volume": "3-D operators compute in float, because LiteRT has no kernel for them that quantizes its data",
    "wide": "operators compute in float, because their weights are not int8 with zero point 0",
}


def dynamic_range(graph: Graph, target: Target | None, *, dynamic: str = "", numerics: str = "exact") -> PassResult:
    """Fit operators of dynamic range to the target; see the options `dynamic` and `numerics`."""
    own = "" if target is None else target.kernels.dynamic_range
    noted = _read_roundings(graph)
    fitting = _Fitting(graph)
    stated = fitting.stated_of(noted)
    for op in fitting:
        if own == "tflite":
            fitted = fitting.to_tflite(op, stated.get(id(op), ""))
        elif own != "onnx" or (dynamic == "real" or (not dynamic and target is not None and not graph.is_from(target.format))):
            fitted = fitting.to_real(op, keeps_tensor=own == "onnx" and dynamic != "real")
        else:
            fitted = fitting.to_onnx(op, numerics)
        if fitted is not op:
            fitting.replace(op, fitted)
    if not fitting.counts and not fitting.is_changed and not (own == "tflite" and noted):
        return graph, ()
    metadata = drop_keys(graph.metadata, DYNAMIC_RANGE)
    if own != "tflite" and (kept := {**noted, **fitting.stated}):
        metadata[DYNAMIC_RANGE] = json.dumps(kept)
    return fitting.finish(metadata=metadata), tuple(Change(f"{_TEXTS[key]}: {count}") for key, count in fitting.counts.items())


def _is_recurrent(op: Op) -> bool:
    """Whether an operator of dynamic range is a recurrent one: the others are sums of products."""
    return not kind_of(op).sums_products


def _rounds_rows(op: Op) -> bool:
    """Whether it is a recurrent operator that rounds each row, as TFLite's do."""
    return _is_recurrent(op) and op["arithmetic"] in OF_ROWS


def _rounds_in_onnx(op: Op) -> bool:
    """Whether a runtime of ONNX has a kernel that rounds the data of such operators: of the recurrent ones for LSTM alone."""
    return not _is_recurrent(op) or op.kind == "LSTM"


def _read_roundings(graph: Graph) -> Mapping[str, str]:
    """Return how operators rounded their data before a conversion, by the names of their outputs."""
    found = read_entry(
        graph.metadata, DYNAMIC_RANGE, lambda listed: {str(name): str(value) for name, value in listed.items()}, "a map of names to strings"
    )
    return {name: value for name, value in (found or {}).items() if value in DYNAMIC_ROUNDINGS}


class _Fitting(Rewriter):
    """Operators as a target has them, what was noted for the way back, and how often what was done."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._made: dict[tuple[str, str], str] = {}
        self.counts: Counter[str] = Counter()
        self.stated: dict[str, str] = {}

    def stated_of(self, noted: Mapping[str, str]) -> dict[int, str]:
        """Return what was noted of operators, by their identity: of those that have the name noted, or what an activation or move made of
        it."""
        found = {}
        for name, rounding in noted.items():
            op = self.producers.get(name)
            while op is not None and (kind_of(op).clips or kind_of(op).rule == "move"):
                op = self.producers.get(op.inputs[0])
            if op is not None:
                found[id(op)] = rounding
        return found

    def to_real(self, op: Op, *, keeps_tensor: bool) -> Op:
        """Return the operator in float, with weights after a Dequantize. `keeps_tensor`: but for what ONNX has an operator for."""
        kept = keeps_tensor and op.attributes.get("arithmetic") == "dynamic_tensor" and _rounds_in_onnx(op)
        if kept or not is_dynamic(op):
            return op
        self.stated[next(filter(None, op.outputs))] = str(op["arithmetic"])
        return self._fall_back_to_float(op, "real")

    def to_onnx(self, op: Op, numerics: str) -> Op:
        """Return the operator as it is, or rounded by the range of the whole tensor, which onnxruntime has a kernel for, but for most
        recurrent operators."""
        if not is_dynamic(op) or (op["arithmetic"] == "dynamic_tensor" and _rounds_in_onnx(op)):
            return op
        fast = numerics == "fast" and not _rounds_rows(op) and _rounds_in_onnx(op)
        wider = op["arithmetic"] in OF_WHOLE_TENSORS
        self.counts[("wider" if wider else "tensor") if fast else "decomposed"] += 1
        if not fast:  # what is decomposed is noted by the writer, as all is that ONNX decomposes
            return op
        self.stated[op.name] = str(op["arithmetic"])
        return op.with_attributes(arithmetic="dynamic_tensor")

    def to_tflite(self, op: Op, stated: str) -> Op:
        """Return an operator that rounds its data when it runs, or did in the model's source, with int8 weights; others in float."""
        if not is_dynamic(op) and stated:
            op = self._restore_weights(op, stated)
        if not is_dynamic(op) or _rounds_rows(op):  # whose weights the writer takes or refuses
            return op
        if _is_recurrent(op):
            return self._fall_back_to_float(op, "sequences")
        if op["arithmetic"] in OF_WHOLE_TENSORS:
            again = "" if stated in OF_WHOLE_TENSORS else stated
            self.counts["again" if again else "rows"] += 1
            op = op.with_attributes(arithmetic=again or "dynamic")
        if (self.graph[op.inputs[1]].rank or 0) > _FLAT_RANK:
            return self._fall_back_to_float(op, "volume")
        weights = self._to_int8_weights(op)
        if not weights:
            return self._fall_back_to_float(op, "wide")
        return op if weights == op.inputs[1] else op.with_input(1, weights)

    def _fall_back_to_float(self, op: Op, why: str) -> Op:
        """Return the operator in float, and count why."""
        self.counts[why] += 1
        inputs = list(op.inputs)
        for index in integer_weights(op):
            inputs[index] = self._dequantize_weights(inputs[index], op.source)
        return replace(op.with_attributes(arithmetic=""), inputs=tuple(inputs))

    def _dequantize_weights(self, name: str, source: str) -> str:
        """Return weights after a Dequantize, one for all that read them; themselves if they are real."""
        if not self.graph[name].is_quantized:
            return name
        key = (name, "real")
        if key not in self._made:
            self._made[key] = self.dequantize(name, f"{name}/dequantized", source)
        return self._made[key]

    def _restore_weights(self, op: Op, stated: str) -> Op:
        """Return the operator with the integers of its weights, if they are constants after a Dequantize and it can have the arithmetic."""
        known, places, inputs = kind_of(op).attributes.get("arithmetic"), integer_weights(op), list(op.inputs)
        if known is None or stated not in known.choices or not places or self.graph[op.inputs[0]].dtype != "float32":
            return op
        for index in places:
            inputs[index] = dequantized_source(self.producers, inputs[index])
            if not inputs[index] or not self.graph[inputs[index]].is_constant:
                return op
        self.counts["again"] += 1
        return replace(op, inputs=tuple(inputs)).with_attributes(arithmetic=stated)

    def _to_int8_weights(self, op: Op) -> str:
        """Return the weights as int8 with zero point 0 and the same scales, one for each channel of a depthwise kernel; "" if that cannot
        be."""
        name = op.inputs[1]
        tensor = self.graph[name]
        q, data = tensor.quantization, tensor.data
        if q is None or data is None or tensor.dtype not in ("int8", "uint8", "int4", "int2"):
            return ""
        is_gemm = kind_of(op).has_weights and kind_of(op).is_matrix_product
        in_litert = is_gemm and self.graph.is_from("tflite")  # whose convolutions have no kernel of blocks or of 2 bits
        if q.block_size:
            return name if in_litert and tensor.dtype == "int4" and q.is_symmetric else ""
        spread = is_depthwise(op, tensor) and q.axis is None
        narrow = tensor.dtype == "int2" and not in_litert
        if tensor.dtype != "uint8" and q.is_symmetric and not (spread or narrow):
            return name
        key = (name, f"int8{'/channels' * spread}")
        if key not in self._made:
            steps = tensor.steps()
            if steps.size and (steps.min() < -127 or steps.max() > 127):
                return ""
            scale = np.repeat(q.scale, len(data)) if spread else q.scale
            quantization = Quantization(scale, np.zeros(scale.shape, np.int64), 0 if spread else q.axis)
            self._made[key] = self.constant(f"{name}/{key[1]}", steps.astype(np.int8), quantization=quantization)
        return self._made[key]


_PLAIN = {"activation": ""}
#: Integers of data that are rounded, as onnxruntime's quantize_dynamic multiplies them, and their product with both scales.
_INTEGERS = Pattern("MatMulInteger|ConvInteger", Pattern("DynamicQuantizeLinear", name="rounding"), "weights", name="product")
_PRODUCT = Pattern("Cast", _INTEGERS, name="cast", attributes={"to": "float32"})
#: Integers of data with a scale of their own, their product, a constant that is added to it, and the scale of the sum.
_STATIC_PRODUCT = Pattern("MatMulInteger", name="product")
_STATIC_SUMS = (_STATIC_PRODUCT, Pattern("Add", _STATIC_PRODUCT, "bias", any_order=True, attributes=_PLAIN))
_LABELLED_SUMS = tuple(Pattern("Dequantize", labelled) for total in _STATIC_SUMS for labelled in (total, Pattern("Reinterpret", total)))
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


def fuse_integer_products(graph: Graph, target: Target | None) -> PassResult:
    """Change every such product of data with one scale, whose weights have one, or one for each output channel."""
    fusing = _Fusing(graph)
    for op in fusing.of_kind("Dequantize"):
        found = fusing.fuse_labelled_product(op)
        if found is not None:
            fusing.replace(op, found)
    return fusing.finish_with(
        lambda count: f"{format_count(count, 'product')} of integers {format_verb(count, 'have')} quantized operands",
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

    def fuse_labelled_product(self, op: Op) -> Op | None:
        """Return the product of float values that a Dequantize of a product of integers stands for; None if this is no such Dequantize.

        The data have a scale, and the sums that of the data times one of the weights. A constant added to the sums follows as a bias.
        """
        if (self.graph[op.inputs[0]].dtype, self.graph[op.name].dtype) != ("int32", "float32"):
            return None
        match = next((found for pattern in _LABELLED_SUMS if (found := self.match(pattern, op.name)) is not None), None)
        if match is None:
            return None
        product, sums = match.named["product"], self.graph[op.inputs[0]].quantization
        data = self.graph[product.inputs[0]].quantization
        points = [self.graph.constant(product.inputs[at]) if product.has(at) else np.zeros((), np.int64) for at in (2, 3)]
        if data is None or sums is None or not data.is_per_tensor or not sums.is_symmetric or points[0] is None or points[1] is None:
            return None
        rank = self.graph[op.name].rank
        step = np.float32(data.step)
        scale = sums.scale / step
        for other in (np.nextafter(scale, np.float32(0)), np.nextafter(scale, np.float32(np.inf))):
            scale = np.where(scale * step == sums.scale, scale, other)
        is_exact = bool((scale * step == sums.scale).all())
        if not is_exact or (points[0] != data.point).any() or sums.axis not in (None, (rank or 0) - 1):
            return None
        inner = [item for item in match.ops if item is not op]
        if not all(self.is_read_once(name) for item in inner for name in item.outputs):
            return None
        bias = self.graph[match.tensors["bias"]] if "bias" in match.tensors else None
        offsets = None if bias is None else bias.data
        if bias is not None and (offsets is None or bias.dtype != "int32" or bias.is_quantized or bias.rank != 1):
            return None
        weights = self._weights(product, scale if sums.axis is not None else scale.reshape(()), points[1], True)
        if not weights:
            return None
        self.fused.update(map(id, inner))
        if bias is None or offsets is None:
            return op.derive("MatMul", (product.inputs[0], weights), op.outputs)
        value = self.compute_plain("MatMul", (product.inputs[0], weights), self.graph[op.name], "float32")
        label = Quantization(sums.scale, sums.zero_point, None if sums.axis is None else 0)
        stored = self.constant(bias.name, offsets, quantization=label)
        return op.derive("Add", (value, self.compute_plain("Dequantize", (stored,), bias, "float32")), op.outputs)

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
