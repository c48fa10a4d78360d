"""What writers of recurrent operators share: what they take in around a recurrence, its biases, its states, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Array, Op

__all__ = ["Frame", "find_opposite_direction", "require_writable", "state_of", "sum_biases"]

_TO_TIME = (1, 0, 2)


def require_writable(w: Writing, op: Op, **wanted: object) -> None:
    """Raises UnsupportedError for attributes that are not as wanted, lengths of sequences, and states that TFLite's do not match."""
    for name, value in {"layout": 0, **wanted}.items():
        if op[name] != value:
            raise w.unsupported_error(op, f"{name} {op[name]!r}", rule="attribute-not-covered")
    if op["direction"] == "bidirectional":
        raise w.unsupported_error(
            op, "both directions in one operator, where TFLite has states of their own for each,", rule="bidirectional"
        )
    if stored := [name for name in (op.inputs[0], *filter(None, op.outputs)) if w.tensor(name).dtype != "float32"]:
        raise w.unsupported_error(op, f"{stored[0]!r} of {w.tensor(stored[0]).dtype}", rule="operand-types")
    inputs = (*op.inputs, *[""] * (7 - len(op.inputs)))
    if inputs[4]:
        raise w.unsupported_error(op, "lengths of sequences", rule="sequence-lengths")
    if not all(inputs[5 : 7 if op.kind == "LSTM" else 6]):
        raise w.unsupported_error(
            op, "initial states in each run, where TFLite's operator keeps its states between runs,", rule="initial-states"
        )


def state_of(w: Writing, op: Op, index: int) -> str:
    """Input `index` of a recurrence, (1, rows, values), as a variable of TFLite's operator, which has no axis of directions."""
    return w.variable(op, op.inputs[index], w.shape(op.inputs[index], op)[1:])


def sum_biases(w: Writing, op: Op, rows: int) -> Array:
    """The biases of a recurrence, of which TFLite has one for data and hidden values."""
    if len(op.inputs) < 4 or not op.inputs[3]:
        return np.zeros(rows, np.float32)
    return np.asarray(w.constant(op, 3).reshape(2, -1).sum(axis=0, dtype=np.float32))


def find_opposite_direction(w: Writing, op: Op, alike: tuple[str, ...]) -> Op | None:
    """The recurrence after `op` that goes through the same data the other way, equal in the attributes `alike`; None if there is none."""
    later = w.graph.ops[next(place for place, other in enumerate(w.graph.ops) if other is op) + 1 :]
    for other in later:
        same = other.kind == op.kind and other.inputs[0] == op.inputs[0] and {op["direction"], other["direction"]} == {"forward", "reverse"}
        if same and not w.is_absorbed(other) and all(other[name] == op[name] for name in alike):
            return other
    return None


@dataclass(frozen=True, slots=True)
class _Result:
    """What becomes of a recurrence's results: their name in the graph, their size, and the Reshape and Transpose after them."""

    name: str
    size: int
    reshaped: Op | None
    turned: Op | None


class Frame:
    """The operators around a recurrence, or around two over the same data, one each way, that one of TFLite does as well.

    These are what its reader makes of other orders of steps and rows, and of merged results.

    Attributes:
        form: "steps" or "rows", which come first in the data, or "single" for data that are one step.
        data: what the operator takes.
        merged: whether it gives one result for both ways.

    Args:
        w: what is written.
        ways: the recurrences, the way forth first.
        sizes: how many values each gives at a step.
        merges_rows: whether the kernel gives one result for both ways with several rows in front.
    """

    def __init__(self, w: Writing, ways: Sequence[Op], sizes: Sequence[int], merges_rows: bool = True) -> None:
        self._w, self._ways = w, ways
        self.data = ways[0].inputs[0]
        self._steps, self._rows, values = w.shape(self.data, ways[0])
        joined = self._find_concat()
        self.merged = joined is not None
        names = [op.outputs[0] for op in ways] if joined is None else [joined.outputs[0]]
        widths = sizes if joined is None else [sum(sizes)]
        self._results = [self._result(name, size) for name, size in zip(names, widths, strict=True)]
        if joined is not None:
            w.absorb(joined)
        maker = w.producer(self.data)
        own = maker if maker is not None and w.is_read_by(self.data, ways) else None
        given = None if own is None else w.tensor(own.inputs[0]).shape
        self.form = "steps"
        if self._is_single() and own is not None and own.kind == "Reshape" and given == (self._rows, values):
            self.form = "single"
        elif _is_time_transpose(own) and all(result.turned is not None for result in self._results):
            self.form = "rows" if not self.merged or merges_rows or self._rows == 1 else "steps"
        if own is not None and self.form != "steps":
            w.retract(own, ways)
            self.data = own.inputs[0]

    def _find_concat(self) -> Op | None:
        """The Concat that puts the results of both ways side by side, the way forth first."""
        names = tuple(op.outputs[0] for op in self._ways)
        found = self._w.successor(names[0]) if len(names) == 2 and all(names) else None
        if found is None or found.kind != "Concat" or found.inputs != names or self._w.successor(names[1]) is not found:
            return None
        return found if self._w.axis(found, found["axis"], found.outputs[0]) == 3 else None

    def _result(self, name: str, size: int) -> _Result:
        reshaped = self._w.successor(name) if name else None
        if reshaped is None or reshaped.kind != "Reshape" or reshaped.inputs[0] != name:
            return _Result(name, size, None, None)
        shape = self._w.tensor(reshaped.outputs[0]).shape
        if shape != (self._steps, self._rows, size):
            return _Result(name, size, reshaped if shape == (self._rows, size) and self._steps == 1 else None, None)
        turned = self._w.successor(reshaped.outputs[0])
        return _Result(name, size, reshaped, turned if _is_time_transpose(turned) else None)

    def _is_single(self) -> bool:
        result = self._results[0]
        flat = result.reshaped is not None and len(self._w.tensor(result.reshaped.outputs[0]).shape or ()) == 2
        return len(self._ways) == 1 and flat

    def emit(self, builtin: str, listed: Sequence[str], table: str, **options: Any) -> None:
        """Adds the operator of TFLite, with its first input before those listed; a recurrence back alone turns data and results."""
        w, backwards = self._w, len(self._ways) == 1 and self._ways[0]["direction"] == "reverse" and self._steps > 1
        shown = [self._choose_output(result) for result in self._results]
        if not backwards:
            w.emit(builtin, [self.data, *listed], shown, table, **options)
        else:
            axis = w.ints([0 if self.form == "steps" else 1], f"{shown[0]}/axis")
            given = w.like(f"{shown[0]}/given", self.data, w.tensor(self.data).shape)
            back = w.like(f"{shown[0]}/back", shown[0], w.tensor(shown[0]).shape)
            w.emit("REVERSE_V2", [self.data, axis], [given], "ReverseV2Options")
            w.emit(builtin, [given, *listed], [back], table, **options)
            w.emit("REVERSE_V2", [back, axis], [shown[0]], "ReverseV2Options")
        for result, name in zip(self._results, shown, strict=True):
            if result.name and not self._is_reshape_absorbed(result):
                sizes = w.ints([self._steps, 1, self._rows, result.size], f"{result.name}/shape")
                w.emit("RESHAPE", [name, sizes], [result.name], "ReshapeOptions")

    def _is_reshape_absorbed(self, result: _Result) -> bool:
        """Whether the Reshape after a result is the operator's own work."""
        return result.reshaped is not None and (self.form == "single" or len(self._w.tensor(result.reshaped.outputs[0]).shape or ()) == 3)

    def _choose_output(self, result: _Result) -> str:
        """The tensor that the operator gives a result in."""
        if result.reshaped is None or not self._is_reshape_absorbed(result):
            hint = result.name or next(filter(None, self._ways[0].outputs))
            return self._w.add(f"{hint}/steps", "float32", (self._steps, self._rows, result.size))
        self._w.absorb(result.reshaped)
        if self.form != "rows" or result.turned is None:
            return result.reshaped.outputs[0]
        self._w.absorb(result.turned)
        return result.turned.outputs[0]


def _is_time_transpose(op: Op | None) -> bool:
    """Whether an operator exchanges steps and rows."""
    return op is not None and op.kind == "Transpose" and tuple(op["perm"]) == _TO_TIME
