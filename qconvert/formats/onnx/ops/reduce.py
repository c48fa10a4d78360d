"""Reductions over axes."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]

#: The opset from which each reduction takes its axes as an input (ONNX operator changelog).
_AXES_AS_INPUT = {"ReduceSum": 13}
_AXES_AS_INPUT_OTHERS = 18


def write_reduce(op: Op, b: Builder) -> None:
    """A reduction on real values: axes are an input in newer opsets, an attribute in older ones."""
    inputs, axes = [b.real(op.inputs[0])], None
    if b.opset >= _AXES_AS_INPUT.get(op.kind, _AXES_AS_INPUT_OTHERS):
        inputs.append(b.stored(op.inputs[1]))
    else:
        axes = b.ints(op, 1)
    b.finish(op, b.node(op.kind, inputs, hint=f"{op.outputs[0]}/real_result", axes=axes, keepdims=int(op["keepdims"]))[0])


WRITERS: dict[str, WriteFunction] = {"ReduceMean": write_reduce}
