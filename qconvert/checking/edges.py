"""Which shared tensors each shared tensor is computed from, in the source and in the result: an operator that reads another tensor than
in the source may compute nearly the same."""

from __future__ import annotations

from collections.abc import Collection

from qconvert.graph import Graph, Op

__all__ = ["moved_edges"]


def moved_edges(graph: Graph, other: Graph) -> dict[str, str]:
    """The tensors that the result computes from others than the source does, by name, in words.

    Args:
        graph, other: the canonical graphs of source and result; tensors of one name are the same.
    """
    shared = {name for name, tensor in graph.tensors.items() if name in other.tensors and not tensor.is_constant}
    shared = {name for name in shared if not other[name].is_constant}
    roots = _roots(graph, shared)
    before, after = _origins(graph, shared), _origins(other, shared)
    found = {}
    for name, origins in before.items():
        if name in after:
            old, new = ({roots[item] for item in items if item in roots} for items in (origins, after[name]))
            if old != new:
                found[name] = f"is computed from {_listed(new)} instead of {_listed(old)}"
    return found


def _roots(graph: Graph, shared: Collection[str]) -> dict[str, str]:
    """Each shared tensor of data with the one that holds the same values under its first name; sizes and indices, which are folded where
    they are known, are left out."""
    found: dict[str, str] = {}
    writers = graph.producers()
    for op in graph.ops:
        for name in (*op.inputs, *op.outputs):
            if name in shared and name not in found and ("int" not in graph[name].dtype or graph[name].is_quantized):
                writer = writers.get(name)
                root = name if writer is None or not writer.inputs else found.get(writer.inputs[0], name)
                found[name] = root if writer is not None and _keeps_values(graph, writer, root) else name
    return found


def _keeps_values(graph: Graph, op: Op, root: str) -> bool:
    """Whether an operator gives the values of `root` again: real, under another name, or back on the same grid."""
    a, b = graph[root], graph[op.outputs[0]]
    return op.kind in ("Dequantize", "Identity") or (
        op.kind in ("Quantize", "Requantize") and (a.dtype, a.quantization) == (b.dtype, b.quantization)
    )


def _origins(graph: Graph, shared: Collection[str]) -> dict[str, frozenset[str]]:
    """For each shared tensor that is computed, the shared ones next before it."""
    nearest: dict[str, frozenset[str]] = {}
    found = {}
    for op in graph.ops:
        names = [name for name in op.inputs if name]
        origins = frozenset().union(*(frozenset([name]) if name in shared else nearest.get(name, frozenset()) for name in names))
        for name in op.outputs:
            nearest[name] = origins
            if name in shared:
                found[name] = origins
    return found


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "constants"
