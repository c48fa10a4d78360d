"""Which tensors a conversion gave other values or another quantization, or put between others to round once more: what a check may not hold
against the result."""

from __future__ import annotations

import json

from qconvert.graph import Graph
from qconvert.graph.metadata import CHANGED
from qconvert.plugins import Change, Pass
from qconvert.rules.changed_values import changed_names, declared_changes, declared_names, narrowed_names, paired_inputs

__all__ = ["Declared"]


class Declared:
    """Collects, pass by pass, what is changed in a way that is not exact; an observer of a pipeline.

    Args:
        graph: what is converted; if it is a conversion's result, that conversion's changes stay declared.
    """

    def __init__(self, graph: Graph) -> None:
        self._names = set(declared_names(graph))
        self._narrowed: set[str] = set()

    def __call__(self, item: Pass, before: Graph, after: Graph, notes: tuple[Change, ...]) -> None:
        if after is before:
            return
        if self._names:  # a constant that is stored otherwise from here on, under another name
            pairs = ((a, b) for _, a, b in paired_inputs(before, after) if a.is_constant and b.is_constant)
            self._names.update(b.name for a, b in pairs if a.name in self._names and b.name not in before.tensors)
        if any(not note.exact for note in notes):
            changed = changed_names(before, after)
            self._narrowed = (self._narrowed | narrowed_names(before, after)) - changed
            self._names |= changed | self._narrowed
            new = (tensor for name, tensor in after.tensors.items() if name not in before.tensors and not tensor.is_constant)
            self._names.update(tensor.name for tensor in new if tensor.is_quantized)

    def provenance(self, graph: Graph) -> dict[str, str]:
        """The entry of the metadata that says so, for the graph that is written; none if nothing has changed."""
        found = declared_changes(graph, self._names, self._narrowed)
        return {CHANGED: json.dumps(found)} if found else {}
