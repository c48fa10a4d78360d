"""What the fields of a target demand of quantized operators: one small function each, listed in DEMANDS; and what these rules ask: which
tensors of an operator are data, and which weights and biases. A demand is named as the field that turns it on. Its text is made of the
field's value, so that a target of data alone refuses in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import accumulator_scale, is_accumulator_scale
from qconvert.arithmetic.storage import REALS
from qconvert.graph import Graph, Op, Tensor
from qconvert.kernels import Kernel
from qconvert.operators import kind_of
from qconvert.plugins.abilities import Abilities


def data_of(graph: Graph, op: Op, *, results: bool = True) -> list[Tensor]:
    """The tensors that hold an operator's data: no shapes, indices, weights or biases."""
    names = kind_of(op).moved_inputs(op)
    return [graph[name] for name in (*names, *(op.outputs if results else ())) if name]


def computed_inputs(graph: Graph, op: Op) -> list[Tensor]:
    """The inputs whose values an operator computes on, weights and biases too."""
    return [graph[name] for name in kind_of(op).inputs_with_role(op, "data", "factor", "weights", "bias")]


def quantized_data(graph: Graph, op: Op) -> list[Tensor]:
    """The quantized data of an operator; a Dequantize of a constant is storage, not computing, and of an Opaque nothing is known."""
    if kind_of(op).rule == "opaque" or (kind_of(op).dequantizes and all(graph[name].is_constant for name in op.inputs if name)):
        return []
    return [tensor for tensor in data_of(graph, op) if tensor.is_quantized]


def weights_of(graph: Graph, op: Op) -> tuple[Tensor, Tensor] | None:
    """Data and weights of an operator that multiplies quantized data with weights O,I,spatial; None for others."""
    if not kind_of(op).has_weights or not graph[op.inputs[0]].is_quantized:
        return None
    return graph[op.inputs[0]], graph[op.inputs[1]]


def addend(graph: Graph, op: Op, producers: Mapping[str, Op]) -> Tensor | None:
    """The constant of one element that an operator adds to what a convolution over one dimension gives; None if it does not."""
    name = _varying_operand(graph, op)
    number = None if name is None else graph[op.inputs[1 - op.inputs.index(name)]]
    if name is None or number is None or number.data is None or number.data.size != 1 or len(number.data.shape) > 3:
        return None
    maker = producers.get(name)
    while maker is not None and not (kind_of(maker).has_windows and kind_of(maker).has_weights):
        before = maker.inputs[0] if kind_of(maker).copies else _varying_operand(graph, maker)
        maker = None if before is None or maker.attributes.get("activation") else producers.get(before)
    if maker is None or maker.attributes.get("activation") or maker["data_format"] != "channels_first":
        return None
    result = graph[maker.outputs[0]]
    return number if result.rank == 3 and not result.is_quantized else None


def _varying_operand(graph: Graph, op: Op) -> str | None:
    """What a constant is added to, or taken from; None if it is another operator."""
    sign = kind_of(op).sum_sign
    if not sign or graph[op.outputs[0]].is_quantized:
        return None
    data = [name for name in op.inputs if not graph[name].is_constant]
    return data[0] if len(data) == 1 and (sign > 0 or data[0] == op.inputs[0]) else None


#: The tensor concerned, and what is wrong with it in words.
Breach = tuple[str, str]

#: Rules of kinds that float values are no matter of: they pass integers on, or take them as they are.
_PASSING = ("relabel", "plain", "state", "stored", "control")

#: Kinds whose name is not the one that people use.
_SPOKEN = {"LpNormalization": "L2 normalization"}


class Demand(NamedTuple):
    """One demand.

    Attributes:
        name: of the field of Storage that makes it, unless rows of kernels do.
        text: what is demanded, in words.
        remedy: the pass or the option that helps.
        find: each tensor of an operator that breaks it, and how.
        rows: which rows of its kernels make it.
    """

    name: str
    text: Callable[[Abilities], str]
    remedy: Callable[[Abilities], str]
    find: Callable[[Abilities, Graph, Op], Iterator[Breach]]
    rows: Callable[[Kernel], bool] | None = None

    def is_made(self, target: Abilities) -> bool:
        """Whether a target demands it."""
        return bool(getattr(target.storage, self.name) if self.rows is None else target.kernels.kinds(self.rows))


def demands(target: Abilities) -> tuple[Demand, ...]:
    """The demands that the target's data make."""
    return tuple(demand for demand in DEMANDS if demand.is_made(target))


def join_words(words: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _inner(target: Abilities, graph: Graph, op: Op) -> list[Tensor]:
    """The quantized data of an operator; where edges are free, without the outer side of a conversion at the edge of the graph, and without
    what passes on as it is, or as plain numbers: who computes with it is asked."""
    found, rule = quantized_data(graph, op), kind_of(op).rule
    if not target.storage.free_edges or rule not in ("convert", *_PASSING):
        return found
    return [tensor for tensor in found if rule == "convert" and tensor.name not in graph.inputs and tensor.name not in graph.public]


def _wrong_activation_type(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    more = target.storage.conversion_dtypes if kind_of(op).rule == "convert" else ()
    for tensor in _inner(target, graph, op):
        if tensor.dtype not in (*target.storage.activation_dtypes, *more):
            yield tensor.name, f"is {tensor.dtype}"


def _per_axis_activation(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    for tensor in quantized_data(graph, op):
        if tensor.quantization is not None and (tensor.quantization.scale.size > 1 or tensor.quantization.block_size):
            yield tensor.name, f"has {tensor.quantization.scale.size} scales"


def _asymmetric_activation(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    for tensor in _inner(target, graph, op):
        q = tensor.quantization
        if tensor.dtype in target.storage.symmetric_activations and q is not None and q.zero_point.any():
            yield tensor.name, f"has the zero point {q.point}"


def _mixed_types(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    if kind_of(op).rule in ("convert", "stored", "control"):  # what functions take are as many values as operands
        return
    found = quantized_data(graph, op)
    for tensor in found[1:]:
        if tensor.dtype != found[0].dtype:
            yield tensor.name, f"is {tensor.dtype}, while {found[0].name!r} is {found[0].dtype}"


def _mixed_sides(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    rule = kind_of(op).rule
    if rule not in ("real", "move", "index"):
        return
    found = data_of(graph, op, results=rule != "index")
    if any(tensor.is_quantized for tensor in found):
        for tensor in found:
            if tensor.dtype in REALS:
                yield tensor.name, f"is {tensor.dtype} next to quantized data"


def _of_weights(describe: Callable[[Abilities, Tensor, Tensor], str]) -> Callable[[Abilities, Graph, Op], Iterator[Breach]]:
    """What finds wrong weights next to their data, where `describe` says how they are wrong."""

    def find(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
        found = weights_of(graph, op)
        if found is not None and (words := describe(target, *found)):
            yield found[1].name, words

    return find


@_of_weights
def _wrong_weight_type(target: Abilities, data: Tensor, weights: Tensor) -> str:
    if weights.is_quantized and weights.dtype in target.storage.weight_dtypes.get(data.dtype, ()):
        return ""
    return f"is {'' if weights.is_quantized else 'plain '}{weights.dtype} for data of {data.dtype}"


@_of_weights
def _asymmetric_weights(target: Abilities, data: Tensor, weights: Tensor) -> str:
    if weights.quantization is None or weights.dtype.startswith("u") or not weights.quantization.zero_point.any():
        return ""
    points = weights.quantization.zero_point
    return f"has the zero point {int(points[points != 0][0])}"


@_of_weights
def _wrong_weight_scales(target: Abilities, data: Tensor, weights: Tensor) -> str:
    scales, granularity = weights.quantization, target.storage.weight_granularity
    if scales is None:
        return ""
    if scales.block_size:
        return f"has scales in blocks of {scales.block_size}"
    if scales.axis not in (None, 0):
        return f"has scales along axis {scales.axis}"
    if scales.scale.size > 1 and granularity == "per_tensor":
        return f"has {scales.scale.size} scales"
    is_unsigned = granularity == "per_axis_signed" and weights.dtype.startswith("u")
    return f"is {weights.dtype} with {scales.scale.size} scales" if scales.scale.size > 1 and is_unsigned else ""


@_of_weights
def _wrong_range(target: Abilities, data: Tensor, weights: Tensor) -> str:
    bounds = target.storage.quant_ranges.get(weights.dtype)
    if bounds is None or weights.data is None or not weights.data.size:
        return ""
    low, high = int(weights.data.min()), int(weights.data.max())
    return f"goes from {low} to {high}" if low < bounds[0] or high > bounds[1] else ""


def _wrong_bias(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    found = weights_of(graph, op)
    if found is None or not op.has(2) or found[0].quantization is None or found[1].quantization is None:
        return
    bias, wanted = graph[op.inputs[2]], target.storage.bias_dtypes.get(found[0].dtype, next(iter(target.storage.bias_dtypes.values())))
    if bias.quantization is None or bias.dtype not in wanted:
        yield bias.name, f"is {'' if bias.is_quantized else 'plain '}{bias.dtype}, not {join_words(wanted, 'or')}"
        return
    if bias.quantization.zero_point.any():
        yield bias.name, "has a zero point other than 0"
    exact = accumulator_scale(found[0].quantization, found[1].quantization)
    stated = bias.quantization.scale
    if stated.size not in (1, exact.size) or not is_accumulator_scale(stated, exact):
        yield bias.name, f"has the scale {stated[0]:g}, not {exact[0]:g}"


def _no_power_of_two(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    found = weights_of(graph, op)
    for tensor in (*quantized_data(graph, op), *(found[1:] if found is not None else ())):
        q = tensor.quantization
        if q is not None and (np.frexp(q.scale)[0] != 0.5).any():
            yield tensor.name, f"has the scale {q.scale[np.frexp(q.scale)[0] != 0.5][0]:g}"


def _wrong_fixed_output(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    fixed = target.kernels.fixed_result(graph, op)
    if fixed is None:
        return
    (result, wanted), found = fixed, fixed[0].require_quantization()
    if (found.step, found.point) != (wanted.step, wanted.point):
        yield result.name, f"has scale {found.step:g} and zero point {found.point}, not {wanted.step:g} and {wanted.point}"


def _unequal_scales(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    yield from _unequal(quantized_data(graph, op), target, op, "all")


def _unequal_inputs(target: Abilities, graph: Graph, op: Op) -> Iterator[Breach]:
    found = [tensor for tensor in data_of(graph, op, results=False) if tensor.is_quantized]
    yield from _unequal(found, target, op, "data")


def _unequal(found: Sequence[Tensor], target: Abilities, op: Op, sides: str) -> Iterator[Breach]:
    if any(target.kernels.one_quantization(op, tensor.dtype) == sides for tensor in found):
        for tensor in found[1:]:
            if tensor.quantization != found[0].quantization:
                yield tensor.name, f"has another scale or zero point than {found[0].name!r}"


def _weights_text(target: Abilities) -> str:
    """Return which weights go with which data; weights of several types of data are listed once."""
    by_weights: dict[tuple[str, ...], list[str]] = {}
    for dtype, weights in target.storage.weight_dtypes.items():
        by_weights.setdefault(weights, []).append(dtype)
    parts = []
    for (first, *others), data in by_weights.items():
        more = f" (or {join_words(others, 'or')})" if others else ""
        parts.append(f"{first}{more} for {join_words(data)} data")
    return f"weights are {', '.join(parts)}"


def _granularity_text(target: Abilities) -> str:
    if target.storage.weight_granularity == "per_tensor":
        return "weights have one scale for the whole tensor"
    condition = " if they are signed" if target.storage.weight_granularity == "per_axis_signed" else ""
    return f"weights have one scale, or one for each output channel{condition}"


def _granularity_remedy(target: Abilities) -> str:
    one = target.storage.weight_granularity == "per_tensor"
    return "pass per_axis_to_per_tensor" if one else "passes symmetric_weights and per_axis_to_per_tensor"


def _types_remedy(target: Abilities) -> str:
    usual = "passes store_activations and isolate_float"
    if any("16" in dtype for dtype in target.storage.activation_dtypes):
        return f"{usual}; with 4 bits pass change_bits (-O activation_bits=8 -O edges=change)"
    return f"{usual}; with 16 bits pass change_bits (-O activation_bits=8 -O edges=change, lossy)"


def _bias_text(target: Abilities) -> str:
    """The first type's biases, and what others may have next to."""
    (_, usual), *others = target.storage.bias_dtypes.items()
    more = [f"for {data} data also {join_words(extra)}" for data, dtypes in others if (extra := [t for t in dtypes if t not in usual])]
    return f"a bias is {join_words(usual, 'or')}{f' ({join_words(more)})' if more else ''} at input scale * weight scale with zero point 0"


def _fixed_text(target: Abilities) -> str:
    kinds = join_words(sorted(_SPOKEN.get(kind, kind) for kind in target.kernels.kinds(_fixes)))
    return f"the results of {kinds} have the scale and zero point that their kernels fix"


def _range_text(target: Abilities) -> str:
    return f"weights lie within {join_words([f'{low} to {high} ({dtype})' for dtype, (low, high) in target.storage.quant_ranges.items()])}"


def _fixes(row: Kernel) -> bool:
    return bool(row.result)


def _joins(row: Kernel) -> bool:
    return row.one_quantization == "all"


def _joins_data(row: Kernel) -> bool:
    return row.one_quantization == "data"


def _on_one_quantization(target: Abilities, rows: Callable[[Kernel], bool]) -> str:
    kinds = sorted(target.kernels.kinds(rows))
    return f"{join_words(kinds)} {'have' if len(kinds) > 1 else 'has'} one scale and zero point on all"


def _always(text: str) -> Callable[[Abilities], str]:
    return lambda target: text


_MATCH = _always("pass match_scales")

DEMANDS = (
    Demand("activation_dtypes", lambda t: f"activations are {join_words(t.storage.activation_dtypes, 'or')}",
           _types_remedy, _wrong_activation_type),
    Demand("activation_granularity", _always("activations have one scale for the whole tensor"), _always("pass per_axis_in_float"),
           _per_axis_activation),
    Demand("symmetric_activations", lambda t: f"{join_words(t.storage.symmetric_activations)} activations have the zero point 0",
           _always("quantize the model's activations symmetrically, or pass symmetric_activations (lossy)"), _asymmetric_activation),
    Demand("one_type", _always("the quantized data of an operator have one type"), _always("pass store_activations"), _mixed_types),
    Demand("explicit_conversions", _always("only Quantize and Dequantize convert between float and quantized data"),
           _always("passes quantize_operands and isolate_float"), _mixed_sides),
    Demand("weight_dtypes", _weights_text, _always("passes symmetric_weights and store_activations"), _wrong_weight_type),
    Demand("symmetric_weights", _always("signed weights have the zero point 0"), _always("pass symmetric_weights"), _asymmetric_weights),
    Demand("weight_granularity", _granularity_text, _granularity_remedy, _wrong_weight_scales),
    Demand("quant_ranges", _range_text, _always("quantize the model's weights within these ranges"), _wrong_range),
    Demand("bias_dtypes", _bias_text, _always("pass float_bias_to_int32"), _wrong_bias),
    Demand("power_of_two_scales", _always("scales are powers of two"), _always("quantize the model with such scales"), _no_power_of_two),
    Demand("fixed_outputs", _fixed_text, _MATCH, _wrong_fixed_output, _fixes),
    Demand("equal_scales", lambda t: f"{_on_one_quantization(t, _joins)} sides", _MATCH, _unequal_scales, _joins),
    Demand("equal_inputs", lambda t: f"{_on_one_quantization(t, _joins_data)} operands", _MATCH, _unequal_inputs, _joins_data),
)  # fmt: skip
