"""Operators for benchmarks/kernel_rows.py: the examples of a kind (qconvert/conformance) with other shapes, attributes and scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.conformance.examples import Example, examples_of
from qconvert.operators import KINDS
from qconvert.operators.properties import Suits

Shape = tuple[int, ...]
#: Natural logarithms of the scales of data that are tried beside those of the examples: 1e-8 to 1e4.
EXTREME = (-18.4, 9.2)
_MOST_AXES = 6


def vary(kind: str, rng: np.random.Generator, elements: int) -> Example:
    """Return a random operator of a kind with about as many elements of data; every other one has extreme scales and zero points."""
    examples = examples_of(KINDS[kind])
    example = examples[int(rng.integers(len(examples)))]
    if rng.random() < 0.5:
        example = replace(example, has_extremes=True, scales=EXTREME if example.scales == Example(()).scales else example.scales)
    if KINDS[kind].layout.suits is Suits.BROADCASTS:
        return _vary_elementwise(kind, example, rng, elements)
    return _VARIATIONS[kind](example, rng, elements) if kind in _VARIATIONS else example


def _random_shape(rng: np.random.Generator, elements: int, ranks: Sequence[int] = range(_MOST_AXES + 1)) -> Shape:
    """Return a shape of any rank; one in 30 has an axis of no elements."""
    sizes = [int(rng.choice([1, 2, 3, 5, 8, 17])) for _ in range(int(rng.choice(ranks)))]
    if sizes:
        place, others = int(rng.integers(len(sizes))), 1
        for number, size in enumerate(sizes):
            sizes[number] = size if others * size <= elements else 1
            others *= sizes[number] if number != place else 1
        sizes[place] = 0 if rng.random() < 1 / 30 else max(1, elements // others - int(rng.integers(2)))
    return tuple(sizes)


def _broadcast(rng: np.random.Generator, shape: Shape) -> Shape:
    """Return a shape that broadcasts to another one: with axes of 1, or without the first ones."""
    way = rng.random()
    if way < 0.5:
        return shape
    kept = tuple(1 if rng.random() < 0.5 else size for size in shape)
    return kept[int(rng.integers(len(kept) + 1)) :] if way > 0.8 else kept


def _vary_elementwise(kind: str, example: Example, rng: np.random.Generator, elements: int) -> Example:
    roles, shape = KINDS[kind].roles, _random_shape(rng, elements, (0, 1, 2, 2, 3, 3, 4, 4, 5, 6))
    places = [place for place, operand in enumerate(example.operands) if isinstance(operand, tuple) and roles[place] == "data"]
    operands = list(example.operands)
    whole = int(rng.choice(places))
    for place in places:
        operands[place] = shape if place == whole else _broadcast(rng, shape)
    if kind == "PRelu":
        shape = _random_shape(rng, elements, (4,))
        operands = [shape, (shape[1], 1, 1)]
    if kind == "Where":
        operands[0] = rng.random(_broadcast(rng, shape)) < 0.5
    if kind == "Clip":
        bounds = ((0, 6), (-1, 1), (0, 1), np.sort(rng.normal(0, 2, 2)))
        operands[1:] = [np.array(bound, np.float32) for bound in bounds[int(rng.integers(4))]]
    attributes = dict(example.attributes)
    if "alpha" in attributes:
        attributes["alpha"] = float(np.float32(rng.choice([0.1, 0.01, 0.3, 1.0, 1.5, -0.4, 0.0, rng.uniform(0, 1)])))
    return replace(example, operands=tuple(operands), attributes=attributes)


def _window(rng: np.random.Generator, size: Shape) -> tuple[Shape, Shape]:
    """Return the sizes and strides of a window that fits."""
    kernel = tuple(int(rng.integers(1, min(5, one) + 1)) for one in size)
    return kernel, tuple(int(rng.integers(1, 4)) for _ in size)


def _image(rng: np.random.Generator, elements: int, channels: int) -> Shape:
    height = int(rng.choice([1, 2, 5, 7, 8, 13]))
    return (int(rng.choice([1, 1, 2, 3])), channels, height, max(1, min(40, elements // (channels * height))))


def _pads(rng: np.random.Generator) -> dict[str, Any]:
    return {"pads": (0, 0, 0, 0), "auto_pad": str(rng.choice(["NOTSET", "SAME_UPPER"]))}


def _vary_conv(example: Example, rng: np.random.Generator, elements: int) -> Example:
    channels = int(rng.choice([1, 2, 3, 4, 8, 16, 31]))
    image = _image(rng, elements, channels)
    kernel, strides = _window(rng, image[2:])
    is_depthwise = rng.random() < 0.4
    outputs = channels * int(rng.choice([1, 1, 2])) if is_depthwise else int(rng.choice([1, 2, 5, 8, 16]))
    weights = (outputs, 1 if is_depthwise else channels, *kernel)
    attributes = {**example.attributes, **_pads(rng), "strides": strides, "group": channels if is_depthwise else 1}
    if strides == (1, 1) and rng.random() < 0.3:
        attributes["dilations"] = tuple(2 if 2 * (side - 1) < size else 1 for side, size in zip(kernel, image[2:], strict=True))
    return replace(example, operands=(image, weights, (outputs,))[: 2 + bool(rng.random() < 0.8)], attributes=attributes)


def _vary_transposed(example: Example, rng: np.random.Generator, elements: int) -> Example:
    channels, outputs = (int(rng.choice([1, 2, 3, 8])) for _ in range(2))
    image = _image(rng, elements, channels)
    kernel, strides = _window(rng, (5, 5))
    strides = tuple(min(step, side) for step, side in zip(strides, kernel, strict=True))
    attributes = {**example.attributes, "pads": (0, 0, 0, 0), "strides": strides, "group": 1}
    return replace(example, operands=(image, (outputs, channels, *kernel), (outputs,)), attributes=attributes)


def _vary_gemm(example: Example, rng: np.random.Generator, elements: int) -> Example:
    depth, columns = int(rng.choice([1, 2, 3, 7, 16, 33, 64, 257])), int(rng.choice([1, 2, 5, 16, 33]))
    rows = max(1, min(300, elements // columns))
    return replace(example, operands=((rows, depth), (columns, depth), (columns,))[: 2 + bool(rng.random() < 0.8)])


def _vary_matmul(example: Example, rng: np.random.Generator, elements: int) -> Example:
    depth, columns = int(rng.choice([1, 2, 3, 7, 16, 33, 64])), int(rng.choice([1, 2, 5, 16, 33]))
    batch = tuple(int(rng.choice([1, 2, 3])) for _ in range(int(rng.integers(0, 3))))
    rows = max(1, min(300, elements // columns // math.prod(batch)))
    return replace(example, operands=((*batch, rows, depth), (*batch, depth, columns)))


def _vary_pool(example: Example, rng: np.random.Generator, elements: int) -> Example:
    image = _image(rng, 4 * elements, int(rng.choice([1, 3, 4, 8, 16, 31])))
    kernel, strides = _window(rng, image[2:])
    return replace(example, operands=(image,), attributes={**example.attributes, **_pads(rng), "kernel_shape": kernel, "strides": strides})


def _vary_global_pool(example: Example, rng: np.random.Generator, elements: int) -> Example:
    height, width = (int(rng.choice([1, 2, 3, 4, 5, 7, 8, 14])) for _ in range(2))
    return replace(example, operands=((int(rng.choice([1, 2, 5])), max(1, elements // 4), height, width),))


def _vary_resize(example: Example, rng: np.random.Generator, elements: int) -> Example:
    image = (1, int(rng.choice([1, 3, 4, 8])), *(int(rng.choice([1, 2, 3, 5, 8, 13])) for _ in range(2)))
    sizes = np.array([int(rng.choice([1, 2, 3, 7, 16, 33])) for _ in range(2)], np.int64)
    attributes = dict(example.attributes)
    if attributes["mode"] == "linear":
        attributes["coordinate_transformation_mode"] = str(rng.choice(["half_pixel", "align_corners", "asymmetric"]))
    return replace(example, operands=(image, sizes), attributes=attributes)


def _vary_along_axis(example: Example, rng: np.random.Generator, elements: int) -> Example:
    size = int(rng.choice([1, 2, 3, 5, 10, 33, 100, 500]))
    shape = (*_random_shape(rng, max(1, elements // size), (0, 1, 1, 2, 3)), size)
    return replace(example, operands=(shape,), attributes={"axis": len(shape) - 1})


def _vary_reduction(example: Example, rng: np.random.Generator, elements: int) -> Example:
    rank = int(rng.choice([1, 2, 3, 4]))
    axes = np.sort(rng.choice(rank, int(rng.integers(1, rank + 1)), replace=False))
    shape = [int(rng.choice([1, 2, 3, 4, 5, 7, 8])) if axis in axes else 1 for axis in range(rank)]
    kept = [axis for axis in range(rank) if axis not in axes]
    if kept:
        shape[int(rng.choice(kept))] = elements
    return replace(example, operands=(tuple(shape), axes.astype(np.int64)), attributes={"keepdims": int(rng.integers(2))})


def _vary_product(example: Example, rng: np.random.Generator, elements: int) -> Example:
    size = int(rng.choice([1, 2, 3, 5]))
    return replace(example, operands=((elements, size), np.array([1], np.int64)), attributes={"keepdims": int(rng.integers(2))})


def _vary_concat(example: Example, rng: np.random.Generator, elements: int) -> Example:
    shape = _random_shape(rng, elements, (1, 2, 3, 4))
    axis, count = int(rng.integers(len(shape))), int(rng.integers(1, 6))
    parts = [
        tuple(max(1, size // count + number) if place == axis else size for place, size in enumerate(shape)) for number in range(count)
    ]
    return replace(example, operands=tuple(parts), attributes={"axis": axis})


_VARIATIONS = {
    "Conv": _vary_conv,
    "ConvTranspose": _vary_transposed,
    "Gemm": _vary_gemm,
    "MatMul": _vary_matmul,
    "AveragePool": _vary_pool,
    "MaxPool": _vary_pool,
    "GlobalAveragePool": _vary_global_pool,
    "GlobalMaxPool": _vary_global_pool,
    "Resize": _vary_resize,
    **dict.fromkeys(("Softmax", "LogSoftmax", "LpNormalization"), _vary_along_axis),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _vary_reduction),
    "ReduceProd": _vary_product,
    "Concat": _vary_concat,
}
