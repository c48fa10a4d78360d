"""store_activations: 8-bit activations are stored as the integer type that the target runs fastest.

Exact: every stored integer and its zero point move by 128 together, so the real values stay as they are. Graph inputs and outputs
keep the type that the model has; a Requantize stands between.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Tensor
from qconvert.ops import OPS
from qconvert.plugins import Target

__all__ = ["run", "weight_inputs"]

_SHIFT = {("int8", "uint8"): 128, ("uint8", "int8"): -128}


def weight_inputs(op: Op) -> tuple[int, ...]:
    """Positions of the inputs that hold weights and biases when they are constant: their storage is not the activations'."""
    kinds = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (0, 1), "Dequantize": (0,)}
    return kinds.get(op.kind, ())


def run(graph: Graph, target: Target) -> tuple[Graph, tuple[str, ...]]:
    """Shifts all 8-bit quantized activations to target.activations; constants that are data, not weights, go along."""
    other = {"uint8": "int8", "int8": "uint8"}.get(target.activations)
    if other is None:
        return graph, ()
    offset = _SHIFT[other, target.activations]
    weights = {op.inputs[i] for op in graph.ops for i in weight_inputs(op) if i < len(op.inputs)}

    def is_moved(tensor: Tensor) -> bool:
        data = tensor.is_constant and tensor.name not in weights
        return tensor.dtype == other and tensor.quantization is not None and (data or not tensor.is_constant)

    moved = {t.name: _shifted(t, target.activations, offset) for t in graph.tensors.values() if is_moved(t)}
    if not moved:
        return graph, ()
    border: dict[str, str] = {}
    extra: list[Tensor] = []
    for name in (*graph.inputs, *graph.outputs):
        if name in moved and name not in border:
            border[name] = graph.fresh_name(f"{name}/{target.activations}")
            extra.append(replace(moved.pop(name), name=border[name]))
    before = [Op("Requantize", (name,), (border[name],)) for name in graph.inputs if name in border]
    after = [Op("Requantize", (border[name],), (name,)) for name in graph.outputs if name in border and name not in graph.inputs]
    ops = [_rename(op, border) for op in graph.ops]
    changed = graph.evolve(tensors=[*moved.values(), *extra], ops=[*before, *ops, *after])
    count = sum(not tensor.is_constant for tensor in (*moved.values(), *extra))
    return changed, (f"{count} {other} activations are stored as {target.activations} (integer and zero point + {offset})",)


def _shifted(tensor: Tensor, dtype: str, offset: int) -> Tensor:
    assert tensor.quantization is not None
    data = None if tensor.data is None else (tensor.data.astype(np.int16) + offset).astype(dtype)
    return replace(tensor, dtype=dtype, data=data, quantization=tensor.quantization.shifted(offset))


def _rename(op: Op, names: dict[str, str]) -> Op:
    """The operator between the border tensors; shape-like inputs are never quantized, so all names can be replaced."""
    assert op.kind in OPS
    return replace(
        op,
        inputs=tuple(names.get(name, name) for name in op.inputs),
        outputs=tuple(names.get(name, name) for name in op.outputs),
    )
