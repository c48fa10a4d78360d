"""The differences between two canonical graphs, in words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import in_bytes
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, equal_data
from qconvert.operators import find_kind


def equal(a: Graph, b: Graph, *, exact: bool = False) -> bool:
    """Whether diff() finds nothing: see there for what counts."""
    return not diff(a, b, exact=exact)


def diff(a: Graph, b: Graph, *, exact: bool = False) -> list[str]:
    """One line for each difference; an empty list if the graphs are equal.

    Operators are paired by what they compute, then by the names of their outputs, then by their place. Names of
    graph inputs and outputs count; those of constants and intermediate tensors do not, nor does the order of
    operators that do not depend on each other.

    Args:
        a: the graph before.
        b: the graph after.
        exact: whether every name, the order and sources of operators, signatures and metadata count too.
    """
    lines = _diff_operators(a, b, exact)
    for name in sorted({*a.functions, *b.functions}):
        if name in a.functions and name in b.functions:
            lines += [f"function {name!r}: {line}" for line in _diff_operators(a.functions[name], b.functions[name], exact)]
        else:
            lines.append(f"{'-' if name in a.functions else '+'} function {name!r}")
    for name in sorted({*a.states, *b.states}):
        if name in a.states and name in b.states:
            lines += [f"state {name!r}: {text}" for text in tensor_differences(a.states[name], b.states[name])]
        else:
            lines.append(f"{'-' if name in a.states else '+'} state {name!r}")
    return lines


def _diff_operators(a: Graph, b: Graph, exact: bool) -> list[str]:
    """diff() of the operators and tensors of two graphs, without their functions."""
    pairing = _Pairing(a, b)
    lines = [
        f"{what}: {list(old)} -> {list(new)}"
        for what, old, new in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs))
        if old != new
    ]
    lines += [f"- {op}" for op in a.ops if id(op) not in pairing.partner]
    paired = {id(op) for op in pairing.partner.values()}
    lines += [f"+ {op}" for op in b.ops if id(op) not in paired]
    for op in a.ops:
        if id(op) in pairing.partner:
            lines += [f"{op}: {text}" for text in _operator(pairing, op, pairing.partner[id(op)])]
    for name in a.outputs:
        if name in b.outputs and pairing.renamed.get(name, name) != name:
            lines.append(f"output {name!r}: the operator that computed it computes {pairing.renamed[name]!r} in the second graph")
    for old, new in pairing.renamed.items():
        what = f"tensor {old!r}" if old == new else f"tensor {old!r} ({new!r})"
        lines += [f"{what}: {text}" for text in tensor_differences(a[old], b[new])]
    return lines + list(_exact_differences(a, b, pairing)) if exact else lines


def pair_tensors(a: Graph, b: Graph) -> dict[str, str]:
    """The tensors that diff() compares: name in `a` -> name in `b`."""
    return _Pairing(a, b).renamed


class _Pairing:
    """Which operator and tensor of one graph is which of the other.

    Attributes:
        partner: id of an operator of the first graph -> operator of the second.
        renamed: name in the first graph -> name in the second, for all tensors that are paired.
    """

    def __init__(self, a: Graph, b: Graph) -> None:
        self.a, self.b = a, b
        self.partner: dict[int, Op] = {}
        self.renamed: dict[str, str] = {name: name for name in a.inputs if name in b.inputs}
        self._digests: dict[int, str] = {}
        self._free = {id(op): op for op in b.ops}
        self._pair_by_content()
        self._pair_by_place()
        unused = (name for name in (*a.outputs, *a.tensors) if name not in self.renamed and name in b.tensors)
        taken = set(self.renamed.values())
        self.renamed.update({name: name for name in unused if name not in taken})

    def _pair_by_content(self) -> None:
        """Operators in order: the one that computes the same from the same, else one of the kind with the same output."""
        by_content: dict[Any, list[Op]] = {}
        for op in self.b.ops:
            by_content.setdefault(self._content(self.b, op, None), []).append(op)
        by_name = {op.outputs: op for op in self.b.ops}
        for op in self.a.ops:
            same = [found for found in by_content.get(self._content(self.a, op, self.renamed), []) if id(found) in self._free]
            named = by_name.get(op.outputs)
            if same:
                self._pair(op, next((found for found in same if found.outputs == op.outputs), same[0]))
            elif named is not None and named.kind == op.kind and id(named) in self._free:
                self._pair(op, named)

    def _pair_by_place(self) -> None:
        """What is left, kind by kind in order."""
        left = [op for op in self.a.ops if id(op) not in self.partner]
        right = list(self._free.values())
        matcher = SequenceMatcher(None, [op.kind for op in left], [op.kind for op in right], autojunk=False)
        for block in matcher.get_matching_blocks():
            for old, new in zip(left[block.a :][: block.size], right[block.b :][: block.size], strict=True):
                self._pair(old, new)

    def _pair(self, old: Op, new: Op) -> None:
        self.partner[id(old)] = self._free.pop(id(new))
        for x, y in (*zip(old.inputs, new.inputs, strict=False), *zip(old.outputs, new.outputs, strict=False)):
            is_output = x in old.outputs
            if x and y and (is_output or (self.a[x].is_constant and self.b[y].is_constant)):
                self.renamed.setdefault(x, y)

    def _content(self, graph: Graph, op: Op, renamed: dict[str, str] | None) -> Any:
        """What `op` computes: kind, attributes, sources of its inputs in the second graph's names, sort of its outputs."""
        inputs = tuple(self._origin(graph, name, renamed) for name in op.inputs)
        outputs = tuple(_describe_type(graph[name]) if name else "" for name in op.outputs)
        return tuple(sorted(_describe_function(op).items())), inputs, outputs

    def _origin(self, graph: Graph, name: str, renamed: dict[str, str] | None) -> str:
        if name and graph[name].is_constant:
            return self._digest(graph[name])
        return name if renamed is None or not name else renamed.get(name, f"unpaired {name}")

    def _digest(self, tensor: Tensor) -> str:
        if id(tensor) not in self._digests:
            data: Array = tensor.data if tensor.data is not None else np.zeros(0)
            raw = repr(data.tolist()).encode() if data.dtype == object else np.ascontiguousarray(in_bytes(data)).tobytes()
            self._digests[id(tensor)] = f"{_describe_type(tensor)} {hashlib.blake2b(raw).hexdigest()}"
        return self._digests[id(tensor)]


def _describe_type(tensor: Tensor) -> str:
    """Type, shape and quantization as one text."""
    q = tensor.quantization
    scales = None if q is None else (q.scale.tolist(), q.zero_point.tolist(), q.axis, q.block_size, q.quant_min, q.quant_max)
    return repr((tensor.dtype, tensor.shape, scales))


def _describe_function(op: Op) -> dict[str, str]:
    """The kind, and every attribute's value as text, defaults included."""
    values = {**(kind.defaults if (kind := find_kind(op)) is not None else {}), **op.attributes}
    return {"kind": op.kind, **{name: repr(values[name]) for name in sorted(values)}}


def _operator(pairing: _Pairing, old: Op, new: Op) -> Iterator[str]:
    yield from operator_differences(old, new)
    for what, x, y in (("inputs", old.inputs, new.inputs), ("outputs", old.outputs, new.outputs)):
        if len(x) != len(y) or not all(_is_same(pairing, *names) for names in zip(x, y, strict=True)):
            yield f"{what} {[pairing.renamed.get(name, name) for name in x]} -> {list(y)}"


def operator_differences(old: Op, new: Op) -> Iterator[str]:
    """A line for the kind and for each attribute that two operators have otherwise, defaults included."""
    before, after = _describe_function(old), _describe_function(new)
    for name in ("kind", *sorted({*before, *after} - {"kind"})):
        if before.get(name) != after.get(name):
            yield f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"


def _is_same(pairing: _Pairing, old: str, new: str) -> bool:
    """Whether two names mean one value: paired, or equal constants, of which one graph may have two and the other one."""
    if not old or not new or pairing.renamed.get(old) == new:
        return old == new or pairing.renamed.get(old) == new
    x, y = pairing.a[old], pairing.b[new]
    return x.is_constant and _describe_type(x) == _describe_type(y) and equal_data(x.data, y.data)


def tensor_differences(a: Tensor, b: Tensor, *, shapes: bool = True) -> Iterator[str]:
    """A line for each difference in type, shape (unless `shapes` is False), quantization and data."""
    if a.dtype != b.dtype:
        yield f"type {a.dtype} -> {b.dtype}"
    if shapes and a.shape != b.shape:
        yield f"shape {a.shape} -> {b.shape}"
    yield from _quantization(a.quantization, b.quantization)
    if not equal_data(a.data, b.data):
        yield _data(a.data, b.data)


def _quantization(a: Quantization | None, b: Quantization | None) -> Iterator[str]:
    if a is None or b is None:
        if a is not b:
            yield "quantized -> not quantized" if b is None else "not quantized -> quantized"
        return
    if (a.axis, a.block_size) != (b.axis, b.block_size):
        yield f"axis {a.axis}, blocks of {a.block_size} -> axis {b.axis}, blocks of {b.block_size}"
    for what, one, other in (("smallest", a.quant_min, b.quant_min), ("largest", a.quant_max, b.quant_max)):
        if one != other:
            yield f"{what} stored value {one if one is not None else 'of the type'} -> {other if other is not None else 'of the type'}"
    for what, x, y in (("scale", a.scale, b.scale), ("zero point", a.zero_point, b.zero_point)):
        if x.shape != y.shape:
            yield f"{x.size} {what}s -> {y.size}" if x.size != y.size else f"{what}s of shape {x.shape} -> {y.shape}"
        elif not np.array_equal(x, y):
            where = np.flatnonzero(x != y)
            first = int(where[0])
            text = f"{what} {x.flat[first]:.9g} -> {y.flat[first]:.9g}"
            yield text if x.size == 1 else f"{len(where)} of {x.size} {what}s differ, the first {text}"


def _data(a: Array | None, b: Array | None) -> str:
    if a is None or b is None:
        return "constant -> computed" if b is None else "computed -> constant"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"data of {a.dtype} {a.shape} -> {b.dtype} {b.shape}"
    if a.dtype == object:
        return f"{int((a != b).sum())} of {a.size} strings differ"
    raw = [np.ascontiguousarray(in_bytes(x)).reshape(-1).view(np.uint8).reshape(a.size, -1) for x in (a, b)]
    count = int((raw[0] != raw[1]).any(axis=1).sum())
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.abs(a.astype(wide) - b.astype(wide)).max()
    return f"{count} of {a.size} elements differ, by at most {largest:.6g}"


def _exact_differences(a: Graph, b: Graph, pairing: _Pairing) -> Iterable[str]:
    """Differences that do not change what the graph computes."""
    if a.name != b.name:
        yield f"name {a.name!r} -> {b.name!r}"
    for old, new in pairing.renamed.items():
        if old != new:
            yield f"tensor {old!r} is called {new!r}"
    paired = set(pairing.renamed.values())
    yield from (f"- tensor {name!r}" for name in a.tensors if name not in pairing.renamed)
    yield from (f"+ tensor {name!r}" for name in b.tensors if name not in paired)
    if [id(pairing.partner.get(id(op))) for op in a.ops] != [id(op) for op in b.ops] and len(a.ops) == len(b.ops):
        yield "operators are in another order"
    for op in a.ops:
        new_op = pairing.partner.get(id(op))
        if new_op is not None and op.source != new_op.source:
            yield f"{op}: source {op.source!r} -> {new_op.source!r}"
    if a.signatures != b.signatures:
        yield "signatures differ"
    for key in sorted({*a.metadata, *b.metadata}):
        if a.metadata.get(key) != b.metadata.get(key):
            yield f"metadata {key!r}: {a.metadata.get(key)!r} -> {b.metadata.get(key)!r}"
