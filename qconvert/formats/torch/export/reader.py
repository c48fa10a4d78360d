"""Reads torch.export archives (.pt2): the nodes that outputs depend on, one by one in the order of the file, and the bodies of higher-
order operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.calls import Missing, is_change, is_covered
from qconvert.formats.torch.export.contents import (
    Body,
    Node,
    Program,
    parse_program,
    read_stored_tensors,
)
from qconvert.formats.torch.export.noted_operators import DECOMPOSED, emit_noted, restore_noted
from qconvert.formats.torch.finishing import finish_graph
from qconvert.formats.torch.in_place import VIEWS, InPlace
from qconvert.formats.torch.notes import Notes
from qconvert.formats.torch.session import Constants, GivenInputs, Session, flatten_outputs
from qconvert.formats.torch.stored_values import EXPORT, StoredTensor, WrappedTensor
from qconvert.formats.torch.values import EndlessError, Ref, map_leaves
from qconvert.graph import Graph, Op, Tensor

#: Operators that run a graph for its values alone, and how many arguments stand before the graph.
_WRAPPERS = {
    "higher_order::wrap_with_set_grad_enabled",
    "higher_order::wrap_with_autocast",
    "higher_order::wrap",
    "higher_order::hints_wrapper",
    "higher_order::invoke_subgraph",
    "higher_order::strict_mode",
}


def names_in(value: Any) -> Iterator[str]:
    """The names in an argument, which may be a list."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from names_in(item)


def _read_names(node: Node) -> set[str]:
    return {name for value in node.arguments.values() for name in names_in(value)}


def changed_by(node: Node) -> str:
    """The name of the tensor that a node changes; "" if it changes none."""
    first = node.arguments.get("self")
    return first.name if is_change(node.target) and isinstance(first, Ref) else ""


def roots_of(nodes: Iterable[Node]) -> dict[str, str]:
    """Tensors that may share elements with another -> the first of these."""
    roots: dict[str, str] = {}
    for node in nodes:
        first = changed_by(node) or (
            next(names_in(node.arguments.get("self", node.arguments.get("input"))), "") if node.target in VIEWS else ""
        )
        if first:
            roots.update(dict.fromkeys(names_in(node.outputs), roots.get(first, first)))
    return roots


def find_needed_nodes(nodes: Sequence[Node], wanted: Iterable[str]) -> list[Node]:
    """The nodes that the values in `wanted` depend on. A change in place counts as a new value of the tensor and of all its views."""
    roots = roots_of(nodes)
    alive, kept = set(wanted), []
    shared = {roots.get(name, name) for name in alive}
    for node in reversed(nodes):
        changed = _all_changed_by(node)
        if alive.intersection(names_in(node.outputs)) or any(roots.get(name, name) in shared for name in changed):
            read = _read_names(node)
            alive |= read
            shared |= {roots.get(name, name) for name in read}
            kept.append(node)
    return kept[::-1]


def _all_changed_by(node: Node) -> list[str]:
    """The tensors that a node changes itself, or through the graph that it runs."""
    body = body_of(node)
    if body is None:
        return [name] if (name := changed_by(node)) else []
    return list(names_in(body[1])) if any(map(_all_changed_by, body[0].nodes)) else []


def body_of(node: Node) -> tuple[Body, list[Any]] | None:
    """The graph that a node runs, and its arguments; None if it runs none, or depends on a condition."""
    if node.target not in _WRAPPERS:
        return None
    values = list(node.arguments.values())
    places = [index for index, value in enumerate(values) if isinstance(value, Body)]
    if len(places) != 1:
        return None
    body, rest = values[places[0]], values[places[0] + 1 :]
    rest = [value for value in rest if not isinstance(value, str)]
    return (body, rest) if len(body.inputs) == len(rest) else None


def require_covered(nodes: Iterable[Node]) -> None:
    """Raises UnsupportedError with the names of all operators that are not covered, if there are any."""
    missing = Missing()
    for node in _nodes_and_bodies(nodes):
        if node.target != DECOMPOSED and not is_covered(node.target):
            missing.operator(node.target, f"({node.name})")
    missing.require_none()


def _nodes_and_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, and in the place of those that run a graph what is needed of it."""
    for node in nodes:
        found = body_of(node)
        if found is None:
            yield node
        else:
            yield from _nodes_and_bodies(find_needed_nodes(found[0].nodes, names_in(found[0].outputs)))


#: Where programs stand in an archive of today, and in one of PyTorch 2.1 to 2.7.
_FOLDER, _EARLY = "models/", "serialized_exported_program.json"

#: Operators that write views back: so many, and four more for each node.
_WRITTEN_BACK = 1000


def program_entry(archive: Archive) -> str:
    """The entry of an archive that holds the program; "" if there is none.

    Raises:
        UnsupportedError: it holds several programs, none of which is called "model".
    """
    if _EARLY in archive:
        return _EARLY
    found = [name for name in archive if name.startswith(_FOLDER) and name.endswith(".json") and name.count("/") == 1]
    if len(found) > 1 and f"{_FOLDER}model.json" not in found:
        raise UnsupportedError(
            f"the archive holds {len(found)} programs, {', '.join(sorted(found)[:5])}",
            remedy="Save an archive with one of the programs.",
            rule="several-programs",
        )
    return f"{_FOLDER}model.json" if len(found) > 1 else found[0] if found else ""


def read(archive: Archive, name: str, given: GivenInputs, notes: Notes | None) -> Graph:
    """The graph of a torch.export program.

    Args:
        archive: the file's.
        name: of the graph.
        given: shapes of inputs, as the user states them.
        notes: what the archive notes of the program.

    Raises:
        InvalidModelError: the file is damaged.
        UnsupportedError: it has operators that are not covered; all are listed.
    """
    entry = program_entry(archive)
    program = parse_program(archive.text(entry))
    stored = read_stored_tensors(archive, entry.removeprefix(_FOLDER).removesuffix(".json"))
    program = restore_noted(program, stored, notes)
    draft = Draft()
    session = Session(draft, EXPORT)
    reading = _Reading(program, session)
    inputs = reading.give_inputs(stored, given)
    reading.run()
    outputs = flatten_outputs(reading.results(), session.constants)
    reading.write_states()
    return finish_graph(session, name, inputs, outputs, f"torch.export {program.torch_version}".strip(), states=reading.states)


class _Reading:
    """One program while it is read."""

    def __init__(self, program: Program, session: Session) -> None:
        self._program = program
        self._draft, self._constants = session.draft, session.constants
        self._values: dict[str, Any] = {}
        self._in_place = InPlace(session, self._spend)
        self._most = _WRITTEN_BACK + 4 * len(program.nodes)
        self.states: dict[str, Tensor] = {}
        #: Buffers that the program changes: their names in the graph -> (state, name of the new value).
        self._changed: dict[str, tuple[str, str]] = {}
        self._nodes = self._find_needed()

    def _find_needed(self) -> list[Node]:
        """The nodes that outputs depend on, and the new values of the buffers that those read."""
        buffers = {
            argument.name: target
            for kind, argument, target in self._program.inputs
            if kind == "buffer" and target and isinstance(argument, Ref)
        }
        by_target = {target: name for name, target in buffers.items()}
        stated = {
            by_target[target]: argument.name
            for kind, argument, target in self._program.outputs
            if kind == "buffer_mutation" and target in by_target and isinstance(argument, Ref)
        }
        roots = roots_of(self._program.nodes)
        changed = {roots.get(name, name) for node in self._program.nodes if (name := changed_by(node))}
        in_place = {name: name for name in buffers if name in changed}
        wanted = {name for kind, argument, _ in self._program.outputs if kind == "user_output" for name in names_in(argument)}
        candidates = {**in_place, **stated}
        while True:
            nodes = find_needed_nodes(self._program.nodes, wanted | {self._changed[name][1] for name in self._changed})
            read = {name for node in nodes for name in _read_names(node)}
            new = {name: (buffers[name], value) for name, value in candidates.items() if name in read and name not in self._changed}
            if not new:
                return nodes
            self._changed.update(new)

    def give_inputs(self, stored: Mapping[str, Any], given: GivenInputs) -> list[str]:
        """Notes the values of the program's inputs; returns the names of those that the user gives."""
        names: list[str] = []
        read = {name for node in self._nodes for name in _read_names(node)}
        read |= {name for _, argument, _ in self._program.outputs for name in names_in(argument)}
        for kind, argument, target in self._program.inputs:
            if not isinstance(argument, Ref):
                continue
            name = argument.name
            if name in self._values:
                raise InvalidModelError("the program has two inputs of this name", where=name, rule="duplicate-name")
            if kind == "user_input":
                self._values[name] = self._input(argument, len(names), given)
                names.append(name)
            elif target in stored:
                self._values[name] = stored[target]
                _place(stored[target], target, self._constants)
                if name in self._changed and isinstance(stored[target], StoredTensor):
                    self._values[name] = self._state(target, stored[target])
            elif name in read:
                raise InvalidModelError("the archive has no data of this parameter or buffer", where=target or name, rule="weights-missing")
        given.require_used()
        return names

    def _input(self, argument: Ref, index: int, given: GivenInputs) -> Ref:
        if argument.number:
            self._draft.add_exactly(argument.name, "int64", ())
            return Ref(argument.name, number=True)
        if argument.name not in self._program.tensors:
            raise InvalidModelError("the type of this input is not stated", where=argument.name, rule="input-not-stated")
        dtype, sizes = self._program.tensors[argument.name]
        stated = given.of(argument.name, index)
        if stated.quantization is not None:
            raise OptionError(
                f"--input-shape states a scale for {argument.name!r}; the inputs of a torch.export program are tensors without "
                "quantization",
                rule="option-not-applicable",
            )
        self._draft.add_exactly(argument.name, stated.dtype or dtype, stated.shape or sizes)
        return Ref(argument.name)

    def _state(self, target: str, stored: StoredTensor) -> Ref:
        """A buffer that the program changes: its value from one run to the next."""
        first = self._draft.tensors[self._constants.ref(stored).name]
        self.states[target] = replace(first, name=target)
        name = self._draft.add(f"{target}/read", first.dtype, first.shape)
        self._draft.append(Op("ReadState", (), (name,), {"state": target}))
        return Ref(name)

    def run(self) -> None:
        """Reads every node that is needed."""
        require_covered(self._nodes)
        for node in self._nodes:
            self._follow(node, self._values)

    def results(self) -> list[Any]:
        """The outputs of the program for the user."""
        found = [argument for kind, argument, _ in self._program.outputs if kind == "user_output"]
        results = [_resolve_names(argument, self._values, "outputs") for argument in found if isinstance(argument, Ref)]
        return [self._in_place.current_value(result) for result in results]

    def write_states(self) -> None:
        """The last values of the buffers that the program changes."""
        for state, value in self._changed.values():
            if state in self.states:
                last = flatten_outputs(self._in_place.current_value(self._values[value]), self._constants)[0]
                self._draft.append(Op("WriteState", (last,), (), {"state": state}))

    def _spend(self, where: str) -> None:
        """Counts operators that write views back. A long chain of views may need many of them for one node."""
        self._most -= 1
        if self._most < 0:
            raise EndlessError("the in-place changes have too many views to be written back", where=where, rule="too-many-views")

    def _follow(self, node: Node, values: dict[str, Any]) -> None:
        """Reads one node and notes what it computes."""
        if node.target == DECOMPOSED:
            refs = emit_noted(node, values, self._draft, self._constants)
            values.update((output.name, ref) for output, ref in zip(node.outputs, refs, strict=True) if output)
            return
        inner = body_of(node)
        if inner is not None:
            result = self._inline_body(*inner, values, node)
        else:
            positional, named = _resolve_names(node.split_arguments(), values, node.name)
            result = self._in_place.run(node.target, positional, named, f"({node.name})", node.name)
        several, wanted = node.gives_list, node.results
        if inner is not None and not several and len(wanted) == 1 and len(result) == 1:
            result = result[0]
        found = result if isinstance(result, (list, tuple)) and (several or len(wanted) > 1) else [result]
        if several and len(found) != len(wanted):
            raise InvalidModelError(
                f"the number of results is {len(found)}, the program takes {len(wanted)}", where=node.name, rule="counts-differ"
            )
        for output, value in zip(wanted, found, strict=False):
            if isinstance(output, Ref):
                values[output.name] = value

    def _inline_body(self, body: Body, given: list[Any], values: dict[str, Any], node: Node) -> Any:
        """Read the nodes of a body in place of the operator that runs it; returns the body's outputs."""
        inner: dict[str, Any] = {}
        for argument, value in zip(body.inputs, given, strict=True):
            for name in names_in(argument):
                inner[name] = _resolve_names(value, values, node.name)
        for item in find_needed_nodes(body.nodes, names_in(body.outputs)):
            self._follow(item, inner)
        return [_resolve_names(output, inner, node.name) for output in body.outputs]


def _place(value: StoredTensor | WrappedTensor, name: str, constants: Constants) -> None:
    """Names a constant after its place in the model; what a tensor keeps inside as its integers has the tensor's name."""
    if isinstance(value, StoredTensor):
        constants.place(value, name)
        return
    for key, part in value.parts.items():
        if isinstance(part, (StoredTensor, WrappedTensor)):
            _place(part, name if key == "qdata" else f"{name}.{key}", constants)


def _resolve_names(value: Any, values: Mapping[str, Any], where: str) -> Any:
    """An argument with the values that its names stand for."""

    def resolve(item: Any) -> Any:
        if isinstance(item, Ref) and item.name not in values:
            raise InvalidModelError(f"{item.name!r} is read before it is computed", where=where, rule="not-in-order")
        return values[item.name] if isinstance(item, Ref) else item

    return map_leaves(value, resolve)
