"""Which nodes of a program are read: those that something needs, and the bodies of operators of higher order in their place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.export.document import Body, Node, SizeName, TensorName
from qconvert.formats.torch.missing import Missing
from qconvert.formats.torch.views import VIEWS

__all__ = ["body_of", "changed_by", "is_in_place", "named", "needed", "require_apart", "require_covered"]

#: Operators that run a graph for its values alone, and how many arguments stand before the graph.
_WRAPPERS = {
    "higher_order::wrap_with_set_grad_enabled",
    "higher_order::wrap_with_autocast",
    "higher_order::wrap",
    "higher_order::hints_wrapper",
    "higher_order::invoke_subgraph",
    "higher_order::strict_mode",
}


def named(value: Any) -> Iterator[str]:
    """The names in an argument, which may be a list."""
    if isinstance(value, (TensorName, SizeName)):
        yield value.name
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from named(item)
    elif isinstance(value, str):
        yield value


def _read(node: Node) -> Iterator[str]:
    for value in node.arguments.values():
        if not isinstance(value, str):
            yield from named(value)


def is_in_place(node: Node) -> bool:
    """Whether a node changes its first argument: add_, copy_ …"""
    return node.target.startswith("aten::") and node.target.endswith("_") and not node.target.endswith("__")


def changed_by(node: Node) -> str:
    """The name of the tensor that a node changes; "" if it changes none."""
    first = node.arguments.get("self")
    return first.name if is_in_place(node) and isinstance(first, TensorName) else ""


def needed(nodes: Sequence[Node], wanted: Iterable[str]) -> list[Node]:
    """The nodes that the values in `wanted` depend on. What a node does to a tensor counts as a new value of it."""
    alive, kept = set(wanted), []
    for node in reversed(nodes):
        changed = changed_by(node)
        if alive.intersection(named(node.outputs)) or changed in alive:
            alive.update(_read(node))
            kept.append(node)
    return kept[::-1]


def require_apart(nodes: Sequence[Node], kept: Sequence[Node], outputs: Iterable[str], buffers: Collection[str]) -> None:
    """Refuses changes in place that others see: of a part of a tensor that is read again, or of a tensor of which there are views.

    Args:
        nodes: all of a program.
        kept: those that are read.
        outputs: names that the program gives.
        buffers: names of what lives from one run to the next.
    """
    roots: dict[str, str] = {}
    members: dict[str, set[str]] = {}
    order = {id(node): position for position, node in enumerate(nodes)}
    reads = [(order.get(id(node), -1), name) for node in kept for name in _read(node)]
    reads += [(len(nodes), name) for name in outputs]
    last: dict[str, int] = {}
    for position, name in reads:
        last[name] = max(position, last.get(name, -1))
    for position, node in enumerate(nodes):
        changed = changed_by(node)
        first = changed or (next(named(node.arguments.get("self")), "") if node.target in VIEWS else "")
        if not first:
            continue
        root = roots.get(first, first)
        family = members.setdefault(root, {root})
        if changed:
            others = family | ({root} if changed != root else set())
            seen = any(last.get(name, -1) > position for name in others - {changed})
            if seen or (changed != root and root in buffers and any(name in last for name in family)):
                raise UnsupportedError(
                    f"{node.target} on a tensor that others share, and that is read again, is not covered",
                    where=node.name,
                    remedy="Write it without changes in place: program.run_decompositions() before torch.export.save.",
                )
        for name in named(node.outputs):
            roots[name] = root
            if not changed:
                family.add(name)


def body_of(node: Node) -> tuple[Body, list[Any]] | None:
    """The graph that a node runs, and what it is given; None if it runs none, or depends on a condition."""
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
    """Raises UnsupportedError, which names every operator that is not covered, if there is one."""
    missing = Missing()
    pending = [iter(nodes)]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        found = body_of(node)
        if found is not None:
            pending.append(iter(needed(found[0].nodes, named(list(found[0].outputs)))))
        elif not covers(node.target) and not (is_in_place(node) and covers(node.target[:-1])):
            missing.operator(node.target, f"({node.name})")
    missing.require_none()
