"""Which states of a graph are variables of one operator in TFLite, which it reads and writes by itself (Tensor.is_variable)."""

from __future__ import annotations

import numpy as np

from qconvert.formats.tflite.variables import first_value
from qconvert.graph import Graph, Op
from qconvert.operators.functions import all_ops

__all__ = ["inner_states"]

#: Kind -> its inputs that are such variables, each with the output that becomes their next value.
_PLACES = {
    "IntegerLSTM": {1: 1, 2: 2},
    "BasicLSTM": {1: 1, 2: 2},
    "IntegerSVDF": {1: 1},
    "SVDF": {1: 1},
    "LSTM": {5: 1, 6: 2},
    "RNN": {5: 1},
}


def inner_states(graph: Graph) -> frozenset[str]:
    """The states that a single operator reads and writes, with the initial value of a runtime's reset (first_value())."""
    if not graph.states:
        return frozenset()
    reads, writes = _uses(graph, "ReadState"), _uses(graph, "WriteState")
    consumers = graph.consumers()
    return frozenset(
        name
        for name in graph.states
        if len(reads.get(name, ())) == len(writes.get(name, ())) == 1
        and _is_inner(graph, consumers, reads[name][0].outputs[0], writes[name][0])
        and np.array_equal(graph.states[name].data, first_value(graph.states[name], name))  # type: ignore[arg-type]
    )


def _uses(graph: Graph, kind: str) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in all_ops(graph):
        if op.kind == kind:
            found.setdefault(str(op["state"]), []).append(op)
    return found


def _is_inner(graph: Graph, consumers: dict[str, list[Op]], value: str, write: Op) -> bool:
    """Whether one operator has `value` as its variable, and nobody else sees that or what `write` makes of it."""
    readers = consumers.get(value, [])
    if len(readers) != 1 or value in graph.public:
        return False
    op = readers[0]
    after = _PLACES.get(op.kind, {}).get(op.inputs.index(value))
    if after is None or op.outputs[after] != write.inputs[0] or write.inputs[0] in graph.public:
        return False
    return len(consumers[write.inputs[0]]) == 1 and graph[value].shares_quantization(graph[write.inputs[0]])
