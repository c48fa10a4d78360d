"""states_to_io: states become inputs and outputs of the network, for formats that have no variables. Exact.

The state "s" becomes the input "s" and the output "s_next". The caller feeds each input with its output of the run before, and in
the first run with its first value. The metadata (STATES) hold the pairs and the first values in the format of graph/carried_states.py;
io_to_states makes states of them again.
"""

from __future__ import annotations

from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op
from qconvert.graph.carried_states import Carried, carried_text
from qconvert.graph.metadata import STATES
from qconvert.operators import kind_of
from qconvert.passes.lift_states import StateThreading
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Make an input and an output of every state of the graph.

    Raises:
        UnsupportedError: a function reads or writes a state.
    """
    if not graph.states:
        return graph, ()
    _require_main(graph)
    rewriter = Rewriter(graph)
    found = [Carried(rewriter.add(name, state), rewriter.add(f"{name}_next", state), state) for name, state in graph.states.items()]
    current = StateThreading(graph).thread(rewriter, {item.state.name: item.input for item in found})
    for item in found:
        rewriter.emit(Op("Identity", (current[item.state.name],), (item.output,)))
    changed = rewriter.finish(
        inputs=(*graph.inputs, *(item.input for item in found)),
        outputs=(*graph.outputs, *(item.output for item in found)),
        metadata={**graph.metadata, STATES: carried_text(found)},
        states={},
    )
    listed = ", ".join(f"{item.input!r} -> {item.output!r}" for item in found[:3]) + (" …" if len(found) > 3 else "")
    return changed, (f"{len(found)} states are inputs and outputs ({listed}): run them with qconvert.streaming.Session",)


def _require_main(graph: Graph) -> None:
    for name, inner in graph.functions.items():
        if any(kind_of(op).rule == "state" for op in inner.ops):
            raise UnsupportedError(
                "it reads or writes a state; only states of the network can become inputs and outputs",
                where=f"function {name!r}",
                rule="state-in-function",
            )
