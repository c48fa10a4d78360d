"""What is a product with matrices, as formulas: Einsum, whose letters are summed away, brought into order, and joined to rows and columns,
Fourier transforms, and the means of regions of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.sizes import reshape_sizes
from qconvert.operators.values import (
    Value,
    absolute,
    apply,
    clip,
    constant_of,
    maximum,
    rank_of,
    reduce,
    relu,
    reshape,
    shape_of,
    slice_along,
    transpose,
    where,
)

#: The size of each letter; one that is known only at run time has a name.
_Sizes = dict[str, int | str]


class _NotCoveredError(Exception):
    """The equation takes a diagonal, or its sizes are not known well enough."""


class _Term(NamedTuple):
    """An operand, or what became of it, and a letter for each of its axes."""

    value: Value
    letters: str


@lowers("Einsum")
def products_of_two(*operands: Value, equation: str) -> Value:
    """The operands multiplied from the left, two at a time."""
    try:
        terms, wanted = _terms(operands, equation)
        sizes: _Sizes = {}
        for term in terms:
            for letter, size in zip(term.letters, shape_of(term.value) or (), strict=True):
                if sizes.setdefault(letter, size) != size:  # which would broadcast
                    return None
        while len(terms) > 1:
            first, second, *others = terms
            needed = set(wanted).union(*(term.letters for term in others))
            terms = [_product(first, second, needed, sizes), *others]
        last = _order_letters(_sum_letters(terms[0], set(wanted)), wanted)
        return reshape(last.value, _whole([sizes[letter] for letter in wanted]))
    except _NotCoveredError:
        return None


def _terms(operands: Sequence[Value], equation: str) -> tuple[list[_Term], str]:
    """The operands and the letters of the result; an ellipsis becomes capital letters that nothing else uses."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    ranks, texts = [rank_of(item) for item in operands], left.split(",")
    if len(texts) != len(ranks) or None in ranks:
        raise _NotCoveredError
    free = [chr(code) for code in (*range(ord("A"), ord("Z") + 1), *range(0x391, 0x3A1)) if chr(code) not in left + result]
    dots = [(rank or 0) - len(text.replace("...", "")) if "..." in text else 0 for rank, text in zip(ranks, texts, strict=True)]
    most = max(dots)
    texts = [text.replace("...", "".join(free[most - count : most])) for text, count in zip(texts, dots, strict=True)]
    every = "".join(texts)
    once = sorted(letter for letter in set(every) if every.count(letter) == 1 and letter not in free[:most])
    wanted = result.replace("...", "".join(free[:most])) if arrow else "".join((*free[:most], *once))
    if any(len(set(text)) != len(text) or len(text) != rank for text, rank in zip(texts, ranks, strict=True)):
        raise _NotCoveredError
    return [_Term(value, text) for value, text in zip(operands, texts, strict=True)], wanted


def _product(a: _Term, b: _Term, needed: set[str], sizes: _Sizes) -> _Term:
    """Two operands multiplied and summed over the letters that nothing else needs."""
    a, b = _sum_letters(a, needed | set(b.letters)), _sum_letters(b, needed | set(a.letters))
    shared = [letter for letter in a.letters if letter in b.letters]
    batch = "".join(letter for letter in shared if letter in needed)
    depth = "".join(letter for letter in shared if letter not in needed)
    rows = "".join(letter for letter in a.letters if letter not in b.letters)
    columns = "".join(letter for letter in b.letters if letter not in a.letters)
    turned = b.letters == batch + columns + depth and bool(columns)
    left = _matrix(_order_letters(a, batch + rows + depth), (batch, rows, depth), sizes)
    order = (batch, columns, depth) if turned else (batch, depth, columns)
    right = _matrix(_order_letters(b, "".join(order)), order, sizes)
    found = apply("MatMul", left, right, trans_b=int(turned))
    letters = batch + rows + columns
    return _Term(reshape(found, _whole([sizes[letter] for letter in letters])), letters)


def _matrix(term: _Term, parts: Sequence[str], sizes: _Sizes) -> Value:
    """The value with one axis for each group of letters."""
    return reshape(term.value, _whole([_count(part, sizes) for part in parts]))


def _count(letters: str, sizes: _Sizes) -> int | str:
    """How many elements the axes of some letters have; a name where it is dynamic."""
    found = [sizes[letter] for letter in letters]
    known = math.prod(size for size in found if isinstance(size, int))
    return "*".join(map(str, found)) if any(isinstance(size, str) for size in found) else known


def _whole(shape: Sequence[int | str]) -> list[int]:
    """The sizes for a Reshape, which finds out one of them by itself if no other is 0."""
    known = reshape_sizes(shape)
    if known.count(-1) > 1 or (-1 in known and 0 in known):
        raise _NotCoveredError
    return known


def _sum_letters(term: _Term, needed: set[str]) -> _Term:
    axes = [axis for axis, letter in enumerate(term.letters) if letter not in needed]
    letters = "".join(letter for letter in term.letters if letter in needed)
    return _Term(reduce("ReduceSum", term.value, axes, keepdims=False), letters) if axes else term


def _order_letters(term: _Term, letters: str) -> _Term:
    return _Term(transpose(term.value, [term.letters.index(letter) for letter in letters]), letters)


@lowers("DFT")
def transform(x: Value, *, axis: int, length: int, inverse: int, onesided: int) -> Value:
    """Real and imaginary parts, side by side, times a matrix of cosines and sines."""
    shape = shape_of(x)
    if shape is None:
        return None
    axis %= len(shape)
    size, parts = shape[axis], shape[-1]
    outer = [item for place, item in enumerate(shape[:-1]) if place != axis]
    if not isinstance(size, int) or not isinstance(parts, int) or sum(isinstance(item, str) for item in outer) > 1:
        return None
    order = [*(place for place in range(len(shape) - 1) if place != axis), axis, len(shape) - 1]
    count = length or size
    matrix = _waves(size, count, parts, inverse=bool(inverse), half=bool(onesided))
    rows = reshape(transpose(x, order), [-1, size * parts])
    sizes = reshape_sizes(outer)
    found = reshape(apply("MatMul", rows, matrix), [*sizes, matrix.shape[1] // 2, 2])
    back = [*range(axis), len(shape) - 2, *range(axis, len(shape) - 2), len(shape) - 1]
    return transpose(found, back)


def _waves(size: int, count: int, parts: int, *, inverse: bool, half: bool) -> Array:
    """(size * parts, bins * 2): what each real and imaginary part adds to those of each bin; elements beyond `count` add nothing."""
    bins = count // 2 + 1 if half else count
    turns = np.outer(np.arange(size), np.arange(bins)) % count * (2 * np.pi / count)
    waves = np.exp((1j if inverse else -1j) * turns) / (count if inverse else 1)
    waves[count:] = 0
    blocks = [[waves.real, waves.imag], [-waves.imag, waves.real]][:parts]
    stacked = np.array(blocks).transpose(2, 0, 3, 1)  # size, parts, bins, 2
    return stacked.reshape(size * parts, bins * 2)


@lowers("Rfft2d")
def transform_of_rows_and_columns(x: Value, lengths: Value) -> Value:
    """The DFT of the rows, then of the columns. The rows are real, so half of their DFT is enough."""
    shape, known = shape_of(x), constant_of(lengths)
    if shape is None or known is None:
        return None
    rank, sizes = len(shape), [int(length) for length in known]
    for axis, length in zip((rank - 2, rank - 1), sizes, strict=True):
        size = shape[axis]
        if missing := max(length - size, 0) if isinstance(size, int) else length:
            x = apply("Pad", x, np.array([0] * (rank + axis) + [missing] + [0] * (rank - 1 - axis)))
        if not isinstance(size, int) or size > length:
            x = slice_along(x, 0, length, axis)
    found = reshape(x, [-1, *sizes, 1])  # onnxruntime's kernel was seen right with one batch axis
    if sizes[1] > 1:  # the transform of one number is itself
        found = apply("DFT", found, axis=2, onesided=1)
    if sizes[0] > 1:
        found = apply("DFT", found, axis=1)
    if sizes == [1, 1]:
        found = apply("Pad", found, np.array([0] * 7 + [1]))
    ends = [sizes[0], sizes[1] // 2 + 1, 2]
    if sum(isinstance(size, str) for size in shape[:-2]) > 1:
        return apply("Reshape", found, apply("Concat", slice_along(apply("Shape", x), 0, rank - 2, 0), np.array(ends), axis=0))
    return reshape(found, [*reshape_sizes(shape[:-2]), *ends])


@lowers("STFT")
def transforms_of_frames(x: Value, window: Value = None, *, length: int, step: int, onesided: int) -> Value:
    """The DFT of each frame."""
    shape = shape_of(x)
    if shape is None or not isinstance(shape[1], int):
        return None
    rows = x if len(shape) == 3 else apply("Unsqueeze", x, np.array([2]))
    starts = np.arange(0, shape[1] - length + 1, step)
    frames = apply("Gather", rows, starts[:, None] + np.arange(length), axis=1)
    frames = frames if window is None else frames * reshape(window, [length, 1])
    return apply("DFT", frames, axis=2, onesided=onesided)


@lowers("RoiAlign")
def means_of_regions(
    x: Value, rois: Value, which: Value, *, output_height: int, output_width: int, sampling_ratio: int, spatial_scale: float,
    coordinate_transformation_mode: str,
) -> Value:  # fmt: skip
    """The shares of an image's rows in each row of a result, times the image, times the shares of its columns."""
    shape = shape_of(x)
    if shape is None or not isinstance(shape[2], int) or not isinstance(shape[3], int):
        return None
    ends = [slice_along(rois, column, column + 1, 1) * spatial_scale for column in range(4)]
    halves = coordinate_transformation_mode == "half_pixel"
    rows = _shares(ends[1], ends[3], output_height, sampling_ratio, shape[2], halves=halves)
    columns = _shares(ends[0], ends[2], output_width, sampling_ratio, shape[3], halves=halves)
    images = apply("Gather", x, which, axis=0)
    across, along = (apply("Unsqueeze", item, np.array([1])) for item in (transpose(columns, (0, 2, 1)), rows))
    return apply("MatMul", apply("MatMul", along, images), across)


def _shares(first: Value, last: Value, cells: int, each: int, size: int, *, halves: bool) -> Value:
    """(regions, cells, size): the mean share of each element at the points of each cell; a point farther outside than 1 has none."""
    extent = last - first
    start, extent = (first - 0.5, extent) if halves else (first, maximum(extent, 1.0))
    points = (np.arange(cells * each) + 0.5) / (cells * each)
    places = start + extent * points[None]
    is_inside = apply("And", apply("GreaterOrEqual", places, -1.0), apply("LessOrEqual", places, float(size)))
    near = apply("Unsqueeze", clip(places, 0.0, size - 1.0), np.array([2])) - np.arange(float(size))
    shares = where(apply("Unsqueeze", is_inside, np.array([2])), relu(1.0 - absolute(near)), 0.0)
    return reduce("ReduceMean", reshape(shares, [-1, cells, each, size]), [2], keepdims=False)
