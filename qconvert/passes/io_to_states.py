"""io_to_states: inputs and outputs that the metadata call states (see states_to_io) become states again. Exact."""

from __future__ import annotations

from dataclasses import replace

from qconvert.errors import InvalidModelError
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.carried import Carried, carried
from qconvert.graph.metadata import STATES
from qconvert.graph.shapes import compatible
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Reads stand in front of all operators, and writes behind them.

    Raises:
        InvalidModelError: the metadata entry is damaged, or is of another network than this one.
    """
    text = graph.metadata.get(STATES)
    if text is None or graph.states:
        return graph, ()
    found = carried(text)
    for item in found:
        _require_fit(graph, item)
    inputs, outputs = {item.input for item in found}, {item.output for item in found}
    graph = replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in inputs),
        outputs=tuple(name for name in graph.outputs if name not in outputs),
        metadata={key: value for key, value in graph.metadata.items() if key != STATES},
        states={item.state.name: item.state for item in found},
    )
    return _Restored(graph).run(found), (f"{len(found)} inputs and outputs are states",)


def _require_fit(graph: Graph, item: Carried) -> None:
    for what, name, names in (("input", item.input, graph.inputs), ("output", item.output, graph.outputs)):
        reason = f"the metadata entry {STATES} names {name!r}"
        if name not in names:
            raise InvalidModelError(f"{reason}, which is no {what}", remedy="Convert the model again, or remove the entry.")
        tensor = graph[name]
        if tensor.dtype != item.state.dtype or not compatible(tensor.shape, item.state.shape):
            raise InvalidModelError(
                f"{reason} as {item.state.dtype} of shape {item.state.shape}, which is {tensor.dtype} of {tensor.shape}"
            )


class _Restored:
    """A graph whose states get their reads and writes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[str, Tensor] = {}
        self._names = graph.names(self._made)
        self._producers, self._consumers = graph.producers(), graph.consumers()
        self._gone: set[int] = set()

    def run(self, found: tuple[Carried, ...]) -> Graph:
        reads = [op for item in found for op in self._read(item)]
        writes = [op for item in found for op in self._write(item)]
        kept = [op for op in self._graph.ops if id(op) not in self._gone]
        return self._graph.evolve(tensors=self._made.values(), ops=[*reads, *kept, *writes])

    def _read(self, item: Carried) -> list[Op]:
        """A ReadState of what reads the input, or of what an Identity makes of it; a Reinterpret where the file says other scales."""
        readers = self._consumers.get(item.input, [])
        name, source = item.input, ""
        if len(readers) == 1 and readers[0].kind == "Identity":
            name, source = readers[0].outputs[0], readers[0].source
            self._gone.add(id(readers[0]))
        if not readers and name not in self._graph.public:
            return []
        state = {"state": item.state.name}
        if self._graph[name].quantization == item.state.quantization:
            return [Op("ReadState", (), (name,), state, source)]
        stored = self._stored(name, item.state)
        return [Op("ReadState", (), (stored,), state, source), Op("Reinterpret", (stored,), (name,))]

    def _write(self, item: Carried) -> list[Op]:
        name, maker = item.output, self._producers.get(item.output)
        alone = item.output not in self._consumers and item.output not in self._graph.public
        if maker is not None and maker.kind == "Identity" and alone and id(maker) not in self._gone:
            name = maker.inputs[0]
            self._gone.add(id(maker))
        state = {"state": item.state.name}
        if self._graph[name].quantization == item.state.quantization:
            return [Op("WriteState", (name,), (), state)]
        stored = self._stored(name, item.state)
        return [Op("Reinterpret", (name,), (stored,)), Op("WriteState", (stored,), (), state)]

    def _stored(self, name: str, state: Tensor) -> str:
        """A tensor for the integers of `name` on the state's grid."""
        new = self._names.fresh(f"{name}/stored")
        self._made[new] = replace(self._graph[name], name=new, quantization=state.quantization)
        return new
