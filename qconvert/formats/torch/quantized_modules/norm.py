"""Normalizations of bytes, whose numbers stay real."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.quantized_modules.builder import Layer, ModuleBuilder, ModuleFunction
from qconvert.graph import Array, Op

__all__ = ["WRITERS"]


def write_batch_norm(op: Op, b: ModuleBuilder) -> None:
    """BatchNormalization by its stored mean and variance."""
    values = [b.real_vector(name) for name in op.inputs[1:]]
    parameters = dict(zip(("weight", "bias", "running_mean", "running_var"), values, strict=True))
    arguments = (len(values[0]), float(op["epsilon"]))
    layer = Layer(f"BatchNorm{b.rank(op) - 2}d", arguments, b.quantization_of(op.outputs[0]), parameters=parameters)
    b.close(op, b.layer(op, layer, b.stored_value(op.inputs[0])))


def _vector(b: ModuleBuilder, name: str, sizes: list[int], default: float) -> Array:
    """The float values of a parameter, or the default where it is left out."""
    return b.real_vector(name) if name else np.full(sizes, default, np.float32)


def write_layer_norm(op: Op, b: ModuleBuilder) -> None:
    """LayerNormalization over the axes from `axis` on."""
    sizes = [int(size) for size in b.shape(op, op.inputs[0])[int(op["axis"]) % b.rank(op) :]]
    names = (*op.inputs[1:3], "", "")[:2]
    values = [_vector(b, name, sizes, value) for name, value in zip(names, (1.0, 0.0), strict=True)]
    layer = Layer("LayerNorm", (sizes, *values, *b.quantization_of(op.outputs[0]), float(op["epsilon"])))
    b.set_node(op.outputs[0], b.layer(op, layer, b.stored_value(op.inputs[0])))


def write_group_norm(op: Op, b: ModuleBuilder) -> None:
    """GroupNormalization."""
    values = [b.real_vector(name) for name in op.inputs[1:3]]
    arguments = (int(op["num_groups"]), len(values[0]), *values, *b.quantization_of(op.outputs[0]), float(op["epsilon"]))
    b.set_node(op.outputs[0], b.layer(op, Layer("GroupNorm", arguments), b.stored_value(op.inputs[0])))


def write_instance_norm(op: Op, b: ModuleBuilder) -> None:
    """InstanceNormalization."""
    values = [b.real_vector(name) for name in op.inputs[1:3]]
    arguments = (len(values[0]), *values, *b.quantization_of(op.outputs[0]), float(op["epsilon"]))
    b.set_node(op.outputs[0], b.layer(op, Layer(f"InstanceNorm{b.rank(op) - 2}d", arguments), b.stored_value(op.inputs[0])))


WRITERS: Mapping[str, ModuleFunction] = {
    "BatchNormalization": write_batch_norm,
    "LayerNormalization": write_layer_norm,
    "GroupNormalization": write_group_norm,
    "InstanceNormalization": write_instance_norm,
}
