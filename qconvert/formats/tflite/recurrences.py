"""The pass decompose_recurrence: LSTM, GRU and RNN as a Scan over their steps, which the writer makes a WHILE of.

TFLite has one operator of its own, an LSTM whose states go on from run to run: that stays where the states are states of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.float_rnn import rnn_activation_code
from qconvert.formats.tflite.ops.lstm_writing import activation_code
from qconvert.formats.tflite.variables import inner_states
from qconvert.graph import Graph, Names, Op, Quantization, Tensor
from qconvert.operators.recurrent import CELLS, NORM, PROJECTION, PROJECTION_BIAS, Activation, Parts, activations_of, resets_before_product
from qconvert.operators.shapes_and_functions import all_graphs
from qconvert.operators.sizes import Size
from qconvert.operators.values import Value, apply, where
from qconvert.plugins import Target
from qconvert.rewriting.control_flow import Inlining, prefix_of
from qconvert.rewriting.lowering import Emission, Symbol

__all__ = ["run"]

#: Inputs after data and weights.
_BIAS, _LENGTHS, _FIRST, _PEEPHOLES = 3, 4, 5, 7
#: The recurrences that TFLite has operators for -> the number of the activations in its schema; None for others.
_ACTIVATION_CODES = {"LSTM": activation_code, "RNN": rnn_activation_code}


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Decompose the recurrences of the network and of its functions, all at once: their steps are functions of the network."""
    if target is None or target.format != "tflite" or not any(any(inner.of_kind(*CELLS)) for _, inner in all_graphs(graph)):
        return graph, ()
    functions, counts, done = dict(graph.functions), Counter[str](), dict[str, Graph]()
    for key, inner in all_graphs(graph):
        new, inner_ones = Inlining(inner), inner_states(inner)
        for op in inner.ops:
            if op.kind not in CELLS or _is_tflite_operator(inner, op, inner_ones) or not _is_float(inner, op):
                new.ops.append(op)
                continue
            plain, quantizing = _dequantize_data(new, op)
            _Recurrence(new, plain, functions).write()
            new.ops.extend(quantizing)
            counts[op.kind] += 1
        done[key] = inner.evolve(tensors=new.tensors.values(), ops=new.ops)
    if not counts:
        return graph, ()
    functions.update((key, inner) for key, inner in done.items() if key)
    notes = tuple(f"{count} {kind} are loops over their steps" for kind, count in sorted(counts.items()))
    return replace(done[""], functions=functions), notes


def _is_tflite_operator(graph: Graph, op: Op, inner: frozenset[str]) -> bool:
    """Whether a recurrence is one of TFLite's own: all of its states are states of the model, which nobody else sees."""
    named = (*op.inputs, *[""] * _PEEPHOLES)
    plain = not op["layout"] and op["direction"] != "bidirectional" and not named[_LENGTHS]
    find_code = _ACTIVATION_CODES.get(op.kind)
    if not plain or find_code is None or find_code(op) is None:
        return False
    if any(not graph[name].is_constant for name in named[1:_LENGTHS] if name):
        return False
    makers = graph.producers()
    reads = [makers.find(name, "ReadState") for name in named[_FIRST : _FIRST + CELLS[op.kind].states]]
    return all(read is not None and str(read["state"]) in inner for read in reads)


def _dequantize_data(new: Inlining, op: Op) -> tuple[Op, list[Op]]:
    """Add a Dequantize of each quantized input but weights; return the operator on floats, and a Quantize for each quantized output."""

    def add_float(name: str) -> str:
        return new.add(Tensor("", "float32", new.tensors[name].shape), f"{name}/float")

    inputs, outputs, quantizing = list(op.inputs), list(op.outputs), []
    for index, name in enumerate(op.inputs):
        if name and index not in (1, 2) and new.tensors[name].is_quantized:
            inputs[index] = add_float(name)
            new.ops.append(Op("Dequantize", (name,), (inputs[index],), {}, op.source))
    for index, name in enumerate(op.outputs):
        if name and new.tensors[name].is_quantized:
            outputs[index] = add_float(name)
            quantizing.append(Op("Quantize", (outputs[index],), (name,), {}, op.source))
    return replace(op, inputs=tuple(inputs), outputs=tuple(outputs)), quantizing


def _is_float(graph: Graph, op: Op) -> bool:
    """Whether what goes in and comes out are float32, or quantized values that stand for such, and the weights divide by directions."""
    data = [name for index, name in enumerate(op.inputs) if name and index != _LENGTHS]
    for name in (*data, *filter(None, op.outputs)):
        tensor = graph[name]
        weights = name in op.inputs[1:3] and tensor.is_constant
        quantization = tensor.quantization
        if weights and quantization is not None and (quantization.block_size or quantization.axis not in (None, 0, 1)):
            return False
        if not weights and not tensor.is_quantized and tensor.dtype != "float32":
            return False
    return graph[op.inputs[0]].rank == 3 and all(graph[name].static_shape is not None for name in op.inputs[1:3])


class _Recurrence:
    """An operator that is decomposed.

    Args:
        new: the graph around it.
        op: the operator.
        functions: of the network.
    """

    def __init__(self, new: Inlining, op: Op, functions: dict[str, Graph]) -> None:
        self._new, self._op, self._functions = new, op, functions
        self._prefix = prefix_of(op)
        self._cell, self._cells = CELLS[op.kind], int(op["hidden_size"])
        self._rows = self._cell.gates * self._cells
        self._width = int((new.tensors[op.inputs[2]].static_shape or (0,))[-1])  # of what a step gives: a projection of its cells
        self._count = 2 if op["direction"] == "bidirectional" else 1
        shape = new.tensors[op.inputs[0]].shape or ()
        self._steps, self._batch = (shape[1], shape[0]) if op["layout"] else (shape[0], shape[1])

    def write(self) -> None:
        """Adds a Scan for each direction, and what puts their results together."""
        op = self._op
        data = self._transpose(op.inputs[0], (1, 0, 2)) if op["layout"] else op.inputs[0]
        results: list[list[str]] = [[] for _ in op.outputs]
        for direction, activations in enumerate(activations_of(op, self._cell)):
            for place, name in enumerate(self._direction(direction, activations, data)):
                if place < len(results):
                    results[place].append(name)
        for place, (name, parts) in enumerate(zip(op.outputs, results, strict=True)):
            if name:
                self._join_directions(name, parts, is_whole=place == 0)

    def _direction(self, direction: int, activations: Sequence[Activation], data: str) -> list[str]:
        """All hidden values of a direction ("" where nobody reads them), and its last states."""
        op, new = self._op, self._new
        backwards = op["direction"] == "reverse" or direction == 1
        lengths = self._lengths()
        turned = backwards and bool(lengths)  # each sequence by itself, which a Scan cannot
        sequence = self._reverse_sequences(data, lengths) if turned else data
        shape = new.tensors[data].shape or ()
        body = Emission({}, "float32", "", f"{self._prefix}/step")
        sizes = (self._width, self._cells)[: self._cell.states]
        states = [self._symbol(body, (self._batch, size), word) for size, word in zip(sizes, ("hidden", "cell"), strict=False)]
        element = self._symbol(body, shape[1:], "element")
        inputs, given = [*states, element], [*self._first_states(direction), sequence]
        if lengths:
            inputs.append(self._symbol(body, (), "turn", "int32"))
            given.append(self._step_numbers(data))
        captures: list[tuple[str, str]] = []
        data_sums, parts = self._parts_of(direction, activations, element, body, captures)
        after = list(self._cell.step(parts, data_sums, *states))
        shown = after[0]
        if lengths:
            after, shown = self._mask_after_end(body, inputs[-1], lengths, states, after, captures)
        is_read = bool(op.outputs[0])
        if is_read:  # an output of its own, next to the state
            shown = apply("Identity", shown)
        name = Names(self._functions).fresh(body_name := f"{self._prefix}/step")
        self._functions[name] = Graph(
            body_name,
            body.tensors,
            tuple(body.ops),
            (*(item.name for item in inputs), *(inside for _, inside in captures)),
            tuple(item.name for item in (*after, *([shown] if is_read else []))),
        )
        outputs = [new.add(Tensor("", "float32", (self._batch, size)), f"{self._prefix}/last") for size in sizes]
        whole = new.add(Tensor("", "float32", (shape[0], self._batch, self._width)), f"{self._prefix}/all") if is_read else ""
        scanned = 2 if lengths else 1
        attributes: dict[str, int | str | tuple[int, ...]] = {"body": name, "carried": len(after), "num_scan_inputs": scanned}
        if backwards and not turned:
            attributes["scan_input_directions"] = (1,)
            if is_read:
                attributes["scan_output_directions"] = (1,)
        inner = (*given, *(outer for outer, _ in captures))
        new.ops.append(Op("Scan", inner, (*outputs, *([whole] if is_read else [])), attributes, op.source))
        return [self._reverse_sequences(whole, lengths) if turned and is_read else whole, *outputs]

    def _join_directions(self, result: str, parts: Sequence[str], *, is_whole: bool) -> None:
        """The results of the directions along an axis of their own."""
        layout, axis = self._op["layout"], 1 if is_whole else 0
        if layout:
            parts, axis = ([self._transpose(part, (1, 0, 2)) for part in parts], 2) if is_whole else (parts, 1)
        flat = self._new.tensors[result]
        ones = flat.shape or ()
        along = [result] if len(parts) == 1 else [self._new.add(replace(flat, shape=(*ones[:axis], 1, *ones[axis + 1 :]))) for _ in parts]
        for part, name in zip(parts, along, strict=True):
            self._add("Unsqueeze", (part, self._ints([axis])), name)
        if len(parts) > 1:
            self._add("Concat", tuple(along), result, axis=axis)

    def _first_states(self, direction: int) -> list[str]:
        """The states before the first step."""
        found = []
        for index, size in zip(range(_FIRST, _FIRST + self._cell.states), (self._width, self._cells), strict=False):
            shape = (self._batch, size)
            name = self._op.inputs[index] if index < len(self._op.inputs) else ""
            if name:
                axis = int(self._op["layout"])
                place = self._new.add(Tensor("", "int64", (), np.array(direction, np.int64)), f"{self._prefix}/direction")
                value = self._new.add(Tensor("", "float32", shape), f"{self._prefix}/first")
                if self._count == 1:
                    self._add("Squeeze", (name, self._ints([axis])), value)
                else:
                    self._add("Gather", (name, place), value, axis=axis)
            elif isinstance(self._batch, int):
                value = self._new.add(Tensor("", "float32", shape, np.zeros((self._batch, size), np.float32)), f"{self._prefix}/zeros")
            else:
                zero = self._new.add(Tensor("", "float32", (), np.zeros((), np.float32)), f"{self._prefix}/zero")
                sizes = self._new.add(Tensor("", "int64", (2,)), f"{self._prefix}/sizes")
                self._add("Concat", (self._size(0 if self._op["layout"] else 1), self._ints([size])), sizes, axis=0)
                value = self._new.add(Tensor("", "float32", shape), f"{self._prefix}/zeros")
                self._add("Expand", (zero, sizes), value)
            found.append(value)
        return found

    def _size(self, axis: int) -> str:
        """A size of the data, as one int64."""
        sizes = self._new.add(Tensor("", "int64", (3,)), f"{self._prefix}/shape")
        self._add("Shape", (self._op.inputs[0],), sizes)
        return self._make("Gather", (sizes, self._ints([axis])), (1,), "int64", axis=0)

    def _parts_of(
        self, direction: int, activations: Sequence[Activation], element: Symbol, body: Emission, captures: list[tuple[str, str]]
    ) -> tuple[Value, Parts]:
        """The sums of a step's data, and what a direction computes with: constants of the body, or captures of what is computed."""
        op, cells, rows = self._op, self._cells, self._rows
        own = [2 * cells, cells] if resets_before_product(op) else [rows]

        def parts(index: int, sizes: list[int]) -> list[Symbol]:
            if not op.has(index):
                return []
            return [Symbol(body, name) for name in self._parts(index, direction, sizes, body, captures)]

        w, r, norms = parts(1, [rows]), parts(2, own), parts(NORM, [cells] * self._cell.gates)
        bias = parts(_BIAS, [cells] * 2 * self._cell.gates if norms else [rows, *own])
        more: dict[str, Any] = {}
        if norms:
            added = [one + other for one, other in zip(bias[: len(norms)], bias[len(norms) :], strict=True)] or [None] * len(norms)
            more["norms"], bias = list(zip(norms, added, strict=True)), []
        if matrix := parts(PROJECTION, [self._width]):
            more["projected"] = partial(_product, [*matrix, *parts(PROJECTION_BIAS, [self._width])])

        def product(values: Value, first: int, count: int) -> Value:
            place = 1 if first else 0  # the rows after the reset gate stand by themselves
            return _product([r[place], *bias[1 + place : 2 + place]], values)

        found = Parts(op, activations, product, peepholes=parts(_PEEPHOLES, [cells] * 3), **more)
        return _product([*w, *bias[:1]], element), found

    def _parts(self, index: int, direction: int, sizes: list[int], body: Emission, captures: list[tuple[str, str]]) -> list[str]:
        tensor = self._new.tensors[self._op.inputs[index]]
        ends = [int(end) for end in np.cumsum(sizes)]
        spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        if tensor.data is not None:
            return [
                body.add(replace(tensor, shape=data.shape, data=data, quantization=_quantization(tensor.quantization, direction, span)))
                for span in spans
                if (data := tensor.data[direction, span]) is not None
            ]
        place = self._new.add(Tensor("", "int64", (), np.array(direction, np.int64)), f"{self._prefix}/direction")
        whole = self._make("Gather", (tensor.name, place), (tensor.shape or ())[1:], "float32", axis=0)
        shapes = [(size, *(tensor.shape or ())[2:]) for size in sizes]
        outer = [self._new.add(Tensor("", "float32", shape), f"{tensor.name}/part") for shape in shapes]
        self._new.ops.append(Op("Split", (whole, self._ints(sizes)), tuple(outer), {"axis": 0}, self._op.source))
        inside = [body.add(Tensor(tensor.name, "float32", shape)) for shape in shapes]
        captures += zip(outer, inside, strict=True)
        return inside

    def _lengths(self) -> str:
        """The lengths of the sequences; "" where all are as long as the data."""
        name = self._op.inputs[_LENGTHS] if len(self._op.inputs) > _LENGTHS else ""
        data = self._new.tensors[name].data if name else None
        return "" if data is not None and isinstance(self._steps, int) and bool((data == self._steps).all()) else name

    def _step_numbers(self, data: str) -> str:
        """0, 1, 2 … as many as there are steps."""
        if isinstance(self._steps, int):
            return self._new.add(Tensor("", "int32", (self._steps,), np.arange(self._steps, dtype=np.int32)), f"{self._prefix}/turns")
        scalar = self._new.add(Tensor("", "int64", (0,), np.zeros(0, np.int64)), f"{self._prefix}/scalar")
        count = self._make("Reshape", (self._size(1 if self._op["layout"] else 0), scalar), (), "int64")
        ends = [self._new.add(Tensor("", "int32", (), np.array(value, np.int32)), f"{self._prefix}/number") for value in (0, 1)]
        limit = self._make("Cast", (count,), (), "int32", to="int32")
        return self._make("Range", (ends[0], limit, ends[1]), ((self._new.tensors[data].shape or ("",))[0],), "int32")

    def _mask_after_end(
        self,
        body: Emission,
        turn: Value,
        lengths: str,
        states: Sequence[Value],
        after: Sequence[Value],
        captures: list[tuple[str, str]],
    ) -> tuple[list[Value], Value]:
        """The states, which stay after the end of a sequence, and the results, which are zeros there."""
        column = self._make("Unsqueeze", (lengths, self._ints([1])), (self._batch, 1), "int32")
        inside = self._symbol(body, (self._batch, 1), "lengths", "int32")
        captures.append((column, inside.name))
        runs = apply("Less", turn, inside)
        return [where(runs, new, old) for old, new in zip(states, after, strict=True)], where(runs, after[0], 0.0)

    def _reverse_sequences(self, name: str, lengths: str) -> str:
        """Each sequence backwards, as far as it goes."""
        wide = self._make("Cast", (lengths,), (self._batch,), "int64", to="int64")
        return self._make("ReverseSequence", (name, wide), self._new.tensors[name].shape or (), "float32", time_axis=0, batch_axis=1)

    def _transpose(self, name: str, perm: tuple[int, ...]) -> str:
        shape = self._new.tensors[name].shape or ()
        return self._make("Transpose", (name,), tuple(shape[axis] for axis in perm), "float32", perm=perm)

    @staticmethod
    def _symbol(body: Emission, shape: tuple[Size, ...], name: str, dtype: str = "float32") -> Symbol:
        return Symbol(body, body.add(Tensor(name, dtype, shape)))

    def _make(self, kind: str, inputs: tuple[str, ...], shape: tuple[Size, ...], dtype: str, **attributes: object) -> str:
        name = self._new.add(Tensor("", dtype, shape), f"{self._prefix}/{kind}")
        self._add(kind, inputs, name, **attributes)
        return name

    def _add(self, kind: str, inputs: tuple[str, ...], result: str, **attributes: object) -> None:
        self._new.ops.append(Op(kind, inputs, (result,), attributes, self._op.source))  # type: ignore[arg-type]

    def _ints(self, values: Sequence[int]) -> str:
        return self._new.integers(values, f"{self._prefix}/numbers")


def _product(parameters: Sequence[Value], value: Value) -> Value:
    """Rows of weights times a value, and their bias."""
    return apply("Gemm", value, *parameters)


def _quantization(quantization: Quantization | None, direction: int, rows: slice) -> Quantization | None:
    """The quantization of some rows of one direction's weights."""
    if quantization is None or quantization.axis is None:
        return quantization
    if quantization.axis == 0:
        return replace(
            quantization,
            scale=quantization.scale[direction : direction + 1],
            zero_point=quantization.zero_point[direction : direction + 1],
            axis=None,
        )
    return replace(quantization, scale=quantization.scale[rows], zero_point=quantization.zero_point[rows], axis=0)
