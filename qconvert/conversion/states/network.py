"""The graph of a network without quantization, and which modules its operators are of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from qconvert.conversion.states.names import module_of
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.plugins import Parameters

__all__ = ["PARTS", "Network"]

#: How PyTorch calls the constants of a module, by the kind of the operator and the place among its inputs.
PARTS: Mapping[str, Mapping[int, str]] = {
    **{key: {1: "weight", 2: "bias"} for key in ("Conv", "ConvTranspose", "Gemm")},
    **{key: {1: "weight"} for key in ("MatMul", "PRelu", "RMSNormalization")},
    **{key: {1: "weight", 2: "bias"} for key in ("LayerNormalization", "GroupNormalization", "InstanceNormalization")},
    "BatchNormalization": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    "Gather": {0: "weight"},
}
_REPEATED = re.compile(r"_\d+$")


class Network:
    """A graph that is changed step by step.

    Args:
        graph: without quantization.
        scopes: tensor -> the module that computes it, where the file says so.
        parameters: by the names of the graph.

    Attributes:
        ops: the operators as they are now.
        tensors: those that are new or changed.
        own: names of the modules that the parameters are of.
    """

    def __init__(self, graph: Graph, scopes: Mapping[str, str], parameters: Parameters) -> None:
        self.graph, self.scopes, self.parameters = graph, scopes, parameters
        self.ops: list[Op] = list(graph.ops)
        self.tensors: dict[str, Tensor] = {}
        self.names = graph.names(self.tensors)
        modules = [*parameters.folded, *parameters.results, *parameters.data, *parameters.dynamic]
        self.own = frozenset([*(module_of(name) for name in parameters.tensors), *modules])
        self._consumers: dict[str, list[Op]] | None = None
        self._producers: dict[str, Op] | None = None

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors.get(name) or self.graph[name]

    def constant(self, name: str) -> Tensor | None:
        """A tensor if it is a constant."""
        found = self[name] if name else None
        return found if found is not None and found.is_constant else None

    def scope(self, op: Op) -> str | None:
        """The module in whose code an operator stands; None if the file does not say.

        A module that is called again has a number after its name in some files.
        """
        found = next((self.scopes[name] for name in op.outputs if name in self.scopes), None)
        if found is not None and found not in self.own and _REPEATED.sub("", found) in self.own:
            return _REPEATED.sub("", found)
        return found

    def owner(self, op: Op) -> str | None:
        """The module with tensors that an operator with constants is: by its scope, or by the names of the constants."""
        scope = self.scope(op)
        parts = PARTS.get(op.kind, {})
        if scope is not None and any(f"{scope}.{part}".removeprefix(".") in self.known for part in parts.values()):
            return scope
        for place in parts:
            name = op.inputs[place] if place < len(op.inputs) else ""
            if name in self.known:
                return module_of(name)
        return None

    @property
    def known(self) -> Mapping[str, Tensor]:
        """The tensors that the file holds, by name; those that are to be folded come in once they are."""
        return self.parameters.tensors

    @property
    def consumers(self) -> Mapping[str, list[Op]]:
        """The operators that read each tensor."""
        if self._consumers is None:
            found: dict[str, list[Op]] = {}
            for op in self.ops:
                for name in filter(None, op.inputs):
                    found.setdefault(name, []).append(op)
            self._consumers = found
        return self._consumers

    @property
    def producers(self) -> Mapping[str, Op]:
        """The operator that computes each tensor."""
        if self._producers is None:
            self._producers = {name: op for op in self.ops for name in op.outputs if name}
        return self._producers

    def replace_ops(self, ops: list[Op]) -> None:
        """Takes other operators."""
        self.ops, self._consumers, self._producers = ops, None, None

    def only_consumer(self, name: str) -> Op | None:
        """The one operator that reads a tensor which nothing else sees; None if there are others."""
        readers = self.consumers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.graph.public else None

    def add(self, name: str, tensor: Tensor) -> str:
        """Takes a new tensor in under a free name; returns it."""
        fresh = self.names.fresh(name)
        self.tensors[fresh] = Tensor(fresh, tensor.dtype, tensor.shape, tensor.data, tensor.quantization)
        return fresh

    def data(self, op: Op) -> list[str]:
        """The data inputs of an operator that are neither constants nor dequantized weights."""
        return [name for name in kind_of(op).data(op) if self.constant(name) is None and self.dequantized_constant(name) is None]

    def dequantized_constant(self, name: str) -> Tensor | None:
        """The constant that a Dequantize makes a tensor of; None if it is something else."""
        made = self.producers.get(name)
        return self.constant(made.inputs[0]) if made is not None and made.kind == "Dequantize" else None

    def upstream(self, op: Op, most: int = 400) -> Iterator[Op]:
        """The operators that lead to one, the nearest first."""
        waiting, seen = list(op.inputs), set(op.inputs)
        while waiting and len(seen) <= most:
            before = self.producers.get(waiting.pop(0))
            if before is None:
                continue
            yield before
            new = [name for name in before.inputs if name and name not in seen]
            seen.update(new)
            waiting += new
