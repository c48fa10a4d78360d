"""What TorchScript computes on numbers, lists and texts alone, before any tensor is there."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from qconvert.errors import InvalidModelError

__all__ = ["NUMBERS"]

_LONGEST = 2**16


def _divided(a: float, b: float) -> float:
    if b == 0:
        raise InvalidModelError("its code divides by zero")
    return a / b


def _floor_divided(a: int, b: int) -> int:
    if b == 0:
        raise InvalidModelError("its code divides by zero")
    return a // b


def _remainder(a: int, b: int) -> int:
    if b == 0:
        raise InvalidModelError("its code divides by zero")
    return a % b


def _sum(a: Any, b: Any, alpha: int = 1) -> Any:
    """Of numbers, or of lists one behind the other."""
    if isinstance(a, (list, str)) and len(a) + len(b) > _LONGEST:
        raise InvalidModelError(f"its code makes a list of more than {_LONGEST} items")
    return a + b if isinstance(a, (list, str)) else a + b * alpha


def _product(a: Any, b: Any) -> Any:
    if isinstance(a, (list, str)) or isinstance(b, (list, str)):
        repeated, times = (a, b) if isinstance(a, (list, str)) else (b, a)
        if len(repeated) * times > _LONGEST:
            raise InvalidModelError(f"its code makes a list of more than {_LONGEST} items")
        return repeated * times
    return a * b


def _power(a: float, b: float) -> float:
    if abs(b) > 64:
        raise InvalidModelError(f"its code raises a number to the power {b}")
    return float(a**b) if isinstance(a, float) or isinstance(b, float) or b < 0 else a**b


def _appended(items: list[Any], item: Any) -> list[Any]:
    if len(items) >= _LONGEST:
        raise InvalidModelError(f"its code makes a list of more than {_LONGEST} items")
    items.append(item)
    return items


def _get(items: Any, index: Any) -> Any:
    if isinstance(items, dict):
        return items[index]
    if not -len(items) <= index < len(items):
        raise InvalidModelError(f"its code takes item {index} of {len(items)}")
    return items[index]


def _sliced(items: Any, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return items[start:end:step]


def _formatted(text: str, *values: Any) -> str:
    for value in values:
        text = text.replace("{}", str(value)[:80], 1)
    return text[:1000]


#: Operator -> what it computes.
NUMBERS: Mapping[str, Callable[..., Any]] = {
    "aten::add": _sum, "aten::sub": lambda a, b, alpha=1: a - b * alpha, "aten::mul": _product, "aten::div": _divided,
    "aten::floordiv": _floor_divided, "aten::__floordiv__": _floor_divided, "aten::remainder": _remainder, "aten::pow": _power,
    "aten::neg": operator.neg, "aten::eq": operator.eq, "aten::ne": operator.ne, "aten::lt": operator.lt, "aten::le": operator.le,
    "aten::gt": operator.gt, "aten::ge": operator.ge, "aten::__not__": operator.not_, "aten::__is__": lambda a, b: a is b,
    "aten::__isnot__": lambda a, b: a is not b, "aten::__and__": lambda a, b: a and b, "aten::__or__": lambda a, b: a or b,
    "aten::__contains__": lambda items, item: item in items, "aten::len": len, "aten::append": _appended, "aten::__getitem__": _get,
    "aten::slice": _sliced, "aten::list": list, "aten::Int": int, "aten::Float": float, "aten::Bool": bool, "aten::ceil": math.ceil,
    "aten::floor": math.floor, "aten::sqrt": math.sqrt, "aten::format": _formatted, "aten::warn": lambda *values, **named: None,
    "prim::min": min, "prim::max": max, "prim::abs": abs, "aten::str": str, "aten::manual_seed": lambda *values: None,
    "prim::unchecked_unwrap_optional": lambda value: value, "prim::rangelist": lambda n: list(range(min(n, _LONGEST))),
}  # fmt: skip
