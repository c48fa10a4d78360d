"""Einsum as a matrix product: letters are summed away, brought into order, and joined to rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qconvert.formats.tflite.ops.compositions import Composition, composed
from qconvert.formats.tflite.reading import ReadFunction
from qconvert.formats.tflite.writing import WriteFunction
from qconvert.graph import Op

__all__ = ["READERS", "WRITERS"]


#: The size of each letter; one that is known only at run time has a name.
_Sizes = dict[str, int | str]


class _Term:
    """An operand, or what became of it: its tensor and a letter for each axis."""

    def __init__(self, name: str, letters: str) -> None:
        self.name = name
        self.letters = letters


def _terms(op: Op, f: Composition) -> tuple[list[_Term], str]:
    """The operands and the letters of the result; an ellipsis becomes capital letters that nothing else uses."""
    left, arrow, result = str(op["equation"]).replace(" ", "").partition("->")
    ranks = [f.w.tensor(name).rank for name in op.inputs]
    texts = left.split(",")
    if len(texts) != len(ranks) or None in ranks:
        raise f.w.unsupported(op, f"the equation {op['equation']!r} for data of ranks {ranks}", rule="equation-not-covered")
    free = [chr(code) for code in (*range(ord("A"), ord("Z") + 1), *range(0x391, 0x3A1)) if chr(code) not in left + result]
    dots = [(rank or 0) - len(text.replace("...", "")) if "..." in text else 0 for rank, text in zip(ranks, texts, strict=True)]
    most = max(dots)
    texts = [text.replace("...", "".join(free[most - count : most])) for text, count in zip(texts, dots, strict=True)]
    if arrow:
        wanted = result.replace("...", "".join(free[:most]))
    else:
        every = "".join(texts)
        wanted = "".join(free[:most]) + "".join(
            sorted(letter for letter in set(every) if every.count(letter) == 1 and letter not in free[:most])
        )
    if any(len(set(text)) != len(text) or len(text) != rank for text, rank in zip(texts, ranks, strict=True)):
        raise f.w.unsupported(op, f"the equation {op['equation']!r}, which takes a diagonal,", rule="equation-not-covered")
    return [_Term(name, text) for name, text in zip(op.inputs, texts, strict=True)], wanted


def _einsum(f: Composition) -> None:
    """The operands multiplied from the left, two at a time."""
    terms, wanted = _terms(f.op, f)
    sizes: _Sizes = {}
    for term in terms:
        for letter, size in zip(term.letters, f.w.tensor(term.name).shape or (), strict=True):
            if sizes.setdefault(letter, size) != size:
                raise f.w.unsupported(f.op, f"the equation {f.op['equation']!r} for sizes that broadcast", rule="equation-not-covered")
    while len(terms) > 1:
        first, second, *others = terms
        needed = set(wanted).union(*(term.letters for term in others))
        terms = [_product(f, first, second, needed, sizes), *others]
    last = _ordered(f, _summed(f, terms[0], set(wanted), sizes), wanted, sizes)
    f.end("RESHAPE", last.name, _whole(f, [sizes[letter] for letter in wanted]))


def _product(f: Composition, a: _Term, b: _Term, needed: set[str], sizes: _Sizes) -> _Term:
    """Two operands multiplied and summed over the letters that nothing else needs."""
    a = _summed(f, a, needed | set(b.letters), sizes)
    b = _summed(f, b, needed | set(a.letters), sizes)
    shared = [letter for letter in a.letters if letter in b.letters]
    batch = "".join(letter for letter in shared if letter in needed)
    depth = "".join(letter for letter in shared if letter not in needed)
    rows = "".join(letter for letter in a.letters if letter not in b.letters)
    columns = "".join(letter for letter in b.letters if letter not in a.letters)
    left = _matrix(f, _ordered(f, a, batch + rows + depth, sizes), (batch, rows, depth), sizes)
    turned = b.letters == batch + columns + depth and bool(columns)
    right = _matrix(f, b, (batch, columns, depth), sizes) if turned else _matrix(
        f, _ordered(f, b, batch + depth + columns, sizes), (batch, depth, columns), sizes)  # fmt: skip
    shape = tuple(_count(part, sizes) for part in (batch, rows, columns))
    value = f("BATCH_MATMUL", left, right, shape=shape, adjX=False, adjY=turned)
    letters = batch + rows + columns
    whole = [sizes[letter] for letter in letters]
    return _Term(f("RESHAPE", value, _whole(f, whole), shape=tuple(whole)), letters)


def _matrix(f: Composition, term: _Term, parts: Sequence[str], sizes: _Sizes) -> str:
    shape = tuple(_count(part, sizes) for part in parts)
    return f("RESHAPE", term.name, _whole(f, shape), shape=shape)


def _count(letters: str, sizes: _Sizes) -> int | str:
    """How many elements the axes of some letters have; a name where it is dynamic."""
    named = [size for letter in letters if isinstance(size := sizes[letter], str)]
    known = math.prod(size for letter in letters if isinstance(size := sizes[letter], int))
    return "*".join((*named, *([str(known)] if known != 1 else []))) if named else known


def _whole(f: Composition, shape: Sequence[int | str]) -> str:
    """The sizes for a RESHAPE, which finds out one of them by itself if no other is 0."""
    known = [size if isinstance(size, int) else -1 for size in shape]
    if known.count(-1) > 1 or (-1 in known and 0 in known):
        raise f.w.unsupported(
            f.op, f"the equation {f.op['equation']!r} for data of the dynamic shape {tuple(shape)}", rule="dynamic-dimension"
        )
    return _ints(f, known)


def _summed(f: Composition, term: _Term, needed: set[str], sizes: _Sizes) -> _Term:
    axes = [axis for axis, letter in enumerate(term.letters) if letter not in needed]
    if not axes:
        return term
    letters = "".join(letter for letter in term.letters if letter in needed)
    shape = tuple(sizes[letter] for letter in letters)
    return _Term(f("SUM", term.name, _ints(f, axes), shape=shape, keepDims=False), letters)


def _ordered(f: Composition, term: _Term, letters: str, sizes: _Sizes) -> _Term:
    if term.letters == letters:
        return term
    perm = [term.letters.index(letter) for letter in letters]
    return _Term(f("TRANSPOSE", term.name, _ints(f, perm), shape=tuple(sizes[letter] for letter in letters)), letters)


def _ints(f: Composition, values: Sequence[int]) -> str:
    return f.w.ints(list(values), f"{f.result}/sizes")


READERS: dict[str, ReadFunction] = {}

WRITERS: dict[str, WriteFunction] = {"Einsum": composed(_einsum)}
