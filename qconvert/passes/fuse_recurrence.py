"""fuse_recurrence: loops over a sequence that TensorFlow's converter decomposed become LSTM, GRU, RNN, or a Scan.

A While with a counter from 0 to a constant that reads a sequence at this index is a Scan over it, with the operators of its body as they
are: exact. A body that computes a cell in float (passes/recurrences) becomes the operator of that name. It sums in its own order: the last
bit of a float may differ.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.graph.names import Names
from qconvert.operators.functions import all_graphs, with_used_functions
from qconvert.operators.recurrent_cells import GATES
from qconvert.passes.recurrences.cell_recognition import Cell, cell_of
from qconvert.passes.recurrences.loop_recognition import ScanForm, scan_form
from qconvert.plugins import Change, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.inlining import prefix_of

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Replace the loops of the network and of its functions, all at once: a function by itself names what it does not hold."""
    if not graph.functions or not any(op.kind == "While" for _, inner in all_graphs(graph) for op in inner.ops):
        return graph, ()
    functions, counts = dict(graph.functions), Counter[str]()
    done: dict[str, Graph] = {}
    for key, inner in all_graphs(graph):
        rewriter = Rewriter(inner)
        for op in rewriter:
            form = scan_form(inner, op, *(graph.functions[str(op[name])] for name in ("condition", "body"))) if op.kind == "While" else None
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
        for op in body.ops:
            if op.kind == "Cast" and (data := _float_constant(body, op, op.outputs[0])) is not None:
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
        hidden = len(cell.weights[1]) // GATES[cell.kind]
        sizes = {"Y": (sequence[0], 1, sequence[1], hidden), "Y_h": (1, sequence[1], hidden), "Y_c": (1, sequence[1], hidden)}
        names = [self._rewriter.add(f"{self._name}/{word}", Tensor("", "float32", shape)) for word, shape in sizes.items()]
        attributes: dict[str, int | tuple[str, ...]] = {"hidden_size": hidden, "activations": cell.activations}
        if cell.linear_before_reset:
            attributes["linear_before_reset"] = 1
        inputs = (op.inputs[form.sequences[0]], *weights, "", *firsts)
        self._rewriter.emit(Op(cell.kind, inputs, tuple(names[: 3 if cell.kind == "LSTM" else 2]), attributes, op.source))
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
        result = result or self._rewriter.add(f"{self._name}/{hint}", tensor, shape=shape)
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
    while (op := makers.get(name)) is not None and op.kind in ("Reshape", "Squeeze", "Unsqueeze", "Identity"):
        sizes = [[size for size in body[item].shape or () if size != 1] for item in (op.inputs[0], name)]
        if sizes[0] != sizes[1]:
            break
        name = op.inputs[0]
    return name
