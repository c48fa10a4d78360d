"""store_activations: 8-bit activations are stored as the integer type that the target runs fastest.

Exact: every stored integer and its zero point move by 128 together, so the real values stay as they are. Graph inputs and outputs
keep the type that the model has; a Requantize stands between.
"""

from __future__ import annotations

from qconvert.graph import Graph, Op
from qconvert.passes.stored_types import change_storage, needs_storage
from qconvert.plugins import Target

__all__ = ["run", "weight_inputs"]


def weight_inputs(op: Op) -> tuple[int, ...]:
    """Positions of the inputs that hold weights and biases when they are constant: their storage is not the activations'."""
    kinds = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (0, 1), "Dequantize": (0,)}
    return kinds.get(op.kind, ())


def run(graph: Graph, target: Target) -> tuple[Graph, tuple[str, ...]]:
    """Shifts all 8-bit quantized activations to target.activations; constants that are data, not weights, go along."""
    other = {"uint8": "int8", "int8": "uint8"}.get(target.activations)
    if other is None:
        return graph, ()
    weights = {op.inputs[i] for op in graph.ops for i in weight_inputs(op) if i < len(op.inputs)}
    moved = [
        tensor
        for tensor in graph.tensors.values()
        if tensor.dtype == other and tensor.is_quantized and not (tensor.is_constant and tensor.name in weights)
    ]
    if not moved:
        return graph, ()
    changed, count = change_storage(graph, moved, {other: target.activations}, keeps=needs_storage, keep_io=True)
    offset = 128 if other == "int8" else -128
    return changed, (f"{count} {other} activations are stored as {target.activations} (integer and zero point + {offset})",)
