"""Polynomials over integers that are known only at run time, such as the sizes of a batch.

A Polynomial is a sorted tuple of (product, factor); a product is a sorted tuple of atoms, () for the number. An atom stands for an integer
that is not worked out, by a number of its own. Equal polynomials are equal tuples. The result of an operation is None where it is no
polynomial, or a larger one than any shape needs.
"""

from __future__ import annotations

Polynomial = tuple[tuple[tuple[int, ...], int], ...]

#: Larger ones are not worked with: no shape needs them, and a file could make them grow without bound.
_MOST_TERMS = 12
_MOST_FACTORS = 6
_LARGEST = 2**62


def from_number(value: int) -> Polynomial:
    """Return a plain number as a polynomial."""
    return (((), value),) if value else ()


def number(form: Polynomial) -> int | None:
    """Return the number that a polynomial is; None if it has atoms in it."""
    if not form:
        return 0
    return form[0][1] if len(form) == 1 and not form[0][0] else None


def add_polynomials(*forms: Polynomial) -> Polynomial | None:
    """Return the sum; 0 of nothing."""
    total: Polynomial | None = ()
    for form in forms:
        total = None if total is None else _combine(total, form, 1)
    return total


def subtract_polynomials(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return a - b."""
    return _combine(a, b, -1)


def multiply_polynomials(*forms: Polynomial) -> Polynomial | None:
    """Return the product; 1 of nothing."""
    total: Polynomial | None = from_number(1)
    for form in forms:
        total = None if total is None else _multiply_pair(total, form)
    return total


def divide_polynomials(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return a / b, rounded towards zero."""
    dividend, divisor = number(a), number(b)
    if dividend is None or not divisor:
        return _divide_factors(a, divisor)
    return from_number(abs(dividend) // abs(divisor) * (1 if (dividend < 0) == (divisor < 0) else -1))


def floor_divide_polynomials(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return a / b, rounded down."""
    dividend, divisor = number(a), number(b)
    return _divide_factors(a, divisor) if dividend is None or not divisor else from_number(dividend // divisor)


def remainder_of_polynomials(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return the remainder of a floored division: what the divisor divides adds nothing to it."""
    divisor = number(b)
    if not divisor:
        return None
    left = {product: factor % divisor for product, factor in a}
    rest = tuple((product, factor) for product, factor in sorted(left.items()) if factor)
    return rest if number(rest) is not None else None


def find_larger(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return the larger of two that are a number apart."""
    apart = _distance(a, b)
    return None if apart is None else a if apart >= 0 else b


def find_smaller(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """Return the smaller of two that are a number apart."""
    apart = _distance(a, b)
    return None if apart is None else a if apart <= 0 else b


def _distance(a: Polynomial, b: Polynomial) -> int | None:
    difference = subtract_polynomials(a, b)
    return None if difference is None else number(difference)


def _combine(a: Polynomial, b: Polynomial, sign: int) -> Polynomial | None:
    terms = dict(a)
    for product, factor in b:
        terms[product] = terms.get(product, 0) + sign * factor
    return _limit_size(terms)


def _multiply_pair(a: Polynomial, b: Polynomial) -> Polynomial | None:
    terms: dict[tuple[int, ...], int] = {}
    for first, x in a:
        for second, y in b:
            product = tuple(sorted(first + second))
            terms[product] = terms.get(product, 0) + x * y
    return _limit_size(terms)


def _divide_factors(form: Polynomial, divisor: int | None) -> Polynomial | None:
    """Return the polynomial divided by a number; None if a factor is not a multiple of it."""
    if not divisor or any(factor % divisor for _, factor in form):
        return None
    return tuple((product, factor // divisor) for product, factor in form)


def _limit_size(terms: dict[tuple[int, ...], int]) -> Polynomial | None:
    kept = tuple(sorted((product, factor) for product, factor in terms.items() if factor))
    small = all(abs(factor) < _LARGEST and len(product) <= _MOST_FACTORS for product, factor in kept)
    return kept if small and len(kept) <= _MOST_TERMS else None
