"""Functions of one and of two tensors, element by element, in float; between float values and quantizations by quantized_decomposed's
operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.ops.create import COMPARISONS
from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writers.kernels import write_kernel_binary, write_tflite_hard_swish, write_xnnpack_line
from qconvert.formats.torch.writing import Builder, WriteFunction, with_note
from qconvert.graph import Op, integer_range
from qconvert.rewriting.lowering import Scope, conditions


def simple(operator: str, *attributes: str, kernel: Callable[[Op, Builder], bool] | None = None, **named: Any) -> WriteFunction:
    """An operator of the same operands, with some attributes as numbers after them.

    Args:
        operator: of aten.
        attributes: their names.
        named: arguments by name.
        kernel: writes operators that name a kernel as it rounds them, and says whether this one does.
    """

    def write(op: Op, b: Builder) -> None:
        if kernel is None or not kernel(op, b):
            b.finish(op, b.aten(operator, *b.float_values(op), *(float(op[name]) for name in attributes), **named))

    return write


def write_sqrt(op: Op, b: Builder) -> None:
    """Sqrt; with the arithmetic "tflite" rounded down to a step of the result's quantization, as TFLite's kernel does in float32.

    PyTorch's own root of float32 is not always the nearest, and it multiplies by reciprocals instead of dividing. A root or a quotient of
    float64 that is rounded to float32 is the nearest.
    """
    node, quantization = b.float_input(op), b.result(op).quantization
    if not b.wide or op["arithmetic"] != "tflite" or quantization is None:
        b.finish(op, b.aten("sqrt", node))
        return

    def single(node: Any) -> Any:
        return b.widen(b.cast(node, "float32"))

    scale = quantization.step
    root = single(b.aten("sqrt", single(node)))
    b.finish(op, b.aten("floor", single(root / scale)) * scale)


def write_clip(op: Op, b: Builder) -> None:
    """Clip: bounds that are single constants are numbers, others tensors."""
    bounds = bounds_of(op, b)
    node = b.float_input(op)
    if not any(isinstance(bound, Node) for bound in bounds):
        b.finish(op, node if bounds == [None, None] else b.clip(node, *bounds))
        return
    for operator, name in zip(("maximum", "minimum"), (op.input(1), op.input(2)), strict=True):
        node = b.aten(operator, node, b.float_value(name)) if name else node
    b.finish(op, node)


def bounds_of(op: Op, b: Builder) -> list[Any]:
    """The two bounds of a Clip, each a number, None for none, or its node."""
    return [_bound(op, b, op.input(index)) for index in (1, 2)]


def _bound(op: Op, b: Builder, name: str) -> Any:
    """A bound as a number, None for none, or its node."""
    if not name:
        return None
    tensor = b.tensor(name)
    if tensor.data is None or tensor.data.size != 1:
        return b.float_value(name)
    value = tensor.data.reshape(-1)[0]
    if tensor.quantization is not None:
        return float((float(value) - tensor.quantization.point) * tensor.quantization.scale[0])
    real = b.operand(op)
    if real.is_quantized or "float" in real.dtype:
        return None if np.isinf(float(value)) else float(value)
    return int(value)


def _slopes(op: Op, scope: Scope) -> str:
    """ "one" for one slope, "channels" for one a channel, which aten.prelu takes; "" for others."""
    data, slopes = scope.tensors[op.inputs[0]], scope.tensors[op.inputs[1]]
    shape, rank = slopes.static_shape, data.rank or 0
    if shape is None:
        return ""
    count = np.prod(shape, dtype=int)
    channels = data.shape[1] if data.shape is not None and rank > 1 else None
    per_channel = len(shape) in (rank - 1, rank) and rank > 1 and count == channels == shape[1 - rank]
    return "one" if count == 1 else "channels" if per_channel else ""


@conditions(lambda op, scope: "" if _slopes(op, scope) else "it has neither one slope nor one a channel")
def write_prelu(op: Op, b: Builder) -> None:
    """PRelu with one slope, or one for each channel."""
    is_one = _slopes(op, Scope(b.graph.tensors)) == "one"
    b.finish(op, b.aten("prelu", b.float_input(op), b.aten("reshape", b.float_input(op, 1), [1 if is_one else -1])))


def write_div(op: Op, b: Builder) -> None:
    """Div: of whole numbers rounded towards zero."""
    data = b.operand(op)
    if data.is_quantized or "float" in data.dtype:
        b.finish(op, b.aten("div.Tensor", *b.float_values(op)))
    else:
        b.finish(op, b.aten("div.Tensor_mode", *b.float_values(op), rounding_mode="trunc"))


@conditions(lambda op, scope: "" if float(op["bias"]) in (0.0, float(op["lambd"])) else "its bias is neither 0 nor its limit")
def write_shrink(op: Op, b: Builder) -> None:
    """Shrink: aten's hard and soft forms."""
    b.finish(op, b.aten("softshrink" if float(op["bias"]) else "hardshrink", b.float_input(op), float(op["lambd"])))


#: Kinds that aten calls by the same name, in lower case.
_UNARY = (
    "Relu", "Sigmoid", "Tanh", "Mish", "Softplus", "Abs", "Neg", "Exp", "Log", "Rsqrt", "Square", "Reciprocal", "Erf", "Round", "Floor",
    "Ceil", "Sign", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "IsNaN", "IsInf",
)  # fmt: skip
_BINARY = {
    "Add": "add.Tensor", "Sub": "sub.Tensor", "Mul": "mul.Tensor", "Max": "maximum", "Min": "minimum", "Pow": "pow.Tensor_Tensor",
    **{kind: f"{name}.Tensor" for name, kind in COMPARISONS.items()}, "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "Mod": "fmod.Tensor", "FloorMod": "remainder.Tensor", "Atan2": "atan2",
}  # fmt: skip


def write_quantize(op: Op, b: Builder) -> None:
    """Quantize, and Requantize by way of float values. The quantize of quantized_decomposed takes float32 alone."""
    if op.kind == "Requantize" and write_xnnpack_line(op, b):
        return
    node, source, result = b.float_input(op), b.operand(op), b.result(op)
    if b.wide and op.attributes.get("arithmetic") and (quantization := result.quantization) is not None and quantization.is_per_tensor:
        b.note_operator()
        low = integer_range(result.dtype)[0]
        wide = b.cast(b.stored_value(source.name), "float64")
        total = wide * float(np.float32(1) / quantization.scale[0])
        total = b.cast(total + float(quantization.zero_point[0] - low), "float32")
        stored = b.aten("clamp", b.aten("round", total), 0.0, 255.0)
        stored = stored + float(low) if low else stored
        b.store(op, b.cast(stored, result.dtype))
        return
    if not b.wide and not source.is_quantized and source.dtype != "float32":
        node = b.cast(node, "float32")
    b.store(op, b.quantize(node, result))


def write_dequantize(op: Op, b: Builder) -> None:
    """Dequantize, in float32; another type after a cast."""
    node, dtype = b.float_input(op), b.result(op).dtype
    b.store(op, node if dtype == "float32" else b.cast(node, dtype))


def write_identity(op: Op, b: Builder) -> None:
    """Identity, and Reinterpret: the same integers, which readers dequantize by the new quantization."""
    b.store(op, b.aten("alias", b.stored_input(op)))


WRITERS: Mapping[str, WriteFunction] = {
    "Quantize": write_quantize,
    "Requantize": write_quantize,
    "Dequantize": write_dequantize,
    "Reinterpret": write_identity,
    "Cast": lambda op, b: b.store(op, b.cast(b.stored_input(op), op["to"])),
    "Identity": write_identity,
    **{kind: simple(kind.lower()) for kind in _UNARY},
    **{kind: simple(name) for kind, name in _BINARY.items()},
    "Not": simple("logical_not"),
    "Sqrt": write_sqrt,
    **{kind: simple(_BINARY[kind], kernel=write_kernel_binary) for kind in ("Add", "Sub", "Mul")},
    "FloorDiv": with_note(simple("div.Tensor_mode", rounding_mode="floor")),
    **{f"Bitwise{name}": with_note(simple(f"bitwise_{name.lower()}.Tensor")) for name in ("And", "Or", "Xor")},
    "BitwiseNot": with_note(simple("bitwise_not")),
    "Clip": write_clip,
    "LeakyRelu": simple("leaky_relu", "alpha", kernel=write_xnnpack_line),
    "HardSwish": simple("hardswish", kernel=write_tflite_hard_swish),
    "Elu": simple("elu", "alpha"),
    "Celu": simple("celu", "alpha"),
    "Selu": simple("elu", "alpha", "gamma"),
    "Gelu": lambda op, b: b.finish(op, b.aten("gelu", b.float_input(op), approximate=op["approximate"])),
    "PRelu": write_prelu,
    "HardSigmoid": conditions(
        lambda op, scope: "" if np.float32(op["alpha"]) == np.float32(1 / 6) and op["beta"] == 0.5 else "PyTorch has other numbers"
    )(simple("hardsigmoid")),
    "Swish": conditions(lambda op, scope: "" if op["alpha"] == 1 else "its alpha is not 1")(simple("silu")),
    "ThresholdedRelu": lambda op, b: b.finish(op, b.aten("threshold", b.float_input(op), float(op["alpha"]), 0.0)),
    "Shrink": write_shrink,
    "Div": write_div,
    "Where": simple("where.self"),
}
