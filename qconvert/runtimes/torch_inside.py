"""The inner tensors of a PyTorch file: a program rebuilt from the file returns them, and is cut at them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.conversion.loading import read_literal_graph
from qconvert.graph import Array, Graph
from qconvert.plugins import Inside, ModelFile, Pieces, format_named
from qconvert.rewriting.cutting import cut
from qconvert.runtimes.torch import program, stateful_program
from qconvert.runtimes.torch_engines import engine_of

__all__ = ["TorchInside", "inside_of"]


def inside_of(file: ModelFile, graph: Graph) -> Inside:
    """See plugins.Runtime: of the file itself if it is trusted, else of the program rebuilt from it."""
    if file.kernels == "trusted":
        from qconvert.runtimes.torch_trusted import TrustedInside

        return TrustedInside(file, graph)
    return TorchInside(file, graph)


class TorchInside:
    """A PyTorch file whose tensors are known by the names of a canonical graph.

    The graph is cut as it was read, before it is brought into its normal form.

    Args:
        file: the file.
        graph: whose activations are wanted; a name that the file does not have is ignored.
    """

    cuts = True

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        self._graph = read_literal_graph(file.path, format_named("torch"), file.options)
        self._engine = engine_of(self._graph)
        own, sizes = self._graph.tensors, _sizes_alone(self._graph)
        wanted = {name for name, tensor in graph.tensors.items() if name in own and _is_one_width(own[name].dtype, tensor.dtype)}
        self.names = frozenset(name for name in wanted if not own[name].is_constant and name not in sizes)
        inner = tuple(name for name in own if name in self.names and name not in self._graph.inputs)
        self._order = inner
        self._probe, _, self._again = stateful_program(self._graph.evolve(outputs=inner), self._engine)

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        if self._again is not None:
            self._probe = self._again()

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        found = dict(zip(self._order, self._probe(list(feed.values())), strict=True))
        return {name: np.asarray(value) for name, value in {**feed, **found}.items() if name in self.names}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        part = cut(self._graph, names & self.names, wanted)
        return Pieces.of_cut(self._graph, part, program(part.graph, self._engine)[0])


def _is_one_width(a: str, b: str) -> bool:
    """Whether two types are equal, or differ only in sign, so that integers of one are those of the other with another zero point."""
    return a == b or {a, b} in ({"int8", "uint8"}, {"int16", "uint16"})


def _sizes_alone(graph: Graph) -> set[str]:
    """Return the tensors that are computed from sizes: in a program they are numbers, at which it cannot be cut."""
    known = {tensor.name for tensor in graph.constants()}
    found: set[str] = set()
    for op in graph.ops:
        if op.kind == "Shape" or (
            not found.isdisjoint(op.inputs) and all(not name or name in known or name in found for name in op.inputs)
        ):
            found.update(op.outputs)
    return found
