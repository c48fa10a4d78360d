"""integer_io: real graph inputs and outputs that are quantized at once, or come from integers, become the integers themselves.

The mirror of float_io: whoever runs the model quantizes and dequantizes, with the scales of its inputs and outputs.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None, *, io_integer: bool = False) -> tuple[Graph, tuple[str, ...]]:
    """Removes the Quantize behind inputs and the Dequantize before outputs; the integers take the names.

    Does nothing unless `io_integer`.
    """
    if not io_integer:
        return graph, ()
    consumers, producers = graph.consumers(), graph.producers()
    kept = {*graph.inputs, *graph.public}
    renamed: dict[str, str] = {}
    gone: set[int] = set()
    for name in graph.inputs:
        readers = consumers.get(name, [])
        if len(readers) == 1 and readers[0].kind == "Quantize" and not graph.public & {name, readers[0].outputs[0]}:
            renamed[readers[0].outputs[0]] = name
            gone.add(id(readers[0]))
    for name in graph.outputs:
        op = producers.get(name)
        if (
            op is not None
            and op.kind == "Dequantize"
            and not consumers.get(name)
            and op.inputs[0] not in kept
            and op.inputs[0] not in renamed
            and graph[op.inputs[0]].data is None
        ):
            renamed[op.inputs[0]] = name
            gone.add(id(op))
    if not renamed:
        return graph, ()
    tensors = [replace(graph[old], name=new) for old, new in renamed.items()]
    ops = [_renamed(op, renamed) for op in graph.ops if id(op) not in gone]
    return graph.evolve(tensors=tensors, ops=ops), (f"{len(renamed)} inputs and outputs are integers",)


def _renamed(op: Op, names: dict[str, str]) -> Op:
    return replace(op, inputs=tuple(names.get(n, n) for n in op.inputs), outputs=tuple(names.get(n, n) for n in op.outputs))
