"""deduplicate_constants: constants of equal type, shape, bits and quantization become one. Exact.

Large models have many weights of one shape. Only constants that agree in type, shape, quantization and a sample of their first
elements are read through, so that a file of gigabytes is not hashed to find a few equal scalars.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Tensor
from qconvert.plugins import Target

__all__ = ["run"]

_SAMPLE = 256  # elements


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Readers of a copy read the first of its kind instead. Constants that are graph outputs keep their own."""
    groups = _split([[tensor for tensor in graph.constants() if tensor.name not in graph.public]], _form)
    groups = _split(_split(groups, _sample), _digest)
    same = {copy.name: first.name for first, *copies in groups for copy in copies}
    if not same:
        return graph, ()
    ops = [
        replace(op, inputs=tuple(same.get(name, name) for name in op.inputs)) if not same.keys().isdisjoint(op.inputs) else op
        for op in graph.ops
    ]
    saved = sum(data.nbytes for name in same if (data := graph.constant(name)) is not None)
    return graph.evolve(ops=ops), (f"{len(same)} constants ({saved:,} bytes) are copies of others and share their data",)


def _split(groups: Iterable[list[Tensor]], key: Callable[[Tensor], Hashable]) -> list[list[Tensor]]:
    """The groups taken apart by `key`; those of one member are left out."""
    found: list[list[Tensor]] = []
    for group in groups:
        parts: dict[Hashable, list[Tensor]] = defaultdict(list)
        for tensor in group:
            parts[key(tensor)].append(tensor)
        found += [part for part in parts.values() if len(part) > 1]
    return found


def _form(tensor: Tensor) -> Hashable:
    return tensor.dtype, tensor.shape, tensor.quantization and tensor.quantization.key


def _sample(tensor: Tensor) -> bytes:
    assert tensor.data is not None
    return _bits(np.asarray(list(_first(tensor.data)), tensor.data.dtype))


def _first(data: Array) -> Iterable[object]:
    """Up to _SAMPLE elements, without copying the rest of a view that is not contiguous."""
    return (data[index] for index, _ in zip(np.ndindex(data.shape), range(_SAMPLE), strict=False))


def _digest(tensor: Tensor) -> bytes:
    assert tensor.data is not None
    return hashlib.sha256(_bits(tensor.data)).digest()


def _bits(data: Array) -> bytes:
    """What makes two constants equal; of types below 8 bits the unused high bits of a byte mean nothing."""
    if data.dtype == object:
        return repr(data.tolist()).encode()
    if data.dtype.name in ("int2", "uint2", "int4", "uint4"):
        return data.astype(np.int8).tobytes()
    return np.ascontiguousarray(data).tobytes()
