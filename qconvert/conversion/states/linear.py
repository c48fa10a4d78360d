"""Linear layers as the graph of a network has them: exporters write a product with turned weights and a sum, the module has one of both."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op
from qconvert.plugins import pass_named

__all__ = ["with_linear_layers"]


def with_linear_layers(graph: Graph) -> Graph:
    """The graph with a Gemm for each product with a matrix of constants; a matrix keeps the name under which it is stored."""
    return pass_named("matmul_to_gemm").run(_with_named_weights(graph), None)[0]


def _with_named_weights(graph: Graph) -> Graph:
    """A product with a transposed constant as one that says that its weights are turned."""
    producers = graph.producers()
    ops: list[Op] = []
    for op in graph.ops:
        before = producers.get(op.inputs[1]) if op.kind == "MatMul" and not op["trans_b"] else None
        if before is not None and before.kind == "Transpose" and before["perm"] == (1, 0) and graph[before.inputs[0]].is_constant:
            op = replace(op, inputs=(op.inputs[0], before.inputs[0], *op.inputs[2:])).with_attributes(trans_b=1)
        ops.append(op)
    return graph.evolve(ops=ops)
