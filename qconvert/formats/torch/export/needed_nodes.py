"""The nodes of a program that outputs depend on, and the bodies of higher-order operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from qconvert.formats.torch.export.document import Body, Node, SizeName, TensorName
from qconvert.formats.torch.in_place import is_change
from qconvert.formats.torch.uncovered_operators import Missing
from qconvert.formats.torch.views import VIEWS

__all__ = ["body_of", "changed_by", "find_needed_nodes", "is_in_place", "names_in", "require_covered", "roots_of"]

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
    if isinstance(value, (TensorName, SizeName)):
        yield value.name
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from names_in(item)
    elif isinstance(value, str):
        yield value


def _read_names(node: Node) -> Iterator[str]:
    for value in node.arguments.values():
        if not isinstance(value, str):
            yield from names_in(value)


def is_in_place(node: Node) -> bool:
    """Whether a node changes its first argument: add_, copy_ …"""
    return node.target.startswith("aten::") and is_change(node.target)


def changed_by(node: Node) -> str:
    """The name of the tensor that a node changes; "" if it changes none."""
    first = node.arguments.get("self")
    return first.name if is_in_place(node) and isinstance(first, TensorName) else ""


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
            read = set(_read_names(node))
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


def require_covered(nodes: Iterable[Node], covers: Callable[[str], bool]) -> None:
    """Raises UnsupportedError with the names of all operators that are not covered, if there are any."""
    missing = Missing()
    pending = [iter(nodes)]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        found = body_of(node)
        if found is not None:
            pending.append(iter(find_needed_nodes(found[0].nodes, names_in(list(found[0].outputs)))))
        elif not covers(node.target) and not (is_in_place(node) and covers(node.target[:-1])):
            missing.operator(node.target, f"({node.name})")
    missing.require_none()
