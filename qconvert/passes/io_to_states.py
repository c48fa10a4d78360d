"""io_to_states: inputs and outputs that the metadata call states (see states_to_io) become states again. Exact."""

from __future__ import annotations

from dataclasses import replace

from qconvert.errors import InvalidModelError
from qconvert.graph import Graph, Op, Tensor, drop_keys
from qconvert.graph.carried_states import Carried, parse_states
from qconvert.graph.metadata import STATES
from qconvert.operators import kind_of
from qconvert.operators.sizes import is_compatible
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Put reads before all operators and writes after them.

    Raises:
        InvalidModelError: the metadata entry is damaged, or is of another network than this one.
    """
    text = graph.metadata.get(STATES)
    if text is None or graph.states:
        return graph, ()
    found = parse_states(text)
    for item in found:
        _require_fit(graph, item)
    inputs, outputs = {item.input for item in found}, {item.output for item in found}
    graph = replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in inputs),
        outputs=tuple(name for name in graph.outputs if name not in outputs),
        metadata=drop_keys(graph.metadata, STATES),
        states={item.state.name: item.state for item in found},
    )
    rewriter = Rewriter(graph)
    for item in found:
        _read(rewriter, item)
    for item in found:
        _write(rewriter, item)
    return rewriter.finish(), (f"{len(found)} inputs and outputs are states",)


def _require_fit(graph: Graph, item: Carried) -> None:
    for what, name, names in (("input", item.input, graph.inputs), ("output", item.output, graph.outputs)):
        reason = f"the metadata entry {STATES} names {name!r}"
        if name not in names:
            raise InvalidModelError(
                f"{reason}, which is not an {what}", remedy="Convert the model again, or remove the entry.", rule="unknown-tensor"
            )
        tensor = graph[name]
        if tensor.dtype != item.state.dtype or not is_compatible(tensor.shape, item.state.shape):
            raise InvalidModelError(
                f"{reason} as {item.state.dtype} of shape {item.state.shape}; the tensor is {tensor.dtype} of shape {tensor.shape}",
                rule="type-mismatch",
            )


def _read(rewriter: Rewriter, item: Carried) -> None:
    """Emit a ReadState of what reads the input, or of what an Identity makes of it; a Reinterpret where the file says other scales."""
    readers, name, source = rewriter.readers[item.input], item.input, ""
    if len(readers) == 1 and kind_of(readers[0]).copies:
        name, source = readers[0].outputs[0], readers[0].source
        rewriter.remove(readers[0])
        rewriter.relate(item.input, name)
    if not readers and name not in rewriter.graph.public:
        return
    stored = _state_tensor(rewriter, name, item.state)
    rewriter.emit(Op("ReadState", (), (stored,), {"state": item.state.name}, source))
    if stored != name:
        rewriter.emit(Op("Reinterpret", (stored,), (name,)))


def _write(rewriter: Rewriter, item: Carried) -> None:
    """Append a WriteState of the output, or of what an Identity makes it of; a Reinterpret where the file says other scales."""
    name, maker = item.output, rewriter.producers.find(item.output, "Identity")
    is_alone = item.output not in rewriter.readers and item.output not in rewriter.graph.public
    if maker is not None and is_alone and not rewriter.is_replaced(maker):
        name = maker.inputs[0]
        rewriter.remove(maker)
        rewriter.relate(item.output, name)
    stored = _state_tensor(rewriter, name, item.state)
    if stored != name:
        rewriter.append(Op("Reinterpret", (name,), (stored,)))
    rewriter.append(Op("WriteState", (stored,), (), {"state": item.state.name}))


def _state_tensor(rewriter: Rewriter, name: str, state: Tensor) -> str:
    """Return a tensor for the integers of `name` on the state's quantization: itself, if it is on it."""
    tensor = rewriter.graph[name]
    if tensor.quantization == state.quantization:
        return name
    return rewriter.define(replace(tensor, name=rewriter.fresh(f"{name}/stored"), quantization=state.quantization))
