"""Subgraphs that operators run, read as functions of the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.quantizations import requantize_end
from qconvert.formats.tflite.schema import decode_text
from qconvert.graph import Graph, Names, Tensor
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_KERNELS
from qconvert.operators.sizes import is_compatible

#: The fields of options that name subgraphs which an operator runs.
_FIELDS = {
    "IF": ("thenSubgraphIndex", "elseSubgraphIndex"),
    "WHILE": ("condSubgraphIndex", "bodySubgraphIndex"),
    "CALL": ("subgraph",),
    "STABLEHLO_REDUCE_WINDOW": ("bodySubgraphIndex",),
}


#: Subgraphs that run within one another; a valid graph has no more (rules/validation/structure.py).
_DEEPEST = 50


def subgraphs_of(name: str, options: Any) -> list[int]:
    """The subgraphs that a builtin operator runs."""
    return [int(getattr(options, field, 0)) for field in _FIELDS.get(name, ())]


class Functions:
    """The subgraphs of a model that are read as functions, each once.

    Args:
        model: the file.
        read: (subgraph, draft) -> names of its inputs and outputs; reads it into the draft.
        found: functions by name.
    """

    def __init__(self, model: Any, read: Callable[[int, Draft], tuple[list[str], list[str]]], found: dict[str, Graph]) -> None:
        self._model, self._read, self._found = model, read, found
        self._done: dict[int, str] = {}
        self._open: set[int] = set()

    def function_name(self, index: int, outer: Draft, where: str) -> str:
        """The name of the function that a subgraph is.

        Raises:
            InvalidModelError: there is no such subgraph, it is the main one, it runs itself, or it stands in too many others.
        """
        if index not in self._done:
            self._done[index] = self._file(self.graph(index, outer, where))
        return self._done[index]

    def graph(self, index: int, outer: Draft, where: str) -> Graph:
        """A subgraph, read by itself; it is no function of the network yet.

        Raises:
            InvalidModelError: as function_name() does.
        """
        if not 0 < index < len(self._model.subgraphs):
            raise InvalidModelError(
                f"runs subgraph {index}, but the model has {len(self._model.subgraphs)}", where=where, rule="unknown-subgraph"
            )
        if index in self._open:
            raise InvalidModelError(f"subgraph {index} runs itself", where=where, rule="recursive-subgraph")
        if len(self._open) >= _DEEPEST:
            raise InvalidModelError(f"more than {_DEEPEST} subgraphs are nested", where=where, rule="nested-too-deeply")
        self._open.add(index)
        found = self._graph(index, outer)
        self._open.remove(index)
        return found

    def _file(self, graph: Graph) -> str:
        name = Names(self._found).fresh(graph.name)
        self._found[name] = graph
        return name

    def _graph(self, index: int, outer: Draft) -> Graph:
        draft = Draft(outer=outer)
        inputs, outputs = self._read(index, draft)
        outputs = draft.distinct(outputs)
        name = decode_text(self._model.subgraphs[index].name) or f"subgraph_{index}"
        return draft.finish(name, inputs, outputs, {SOURCE_FORMAT: "tflite", SOURCE_KERNELS: "litert:default"})

    def fit_quantizations(self, name: str, given: Sequence[Tensor], results: Sequence[Tensor], where: str) -> str:
        """The function with the quantizations of the operator's inputs and outputs: itself, or a copy.

        Raises:
            InvalidModelError: it takes or gives another number of values, or other types.
            UnsupportedError: other shapes.
        """
        graph = self._found[name]
        for word, outside, inside in (("takes", given, graph.inputs), ("gives", results, graph.outputs)):
            if len(outside) != len(inside):
                raise InvalidModelError(
                    f"its subgraph {name!r} {word} {len(inside)} values, not {len(outside)}", where=where, rule="counts-differ"
                )
            for one, own in zip(outside, inside, strict=True):
                if graph[own].dtype != one.dtype:
                    raise InvalidModelError(
                        f"its subgraph {name!r} {word} {own!r} of {graph[own].dtype}, not {one.dtype}", where=where, rule="type-mismatch"
                    )
                if word == "takes" and not is_compatible(graph[own].shape, one.shape):
                    shapes = f"shape {graph[own].shape} for {one.name!r} of shape {one.shape}"
                    raise UnsupportedError(
                        f"its subgraph {name!r} with an input of {shapes} is not covered", where=where, rule="shape-mismatch"
                    )
        fitted = graph
        for index, tensor in enumerate(given):
            fitted = requantize_end(fitted, "inputs", index, tensor.quantization)
        for index, tensor in enumerate(results):
            fitted = requantize_end(fitted, "outputs", index, tensor.quantization)
        return name if fitted is graph else self._file(fitted)
