"""What the operators of a graph take: bounds on the values of its inputs, such as the indices of a table.

Bounds go from the operators that demand them back to the inputs, through operators that move values, convert them, or add and multiply by
constants. An input that no bound reaches is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from qconvert.graph import Graph, Op
from qconvert.operators import KINDS

__all__ = ["Bounds", "Number", "input_bounds"]

#: Smallest and largest value, both included.
Bounds = tuple[float, float]
#: The number that a size known only at run time has.
Number = Callable[[int | str], int]
#: An input of an operator, and what that takes.
_Demand = tuple[str, float, float]

#: The largest depth of a OneHot that is computed at run time.
_DEPTH = 8

_FREE: Bounds = (-math.inf, math.inf)
#: The smallest value of what is divided by, or whose logarithm is taken.
_POSITIVE = 1e-2
_TESTED = {"Sqrt": 0.0, **dict.fromkeys(("Log", "Rsqrt", "Reciprocal"), _POSITIVE)}
_KEEPING = ("Cast", "Concat", "Where", "Floor", "Ceil", "Round", "Relu", "Quantize", "Dequantize", "Requantize")
_SHIFTING = ("Add", "Sub", "Mul", "Div")


def input_bounds(graph: Graph, number: Number) -> dict[str, Bounds]:
    """Bounds on the values of inputs, by name; those that are free are absent. Two demands that exclude each other leave the lower one.

    Args:
        graph: the graph; its functions say nothing.
        number: of a size.
    """
    found: dict[str, Bounds] = {}
    for op in reversed(graph.ops):
        for name, low, high in (*_own(graph, op, number), *_passed(graph, op, found)):
            if name and not graph[name].is_constant:
                old = found.get(name, _FREE)
                both = max(low, old[0]), min(high, old[1])
                found[name] = both if both[0] <= both[1] else (both[1], both[1])
    return {name: found[name] for name in graph.inputs if name in found}


def _own(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    """What the operator itself demands."""
    if op.kind in _TESTED and not graph[op.inputs[0]].is_quantized:
        yield op.inputs[0], _TESTED[op.kind], math.inf
    elif op.kind == "Rsqrt":  # LiteRT's kernel refuses to run on what is not positive (elementwise.cc)
        grid = graph[op.inputs[0]].quantization
        yield op.inputs[0], float(grid.scale.max()) if grid is not None else _POSITIVE, math.inf
    if op.kind == "Div" and not graph[op.inputs[1]].is_quantized:
        yield op.inputs[1], 1.0 if "int" in graph[op.inputs[1]].dtype else _POSITIVE, math.inf
    if op.kind in _INDICES:
        yield from _INDICES[op.kind](graph, op, number)
    if op.kind == "Opaque" and op["op_type"] in _OPAQUE:
        yield from _OPAQUE[str(op["op_type"])](graph, op, number)


def _size(graph: Graph, name: str, axis: int, number: Number) -> int:
    """A size of a tensor; 1 where its rank is not known."""
    shape = graph[name].shape
    return number(shape[axis]) if shape is not None and -len(shape) <= axis < len(shape) else 1


def _along_axis(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    yield op.inputs[1], 0, _size(graph, op.inputs[0], op["axis"], number) - 1


def _coordinates(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    """The smallest of the sizes that the last axis of the indices counts in."""
    batch, depth = int(op["batch_dims"]) if op.kind == "GatherND" else 0, _size(graph, op.inputs[1], -1, number)
    yield op.inputs[1], 0, min((_size(graph, op.inputs[0], batch + axis, number) for axis in range(depth)), default=1) - 1


def _one_hot(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    depth = graph.constant(op.inputs[1])
    if depth is None:  # which may be an input that a whole tensor is made of
        yield op.inputs[1], 1, _DEPTH
        yield op.inputs[0], 0, _DEPTH - 1
    elif depth.size == 1:
        yield op.inputs[0], 0, int(depth.reshape(-1)[0]) - 1


def _segments(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    count = graph.constant(op.inputs[2])
    if count is not None and count.size == 1:
        yield op.inputs[1], 0, int(count.reshape(-1)[0]) - 1


def _embedded(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    """EmbedLayerNormalization of com.microsoft: (word ids, segment ids, table of words, of positions, of segments, …)."""
    for index, table in ((0, 2), (1, 4)):
        if op.has(table):
            yield op.inputs[index], 0, _size(graph, op.inputs[table], 0, number) - 1


def _blocks(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    """GatherBlockQuantized of com.microsoft, whose table may be gathered along any axis."""
    rank = graph[op.inputs[0]].rank or 0
    yield op.inputs[1], 0, min((_size(graph, op.inputs[0], axis, number) for axis in range(rank)), default=1) - 1


def _lengths(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    yield op.inputs[1], 1, _size(graph, op.inputs[0], op["time_axis"], number)


def _count(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    yield op.inputs[1], 1, _size(graph, op.inputs[0], op["axis"], number)


def _extent(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    yield op.inputs[1], 1, 2


def _exponent(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    """A real power of a negative number is no number, a large one no finite one."""
    exponent = graph.constant(op.inputs[1])
    if "float" in graph[op.inputs[0]].dtype and (exponent is None or (exponent != np.rint(exponent)).any()):
        yield op.inputs[0], _POSITIVE, math.inf


_INDICES: dict[str, Callable[[Graph, Op, Number], Iterator[_Demand]]] = {
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements"), _along_axis),
    **dict.fromkeys(("GatherND", "ScatterND"), _coordinates),
    "OneHot": _one_hot, "UnsortedSegment": _segments, "ReverseSequence": _lengths, "TopK": _count, "Tile": _extent, "Pow": _exponent,
}  # fmt: skip


#: Operators outside the canonical set.
_OPAQUE = {
    "OneHot": _one_hot,
    "EmbedLayerNormalization": _embedded,
    "QEmbedLayerNormalization": _embedded,
    "GatherBlockQuantized": _blocks,
}


def _passed(graph: Graph, op: Op, found: dict[str, Bounds]) -> Iterator[_Demand]:
    """What demands on the results mean for the inputs."""
    wanted = [found[name] for name in op.outputs if name in found]
    if not wanted:
        return
    low, high = max(bounds[0] for bounds in wanted), min(bounds[1] for bounds in wanted)
    if KINDS[op.kind].rule == "move" or op.kind in _KEEPING:
        low = -math.inf if op.kind == "Relu" and low <= 0 else low
        yield from ((name, low, high) for name in KINDS[op.kind].data(op))
    elif op.kind == "Abs":
        yield op.inputs[0], -high, high
    elif op.kind in ("Clip", "Max", "Min"):
        yield from _limited(graph, op, low, high)
    elif op.kind in _SHIFTING:
        yield from _shifted(graph, op, low, high)


def _constant_range(graph: Graph, name: str) -> Bounds | None:
    """The smallest and the largest value of a plain constant."""
    data = graph.constant(name) if name else None
    if data is None or not data.size or graph[name].is_quantized:
        return None
    return float(data.min()), float(data.max())


def _limited(graph: Graph, op: Op, low: float, high: float) -> Iterator[_Demand]:
    """A limit that the operator sets itself frees its input on that side."""
    if op.kind == "Clip":
        floor, ceiling = (_constant_range(graph, op.inputs[index] if index < len(op.inputs) else "") for index in (1, 2))
        names: tuple[str, ...] = op.inputs[:1]
    else:
        constants = [range_ for name in op.inputs if (range_ := _constant_range(graph, name)) is not None]
        limit = constants[0] if constants else None
        floor, ceiling = (limit, None) if op.kind == "Max" else (None, limit)
        names = op.inputs
    low = -math.inf if floor is not None and floor[0] >= low else low
    high = math.inf if ceiling is not None and ceiling[1] <= high else high
    yield from ((name, low, high) for name in names)


def _shifted(graph: Graph, op: Op, low: float, high: float) -> Iterator[_Demand]:
    """A sum, difference, product or quotient of an input and a constant."""
    first, second = (_constant_range(graph, name) for name in op.inputs[:2])
    if op.kind == "Add" and (first or second):
        least, most = first or second or (0.0, 0.0)
        yield op.inputs[1 if first else 0], low - least, high - most
    elif op.kind == "Sub" and second:
        yield op.inputs[0], low + second[1], high + second[0]
    elif op.kind == "Sub" and first:
        yield op.inputs[1], first[1] - high, first[0] - low
    elif op.kind == "Mul" and (first or second):
        least, most = first or second or (1.0, 1.0)
        if least > 0:
            yield op.inputs[1 if first else 0], low / (most if low > 0 else least), high / (most if high > 0 else least)
    elif op.kind == "Div" and second and second[0] > 0:
        yield op.inputs[0], low * second[1 if low > 0 else 0], high * second[0 if high > 0 else 1]
