"""fuse_recurrence: loops over a sequence that TensorFlow's converter decomposed become LSTM, GRU, RNN, or a Scan.

A While with a counter from 0 to a constant that reads a sequence at this index is a Scan over it, with the operators of its body as they
are: exact (loop_recognition.py). A body that computes a cell in float, as frameworks write it with products, sums and gates,
becomes the operator of that name: its step (operators/recurrent.py) is drawn as a pattern, in which the sum of each gate stands for any
products and constants. The operator sums in its own order: the last bit of a float may differ.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Graph, Op, Producers, Tensor, numpy_dtype
from qconvert.graph.names import Names
from qconvert.operators import KINDS, kind_of
from qconvert.operators.recurrent import ACTIVATIONS, CELLS, Activation, Parts
from qconvert.operators.shapes_and_functions import all_graphs, with_used_functions
from qconvert.operators.sizes import reshape_sizes
from qconvert.operators.values import Value
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Pattern, Rewriter
from qconvert.rewriting.control_flow import prefix_of
from qconvert.rewriting.parts import Drawn

if TYPE_CHECKING:
    from qconvert.passes.loop_recognition import ScanForm


def fuse_recurrence(graph: Graph, target: Target | None) -> PassResult:
    """Replace the loops of the network and of its functions, all at once: a function by itself names what it does not hold."""
    if not graph.functions or not any(inner.of_kind("While") for _, inner in all_graphs(graph)):
        return graph, ()
    from qconvert.passes.loop_recognition import scan_form

    functions, counts = dict(graph.functions), Counter[str]()
    done: dict[str, Graph] = {}
    for key, inner in all_graphs(graph):
        rewriter = Rewriter(inner)
        for op in rewriter.of_kind("While"):
            form = scan_form(inner, op, *(graph.functions[str(op[name])] for name in ("condition", "body")))
            if form is not None:
                counts[_Loop(rewriter, op, form).write(functions)] += 1
                rewriter.remove(op)
        done[key] = rewriter.finish()
    if not counts:
        return graph, ()
    functions.update((key, inner) for key, inner in done.items() if key)
    changed = with_used_functions(replace(done[""], functions=functions))
    return changed, tuple(
        Change(f"{format_count(count, 'loop')} over a sequence {format_verb(count, 'are')} a {kind}", exact=kind == "Scan")
        for kind, count in sorted(counts.items())
    )


class _Loop:
    """A loop that is rewritten."""

    def __init__(self, rewriter: Rewriter, op: Op, form: ScanForm) -> None:
        self._rewriter, self._graph, self._op, self._form = rewriter, rewriter.graph, op, form
        self._name = prefix_of(op)
        self._read = {*rewriter.readers, *rewriter.graph.outputs}

    def write(self, functions: dict[str, Graph]) -> str:
        """Emit the operators; return the kind of the loop's own."""
        op, form = self._op, self._form
        for index, value in form.counters.items():
            dtype = numpy_dtype(self._graph[op.inputs[index]].dtype)
            self._emit_output(index, self._constant(np.array(value, dtype), "count"))
        for index in (*form.kept, *form.sequences):
            self._emit_output(index, op.inputs[index])
        cell, hidden = self._cell()
        if cell is not None:
            self._emit_cell(cell, hidden)
            return cell.kind
        name = Names(functions).fresh(str(op["body"]))
        functions[name] = form.body
        inputs = tuple(op.inputs[index] for index in (*form.states, *form.sequences, *form.captures))
        outputs = tuple(op.outputs[index] for index in (*form.states, *form.stacks))
        attributes: dict[str, int | str] = {"body": name, "carried": len(form.states), "num_scan_inputs": len(form.sequences)}
        self._rewriter.emit(op.derive("Scan", inputs, outputs, **attributes))
        return "Scan"

    def _emit_output(self, index: int, value: str) -> None:
        """Emit an output of the loop that is a value known without it."""
        name = self._op.outputs[index]
        if name in self._read:
            self._rewriter.emit(self._op.derive("Identity", (value,), (name,)))

    def _constant(self, data: Array, hint: str) -> str:
        return self._rewriter.constant(f"{self._name}/{hint}", data)

    def _cell(self) -> tuple[Cell | None, list[int]]:
        """Return the cell that the body is, and which of the Scan's states are its own; others are reshaped copies of these."""
        form, body = self._form, self._inline_constants(self._form.body)
        readers = body.consumers()
        own = [place for place in range(len(form.states)) if body.inputs[place] in readers]
        sequence = self._graph[self._op.inputs[form.sequences[0]]].shape
        if len(form.sequences) != 1 or sequence is None or len(sequence) != 3 or not own:
            return None, []
        outputs = tuple(body.outputs[place] for place in own)
        inputs = (*(body.inputs[place] for place in own), body.inputs[len(form.states)])
        cell = cell_of(body.evolve(inputs=inputs, outputs=outputs), len(own))
        if cell is None:
            return None, []
        others = [place for place in range(len(body.outputs)) if place not in own]
        copies = all(_origin(body, body.outputs[place]) == outputs[cell.hidden] for place in others)
        real = all(self._graph[self._op.inputs[index]].dtype == "float32" for index in form.states)
        return (cell, own) if copies and real else (None, [])

    def _inline_constants(self, body: Graph) -> Graph:
        """Return the body with what it reads of constants as constants: those from around it, and float16 ones after a Cast."""
        outer, first = self._rewriter.producers, len(self._form.states) + len(self._form.sequences)
        given = zip(body.inputs[first:], (self._op.inputs[index] for index in self._form.captures), strict=True)
        found = {name: data for name, value in given if (data := _float_constant(self._graph, outer.get(value), value)) is not None}
        for op in body.of_kind("Cast"):
            if (data := _float_constant(body, op, op.name)) is not None:
                found[op.name] = data
        rewriter = Rewriter(body)
        for name, data in found.items():
            rewriter.define(replace(body[name], data=data.reshape(body[name].static_shape or data.shape)))
            if name in rewriter.producers:
                rewriter.remove(rewriter.producers[name])
        return rewriter.finish(inputs=tuple(name for name in body.inputs if name not in found))

    def _emit_cell(self, cell: Cell, own: list[int]) -> None:
        """Emit the operator of the cell, and its results in the shapes of the loop's."""
        op, form = self._op, self._form
        given = [op.inputs[form.states[place]] for place in own]
        order = [given[cell.hidden], *(name for place, name in enumerate(given) if place != cell.hidden)]
        weights = [self._constant(data[None], word) for data, word in zip(cell.weights, "WRB", strict=True)]
        firsts = [self._emit_reshape(name, (1, *(self._graph[name].shape or ())), "first") for name in order]
        sequence = self._graph[op.inputs[form.sequences[0]]].shape or ()
        hidden = len(cell.weights[1]) // CELLS[cell.kind].gates
        sizes = {"Y": (sequence[0], 1, sequence[1], hidden), "Y_h": (1, sequence[1], hidden), "Y_c": (1, sequence[1], hidden)}
        names = [self._rewriter.add(f"{self._name}/{word}", Tensor("", "float32", shape)) for word, shape in sizes.items()]
        attributes: dict[str, int | tuple[str, ...]] = {"hidden_size": hidden, "activations": cell.activations}
        if cell.linear_before_reset:
            attributes["linear_before_reset"] = 1
        inputs = (op.inputs[form.sequences[0]], *weights, "", *firsts)
        self._rewriter.emit(op.derive(cell.kind, inputs, tuple(names[: 1 + len(own)]), **attributes))
        results = dict.fromkeys(form.states, names[1])
        results.update({form.states[place]: names[2] for position, place in enumerate(own) if position != cell.hidden})
        results.update(dict.fromkeys(form.stacks, names[0]))
        for index, value in results.items():
            if op.outputs[index] in self._read:
                self._emit_reshape(value, self._graph[op.outputs[index]].shape or (), "", op.outputs[index])

    def _emit_reshape(self, name: str, shape: tuple[int | str, ...], hint: str, result: str = "") -> str:
        tensor = self._rewriter[name]
        if tensor.data is not None and not result:
            return self._constant(tensor.data.reshape([int(size) for size in shape]), hint)
        sizes = self._constant(np.array(reshape_sizes(shape), np.int64), "shape")
        if not result:
            return self._rewriter.compute("Reshape", (name, sizes), f"{self._name}/{hint}", replace(tensor, shape=shape), self._op.source)
        self._rewriter.emit(self._op.derive("Reshape", (name, sizes), (result,)))
        return result


def _float_constant(graph: Graph, maker: Op | None, name: str) -> Array | None:
    """Return a constant of float32, or one that a Cast makes so of float16."""
    if maker is None:
        return graph.constant(name) if graph[name].dtype == "float32" else None
    data = graph.constant(maker.inputs[0]) if kind_of(maker).casts and maker["to"] == "float32" else None
    return data.astype(np.float32) if data is not None and data.dtype == np.float16 else None


def _origin(body: Graph, name: str) -> str:
    """Return the value that another is with other axes of size 1."""
    makers = body.producers()
    while (op := makers.get(name)) is not None and (kind_of(op).keeps_order or kind_of(op).copies):
        sizes = [[size for size in body[item].shape or () if size != 1] for item in (op.inputs[0], name)]
        if sizes[0] != sizes[1]:
            break
        name = op.inputs[0]
    return name


#: Kinds that are activations of a recurrence, which names them as they are.
_PLAIN_ACTIVATIONS = tuple(name for name, (alpha, beta, _) in ACTIVATIONS.items() if name in KINDS and not (alpha or beta))


class _GateSums(Drawn):
    """What is added up for gates, while a cell's step is drawn: which products and constants that is, the graph says.

    A match gives the tensor under what is in the sum ("data", "hidden" or "both") and the number of the gate.
    """

    def __init__(self, what: str, first: int, count: int) -> None:
        super().__init__(f"{what} {first}")
        self._what, self._first, self._count = what, first, count

    def apply(self, kind: str, operands: Sequence[Value], attributes: Mapping[str, Any], outputs: int) -> Any:
        if kind == "Split":
            return [_GateSums(self._what, self._first + place, 1) for place in range(outputs)]
        if kind == "Add" and all(isinstance(item, _GateSums) for item in operands):
            return _GateSums("both", self._first, self._count)
        return super().apply(kind, operands, attributes, outputs)


@cache
def _draw_cell(kind: str, gate: str, before: int) -> tuple[Pattern, ...]:
    """Return the patterns of a cell's next states.

    Args:
        kind: LSTM, GRU or RNN.
        gate: the activation of its gates. A match gives its other ones under their places, "1" and "2".
        before: linear_before_reset of a GRU.
    """
    cell, (hidden, *others) = CELLS[kind], (Drawn(name) for name in ("hidden", "cell"))

    def activation(place: int) -> Activation:
        kinds = "|".join(_PLAIN_ACTIVATIONS) if place else gate
        return lambda value: Drawn(Pattern(kinds, value.part, name=str(place) if place else ""))

    def product(values: Value, first: int, count: int) -> Value:
        if values is hidden:
            return _GateSums("hidden", first, count)
        return Drawn(Pattern("Gemm", values.part, name=f"product {first}", attributes={"activation": ""}))

    resets = {"linear_before_reset": before} if "linear_before_reset" in KINDS[kind].attributes else {}
    op = Op(kind, (), (), {"hidden_size": 1, **resets})
    parts = Parts(op, [activation(place) for place in range(len(cell.activations))], product)
    found = cell.step(parts, _GateSums("data", 0, cell.gates), hidden, *others[: cell.states - 1])
    return tuple(item.part for item in found)


class Cell(NamedTuple):
    """A cell as ONNX has it.

    Attributes:
        kind: LSTM, GRU or RNN.
        weights: W, R and B, without the axis of directions.
        activations: of one direction.
        hidden: the position of the hidden state among the body's; the cell state is the other one.
        linear_before_reset: of a GRU.
    """

    kind: str
    weights: tuple[Array, Array, Array]
    activations: tuple[str, ...]
    hidden: int = 0
    linear_before_reset: int = 0


@dataclass(slots=True)
class _Linear:
    """A sum of products: rows of matrices by the element and by the hidden state, constants, and what is neither."""

    w: Array | None = None
    r: Array | None = None
    w_bias: Array | float = 0.0
    r_bias: Array | float = 0.0
    others: tuple[str, ...] = ()

    def plus(self, other: _Linear) -> _Linear | None:
        if (self.w is not None and other.w is not None) or (self.r is not None and other.r is not None):
            return None
        w, r = self.w if other.w is None else other.w, self.r if other.r is None else other.r
        return _Linear(w, r, self.w_bias + other.w_bias, self.r_bias + other.r_bias, (*self.others, *other.others))


def cell_of(body: Graph, states: int) -> Cell | None:
    """Return the cell that a body is, with so many states and one element of a sequence after them; None if it is none."""
    if len(body.inputs) != states + 1:
        return None
    kinds = [kind for kind, cell in CELLS.items() if cell.states == states]
    ways = [_Cells(body, hidden, states) for hidden in range(states)]
    forms = itertools.product(kinds, _PLAIN_ACTIVATIONS, (0, 1), ways)
    return next((found for kind, gate, before, way in forms if (found := way.match(kind, gate, before)) is not None), None)


class _Cells:
    """A body as a cell of which one of the states are the hidden values."""

    def __init__(self, body: Graph, hidden: int, states: int) -> None:
        self._body, self._rewriter = body, Rewriter(body)
        self._makers = Producers((name, op) for name, op in body.producers().items() if not op.attributes.get("activation"))
        self._x, self._h = body.inputs[states], body.inputs[hidden]
        self._hidden = hidden
        order = sorted(range(states), key=lambda place: place != hidden)
        self._new = [body.outputs[place] for place in order]
        self._old = dict(zip(("hidden", "cell"), (body.inputs[place] for place in order), strict=False))

    def match(self, kind: str, gate: str, before: int) -> Cell | None:
        """Return the cell of a kind that the body is, with an activation of its gates; None if it is none."""
        tensors, named = dict(self._old), dict[str, Op]()
        for pattern, name in zip(_draw_cell(kind, gate, before), self._new, strict=True):
            found = self._rewriter.match(pattern, name)
            if found is None or any(tensors.setdefault(key, value) != value for key, value in found.tensors.items()):
                return None
            if any(named.setdefault(key, op) != op for key, op in found.named.items()):
                return None
        gates = [self._gate(place, tensors, named) for place in range(CELLS[kind].gates)]
        others = [named[str(place)].kind for place in range(1, len(CELLS[kind].activations))]
        return self._cell(kind, gates, (gate, *others), before)

    def _gate(self, place: int, tensors: Mapping[str, str], named: Mapping[str, Op]) -> _Linear | None:
        """Return all that is added up for a gate; None if a part of it is no such sum."""
        sums = {what: self._linear(name) for what in ("both", "data", "hidden") if (name := tensors.get(f"{what} {place}")) is not None}
        if (data := sums.get("data")) is not None and data.r is not None:
            return None
        if (hidden := sums.get("hidden")) is not None:  # its constants are what the reset gate takes a part of
            sums["hidden"] = None if hidden.w is not None else replace(hidden, w_bias=0.0, r_bias=hidden.r_bias + hidden.w_bias)
        if (op := named.get(f"product {place}")) is not None:
            inner = self._matrix(op)
            sums["product"] = None if inner is None else _Linear(r=inner[0], w_bias=inner[1])
        return reduce(lambda a, b: None if a is None or b is None else a.plus(b), sums.values())

    def _cell(self, kind: str, gates: Sequence[_Linear | None], activations: tuple[str, ...], before: int) -> Cell | None:
        w, r, b = [], [], []
        for gate in gates:
            if gate is None or gate.w is None or gate.r is None or gate.others:
                return None
            w.append(gate.w)
            r.append(gate.r)
            b.append((np.broadcast_to(np.asarray(gate.w_bias, np.float32), len(gate.w)),
                      np.broadcast_to(np.asarray(gate.r_bias, np.float32), len(gate.w))))  # fmt: skip
        cells = r[0].shape[1]
        if any(item.shape != (cells, cells) for item in r) or any(len(item) != cells for item in w):
            return None
        bias = np.concatenate([*(one for one, _ in b), *(other for _, other in b)]).astype(np.float32)
        return Cell(kind, (np.concatenate(w), np.concatenate(r), bias), activations, self._hidden, before)

    def _matrix(self, op: Op) -> tuple[Array, Array | float] | None:
        """Return the real weights and bias of a Gemm."""
        if self._body[op.name].is_quantized:
            return None
        weights, bias = self._body[op.inputs[1]], self._body.constant(op.input(2))
        if weights.data is None or weights.dtype != "float32" or (bias is None and op.has(2)):
            return None
        return weights.data, 0.0 if bias is None else bias.reshape(-1)

    def _linear(self, name: str, low: int = 0, high: int | None = None) -> _Linear | None:
        """Return what a value is as a sum, its columns from `low` to `high`."""
        constant, part = self._body.constant(name), slice(low, high)
        is_whole = low == 0 and high is None
        if constant is not None:
            return _Linear(w_bias=constant.reshape(-1)[part] if constant.size > 1 else constant.reshape(-1))
        if (addition := self._makers.find(name, "Add")) is not None:
            one, other = (self._linear(item, low, high) for item in addition.inputs)
            return None if one is None or other is None else one.plus(other)
        split = self._makers.find(name, "Split")
        if split is not None and split["axis"] == 1 and is_whole:
            return self._column(split, name)
        op = self._makers.find(name, "Gemm")
        found = self._matrix(op) if op is not None else None
        if op is None or found is None or op.inputs[0] not in (self._x, self._h):
            return _Linear(others=(name,)) if is_whole else None
        weights, bias = found
        bias = bias[part] if isinstance(bias, np.ndarray) else bias
        if op.inputs[0] == self._x:
            return _Linear(w=weights[part], w_bias=bias)
        return _Linear(r=weights[part], r_bias=bias)

    def _column(self, op: Op, name: str) -> _Linear | None:
        sizes = self._body.constant(op.inputs[1])
        if sizes is None:
            return None
        ends = np.cumsum(sizes.reshape(-1))
        index = op.outputs.index(name)
        return self._linear(op.inputs[0], int(ends[index] - sizes.reshape(-1)[index]), int(ends[index]))
