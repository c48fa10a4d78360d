"""Einsum as matrix products: letters are summed away, brought into order, and joined to rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qconvert.operators.formulas.formula import lowers
from qconvert.operators.values import Value, apply, rank_of, reduce, reshape, shape_of, transpose

__all__: list[str] = []

#: The size of each letter; one that is known only at run time has a name.
_Sizes = dict[str, int | str]


class _NotCoveredError(Exception):
    """The equation takes a diagonal, or its sizes are not known well enough."""


@dataclass(frozen=True, slots=True)
class _Term:
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
    known = [size if isinstance(size, int) else -1 for size in shape]
    if known.count(-1) > 1 or (-1 in known and 0 in known):
        raise _NotCoveredError
    return known


def _sum_letters(term: _Term, needed: set[str]) -> _Term:
    axes = [axis for axis, letter in enumerate(term.letters) if letter not in needed]
    letters = "".join(letter for letter in term.letters if letter in needed)
    return _Term(reduce("ReduceSum", term.value, axes, keepdims=False), letters) if axes else term


def _order_letters(term: _Term, letters: str) -> _Term:
    return _Term(transpose(term.value, [term.letters.index(letter) for letter in letters]), letters)
