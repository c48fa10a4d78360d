"""What readers of recurrent operators share: the order of steps and rows in their data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qconvert.formats.tflite.reading import Reading
from qconvert.graph import Array

__all__ = [
    "Order",
    "concat_steps",
    "order_of",
    "real_constant",
    "require_float32",
    "single_step",
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

    def read_time_first(self, r: Reading, index: int = 0) -> str:
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
        raise r.invalid(f"has data of shape {shape}, which are not sequences", rule="wrong-rank")
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
        raise r.unsupported_error(f"data of shape {shape}, which are not a single step,", rule="unsupported-shape")
    return Order(1, shape[0], "single")


def require_float32(r: Reading, data: tuple[int, ...], variables: tuple[int, ...]) -> None:
    """Raises an error for data, variables or results that are not float32, and a variable that is two of them."""
    names = [*(r.input(index) for index in (*data, *variables)), *r.outputs[:2]]
    wrong = [tensor for name in names if (tensor := r.lookup(name)).dtype != "float32"]
    if wrong:
        raise r.unsupported_error(f"{wrong[0].name!r} of {wrong[0].dtype}, not float32,", rule="operand-types")
    if len({r.input(index) for index in variables}) < len(variables):
        raise r.invalid("has the same variable for two states", rule="shared-state")


def real_constant(r: Reading, index: int, shape: tuple[int, ...]) -> Array:
    """The data of input `index`, in float32 where a DEQUANTIZE makes it of float16.

    Raises:
        InvalidModelError: it has another shape.
        UnsupportedError: it is no constant of float32 or float16.
    """
    if r.static_shape(index) != shape:
        raise r.invalid(f"has {r.inputs[index]!r} of shape {r.static_shape(index)}, not {shape}", rule="shape-mismatch")
    maker, data = r.find_dequantize(index), r.constant(index)
    if maker is not None and maker.kind == "Cast" and (narrow := r.lookup(maker.inputs[0]).data) is not None:
        data = narrow.astype(np.float32)
    if data is None or data.dtype != np.float32:
        raise r.unsupported_error(f"{r.inputs[index]!r}, which is not a float32 constant,", rule="operand-types")
    return data


def concat_steps(r: Reading, first: str, second: str) -> str:
    """The values of two sequences side by side at each step."""
    shapes = [r.lookup(name).static_shape or (0,) for name in (first, second)]
    if shapes[0][:-1] != shapes[1][:-1]:
        raise r.invalid(f"has sequences of shapes {shapes[0]} and {shapes[1]}, which do not match", rule="shape-mismatch")
    result = r.intermediate("joined", "float32", (*shapes[0][:-1], shapes[0][-1] + shapes[1][-1]))
    return r.emit("Concat", [first, second], [result], axis=len(shapes[0]) - 1)[0]
