"""Sparse constants of TFLite made dense (schema.fbs, SparsityParameters; the format of the Tensor Algebra Compiler).

A tensor is stored as a tree. Its levels are the dimensions in the order of `traversal_order`: those of the tensor, and after them one for
each block, which lies inside the dimension that `block_map` names. A dense level has a child for each index, a sparse one (CSR) those that
`array_indices` lists between `array_segments[node]` and `array_segments[node + 1]`. The values are those of the leaves, in order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.graph import Array

__all__ = ["Leaves", "leaves_of"]

_DENSE, _CSR = 0, 1
#: The most elements of a dense tensor: for each stored value, and in addition.
_MOST_EACH, _ALLOWANCE = 4096, 2**20

#: The place in the dense tensor, flat, of each value that is stored.
Leaves = Array


def leaves_of(sparsity: Any, shape: tuple[int, ...], stored: int) -> Leaves:
    """Where the values of a sparse tensor belong.

    Args:
        sparsity: the SparsityParameters table.
        shape: of the dense tensor.
        stored: how many values its buffer can hold at most.

    Raises:
        InvalidModelError: its tables contradict each other or the shape, or it is dense beyond all proportion to the file.
    """
    count = math.prod(shape)
    if count > _MOST_EACH * stored + _ALLOWANCE:
        raise _invalid(f"{stored} value{'s' * (stored != 1)} for {count:,} elements")
    order, blocks = _numbers(sparsity.traversalOrder), _numbers(sparsity.blockMap)
    levels = list(sparsity.dimMetadata)
    rank = len(shape)
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
        raise _invalid(f"the order {order[:8]} and {len(levels)} levels for {rank} dimensions and {len(blocks)} blocks")
    if len(set(blocks)) != len(blocks) or not all(0 <= axis < rank for axis in blocks):
        raise _invalid(f"the blocks {blocks[:8]} of {rank} dimensions")
    sizes = _level_sizes(order, blocks, levels, shape)
    strides = _strides(shape)
    steps = [strides[axis] * math.prod(sizes[rank + k] for k, other in enumerate(blocks) if other == axis) for axis in range(rank)]
    steps += [strides[axis] for axis in blocks]
    places, nodes = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for level, dimension in zip(levels, order, strict=True):
        parents, indices, nodes = _children(level, sizes[dimension], nodes, count)
        places = places[parents] + indices * steps[dimension]
    if places.size != np.unique(places).size:
        raise _invalid("several values for one element")
    return places


def _level_sizes(order: list[int], blocks: list[int], levels: list[Any], shape: tuple[int, ...]) -> list[int]:
    """How many indices each dimension, and after them each block, has."""
    rank = len(shape)
    sizes = [*shape, *(0 for _ in blocks)]
    for level, dimension in zip(levels, order, strict=True):
        if dimension < rank:
            continue
        axis, size = blocks[dimension - rank], int(level.denseSize)
        if level.format != _DENSE or size < 1 or shape[axis] % size:
            raise _invalid(f"blocks of {size} in dimension {axis} of shape {list(shape)}")
        sizes[dimension], sizes[axis] = size, shape[axis] // size
    return sizes


def _children(level: Any, size: int, nodes: Array, most: int) -> tuple[Array, Array, Array]:
    """For each child of the nodes of a level the position of its parent among them, its index, and its number in the level below."""
    if level.format == _DENSE:
        if level.denseSize != size:
            raise _invalid(f"a dense level of {level.denseSize} for a dimension of {size}")
        if nodes.size * size > most:
            raise _invalid(f"more than {most:,} values")
        indices = np.tile(np.arange(size), nodes.size)
        return np.repeat(np.arange(nodes.size), size), indices, np.repeat(nodes, size) * size + indices
    if level.format != _CSR:
        raise _invalid(f"a level of format {level.format}")
    segments, listed = (_vector(table) for table in (level.arraySegments, level.arrayIndices))
    if segments.size < 1 or (nodes.size and segments.size < int(nodes.max()) + 2) or (np.diff(segments) < 0).any() or segments[0] < 0:
        raise _invalid(f"{segments.size} segments for {nodes.size} nodes, or not in order")
    if segments[-1] > listed.size or (listed < 0).any() or (listed >= size).any():
        raise _invalid(f"indices outside a dimension of {size}, or segments beyond {listed.size} of them")
    counts = segments[nodes + 1] - segments[nodes]
    total = int(counts.sum())
    if total > most:
        raise _invalid(f"more than {most:,} values")
    parents = np.repeat(np.arange(nodes.size), counts)
    numbers = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(segments[nodes], counts)
    return parents, listed[numbers], numbers


def _vector(table: Any) -> Array:
    """The numbers of a SparseIndexVector."""
    values = None if table is None else table.values
    return np.zeros(0, np.int64) if values is None else np.asarray(values).astype(np.int64)


def _numbers(vector: Array | None) -> list[int]:
    return [] if vector is None else vector.tolist()


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _invalid(what: str) -> InvalidModelError:
    return InvalidModelError(f"its sparsity states {what}", rule="invalid-sparsity")
