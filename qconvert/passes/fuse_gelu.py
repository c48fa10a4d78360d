"""fuse_gelu: a Gelu that an exporter spelled out with Erf becomes one operator again.

x * (1 + erf(x / sqrt(2))) / 2, on real or quantized values, in whichever order the factors are written (Hendrycks and Gimpel, 2016). Exact
in real numbers; a kernel for the whole may give another last bit of a float.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["run"]

_ROOT = math.sqrt(2)


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Replaces each product that is such a Gelu of one tensor; what others read of its parts stays."""
    if not any(op.kind == "Erf" for op in graph.ops):
        return graph, ()
    rewriter = Rewriter(graph)
    finder = _Finder(rewriter)
    count = 0
    for op in rewriter:
        data = finder.gelu_of(op)
        if data is not None:
            rewriter.replace(op, replace(op, kind="Gelu", inputs=(data,), attributes={"approximate": "none"}))
            count += 1
    if not count:
        return graph, ()
    return rewriter.finish(prune=True), (f"{count} Gelu decomposed with Erf are one operator",)


class _Finder:
    def __init__(self, rewriter: Rewriter) -> None:
        self._graph, self._producers = rewriter.graph, rewriter.producers

    def gelu_of(self, op: Op) -> str | None:
        """The x of which the Mul `op` is the Gelu: factors x, 1 + erf(x / sqrt(2)), and constants that multiply to 1/2."""
        if op.kind != "Mul" or op["activation"]:
            return None
        parts = [self._factors(operand, 2) for operand in op.inputs]
        factors, product = [factor for found, _ in parts for factor in found], math.prod(number for _, number in parts)
        if len(factors) != 2 or not math.isclose(product, 0.5, rel_tol=1e-6):
            return None
        for data, gate in (factors, factors[::-1]):
            if self._is_gate(gate, data):
                return data
        return None

    def _factors(self, name: str, depth: int) -> tuple[list[str], float]:
        """The tensors and the product of the numbers that `name` is the product of."""
        number = self._number(name)
        if number is not None:
            return [], number
        op = self._part(name)
        if op is None or depth == 0 or op.kind not in ("Mul", "Div") or op.attributes.get("activation"):
            return [name], 1.0
        if op.kind == "Div":
            divisor = self._number(op.inputs[1])
            if not divisor:
                return [name], 1.0
            factors, product = self._factors(op.inputs[0], depth - 1)
            return factors, product / divisor
        parts = [self._factors(operand, depth - 1) for operand in op.inputs]
        return [factor for factors, _ in parts for factor in factors], math.prod(product for _, product in parts)

    def _is_gate(self, name: str, data: str) -> bool:
        """Whether `name` is 1 + erf(data / sqrt(2))."""
        op = self._part(name)
        if op is None or op.kind != "Add" or op["activation"]:
            return False
        for one, curve in (op.inputs, op.inputs[::-1]):
            erf = self._part(curve)
            if self._number(one) == 1.0 and erf is not None and erf.kind == "Erf":
                factors, product = self._factors(erf.inputs[0], 2)
                same = [self._stored(name) for name in factors] == [self._stored(data)]
                return same and math.isclose(product, 1 / _ROOT, rel_tol=1e-6)
        return False

    def _part(self, name: str) -> Op | None:
        """The operator that computes a tensor of real values; on a grid they were rounded, which one operator would not do."""
        return None if self._graph[name].is_quantized else self._producers.get(name)

    def _stored(self, name: str) -> str:
        """The quantized tensor whose real values `name` is, or `name` itself."""
        op = self._producers.get(name)
        return op.inputs[0] if op is not None and op.kind == "Dequantize" else name

    def _number(self, name: str) -> float | None:
        data = self._graph.constant(name)
        is_number = data is not None and data.size == 1 and data.dtype.kind == "f" and not self._graph[name].is_quantized
        return float(np.asarray(data).reshape(-1)[0]) if is_number else None
