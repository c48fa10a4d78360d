"""Operators that mean something within a graph alone: those that run functions of it (choices, loops, calls), and those that read and write
what lives from one run to the next (Graph.states).

A function's inputs and outputs are those that the operator gives and takes, in order; see Kind.calls. What a function captures are inputs
of both, after the others. Stored values pass as they are: the tensors on either side have one type and one quantization.
"""

from __future__ import annotations

from collections.abc import Iterator

from qconvert.graph.schema import Op
from qconvert.operators.attributes import function, has, integer, integers, text
from qconvert.operators.kind import Kind
from qconvert.operators.properties import FunctionCall, Port
from qconvert.operators.sizes import unknown_shapes

_CONDITION = Port(dtype="bool")


def _if(op: Op) -> Iterator[FunctionCall]:
    inputs, outputs = (tuple(map(Port, names)) for names in (op.inputs[1:], op.outputs))
    for name in ("then_branch", "else_branch"):
        yield FunctionCall(name, str(op[name]), inputs, outputs)


def _call(op: Op) -> Iterator[FunctionCall]:
    yield FunctionCall("function", str(op["function"]), tuple(map(Port, op.inputs)), tuple(map(Port, op.outputs)))


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
        "If", "condition data...?", "data...?", shape=unknown_shapes, rule="control", calls=_if,
        attributes=has(then_branch=function(), else_branch=function()),
    ),
    # trip count, condition, `carried` values, captures -> carried values, stacks; the function also takes the turn and the condition, and
    # gives the condition first
    Kind(
        "Loop", "index? condition? data...?", "data...?", shape=unknown_shapes, rule="control", calls=_loop,
        attributes=has(body=function(), carried=integer()),
    ),
    # `carried` values, stacks, captures -> carried values, stacks
    Kind(
        "Scan", "data...?", "data...?", shape=unknown_shapes, rule="control", calls=_scan,
        attributes=has(_SCANNED, body=function(), carried=integer()),
    ),
    # carried values -> carried values, as long as the first function gives true
    Kind(
        "While", "data...?", "data...?", shape=unknown_shapes, rule="control", calls=_while,
        attributes=has(condition=function(), body=function()),
    ),
    # target: of a region that a partition made, what runs it
    Kind(
        "Call", "data...?", "data...?", shape=unknown_shapes, rule="control", calls=_call,
        attributes=has(function=function(), target=text("")),
    ),
    Kind("ReadState", "", "data", shape=unknown_shapes, rule="state", attributes=has(state=text())),
    Kind("WriteState", "data", "", shape=unknown_shapes, rule="state", attributes=has(state=text())),
)  # fmt: skip
