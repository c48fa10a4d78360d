"""Values that are known before a model runs, found by folding the operators that lead to them when somebody asks.

Exporters put Constant, Identity, Cast, Reshape and ConstantOfShape between a scale and its use.
"""

from __future__ import annotations

from collections.abc import Mapping

from qconvert.evaluate.folding import evaluate_constant
from qconvert.graph import Array, Op, Tensor

__all__ = ["KnownValues"]


class KnownValues:
    """The known values of a graph, each worked out once.

    Args:
        tensors: every tensor by name. More may be added while this object is in use.
        producers: the operator that writes each tensor; likewise.
    """

    def __init__(self, tensors: Mapping[str, Tensor], producers: Mapping[str, Op]) -> None:
        self._tensors = tensors
        self._producers = producers
        self._found: dict[str, Array | None] = {}

    def get(self, name: str) -> Array | None:
        """The data of the tensor `name`, or None if they depend on the model's inputs."""
        pending = [name]
        while pending:
            current = pending[-1]
            data, op = self._tensors[current].data, self._producers.get(current)
            if current in self._found or data is not None or op is None:
                self._found.setdefault(current, data)
                pending.pop()
                continue
            given = [value for value in op.inputs if value]
            missing = next((value for value in given if value not in self._found), None)
            # Behind one input that is not known, the others (often large weights) need no computing.
            hopeless = any(value in self._found and self._found[value] is None for value in given)
            if missing is not None and not hopeless and op.kind not in ("Opaque", "Shape"):
                pending.append(missing)
                continue
            values = [self._found.get(value) if value else None for value in op.inputs]
            known = all(self._found.get(value) is not None for value in given)
            found = evaluate_constant(op, self._tensors, values) if known or op.kind == "Shape" else None
            for position, output in enumerate(op.outputs):
                self._found[output] = None if found is None or position >= len(found) else found[position]
            pending.pop()
        return self._found[name]
