"""IF, WHILE and CALL: operators that run other subgraphs, which are functions here; and variables, which keep their values from one run to
the next: states in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from qconvert.formats.reading.flexbuffer import encode_flexbuffer
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, Shape, Tensor
from qconvert.operators.shapes_and_functions import agreed_shape
from qconvert.operators.sizes import is_compatible


def read_if(r: Reading) -> None:
    if r.tensor(0).dtype != "bool":
        raise r.invalid(f"takes {r.inputs[0]!r} of {r.tensor(0).dtype} as a condition, which must be bool", rule="not-boolean")
    given, results = _sides(r, r.inputs[1:])
    then, other = (r.function(int(r.option(name)), given, results) for name in ("thenSubgraphIndex", "elseSubgraphIndex"))
    _complete_shapes(r, [agreed_shape(a, b) for a, b in zip(r.result_shapes(then), r.result_shapes(other), strict=True)])
    r.emit("If", r.inputs, then_branch=then, else_branch=other)


def read_while(r: Reading) -> None:
    """All values are carried; the condition is asked before each turn."""
    if len(r.inputs) != len(r.outputs):
        raise r.invalid(f"takes {len(r.inputs)} values and gives {len(r.outputs)}, although it carries all", rule="counts-differ")
    given, results = _sides(r, r.inputs)
    for one, other in zip(given, results, strict=True):
        if not one.shares_quantization(other):
            raise r.unsupported_error(
                f"{one.name!r} and {other.name!r} of other types or scales, which it carries", rule="carried-mismatch"
            )
    condition = r.function(int(r.option("condSubgraphIndex")), given, [Tensor("", "bool", None)])
    body = r.function(int(r.option("bodySubgraphIndex")), given, results)
    _complete_shapes(r, [agreed_shape(a.shape, b) for a, b in zip(given, r.result_shapes(body), strict=True)])
    r.emit("While", r.inputs, condition=condition, body=body)


def read_call(r: Reading) -> None:
    given, results = _sides(r, r.inputs)
    name = r.function(int(r.option("subgraph")), given, results)
    _complete_shapes(r, r.result_shapes(name))
    r.emit("Call", r.inputs, function=name)


def _sides(r: Reading, inputs: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that are given to subgraphs, and those that they give."""
    if not all(inputs):
        raise r.invalid("lacks a value that its subgraph takes", rule="input-missing")
    return [r.lookup(name) for name in inputs], [r.result(index) for index in range(len(r.outputs))]


def _complete_shapes(r: Reading, shapes: Sequence[Shape | None]) -> None:
    """Outputs of which the file says no shape have that of the subgraphs, as far as these agree; one that contradicts them is open."""
    for index, shape in enumerate(shapes):
        name, stated = r.outputs[index], r.result(index).shape
        sizes = shape if shape is None else tuple(size if isinstance(size, int) else f"{name}_{axis}" for axis, size in enumerate(shape))
        if stated is None or not is_compatible(stated, sizes) or (sizes is None and stated is not None):
            r.with_shape(sizes, index)


def write_if(op: Op, w: Writing) -> None:
    then, other = (w.subgraphs[str(op[name])] for name in ("then_branch", "else_branch"))
    w.emit("IF", op.inputs, op.outputs, thenSubgraphIndex=then, elseSubgraphIndex=other)


def write_while(op: Op, w: Writing) -> None:
    condition, body = (w.subgraphs[str(op[name])] for name in ("condition", "body"))
    # A last value that nobody reads is a tensor all the same.
    pairs = zip(op.inputs, op.outputs, strict=True)
    outputs = [after or w.like(f"{before}/last", before, w.tensor(before).shape) for before, after in pairs]
    w.emit("WHILE", op.inputs, outputs, condSubgraphIndex=condition, bodySubgraphIndex=body)


def write_call(op: Op, w: Writing) -> None:
    """A region of a partition: a composite, which LiteRT runs by its subgraph where no delegate knows the name. LiteRT has no CALL."""
    attributes = np.frombuffer(encode_flexbuffer({}), np.uint8)
    w.emit("STABLEHLO_COMPOSITE", op.inputs, op.outputs, name=f"qconvert.{op['target']}",
           decompositionSubgraphIndex=w.subgraphs[str(op["function"])], compositeAttributes=attributes)  # fmt: skip


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


READERS: Readers = {
    "IF": read_if,
    "WHILE": read_while,
    "CALL": read_call,
    "VAR_HANDLE": read_var_handle,
    "CALL_ONCE": read_call_once,
    "READ_VARIABLE": read_read_variable,
    "ASSIGN_VARIABLE": read_assign_variable,
}

WRITERS: Writers = {
    "If": write_if,
    "While": write_while,
    "Call": write_call,
    "ReadState": partial(_write_access, "READ_VARIABLE"),
    "WriteState": partial(_write_access, "ASSIGN_VARIABLE"),
}
