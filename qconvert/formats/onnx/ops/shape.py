"""Data movement: on stored integers, which it never changes."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_reshape(op: Op, b: Builder) -> None:
    """Reshape."""
    b.node("Reshape", [b.stored(op.inputs[0]), b.stored(op.inputs[1])], op.outputs)


def write_transpose(op: Op, b: Builder) -> None:
    """Transpose."""
    b.node("Transpose", [b.stored(op.inputs[0])], op.outputs, perm=list(op["perm"]))


def write_concat(op: Op, b: Builder) -> None:
    """Concat: of integers where all share one quantization, else of real values."""
    result = b.tensor(op.outputs[0])
    equal = all(b.tensor(name).quantization == result.quantization for name in op.inputs)
    if equal and not op["activation"]:
        b.node("Concat", [b.stored(name) for name in op.inputs], op.outputs, axis=int(op["axis"]))
    else:
        b.finish(op, b.node("Concat", b.reals(op), hint=f"{result.name}/real_result", axis=int(op["axis"]))[0])


def write_pad(op: Op, b: Builder) -> None:
    """Pad of the stored integers: real zero is the zero point."""
    tensor = b.tensor(op.outputs[0])
    value = op.inputs[2] if len(op.inputs) > 2 else ""
    if value:
        filler = b.stored(value)
    else:
        zero = int(tensor.quantization.zero_point[0]) if tensor.quantization is not None else 0
        filler = b.const(np.array(zero, tensor.dtype), f"{tensor.name}/padding")
    b.node("Pad", [b.stored(op.inputs[0]), b.stored(op.inputs[1]), filler], op.outputs, mode=op["mode"])


WRITERS: dict[str, WriteFunction] = {
    "Reshape": write_reshape,
    "Transpose": write_transpose,
    "Concat": write_concat,
    "Pad": write_pad,
}
