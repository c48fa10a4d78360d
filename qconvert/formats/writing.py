"""The canonical graph as the write functions of every format see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import ClassVar

from qconvert.errors import UnsupportedError
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.opaque import custom_name


def list_kinds(ops: Iterable[Op], known: Sequence[Container[str]]) -> str:
    """The kinds of operators that are in none of `known`, each with how many there are, in words; an Opaque by its name in the source."""
    missing = (op for op in ops if not any(op.kind in kinds for kinds in known))
    counts = Counter(custom_name(op) if kind_of(op).rule == "opaque" else op.kind for op in missing)
    return ", ".join(f"{kind} ({count})" for kind, count in sorted(counts.items()))


class OperatorWriting:
    """A graph that is being written; each format adds its own container to it.

    Attributes:
        graph: the canonical graph.
    """

    #: Of a format: where operators go, as errors say it, such as "to ONNX".
    destination: ClassVar[str]

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._producers = graph.producers()
        self._reads = Counter(name for op in graph.ops for name in op.inputs)

    def tensor(self, name: str) -> Tensor:
        """The canonical tensor called `name`."""
        return self.graph.tensors[name]

    def operand(self, op: Op, index: int = 0) -> Tensor:
        """Input `index` of an operator."""
        return self.tensor(op.inputs[index])

    def result(self, op: Op) -> Tensor:
        """The first output of an operator."""
        return self.tensor(op.outputs[0])

    def producer(self, name: str, *kinds: str) -> Op | None:
        """The canonical operator that computes the tensor `name`, of one of `kinds` if these are given; None if there is none."""
        return self._producers.find(name, *kinds)

    def integers(self, op: Op, index: int) -> list[int]:
        """The integers of constant input `index`, flat; raises UnsupportedError if they are computed at run time."""
        return [int(value) for value in self.constant(op, index).reshape(-1)]

    def constant(self, op: Op, index: int) -> Array:
        """The data of input `index` of `op`; raises UnsupportedError if it is computed at run time."""
        data = self.graph.constant(op.inputs[index])
        if data is None:
            raise self.unsupported_error(op, f"input {op.inputs[index]!r} that is computed at run time", rule="not-constant")
        return data

    def unsupported_error(self, op: Op, what: str, *, rule: str = "variant-not-writable") -> UnsupportedError:
        """Return the error for something that has no form in the format."""
        return UnsupportedError(f"{op.kind} with {what} cannot be written {self.destination}", where=op.location, rule=rule)
