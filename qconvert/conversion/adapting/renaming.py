"""--rename old=new: other names for inputs, outputs and tensors inside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.errors import OptionError
from qconvert.graph import Graph, Op, Signature
from qconvert.graph.metadata import NAMING
from qconvert.graph.names import quote_nearest

__all__ = ["new_names", "rename_tensors"]


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

    def map_names(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(new.get(name, name) for name in names)

    states = {new.get(name, name): replace(state, name=new.get(name, name)) for name, state in graph.states.items()}
    return replace(
        graph,
        tensors={new.get(name, name): replace(tensor, name=new.get(name, name)) for name, tensor in graph.tensors.items()},
        ops=tuple(replace(_with_state(op, new), inputs=map_names(op.inputs), outputs=map_names(op.outputs)) for op in graph.ops),
        inputs=map_names(graph.inputs),
        outputs=map_names(graph.outputs),
        signatures=tuple(_signature(item, new) for item in graph.signatures),
        states=states,
        functions={
            name: replace(inner, ops=tuple(_with_state(op, new) for op in inner.ops)) if graph.states else inner
            for name, inner in graph.functions.items()
        },
        metadata=_notes(graph.metadata, new),
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
        remedy="`qconvert inspect --all` lists them.",
        rule="unknown-tensor",
    )


def _with_state(op: Op, new: Mapping[str, str]) -> Op:
    if op.kind not in ("ReadState", "WriteState") or op["state"] not in new:
        return op
    return op.with_attributes(state=new[str(op["state"])])


def _signature(item: Signature, new: Mapping[str, str]) -> Signature:
    if item.function:
        return item
    sides = ({argument: new.get(name, name) for argument, name in side.items()} for side in (item.inputs, item.outputs))
    inputs, outputs = sides
    return replace(item, inputs=inputs, outputs=outputs)


def _notes(metadata: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    return {key: _note(text, new) if key in NAMING else text for key, text in metadata.items()}


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
