"""lift_states: states that functions read and write are read and written by the network itself. Exact.

A function takes the value that a state has and gives the next one, as do the operators that run it; a loop carries it. So passes see all
that has the type and the grid of a state, and formats whose functions name no states hold it. A function that a signature enters keeps its
states.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op
from qconvert.graph.functions import with_used_functions
from qconvert.graph.inlining import Inlining
from qconvert.graph.threaded import Threaded
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Reads each state in front of all operators and writes it behind them, where functions name it.

    Raises:
        UnsupportedError: the condition of a loop writes a state.
    """
    if not graph.states or not graph.functions:
        return graph, ()
    new, threaded = Inlining(graph), Threaded(graph)
    if not (states := threaded.named()):
        return graph, ()
    if conditions := threaded.writing_conditions():
        raise UnsupportedError("it is the condition of a loop and writes a state", where=f"function {conditions[0]!r}")
    before = {name: new.add(replace(graph.states[name], data=None), f"{name}/before") for name in states}
    new.ops = [Op("ReadState", (), (before[name],), {"state": name}) for name in states]
    after = threaded.through(new, graph, before)
    new.ops += [Op("WriteState", (after[name],), (), {"state": name}) for name in states if after[name] != before[name]]
    changed = graph.evolve(tensors=new.tensors.values(), ops=new.ops, functions=threaded.functions)
    return with_used_functions(changed), (
        f"{len(states)} states of functions are read and written by the network ({', '.join(states[:3])})",
    )
