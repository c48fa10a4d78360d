"""Which shared tensors each shared tensor is computed from, in the source and in the result: an operator that reads another tensor than
in the source may compute nearly the same."""

from __future__ import annotations

from collections.abc import Collection

from qconvert.graph import Graph, Op
from qconvert.graph.kinds import KINDS

__all__ = ["moved_edges", "vanished"]


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


def vanished(graph: Graph, other: Graph) -> dict[str, str]:
    """Quantized results of the source's operators that the result has under no name, in words: an operator, or its rounding, is left out.

    What only moves, converts or clips integers on one grid may be gone, since its values are still there.
    """
    writers, readers = {op.source for op in other.ops if op.source}, graph.consumers()
    found = {}
    for op in graph.ops:
        for name in op.outputs:
            if name in other.tensors or not name or not graph[name].is_quantized or not _rounds(graph, op):
                continue
            known = op.source in writers or any(
                item.startswith(f"{name}/") and _scale(other, item) == _scale(graph, name) for item in other.tensors
            )
            read = readers.get(name, [])
            fused = bool(read) and all(_clips(graph, reader) and reader.outputs[0] in other.tensors for reader in read)
            if not known and not fused and not _clips(graph, op):
                behind = [output for reader in read for output in reader.outputs if output in other.tensors]
                without = f", and {_listed(behind)} is computed without it" if behind else ""
                found[name] = f"nothing in the result stands for it{without}"
    return found


def _clips(graph: Graph, op: Op) -> bool:
    """Whether an operator clips integers on one grid, which another that writes or reads them may do."""
    return op.kind in ("Relu", "Clip") and graph[op.inputs[0]].quantization == graph[op.outputs[0]].quantization


def _rounds(graph: Graph, op: Op) -> bool:
    """Whether an operator rounds onto a grid; a Quantize of a graph's input may be done by the program around."""
    if op.kind in ("Quantize", "Requantize"):
        return op.inputs[0] not in graph.inputs and not _keeps_values(graph, op, op.inputs[0])
    return KINDS[op.kind].rule == "real"


def _scale(graph: Graph, name: str) -> float:
    grid = graph[name].quantization
    return 0.0 if grid is None else float(grid.scale.flat[0])


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
        names = [name for name in op.inputs if name and op.kind not in ("Shape", "Size")]  # sizes are no values
        origins = frozenset().union(*(frozenset([name]) if name in shared else nearest.get(name, frozenset()) for name in names))
        for name in op.outputs:
            nearest[name] = origins
            if name in shared:
                found[name] = origins
    return found


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "constants"
