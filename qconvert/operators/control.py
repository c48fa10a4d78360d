"""Operators that mean something within a graph alone: those that run functions of it (choices, loops, calls), and those that read and write
what lives from one run to the next (Graph.states).

A function's inputs and outputs are those that the operator gives and takes, in order; see Kind.calls. What a function captures are inputs
of both, after the others. Stored values pass as they are: the tensors on either side have one type and one quantization.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import function, has, integer, integers, text
from qconvert.operators.kind import Kind
from qconvert.operators.properties import FunctionCall, Port, Running
from qconvert.operators.sizes import unknown_shapes

_CONDITION = Port(dtype="bool")


def _if(op: Op) -> Iterator[FunctionCall]:
    inputs, outputs = (tuple(map(Port, names)) for names in (op.inputs[1:], op.outputs))
    for name in ("then_branch", "else_branch"):
        yield FunctionCall(name, str(op[name]), inputs, outputs)


def _while(op: Op) -> Iterator[FunctionCall]:
    inputs, outputs = (tuple(map(Port, names)) for names in (op.inputs, op.outputs))
    yield FunctionCall("condition", str(op["condition"]), inputs, (_CONDITION,))
    yield FunctionCall("body", str(op["body"]), inputs, outputs, tuple((index, index) for index in range(len(outputs))))


def _loop(op: Op) -> Iterator[FunctionCall]:
    count = int(op["carried"])
    outputs = (*map(Port, op.outputs[:count]), *(Port(name, axis=0) for name in op.outputs[count:]))
    inputs = (Port(dtype="int64"), _CONDITION, *map(Port, op.inputs[2:]))
    yield FunctionCall("body", str(op["body"]), inputs, (_CONDITION, *outputs), tuple((index + 1, index + 2) for index in range(count)))


def _scan(op: Op) -> Iterator[FunctionCall]:
    count, scanned = int(op["carried"]), int(op["num_scan_inputs"])
    stacks = op.inputs[count : count + scanned]
    results = op.outputs[count:]
    yield FunctionCall(
        "body",
        str(op["body"]),
        (
            *map(Port, op.inputs[:count]),
            *(Port(name, axis=axis) for name, axis in zip(stacks, scan_axes(op, "scan_input_axes", scanned), strict=True)),
            *map(Port, op.inputs[count + scanned :]),
        ),
        (
            *map(Port, op.outputs[:count]),
            *(Port(name, axis=axis) for name, axis in zip(results, scan_axes(op, "scan_output_axes", len(results)), strict=True)),
        ),
        tuple((index, index) for index in range(count)),
    )


def scan_axes(op: Op, name: str, count: int) -> tuple[int, ...]:
    """The axes, or the directions, of a Scan's stacks: all 0 where it does not state them."""
    stated = tuple(map(int, op[name]))
    return stated if len(stated) == count else (0,) * count


def _truth(value: Array) -> bool:
    return bool(np.asarray(value).flat[0])


def _run_if(r: Running, inputs: list[Any]) -> list[Array]:
    return r.body("then_branch" if _truth(inputs[0]) else "else_branch", inputs[1:])


def _run_while(r: Running, inputs: list[Any]) -> list[Array]:
    turn = 0
    while _truth(r.body("condition", inputs)[0]):
        r.turn(turn)
        inputs, turn = list(r.body("body", inputs)), turn + 1
    return inputs


def _run_loop(r: Running, inputs: list[Any]) -> list[Array]:
    count, turns = int(r.op["carried"]), None if inputs[0] is None else int(np.asarray(inputs[0]).flat[0])
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
    return [*carried, *(r.stack_outputs(1 + count + index, stack, 0) for index, stack in enumerate(stacks))]


def _run_scan(r: Running, inputs: list[Any]) -> list[Array]:
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
    outputs = [r.stack_outputs(count + index, result[::-1] if way else result, axis) for index, (result, axis, way) in enumerate(turned)]
    return [*carried, *outputs]


_SCANNED = has(
    num_scan_inputs=integer(),
    scan_input_axes=integers(()),
    scan_input_directions=integers(()),
    scan_output_axes=integers(()),
    scan_output_directions=integers(()),
)

# The functions and states have the shapes of the results; validation compares both.
KINDS = (
    Kind(
        "If", "condition data...?", "data...?", shape=unknown_shapes, rule="control", calls=_if, run=_run_if,
        attributes=has(then_branch=function(), else_branch=function()),
    ),
    # trip count, condition, `carried` values, captures -> carried values, stacks; the function also takes the turn and the condition, and
    # gives the condition first
    Kind(
        "Loop", "index? condition? data...?", "data...?", shape=unknown_shapes, rule="control", calls=_loop, run=_run_loop,
        attributes=has(body=function(), carried=integer()),
    ),
    # `carried` values, stacks, captures -> carried values, stacks
    Kind(
        "Scan", "data...?", "data...?", shape=unknown_shapes, rule="control", calls=_scan, run=_run_scan,
        attributes=has(_SCANNED, body=function(), carried=integer()),
    ),
    # carried values -> carried values, as long as the first function gives true
    Kind(
        "While", "data...?", "data...?", shape=unknown_shapes, rule="control", calls=_while, run=_run_while,
        attributes=has(condition=function(), body=function()),
    ),
    # target: of a region that a partition made, what runs it
    Kind(
        "Call", "data...?", "data...?", shape=unknown_shapes, rule="control",
        calls=lambda op: [FunctionCall("function", str(op["function"]), tuple(map(Port, op.inputs)), tuple(map(Port, op.outputs)))],
        run=lambda r, inputs: r.body("function", inputs),
        attributes=has(function=function(), target=text("")),
    ),
    Kind("ReadState", "", "data", shape=unknown_shapes, rule="state", attributes=has(state=text())),
    Kind("WriteState", "data", "", shape=unknown_shapes, rule="state", attributes=has(state=text())),
)  # fmt: skip
