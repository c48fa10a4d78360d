"""Operators whose kernel in the source overflows: what it gives is computed to the last bit, and so told from a fault of the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op
from qconvert.kernels import Kernels

__all__ = ["Overflowed", "compute_overflow"]


@dataclass(frozen=True, slots=True)
class Overflowed:
    """An output as the source's kernels give it, and as the operator means it.

    Attributes:
        forms: as the kernels give it, with whatever overflows: each element is that of one of them.
        meant: with nothing that overflows, each operator rounded once.
        values: what is meant on the way, by name.
        places: the operators that overflow, or are wrong in another way that is known.
        fault: that of the last of them; see kernels.Integers.
    """

    forms: tuple[Array, ...]
    meant: Array
    values: Mapping[str, Array]
    places: tuple[Op, ...]
    fault: str

    def can_give(self, found: Array) -> bool:
        """Whether the kernels may give these values, to the last bit."""
        if any(form.shape != found.shape for form in self.forms):
            return False
        return bool(np.any([form == found for form in self.forms], axis=0).all())


def compute_overflow(
    graph: Graph, op: Op, index: int, values: Mapping[str, Array], writers: Mapping[str, Op], kernels: Kernels
) -> Overflowed | None:
    """Compute output `index` of an operator if its kernel overflows on these values; None if none does. An operator before it counts too if
    `values` lack its result, as of a computed constant.

    Args:
        graph, op, index: the operator.
        values: stored values by name.
        writers: the operator that computes each tensor.
        kernels: of the runtime.
    """
    made = _Made(graph, values, writers, kernels)
    try:
        made.compute(op)
    except (QConvertError, KeyError):
        return None
    name = op.outputs[index]
    if not made.places:
        return None
    return Overflowed(made.forms.get(name, (made.stored[name],)), made.meant[name], made.meant, tuple(made.places), made.fault)


@dataclass(slots=True)
class _Made:
    graph: Graph
    values: Mapping[str, Array]
    writers: Mapping[str, Op]
    kernels: Kernels
    stored: dict[str, Array] = field(default_factory=dict)
    meant: dict[str, Array] = field(default_factory=dict)
    places: list[Op] = field(default_factory=list)
    forms: dict[str, tuple[Array, ...]] = field(default_factory=dict)
    fault: str = ""

    def compute(self, op: Op) -> None:
        """Both forms of an operator's outputs, and of whatever before it is not known."""
        for name in op.inputs:
            if name and name not in self.stored:
                known = self.graph.constant(name) if self.graph[name].is_constant else self.values.get(name)
                if known is None:
                    self.compute(self.writers[name])
                else:
                    self.stored[name] = self.meant[name] = known
        found = self.kernels.integers(self.graph, op, [self.stored[name] if name else None for name in op.inputs])
        for way in (self.stored, self.meant):
            results = evaluate_op(self.graph, op, [way[name] if name else None for name in op.inputs])
            way.update((name, result.stored) for name, result in zip(op.outputs, results, strict=False) if name)
        if found is not None and found.fault and not all(np.array_equal(way, self.meant[op.outputs[0]]) for way in found.ways):
            self.stored[op.outputs[0]], self.forms[op.outputs[0]] = found.ways[0], found.ways
            self.places.append(op)
            self.fault = found.fault
