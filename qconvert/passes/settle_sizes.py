"""settle_sizes: a size that inputs have by name, although the operators allow just one number for it, becomes that number. Exact.

    x (n, 5) -> Reshape to (2, 5)          n is 2: the model fails with every other size
    x (2, k) -> MatMul with (8, 3)         k is 8

Formats whose files state a number next to an unknown size state 1, which such a model would refuse before a run can say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Shape
from qconvert.operators.shapes_and_functions import infer
from qconvert.plugins import PassResult, Target

#: How many numbers are tried for one name.
_MOST_TRIES = 100
_LONGEST_SHAPE = 16


def settle_sizes(graph: Graph, target: Target | None) -> PassResult:
    """Settle the names for which 1 does not fit and just one of the numbers that the graph holds does."""
    notes = []
    symbols = dict.fromkeys(size for name in graph.inputs for size in graph[name].shape or () if isinstance(size, str))
    for symbol in symbols:
        if _substitute_size(graph, symbol, 1) is not None:
            continue
        found = [
            (number, settled) for number in _candidates(graph, symbol) if (settled := _substitute_size(graph, symbol, number)) is not None
        ]
        if len(found) == 1 and not any(_substitute_size(graph, symbol, other) is not None for other in _unrelated_numbers(found[0][0])):
            number, graph = found[0]
            notes.append(f"the dynamic dimension {symbol!r} is {number}, the only number that the operators accept")
    return graph, tuple(notes)


def _unrelated_numbers(number: int) -> list[int]:
    """Return numbers that no operator speaks of: where one of them fits too, a size is open above some least one, or to multiples."""
    return [number + 1, number + 2, 2 * number, 3 * number, 4 * number, 12 * number]


def _substitute_size(graph: Graph, symbol: str, number: int) -> Graph | None:
    """Return the graph with a number in place of a name; None if shapes contradict each other then."""

    def substitute(shape: Shape | None) -> Shape | None:
        return None if shape is None else tuple(number if size == symbol else size for size in shape)

    tensors = {name: replace(tensor, shape=substitute(tensor.shape)) for name, tensor in graph.tensors.items()}
    try:
        return infer(replace(graph, tensors=tensors))
    except InvalidGraphError:
        return None


def _candidates(graph: Graph, symbol: str) -> list[int]:
    """Return numbers that may be meant: sizes of tensors, what constants say of shapes, and elements divided by an input's other sizes."""
    rests = {
        prod(size for size in graph[name].shape or () if isinstance(size, int))
        for name in graph.inputs
        if symbol in (graph[name].shape or ())
    }
    found: dict[int, None] = {}
    for shape in _shapes(graph):
        sizes = [size for size in shape if size > 1]
        found.update(dict.fromkeys(sizes))
        found.update({prod(sizes) // rest: None for rest in rests if rest and prod(sizes) % rest == 0 and prod(sizes) > rest})
        if len(found) > _MOST_TRIES:
            break
    return list(found)[:_MOST_TRIES]


def _shapes(graph: Graph) -> Iterator[list[int]]:
    for tensor in graph.tensors.values():
        if tensor.dtype == "int64" and tensor.data is not None and tensor.data.ndim == 1 and tensor.data.size <= _LONGEST_SHAPE:
            yield [int(value) for value in tensor.data]
        yield [size for size in tensor.shape or () if isinstance(size, int)]
