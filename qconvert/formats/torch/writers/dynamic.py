"""Data rounded to 8 bits at each run, in float32, as the kernels named by `arithmetic` do (arithmetic/dynamic.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qconvert.formats.torch.nodes import Node
from qconvert.formats.torch.writing import Builder
from qconvert.graph import Op
from qconvert.operators import range_axes

__all__ = ["round_data", "round_recurrent_data"]


def round_data(op: Op, b: Builder, data: Node) -> Node:
    """Float data rounded as the operator's kernel does.

    Args:
        op: an operator of dynamic range.
        b: what is written.
        data: float32, perhaps padded with zeros.
    """
    kernel = [int(size) for size in b.shape(op, op.inputs[1])[2:] if isinstance(size, int)]
    return _round_along(op, b, data, [int(axis) for axis in range_axes(op, b.rank(op), kernel)])


def round_recurrent_data(op: Op, b: Builder, data: Node, rank: int) -> Node:
    """Float operands of a recurrent operator, rounded: its sequence of data, or the hidden values of one step."""
    return _round_along(op, b, data, [int(axis) for axis in range_axes(op, rank, ())])


def _round_along(op: Op, b: Builder, data: Node, axes: list[int]) -> Node:
    low = b.aten("clamp_max", b.aten("amin", data, axes, True), 0.0)
    high = b.aten("clamp_min", b.aten("amax", data, axes, True), 0.0)
    b.note_operator()
    steps, scale = _ROUNDINGS[str(op["arithmetic"])](b, data, low, high)
    real = b.dtype("float64" if b.wide else "float32")
    return b.aten("mul.Tensor", b.aten("to.dtype", steps, real), b.aten("to.dtype", scale, real))


def _guard_empty_range(b: Builder, low: Node, high: Node, otherwise: Callable[[Node], Node]) -> Node:
    """A number made of the span of a range; 1 for a range that is 0 alone."""
    span = b.aten("sub.Tensor", high, low)
    return b.aten("where.self", b.aten("eq.Tensor", low, high), b.aten("ones_like", span), otherwise(span))


def _clamp_steps(b: Builder, scaled: Node, point: Node, lowest: int, highest: int) -> Node:
    """Rounded steps from a zero point, clipped to the range of a type."""
    whole = b.aten("round", b.aten("clamp", point, float(lowest), float(highest)))
    steps = b.aten("add.Tensor", b.aten("round", scaled), whole)
    return b.aten("sub.Tensor", b.aten("clamp", steps, float(lowest), float(highest)), whole)


def _reciprocal(b: Builder, node: Node) -> Node:
    return b.aten("reciprocal", node)


def _xnnpack(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    """The zero point from the end of the range whose error is smaller."""
    factor = _guard_empty_range(b, low, high, lambda span: _divide_number(b, 255.0, span))
    below, above = (b.aten("mul.Tensor", end, factor) for end in (low, high))
    errors = b.aten("add.Tensor", b.aten("add.Tensor", below, -128.0), b.aten("add.Tensor", above, 127.0))
    first, last = b.aten("rsub.Scalar", below, -128.0), b.aten("rsub.Scalar", above, 127.0)
    point = b.aten("where.self", b.aten("gt.Scalar", errors, 0.0), first, last)
    return _clamp_steps(b, b.aten("mul.Tensor", x, factor), point, -128, 127), _reciprocal(b, factor)


def _symmetric(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    largest = b.aten("maximum", b.aten("neg", low), high)
    empty = b.aten("eq.Scalar", largest, 0.0)
    zeros, ones = b.aten("zeros_like", largest), b.aten("ones_like", largest)
    scaled = b.aten("mul.Tensor", x, b.aten("where.self", empty, zeros, _divide_number(b, 127.0, largest)))
    half = b.aten("mul.Tensor", b.aten("sign", scaled), 0.5)
    steps = b.aten("clamp", b.aten("trunc", b.aten("add.Tensor", scaled, half)), -127.0, 127.0)
    return steps, b.aten("where.self", empty, ones, b.aten("div.Tensor", largest, 127.0))


def _divide_number(b: Builder, number: float, node: Node) -> Node:
    """number / node, rounded once."""
    return b.aten("div.Tensor", b.aten("full_like", node, number), node)


def _tensor(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    scale = _guard_empty_range(b, low, high, lambda span: b.aten("div.Tensor", span, 255.0))
    point = b.aten("div.Tensor", b.aten("neg", low), scale)
    return _clamp_steps(b, b.aten("div.Tensor", x, scale), point, 0, 255), scale


def _reduced_range(b: Builder, x: Node, low: Node, high: Node) -> tuple[Node, Node]:
    factor = _guard_empty_range(b, low, high, lambda span: _divide_number(b, 127.0, span))
    point = b.aten("mul.Tensor", b.aten("neg", low), factor)
    return _clamp_steps(b, b.aten("mul.Tensor", x, factor), point, 0, 127), _reciprocal(b, factor)


_ROUNDINGS: Mapping[str, Callable[[Builder, Node, Node, Node], tuple[Node, Node]]] = {
    "dynamic": _xnnpack,
    "dynamic_images": _xnnpack,
    "dynamic_symmetric": _symmetric,
    "dynamic_tensor": _tensor,
    "dynamic_reduced": _reduced_range,
}
