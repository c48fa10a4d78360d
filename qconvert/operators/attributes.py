"""What an attribute of an operator may be; and what the families share: attributes and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from qconvert.graph.activations import ACTIVATIONS
from qconvert.graph.schema import Op, Shape
from qconvert.operators.sizes import ShapeContext, Shapes, broadcast, stated_axis

#: The default of an attribute that has none.
REQUIRED: Any = object()

#: The values of the attribute `arithmetic`: roundings of single kernels, which an exact converter must know.
#: A kind takes those of them that make sense for it. Everything else about rounding belongs to kernels (arithmetic/, runtimes).
ARITHMETIC: Mapping[str, str] = {
    "": "the exact result, rounded once to the output's quantization, ties to even",
    "ties_up": "x.5 of stored integers goes up: TFLite's averages of uint8, XNNPACK's interpolations",
    "ties_away": "x.5 goes away from the stored zero of the signed type: TFLite's averages of int8 and int16",
    "xnnpack": "XNNPACK's additions of 8 bits: 20-bit multipliers, one shift, ties up (arithmetic/kernels.py)",
    "xnnpack_line": "XNNPACK's Requantize and LeakyRelu: multipliers with 8 fractional bits, ties up (arithmetic/kernels.py)",
    "xnnpack_qs8": "XNNPACK's sums and means of int8, whatever type stores them (arithmetic/kernels.py)",
    "xnnpack_qu8": "likewise of uint8",
    "tflite": "TFLite's own kernels of 16-bit data (arithmetic/sixteen_bits.py, kernels.py), and its Sqrt, which drops the fraction",
    "tflite_hard_swish": "TFLite's own HARD_SWISH of 8 bits, in 16 bits (arithmetic/kernels.py)",
    "tflite_softmax": "TFLite's own SOFTMAX of 8 bits, a table of exponentials that are added in float32 (arithmetic/kernels.py)",
    "qnnpack": "additions of PyTorch's engine qnnpack: 21-bit multipliers, ties away from zero (arithmetic/torch_kernels.py)",
    "qnnpack_average": "its averages: of steps from the zero point, ties to even",
    "fbgemm": "additions of PyTorch's other engines: in float32",
    "fbgemm_windows": "their averages of windows: ties to even of the stored integers",
    "fbgemm_vectors": "their averages of windows where channels are stored last, in vectors: of steps from the zero point, ties to even",
    "fbgemm_adaptive": "their adaptive averages of such data",
    "fbgemm_frames": "their adaptive averages of other data: the stored sum times the reciprocal of one size divided by the other",
    "torch": "PyTorch's linear interpolation: ties to even of the stored integers",
    "fused": "PyTorch's quantize of its engines: data times the reciprocal of the scale plus the zero point of unsigned storage is one "
    "number in float32, and its ties go to even (arithmetic/torch_kernels.py)",
    "reciprocal": "PyTorch's other quantizes, of programs and of training, and LiteRT's: data times the reciprocal of the scale in float32",
    "divided": "onnxruntime's QuantizeLinear: data divided by the scale in float32",
    "fbgemm_means": "their means over the last axes: the stored sum divided by the number of elements",
    "dequantized": "PyTorch's means over other axes, or of data stored channels last: of dequantized numbers, rounded as fused says",
    "dynamic": "floats are quantized at each run, each row of a matrix and each image (each pixel where the kernel is 1) by the range "
    "of its own values: LiteRT's default kernels for dynamic range",
    "dynamic_images": "likewise, but each image also where the kernel is 1: TFLite's own kernels",
    "dynamic_symmetric": "likewise, by the largest magnitude: what a TFLite operator states without asymmetric_quantize_inputs",
    "dynamic_rows": "each row of data, and of hidden values at each step, by the range of its own values, ties away from zero: TFLite's "
    "recurrent operators with asymmetric_quantize_inputs, as dynamic_symmetric is without",
    "dynamic_tensor": "floats are quantized at each run by the range of the whole tensor, and of all hidden values of a step: ONNX's "
    "DynamicQuantizeLinear, and onnxruntime's DynamicQuantizeLSTM",
    "dynamic_reduced": "likewise, in 127 steps: PyTorch's reduce_range, which keeps sums of 16 bits from overflowing",
}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_tuple_of(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(is_one, value))


#: Sort of an attribute -> the words for its values, and whether a value is one.
_SORTS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "integer": ("an integer", _is_integer),
    "number": ("a number", _is_number),
    "integers": ("a tuple of integers", _is_tuple_of(_is_integer)),
    "numbers": ("a tuple of numbers", _is_tuple_of(_is_number)),
    "text": ("text", _is_text),
    "texts": ("a tuple of text", _is_tuple_of(_is_text)),
    "function": ("the name of a function", _is_text),
}


class AttributeSpec(NamedTuple):
    """One attribute.

    Attributes:
        sort: "integer", "number", "integers", "numbers", "text", "texts", or "function", the name of one of the graph's functions.
        default: its value where an operator does not state it, or REQUIRED.
        choices: the values that it may have; none means all of its sort.
    """

    sort: str
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()

    def problem(self, value: Any) -> str:
        """What is wrong with a value, in words that follow "has <value> as attribute <name>; it must be"; "" if nothing is."""
        words, is_one = _SORTS[self.sort]
        if not is_one(value):
            return words
        return f"one of {', '.join(map(repr, self.choices))}" if self.choices and value not in self.choices else ""


def integer(default: Any = REQUIRED) -> AttributeSpec:
    """One integer."""
    return AttributeSpec("integer", default)


def number(default: Any = REQUIRED) -> AttributeSpec:
    """One finite float, or an integer in its place."""
    return AttributeSpec("number", default)


def integers(default: Any = REQUIRED) -> AttributeSpec:
    """A tuple of integers."""
    return AttributeSpec("integers", default)


def numbers(default: Any = REQUIRED) -> AttributeSpec:
    """A tuple of finite floats."""
    return AttributeSpec("numbers", default)


def flag(default: Any = REQUIRED) -> AttributeSpec:
    """0 or 1."""
    return AttributeSpec("integer", default, (0, 1))


def text(default: Any = REQUIRED) -> AttributeSpec:
    """Any text."""
    return AttributeSpec("text", default)


def function(default: Any = REQUIRED) -> AttributeSpec:
    """The name of one of the graph's functions."""
    return AttributeSpec("function", default)


def texts(default: Any = REQUIRED) -> AttributeSpec:
    """A tuple of text."""
    return AttributeSpec("texts", default)


def choice(values: Sequence[str], default: Any = REQUIRED) -> AttributeSpec:
    """One of some texts."""
    return AttributeSpec("text", default, tuple(values))


def has(*groups: Mapping[str, AttributeSpec], **named: AttributeSpec) -> Mapping[str, AttributeSpec]:
    """The attributes of a kind: those of some groups that several kinds share, and its own."""
    return {name: spec for group in (*groups, named) for name, spec in group.items()}


ACTIVATION: Mapping[str, AttributeSpec] = {"activation": choice(tuple(ACTIVATIONS), "")}
DATA_FORMAT: Mapping[str, AttributeSpec] = {"data_format": choice(("channels_first", "channels_last"))}
WINDOW: Mapping[str, AttributeSpec] = {
    "strides": integers(),
    "pads": integers(),
    "auto_pad": choice(("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "NOTSET"),
    **DATA_FORMAT,
}
KEEPDIMS: Mapping[str, AttributeSpec] = {"keepdims": flag(1)}


def without_axes(op: Op, data: Shape, axes: list[int]) -> Shape:
    """`data` reduced along `axes`, which stay with size 1 if the operator keeps dimensions."""
    if op["keepdims"]:
        return tuple(1 if axis in axes else size for axis, size in enumerate(data))
    return tuple(size for axis, size in enumerate(data) if axis not in axes)


def broadcast_shape(op: Op, s: ShapeContext) -> Shapes:
    return [broadcast(op, [s.shape(i) for i in range(len(op.inputs))])]


def same_shape(op: Op, s: ShapeContext) -> Shapes:
    return [s.shape(0)]


def along_axis(op: Op, s: ShapeContext) -> Shapes:
    """The shape of the data, which have the axis of the operator."""
    shape = s.shape(0)
    if shape is not None:
        stated_axis(op, len(shape))
    return [shape]
