"""Options that name tensors: --subgraph in:out, the part of a graph between tensors, and --rename old=new, other names for inputs, outputs
and tensors inside.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.errors import OptionError, quote_some
from qconvert.graph import Graph, Op, Signature
from qconvert.graph.metadata import NAMING
from qconvert.graph.names import quote_nearest
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import all_graphs, named_states, rename_state, with_used_functions

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
        listed = quote_some(missing, 8)
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
        remedy="`qconvert inspect` lists them with --verbose.",
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
            for other in _find_state_writers(graph, {*named_states(graph, [op])}):
                if id(other) not in kept:
                    kept.add(id(other))
                    waiting += filter(None, other.inputs)
    order = {name: place for place, name in enumerate(graph.tensors)}
    return [op for op in graph.ops if id(op) in kept], sorted(missing, key=order.__getitem__), seen


def _find_state_writers(graph: Graph, states: set[str]) -> Iterator[Op]:
    """The operators that write one of these states."""
    return (op for op in graph.ops if states and not kind_of(op).reads_state and not states.isdisjoint(named_states(graph, [op])))


def _build_part(graph: Graph, ops: Sequence[Op], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
    states = named_states(graph, ops)
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


def rename_tensors(graph: Graph, pairs: Sequence[str], whole: Graph | None = None) -> Graph:
    """The graph with other names of tensors and states; signatures, states and notes follow.

    Args:
        graph: what is renamed.
        pairs: texts such as "old=new", which hold at the same time.
        whole: the whole graph, if `graph` is a part of it: names the reason in the error.

    Raises:
        OptionError: a name is not known, or would be that of two tensors.
    """
    new = new_names(graph, pairs, whole)
    renamed = graph.with_names(new)
    states = {new.get(name, name): replace(state, name=new.get(name, name)) for name, state in graph.states.items()}
    return replace(
        renamed,
        ops=tuple(rename_state(op, new) for op in renamed.ops),
        signatures=tuple(_signature(item, new) for item in graph.signatures),
        states=states,
        functions={
            name: replace(inner, ops=tuple(rename_state(op, new) for op in inner.ops)) if graph.states else inner
            for name, inner in graph.functions.items()
        },
        metadata={key: _note(text, new) if key in NAMING else text for key, text in graph.metadata.items()},
    )


def new_names(graph: Graph, pairs: Sequence[str], whole: Graph | None = None) -> dict[str, str]:
    """Old name -> new name.

    Raises:
        OptionError: see renamed().
    """
    found: dict[str, str] = {}
    for text in pairs:
        old, new = _parse_pair(graph, text, whole)
        if old in found:
            raise OptionError(f"--rename gives {old!r} two names, {found[old]!r} and {new!r}", rule="renamed-twice")
        found[old] = new
    for known in (graph.tensors, graph.states):
        after: dict[str, str] = {}
        for name in known:
            if (other := after.setdefault(found.get(name, name), name)) != name:
                raise OptionError(
                    f"--rename names both {other!r} and {name!r} {found.get(name, name)!r}",
                    remedy="Choose another name.",
                    rule="duplicate-name",
                )
    return {old: new for old, new in found.items() if old != new}


def _parse_pair(graph: Graph, text: str, whole: Graph | None) -> tuple[str, str]:
    """The two names in a text; the old one may have "=" itself."""
    places = [place for place, letter in enumerate(text) if letter == "="]
    pairs = [(text[:place].strip(), text[place + 1 :].strip()) for place in places]
    if not pairs or not any(new for _, new in pairs):
        raise OptionError(
            f"--rename {text!r} has no name after {'a' if not pairs else 'the'} =",
            remedy="Write --rename old=new.",
            rule="malformed-option",
        )
    fitting = [(old, new) for old, new in pairs if new and (old in graph.tensors or old in graph.states)]
    if len(fitting) > 1:
        raise OptionError(f"--rename {text!r} is ambiguous: it can be read in {len(fitting)} ways", rule="ambiguous-names")
    if fitting:
        return fitting[0]
    old = pairs[0][0]
    if whole is not None and old in whole.tensors:
        raise OptionError(f"--rename names {old!r}, which is not in the part that --subgraph keeps", rule="renamed-outside")
    raise OptionError(
        f"there is no tensor {quote_nearest([old], [*graph.states, *graph.tensors])}",
        remedy="`qconvert inspect` lists them with --verbose.",
        rule="unknown-tensor",
    )


def _signature(item: Signature, new: Mapping[str, str]) -> Signature:
    if item.function:
        return item
    sides = ({argument: new.get(name, name) for argument, name in side.items()} for side in (item.inputs, item.outputs))
    inputs, outputs = sides
    return replace(item, inputs=inputs, outputs=outputs)


def _note(text: str, new: Mapping[str, str]) -> str:
    """A note with names in it exchanged; one that is no JSON stays as it is."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(found, dict):
        return json.dumps({new.get(name, name): value for name, value in found.items()})
    if isinstance(found, list):
        return json.dumps([new.get(item, item) if isinstance(item, str) else item for item in found])
    return text
