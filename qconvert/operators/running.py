"""An operator that runs functions of a graph, while it is run: what these are, and a way to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array, numpy_dtype
from qconvert.errors import UnsupportedError
from qconvert.graph.schema import Graph, Op
from qconvert.operators.properties import FunctionCall

#: How often the body of one loop runs, at most: a file can ask for 2**63 turns.
MOST_TURNS = 100_000


class Running:
    """An operator that is being run. `calls` are its functions by the attribute, of which `body` runs one on stored values."""

    def __init__(self, graph: Graph, op: Op, calls: dict[str, FunctionCall], body: Callable[[str, Sequence[Any]], list[Array]]) -> None:
        self.graph, self.op, self.calls, self.body = graph, op, calls, body

    def stack_outputs(self, attribute: str, index: int, values: list[Array], axis: int) -> Array:
        """Output `index` of a function at each turn, stacked along an axis; without turns, dynamic sizes are 0."""
        if values:
            return np.stack(values, axis)
        inner = self.graph.functions[self.calls[attribute].function]
        tensor = inner[inner.outputs[index]]
        sizes = [size if isinstance(size, int) else 0 for size in tensor.shape or ()]
        sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
        return np.zeros(sizes, numpy_dtype(tensor.dtype))

    def turn(self, number: int) -> int:
        """The number of the turn, if so many are run."""
        if number >= MOST_TURNS:
            raise UnsupportedError(
                f"it runs for more than {MOST_TURNS:,} iterations", where=f"{self.op.source} {self.op}".strip(), rule="too-many-iterations"
            )
        return number
