"""The differences between two canonical graphs, in words."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

from qconvert.graph import Graph, Op, Quantization, Tensor, equal_data

__all__ = ["diff", "equal"]


def equal(a: Graph, b: Graph) -> bool:
    """Whether two graphs are the same in every name, operator, attribute, integer, scale and zero point. Metadata do not count."""
    return not diff(a, b)


def diff(a: Graph, b: Graph) -> list[str]:
    """One line for each difference; an empty list if the graphs are equal. Metadata do not count.

    Args:
        a: the graph before.
        b: the graph after.
    """
    lines = [f"{what}: {list(x)} -> {list(y)}" for what, x, y in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)) if x != y]  # fmt: skip
    if a.signatures != b.signatures:
        lines.append("signatures differ")
    lines += _operators(a, b)
    for name in a.tensors:
        if name in b.tensors:
            lines += [f"tensor {name!r}: {text}" for text in _tensor(a[name], b[name])]
    lines += [f"- tensor {name!r}" for name in a.tensors if name not in b.tensors]
    lines += [f"+ tensor {name!r}" for name in b.tensors if name not in a.tensors]
    return lines


def _operators(a: Graph, b: Graph) -> Iterator[str]:
    """Operators removed, added, or changed in place; they are matched in order by kind and outputs."""
    keys = [[(op.kind, op.outputs) for op in graph.ops] for graph in (a, b)]
    for tag, a0, a1, b0, b1 in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if tag == "equal":
            for old, new in zip(a.ops[a0:a1], b.ops[b0:b1], strict=True):
                yield from _operator(old, new)
        else:
            yield from (f"- {op}" for op in a.ops[a0:a1])
            yield from (f"+ {op}" for op in b.ops[b0:b1])


def _operator(a: Op, b: Op) -> Iterator[str]:
    if a.inputs != b.inputs:
        yield f"{a}: inputs {list(a.inputs)} -> {list(b.inputs)}"
    for name in sorted({*a.attributes, *b.attributes}):
        if a.attributes.get(name) != b.attributes.get(name):
            yield f"{a}: {name} {a.attributes.get(name)!r} -> {b.attributes.get(name)!r}"


def _tensor(a: Tensor, b: Tensor) -> Iterator[str]:
    if a.dtype != b.dtype:
        yield f"type {a.dtype} -> {b.dtype}"
    if a.shape != b.shape:
        yield f"shape {a.shape} -> {b.shape}"
    yield from _quantization(a.quantization, b.quantization)
    if not equal_data(a.data, b.data):
        yield _data(a, b)


def _quantization(a: Quantization | None, b: Quantization | None) -> Iterator[str]:
    if a is None or b is None:
        if a is not b:
            yield "quantized -> not quantized" if b is None else "not quantized -> quantized"
        return
    if (a.axis, a.block_size) != (b.axis, b.block_size):
        yield f"axis {a.axis}, blocks {a.block_size} -> axis {b.axis}, blocks {b.block_size}"
    for what, x, y in (("scale", a.scale, b.scale), ("zero point", a.zero_point, b.zero_point)):
        if x.shape != y.shape:
            yield f"{x.size} {what}s -> {y.size}"
        elif not np.array_equal(x, y):
            first = int(np.flatnonzero(x != y)[0])
            yield f"{what} {x[first]:.9g} -> {y[first]:.9g}" + (f" and {int((x != y).sum()) - 1} more" if x.size > 1 else "")


def _data(a: Tensor, b: Tensor) -> str:
    if a.data is None or b.data is None:
        return "constant -> computed" if b.data is None else "computed -> constant"
    if a.data.shape != b.data.shape or a.data.dtype != b.data.dtype or a.data.dtype == object:
        return "other data"
    x, y = a.data.astype(np.float64), b.data.astype(np.float64)
    return f"{int((x != y).sum())} of {x.size} elements differ, by at most {np.abs(x - y).max():.6g}"
