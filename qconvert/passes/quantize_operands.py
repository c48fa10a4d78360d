"""quantize_operands: real constants next to quantized data become quantized too, so that the operator runs on integers.

A single value c is exact: the integer 1 or -1 with a quantization of scale |c|, or 64 and c / 64 for slopes of a PRelu. So are values that
an operator chooses or copies (Concat, Max, Where): they are rounded to the result's quantization. A list of values gets a symmetric 8-bit
quantization (16-bit next to 16-bit data), stored as unsigned next to unsigned data, and the note says the largest error. A division by
constants becomes a multiplication by their reciprocals. Quantized operands of 8 bits next to data of int16 become int16, less their zero
points, which is exact: one operator reads one type.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.operators import kind_of
from qconvert.passes.quantizations.scales_and_costs import cost
from qconvert.passes.stored_types import SIGNED, UNSIGNED, shift_to_dtype
from qconvert.plugins import Change, Cost, PassResult, Target, describe_worst
from qconvert.rewriting import Rewriter

#: The integer of a PRelu's only slope. LiteRT's PRELU rounds data times slope twice, first to parts of a step, which are finer for larger
#: integers: its results are up to 0.75 off with the integer 1 (measured with LiteRT 2.3).
_SLOPE = 64


def quantize_operands(graph: Graph, target: Target | None) -> PassResult:
    """Change operators with a quantized result, at least one quantized operand, and real constants for the rest."""
    rewriter = Rewriter(graph)
    count, widened, costs = 0, 0, list[Cost]()
    inverted = False
    for old in rewriter:
        op, narrow, names = old, _narrow_operands(graph, old), _real_constants(graph, old, target)
        if names:
            count += len(names)
            inverted |= _divides(op)
            op, found = _quantize_constants(rewriter, op, names)
            costs += found
        for name in narrow:
            new = _widen_to_int16(rewriter, graph[name])
            op = op.with_names({name: new})
            widened += 1
        if op is not old:
            rewriter.replace(old, op)
    wide = (
        (Change(f"{format_count(widened, 'operand')} of 8 bits that are combined with data of 16 bits become 16 bits wide", exact=True),)
        if widened
        else ()
    )
    if not count:
        return rewriter.finish(), wide
    words = f"{count} float operands of quantized operators are quantized"
    note = Change(f"{words}, {describe_worst(costs)}", costs=tuple(costs)) if costs else Change(words, exact=not inverted)
    return rewriter.finish(), (*wide, note)


def _divides(op: Op) -> bool:
    """Whether an operator becomes a multiplication by reciprocals."""
    return kind_of(op).product_sign < 0


def _multiplied(op: Op) -> Op:
    return replace(op, kind="Mul") if _divides(op) else op


def _runs_on_integers(op: Op, dtype: str, target: Target | None) -> bool:
    """Whether there is an integer kernel to gain, for data of as many bits."""
    if target is None:
        return True
    types = target.kernels.types(_multiplied(op))
    return types is not None and (not types or not {dtype, f"u{dtype}", dtype.removeprefix("u")}.isdisjoint(types))


def _real_constants(graph: Graph, op: Op, target: Target | None) -> list[str]:
    kind = kind_of(op)
    if kind.rule != "real" or kind.sums_products:
        return []
    result = graph[op.name]
    if not result.is_quantized or not _runs_on_integers(op, result.dtype, target):
        return []
    operands = [graph[name] for name in kind.data(op)]
    real = [tensor for tensor in operands if not tensor.is_quantized]
    known = all(tensor.dtype == "float32" and tensor.data is not None and np.isfinite(tensor.data).all() for tensor in real)
    if not known or len(real) == len(operands):
        return []
    names = [tensor.name for tensor in real]
    return [] if _divides(op) and op.inputs[0] in names else names


def _narrow_operands(graph: Graph, op: Op) -> list[str]:
    """Return the quantized tensors of 8 bits that an operator reads as data next to int16, weights left out."""
    kind = kind_of(op)
    if kind.rule != "real" or kind.has_weights or not op.outputs or graph[op.name].dtype != "int16":
        return []
    operands = [graph[name] for name in dict.fromkeys(kind.data(op))]
    if all(tensor.is_constant or tensor.dtype != "int16" for tensor in operands):
        return []
    return [tensor.name for tensor in operands if tensor.dtype in ("int8", "uint8") and tensor.per_tensor is not None]


def _widen_to_int16(rewriter: Rewriter, tensor: Tensor) -> str:
    """Add a tensor as int16, less its zero point."""
    quantization = Quantization.per_tensor(tensor.require_quantization().step)
    if tensor.is_constant:
        return rewriter.constant(f"{tensor.name}/int16", tensor.steps().astype(np.int16), quantization=quantization)
    wide = rewriter.add(f"{tensor.name}/int16", replace(tensor, dtype="int16", quantization=quantization))
    rewriter.emit(Op("Requantize", (tensor.name,), (wide,)))
    return wide


def _quantize_constants(rewriter: Rewriter, op: Op, names: list[str]) -> tuple[Op, list[Cost]]:
    """Return the operator with quantized constants in the place of those of these names, and what they cost."""
    renamed: dict[str, str] = {}
    costs: list[Cost] = []
    result = rewriter[op.name]
    dtype = "int16" if result.dtype in ("int16", "uint16") else "int8"
    for name in names:
        data = rewriter[name].data
        assert data is not None
        values = 1 / data.astype(np.float64) if _divides(op) else data.astype(np.float64)
        if not np.isfinite(values).all():
            return op, []
        if kind_of(op).chooses and result.per_tensor is not None:
            stored = quantize(values, result.per_tensor, result.dtype)
            renamed[name] = rewriter.constant(f"{name}/{dtype}", stored, result.dtype, result.quantization)
            continue
        quantization, stored = _quantization(values, dtype, _SLOPE if op.kind == "PRelu" else 1)
        renamed[name] = rewriter.constant(f"{name}/{dtype}", stored, dtype, quantization)
        if result.dtype in SIGNED:
            rewriter.define(shift_to_dtype(rewriter[renamed[name]], UNSIGNED[dtype]))
        error = dequantize(stored, quantization) - values
        if np.abs(error).max(initial=0.0) > 1e-6 * quantization.step:  # else only the scale's own rounding to float32
            found = cost(name, values, error, quantization.scale)
            costs += [found] if found is not None else []
    return _multiplied(op).with_names(renamed), costs


def _quantization(values: Array, dtype: str, one: int) -> tuple[Quantization, Array]:
    """Return a symmetric quantization of values and their integers: `one` for a single value, whose scale is exact."""
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    steps = one if np.isin(np.abs(values), (0.0, largest)).all() else integer_range(dtype)[1]
    quantization = Quantization.per_tensor(largest / steps)
    return quantization, quantize(values, quantization, dtype)
