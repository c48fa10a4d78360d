"""A side of a check: a model file, what runs it, and its canonical graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qconvert.conversion import load
from qconvert.conversion.loading import source_format
from qconvert.errors import QConvertError
from qconvert.graph import Graph
from qconvert.plugins import Format, Inside, LoadedModel, Runtime, runtime_of

__all__ = ["Side", "side_of"]


@dataclass(slots=True)
class Side:
    """A model file in its runtime.

    Attributes:
        path: the file.
        format: its format.
        runtime: what runs it, with `kernels`.
        kernels: a name of the runtime's.
    """

    path: Path
    format: Format
    runtime: Runtime
    kernels: str
    _graph: Graph | None = None
    _taken: Mapping[str, str] | None = None
    _called: Mapping[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The file's canonical graph, read when first asked for."""
        if self._graph is None:
            self._graph = load(self.path)
        return self._graph

    def called(self, graph: Graph, names: Mapping[str, str]) -> Side:
        """The side with another canonical graph, in which tensors are called otherwise (new name: the file's)."""
        return replace(self, _graph=graph, _called=names)

    def open(self) -> LoadedModel:
        return self.runtime.open(self.path, self.kernels)

    def inside(self, graph: Graph) -> Inside | None:
        """The file's inner tensors that a graph names, or None if the runtime does not give them out."""
        return None if self.runtime.inside is None else self.runtime.inside(self.path, graph, self.kernels)

    @property
    def choice(self) -> str:
        """What runs the file, as `--kernels` names it."""
        return f"{self.runtime.name}:{self.kernels}"

    def kernels_of(self, name: str, *, with_parts: bool = False) -> str:
        """What computes a tensor of the file, likewise: the runtime may leave an operator to another set of its kernels.

        Args:
            name: of the tensor.
            with_parts: whether what computes it may be several operators, of which each set may run some.
        """
        if self._taken is None:
            try:
                self._taken = self.runtime.taken_by(self.path, self.kernels) if self.runtime.taken_by is not None else {}
            except QConvertError:
                self._taken = {}
        chosen = self._taken.get(self._called.get(name, name), self.kernels)
        return f"{self.runtime.name}:{self._taken.get(f'{name}/', chosen) if with_parts else chosen}"


def side_of(path: Path, kernels: str | Sequence[str]) -> Side:
    """The side of a file.

    Args:
        path: the file, whose suffix says the format.
        kernels: those that the user wants, as in plugins.runtime_of().

    Raises:
        OptionError: nothing runs such files, or there are no such kernels.
    """
    found = source_format(path)
    runtime, chosen = runtime_of(found.name, kernels)
    return Side(path, found, runtime, chosen)
