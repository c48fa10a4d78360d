"""The rules of TFLite's quantization specification and of its kernels, one small function each, listed in RULES.

A rule looks at an operator of a normalized graph (channels last, after the target's passes) or, in FILE_RULES, at the operators that a
file would hold. `check` and `check_micro` run them all. Sources: "specification" is the TFLite 8-bit quantization specification
(tensorflow/lite/g3doc/performance/quantization_spec.md); files are those of tflite/kernels in LiteRT. "measured" means that LiteRT
2.3 or tflite-micro was seen to refuse or misread a model that breaks the rule (tests/targets/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from qconvert.formats.tflite.written import written
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.kinds import KINDS
from qconvert.plugins import Violation, operators, target_named
from qconvert.targets.written_tflite import Breach, has_no_kernel, has_no_micro_kernel, has_wild_multiplier

__all__ = ["FILE_RULES", "MICRO_FILE_RULES", "MICRO_RULES", "RULES", "Rule", "check", "check_micro"]

_ACTIVATIONS = ("int8", "uint8", "int16")
_FLOATS = ("float32", "float16", "bfloat16", "float64")

#: Largest relative difference of a bias scale from input scale * weight scale: a few roundings of float32.
_BIAS_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        text: what is demanded.
        source: who demands it.
        remedy: the pass or the option that helps.
        find: (graph, operator) -> each tensor that breaks it and how; in FILE_RULES (Writing, Operator).
    """

    text: str
    source: str
    remedy: str
    find: Callable[..., Iterator[Breach]]


def _data(graph: Graph, op: Op, *, results: bool = True) -> list[Tensor]:
    """The tensors that hold an operator's data: no shapes, indices, weights or biases."""
    names = KINDS[op.kind].moved(op)
    return [graph[name] for name in (*names, *(op.outputs if results else ())) if name]


def _quantized(graph: Graph, op: Op) -> list[Tensor]:
    """The quantized data of an operator; a Dequantize of a constant is storage, not computing."""
    if op.kind in ("Dequantize", "Opaque") and all(graph[name].is_constant for name in op.inputs if name):
        return []
    return [tensor for tensor in _data(graph, op) if tensor.is_quantized]


def wrong_activation_type(graph: Graph, op: Op) -> Iterator[Breach]:
    """Activations are int8, uint8 or int16."""
    for tensor in _quantized(graph, op):
        if tensor.dtype not in _ACTIVATIONS:
            yield tensor.name, f"is {tensor.dtype}"


def per_axis_activation(graph: Graph, op: Op) -> Iterator[Breach]:
    """Activations have one scale."""
    for tensor in _quantized(graph, op):
        if tensor.quantization is not None and (tensor.quantization.scale.size > 1 or tensor.quantization.block_size):
            yield tensor.name, f"has {tensor.quantization.scale.size} scales"


def int16_with_zero_point(graph: Graph, op: Op) -> Iterator[Breach]:
    """int16 is symmetric."""
    for tensor in _quantized(graph, op):
        if tensor.dtype == "int16" and tensor.quantization is not None and tensor.quantization.zero_point.any():
            yield tensor.name, f"has the zero point {int(tensor.quantization.zero_point[0])}"


def mixed_types(graph: Graph, op: Op) -> Iterator[Breach]:
    """All quantized data of an operator have one type."""
    if KINDS[op.kind].rule == "convert":
        return
    found = _quantized(graph, op)
    for tensor in found[1:]:
        if tensor.dtype != found[0].dtype:
            yield tensor.name, f"is {tensor.dtype} beside {found[0].dtype} of {found[0].name!r}"


def mixed_sides(graph: Graph, op: Op) -> Iterator[Breach]:
    """Real and quantized data do not meet in one operator."""
    rule = KINDS[op.kind].rule
    if rule not in ("real", "move", "index") or op.kind in ("Shape", "NonZero"):
        return
    found = _data(graph, op, results=rule != "index")
    if any(tensor.is_quantized for tensor in found):
        for tensor in found:
            if tensor.dtype in _FLOATS:
                yield tensor.name, f"is {tensor.dtype} beside quantized data"


def _weights(graph: Graph, op: Op) -> tuple[Tensor, Tensor] | None:
    """Data and quantized weights of an integer convolution or Gemm."""
    if not KINDS[op.kind].has_weights or not graph[op.inputs[0]].is_quantized:
        return None
    return graph[op.inputs[0]], graph[op.inputs[1]]


def wrong_weight_type(graph: Graph, op: Op) -> Iterator[Breach]:
    """int8 beside int8 and int16, uint8 beside uint8; int4 where a kernel unpacks it."""
    found = _weights(graph, op)
    if found is None:
        return
    data, weights = found
    depthwise = op.kind == "Conv" and int(op["group"]) > 1 and weights.shape is not None and weights.shape[1] == 1
    allowed = ["uint8"] if data.dtype == "uint8" else ["int8"]
    if op.kind != "ConvTranspose" and (data.dtype == "int8" or (data.dtype == "int16" and not depthwise)):
        allowed.append("int4")
    if not weights.is_quantized or weights.dtype not in allowed:
        yield weights.name, f"is {'' if weights.is_quantized else 'plain '}{weights.dtype} beside data of {data.dtype}"


def asymmetric_weights(graph: Graph, op: Op) -> Iterator[Breach]:
    """Signed weights have the zero point 0."""
    found = _weights(graph, op)
    if found is None or found[1].quantization is None or found[1].dtype == "uint8":
        return
    points = found[1].quantization.zero_point
    if points.any():
        yield found[1].name, f"has the zero point {int(points[points != 0][0])}"


def wrong_weight_scales(graph: Graph, op: Op) -> Iterator[Breach]:
    """One scale, or for signed weights one for each output channel."""
    found = _weights(graph, op)
    if found is None or found[1].quantization is None:
        return
    weights, scales = found[1], found[1].quantization
    if scales.block_size:
        yield weights.name, f"has scales in blocks of {scales.block_size}"
    elif scales.axis not in (None, 0):
        yield weights.name, f"has scales along axis {scales.axis}"
    elif weights.dtype == "uint8" and scales.scale.size > 1:
        yield weights.name, f"is uint8 with {scales.scale.size} scales"


def wrong_bias(graph: Graph, op: Op) -> Iterator[Breach]:
    """int32 at input scale * weight scale with zero point 0; int64 too beside int16, where the file has int64 in any case."""
    found = _weights(graph, op)
    if found is None or len(op.inputs) < 3 or not op.inputs[2] or found[0].quantization is None or found[1].quantization is None:
        return
    bias, wanted = graph[op.inputs[2]], ("int32", "int64") if found[0].dtype == "int16" else ("int32",)
    if bias.quantization is None or bias.dtype not in wanted:
        yield bias.name, f"is {'' if bias.is_quantized else 'plain '}{bias.dtype}, not {' or '.join(wanted)}"
        return
    if bias.quantization.zero_point.any():
        yield bias.name, "has a zero point other than 0"
    exact = found[0].quantization.scale.astype(np.float64) * found[1].quantization.scale
    stated = bias.quantization.scale
    if stated.size not in (1, exact.size) or not np.allclose(stated, exact, rtol=_BIAS_TOLERANCE, atol=0):
        yield bias.name, f"has the scale {stated[0]:g}, not {exact[0]:g}"


def wrong_fixed_output(graph: Graph, op: Op) -> Iterator[Breach]:
    """Softmax, Sigmoid, Tanh, LogSoftmax and L2 normalization have results of a fixed scale and zero point."""
    if op.kind not in target_named("tflite").fixed_outputs:
        return
    result = graph[op.outputs[0]]
    fixed = target_named("tflite").fixed_outputs[op.kind].get(result.dtype)
    if fixed is None or result.quantization is None:
        return
    scale, point = float(result.quantization.scale[0]), int(result.quantization.zero_point[0])
    if (scale, point) != fixed:
        yield result.name, f"has scale {scale:g} and zero point {point}, not {fixed[0]:g} and {fixed[1]}"


def unequal_scales(graph: Graph, op: Op) -> Iterator[Breach]:
    """Operators that only move, compare or average stored integers have one grid on all sides."""
    found = _quantized(graph, op)
    if not any(tensor.dtype in target_named("tflite").equal_scales.get(op.kind, ()) for tensor in found):
        return  # CONCATENATION of uint8 requantizes (concatenation.cc; measured)
    for tensor in found[1:]:
        if tensor.quantization != found[0].quantization:
            yield tensor.name, f"has another scale or zero point than {found[0].name!r}"


def activated_concat(graph: Graph, op: Op) -> Iterator[Breach]:
    """CONCATENATION fuses no activation."""
    if op.kind == "Concat" and op["activation"]:
        yield op.outputs[0], f"fuses {op['activation']}"


def open_size(graph: Graph, op: Op) -> Iterator[Breach]:
    """Sizes are known before the model runs, but for the first, which then is 1: the file states it so."""
    for name in (*op.inputs, *op.outputs):
        shape = graph[name].shape if name else ()
        if shape is None or any(isinstance(size, str) for size in shape[1:]):
            yield name, f"has the shape {shape}"


_SPEC = "specification"
RULES = (
    Rule("activations are int8, uint8 or int16", _SPEC, "passes store_activations and isolate_float", wrong_activation_type),
    Rule("activations have one scale for the whole tensor", _SPEC, "pass per_axis_to_per_tensor", per_axis_activation),
    Rule("int16 activations have the zero point 0", "specification; add.cc, conv.cc, concatenation.cc, measured",
         "quantize the model's 16-bit activations symmetrically", int16_with_zero_point),
    Rule("the quantized data of an operator have one type", "kernels compare types; measured", "pass store_activations", mixed_types),
    Rule("only Quantize and Dequantize stand between real and quantized data", "kernels compare types",
         "passes quantize_operands and isolate_float", mixed_sides),
    Rule("weights are int8 (or int4) beside int8 and int16 data, uint8 beside uint8 data", "specification; conv.cc, measured",
         "passes symmetric_weights and store_activations", wrong_weight_type),
    Rule("signed weights have the zero point 0", "specification; conv.cc:390, measured", "pass symmetric_weights", asymmetric_weights),
    Rule("weights have one scale, or one for each output channel if they are signed", "specification; kernel_util.cc:240, measured",
         "passes symmetric_weights and per_axis_to_per_tensor", wrong_weight_scales),
    Rule("a bias is int32 (beside int16 data int64 too) at input scale * weight scale with zero point 0", "specification; kernel_util.cc",
         "pass float_bias_to_int32", wrong_bias),
    Rule("the results of Softmax, Sigmoid, Tanh, LogSoftmax and L2 normalization have the scale and zero point that their kernels fix",
         "specification; activations.cc, l2norm.cc, measured", "pass match_scales", wrong_fixed_output),
    Rule("AveragePool, Resize, Max, Min, Concat and Where have one scale and zero point on all sides",
         "specification; pooling.cc, maximum_minimum.cc, measured", "pass match_scales", unequal_scales),
    Rule("Concat fuses no activation", "concatenation.cc:143, measured", "", activated_concat),
)  # fmt: skip

FILE_RULES = (
    Rule("LiteRT has a kernel for the operator on this type and rank", "measured",
         "pass isolate_float, or int32_bias_to_float for a bias", has_no_kernel),
    Rule("the factors that kernels compute of scales fit their fixed-point arithmetic", "quantization_util.cc, XNNPACK, measured",
         "check the scales: they come of a calibration that went wrong, or of unused channels", has_wild_multiplier),
)  # fmt: skip

MICRO_RULES = (*RULES, Rule("sizes but the first are known before the model runs", "tflite-micro has no dynamic tensors",
                            "set the sizes of the model's inputs before it is converted", open_size))  # fmt: skip

MICRO_FILE_RULES = (
    Rule("tflite-micro has a kernel for the operator on this type and rank", "measured", "--target tflite, if it need not run there",
         has_no_micro_kernel),
    FILE_RULES[1],
)  # fmt: skip

_NO_FORM = "TFLite has an operator, or a few, for the kind"
_REFUSED = "TFLite can state the operator"


def check(graph: Graph) -> Iterator[Violation]:
    """Everything in a normalized graph that LiteRT does not take.

    Args:
        graph: after the passes of the target.
    """
    yield from _check(graph, RULES, FILE_RULES)


def check_micro(graph: Graph) -> Iterator[Violation]:
    """Everything in a normalized graph that tflite-micro does not take."""
    yield from _check(graph, MICRO_RULES, MICRO_FILE_RULES)


def _check(graph: Graph, rules: Iterable[Rule], file_rules: Iterable[Rule]) -> Iterator[Violation]:
    writers = operators("tflite", "write")
    for op in graph.ops:
        if op.kind not in writers:
            kind = f"{op['domain'] or 'ai.onnx'}.{op['op_type']}" if op.kind == "Opaque" else op.kind
            yield Violation(f"{_place(op)}: {kind}", _NO_FORM, "replace the operator before the model is exported")
        for rule in rules:
            yield from (Violation(f"{_place(op)}: {name!r} {how}", rule.text, rule.remedy) for name, how in rule.find(graph, op))
    found = written(graph)
    yield from (Violation(f"{error.where}: {error.reason}", _REFUSED, error.remedy) for error in found.failures)
    for operator in found.writing.operators:
        place = operator.builtin if operator.origin is None else _place(operator.origin)
        for rule in file_rules:
            for name, how in rule.find(found.writing, operator):
                yield Violation(f"{place}: {name!r}: {how}", rule.text, rule.remedy)


def _place(op: Op) -> str:
    return f"{op.source} {op}".strip()
