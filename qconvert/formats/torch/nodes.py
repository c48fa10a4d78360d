"""Programs as they are written: calls of operators on each other's results. PyTorch is needed only to put them in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from qconvert.graph import Array

__all__ = ["Node", "find_needed_nodes", "read_by"]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value of a program.

    Attributes:
        operator: with its overload, such as "aten.add.Tensor", or "aten.relu" for the default one; "operator.add" for a function of
            Python's own on sizes. "" for an input or a constant.
        arguments, named: of the call, by position and by name: numbers, texts, None, TorchTypes, Nodes, and lists of these.
        name: of an input or a constant.
        data: of a constant.
        function: the Python function, for a call without a name in PyTorch; only in programs that are never written to a file.
    """

    operator: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    data: Array | None = None
    function: Callable[..., Any] | None = None

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the program."""
        return not self.operator and self.data is None


def read_by(node: Node) -> Iterator[Node]:
    """The nodes in a node's arguments."""
    pending: list[Any] = [*node.arguments, *node.named.values()]
    while pending:
        value = pending.pop()
        if isinstance(value, Node):
            yield value
        elif isinstance(value, (list, tuple)):
            pending.extend(value)


def find_needed_nodes(nodes: Iterable[Node], outputs: Iterable[Node]) -> list[Node]:
    """The inputs, and the nodes that the outputs depend on, in the order of `nodes`."""
    listed = list(nodes)
    wanted = {id(node) for node in outputs}
    kept = []
    for node in reversed(listed):
        if node.is_input or id(node) in wanted:
            kept.append(node)
            wanted.update(id(item) for item in read_by(node))
    return kept[::-1]
