"""shift_to_symmetric: activations get the zero point 0 and keep their integers and scales; their float values move instead.

A tensor of float values r = scale * (q - zero point) becomes one of r' = scale * q = r + scale * zero point, for targets whose quantized
values have no zero point. Everything around makes up for it with ordinary operators in float:

- Conv, Gemm and MatMul with constant weights stay as they are: the shift of their data, times the sum of the weights of each output
  channel, and that of their result go into the bias, computed in float64 and rounded once to float32. They pad with real zero, which is
  scale * zero point now: a Pad stands before them, between Dequantize and Quantize. An activation that the result's quantization does not
  imply is a Clip in float, at the bounds that it has there.
- A MatMul of two activations is one of integers, less the shift of either times the sums of the other along the depth, in float32.
- Operators that move, choose or compare integers stay as they are: shifts on all sides are equal.
- Quantize and Dequantize, and the Dequantize and Quantize that a Requantize becomes, have an addition on their real side. All other
  operators run in float between such.
- Averages to their own quantization that round ties away from the stored zero, as TFLite's do, see shifted values: away from zero
  (passes/shifted_operators.py).
- Graph inputs and outputs keep type, scale and zero point, with a Reinterpret between; uint8 ones are written with plain numbers.

Exact but for ties: r / scale + zero point is rounded where r / scale was, and sums are float32. The names of the tensors and their old zero
points are noted in the metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from qconvert.errors import format_count
from qconvert.graph import Graph, Op, drop_keys
from qconvert.graph.metadata import SHIFTED
from qconvert.operators import is_dynamic, kind_of
from qconvert.passes.isolate_float import Isolating
from qconvert.passes.shifted_graph import Shifting, bypass_unsigned, from_unsigned, runs_in_float, to_unsigned
from qconvert.passes.shifted_operators import (
    is_shifted_product,
    is_ties_away_average,
    is_touched,
    join_averages,
    obstacle,
    shift_average,
    shift_linear,
    shift_product,
)
from qconvert.passes.stored_types import UNSIGNED, find_weights, separate_roles
from qconvert.plugins import Change, Cost, PassResult, Target
from qconvert.plugins.rules import quantized_data
from qconvert.rewriting import Rewriter


def shift_to_symmetric(graph: Graph, target: Target | None, scope: str = "asked") -> PassResult:
    """Shift the activations of the types in target.storage.symmetric_activations, or of all signed types if all shall be symmetric."""
    dtypes = tuple(UNSIGNED) if target is None or scope == "all" else target.storage.symmetric_activations
    joined = join_averages(graph) if "int8" in dtypes else graph
    plain = _drop_roundings(joined) if target is not None and target.storage.symmetric_activations else joined
    whole = separate_roles(bypass_unsigned(plain, target), dtypes)
    points = _points(whole, dtypes)
    whole, notes = Isolating(whole, lambda op: obstacle(whole, op, points), target).result() if points else (whole, ())
    points = _points(whole, dtypes)
    shifting = Shifting(whole, points, _find_fixed_tensors(whole))
    for name in graph.inputs:
        shifting.settle(name)
    for op in shifting:
        shifting.remove(op)
        shifting.source = op.source
        _emit(shifting, op, target)
    changed = shifting.finish()
    if changed.ops == whole.ops and not notes:
        return whole if whole.ops != graph.ops else graph, _describe_no_change(whole, target)
    changed, shifted = shifting.without_unread(changed)
    is_noted = shifted or any(runs_in_float(whole[name], target) for name in (*whole.inputs, *whole.outputs))
    changed = replace(changed, metadata={**changed.metadata, SHIFTED: json.dumps(shifted)} if is_noted else changed.metadata)
    return changed, (*notes, *(() if shifted else _describe_no_change(whole, target)), *_describe_changes(changed, shifted, shifting))


def _describe_no_change(graph: Graph, target: Target | None) -> tuple[str, ...]:
    """That a network for a target of symmetric activations has none to shift; nothing of graphs without quantized activations."""
    types = () if target is None else target.storage.symmetric_activations
    if not any(tensor.dtype in types for op in graph.ops for tensor in quantized_data(graph, op)):
        return ()
    return ("no activation has a zero point: nothing is shifted",)


def _drop_roundings(graph: Graph) -> Graph:
    """Drop the roundings of a source's kernels, which a target that computes in float has not; but for dynamic range."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op.attributes.get("arithmetic") and not is_dynamic(op) and not is_ties_away_average(graph, op):
            rewriter.replace(op, replace(op, attributes=drop_keys(op.attributes, "arithmetic")))
    return rewriter.finish()


def _points(graph: Graph, dtypes: tuple[str, ...]) -> dict[str, int]:
    """Return the zero points to take away, by tensor: of activations, and of constants that are data."""
    weights = find_weights(graph)
    return {tensor.name: q.point for tensor in graph.tensors.values()
            if (q := tensor.per_tensor) is not None and tensor.dtype in dtypes and q.point
            and not (tensor.is_constant and tensor.name in weights)}  # fmt: skip


def _find_fixed_tensors(graph: Graph) -> set[str]:
    """Return tensors that somebody needs as they are: a user, or an operator that takes integers for plain numbers."""
    literal = [op for op in graph.ops if kind_of(op).takes_stored]
    return {*graph.inputs, *graph.public}.union(*(op.names for op in literal))


def _emit(s: Shifting, op: Op, target: Target | None) -> None:
    """Emit what an operator becomes."""
    kind = kind_of(op)
    if kind.takes_stored:
        s.emit(op)
        for name in op.outputs:
            s.settle(name)
    elif is_shifted_product(s, op):
        shift_product(s, op)
    elif kind.sums_all_weights and is_touched(s, op):
        shift_linear(s, op)
    elif kind.requantizes and runs_in_float(s.graph[op.inputs[0]], target):
        from_unsigned(s, op)
    elif kind.requantizes and runs_in_float(s.graph[op.name], target):
        to_unsigned(s, op)
    elif kind.rule == "convert" and (s.shift(op.inputs[0]) or s.shift(op.name)):
        _convert(s, op)
    elif is_ties_away_average(s.graph, op) and s.shift(op.inputs[0]):
        shift_average(s, op)
    else:
        s.emit(replace(op, inputs=tuple(s.twin(name) for name in op.inputs), outputs=tuple(s.twin(name) for name in op.outputs)))
        for name in op.outputs:
            s.give_out(name)


def _convert(s: Shifting, op: Op) -> None:
    """Emit Quantize, Dequantize and Requantize with the difference of the shifts added in float."""
    name, result = op.inputs[0], op.name
    value = name if kind_of(op).quantizes else s.dequantize_shifted(name)
    if kind_of(op).dequantizes:
        s.plus(value, -s.shift(name), result)
    else:
        s.quantize(s.plus(value, s.shift(result) - s.shift(name)), result)


def _describe_changes(graph: Graph, shifted: Mapping[str, int], s: Shifting) -> list[Change | str]:
    count = sum(not graph[name].is_constant for name in shifted)
    said: list[Change | str] = (
        [f"{format_count(count, 'activation', 'have')} the zero point 0; their integers and scales are kept"] if count else []
    )
    said += [f"{number} {text}" for text, number in s.counts.items()]
    if s.biases:
        new = len(s.biases) - sum(s.biases.values())
        words = f"{format_count(len(s.biases), 'bias', 'include')} the shifts, in float32" + (f", {new} of them new" if new else "")
        said.append(Change(words, costs=tuple(Cost(name, None, None) for name in s.biases)))
    return said
