"""What recurrent operators share: the order of steps and rows in their data, and the biases, activations and states of their cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Array, Op

__all__ = [
    "Order",
    "joined_steps",
    "one_way",
    "order_of",
    "partner",
    "real_constant",
    "require_written",
    "show_steps",
    "single_step",
    "state_of",
    "summed_bias",
]

_TO_TIME = (1, 0, 2)


@dataclass(frozen=True, slots=True)
class Order:
    """In which order an operator's data are; a recurrence of the graph has steps in front.

    Attributes:
        steps, rows: how many.
        form: "steps" or "rows", which come first, or "single" for data that are one step.
    """

    steps: int
    rows: int
    form: str

    def given(self, r: Reading, index: int = 0) -> str:
        """Input `index` with its steps in front: (steps, rows, values)."""
        if self.form == "steps":
            return r.input(index)
        size = r.static_shape(index)[-1]
        result = r.intermediate("time_first", "float32", (self.steps, self.rows, size))
        if self.form == "single":
            return r.emit("Reshape", [r.input(index), r.shape_const([1, self.rows, size], "time_shape")], [result])[0]
        return r.emit("Transpose", [r.input(index)], [result], perm=_TO_TIME)[0]

    def show(self, r: Reading, whole: str, output: int = 0) -> None:
        """Output `output` of what a recurrence gives, (steps, 1, rows, values)."""
        size = int((r.lookup(whole).static_shape or (0,))[-1])
        shape = (self.rows, size) if self.form == "single" else (self.steps, self.rows, size)
        sizes = r.shape_const(shape, "shape")
        if self.form != "rows":
            r.emit("Reshape", [whole, sizes], [r.outputs[output]])
            return
        flat = r.emit("Reshape", [whole, sizes], [r.intermediate("steps", "float32", shape)])
        r.emit("Transpose", flat, [r.outputs[output]], perm=_TO_TIME)


def order_of(r: Reading) -> Order:
    """The order of an operator over a sequence.

    Raises:
        InvalidModelError: its data are none.
    """
    shape = r.static_shape(0)
    if len(shape) != 3:
        raise r.invalid(f"has data of shape {shape}, which are no sequences")
    major = bool(r.option("timeMajor", False))
    steps, rows = shape[:2] if major else shape[1::-1]
    return Order(steps, rows, "steps" if major else "rows")


def single_step(r: Reading) -> Order:
    """The order of an operator that is one step.

    Raises:
        UnsupportedError: its data are of another rank than 2.
    """
    shape = r.static_shape(0)
    if len(shape) != 2:
        raise r.unsupported(f"data of shape {shape}, which are no single step,")
    return Order(1, shape[0], "single")


def real_constant(r: Reading, index: int, shape: tuple[int, ...]) -> Array:
    """The data of input `index`, in float32 where a DEQUANTIZE makes it of float16.

    Raises:
        InvalidModelError: it has another shape.
        UnsupportedError: it is no constant of float32 or float16.
    """
    if r.static_shape(index) != shape:
        raise r.invalid(f"has {r.inputs[index]!r} of shape {r.static_shape(index)}, not {shape}")
    maker, data = r.dequantized(index), r.constant(index)
    if maker is not None and maker.kind == "Cast" and (narrow := r.lookup(maker.inputs[0]).data) is not None:
        data = narrow.astype(np.float32)
    if data is None or data.dtype != np.float32:
        raise r.unsupported(f"{r.inputs[index]!r}, which is no constant of float32,")
    return data


def joined_steps(r: Reading, first: str, second: str) -> str:
    """The values of two sequences beside each other at each step."""
    shapes = [r.lookup(name).static_shape or (0,) for name in (first, second)]
    if shapes[0][:-1] != shapes[1][:-1]:
        raise r.invalid(f"has sequences of shapes {shapes[0]} and {shapes[1]}, which do not go together")
    result = r.intermediate("joined", "float32", (*shapes[0][:-1], shapes[0][-1] + shapes[1][-1]))
    return r.emit("Concat", [first, second], [result], axis=len(shapes[0]) - 1)[0]


def require_written(w: Writing, op: Op, **wanted: object) -> None:
    """Raises UnsupportedError for attributes that are not as wanted, lengths of sequences, and states that TFLite's do not match."""
    for name, value in {"layout": 0, **wanted}.items():
        if op[name] != value:
            raise w.unsupported(op, f"{name} {op[name]!r}")
    if op["direction"] == "bidirectional":
        raise w.unsupported(op, "both directions in one, where each has states of its own in TFLite,")
    inputs = (*op.inputs, *[""] * (7 - len(op.inputs)))
    if inputs[4]:
        raise w.unsupported(op, "lengths of sequences")
    if not all(inputs[5 : 7 if op.kind == "LSTM" else 6]):
        raise w.unsupported(op, "states that begin anew in each run, where those of TFLite's operator go on,")


def state_of(w: Writing, op: Op, index: int) -> str:
    """Input `index` of a recurrence, (1, rows, values), as a variable of TFLite's operator, which has no axis of directions."""
    return w.variable(op, op.inputs[index], w.shape(op.inputs[index], op)[1:])


def summed_bias(w: Writing, op: Op, rows: int) -> Array:
    """The biases of a recurrence, of which TFLite has one for data and hidden values."""
    if len(op.inputs) < 4 or not op.inputs[3]:
        return np.zeros(rows, np.float32)
    return np.asarray(w.constant(op, 3).reshape(2, -1).sum(axis=0, dtype=np.float32))


def partner(w: Writing, op: Op, alike: tuple[str, ...]) -> Op | None:
    """The recurrence behind `op` that goes through the same data the other way, equal in the attributes `alike`; None if there is none."""
    later = w.graph.ops[next(place for place, other in enumerate(w.graph.ops) if other is op) + 1 :]
    for other in later:
        same = other.kind == op.kind and other.inputs[0] == op.inputs[0] and {op["direction"], other["direction"]} == {"forward", "reverse"}
        if same and not w.is_absorbed(other) and all(other[name] == op[name] for name in alike):
            return other
    return None


def show_steps(w: Writing, op: Op, size: int) -> tuple[str, Callable[[], None]]:
    """Where a recurrence's results go, (steps, rows, values), and what makes of them those of the graph, with an axis of directions."""
    hint = next(filter(None, op.outputs))
    steps, rows = w.shape(op.inputs[0], op)[:2]
    reader = w.successor(op.outputs[0]) if op.outputs[0] else None
    if reader is not None and reader.kind == "Reshape" and w.tensor(reader.outputs[0]).shape == (steps, rows, size):
        w.absorb(reader)
        return reader.outputs[0], lambda: None
    whole = w.add(f"{hint}/steps", "float32", (steps, rows, size))

    def finish() -> None:
        if op.outputs[0]:
            w.emit("RESHAPE", [whole, w.ints([steps, 1, rows, size], f"{hint}/shape")], [op.outputs[0]], "ReshapeOptions")

    return whole, finish


def one_way(w: Writing, op: Op, size: int, builtin: str, listed: list[str], table: str, **options: Any) -> None:
    """A recurrence over its data, which the operator `builtin` takes as its first input; one that goes back turns them around.

    Args:
        w: what is written.
        op: the recurrence.
        size: how many values a step gives.
        builtin, table: the operator and its options.
        listed: its inputs, the first of which this sets.
        options: fields of the table.
    """
    data, backwards = op.inputs[0], op["direction"] == "reverse"
    whole, finish = show_steps(w, op, size)
    given, shown = data, whole
    if backwards:
        axis = w.ints([0], f"{whole}/axis")
        given, shown = w.like(f"{whole}/turned", data, w.tensor(data).shape), w.like(f"{whole}/back", whole, w.tensor(whole).shape)
        w.emit("REVERSE_V2", [data, axis], [given], "ReverseV2Options")
    w.emit(builtin, [given, *listed[1:]], [shown], table, **options)
    if backwards:
        w.emit("REVERSE_V2", [shown, axis], [whole], "ReverseV2Options")
    finish()
