"""Variables, which keep their values from one run to the next: states in the graph."""

from __future__ import annotations

from functools import partial

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op


def read_var_handle(r: Reading) -> None:
    """The name of a variable: no value, and no operator in the graph."""
    r.variables.declare(r.outputs[0], r.options)


def read_call_once(r: Reading) -> None:
    """The first values of variables, which their states have."""
    r.variables.initialize(int(r.option("initSubgraphIndex")))


def read_read_variable(r: Reading) -> None:
    """A copy of the stored values, whatever scales both sides state."""
    state = _state(r)
    if state not in r.variables.ready:
        raise r.invalid(f"reads the variable {state!r} before any operator has assigned it", rule="not-computed")
    first = r.variables.states[state]
    if state in r.variables.constant:
        r.declare(first)
        return
    if r.result().shape is None:  # files state no rank of scalars
        r.with_shape(first.shape)
    r.read_state(first, r.result())


def read_assign_variable(r: Reading) -> None:
    state = _state(r)
    r.variables.ready.add(state)
    r.write_state(r.variables.states[state], r.input(1))


def _state(r: Reading) -> str:
    handle = r.input(0)
    if handle not in r.variables.handles:
        raise r.unsupported_error(f"{handle!r}, a variable that no VAR_HANDLE gives,", rule="variable-operand")
    return r.variables.handles[handle]


def _write_access(builtin: str, op: Op, w: Writing) -> None:
    """READ_VARIABLE or ASSIGN_VARIABLE; none for a state that one operator has as a variable, which it reads and writes by itself."""
    if str(op["state"]) not in w.inner_states:
        w.emit(builtin, [w.handle(str(op["state"])), *op.inputs], op.outputs)


READERS: dict[str, ReadFunction] = {
    "VAR_HANDLE": read_var_handle,
    "CALL_ONCE": read_call_once,
    "READ_VARIABLE": read_read_variable,
    "ASSIGN_VARIABLE": read_assign_variable,
}

WRITERS: dict[str, WriteFunction] = {
    "ReadState": partial(_write_access, "READ_VARIABLE"),
    "WriteState": partial(_write_access, "ASSIGN_VARIABLE"),
}
