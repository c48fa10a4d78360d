"""Graphs of a proof with one number for each size that is known only at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from qconvert.checking.outputs import Border
from qconvert.data.sizes import sizes_to_try
from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Tensor
from qconvert.operators.layout import permutation
from qconvert.operators.shapes import infer

__all__ = ["fix_sizes", "list_layouts"]


def fix_sizes(border: Border) -> tuple[Graph, Graph]:
    """Both graphs with one number for each size of an input that is known only at run time."""
    tried = sizes_to_try(border.graph)
    for numbers in (*tried[1:], tried[0]):  # the first one has batches of 1, whose axis may stand anywhere
        try:
            return _set_input_sizes(border, numbers)
        except InvalidGraphError:
            continue
    return border.graph, border.other


def _set_input_sizes(border: Border, numbers: Mapping[str, int]) -> tuple[Graph, Graph]:
    """Both graphs with numbers for the names of the source's sizes. Raises InvalidGraphError if operators do not take them."""
    source = _set_sizes(border.graph, numbers)
    given: dict[str, int] = {}
    for name, other in border.inputs.items():
        sizes, wanted = source[name].static_shape, border.other[other].shape
        if sizes is not None and wanted is not None and len(sizes) == len(wanted):
            turned = _transpose_sizes(sizes, wanted, name in border.turned)
            given.update((size, turned[axis]) for axis, size in enumerate(wanted) if isinstance(size, str))
    return source, _set_sizes(border.other, given)


def _transpose_sizes(sizes: tuple[int, ...], wanted: tuple[int | str, ...], is_turned: bool) -> tuple[int, ...]:
    """Sizes of the source's input in the order of the result's."""
    orders = [*([] if is_turned else [tuple(range(len(sizes)))]), *list_layouts(len(sizes))]
    found = (tuple(sizes[axis] for axis in perm) for perm in orders)
    return next((item for item in found if all(isinstance(b, str) or a == b for a, b in zip(item, wanted, strict=True))), sizes)


def _set_sizes(graph: Graph, numbers: Mapping[str, int]) -> Graph:
    """The graph with numbers for names of sizes; what follows from them is inferred."""
    if not numbers:
        return graph

    def set_shape(tensor: Tensor) -> Tensor:
        assert tensor.shape is not None
        shape = tuple(numbers.get(size, size) if isinstance(size, str) else size for size in tensor.shape)
        known = tensor.name in graph.inputs or all(isinstance(size, int) for size in shape)
        return replace(tensor, shape=shape if known else None)

    return infer(
        graph.evolve(
            tensors=[set_shape(tensor) for tensor in graph.tensors.values() if tensor.shape is not None and tensor.static_shape is None]
        )
    )


def list_layouts(rank: int) -> Iterator[tuple[int, ...]]:
    """Orders of axes that an input may have: its own, and those of the two layouts."""
    if rank > 2:
        yield permutation("channels_first", rank)
        yield permutation("channels_last", rank)
