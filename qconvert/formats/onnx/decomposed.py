"""Operators that ONNX decomposes into several nodes; how a reader finds them again: formats/reading/decomposed.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qconvert.formats.onnx.noted_quantizations import apply_noted_quantizations
from qconvert.formats.reading.decomposed import restore_operators
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import is_dynamic

__all__ = ["is_decomposed", "turned_name", "with_decomposed"]


#: Nodes around an operator that say how values are stored, or nothing.
_STORAGE = frozenset(("QuantizeLinear", "DequantizeLinear", "Identity"))

#: Nodes that a fused activation becomes.
_ACTIVATIONS = frozenset(("Relu", "Clip"))

#: Kinds that are found again without a note, whatever nodes they become.
_RECOGNIZED = frozenset(
    ("Quantize", "Dequantize", "Requantize", "Reinterpret", "Opaque", "Gemm", "Clip", "Cast", "Identity", "Pad", "Conv", "ConvTranspose")
)  # fmt: skip


#: Kinds whose own node is read as several operators.
_NEVER_ALONE = frozenset(("Sum",))


def is_decomposed(op: Op, nodes: Sequence[str]) -> bool:
    """Whether the nodes, by their operators, that were written for `op` are others than the one that ONNX has for it."""
    if is_dynamic(op):  # DynamicQuantizeLinear and an integer product are found without a note (passes/fuse_dynamic.py)
        return op["arithmetic"] != "dynamic_tensor" or op.kind in ("ConvTranspose", "GRU", "RNN") or "Scan" in nodes
    core = [name for name in nodes if name not in _STORAGE]
    if op.attributes.get("activation") and core and core[-1] in _ACTIVATIONS:
        core.pop()
    recognized = op.kind in _RECOGNIZED and not (op.kind in ("Quantize", "Requantize") and "Round" in core)
    return op.kind in _NEVER_ALONE or (not recognized and core != [op.kind])


def with_decomposed(graph: Graph, rewritten: Callable[[Graph], Graph]) -> Graph:
    """The graph with the operators that its metadata note in place of the nodes that they are decomposed into; see restore_operators()."""
    return restore_operators(graph, rewritten, _stored_elsewhere, apply_noted_quantizations)


def _stored_elsewhere(graph: Graph, op: Op) -> list[Tensor]:
    """The constants of an operator that stand in the body of a loop, or in another form."""
    listed = [tensor for name in op.inputs if name and name not in graph.tensors for tensor in _in_functions(graph, name)]
    return [*listed, *_turned_weights(graph, op)]


def _in_functions(graph: Graph, name: str) -> list[Tensor]:
    found = (function.tensors.get(name) for function in graph.functions.values())
    return [tensor for tensor in found if tensor is not None and tensor.is_constant][:1]


def _turned_weights(graph: Graph, op: Op) -> list[Tensor]:
    """The weights of a product that rounds its data when it runs, of which the file has the columns as rows."""
    name = op.inputs[1] if is_dynamic(op) and len(op.inputs) > 1 else ""
    stored = graph.tensors.get(turned_name(name))
    if not name or name in graph.tensors or stored is None or stored.data is None or stored.data.ndim < 2:
        return []
    data = stored.data.swapaxes(-1, -2)
    return [Tensor(name, stored.dtype, data.shape, data)]


def turned_name(weights: str) -> str:
    """What a file calls weights whose columns are rows."""
    return f"{weights}/turned"
