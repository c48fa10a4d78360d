"""Joining tensors, and other quantizations for the same integers."""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.formats.torch.quantized_modules.builder import ModuleBuilder, ModuleFunction
from qconvert.graph import Op

__all__ = ["WRITERS", "write_reinterpret"]


def write_concat(op: Op, b: ModuleBuilder) -> None:
    """Concat of bytes: moved where all have one quantization, else rounded onto the result's."""
    result = b.tensor(op.outputs[0])
    if all(b.tensor(name).shares_quantization(result) for name in op.inputs):
        b.close(op, b.aten("cat", [b.stored_value(each) for each in op.inputs], int(op["axis"])))
        return
    name = "quantized.cat_relu" if b.has_relu(op) else "quantized.cat"
    b.close(op, b.call(name, [b.stored_value(each) for each in op.inputs], int(op["axis"]), *b.quantization_of(op.outputs[0])))


def write_reinterpret(op: Op, b: ModuleBuilder) -> None:
    """Reinterpret: the same integers under another quantization, or none."""
    source, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    node = b.aten("int_repr", b.stored_value(source.name)) if source.is_quantized else b.stored_value(source.name)
    b.set_node(result.name, node if result.quantization is None else b.make_quantized_tensor(node, result.quantization, result.name))


WRITERS: Mapping[str, ModuleFunction] = {"Concat": write_concat}
