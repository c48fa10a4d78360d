"""How much of a check fits into memory, from the sizes of tensors before any of them is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qconvert.data.sizes import number_of
from qconvert.graph import Array, Graph, numpy_dtype

__all__ = ["MOST", "Room", "first_fitting", "nbytes", "sizes_of"]

#: Bytes that the processes of a check hold together, of models up to 50 MB.
MOST = 1_000_000_000
#: What they hold of it without tensors: Python, its packages, and runtimes (measured).
_BASE = 300_000_000
#: How often constants are held: as the graphs of both sides, in files, and as runtimes pack them (measured).
_COPIES = 6
#: Of larger models, what is left for tensors all the same.
_LEAST = 64 << 20
#: Bytes of the tensors that pieces compute together at most, and what they take a multiple of: both sides, exchanged and in float64.
_AT_ONCE, _MULTIPLE = 64 << 20, 5


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that a check has for tensors."""

    bytes: int

    @classmethod
    def for_graphs(cls, *graphs: Graph) -> Room:
        """What the constants of these graphs leave."""
        constants = max(sum(tensor.data.nbytes for tensor in graph.constants() if tensor.data is not None) for graph in graphs)
        return cls(max(MOST - _BASE - _COPIES * constants, _LEAST))

    def samples(self, wanted: int, each: int) -> int:
        """How many inputs are run, whose inputs and outputs of both sides have so many bytes: they stay while operators are compared."""
        return max(1, min(wanted, self.bytes // 4 // max(each, 1)))

    @property
    def run_bytes(self) -> int:
        """Bytes of the tensors of one run, which the runtime's process and this one hold."""
        return self.bytes // 2

    def range_bytes(self, held: int) -> int:
        """Bytes of the tensors whose values over full ranges are computed next to those of a run: fed, computed, and both in the runtime's
        process, which holds what it sends besides (measured: 4.6 times as much)."""
        return max(0, self.bytes - held) // 5

    def piece_bytes(self, held: int) -> int:
        """Bytes of the tensors that pieces compute together next to those of a run; 0 is one after the other (measured: 4 times as
        much)."""
        return min(_AT_ONCE, max(0, self.bytes - held) // _MULTIPLE)


def sizes_of(graph: Graph, feed: Mapping[str, Array]) -> dict[str, int]:
    """The numbers that the names of sizes have with these inputs."""
    pairs = ((graph[name].shape or (), value.shape) for name, value in feed.items() if name in graph)
    return {size: found for shape, sizes in pairs for size, found in zip(shape, sizes, strict=False) if isinstance(size, str)}


def nbytes(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """The bytes of each activation, in the order in which they are computed, with numbers for the names of sizes.

    A size without one counts as 1, a tensor of unknown shape as nothing.
    """
    number = number_of(sizes)

    def size(name: str) -> int:
        tensor = graph[name]
        dtype = "int64" if tensor.dtype in ("string", "unknown") else tensor.dtype
        return 0 if tensor.shape is None else math.prod(map(number, tensor.shape)) * numpy_dtype(dtype).itemsize

    return {name: size(name) for name in (*graph.inputs, *(name for op in graph.ops for name in op.outputs if name))}


def first_fitting(sizes: Mapping[str, int], most: int, of: Iterable[str] | None = None) -> list[str]:
    """The names in order, or those `of` them, before the first with which their bytes are more than `most`."""
    found, total = list[str](), 0
    chosen = sizes.keys() if of is None else {*of}
    for name in (name for name in sizes if name in chosen):
        total += sizes[name]
        if total > most:
            break
        found.append(name)
    return found
