"""AveragePool and MaxPool."""

from __future__ import annotations

from typing import Any

from qconvert.formats.onnx.builder import Builder, WriteFunction, clip_range
from qconvert.formats.onnx.ops.conv import require_channels_first
from qconvert.graph import Op
from qconvert.ops import ACTIVATIONS

__all__ = ["WRITERS"]


def write_average_pool(op: Op, b: Builder) -> None:
    """AveragePool, padding not counted."""
    require_channels_first(op, b)
    b.finish(op, b.node("AveragePool", [b.real(op.inputs[0])], hint=f"{op.outputs[0]}/real_result", **_attributes(op))[0])


def write_max_pool(op: Op, b: Builder) -> None:
    """MaxPool on the stored integers where ONNX has it (int8 and uint8 from opset 12), else on real values."""
    require_channels_first(op, b)
    tensor = b.tensor(op.outputs[0])
    if tensor.dtype not in ("int8", "uint8"):
        b.finish(op, b.node("MaxPool", [b.real(op.inputs[0])], hint=f"{tensor.name}/real_result", **_attributes(op))[0])
        return
    pooled = b.node("MaxPool", [b.stored(op.inputs[0])], hint=f"{tensor.name}/unclipped", **_attributes(op))[0]
    if op["activation"]:
        b.clip_stored(pooled, tensor, *clip_range(tensor, ACTIVATIONS[op["activation"]]))
    else:
        b.rename(pooled, tensor.name)


def _attributes(op: Op) -> dict[str, Any]:
    auto = op["auto_pad"]
    return {
        "kernel_shape": list(op["kernel_shape"]),
        "strides": list(op["strides"]),
        "pads": list(op["pads"]) if auto == "NOTSET" else None,
        "auto_pad": None if auto == "NOTSET" else auto,
    }


WRITERS: dict[str, WriteFunction] = {"AveragePool": write_average_pool, "MaxPool": write_max_pool}
