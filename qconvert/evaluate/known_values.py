"""Values that are known before a model runs, found by folding the operators that lead to them when somebody asks.

Exporters put Constant, Identity, Cast, Reshape and ConstantOfShape between a scale and its use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.evaluate.folding import evaluate_constant
from qconvert.graph import Array, Op, Tensor

__all__ = ["KnownValues"]

#: Bytes of all values together; more only where the model's constants are large themselves.
LARGEST = 64 * 2**20
GROWTH = 4


class KnownValues:
    """The known values of a graph, each worked out once.

    All of them together have at most LARGEST bytes, or GROWTH times the bytes of the constants: what would be more is not known. A file of
    1 MB can name as many large values as it likes.

    Args:
        tensors: every tensor by name. More may be added while this object is in use.
        producers: the operator that writes each tensor; likewise.
    """

    def __init__(self, tensors: Mapping[str, Tensor], producers: Mapping[str, Op]) -> None:
        self._tensors = tensors
        self._producers = producers
        self._found: dict[str, Array | None] = {}
        self._left = -1  # bytes; not worked out before the first question, when the constants are there

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
            if found is not None and not self._is_affordable(found, values):
                found = None
            for position, output in enumerate(op.outputs):
                self._found[output] = None if found is None or position >= len(found) else found[position]
            pending.pop()
        return self._found[name]

    def _is_affordable(self, found: list[Array], inputs: Sequence[Array | None]) -> bool:
        """Whether there are bytes left for the values; views on the operator's inputs cost none."""
        if self._left < 0:
            constants = sum(tensor.data.nbytes for tensor in self._tensors.values() if tensor.data is not None)
            self._left = max(LARGEST, GROWTH * constants)
        own = [array for array in found if not any(value is not None and np.may_share_memory(array, value) for value in inputs)]
        size = sum(array.nbytes for array in own)
        if size > self._left:
            return False
        self._left -= size
        return True
