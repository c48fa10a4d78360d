"""Values that are known before a model runs, found by folding the operators that lead to them when somebody asks.

Exporters put Constant, Identity, Cast, Reshape and ConstantOfShape between a scale and its use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.errors import QConvertError
from qconvert.evaluate.folding import LARGEST, evaluate_constant, is_affordable
from qconvert.evaluate.known_sizes import KnownSizes
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import find_kind, kind_of
from qconvert.operators.shapes_and_functions import output_shapes

#: How many times larger values may be than what they are made of.
GROWTH = 4


def compute_constant(op: Op, tensors: Mapping[str, Tensor], values: Sequence[Array | None]) -> list[Array] | None:
    """The outputs of an operator whose inputs are all known; None where it has no evaluation, works with quantizations, or would make too
    much.

    Args:
        op: the operator: none that sums products, none with effects.
        tensors: its inputs and outputs, by name.
        values: stored values of the inputs, in order; None for one that is absent.
    """
    from qconvert.evaluate import evaluate_op

    kind = find_kind(op)
    if kind is None or kind.evaluate is None or kind.sums_products or kind.rule not in ("real", "move", "index", "plain"):
        return None
    named = [name for name in op.names if name]
    if any(name not in tensors or tensors[name].is_quantized for name in named):
        return None
    given = {
        name: Tensor(name, tensors[name].dtype, value.shape, value)
        for name, value in zip(op.inputs, values, strict=True)
        if value is not None
    }
    try:
        if not is_affordable(output_shapes(given, op), [tensors[name].dtype for name in op.outputs], values, GROWTH):
            return None
        outputs = {name: tensors[name] for name in op.outputs if name}
        found = evaluate_op(Graph("", {**given, **outputs}, (op,), (), ()), op, values)
    except (QConvertError, ArithmeticError, MemoryError, KeyError, TypeError, ValueError, IndexError):
        return None
    return [np.asarray(result.stored) for result in found] if len(found) == len(op.outputs) else None


class KnownValues:
    """The known values of a graph, each worked out once.

    Integers computed from sizes are known if they do not depend on dynamic sizes (known_sizes.py).

    All of them together have at most LARGEST bytes, as a single one has, or GROWTH times the bytes of the constants: what would be more
    is not known. A file of 1 MB can name as many large values as it likes.

    Args:
        tensors: every tensor by name. More may be added while this object is in use.
        producers: the operator that writes each tensor; likewise.

    Attributes:
        sizes: what is known of the integers that depend on sizes.
        computes: whether a value counts as known too if kernels differ in its last bit; see compute_constant().
    """

    def __init__(self, tensors: Mapping[str, Tensor], producers: Mapping[str, Op]) -> None:
        self.sizes = KnownSizes(tensors, producers)
        self.computes = False
        self._tensors = tensors
        self._producers = producers
        self._found: dict[str, Array | None] = {}
        self._left = -1  # bytes; not worked out before the first question, when the constants are there

    def get(self, name: str) -> Array | None:
        """The data of the tensor `name`, or None if they depend on the model's inputs."""
        if name in self._found:
            return self._found[name]
        pending = [_Question(name, self._producers.get(name), self._found)]
        asked = {name}
        while pending:
            question = pending[-1]
            op, data = question.op, self._tensors[question.name].data
            if question.name in self._found or data is not None or op is None:
                self._found.setdefault(question.name, data)
                pending.pop()
                continue
            wanted = question.next_missing(self._found)
            if wanted in asked:  # a cycle, which validation refuses: nothing is known in it
                self._found[wanted] = None
                continue
            if wanted is not None:
                asked.add(wanted)
                pending.append(_Question(wanted, self._producers.get(wanted), self._found))
                continue
            found = self._compute_outputs(op)
            for position, output in enumerate(op.outputs):
                self._found[output] = None if found is None or position >= len(found) else found[position]
            pending.pop()
        return self._found[name]

    def _compute_outputs(self, op: Op) -> list[Array] | None:
        """The outputs of an operator, if all that it reads is known, can be computed and can be afforded."""
        values = [self._found.get(value) if value else None for value in op.inputs]
        known = all(self._found.get(value) is not None for value in op.inputs if value)
        found = evaluate_constant(op, self._tensors, values) if known or kind_of(op).lists_sizes else None
        if found is None and known and self.computes and op.inputs:
            found = compute_constant(op, self._tensors, values)
        if found is None:
            numbers = [self.sizes.numbers(output) if output else None for output in op.outputs]
            found = [data for data in numbers if data is not None]
            found = found if len(found) == len(numbers) else None
        return found if found is not None and self._is_affordable(found, values) else None

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


class _Question:
    """A value that is asked for, and how far its operator's inputs have been looked at, so that none is looked at twice."""

    def __init__(self, name: str, op: Op | None, found: Mapping[str, Array | None]) -> None:
        self.name, self.op = name, op
        # Sizes need no values, and nothing is computed of an Opaque.
        needed = () if op is None or kind_of(op).lists_sizes or kind_of(op).rule == "opaque" else op.inputs
        self._left = [value for value in reversed(needed) if value]
        if any(value in found and found[value] is None for value in self._left):
            self._left.clear()

    def next_missing(self, found: Mapping[str, Array | None]) -> str | None:
        """The next input that has to be worked out; None if all are, or if one is not known, after which the others need no computing."""
        while self._left:
            if self._left[-1] not in found:
                return self._left[-1]
            if found[self._left.pop()] is None:
                self._left.clear()
        return None
