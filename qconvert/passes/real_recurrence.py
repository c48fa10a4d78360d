"""real_recurrence: with numerics "fast", TFLite's integer LSTM becomes an LSTM in float, between its quantizations.

onnxruntime has a kernel for it, many times faster than the integer arithmetic decomposed, but it is another model: sums of gates do not
saturate, sigmoid and tanh are not gemmlowp's, hidden values and cell are not rounded from step to step within a run, and the cell has no
limit. Weights keep their integers, each gate its scale; outputs and both states keep their types and quantizations.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators.integer_recurrent import LSTM_INPUTS, name_tensors
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Rewriter

#: The order of gates in the rows of an LSTM.
_ROWS = ("input", "output", "forget", "cell")
#: Microseconds of a step in onnxruntime on one thread of an x86-64 CPU, exact and in float, up to so many cells, without a layer
#: normalization (docs/measured/recurrent.md, "Integer LSTM"). Nothing is timed in a conversion.
_COSTS = ((32, 17, 1), (96, 28, 4), (128, 32, 7))


def real_recurrence(graph: Graph, target: Target | None, *, numerics: str = "exact") -> PassResult:
    """Replace those that an LSTM can say: with four gates of their own, and neither peepholes, projection nor layer normalization. Of each
    it is said which form it has, and what the other would cost."""
    if target is None or target.format != "onnx":
        return graph, ()
    layers = graph.of_kind("IntegerLSTM")
    chosen = [op for op in layers if numerics == "fast" and _is_plain(graph, op)]
    notes = tuple(Change(_describe_form(graph, op, op in chosen), exact=op not in chosen) for op in layers)
    return (lstms_to_float(graph, chosen) if chosen else graph), notes


def lstms_to_float(graph: Graph, chosen: Collection[Op]) -> Graph:
    """Return the graph with some of its integer LSTMs, of which an LSTM can say what they are, in float."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op in chosen:
            _Layer(rewriter, op).write()
            rewriter.remove(op)
    return rewriter.finish()


def _describe_form(graph: Graph, op: Op, is_real: bool) -> str:
    """Say which form an operator has, and what the other would cost."""
    tensors = name_tensors(op, LSTM_INPUTS, graph.__getitem__)
    inputs, cells = (tensor.shape[-1] if tensor.shape else "?" for tensor in (tensors["data"], tensors["cell"]))
    cost = next((row[1:] for row in _COSTS if isinstance(cells, int) and cells <= row[0]), None)
    exact, real = (f"about {value} µs a step" for value in cost) if cost else ("many times as long a step", "a fraction of a step")
    name = f"{op.label} ({inputs} inputs, {cells} cells)"
    if is_real:
        return (
            f"{name} computes in float, with the weights' integers, {real}: outputs drift from the source's; "
            f"without --numerics fast they are equal to the last bit, {exact}"
        )
    if not _is_plain(graph, op):
        return f"{name} is exact and has no float form"
    return f"{name} is exact, {exact}; with --numerics fast it is a float LSTM, {real}, whose outputs drift"


def _is_plain(graph: Graph, op: Op) -> bool:
    tensors = name_tensors(op, LSTM_INPUTS, graph.__getitem__)
    extra = [role for role in tensors if role.endswith(("peephole", "norm")) or role.startswith("projection")]
    sizes = [tensors[role].static_shape for role in ("data", "hidden")]
    weights = [tensors.get(f"{gate}_{what}") for gate in _ROWS for what in ("weights", "recurrent")]
    biases = [tensor for role, tensor in tensors.items() if role.endswith("_bias")]
    known = all(tensor is not None and tensor.is_constant for tensor in (*weights, *biases))
    return known and not extra and None not in sizes and len(sizes[0] or ()) == 3 and all(op.outputs)


class _Layer:
    """One layer that is rewritten."""

    def __init__(self, rewriter: Rewriter, op: Op) -> None:
        self._op, self._rewriter = op, rewriter
        self._tensors = name_tensors(op, LSTM_INPUTS, rewriter.graph.__getitem__)

    def write(self) -> None:
        op, outputs = self._op, [self._rewriter[name] for name in self._op.outputs]
        data, hidden, cell = (self._tensors[role] for role in ("data", "hidden", "cell"))
        major = bool(op["time_major"])
        sizes = data.static_shape or ()
        steps, rows = sizes[:2] if major else (sizes[1], sizes[0])
        cells = int((hidden.static_shape or (0,))[-1])
        quantization = Quantization.per_tensor(float(op["hidden_scale"]), int(op["hidden_zero_point"]))
        given = data.name
        if not major:
            given = self._emit("Transpose", [given], replace(data, shape=(steps, rows, sizes[2])), "time", perm=(1, 0, 2))
        state = (1, rows, cells)
        firsts = [self._emit_reshape(tensor.name, replace(tensor, shape=state), "first") for tensor in (hidden, cell)]
        whole = self._add(Tensor("", "int8", (steps, 1, rows, cells), None, quantization), "all")
        last = [
            self._add(replace(outputs[1], shape=state, quantization=quantization), "last"),
            self._add(replace(outputs[2], shape=state), "last"),
        ]
        inputs = (given, self._join_gates("weights"), self._join_gates("recurrent"), self._bias(), "", *firsts)
        self._rewriter.emit(op.derive("LSTM", inputs, (whole, *last), hidden_size=cells))
        shown = self._emit_reshape(whole, Tensor("", "int8", (steps, rows, cells), None, quantization), "steps")
        if not major:
            shown = self._emit("Transpose", [shown], Tensor("", "int8", (rows, steps, cells), None, quantization), "rows", perm=(1, 0, 2))
        self._deliver(shown, outputs[0])
        self._deliver(self._emit_reshape(last[0], replace(outputs[1], quantization=quantization), "hidden"), outputs[1])
        self._deliver(self._emit_reshape(last[1], outputs[2], "cell"), outputs[2])

    def _add(self, tensor: Tensor, hint: str) -> str:
        return self._rewriter.add(f"{self._op.name}/{hint}", tensor)

    def _constant(self, hint: str, data: Array, quantization: Quantization | None = None) -> str:
        return self._rewriter.constant(f"{self._op.name}/{hint}", data, quantization=quantization)

    def _emit(self, kind: str, inputs: list[str], result: Tensor, hint: str, **attributes: tuple[int, ...]) -> str:
        return self._rewriter.compute(kind, inputs, f"{self._op.name}/{hint}", result, self._op.source, **attributes)

    def _emit_reshape(self, name: str, result: Tensor, hint: str) -> str:
        return self._emit("Reshape", [name, self._constant("shape", np.array(result.static_shape, np.int64))], result, hint)

    def _deliver(self, name: str, result: Tensor) -> None:
        """Give an output the stored integers of a tensor, whatever its own quantization: the kernel copies bytes."""
        if self._rewriter[name].quantization == result.quantization:
            self._rewriter.rename(name, result.name)
        else:
            self._rewriter.emit(self._op.derive("Reinterpret", (name,), (result.name,)))

    def _join_gates(self, what: str) -> str:
        """Join the weights of all gates one above the other, with a scale for each row."""
        roles = [f"{gate}_{what}" for gate in _ROWS]
        data = np.concatenate([stored for role in roles if (stored := self._tensors[role].data) is not None])
        scales = np.concatenate([np.repeat(self._scale(role), len(data) // len(roles)) for role in roles])
        return self._constant(what, data[None], Quantization(scales, np.zeros(len(scales), np.int64), 1))

    def _bias(self) -> str:
        """Add float biases: the kernel takes their integers in steps of data scale * weight scale."""
        cells = len(self._tensors["forget_weights"].data)  # type: ignore[arg-type]
        found = []
        for gate in _ROWS:
            bias = self._tensors.get(f"{gate}_bias")
            step = self._scale("data") * self._scale(f"{gate}_weights")
            found.append(np.zeros(cells, np.float32) if bias is None or bias.data is None else (bias.data * step.astype(float)))
        return self._constant("biases", np.concatenate([*found, np.zeros(4 * cells)])[None].astype(np.float32))

    def _scale(self, role: str) -> Array:
        return self._tensors[role].require_quantization().scale
