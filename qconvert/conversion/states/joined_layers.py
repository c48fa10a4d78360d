"""Linear layers that a network has as one and its file as several, or under another name: versions of transformers differ in that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.conversion.states.network import member, module_of
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of

#: A layer of a network -> the layers of a file whose outputs, one after another, are its own (conversion_mapping.py of transformers).
PARTS_OF_LAYERS: Mapping[str, tuple[str, ...]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "lm_head": ("embed_out",),
}


def split_joined_layers(graph: Graph, known: Mapping[str, Tensor]) -> Graph:
    """Return the graph with the layers that the file has, each of them a product of its own, and their results joined.

    Args:
        graph: whose linear layers are Gemm.
        known: the tensors of the file, by names of the graph.
    """
    splitting = _Splitting(graph, known)
    ops = [part for op in graph.ops for part in splitting.split(op)]
    return graph.evolve(tensors=splitting.tensors.values(), ops=ops) if splitting.tensors else graph


class _Splitting:
    def __init__(self, graph: Graph, known: Mapping[str, Tensor]) -> None:
        self._graph, self._known = graph, known
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)

    def split(self, op: Op) -> list[Op]:
        """Return the operators that compute what a layer does; itself where the file has it as it is."""
        kind = kind_of(op)
        modules = _find_modules(op.inputs[1], self._known) if kind.has_weights and kind.is_matrix_product else ()
        sizes = [(self._known[member(module, "weight")].static_shape or (0,))[0] for module in modules]
        constants = [self._graph[name] for name in op.inputs[1:] if name]
        if not modules or any(constant.data is None or len(constant.data) != sum(sizes) for constant in constants):
            return [op]
        shape = self._graph[op.outputs[0]].shape or ()
        ops = []
        for module, end, size in zip(modules, np.cumsum(sizes), sizes, strict=True):
            inputs = [op.inputs[0]]
            for part, constant in zip(("weight", "bias"), constants, strict=False):
                assert constant.data is not None
                rows = constant.data[end - size : end]
                inputs.append(self._add(member(module, part), replace(constant, shape=rows.shape, data=rows)))
            result = op.outputs[0]
            if len(modules) > 1:
                result = self._add(f"{module}/result", replace(self._graph[result], shape=(*shape[:-1], size)))
            ops.append(replace(op, inputs=tuple(inputs), outputs=(result,)))
        joined = op.derive("Concat", tuple(part.outputs[0] for part in ops), op.outputs, axis=len(shape) - 1)
        return [*ops, joined] if len(modules) > 1 else ops

    def _add(self, name: str, tensor: Tensor) -> str:
        fresh = self._names.fresh(name)
        self.tensors[fresh] = replace(tensor, name=fresh)
        return fresh


def _find_modules(weight: str, known: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the layers of the file that a layer of the network with this weight consists of; none where the file has it as it is."""
    around, _, own = module_of(weight).rpartition(".")
    modules = tuple(member(around, part) for part in PARTS_OF_LAYERS.get(own, ()))
    return modules if weight not in known and all(member(module, "weight") in known for module in modules) else ()
