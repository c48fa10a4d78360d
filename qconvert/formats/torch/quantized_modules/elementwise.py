"""Sums, products and activations of bytes."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.quantized_modules.builder import Layer, ModuleBuilder, ModuleFunction
from qconvert.formats.torch.writers.elementwise import bounds_of
from qconvert.graph import Op

__all__ = ["WRITERS"]


def _binary(operator: str) -> ModuleFunction:
    """quantized::add and mul, with a Relu."""

    def write(op: Op, b: ModuleBuilder) -> None:
        name = f"quantized.{operator}_relu" if b.has_relu(op) else f"quantized.{operator}"
        b.close(op, b.call(name, *(b.stored_value(each) for each in op.inputs), *b.quantization_of(op.outputs[0])))

    return write


def write_hard_swish(op: Op, b: ModuleBuilder) -> None:
    """HardSwish."""
    b.set_node(op.outputs[0], b.layer(op, Layer("Hardswish", b.quantization_of(op.outputs[0])), b.stored_value(op.inputs[0])))


def write_leaky_relu(op: Op, b: ModuleBuilder) -> None:
    """LeakyRelu."""
    layer = Layer("LeakyReLU", (*b.quantization_of(op.outputs[0]), float(op["alpha"])))
    b.set_node(op.outputs[0], b.layer(op, layer, b.stored_value(op.inputs[0])))


def write_elu(op: Op, b: ModuleBuilder) -> None:
    """Elu."""
    layer = Layer("ELU", (*b.quantization_of(op.outputs[0]), float(op["alpha"])))
    b.set_node(op.outputs[0], b.layer(op, layer, b.stored_value(op.inputs[0])))


def write_celu(op: Op, b: ModuleBuilder) -> None:
    """Celu."""
    b.set_node(op.outputs[0], b.call("quantized.celu", b.stored_value(op.inputs[0]), *b.quantization_of(op.outputs[0]), float(op["alpha"])))


def _write_fixed_activation(operator: str) -> ModuleFunction:
    """An activation whose kernels fix the quantization of the result."""
    return lambda op, b: b.set_node(op.outputs[0], b.aten(operator, b.stored_value(op.inputs[0])))


def write_relu(op: Op, b: ModuleBuilder) -> None:
    """Relu of stored integers."""
    b.set_node(op.outputs[0], b.aten("relu", b.stored_value(op.inputs[0])))


def write_clip(op: Op, b: ModuleBuilder) -> None:
    """Clip of stored integers between numbers, which are rounded to the quantization."""
    low, high = bounds_of(op, b)
    scale, point = b.quantization_of(op.inputs[0])
    limits = float((0 - point) * scale) if low is None else low, float((255 - point) * scale) if high is None else high
    b.set_node(op.outputs[0], b.clamp(b.stored_value(op.inputs[0]), *limits))


def write_softmax(op: Op, b: ModuleBuilder) -> None:
    """Softmax along one axis."""
    b.set_node(
        op.outputs[0], b.layer(op, Layer("Softmax", (int(op["axis"]), *b.quantization_of(op.outputs[0]))), b.stored_value(op.inputs[0]))
    )


WRITERS: Mapping[str, ModuleFunction] = {
    "Add": _binary("add"),
    "Mul": _binary("mul"),
    "HardSwish": write_hard_swish,
    "LeakyRelu": write_leaky_relu,
    "Elu": write_elu,
    "Celu": write_celu,
    "Sigmoid": _write_fixed_activation("sigmoid"),
    "Tanh": _write_fixed_activation("tanh"),
    "HardSigmoid": _write_fixed_activation("hardsigmoid"),
    "Relu": write_relu,
    "Clip": write_clip,
    "Softmax": write_softmax,
}
