"""What recurrent operators share: the order of steps and rows in their data, states, biases, and integer weights with float data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qconvert.formats.tflite.reading import Reading
from qconvert.formats.tflite.writing import Writing
from qconvert.graph import Array, Attribute, Op, Quantization, Tensor
from qconvert.operators.recurrent import cell_of

_TO_TIME = (1, 0, 2)


class Order(NamedTuple):
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
            return r.emit("Reshape", [r.input(index), r.list64([1, self.rows, size], "time_shape")], [result])[0]
        return r.emit("Transpose", [r.input(index)], [result], perm=_TO_TIME)[0]

    def show(self, r: Reading, *ways: str) -> None:
        """The outputs: what each way through the data gives, (steps, 1, rows, values), or both ways side by side."""
        for result, whole in zip(r.outputs, ways if len(r.outputs) >= len(ways) else (concat_steps(r, *ways),), strict=False):
            size = int((r.lookup(whole).static_shape or (0,))[-1])
            shape = (self.rows, size) if self.form == "single" else (self.steps, self.rows, size)
            sizes = r.list64(shape, "shape")
            if self.form != "rows":
                r.emit("Reshape", [whole, sizes], [result])
                continue
            flat = r.emit("Reshape", [whole, sizes], [r.intermediate("steps", "float32", shape)])
            r.emit("Transpose", flat, [result], perm=_TO_TIME)


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


def order_of_both_ways(r: Reading) -> Order:
    """The order of an operator that goes through a sequence both ways, and gives one result where it merges them.

    Raises:
        InvalidModelError: its data are no sequence, or it has another number of results.
    """
    order, count = order_of(r), 1 if r.option("mergeOutputs", False) else 2
    if len(r.outputs) != count:
        raise r.invalid(f"has {len(r.outputs)} outputs, not {count}", rule="wrong-number-of-tensors")
    return order


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
    return r.emit_new(
        "Concat", [first, second], "joined", "float32", (*shapes[0][:-1], shapes[0][-1] + shapes[1][-1]), axis=len(shapes[0]) - 1
    )


#: The data of a constant and its scales, or None if it is real.
Constant = tuple[Array, Quantization | None]


def emit_recurrence(
    r: Reading,
    kind: str,
    order: Order,
    data: str,
    constants: Mapping[str, Constant | None],
    states: Mapping[str, tuple[int, int]],
    **attributes: Attribute,
) -> str:
    """Appends a recurrence whose states are variables of its own; returns the name of all its results, (steps, 1, rows, values).

    Args:
        r: the operator.
        kind, attributes: of the recurrence.
        order: that of the operator's data.
        data: with steps in front.
        constants: weights and biases by short names of the inputs that they become, without the axis of directions.
        states: the input that each is, "hidden" first, and how many values it has in a row.
    """
    names = {hint: r.const(found[0][None], hint, found[1]) for hint, found in constants.items() if found is not None}
    places = {word: place for word, (place, _) in states.items()}
    inputs = [data, names["W"], names["R"], names["B"], "", *places.values(), *(names.get(hint, "") for hint in ("P", "PW", "PB", "N"))]
    while inputs[-1] == "":
        inputs.pop()
    whole = r.intermediate("all", "float32", (order.steps, 1, order.rows, states["hidden"][1]))
    r.emit_with_states(kind, inputs, [whole], places, [(1, order.rows, size) for _, size in states.values()], **attributes)
    return whole


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
    if op.has(4):
        raise w.unsupported_error(op, "lengths of sequences", rule="sequence-lengths")
    if not all(op.has(5 + place) for place in range(cell_of(op).states)):
        raise w.unsupported_error(
            op, "initial states in each run, where TFLite's operator keeps its states between runs,", rule="initial-states"
        )


def state_of(w: Writing, op: Op, index: int) -> str:
    """Input `index` of a recurrence, (1, rows, values), as a variable of TFLite's operator, which has no axis of directions."""
    return w.variable(op, op.inputs[index], w.shape(op.inputs[index], op)[1:])


def sum_biases(w: Writing, op: Op, rows: int) -> Array:
    """The biases of a recurrence, of which TFLite has one for data and hidden values."""
    if not op.has(3):
        return np.zeros(rows, np.float32)
    return np.asarray(w.constant(op, 3).reshape(2, -1).sum(axis=0, dtype=np.float32))


def both_biases(bias: Array) -> Array:
    """The biases of data and hidden values, of which the second are 0: the reverse of sum_biases()."""
    return np.concatenate([bias, np.zeros_like(bias)])


def find_opposite_direction(w: Writing, op: Op, alike: tuple[str, ...]) -> Op | None:
    """The recurrence after `op` that goes through the same data the other way, equal in the attributes `alike`; None if there is none."""
    later = w.graph.ops[next(place for place, other in enumerate(w.graph.ops) if other is op) + 1 :]
    for other in later:
        same = other.kind == op.kind and other.inputs[0] == op.inputs[0] and {op["direction"], other["direction"]} == {"forward", "reverse"}
        if same and not w.is_absorbed(other) and all(other[name] == op[name] for name in alike):
            return other
    return None


class _Result(NamedTuple):
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
        own = w.producer(self.data, "Reshape", "Transpose") if w.is_read_by(self.data, ways) else None
        given = None if own is None else w.operand(own).shape
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
        found = self._w.successor(names[0], "Concat") if len(names) == 2 and all(names) else None
        if found is None or found.inputs != names or self._w.successor(names[1]) is not found:
            return None
        return found if self._w.axis(found, found["axis"], found.outputs[0]) == 3 else None

    def _result(self, name: str, size: int) -> _Result:
        reshaped = self._w.successor(name, "Reshape") if name else None
        if reshaped is None or reshaped.inputs[0] != name:
            return _Result(name, size, None, None)
        shape = self._w.result(reshaped).shape
        if shape != (self._steps, self._rows, size):
            return _Result(name, size, reshaped if shape == (self._rows, size) and self._steps == 1 else None, None)
        turned = self._w.successor(reshaped.outputs[0])
        return _Result(name, size, reshaped, turned if _is_time_transpose(turned) else None)

    def _is_single(self) -> bool:
        result = self._results[0]
        flat = result.reshaped is not None and len(self._w.tensor(result.reshaped.outputs[0]).shape or ()) == 2
        return len(self._ways) == 1 and flat

    def emit(self, cell: str, listed: Sequence[str], **options: Any) -> None:
        """Adds TFLite's operator of a cell, "LSTM" or "RNN", over a sequence one way or both, or of one step.

        Args:
            cell: whose it is.
            listed: its inputs after the first; a recurrence back alone turns data and results.
            options: but for those on the order of steps and rows, and on merged results.
        """
        is_both, builtin = len(self._ways) == 2, cell
        if self.form != "single":
            builtin = f"{'BI' if is_both else 'UNI'}DIRECTIONAL_SEQUENCE_{cell}"
            options["timeMajor"] = self.form == "steps"
        if is_both:
            options["mergeOutputs"] = self.merged
        w, backwards = self._w, not is_both and self._ways[0]["direction"] == "reverse" and self._steps > 1
        shown = [self._choose_output(result) for result in self._results]
        if not backwards:
            w.emit(builtin, [self.data, *listed], shown, **options)
        else:
            axis = w.ints([0 if self.form == "steps" else 1], f"{shown[0]}/axis")
            given = w.like(f"{shown[0]}/given", self.data, w.tensor(self.data).shape)
            back = w.like(f"{shown[0]}/back", shown[0], w.tensor(shown[0]).shape)
            w.emit("REVERSE_V2", [self.data, axis], [given])
            w.emit(builtin, [given, *listed], [back], **options)
            w.emit("REVERSE_V2", [back, axis], [shown[0]])
        for result, name in zip(self._results, shown, strict=True):
            if result.name and not self._is_reshape_absorbed(result):
                w.reshape(name, [self._steps, 1, self._rows, result.size], result.name)

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


def rounds_rows(r: Reading, weights: int) -> bool:
    """Whether the operator rounds rows of its data when it runs: its weights, input `weights`, are integers with float data."""
    return r.tensor(0).dtype == "float32" and r.tensor(weights).dtype == "int8"


def arithmetic_of(r: Reading) -> str:
    """How the operator's kernel rounds rows."""
    return "dynamic_rows" if r.option("asymmetricQuantizeInputs", False) else "dynamic_symmetric"


def is_asymmetric(op: Op) -> bool:
    """asymmetric_quantize_inputs of what is written."""
    return bool(op["arithmetic"] == "dynamic_rows")


def constant_int8(r: Reading, index: int, shape: tuple[int, ...] | None = None) -> tuple[Array, Quantization]:
    """The integers and the one scale of weights, at which kernels look; they take the zero point for 0.

    Raises:
        InvalidModelError: they have another shape than `shape`.
        UnsupportedError: they are computed at run time, or have several scales or a zero point.
    """
    if shape is not None and r.static_shape(index) != shape:
        raise r.invalid(f"has {r.inputs[index]!r} of shape {r.static_shape(index)}, not {shape}", rule="shape-mismatch")
    tensor = r.tensor(index)
    if problem := _problem(tensor):
        raise r.unsupported_error(f"{tensor.name!r} {problem},", rule="weight-quantization")
    assert tensor.data is not None and tensor.quantization is not None
    return tensor.data, tensor.quantization


def require_int8(w: Writing, op: Op, index: int) -> str:
    """The name of weights that a hybrid kernel takes as they are; raises UnsupportedError for others."""
    tensor = w.operand(op, index)
    if problem := _problem(tensor):
        raise w.unsupported_error(op, f"{tensor.name!r} {problem}", rule="weight-quantization")
    return tensor.name


def _problem(tensor: Tensor) -> str:
    q = tensor.quantization
    if tensor.data is None or tensor.dtype != "int8":
        return f"of {tensor.dtype} that {'are computed at run time' if tensor.data is None else 'are not int8'}"
    if q is None or q.scale.size != 1 or not q.is_symmetric:
        return "that have no single scale with zero point 0"
    return ""
