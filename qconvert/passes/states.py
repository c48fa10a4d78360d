"""States: of functions as values, and as inputs and outputs of the network.

lift_states: states that functions read and write are read and written by the network itself. Exact.

A function takes the value that a state has and gives the next one, as do the operators that run it; a loop carries it. So passes see all
that has the type and the quantization of a state, and formats whose functions name no states hold it. A function that a signature enters
keeps its states.

states_to_io: states become inputs and outputs of the network, for formats that have no variables. Exact.

The state "s" becomes the input "s" and the output "s_next". The caller feeds each input with its output of the run before, and in
the first run with its first value. The metadata (STATES) hold the pairs and the first values in the format of graph/carried_states.py;
io_to_states makes states of them again.

io_to_states: inputs and outputs that the metadata call states (see states_to_io) become states again. Exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qconvert.errors import InvalidModelError, UnsupportedError, format_count, format_some, format_verb
from qconvert.graph import Graph, Names, Op, Tensor, drop_keys
from qconvert.graph.carried_states import Carried, carried_text, parse_states
from qconvert.graph.metadata import STATES
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import all_ops, named_functions, with_used_functions
from qconvert.operators.sizes import is_compatible
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.control_flow import copy_duplicates


def lift_states(graph: Graph, target: Target | None) -> PassResult:
    """Read each state before all operators and write it after them, where functions name it.

    Raises:
        UnsupportedError: the condition of a loop writes a state.
    """
    if not graph.states or not graph.functions:
        return graph, ()
    lifting = StateThreading(graph)
    if not (states := lifting.find_function_states()):
        return graph, ()
    if conditions := lifting.writing_conditions():
        raise UnsupportedError(
            "it is the condition of a loop and writes a state; a condition can only read",
            where=f"function {conditions[0]!r}",
            rule="condition-writes-state",
        )
    rewriter = Rewriter(graph)
    before = {name: rewriter.add(f"{name}/before", graph.states[name]) for name in states}
    for name in states:
        rewriter.emit(Op("ReadState", (), (before[name],), {"state": name}))
    after = lifting.thread(rewriter, before)
    for name in states:
        if after[name] != before[name]:
            rewriter.emit(Op("WriteState", (after[name],), (), {"state": name}))
    return with_used_functions(rewriter.finish(functions=lifting.functions)), (
        f"{format_count(len(states), 'state')} of functions {format_verb(len(states), 'are')} read and written by the network "
        f"({', '.join(states[:3])})",
    )


class StateThreading:
    """States as values that functions take and give: what reads a state takes its value, what writes one gives the next.

    An operator whose functions name states takes them as further inputs and gives those that they write; a loop carries them.

    Args:
        graph: the whole network.

    Attributes:
        functions: those of the network, and the new ones.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.functions = dict(graph.functions)
        self._names = Names(self.functions)
        self._used: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._made: dict[tuple[str, tuple[str, ...], tuple[str, ...], int, int], str] = {}

    def find_function_states(self) -> list[str]:
        """Return the states that functions name which operators run."""
        found = frozenset[str]()
        for op in self._graph.ops:
            for name in named_functions(op):
                found = found.union(*self._states(name))
        return [name for name in self._graph.states if name in found]

    def writing_conditions(self) -> list[str]:
        """Return the conditions of loops that write a state."""
        conditions = {str(op["condition"]) for op in all_ops(self._graph) if "condition" in op.attributes}
        return sorted(name for name in conditions if self._states(name)[1])

    def thread(self, rewriter: Rewriter, values: Mapping[str, str]) -> dict[str, str]:
        """Replace the operators of a graph that read, write or pass on a state.

        Args:
            rewriter: of the network, or of one of its functions.
            values: state -> the tensor that holds it before the first operator; others are read and written as they were.

        Returns:
            state -> the tensor that holds it after the last.
        """
        current = dict(values)
        for op in rewriter:
            state = str(op["state"]) if kind_of(op).rule == "state" else ""
            if state in current and kind_of(op).has_effect:
                rewriter.remove(op)
                current[state] = op.inputs[0]
            elif state in current:
                rewriter.replace(op, op.derive("Identity", (current[state],), op.outputs))
            else:
                self._pass_states(rewriter, op, current)
        return current

    def _pass_states(self, rewriter: Rewriter, op: Op, current: dict[str, str]) -> None:
        found = [self._states(name) for name in named_functions(op)]
        named = frozenset[str]().union(*(reads | writes for reads, writes in found))
        written = frozenset[str]().union(*(writes for _, writes in found))
        if not named:
            return
        states = [name for name in self._graph.states if name in named]
        is_loop = "body" in op.attributes
        given = states if is_loop else [name for name in states if name in written]
        places = _places(op)
        attributes = dict(op.attributes)
        for call in kind_of(op).calls(op):
            results = () if call.attribute == "condition" else tuple(given)
            attributes[call.attribute] = self._function(call.function, tuple(states), results, *places[2:])
        if "carried" in op.attributes:
            attributes["carried"] = int(op["carried"]) + len(states)
        after = [rewriter.add(f"{name}/after", self._graph.states[name]) for name in given]
        inputs = _insert_names(op.inputs, places[0], [current[name] for name in states])
        rewriter.replace(op, replace(op, inputs=inputs, outputs=_insert_names(op.outputs, places[1], after), attributes=attributes))
        current.update((name, value) for name, value in zip(given, after, strict=True) if name in written)

    def _function(self, name: str, states: tuple[str, ...], given: tuple[str, ...], first: int, last: int) -> str:
        """Return the function that takes `states` at the input `first` and gives `given` at the output `last`; -1 stands for the end."""
        key = (name, states, given, first, last)
        if key not in self._made:
            inner = self._graph.functions[name]
            rewriter = Rewriter(inner)
            inside = {state: rewriter.add(state, self._graph.states[state]) for state in states}
            after = self.thread(rewriter, inside)
            taken = {*inner.inputs, *inner.outputs, *inside.values(), *(tensor.name for tensor in inner.constants())}
            results = copy_duplicates([after[state] for state in given], taken, rewriter.copy)
            inputs, outputs = _insert_names(inner.inputs, first, list(inside.values())), _insert_names(inner.outputs, last, results)
            changed = rewriter.finish(inputs=inputs, outputs=outputs)
            self._made[key] = self._names.fresh(name)
            self.functions[self._made[key]] = changed
        return self._made[key]

    def _states(self, name: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the states that a function, or one that it runs, reads and writes."""
        if name not in self._used:
            reads, writes = set[str](), set[str]()
            for op in self._graph.functions[name].ops:
                if kind_of(op).rule == "state":
                    (writes if kind_of(op).has_effect else reads).add(str(op["state"]))
                for inner in named_functions(op):
                    found = self._states(inner)
                    reads |= found[0]
                    writes |= found[1]
            self._used[name] = frozenset(reads), frozenset(writes)
        return self._used[name]


def _places(op: Op) -> tuple[int, int, int, int]:
    """Return where new values stand among inputs and outputs of an operator and of its function: after what it carries, or at the end."""
    if "carried" not in op.attributes:
        return -1, -1, -1, -1
    (call,), count = kind_of(op).calls(op), int(op["carried"])
    inputs, outputs = (count + sum(bool(port.dtype) for port in ports) for ports in (call.inputs, call.outputs))
    return inputs, count, inputs, outputs


def _insert_names(names: Sequence[str], place: int, more: Sequence[str]) -> tuple[str, ...]:
    place = len(names) if place < 0 else place
    return (*names[:place], *more, *names[place:])


def states_to_io(graph: Graph, target: Target | None) -> PassResult:
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
    listed = format_some([f"{item.input!r} -> {item.output!r}" for item in found], 3)
    return changed, (f"{format_count(len(found), 'state', 'are')} inputs and outputs ({listed}): run them with qconvert.streaming.Session",)


def _require_main(graph: Graph) -> None:
    for name, inner in graph.functions.items():
        if any(kind_of(op).rule == "state" for op in inner.ops):
            raise UnsupportedError(
                "it reads or writes a state; only states of the network can become inputs and outputs",
                where=f"function {name!r}",
                rule="state-in-function",
            )


def io_to_states(graph: Graph, target: Target | None) -> PassResult:
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
        _emit_read(rewriter, item)
    for item in found:
        _emit_write(rewriter, item)
    return rewriter.finish(), (format_count(len(found), "state", "are kept in the network, not in inputs and outputs"),)


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


def _emit_read(rewriter: Rewriter, item: Carried) -> None:
    """Emit a ReadState of what reads the input, or of what an Identity makes of it; a Reinterpret where the file says other scales."""
    readers, name, source = rewriter.readers[item.input], item.input, ""
    if len(readers) == 1 and kind_of(readers[0]).copies:
        name, source = readers[0].name, readers[0].source
        rewriter.remove(readers[0])
        rewriter.relate(item.input, name)
    if not readers and name not in rewriter.graph.public:
        return
    stored = _state_tensor(rewriter, name, item.state)
    rewriter.emit(Op("ReadState", (), (stored,), {"state": item.state.name}, source))
    if stored != name:
        rewriter.emit(Op("Reinterpret", (stored,), (name,)))


def _emit_write(rewriter: Rewriter, item: Carried) -> None:
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
