"""lower_missing: operators that the target's runtime lacks become others that it has, by the formulas of operators/formulas/.

The writer of a format puts a formula in the place of what the format lacks; here it is the runtime that has no kernel, as a row of the
target's kernels says (`runs="nothing"`), or the target's rules say of the file that would be written (tflite-micro has no TILE, LiteRT has
one). Each operator of a formula is held against the same rows and rules, alone, and is lowered in its turn where it does not pass. A
constant with scales along an axis, before a Dequantize, is float there: tflite-micro reads the first scale for all.
"""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.errors import format_count, format_counts
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.schema import count_kinds
from qconvert.operators import kind_of
from qconvert.operators.formulas import formulas_of
from qconvert.operators.shapes_and_functions import all_graphs, all_ops
from qconvert.passes.constants import fold_float_constants
from qconvert.plugins import PassResult, Target, operators
from qconvert.rewriting.lowering import legality, lower


def lower_missing(graph: Graph, target: Target | None) -> PassResult:
    """Lower the operators that have a formula of which all is accepted; constants that the runtime cannot dequantize become float."""
    if target is None or (target.own_rules is None and not target.kernels.missing):
        return graph, ()
    lowered, composed = _lower_operators(graph, target)
    unpacked, floats = _unpack_constants(lowered, target)
    return unpacked, (*composed, *floats)


def _lower_operators(graph: Graph, target: Target) -> PassResult:
    if not any(map(formulas_of, all_ops(graph))):
        return graph, ()
    known, writers, lacks = {id(op) for op in all_ops(graph)}, operators(target.format, "write"), target.kernels.lacks
    takes = legality(writers) if writers else None  # a format of a plugin may have one function that writes all kinds
    lacking = {
        id(op)
        for _, inner in all_graphs(graph)
        for op in inner.ops
        if formulas_of(op) and (lacks(op) or target.has_no_kernel(inner.tensors, op))
    }

    def legal(tensors: Mapping[str, Tensor], op: Op) -> str:
        if id(op) in lacking or (id(op) not in known and lacks(op)):
            return "no kernel"
        if id(op) in known:
            return ""
        return (takes(tensors, op) if takes is not None else "") or next(
            (broken.rule for broken in target.violations_alone(tensors, op)), ""
        )

    lowered = lower(graph, legal)
    counts = count_kinds(op for op in all_ops(graph) if id(op) in lowered.reasons)
    return lowered.graph, (f"composed of operators that {target.name} has: {format_counts(counts)}",) if counts else ()


def _unpack_constants(graph: Graph, target: Target) -> PassResult:
    unpacked = [
        op.name
        for op in graph.ops
        if kind_of(op).dequantizes and graph[op.inputs[0]].is_constant and target.violations_alone(graph.tensors, op)
    ]
    if not unpacked:
        return graph, ()
    note = f"{format_count(len(unpacked), 'constant')} in float: {target.name} has no kernel that dequantizes by these scales"
    return fold_float_constants(graph, unpacked), (note,)
