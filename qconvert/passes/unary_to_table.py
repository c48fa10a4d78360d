"""unary_to_table: elementwise functions of one quantized tensor that the target has no operator for become tables of their values.

Everything that is computed of one tensor of 8 bits, element by element, has at most 256 values, however many operators and grids lie
between: a Gelu spelled out with Quantize and Dequantize between its parts is one table. The table holds what the evaluation of the
operators gives for each code, with every rounding between them, so nothing is rounded otherwise. It is read as

    codes (int8) -> Cast to int32 -> Add 128 -> Gather of the table -> codes of the result

A function becomes a table only if a part of it has no operator in the target's format, or a formula of several that comes near to it. The
table begins at the nearest tensor of codes that all of such parts are functions of, and takes in what belongs to the function behind them,
up to what somebody else reads. 16 bits have tables of 65,536 values.

    x -> Div -> a -> Erf -> b -> Add -> c -> Mul by x -> y      becomes      x -> Cast -> Add -> Gather -> y
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from qconvert.evaluate.curves import curve_roots, curve_values, has_codes
from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.plugins import Change, Target, operators

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change | str, ...]]:
    """Tables for the functions that hold a kind which the target's format has no writer for; nothing without a target."""
    writers = operators(target.format, "write") if target is not None and target.format else {}
    known = {kind for kind, write in writers.items() if not getattr(write, "comes_near", False)}
    if not known or all(op.kind in known for op in graph.ops):
        return graph, ()
    roots = curve_roots(graph)
    missing: dict[str, str] = {}  # the tensors on whose way an operator has no writer, and the root in front of these
    lacked: set[str] = set()
    for op in graph.ops:
        if op.outputs and op.outputs[0] in roots and (op.kind not in known or not missing.keys().isdisjoint(op.inputs)):
            root = next((name for name in roots[op.outputs[0]] if name not in missing), "")
            missing.update({op.outputs[0]: root} if root else {})
            lacked.update({op.kind} - known)
    tables = _Tables(graph)
    ops: list[Op] = []
    wanted = set(graph.public)
    for op in reversed(graph.ops):
        name = op.outputs[0] if op.outputs else ""
        if name in missing and name in wanted and has_codes(graph[name]):
            ops += reversed(tables.lookup(op, missing[name]))
            wanted.add(missing[name])
        elif name not in roots or name in wanted:
            ops.append(op)
            wanted.update(op.inputs)
    if not tables.sizes:
        return graph, ()
    listed = ", ".join(f"{count} of {size} values" for size, count in sorted(tables.sizes.items()))
    note = f"functions of one tensor with {', '.join(sorted(lacked))}, which the format lacks, are looked up in tables: {listed}"
    return graph.evolve(tensors=tables.tensors.values(), ops=ops[::-1]), (Change(note, exact=True),)


class _Tables:
    """The tables for a graph, each once, and the operators that read them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers = graph.producers()
        self._known: dict[tuple[object, ...], str] = {}
        self.tensors: dict[str, Tensor] = {}
        self._names = graph.names(self.tensors)
        self.sizes: Counter[int] = Counter()

    def lookup(self, op: Op, name: str) -> list[Op]:
        """The operators that give the result of `op` by a table over the codes of the tensor `name`."""
        root, result = self._graph[name], self._graph[op.outputs[0]]
        values = curve_values(self._graph, self._producers, result.name, name)
        self.sizes[values.size] += 1
        table = self._constant(f"{result.name}/table", replace(result, shape=values.shape, data=values))
        index = self._added(f"{result.name}/codes", Tensor("", "int32", root.shape))
        found = [Op("Cast", (root.name,), (index,), {"to": "int32"}, op.source)]
        low = integer_range(root.dtype)[0]
        if low:
            offset = self._constant(f"{result.name}/first", Tensor("", "int32", (), np.array(-low, np.int32)))
            codes, index = index, self._added(f"{result.name}/index", Tensor("", "int32", root.shape))
            found.append(Op("Add", (codes, offset), (index,), {}, op.source))
        return [*found, Op("Gather", (table, index), (result.name,), {"axis": 0}, op.source)]

    def _constant(self, wanted: str, tensor: Tensor) -> str:
        assert tensor.data is not None
        key = (tensor.dtype, tensor.data.tobytes(), tensor.quantization and tensor.quantization.key)
        if key not in self._known:
            self._known[key] = self._added(wanted, tensor)
        return self._known[key]

    def _added(self, wanted: str, tensor: Tensor) -> str:
        name = self._names.fresh(wanted)
        self.tensors[name] = replace(tensor, name=name)
        return name
