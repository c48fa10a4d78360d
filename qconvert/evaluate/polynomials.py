"""Sums of products of sizes that have names: the arithmetic of shapes that are dynamic.

A Polynomial is a sorted tuple of (product, factor); a product is a sorted tuple of atoms, () for the number. An atom is the number of
a size with a name, or of an operation on polynomials that is none itself (a remainder, a division, the larger of two). Equal
polynomials are equal tuples: that two sizes are always the same is seen by comparing them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

__all__ = ["Atoms", "Polynomial", "add_polynomials", "divide_by_number", "factors_of", "from_number", "multiply_polynomials", "number"]

Polynomial = tuple[tuple[tuple[int, ...], int], ...]

#: Larger ones are not worked with: no shape needs them, and a file could make them grow without bound.
_MOST_TERMS = 12
_MOST_FACTORS = 6
_LARGEST = 2**62


def from_number(value: int) -> Polynomial:
    """A plain number."""
    return (((), value),) if value else ()


def number(form: Polynomial) -> int | None:
    """The number that a polynomial is; None if it has names in it."""
    if not form:
        return 0
    return form[0][1] if len(form) == 1 and not form[0][0] else None


def add_polynomials(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial | None:
    """a + sign * b; None if that is larger than any shape needs."""
    terms = dict(a)
    for product, factor in b:
        terms[product] = terms.get(product, 0) + sign * factor
    return _limit_size(terms)


def multiply_polynomials(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """a * b; None if that is larger than any shape needs."""
    terms: dict[tuple[int, ...], int] = {}
    for first, x in a:
        for second, y in b:
            product = tuple(sorted(first + second))
            terms[product] = terms.get(product, 0) + x * y
    return _limit_size(terms)


def divide_by_number(form: Polynomial, divisor: int) -> Polynomial | None:
    """The polynomial divided by a number; None if a factor does not divide."""
    if divisor == 0 or any(factor % divisor for _, factor in form):
        return None
    return tuple((product, factor // divisor) for product, factor in form)


def factors_of(form: Polynomial) -> tuple[int, list[int]] | None:
    """A number and atoms whose product the polynomial is; None if it is a sum."""
    if len(form) > 1:
        return None
    return (form[0][1], list(form[0][0])) if form else (0, [])


def _limit_size(terms: dict[tuple[int, ...], int]) -> Polynomial | None:
    kept = tuple(sorted((product, factor) for product, factor in terms.items() if factor))
    small = all(abs(factor) < _LARGEST and len(product) <= _MOST_FACTORS for product, factor in kept)
    return kept if small and len(kept) <= _MOST_TERMS else None


class Atoms:
    """The atoms of a graph, each with a number of its own."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._symbols: dict[int, str] = {}

    def of(self, key: Hashable) -> Polynomial:
        """The atom of that key, which is the same whenever it is asked for."""
        return ((((self._numbers.setdefault(key, len(self._numbers))),), 1),)

    def of_symbol(self, name: str) -> Polynomial:
        """A size that has a name."""
        form = self.of(("size", name))
        self._symbols[form[0][0][0]] = name
        return form

    def symbol(self, form: Polynomial) -> str:
        """The name of the size that a polynomial is; "" if it is none."""
        return self._symbols.get(form[0][0][0], "") if len(form) == 1 and form[0][1] == 1 and len(form[0][0]) == 1 else ""

    def operation(self, kind: str, a: Polynomial, b: Polynomial) -> Polynomial | None:
        """What an operator of `kind` gives for two sizes; None if it is none that sizes are computed with."""
        function = _OPERATIONS.get(kind)
        if function is None:
            return None
        found = function(a, b)
        return found if found is not None or kind in ("Add", "Sub", "Mul") else self.of((kind, a, b))


def _make_division(kind: str) -> Callable[[Polynomial, Polynomial], Polynomial | None]:
    def divide(a: Polynomial, b: Polynomial) -> Polynomial | None:
        divisor, value = number(b), number(a)
        if not divisor:
            return None
        if value is not None:
            exact = abs(value) // abs(divisor) * (1 if (value < 0) == (divisor < 0) else -1)
            return from_number(exact if kind == "Div" else value // divisor)
        return divide_by_number(a, divisor)

    return divide


def _remainder(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The remainder of a floored division: what the divisor divides adds nothing to it."""
    divisor = number(b)
    if not divisor:
        return None
    left = {product: factor % divisor for product, factor in a}
    rest = tuple((product, factor) for product, factor in sorted(left.items()) if factor)
    return rest if number(rest) is not None else None


def _make_extreme(function: Callable[[int, int], int]) -> Callable[[Polynomial, Polynomial], Polynomial | None]:
    def run(a: Polynomial, b: Polynomial) -> Polynomial | None:
        difference = add_polynomials(a, b, -1)
        known = None if difference is None else number(difference)
        return None if known is None else a if function(known, 0) == known else b

    return run


_OPERATIONS: dict[str, Callable[[Polynomial, Polynomial], Polynomial | None]] = {
    "Add": add_polynomials,
    "Sub": lambda a, b: add_polynomials(a, b, -1),
    "Mul": multiply_polynomials,
    "Div": _make_division("Div"),
    "FloorDiv": _make_division("FloorDiv"),
    "FloorMod": _remainder,
    "Max": _make_extreme(max),
    "Min": _make_extreme(min),
}
