"""quantize_operands: real constants beside quantized data become quantized too, so that the operator runs on integers.

A single value c is exact: the integer 1 or -1 on a grid of scale |c|. A list of values is put on a symmetric 8-bit grid (16-bit beside
16-bit data), and the note says the largest error. A division by constants becomes a multiplication by their reciprocals.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.graph import Array, Graph, Names, Op, Quantization, Tensor, integer_range
from qconvert.graph.kinds import KINDS
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Changes operators with a quantized result, at least one quantized operand, and real constants for the rest."""
    tensors: dict[str, Tensor] = {}
    unused = graph.names(tensors)
    ops: list[Op] = []
    count, largest = 0, 0.0
    for op in graph.ops:
        names = _real_constants(graph, op, target)
        if names:
            count += len(names)
            op, error = _quantized(graph, op, names, tensors, unused)
            largest = max(largest, error)
        ops.append(op)
    if not count:
        return graph, ()
    cost = f"by at most {largest:.2g} LSB of their grids" if largest else "exactly"
    return graph.evolve(tensors=tensors.values(), ops=ops), (f"{count} real operands of quantized operators are quantized, {cost}",)


def _runs_on_integers(kind: str, target: Target | None) -> bool:
    """Whether there is an integer kernel to gain; a Div becomes a Mul."""
    return target is None or not target.integer_kernels or ("Mul" if kind == "Div" else kind) in target.integer_kernels


def _real_constants(graph: Graph, op: Op, target: Target | None) -> list[str]:
    kind = KINDS[op.kind]
    if kind.rule != "real" or kind.sums_products or not graph[op.outputs[0]].is_quantized or not _runs_on_integers(op.kind, target):
        return []
    operands = [graph[name] for name in kind.data(op)]
    real = [tensor for tensor in operands if not tensor.is_quantized]
    known = all(tensor.dtype == "float32" and tensor.data is not None and np.isfinite(tensor.data).all() for tensor in real)
    if not known or len(real) == len(operands):
        return []
    names = [tensor.name for tensor in real]
    return [] if op.kind == "Div" and op.inputs[0] in names else names


def _quantized(graph: Graph, op: Op, names: list[str], tensors: dict[str, Tensor], unused: Names) -> tuple[Op, float]:
    renamed: dict[str, str] = {}
    error = 0.0
    dtype = "int16" if graph[op.outputs[0]].dtype in ("int16", "uint16") else "int8"
    for name in names:
        data = graph[name].data
        assert data is not None
        values = 1 / data.astype(np.float64) if op.kind == "Div" else data.astype(np.float64)
        if not np.isfinite(values).all():
            return op, 0.0
        grid, stored = _grid(values, dtype)
        new = unused.fresh(f"{name}/{dtype}")
        tensors[new] = Tensor(new, dtype, data.shape, stored, grid)
        renamed[name] = new
        error = max(error, float(np.abs(dequantize(stored, grid) - values).max(initial=0.0)) / float(grid.scale[0]))
    inputs = tuple(renamed.get(name, name) for name in op.inputs)
    return replace(op, kind="Mul" if op.kind == "Div" else op.kind, inputs=inputs), error if error > 1e-6 else 0.0


def _grid(values: Array, dtype: str) -> tuple[Quantization, Array]:
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    steps = 1 if np.isin(np.abs(values), (0.0, largest)).all() else integer_range(dtype)[1]
    grid = Quantization.per_tensor(largest / steps)
    return grid, quantize(values, grid, dtype)
