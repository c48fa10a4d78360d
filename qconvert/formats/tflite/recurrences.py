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

from qconvert.formats.tflite.ops.float_lstm import lstm_activation_code
from qconvert.formats.tflite.ops.recurrent import rnn_activation_code
from qconvert.formats.tflite.variables import inner_states
from qconvert.graph import Array, Attribute, Graph, Names, Op, Quantization, Tensor
from qconvert.operators import kind_of
from qconvert.operators.formulas import FORMULAS
from qconvert.operators.recurrent import (
    CELLS,
    NORM,
    PROJECTION,
    PROJECTION_BIAS,
    Activation,
    Parts,
    activations_of,
    cell_of,
    resets_before_product,
)
from qconvert.operators.shapes_and_functions import all_graphs
from qconvert.operators.sizes import Size
from qconvert.operators.values import Value, apply, where
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.control_flow import prefix_of
from qconvert.rewriting.lowering import Emission, Symbol, emit_formula

#: Inputs after data and weights.
_BIAS, _LENGTHS, _FIRST, _PEEPHOLES = 3, 4, 5, 7
#: The recurrences that TFLite has operators for -> the number of the activations in its schema; None for others.
_ACTIVATION_CODES = {"LSTM": lstm_activation_code, "RNN": rnn_activation_code}


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Decompose the recurrences of the network and of its functions, all at once: their steps are functions of the network."""
    if target is None or target.format != "tflite" or not any(any(inner.of_kind(*CELLS)) for _, inner in all_graphs(graph)):
        return graph, ()
    functions, counts, done = dict(graph.functions), Counter[str](), dict[str, Graph]()
    for key, inner in all_graphs(graph):
        new, inner_ones = Rewriter(inner), inner_states(inner)
        for op in new.of_kind(*CELLS):
            if _is_tflite_operator(inner, op, inner_ones) or not _is_float(inner, op):
                continue
            plain, quantizing = _dequantize_data(new, op)
            for part in _order_steps(new, plain):
                if kind_of(part).recurs:
                    _Recurrence(new, part, functions).write()
                else:
                    new.emit(part)
            new.replace(op, *quantizing)
            counts[op.kind] += 1
        done[key] = new.finish()
    if not counts:
        return graph, ()
    functions.update((key, inner) for key, inner in done.items() if key)
    notes = tuple(f"{count} {kind} are loops over their steps" for kind, count in sorted(counts.items()))
    return replace(done[""], functions=functions), notes


def _is_tflite_operator(graph: Graph, op: Op, inner: frozenset[str]) -> bool:
    """Whether a recurrence is one of TFLite's own: all of its states are states of the model, which nobody else sees."""
    plain = not op["layout"] and op["direction"] != "bidirectional" and not op.has(_LENGTHS)
    find_code = _ACTIVATION_CODES.get(op.kind)
    if not plain or find_code is None or find_code(op) is None:
        return False
    if any(not graph[name].is_constant for name in op.inputs[1:_LENGTHS] if name):
        return False
    makers = graph.producers()
    reads = [makers.find(op.input(_FIRST + place), "ReadState") for place in range(cell_of(op).states)]
    return all(read is not None and str(read["state"]) in inner for read in reads)


def _dequantize_data(new: Rewriter, op: Op) -> tuple[Op, list[Op]]:
    """Add a Dequantize of each quantized input but weights; return the operator on floats, and a Quantize for each quantized output."""
    inputs = tuple(
        new.dequantize(name, f"{name}/float", op.source) if name and index not in (1, 2) and new[name].is_quantized else name
        for index, name in enumerate(op.inputs)
    )
    outputs = tuple(new.add_float(f"{name}/float", new[name]) if name and new[name].is_quantized else name for name in op.outputs)
    quantizing = [op.derive("Quantize", (real,), (name,)) for real, name in zip(outputs, op.outputs, strict=True) if real != name]
    return replace(op, inputs=inputs, outputs=outputs), quantizing


def _order_steps(new: Rewriter, op: Op) -> Sequence[Op]:
    """The operator, between Transposes where the rows of its data come first."""
    formula = next(item for item in FORMULAS[op.kind] if item.name == "steps_first")
    found = emit_formula(new.tensors, op, formula, "float32") if op["layout"] else None
    if found is None:
        return [op]
    for tensor in found.tensors.values():
        new.define(tensor)
    return found.ops


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
    """An operator that is decomposed, whose data have their steps first.

    Args:
        new: the graph around it.
        op: the operator.
        functions: of the network.
    """

    def __init__(self, new: Rewriter, op: Op, functions: dict[str, Graph]) -> None:
        self._new, self._op, self._functions = new, op, functions
        self._prefix = prefix_of(op)
        self._outer = Emission(new.tensors, "float32", op.source, self._prefix)
        self._cell, self._cells = cell_of(op), int(op["hidden_size"])
        self._data = Symbol(self._outer, op.inputs[0])
        self._width = int((new[op.inputs[2]].static_shape or (0,))[-1])  # of what a step gives: a projection of its cells
        self._steps, self._batch = (self._data.shape or ())[:2]
        self._lengths = self._find_lengths()
        #: Tensors that a step reads next to what the Scan gives it: their names outside and inside.
        self._captures: list[tuple[str, str]] = []

    def write(self) -> None:
        """Adds a Scan for each direction, and what puts their results together."""
        directions = activations_of(self._op, self._cell)
        found = [self._direction(place, activations, len(directions)) for place, activations in enumerate(directions)]
        results: list[Any] = []
        for place, (name, parts) in enumerate(zip(self._op.outputs, zip(*found, strict=True), strict=False)):
            axis = 1 if place == 0 else 0
            along = [apply("Unsqueeze", part, np.array([axis])) for part in parts] if name else [None]
            results.append(along[0] if len(along) == 1 else apply("Concat", *along, axis=axis))
        self._outer.finish(self._op, results)
        for tensor in self._outer.tensors.values():
            self._new.define(tensor)
        self._new.emit(*self._outer.ops)

    def _direction(self, direction: int, activations: Sequence[Activation], count: int) -> list[Value]:
        """All hidden values of a direction (None where nobody reads them), and its last states."""
        op, outer, lengths = self._op, self._outer, self._lengths
        self._captures = []
        backwards = op["direction"] == "reverse" or direction == 1
        turned = backwards and lengths is not None  # each sequence by itself, which a Scan cannot
        shape = self._data.shape or ()
        body = Emission({}, "float32", "", f"{self._prefix}/step")
        sizes = (self._width, self._cells)[: self._cell.states]
        states = [self._symbol(body, (self._batch, size), word) for size, word in zip(sizes, ("hidden", "cell"), strict=False)]
        element = self._symbol(body, shape[1:], "element")
        inputs, given = [*states, element], self._first_states(direction, count, sizes)
        given.append(self._reverse_sequences(self._data) if turned else self._data)
        if lengths is not None:
            inputs.append(self._symbol(body, (), "turn", "int32"))
            given.append(self._step_numbers())
        data_sums, parts = self._parts_of(direction, activations, element, body)
        after = list(self._cell.step(parts, data_sums, *states))
        shown = after[0]
        if lengths is not None:
            after, shown = self._mask_after_end(body, inputs[-1], states, after)
        is_read = bool(op.outputs[0])
        shows = [apply("Identity", shown)] if is_read else []  # an output of its own, next to the state
        name = Names(self._functions).fresh(body_name := f"{self._prefix}/step")
        ends = tuple(item.name for item in (*after, *shows))
        starts = (*(item.name for item in inputs), *(inside for _, inside in self._captures))
        self._functions[name] = Graph(body_name, body.tensors, tuple(body.ops), starts, ends)
        last = [self._symbol(outer, (self._batch, size), f"{self._prefix}/last") for size in sizes]
        whole = [self._symbol(outer, (shape[0], self._batch, self._width), f"{self._prefix}/all")] if is_read else []
        attributes: dict[str, Attribute] = {"body": name, "carried": len(after), "num_scan_inputs": 1 if lengths is None else 2}
        if backwards and not turned:
            attributes["scan_input_directions"] = (1,)
            if is_read:
                attributes["scan_output_directions"] = (1,)
        operands = (*(item.name for item in given), *(outside for outside, _ in self._captures))
        outer.ops.append(Op("Scan", operands, tuple(item.name for item in (*last, *whole)), attributes, op.source))
        seen = None if not is_read else self._reverse_sequences(whole[0]) if turned else whole[0]
        return [seen, *last]

    def _first_states(self, direction: int, count: int, sizes: Sequence[int]) -> list[Value]:
        """The states before the first step."""
        found: list[Value] = []
        for index, size in enumerate(sizes, _FIRST):
            if self._op.has(index):
                value = Symbol(self._outer, self._op.inputs[index])
                one = apply("Squeeze", value, np.array([0])) if count == 1 else apply("Gather", value, np.array(direction), axis=0)
                found.append(one)
            elif isinstance(self._batch, int):
                found.append(self._constant("zeros", np.zeros((self._batch, size), np.float32)))
            else:
                shape = apply("Concat", self._size(1), np.array([size]), axis=0)
                found.append(apply("Expand", np.zeros((), np.float32), shape))
        return found

    def _size(self, axis: int) -> Value:
        """A size of the data, as one int64."""
        return apply("Gather", apply("Shape", self._data), np.array([axis]), axis=0)

    def _parts_of(self, direction: int, activations: Sequence[Activation], element: Symbol, body: Emission) -> tuple[Value, Parts]:
        """The sums of a step's data, and what a direction computes with: constants of the body, or captures of what is computed."""
        op, cells, rows = self._op, self._cells, self._cell.gates * self._cells
        own = [2 * cells, cells] if resets_before_product(op) else [rows]

        def parts(index: int, sizes: list[int]) -> list[Symbol]:
            return [Symbol(body, name) for name in self._parts(index, direction, sizes, body)] if op.has(index) else []

        w, r, norms = parts(1, [rows]), parts(2, own), parts(NORM, [cells] * self._cell.gates)
        bias = parts(_BIAS, [cells] * 2 * self._cell.gates if norms else [rows, *own])
        more: dict[str, Any] = {}
        if norms:
            added: list[Value] = [one + other for one, other in zip(bias[: len(norms)], bias[len(norms) :], strict=True)]
            added = added or [None] * len(norms)
            more["norms"], bias = list(zip(norms, added, strict=True)), []
        if matrix := parts(PROJECTION, [self._width]):
            more["projected"] = partial(_product, [*matrix, *parts(PROJECTION_BIAS, [self._width])])

        def product(values: Value, first: int, count: int) -> Value:
            place = 1 if first else 0  # the rows after the reset gate stand by themselves
            return _product([r[place], *bias[1 + place : 2 + place]], values)

        found = Parts(op, activations, product, peepholes=parts(_PEEPHOLES, [cells] * 3), **more)
        return _product([*w, *bias[:1]], element), found

    def _parts(self, index: int, direction: int, sizes: list[int], body: Emission) -> list[str]:
        tensor = self._new[self._op.inputs[index]]
        if tensor.data is not None:
            ends = np.cumsum(sizes)
            spans = [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]
            pieces = [(tensor.data[direction, span], _quantization(tensor.quantization, direction, span)) for span in spans]
            return [body.add(replace(tensor, shape=data.shape, data=data, quantization=own)) for data, own in pieces]
        whole = apply("Gather", Symbol(self._outer, tensor.name), np.array(direction), axis=0)
        outer = apply("Split", whole, np.array(sizes), outputs=len(sizes), axis=0)
        inside = [body.add(Tensor(tensor.name, "float32", (size, *(tensor.shape or ())[2:]))) for size in sizes]
        self._captures += zip((item.name for item in (outer if len(sizes) > 1 else [outer])), inside, strict=True)
        return inside

    def _find_lengths(self) -> Symbol | None:
        """The lengths of the sequences; None where all are as long as the data."""
        name = self._op.inputs[_LENGTHS] if self._op.has(_LENGTHS) else ""
        data = self._new[name].data if name else None
        alike = data is not None and isinstance(self._steps, int) and bool((data == self._steps).all())
        return Symbol(self._outer, name) if name and not alike else None

    def _step_numbers(self) -> Value:
        """0, 1, 2 … as many as there are steps."""
        if isinstance(self._steps, int):
            return self._constant("turns", np.arange(self._steps, dtype=np.int32))
        count = apply("Cast", apply("Reshape", self._size(0), np.zeros(0, np.int64)), to="int32")
        return apply("Range", np.array(0, np.int32), count, np.array(1, np.int32))

    def _constant(self, word: str, data: Array) -> Symbol:
        return Symbol(self._outer, self._outer.add(Tensor(f"{self._prefix}/{word}", data.dtype.name, data.shape, data)))

    def _mask_after_end(self, body: Emission, turn: Value, states: Sequence[Value], after: Sequence[Value]) -> tuple[list[Value], Value]:
        """The states, which stay after the end of a sequence, and the results, which are zeros there."""
        column, inside = apply("Unsqueeze", self._lengths, np.array([1])), self._symbol(body, (self._batch, 1), "lengths", "int32")
        self._captures.append((column.name, inside.name))
        runs = apply("Less", turn, inside)
        return [where(runs, new, old) for old, new in zip(states, after, strict=True)], where(runs, after[0], 0.0)

    def _reverse_sequences(self, value: Value) -> Value:
        """Each sequence backwards, as far as it goes."""
        return apply("ReverseSequence", value, apply("Cast", self._lengths, to="int64"), time_axis=0, batch_axis=1)

    @staticmethod
    def _symbol(emission: Emission, shape: tuple[Size, ...], name: str, dtype: str = "float32") -> Symbol:
        return Symbol(emission, emission.add(Tensor(name, dtype, shape)))


def _product(parameters: Sequence[Value], value: Value) -> Value:
    """Rows of weights times a value, and their bias."""
    return apply("Gemm", value, *parameters)


def _quantization(quantization: Quantization | None, direction: int, rows: slice) -> Quantization | None:
    """The quantization of some rows of one direction's weights."""
    if quantization is None or quantization.axis is None:
        return quantization
    if quantization.axis == 0:
        return quantization.take(slice(direction, direction + 1)).with_axis(None)
    return quantization.take(rows).with_axis(0)
