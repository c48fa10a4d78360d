"""Matrix products. Sums run over whole steps, which float64 adds exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import ACTIVATION, flag, has, text
from qconvert.operators.call import Call, apply_activation
from qconvert.operators.kind import Kind
from qconvert.operators.products import DYNAMIC, rounded_data, sum_of_products, with_bias, zero_point
from qconvert.operators.properties import WHEREVER, Operands, any_value, before_last, without_zero_bias
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, broadcast, failure, unify_sizes


def _matching_gemm(operands: Operands) -> Iterator[tuple[Size, Size]]:
    data, weights = operands.shape(0), operands.shape(1)
    if data and weights and len(weights) > 1:
        yield data[-1], weights[-1]


def _matching_matmul(operands: Operands) -> Iterator[tuple[Size, Size]]:
    a, b = operands.shape(0), operands.shape(1)
    if a and b and len(b) > 1:
        yield a[-2 if operands.op["trans_a"] else -1], b[-1 if operands.op["trans_b"] else -2]


def _gemm_shape(op: Op, s: ShapeContext) -> Shapes:
    data, weights = s.shape(0), s.shape(1)
    for shape in (data, weights):
        if shape is not None and len(shape) != 2:
            raise failure(op, f"an operand of shape {shape} is not a matrix", rule="wrong-rank")
    if data is not None and weights is not None:
        unify_sizes(op, [data[1], weights[1]], "the depths of data and weights (O,I)")
    result: Shape = (UNKNOWN if data is None else data[0], UNKNOWN if weights is None else weights[0])
    if s.has(2) and (bias := s.shape(2)) is not None:
        full = broadcast(op, [bias, result])
        if full is None or len(full) != 2 or any(isinstance(r, int) and f != r for f, r in zip(full, result, strict=True)):
            raise failure(op, f"a bias of shape {bias} does not broadcast to {result}", rule="shape-mismatch")
    return [result]


def _matmul_shape(op: Op, s: ShapeContext) -> Shapes:
    a, b = s.known_shape(0), s.known_shape(1)
    if len(a) < 2 or len(b) < 2:
        raise failure(op, f"operands of shape {a} and {b} are not matrices", rule="wrong-rank")
    rows, depth = (a[-1], a[-2]) if op.attributes.get("trans_a") else (a[-2], a[-1])
    other, columns = (b[-1], b[-2]) if op.attributes.get("trans_b") else (b[-2], b[-1])
    unify_sizes(op, [depth, other], f"the depths of operands of shape {a} and {b}")
    batch = broadcast(op, [a[:-2], b[:-2]])
    return [None if batch is None else (*batch, rows, columns)]


def _matmul_integer_shape(op: Op, s: ShapeContext) -> Shapes:
    """That of MatMul; zero points are one number, a list for the rows or columns, or what broadcasts to their operand."""
    for index in (0, 1):
        shape, points = s.shape(index), s.shape(2 + index) if s.has(2 + index) else None
        if shape is None or points is None or all(size == 1 for size in points):
            continue
        own = shape[-2:-1] if len(points) == 1 and not index else shape[-len(points) :]
        if len(points) > len(shape) or any(
            isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in zip(points, own, strict=True)
        ):
            raise failure(op, f"zero points of shape {points} of an operand of shape {shape}", rule="shape-mismatch")
    return _matmul_shape(op, s)


def _einsum_shape(op: Op, s: ShapeContext) -> Shapes:
    """The sizes that the letters of the right side have on the left; without a right side, letters that occur once, sorted.

    The dimensions that an ellipsis stands for broadcast; without a right side they come first.
    """
    left, arrow, right = str(op["equation"]).replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(op.inputs):
        raise failure(op, f"{len(terms)} terms in {op['equation']!r} for {len(op.inputs)} inputs", rule="equation-mismatch")
    shapes = [s.known_shape(index) for index in range(len(terms))]
    sizes: dict[str, list[Size]] = {}
    rest: list[Shape | None] = []
    for term, shape in zip(terms, shapes, strict=True):
        front, dots, back = term.partition("...")
        if len(shape) < len(front + back) or (not dots and len(shape) > len(term)):
            raise failure(op, f"the term {term!r} does not fit the shape {shape}", rule="equation-mismatch")
        end = len(shape) - len(back)
        for letter, size in zip(front + back, (*shape[: len(front)], *shape[end:]), strict=True):
            sizes.setdefault(letter, []).append(size)
        rest.append(shape[len(front) : end])
    joined = broadcast(op, rest)
    wanted = right if arrow else "..." + "".join(sorted(letter for letter in sizes if left.count(letter) == 1))
    front, dots, back = wanted.partition("...")
    if any(letter not in sizes for letter in front + back) or (joined and not dots):
        raise failure(op, f"the right side of {op['equation']!r} does not fit the left side", rule="equation-mismatch")
    known = {
        letter: unify_sizes(op, [size for size in found if size != 1] or [1], f"sizes of {letter!r}") for letter, found in sizes.items()
    }
    return [(*(known[letter] for letter in front), *(joined or ()), *(known[letter] for letter in back))]


def gemm(call: Call) -> Array:
    """A @ B.T + C, B being O,I."""
    a, a_scale = rounded_data(call)
    b, b_scale = call.factor(1, 0)
    return apply_activation(with_bias(call, a @ b.T, np.asarray(a_scale * b_scale)), call["activation"])


def matmul(call: Call) -> Array:
    """MatMul of ONNX after transposing the last two dimensions of either operand if asked to."""
    b_rank = call.raw(1).ndim
    a, a_scale = rounded_data(call)
    b, b_scale = call.factor(1, b_rank - (2 if call["trans_b"] else 1))
    a = a.swapaxes(-1, -2) if call["trans_a"] else a
    b = b.swapaxes(-1, -2) if call["trans_b"] else b
    real = (a @ b) * (a_scale * b_scale)
    return apply_activation(np.asarray(real), call["activation"])


def matmul_integer(call: Call) -> Array:
    """MatMulInteger of ONNX; a list of zero points has one for each row of the first and each column of the second operand."""
    zero_points = [zero_point(call, 2), zero_point(call, 3)]
    if zero_points[0].ndim == 1:
        zero_points[0] = zero_points[0][:, None]
    a, b = (call.raw(i).astype(np.int64) - zero_points[i] for i in (0, 1))
    return np.asarray(a @ b)


def einsum(call: Call) -> Array:
    """Einsum of ONNX: products of whole steps, summed over the letters that the right side lacks."""
    if all(tensor is not None and tensor.quantization is None for tensor in call.tensors):
        return np.asarray(np.einsum(call["equation"].replace(" ", ""), *call.all_values()))
    factors = [call.factor(index) for index in range(len(call.stored))]
    total = np.einsum(call["equation"].replace(" ", ""), *(steps for steps, _ in factors))
    return np.asarray(total * prod(float(scale) for _, scale in factors))


def _matmul_products(op: Op, inputs: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
    data = inputs[0]
    return prod(result) * (data[-2] if len(data) > 1 and op.attributes.get("trans_a") else data[-1] if data else 1)


def _einsum_products(op: Op, inputs: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """The product of all sizes; with one operand, or with an ellipsis, none are counted."""
    sizes: dict[str, int] = {}
    terms = str(op["equation"]).replace(" ", "").split("->")[0].split(",")
    if "." in str(op["equation"]):
        return 0
    for term, shape in zip(terms, inputs, strict=False):
        sizes.update(zip(term, shape, strict=False))
    return prod(sizes.values()) if len(terms) > 1 else 0


KINDS = (
    # y = A @ B.T + C, B being O,I
    Kind(
        "Gemm",
        "data weights bias?",
        samples=before_last(1),
        bounds=sum_of_products,
        matching_sizes=_matching_gemm,
        products=lambda op, inputs, result: prod(inputs[0][:-1]) * prod(inputs[1]),
        canonical=without_zero_bias,
        shape=_gemm_shape,
        evaluate=gemm,
        attributes=has(ACTIVATION, DYNAMIC),
    ),
    Kind(
        "MatMul",
        "data factor",
        samples=WHEREVER,
        bounds=any_value,
        matching_sizes=_matching_matmul,
        products=_matmul_products,
        shape=_matmul_shape,
        evaluate=matmul,
        attributes=has(ACTIVATION, DYNAMIC, trans_a=flag(0), trans_b=flag(0)),
    ),
    Kind(
        "MatMulInteger",
        "data factor zero_point? zero_point?",
        samples=before_last(1),
        products=_matmul_products,
        shape=_matmul_integer_shape,
        rule="plain",
        float_kind="MatMul",
        evaluate=matmul_integer,
        types="T U T U -> int32",
    ),
    Kind(
        "Einsum",
        "data...",
        samples=WHEREVER,
        bounds=any_value,
        products=_einsum_products,
        shape=_einsum_shape,
        evaluate=einsum,
        attributes=has(equation=text()),
    ),
)
