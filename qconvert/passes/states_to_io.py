"""states_to_io: states become inputs and outputs of the network, for formats that have no variables. Exact.

The state "s" becomes the input "s" and the output "s_next". Whoever runs the network gives each input what its output was in the run
before, and in the first run its first value; which belongs to which, and the first values, stand in the metadata (STATES), in the words
of graph/carried.py, so that io_to_states makes states of them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.carried import Carried, carried_text
from qconvert.graph.kinds import KINDS
from qconvert.graph.metadata import STATES
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Every state of the graph; functions that name one keep it from becoming an input.

    Raises:
        UnsupportedError: a function reads or writes a state.
    """
    if not graph.states:
        return graph, ()
    _require_main(graph)
    made: dict[str, Tensor] = {}
    names = graph.names(made)
    found: list[Carried] = []
    for name, state in graph.states.items():
        given, wanted = _new(names.fresh(name), state, made), _new(names.fresh(f"{name}_next"), state, made)
        found.append(Carried(given, wanted, state))
    ops, last = _ops(graph, {item.state.name: item.input for item in found})
    ops += [Op("Identity", (last[item.state.name],), (item.output,)) for item in found]
    changed = graph.evolve(
        tensors=made.values(),
        ops=ops,
        inputs=(*graph.inputs, *(item.input for item in found)),
        outputs=(*graph.outputs, *(item.output for item in found)),
        metadata={**graph.metadata, STATES: carried_text(found)},
        states={},
    )
    listed = ", ".join(f"{item.input!r} -> {item.output!r}" for item in found[:3]) + (" …" if len(found) > 3 else "")
    return changed, (f"{len(found)} states are inputs and outputs ({listed}): run them with qconvert.streaming.Session",)


def _new(name: str, state: Tensor, made: dict[str, Tensor]) -> str:
    made[name] = replace(state, name=name, data=None)
    return name


def _ops(graph: Graph, values: Mapping[str, str]) -> tuple[list[Op], dict[str, str]]:
    """The operators with an Identity in place of each read, and which tensor holds each state in the end."""
    current = dict(values)
    ops = []
    for op in graph.ops:
        if op.kind == "ReadState":
            ops.append(Op("Identity", (current[str(op["state"])],), op.outputs, {}, op.source))
        elif op.kind == "WriteState":
            current[str(op["state"])] = op.inputs[0]
        else:
            ops.append(op)
    return ops, current


def _require_main(graph: Graph) -> None:
    for name, inner in graph.functions.items():
        if any(KINDS[op.kind].rule == "state" for op in inner.ops):
            raise UnsupportedError("it reads or writes a state, which cannot be an input of it", where=f"function {name!r}")
