"""fuse_recurrence: loops over a sequence that TensorFlow's converter decomposed become LSTM, GRU, RNN, or a Scan.

A While with a counter from 0 to a constant that reads a sequence at this index is a Scan over it, with the operators of its body as they
are: exact (recurrences/loop_recognition.py). A body that computes a cell in float, as frameworks write it with products, sums and gates,
becomes the operator of that name. It sums in its own order: the last bit of a float may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Producers, Tensor
from qconvert.graph.names import Names
from qconvert.operators import kind_of
from qconvert.operators.recurrent import CELLS
from qconvert.operators.shapes_and_functions import all_graphs, with_used_functions
from qconvert.passes.recurrences.loop_recognition import ScanForm, scan_form
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Pattern, Rewriter, match_producer
from qconvert.rewriting.control_flow import prefix_of


def run(graph: Graph, target: Target | None) -> PassResult:
    """Replace the loops of the network and of its functions, all at once: a function by itself names what it does not hold."""
    if not graph.functions or not any(inner.of_kind("While") for _, inner in all_graphs(graph)):
        return graph, ()
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
        Change(f"{count} loops over a sequence are a {kind}", exact=kind == "Scan") for kind, count in sorted(counts.items())
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
            self._emit_output(index, self._constant(np.array(value, np.int32), "count", self._graph[op.inputs[index]]))
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
        self._rewriter.emit(Op("Scan", inputs, outputs, attributes, op.source))
        return "Scan"

    def _emit_output(self, index: int, value: str) -> None:
        """Emit an output of the loop that is a value known without it."""
        name = self._op.outputs[index]
        if name in self._read:
            self._rewriter.emit(Op("Identity", (value,), (name,), {}, self._op.source))

    def _constant(self, data: Array, hint: str, like: Tensor | None = None) -> str:
        data = data if like is None else data.astype({"int64": np.int64}.get(like.dtype, np.int32))
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
            if (data := _float_constant(body, op, op.outputs[0])) is not None:
                found[op.outputs[0]] = data
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
        self._rewriter.emit(Op(cell.kind, inputs, tuple(names[: 1 + len(own)]), attributes, op.source))
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
        sizes = self._constant(np.array([size if isinstance(size, int) else -1 for size in shape], np.int64), "shape")
        if not result:
            return self._rewriter.compute("Reshape", (name, sizes), f"{self._name}/{hint}", replace(tensor, shape=shape), self._op.source)
        self._rewriter.emit(Op("Reshape", (name, sizes), (result,), {}, self._op.source))
        return result


def _float_constant(graph: Graph, maker: Op | None, name: str) -> Array | None:
    """Return a constant of float32, or one that a Cast makes so of float16."""
    if maker is None:
        return graph.constant(name) if graph[name].dtype == "float32" else None
    data = graph.constant(maker.inputs[0]) if maker.kind == "Cast" and maker["to"] == "float32" else None
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
_ACTIVATIONS = ("Sigmoid", "Tanh", "Relu")
_NEW = Pattern("|".join(_ACTIVATIONS), name="g")
#: (1 - update) * g + update * hidden.
_GRU = Pattern(
    "Add",
    Pattern("Mul", Pattern("Sub", "one", "update"), _NEW, any_order=True),
    Pattern("Mul", "update", "hidden", any_order=True),
    any_order=True,
)


def _lstm_pattern(kind: str) -> Pattern:
    """Return output * last(forget * cell + input * g), whose three gates are of one kind."""
    kept = Pattern("Mul", Pattern(kind, name="forget"), "cell", any_order=True)
    added = Pattern("Mul", Pattern(kind, name="input"), _NEW, any_order=True)
    last = Pattern(_NEW.kinds, Pattern("Add", kept, added, any_order=True, name="sum"), name="last")
    return Pattern("Mul", Pattern(kind, name="output"), last, any_order=True)


_LSTMS = tuple(map(_lstm_pattern, _ACTIVATIONS))


@dataclass(frozen=True, slots=True)
class Cell:
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
    if states not in (1, 2) or len(body.inputs) != states + 1:
        return None
    found = [_Cells(body, hidden, states) for hidden in range(states)]
    makers = [cells.lstm() if states == 2 else cells.gru() or cells.rnn() for cells in found]
    return next((cell for cell in makers if cell is not None), None)


class _Cells:
    def __init__(self, body: Graph, hidden: int, states: int) -> None:
        self._body = body
        self._makers = Producers((name, op) for name, op in body.producers().items() if not op.attributes.get("activation"))
        self._x, self._h = body.inputs[states], body.inputs[hidden]
        self._hidden = hidden
        self._new = body.outputs[:states]
        self._c = next((name for name in body.inputs[:states] if name != self._h), "")

    def rnn(self) -> Cell | None:
        """h' = f(W x + R h + b)"""
        op = self._activation(self._new[0])
        return None if op is None else self._cell("RNN", [self._linear(op.inputs[0])], (op,))

    def gru(self) -> Cell | None:
        """h' = z * h + (1 - z) * g(x part + reset)"""
        found = match_producer(self._makers, _GRU, self._new[0])
        one = None if found is None else self._body.constant(found.tensors["one"])
        if found is None or one is None or not (one == 1).all() or found.tensors["hidden"] != self._h:
            return None
        gate = self._activation(found.tensors["update"])
        update = self._linear(gate.inputs[0]) if gate is not None else None
        return None if gate is None or update is None else self._reset(gate, found.named["g"], update)

    def _reset(self, gate: Op, g: Op, update: _Linear) -> Cell | None:
        """Return the part of a GRU's hidden gate that the reset gate takes: r * (R h + b), or R (r * h)."""
        total = self._linear(g.inputs[0])
        if total is None or total.r is not None or len(total.others) != 1 or total.w is None:
            return None
        other = self._makers.find(total.others[0], "Gemm")
        inner = self._matrix(other) if other is not None else None
        factors = self._operands(other.inputs[0] if inner is not None and other is not None else total.others[0], "Mul")
        for r, h in (factors, factors[::-1]) if factors else ():
            reset = self._activation(r, gate)
            part = self._linear(reset.inputs[0]) if reset is not None else None
            if part is None:
                continue
            if inner is not None:
                if h == self._h:
                    hidden = _Linear(total.w, inner[0], total.w_bias + inner[1], total.r_bias)
                    return self._cell("GRU", [update, part, hidden], (gate, g), before=0)
                continue
            product = self._linear(h)
            if product is not None and product.r is not None and product.w is None and not product.others:
                hidden = _Linear(total.w, product.r, total.w_bias + total.r_bias, product.r_bias + product.w_bias)
                return self._cell("GRU", [update, part, hidden], (gate, g), before=1)
        return None

    def lstm(self) -> Cell | None:
        """c' = f * c + i * g(cell part), h' = o * last(c')"""
        for pattern in _LSTMS:
            found = match_producer(self._makers, pattern, self._new[self._hidden])
            if found is None or (found.named["sum"].name, found.tensors["cell"]) != (self._new[1 - self._hidden], self._c):
                continue
            gates = [self._linear(found.named[name].inputs[0]) for name in ("input", "output", "forget", "g")]
            return self._cell("LSTM", gates, [found.named[name] for name in ("output", "g", "last")])
        return None

    def _cell(self, kind: str, gates: Sequence[_Linear | None], activations: Sequence[Op], before: int = 0) -> Cell | None:
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
        return Cell(kind, (np.concatenate(w), np.concatenate(r), bias), tuple(op.kind for op in activations), self._hidden, before)

    def _activation(self, name: str, like: Op | None = None) -> Op | None:
        """Return the activation that computes a value, of the kind of another one if that is given."""
        return self._makers.find(name, *(_ACTIVATIONS if like is None else (like.kind,)))

    def _operands(self, name: str, kind: str) -> tuple[str, ...]:
        op = self._makers.find(name, kind)
        return () if op is None else op.inputs

    def _matrix(self, op: Op) -> tuple[Array, Array | float] | None:
        """Return the real weights and bias of a Gemm."""
        if self._body[op.outputs[0]].is_quantized:
            return None
        weights, bias = self._body[op.inputs[1]], self._body.constant(op.inputs[2]) if op.has(2) else None
        if weights.data is None or weights.dtype != "float32" or (bias is None and op.has(2)):
            return None
        return weights.data, 0.0 if bias is None else bias.reshape(-1)

    def _linear(self, name: str, low: int = 0, high: int | None = None) -> _Linear | None:
        """Return what a value is as a sum, its columns from `low` to `high`."""
        constant, part = self._body.constant(name), slice(low, high)
        is_whole = low == 0 and high is None
        if constant is not None:
            return _Linear(w_bias=constant.reshape(-1)[part] if constant.size > 1 else constant.reshape(-1))
        if summands := self._operands(name, "Add"):
            one, other = (self._linear(item, low, high) for item in summands)
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
