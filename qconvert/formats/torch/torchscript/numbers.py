"""TorchScript's operators on numbers, lists and strings, without tensors."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.values import leaves

_LONGEST = 2**16
_LONGEST_TEXT = 2**12


class _Budget(Protocol):
    def spend(self, steps: int = 1) -> None: ...


def function_of(name: str, given: Sequence[Any], tensors: bool) -> Callable[..., Any] | None:
    """What an operator computes of these arguments, of which some may be tensors; None where that takes an operator on tensors."""
    if name in _OF_ALL:
        return _OF_ALL[name]
    if name in _OF_LISTS and given and isinstance(given[0], (list, tuple, dict, str, range)):
        return _OF_LISTS[name]
    return None if tensors else _PLAIN.get(name)


def compute_number(
    name: str, function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any], where: str, budget: _Budget
) -> Any:
    """Return the result of a function of NUMBERS.

    Raises:
        InvalidModelError: its arguments do not fit, its result has more than 64 bits, or the budget is spent.
    """
    lengths = [length(value) for value in given]
    budget.spend(sum(lengths) // 8)
    if name in _COMPARING:
        deque(leaves([given, named], budget.spend), maxlen=0)
    try:
        result = function(*given, **named)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise InvalidModelError(
            f"{name} cannot be computed with these numbers: {str(error)[:200]}", where=where, rule="malformed-code"
        ) from error
    for value in (result, *given[:1]):
        if length(value) > max(lengths, default=0):
            _require_short(value, length(value))
    if isinstance(result, int) and not -(2**63) <= result < 2**64:
        raise InvalidModelError(f"{name} gives a number that does not fit 64 bits", where=where, rule="number-out-of-range")
    return result


def length(value: Any) -> int:
    """How many items a value has: none for a number, and as many for a range as it would give."""
    if isinstance(value, range):
        return max(0, -(-(value.stop - value.start) // value.step))
    return len(value) if isinstance(value, (list, tuple, str, dict)) else 0


def _dividing(divide: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A division, which refuses to divide by zero."""

    def divide_by(a: Any, b: Any) -> Any:
        if b == 0:
            raise InvalidModelError("the code divides by zero", rule="division-by-zero")
        return divide(a, b)

    return divide_by


def _sum(a: Any, b: Any, alpha: int = 1) -> Any:
    """Of numbers, or of lists one after the other."""
    return a + b if isinstance(a, (list, str)) else a + b * alpha


def _require_short(items: Any, count: int) -> bool:
    """True; raises InvalidModelError for a list or text of more than is allowed."""
    most = _LONGEST_TEXT if isinstance(items, str) else _LONGEST
    if count > most:
        raise InvalidModelError(
            f"the code makes a {'text' if isinstance(items, str) else 'list'} of more than {most} items", rule="too-many-items"
        )
    return True


def _product(a: Any, b: Any) -> Any:
    if isinstance(a, (list, str)) or isinstance(b, (list, str)):
        repeated, times = (a, b) if isinstance(a, (list, str)) else (b, a)
        _require_short(repeated, len(repeated) * times)
        return repeated * times
    return a * b


def _shift_left(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise ValueError(f"a shift by {b}")
    return (a << b) if abs(a) < 2**63 else a


def _replace_text(text: str, old: str, new: str, most: int = -1) -> str:
    _require_short(text, len(text) + text.count(old) * len(new))
    return text.replace(old, new, most)


def _extend_list(items: list[Any], others: Sequence[Any]) -> list[Any]:
    items.extend(others)
    return items


def _join_text(text: str, items: Sequence[str]) -> str:
    _require_short(text, len(text) * len(items) + sum(len(item) for item in items))
    return text.join(items)


def _set_item(items: Any, index: Any, value: Any) -> Any:
    items[index] = value
    return items


def _to_int(value: Any) -> int:
    _require_short(value, len(value)) if isinstance(value, str) else None
    return int(value)


def _get_item(items: Any, index: Any) -> Any:
    if isinstance(items, dict):
        return items[index]
    if not -len(items) <= index < len(items):
        raise InvalidModelError(f"the code takes item {index} of {len(items)}", rule="index-out-of-range")
    return items[index]


def _format_text(text: str, *values: Any) -> str:
    for value in values:
        text = text.replace("{}", str(value)[:80] if isinstance(value, (str, int, float)) else "...", 1)
    return text[:1000]


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "aten::add": _sum, "aten::sub": lambda a, b, alpha=1: a - b * alpha, "aten::mul": _product, "aten::div": _dividing(operator.truediv),
    "aten::floordiv": _dividing(operator.floordiv), "aten::__floordiv__": _dividing(operator.floordiv),
    "aten::__round_to_zero_floordiv": _dividing(lambda a, b: a // b if (a < 0) == (b < 0) else -(-a // b)),
    "aten::remainder": _dividing(operator.mod), "aten::pow": math.pow, "aten::__lshift__": _shift_left, "aten::divmod": divmod,
    **{f"aten::{name}": getattr(operator, name) for name in (
        "neg", "eq", "ne", "lt", "le", "gt", "ge", "__not__", "__and__", "__or__", "__xor__", "__rshift__",
    )},
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::__range_length": lambda start, end, step: length(range(start, end, step)),
    "aten::Int": _to_int, "aten::Float": float, "aten::Bool": bool, "prim::int": _to_int, "prim::float": float, "prim::bool": bool,
    "aten::ceil": math.ceil, "aten::floor": math.floor,
    "aten::round": lambda value: float(round(value)),
    "aten::abs": abs, "prim::abs": abs, "aten::format": _format_text, "aten::str": lambda value: str(value)[:80],
    "aten::manual_seed": lambda *values: None, "aten::Complex": complex, "prim::NumToTensor": lambda value: value,
    "aten::ScalarImplicit": lambda value: value, "aten::IntImplicit": lambda value: value, "aten::FloatImplicit": lambda value: value,
    "aten::device": lambda *values: None, "prim::rangelist": lambda count: list(range(count)) if _require_short([], count) else [],
    "aten::startswith": str.startswith, "aten::endswith": str.endswith,
    "aten::lower": str.lower, "aten::upper": str.upper, "aten::is_scripting": lambda: True,
    "aten::split": str.split, "aten::replace": _replace_text, "aten::strip": str.strip, "aten::find": str.find,
    "aten::is_grad_enabled": lambda: False, "aten::set_grad_enabled": lambda enabled: None,
    "prim::min": min, "prim::max": max, "aten::radians": math.radians, "aten::degrees": math.degrees,
    **{f"aten::{name}": getattr(math, name) for name in (
        "sqrt", "log", "log10", "log1p", "exp", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "erf", "erfc", "gamma", "lgamma", "fabs", "fmod", "copysign", "gcd", "isnan", "isinf", "isfinite",
    )},
}  # fmt: skip
_OF_LISTS: Mapping[str, Callable[..., Any]] = {
    "aten::len": len, "aten::append": lambda items, item: _extend_list(items, [item]), "aten::extend": _extend_list,
    "aten::insert": list.insert, "aten::__getitem__": _get_item,
    "aten::_set_item": _set_item, "aten::list": list,
    "aten::slice": lambda items, start=None, end=None, step=1: items[start:end:step], "aten::copy": lambda items: items.copy(),
    "aten::clear": lambda items: items.clear(), "aten::pop": lambda items, *place: items.pop(*place),
    "aten::Delete": lambda items, place: items.pop(place), "aten::reverse": lambda items: items.reverse(), "aten::keys": list,
    "aten::values": lambda items: list(items.values()), "aten::items": lambda items: list(items.items()),
    "aten::get": lambda items, key, other=None: items.get(key, other), "aten::dict": dict, "aten::__contains__": operator.contains,
    "aten::index": lambda items, item: items.index(item), "aten::count": lambda items, item: items.count(item),
    "aten::sort": lambda items, reverse=False: items.sort(reverse=reverse), "aten::sorted": sorted, "aten::any": any, "aten::all": all,
    "aten::sum": sum, "aten::add": _sum, "aten::mul": _product, "aten::add_": _extend_list,
    "prim::enumerate": lambda items: list(enumerate(items)),
    "prim::zip": lambda *lists: list(zip(*lists, strict=False)), "prim::min": min, "prim::max": max,
    "aten::join": _join_text,
}  # fmt: skip
#: What compares items with each other, whatever stands in them.
_COMPARING = frozenset(f"aten::{name}" for name in ("__contains__", "index", "count", "sort", "sorted")) | {"prim::min", "prim::max"}
#: Of any values: whether they are there at all, and warnings.
_OF_ALL: Mapping[str, Callable[..., Any]] = {
    "aten::__is__": lambda a, b: a is b, "aten::__isnot__": lambda a, b: a is not b, "aten::warn": lambda *values, **named: None,
    "prim::unchecked_unwrap_optional": lambda value: value, "aten::_unwrap_optional": lambda value: value,
    "prim::Print": lambda *values: None, "aten::print": lambda *values: None, "prim::unchecked_cast": lambda value: value,
}  # fmt: skip
#: The operators that are computed.
NUMBERS = frozenset((*_PLAIN, *_OF_LISTS, *_OF_ALL))
