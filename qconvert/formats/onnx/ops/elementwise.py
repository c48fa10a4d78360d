"""Arithmetic on pairs of tensors, with broadcasting."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS"]


def write_same_named(op: Op, b: Builder) -> None:
    """An operator that ONNX has under the same name, on real values, without attributes."""
    b.finish(op, b.node(op.kind, b.reals(op), hint=f"{op.outputs[0]}/real_result")[0])


WRITERS: dict[str, WriteFunction] = {kind: write_same_named for kind in ("Add", "Sub", "Mul", "Div")}
