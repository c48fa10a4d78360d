"""Dynamic dimensions as numbers, and chains of operators that change the shape alone as one.

settle_sizes: a size that inputs have by name, although the operators allow just one number for it, becomes that number. Exact.

    x (n, 5) -> Reshape to (2, 5)          n is 2: the model fails with every other size
    x (2, k) -> MatMul with (8, 3)         k is 8

Formats whose files state a number next to an unknown size state 1, which such a model would refuse before a run can say otherwise.

merge_reshapes: one Reshape instead of a chain of Reshape, Squeeze and Unsqueeze, and none, and no Identity, that changes nothing.

Exact: they move no data, so only the last shape counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Shape
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import infer
from qconvert.operators.sizes import reshape_sizes
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

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
    for shape in _list_shapes(graph):
        sizes = [size for size in shape if size > 1]
        found.update(dict.fromkeys(sizes))
        found.update({prod(sizes) // rest: None for rest in rests if rest and prod(sizes) % rest == 0 and prod(sizes) > rest})
        if len(found) > _MOST_TRIES:
            break
    return list(found)[:_MOST_TRIES]


def _list_shapes(graph: Graph) -> Iterator[list[int]]:
    for tensor in graph.tensors.values():
        if tensor.dtype == "int64" and tensor.data is not None and tensor.data.ndim == 1 and tensor.data.size <= _LONGEST_SHAPE:
            yield [int(value) for value in tensor.data]
        yield [size for size in tensor.shape or () if isinstance(size, int)]


def merge_reshapes(graph: Graph, target: Target | None) -> PassResult:
    """Let the last of a chain read what the first reads; chains of which others read a part keep that part."""
    graph, count = _remove_identities(graph)
    rewriter = Rewriter(graph)
    starts: dict[str, str] = {}  # result of an operator of a chain -> what the first of the chain reads
    for op in rewriter:
        if not kind_of(op).keeps_order:
            continue
        data = rewriter.resolve(op.inputs[0])
        first = starts[op.name] = starts.get(data, data)
        result, source = graph[op.name], graph[first]
        if source.shape is not None and source.shape == result.shape and result.name not in graph.public and not source.is_constant:
            rewriter.forward(result.name, first)
            rewriter.remove(op)
            count += 1
        elif first != data and (sizes := _sizes(result.shape)) is not None and len(rewriter.readers[data]) == 1:
            shape = rewriter.constant(f"{result.name}/merged_shape", sizes)
            rewriter.replace(op, op.derive("Reshape", (first, shape), op.outputs))
            count += 1
    note = "{} Reshape, Squeeze, Unsqueeze and Identity are merged with others or removed".format
    return rewriter.finish_with(note, count, prune=True)


def _remove_identities(graph: Graph) -> tuple[Graph, int]:
    """Remove each Identity that only gives an output of the graph its name: the operator before it writes the output itself."""
    rewriter = Rewriter(graph)
    count = 0
    for op in rewriter.of_kind("Identity"):
        source, result = graph[op.inputs[0]], graph[op.name]
        if result.name not in graph.outputs or source.name in graph.outputs:
            continue
        same = source.shares_quantization(result) and source.shape == result.shape
        if same and source.name in rewriter.producers and len(rewriter.readers[source.name]) == 1:
            rewriter.rename(source.name, result.name)
            rewriter.remove(op)
            count += 1
    signatures = tuple(
        item if item.function else replace(item, outputs={key: rewriter.resolve(name) for key, name in item.outputs.items()})
        for item in graph.signatures
    )
    return (rewriter.finish(signatures=signatures), count) if count else (graph, 0)


def _sizes(shape: Shape | None) -> list[int] | None:
    """Return a shape for a Reshape; None if more than one size is known only at run time."""
    if shape is None or sum(isinstance(size, str) for size in shape) > 1:
        return None
    return reshape_sizes(shape)
