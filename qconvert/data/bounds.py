"""What the operators of a graph take: bounds on the values of its inputs, such as the indices of a table.

Bounds go from the operators that demand them back to the inputs, through operators that move values, convert them, or add and multiply by
constants. An input without bounds is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from qconvert.graph import Graph, Op
from qconvert.operators import kind_of
from qconvert.operators.bounds import ANY, Demand, Domain, Interval, Number, Operands

__all__ = ["input_bounds"]

#: An input of an operator, and what that takes.
_Demand = tuple[str, float, float]

_SHIFTING = ("Add", "Sub", "Mul", "Div")


def input_bounds(graph: Graph, number: Number) -> dict[str, Interval]:
    """Bounds on the values of inputs, by name; those that are free are absent. Two demands that exclude each other leave the lower one.

    Args:
        graph: the graph; its functions say nothing.
        number: of a size.
    """
    found: dict[str, Interval] = {}
    for op in reversed(graph.ops):
        for name, low, high in (*_own_demands(graph, op, number), *_propagate_demands(graph, op, found)):
            if name and not graph[name].is_constant:
                old = found.get(name, ANY)
                both = max(low, old[0]), min(high, old[1])
                found[name] = both if both[0] <= both[1] else (both[1], both[1])
    return {name: found[name] for name in graph.inputs if name in found}


def _own_demands(graph: Graph, op: Op, number: Number) -> Iterator[_Demand]:
    """What the operator itself demands."""
    domain = kind_of(op).domain
    if op.kind == "Opaque":
        domain = _OPAQUE.get(str(op["op_type"]))
    if domain is not None:
        operands = Operands(op, tuple(graph[name] if name else None for name in op.inputs))
        yield from ((op.inputs[index], low, high) for index, low, high in domain(operands, number))


def _embedding_domain(operands: Operands, number: Number) -> Iterator[Demand]:
    """EmbedLayerNormalization of com.microsoft: (word ids, segment ids, table of words, of positions, of segments, …)."""
    for index, table in ((0, 2), (1, 4)):
        if operands.tensor(table) is not None and operands.tensor(index) is not None:
            yield index, 0, operands.size(table, 0, number) - 1


def _block_domain(operands: Operands, number: Number) -> Iterator[Demand]:
    """GatherBlockQuantized of com.microsoft, whose table may be gathered along any axis."""
    table = operands.tensor(0)
    rank = 0 if table is None else table.rank or 0
    yield 1, 0, min((operands.size(0, axis, number) for axis in range(rank)), default=1) - 1


#: Operators outside the canonical set.
_OPAQUE: Mapping[str, Domain] = {
    "EmbedLayerNormalization": _embedding_domain,
    "QEmbedLayerNormalization": _embedding_domain,
    "GatherBlockQuantized": _block_domain,
}


def _propagate_demands(graph: Graph, op: Op, found: dict[str, Interval]) -> Iterator[_Demand]:
    """What demands on the results mean for the inputs."""
    wanted = [found[name] for name in op.outputs if name in found]
    if not wanted:
        return
    low, high = max(bounds[0] for bounds in wanted), min(bounds[1] for bounds in wanted)
    kind = kind_of(op)
    if kind.rule in ("move", "convert") or kind.clips or kind.nearby or kind.chooses:
        # A limit that the operator sets itself frees its data on that side.
        ends = kind.interval(graph, op, {name: _constant_range(graph, name) or ANY for name in op.inputs if name})
        low, high = (-math.inf if low <= ends[0] else low), (math.inf if high >= ends[1] else high)
        yield from ((name, low, high) for name in kind.data(op))
    elif op.kind == "Abs":
        yield op.inputs[0], -high, high
    elif op.kind in _SHIFTING:
        yield from _invert_arithmetic(graph, op, low, high)


def _constant_range(graph: Graph, name: str) -> Interval | None:
    """The smallest and the largest value of a plain constant."""
    data = graph.constant(name) if name else None
    if data is None or not data.size or graph[name].is_quantized:
        return None
    return float(data.min()), float(data.max())


def _invert_arithmetic(graph: Graph, op: Op, low: float, high: float) -> Iterator[_Demand]:
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
