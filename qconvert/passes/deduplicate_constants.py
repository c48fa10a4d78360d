"""deduplicate_constants: constants of equal type, shape, bits and quantization become one. Exact.

Large models have many weights of one shape. Only constants that agree in type, shape, quantization and a sample of their first
elements are read through, so that a file of gigabytes is not hashed to find a few equal scalars.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import islice

import numpy as np

from qconvert.graph import Array, Graph, Tensor
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

_SAMPLE = 256  # elements


def run(graph: Graph, target: Target | None) -> PassResult:
    """Let readers of a copy read the first of its kind instead. Constants that are graph outputs keep their own."""
    groups = _split_groups([[tensor for tensor in graph.constants() if tensor.name not in graph.public]], _form)
    groups = _split_groups(_split_groups(groups, _sample), _digest)
    rewriter = Rewriter(graph)
    count = saved = 0
    for first, *copies in groups:
        for copy in copies:
            rewriter.forward(copy.name, first.name)
            count += 1
            saved += 0 if copy.data is None else copy.data.nbytes
    return rewriter.finish_with(lambda number: f"{number} constants ({saved:,} bytes) are copies of others and share their data", count)


def _split_groups(groups: Iterable[list[Tensor]], key: Callable[[Tensor], Hashable]) -> list[list[Tensor]]:
    """Return the groups taken apart by `key`, without those of one member."""
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
    places = islice(np.ndindex(tensor.data.shape), _SAMPLE)  # a view that is not contiguous is not copied as a whole
    return _bits(np.asarray([tensor.data[place] for place in places], tensor.data.dtype))


def _digest(tensor: Tensor) -> bytes:
    assert tensor.data is not None
    return hashlib.sha256(_bits(tensor.data)).digest()


def _bits(data: Array) -> bytes:
    """Return what makes two constants equal; of types below 8 bits the unused high bits of a byte mean nothing."""
    if data.dtype == object:
        return repr(data.tolist()).encode()
    if data.dtype.name in ("int2", "uint2", "int4", "uint4"):
        return data.astype(np.int8).tobytes()
    return np.ascontiguousarray(data).tobytes()
