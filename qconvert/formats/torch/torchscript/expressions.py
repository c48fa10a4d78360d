"""Expressions of TorchScript's code: constants, variables, attributes, items and calls, with numbers computed and operators handed on."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor
from qconvert.formats.torch.torchscript.code import Method
from qconvert.formats.torch.torchscript.numbers import length
from qconvert.formats.torch.values import UNKNOWN, Packed, Ref, Unknown, leaves

if TYPE_CHECKING:
    from qconvert.formats.torch.torchscript.interpreter import Interpreter

__all__ = ["Expressions", "Function", "dotted_names"]


class Function:
    """What stands before a call: a method with its object, or an operator or function by its name."""

    __slots__ = ("name", "target")

    def __init__(self, name: str, target: Any = None) -> None:
        self.name = name
        self.target = target


class Expressions:
    """The expressions of a method, with its variables.

    Args:
        interpreter: that follows it.
        method: its code.
        place: of its object in the model.
        values: its variables.
    """

    def __init__(self, interpreter: Interpreter, method: Method, place: str, values: dict[str, Any]) -> None:
        self._interpreter = interpreter
        self._method = method
        self._place = place
        self._values = values

    def _where(self, node: ast.AST) -> str:
        return f"{self._method.file}:{getattr(node, 'lineno', 0)}"

    def _invalid_error(self, what: str, node: ast.AST, rule: str = "malformed-code") -> InvalidModelError:
        return InvalidModelError(what, where=self._where(node), rule=rule)

    def _unsupported_error(self, what: str, node: ast.AST, rule: str = "code-not-covered") -> UnsupportedError:
        return UnsupportedError(f"{what} is not covered", where=self._where(node), rule=rule)

    def value(self, node: ast.expr, hint: str = "") -> Any:
        """The value of an expression.

        Args:
            node: the expression.
            hint: the variable that it is for.
        """
        self._interpreter.budget.spend()
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            raise self._unsupported_error(f"the expression {type(node).__name__} in its code", node)
        return handler(self, node, hint)

    def constant(self, node: ast.Constant, hint: str) -> Any:
        return node.value

    def variable(self, node: ast.Name, hint: str) -> Any:
        if node.id in self._values:
            return self._values[node.id]
        if node.id in _NAMES:
            return _NAMES[node.id]
        raise self._invalid_error(f"the code uses {node.id!r} before it is set", node, rule="unknown-name")

    def attribute(self, node: ast.Attribute, hint: str) -> Any:
        parts = dotted_names(node)
        if parts and parts[0] not in self._values:
            if parts[0] == "CONSTANTS" and len(parts) == 2:
                return self._interpreter.constant(node.attr)
            if parts[0] == "__torch__":
                return Function(".".join(parts))
        return self._interpreter.objects.attribute(self.value(node.value), node.attr, self._where(node))

    def sequence(self, node: ast.List | ast.Tuple, hint: str) -> Any:
        items = [self.value(item, f"{hint}/{index}" if hint else "") for index, item in enumerate(node.elts)]
        return items if isinstance(node, ast.List) else tuple(items)

    def mapping(self, node: ast.Dict, hint: str) -> Any:
        found = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise self._unsupported_error("a dictionary within another", node)
            found[self._key(self.value(key), node)] = self.value(value, hint)
        return found

    def _key(self, value: Any, node: ast.AST) -> Any:
        if isinstance(value, (str, int, float)):
            return value
        raise self._unsupported_error("a key that is no text or number", node)

    def evaluate_unary(self, node: ast.UnaryOp, hint: str) -> Any:
        value = self.value(node.operand)
        if isinstance(value, Unknown):
            return value
        if isinstance(value, (Ref, StoredTensor)):
            name = "aten::neg" if isinstance(node.op, ast.USub) else "aten::__not__"
            return self._interpreter.call(Function(name), [value], {}, self._where(node), self._hint(hint, node), self._place)
        if isinstance(node.op, ast.Not):
            return not value
        if not isinstance(node.op, ast.USub) or not isinstance(value, (int, float, complex)):
            raise self._unsupported_error(f"{type(node.op).__name__} of {type(value).__name__}", node)
        return -value

    def item(self, node: ast.Subscript, hint: str) -> Any:
        target, index = self.value(node.value), self.value(node.slice)
        if isinstance(target, Unknown) or isinstance(index, Unknown):
            return UNKNOWN
        if isinstance(target, (list, tuple, str)) and isinstance(index, int):
            if not -len(target) <= index < len(target):
                raise self._invalid_error(f"the code takes item {index} of {len(target)}", node, rule="index-out-of-range")
            return target[index]
        if isinstance(target, dict) and isinstance(index, (str, int, float)):
            if index not in target:
                raise self._invalid_error(f"the code takes the item {str(index)[:100]!r}, which does not exist", node, rule="unknown-name")
            return target[index]
        raise self._unsupported_error("an item whose place is known only at run time", node, rule="not-constant")

    def evaluate_call(self, node: ast.Call, hint: str) -> Any:
        if any(keyword.arg is None for keyword in node.keywords) or any(isinstance(item, ast.Starred) for item in node.args):
            raise self._unsupported_error("a call with arguments in a list of their own", node)
        if isinstance(node.func, ast.Name) and node.func.id not in self._values:
            found = self._call_builtin(node.func.id, node, hint)
            if found is not NotImplemented:
                return found
        function = self._function(node.func)
        given = [self.value(argument) for argument in node.args]
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg}
        if isinstance(function, Unknown):
            return UNKNOWN
        return self._interpreter.call(function, given, named, self._where(node), self._hint(hint, node), self._place)

    def _hint(self, hint: str, node: ast.AST) -> str:
        """The name of a result: the variable's, after the place of the module."""
        name = hint or f"line{getattr(node, 'lineno', 0)}"
        return f"{self._place}/{name}" if self._place else name

    def _call_builtin(self, name: str, node: ast.Call, hint: str) -> Any:
        """Casts, getattr and functions on numbers; NotImplemented for everything else."""
        if name == "uninitialized":
            return None
        if name in ("annotate", "unchecked_cast", "getattr"):
            if len(node.args) != 2:
                raise self._invalid_error(f"{name} has {len(node.args)} arguments", node, rule="counts-differ")
            if name == "getattr":
                owner, attribute = (self.value(argument) for argument in node.args)
                return self._interpreter.objects.attribute(owner, str(attribute), self._where(node))
            value, kind = self.value(node.args[1], hint), node.args[0]
            implicit = isinstance(kind, ast.Name) and kind.id in ("int", "float", "bool") and isinstance(value, (Ref, StoredTensor))
            return self._cast(kind.id, [value], node) if implicit and isinstance(kind, ast.Name) else value
        if name in _BUILTIN:
            return self._cast(name, [self.value(argument) for argument in node.args], node)
        return NotImplemented

    def _cast(self, name: str, given: list[Any], node: ast.Call) -> Any:
        kinds = {type(leaf) for leaf in leaves(given, self._interpreter.budget.spend)}
        if Unknown in kinds:
            return UNKNOWN
        if name in ("int", "float", "bool") and len(given) == 1 and kinds & {Ref, StoredTensor}:
            return self._interpreter.call(Function(f"prim::{name}"), given, {}, self._where(node), self._hint("", node), self._place)
        if name != "len" and kinds & {Ref, StoredTensor}:
            raise self._unsupported_error(f"{name} of what is known only at run time", node, rule="not-constant")
        if name != "len":
            self._interpreter.budget.spend(sum(map(length, given)) // 8)
        try:
            return _BUILTIN[name](*given)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise self._invalid_error(f"the code is damaged: {error}", node, rule="malformed-code") from error

    def _function(self, node: ast.expr) -> Function | Unknown:
        """What a call calls: `torch.conv2d`, `ops.quantized.conv2d`, `(self.layer).forward`, `__torch__.module.function`."""
        parts = dotted_names(node)
        if parts and parts[0] not in self._values:
            if parts[0] == "torch":
                return Function(f"aten::{parts[-1]}")
            if parts[0] == "ops" and len(parts) >= 3:
                return Function(f"{parts[1]}::{parts[2]}")
            if parts[0] == "__torch__":
                return Function(".".join(parts))
            if len(parts) == 1:
                return Function(f"aten::{parts[0]}")
        if isinstance(node, ast.Attribute):
            target = self.value(node.value)
            if isinstance(target, (ScriptObject, Packed)):
                return Function(node.attr, target)
            if isinstance(target, Unknown):
                return target
        if isinstance(node, ast.Name):
            value = self._values[node.id]
            if isinstance(value, (Function, Unknown)):
                return value
        raise self._unsupported_error(f"a call of {ast.unparse(node)[:80]}", node)


def dotted_names(node: ast.expr) -> list[str]:
    """The names in `a.b.c`; [] for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id][::-1] if isinstance(node, ast.Name) else []


def _to_int64(value: Any) -> int:
    """int(x), as far as it is a number of 64 bits."""
    if isinstance(value, str) and len(value) > 20:
        raise ValueError("a number of too many digits")
    found = int(value)
    if not -(2**63) <= found < 2**64:
        raise OverflowError(f"{found} does not fit 64 bits")
    return found


#: Names that stand for values.
_NAMES: Mapping[str, Any] = {
    "True": True, "False": False, "None": None, "inf": math.inf, "nan": math.nan, "infj": complex(0, math.inf),
}  # fmt: skip
_BUILTIN: Mapping[str, Callable[..., Any]] = {
    "int": _to_int64, "float": float, "bool": bool, "range": range, "len": len, "max": max, "min": min,
}  # fmt: skip
_EXPRESSIONS: Mapping[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: Expressions.constant, ast.Name: Expressions.variable, ast.Attribute: Expressions.attribute,
    ast.List: Expressions.sequence, ast.Tuple: Expressions.sequence, ast.Dict: Expressions.mapping,
    ast.UnaryOp: Expressions.evaluate_unary, ast.Subscript: Expressions.item, ast.Call: Expressions.evaluate_call,
}  # fmt: skip
