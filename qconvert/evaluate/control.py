"""Operators that run functions: choices, loops and calls on stored values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qconvert.errors import UnsupportedError
from qconvert.graph import Array, Graph, Op, numpy_dtype
from qconvert.operators import FunctionCall, kind_of
from qconvert.operators.control import scan_axes
from qconvert.operators.shapes_and_functions import in_function

#: How often the body of one loop runs, at most: a file can ask for 2**63 turns.
MOST_TURNS = 100_000

#: (a graph with all functions, stored inputs in order) -> stored outputs in order
Run = Callable[[Graph, Sequence[Array]], list[Array]]


def run_control(graph: Graph, op: Op, inputs: Sequence[Array | None], run: Run) -> list[Array]:
    """The stored outputs of an operator that runs functions, those without a name too.

    Args:
        graph: that the operator belongs to, with the functions.
        op: the operator.
        inputs: stored values of its inputs, in order; None for one that is absent.
        run: runs a graph.

    Raises:
        UnsupportedError: a loop goes on for more than MOST_TURNS turns.
    """
    found = {call.attribute: call for call in kind_of(op).calls(op)}

    def body(attribute: str, values: Sequence[Array]) -> list[Array]:
        return run(in_function(graph, found[attribute].function), values)

    return _RUNS[op.kind](_Running(graph, op, found, body), list(inputs))


class _Running:
    """An operator that is being run: what its functions are, and a way to run them."""

    def __init__(self, graph: Graph, op: Op, found: dict[str, FunctionCall], body: Callable[[str, Sequence[Any]], list[Array]]) -> None:
        self.graph, self.op, self.calls, self.body = graph, op, found, body

    def stack_outputs(self, attribute: str, index: int, values: list[Array], axis: int) -> Array:
        """Output `index` of a function at each turn, stacked along an axis; without turns, dynamic sizes are 0."""
        if values:
            return np.stack(values, axis)
        inner = self.graph.functions[self.calls[attribute].function]
        tensor = inner[inner.outputs[index]]
        sizes = [size if isinstance(size, int) else 0 for size in tensor.shape or ()]
        sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
        return np.zeros(sizes, numpy_dtype(tensor.dtype))

    def turn(self, number: int) -> int:
        """The number of the turn, if so many are run."""
        if number >= MOST_TURNS:
            raise UnsupportedError(
                f"it runs for more than {MOST_TURNS:,} iterations", where=f"{self.op.source} {self.op}".strip(), rule="too-many-iterations"
            )
        return number


def _truth(value: Array) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])


def _if(r: _Running, inputs: list[Any]) -> list[Array]:
    return r.body("then_branch" if _truth(inputs[0]) else "else_branch", inputs[1:])


def _call(r: _Running, inputs: list[Any]) -> list[Array]:
    return r.body("function", inputs)


def _while(r: _Running, inputs: list[Any]) -> list[Array]:
    turn = 0
    while _truth(r.body("condition", inputs)[0]):
        r.turn(turn)
        inputs, turn = list(r.body("body", inputs)), turn + 1
    return inputs


def _loop(r: _Running, inputs: list[Any]) -> list[Array]:
    count, turns = int(r.op["carried"]), None if inputs[0] is None else int(np.asarray(inputs[0]).reshape(-1)[0])
    condition = np.array(True) if inputs[1] is None else np.asarray(inputs[1])
    carried, captured = inputs[2 : 2 + count], inputs[2 + count :]
    stacks: list[list[Array]] = [[] for _ in r.op.outputs[count:]]
    turn = 0
    while (turns is None or turn < turns) and _truth(condition):
        found = r.body("body", [np.array(r.turn(turn), np.int64), condition, *carried, *captured])
        condition, carried = found[0], found[1 : 1 + count]
        for stack, value in zip(stacks, found[1 + count :], strict=True):
            stack.append(value)
        turn += 1
    return [*carried, *(r.stack_outputs("body", 1 + count + index, stack, 0) for index, stack in enumerate(stacks))]


def _scan(r: _Running, inputs: list[Any]) -> list[Array]:
    count, scanned = int(r.op["carried"]), int(r.op["num_scan_inputs"])
    carried, stacks, captured = inputs[:count], inputs[count : count + scanned], inputs[count + scanned :]
    axes, ways = (scan_axes(r.op, name, scanned) for name in ("scan_input_axes", "scan_input_directions"))
    results: list[list[Array]] = [[] for _ in r.op.outputs[count:]]
    length = np.asarray(stacks[0]).shape[axes[0]]
    for turn in range(length):
        places = [length - 1 - r.turn(turn) if way else r.turn(turn) for way in ways]
        slices = [np.take(stack, place, axis) for stack, place, axis in zip(stacks, places, axes, strict=True)]
        found = r.body("body", [*carried, *slices, *captured])
        carried = found[:count]
        for result, value in zip(results, found[count:], strict=True):
            result.append(value)
    turned = zip(
        results,
        scan_axes(r.op, "scan_output_axes", len(results)),
        scan_axes(r.op, "scan_output_directions", len(results)),
        strict=True,
    )
    outputs = [
        r.stack_outputs("body", count + index, result[::-1] if way else result, axis) for index, (result, axis, way) in enumerate(turned)
    ]
    return [*carried, *outputs]


_RUNS: dict[str, Callable[[_Running, list[Any]], list[Array]]] = {"If": _if, "Call": _call, "While": _while, "Loop": _loop, "Scan": _scan}
