"""--subgraph in:out: the part of a graph between tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from qconvert.errors import OptionError
from qconvert.graph import Graph, Op, Signature
from qconvert.graph.names import quote_nearest
from qconvert.operators.functions import all_graphs, called_functions, with_used_functions

__all__ = ["cut_out", "parse_sides"]

_REMEDY = "Write --subgraph in:out; separate several names with commas."


def cut_out(graph: Graph, text: str) -> Graph:
    """The operators that lead from tensors to tensors.

    Args:
        graph: the whole.
        text: names of the inputs, a colon, names of the outputs. A side without names is the graph's own.

    States stay where an operator of the part reads them, and what writes them belongs to the part then.

    Raises:
        OptionError: a name is none of an activation, the part lacks an input, or an input leads to no output.
    """
    inputs, outputs = parse_sides(graph, text)
    constants = [name for name in (*inputs, *outputs) if graph[name].is_constant]
    if constants:
        raise OptionError(
            f"--subgraph names a constant: {constants[0]!r}", remedy="Name an input or a tensor that is computed.", rule="cut-at-constant"
        )
    if both := [name for name in outputs if name in inputs]:
        raise OptionError(f"--subgraph has {both[0]!r} on both sides of the colon, with no operator between", rule="empty-part")
    cuts = frozenset(inputs or graph.inputs)
    ops, missing, read = _find_needed_ops(graph, cuts, outputs or graph.outputs)
    if missing:
        listed = ", ".join(map(repr, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise OptionError(
            f"the part {text!r} also requires the input {listed}", remedy="Name it before the colon too.", rule="input-missing"
        )
    if idle := [name for name in inputs if name not in read]:
        raise OptionError(
            f"no operator of the part {text!r} reads {idle[0]!r}",
            remedy="Leave it out, or name later tensors after the colon.",
            rule="input-not-read",
        )
    return _build_part(graph, ops, inputs or tuple(name for name in graph.inputs if name in read), outputs or graph.outputs)


def parse_sides(graph: Graph, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names on both sides; names may have colons and commas themselves.

    Raises:
        OptionError: there is no colon, a name is not known, or the text can be read in several ways.
    """
    places = [place for place, letter in enumerate(text) if letter == ":"]
    if not places:
        raise OptionError(f"--subgraph {text!r} has no colon", remedy=_REMEDY, rule="no-colon")
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], None] = {}
    for place in places:
        sides = [names_in(side, graph.tensors) for side in (text[:place], text[place + 1 :])]
        if all(side is not None for side in sides):
            found[tuple(sides[0] or ()), tuple(sides[1] or ())] = None
    if len(found) > 1:
        raise OptionError(
            f"--subgraph {text!r} is ambiguous: it can be read in {len(found)} ways",
            remedy="Rename the tensor first, with --rename.",
            rule="ambiguous-names",
        )
    if not found:
        raise _unknown_name_error(graph, text, places)
    first, second = next(iter(found))
    if not first and not second:
        raise OptionError(f"--subgraph {text!r} names no tensor", remedy=_REMEDY, rule="no-tensor-named")
    for side in (first, second):
        if len(set(side)) < len(side):
            raise OptionError(f"--subgraph names {next(name for name in side if side.count(name) > 1)!r} twice", rule="named-twice")
    return first, second


def _unknown_name_error(graph: Graph, text: str, places: Sequence[int]) -> OptionError:
    """The error for names that are not known, at the colon that leaves the fewest."""

    def find_unknown(place: int) -> list[str]:
        parts = [part.strip() for side in (text[:place], text[place + 1 :]) for part in side.split(",")]
        return [part for part in parts if part and part not in graph.tensors]

    unknown = min(map(find_unknown, places), key=len)
    inside = next((name for name, inner in all_graphs(graph) if name and any(part in inner.tensors for part in unknown)), "")
    if inside:
        return OptionError(
            f"--subgraph names a tensor inside the function {inside!r}",
            remedy="Name tensors of the network itself.",
            rule="tensor-in-function",
        )
    activations = [name for name, tensor in graph.tensors.items() if not tensor.is_constant]
    return OptionError(
        f"there is no tensor {quote_nearest(unknown or [text], activations)}",
        remedy="`qconvert inspect --all` lists them.",
        rule="unknown-tensor",
    )


def names_in(text: str, known: Collection[str]) -> tuple[str, ...] | None:
    """The known names in a list with commas, which may be in the names too; None if something else is there."""
    if not text.strip():
        return ()
    parts = text.split(",")
    found: list[str] = []
    while parts:
        for count in range(len(parts), 0, -1):
            name = ",".join(parts[:count])
            name = name if name in known else name.strip()
            if name in known:
                break
        else:
            return None
        found.append(name)
        del parts[:count]
    return tuple(found)


def _find_needed_ops(graph: Graph, cuts: frozenset[str], outputs: Iterable[str]) -> tuple[list[Op], list[str], set[str]]:
    """The operators that compute the outputs and their states, the names of missing inputs, and the names of tensors read."""
    writers = graph.producers()
    waiting, seen = list(outputs), set[str]()
    kept: set[int] = set()
    missing: dict[str, None] = {}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in cuts or graph[name].is_constant:
            continue
        op = writers.get(name)
        if op is None:
            missing[name] = None
        elif id(op) not in kept:
            kept.add(id(op))
            waiting += filter(None, op.inputs)
            for other in _find_state_writers(graph, set(_states_of(graph, [op]))):
                if id(other) not in kept:
                    kept.add(id(other))
                    waiting += filter(None, other.inputs)
    order = {name: place for place, name in enumerate(graph.tensors)}
    return [op for op in graph.ops if id(op) in kept], sorted(missing, key=order.__getitem__), seen


def _states_of(graph: Graph, ops: Sequence[Op]) -> Iterator[str]:
    """The states that operators name, and those of the functions that they run."""
    inner = [op for name in called_functions(graph, ops) for op in graph.functions[name].ops]
    return (str(op["state"]) for op in (*ops, *inner) if op.kind in ("ReadState", "WriteState"))


def _find_state_writers(graph: Graph, states: set[str]) -> Iterator[Op]:
    """The operators that write one of these states."""
    return (op for op in graph.ops if states and op.kind != "ReadState" and not states.isdisjoint(_states_of(graph, [op])))


def _build_part(graph: Graph, ops: Sequence[Op], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
    states = set(_states_of(graph, ops))
    kept = {*inputs, *outputs}
    signatures = tuple(signature for signature in graph.signatures if signature.function or _is_whole(signature, kept))
    return with_used_functions(
        graph.evolve(
            ops=ops, inputs=inputs, outputs=outputs, signatures=signatures,
            states={name: state for name, state in graph.states.items() if name in states},
        )
    )  # fmt: skip


def _is_whole(signature: Signature, kept: set[str]) -> bool:
    """Whether the part still has all that an entry point names."""
    return kept.issuperset((*signature.inputs.values(), *signature.outputs.values()))
