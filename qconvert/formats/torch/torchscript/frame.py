"""One method of TorchScript's code while it is followed: statements in order, and expressions, of which operators are handed on."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor
from qconvert.formats.torch.torchscript.numbers import length
from qconvert.formats.torch.values import UNKNOWN, Packed, Ref, Unknown, leaves

if TYPE_CHECKING:
    from qconvert.formats.torch.torchscript.interpreter import Interpreter


_RUN_TIME = (Ref, StoredTensor, Unknown)


class ReturnedError(Exception):
    """A return statement was reached."""

    def __init__(self, value: Any) -> None:
        self.value = value


class CodeError(Exception):
    """The code raises an error of its own."""


class _LeftError(Exception):
    """A loop is left (`break`), or goes on with its next turn (`continue`)."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends


@dataclass(frozen=True, slots=True)
class Function:
    """What stands before a call: a method with its object, or an operator or function by its name."""

    name: str
    target: Any = None


class Frame:
    """One method and where it stands: its variables, arguments, statements and expressions.

    Args:
        interpreter: that follows it.
        file: in the archive, for messages.
        place: of its object in the model.
        values: its variables.
    """

    def __init__(self, interpreter: Interpreter, file: str, place: str, values: dict[str, Any]) -> None:
        self._interpreter = interpreter
        self._file = file
        self._place = place
        self._values = values

    def _where(self, node: ast.AST) -> str:
        return f"{self._file}:{getattr(node, 'lineno', 0)}"

    def _invalid_error(self, what: str, node: ast.AST, rule: str) -> InvalidModelError:
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
        match node:
            case ast.Constant():
                return node.value
            case ast.Name() if node.id in self._values:
                return self._values[node.id]
            case ast.Name() if node.id in _NAMES:
                return _NAMES[node.id]
            case ast.Name():
                raise self._invalid_error(f"the code uses {node.id!r} before it is set", node, rule="unknown-name")
            case ast.Attribute():
                return self._attribute(node)
            case ast.List() | ast.Tuple():
                items = [self.value(item, f"{hint}/{index}" if hint else "") for index, item in enumerate(node.elts)]
                return items if isinstance(node, ast.List) else tuple(items)
            case ast.Dict():
                return self._mapping(node, hint)
            case ast.UnaryOp():
                return self._evaluate_unary(node, hint)
            case ast.Subscript():
                return self._item(node)
            case ast.Call():
                return self._evaluate_call(node, hint)
        raise self._unsupported_error(f"the expression {type(node).__name__} in its code", node)

    def _attribute(self, node: ast.Attribute) -> Any:
        parts = dotted_names(node)
        if parts and parts[0] not in self._values:
            if parts[0] == "CONSTANTS" and len(parts) == 2:
                return self._interpreter.constant(node.attr)
            if parts[0] == "__torch__":
                return Function(".".join(parts))
        return self._interpreter.objects.attribute(self.value(node.value), node.attr, self._where(node))

    def _mapping(self, node: ast.Dict, hint: str) -> Any:
        found = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise self._unsupported_error("a dictionary within another", node)
            name = self.value(key)
            if not isinstance(name, (str, int, float)):
                raise self._unsupported_error("a key that is no text or number", node)
            found[name] = self.value(value, hint)
        return found

    def _evaluate_unary(self, node: ast.UnaryOp, hint: str) -> Any:
        value = self.value(node.operand)
        if not isinstance(node.op, ast.USub | ast.Not):
            raise self._unsupported_error(f"{type(node.op).__name__} of {type(value).__name__}", node)
        name = "aten::neg" if isinstance(node.op, ast.USub) else "aten::__not__"
        return self._interpreter.call(Function(name), [value], {}, self._where(node), self._hint(hint, node), self._place)

    def _item(self, node: ast.Subscript) -> Any:
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

    def _evaluate_call(self, node: ast.Call, hint: str) -> Any:
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

    def bind_arguments(self, node: ast.FunctionDef, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Gives a method's arguments their values, or their defaults.

        Raises:
            InvalidModelError: there are too many, or one is missing.
        """
        arguments = node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        only = [argument.arg for argument in arguments.kwonlyargs]
        defaults: dict[str, ast.expr | None] = dict(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
        defaults |= dict(zip(only, arguments.kw_defaults, strict=True))
        if len(given) > len(names) or any(name not in names and name not in only for name in named):
            raise self._invalid_error(
                f"{node.name!r} is called with {len(given) + len(named)} arguments and has {len(names)}", node, rule="counts-differ"
            )
        self._values.update(zip(names, given, strict=False))
        self._values.update(named)
        for name in (*names, *only):
            if name not in self._values:
                default = defaults.get(name)
                if default is None:
                    raise self._invalid_error(f"a call of {node.name!r} has no argument {name!r}", node, rule="counts-differ")
                self._values[name] = self.value(default)

    def statements(self, nodes: Sequence[ast.stmt]) -> None:
        """Follows statements in order."""
        for node in nodes:
            self._interpreter.budget.spend()
            self._follow(node)

    def _follow(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target]):
                self._assign(target, node.value)
            case ast.Assign():
                raise self._unsupported_error("a statement with several assignments", node)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, node.value)
            case ast.Expr():  # a call whose result nobody wants
                self.value(node.value)
            case ast.Return():
                raise ReturnedError(None if node.value is None else self.value(node.value, "output"))
            case ast.If():
                self._branch(node)
            case ast.For():
                self._loop(node)
            case ast.While():
                self._run_while(node)
            case ast.With():
                self._run_with(node)
            case ast.Break() | ast.Continue():
                raise _LeftError(isinstance(node, ast.Break))
            case ast.Assert():
                condition = self.value(node.test)
                if not isinstance(condition, _RUN_TIME) and not condition:
                    raise CodeError(ast.unparse(node.test)[:500])
            case ast.Pass():
                pass
            case _:
                raise self._unsupported_error(f"the statement {type(node).__name__} in its code", node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """`a = value`, `a : T = value`, `a, b, = value`."""
        self._bind(target, self.value(value, target.id if isinstance(target, ast.Name) else ""))

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._values[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = [UNKNOWN] * len(target.elts) if isinstance(value, Unknown) else value
            if not isinstance(items, (list, tuple)) or len(items) != len(target.elts):
                raise self._invalid_error(f"{len(target.elts)} names are assigned another number of values", target, rule="counts-differ")
            for part, item in zip(target.elts, items, strict=True):
                self._bind(part, item)
        elif isinstance(target, ast.Attribute):
            self._interpreter.objects.set_attribute(self.value(target.value), target.attr, value, self._where(target))
        else:
            raise self._unsupported_error(f"an assignment to {type(target).__name__}", target)

    def _branch(self, node: ast.If) -> None:
        """The branch that the condition selects. If it is known only at run time, the branch without a `raise`."""
        condition = self.value(node.test)
        if isinstance(condition, Unknown):
            self._run_all_branches(node.body, node.orelse)
            return
        if isinstance(condition, (Ref, StoredTensor)):
            raising = [_raises(body) for body in (node.body, node.orelse)]
            if raising[0] == raising[1]:
                raise self._unsupported_error("a branch on what is known only at run time", node, rule="not-constant")
            condition = raising[1]
        self.statements(node.body if condition else node.orelse)

    def _run_all_branches(self, *bodies: Sequence[ast.stmt]) -> None:
        """Run all branches after an operator that is not covered, to find further ones."""
        for body in bodies:
            try:
                self.statements(body)
            except (CodeError, ReturnedError, _LeftError):
                continue

    def _loop(self, node: ast.For) -> None:
        """`for i in range(n)`, or over a list."""
        items = self.value(node.iter)
        if isinstance(items, Unknown):
            self._bind(node.target, UNKNOWN)
            self._run_all_branches(node.body)
            return
        if not isinstance(items, (list, tuple, range)):
            raise self._unsupported_error("a loop whose length is known only at run time", node, rule="not-constant")
        for item in items:
            self._interpreter.budget.spend()
            self._bind(node.target, item)
            if not self._run_iteration(node.body):
                return

    def _run_while(self, node: ast.While) -> None:
        """`while condition`."""
        while True:
            self._interpreter.budget.spend()
            condition = self.value(node.test)
            if isinstance(condition, Unknown):
                self._run_all_branches(node.body)
                return
            if isinstance(condition, (Ref, StoredTensor)):
                raise self._unsupported_error("a loop whose length is known only at run time", node, rule="not-constant")
            if not condition or not self._run_iteration(node.body):
                return

    def _run_iteration(self, body: Sequence[ast.stmt]) -> bool:
        """Run one iteration; returns whether the loop continues."""
        try:
            self.statements(body)
        except _LeftError as left:
            return not left.ends
        return True

    def _run_with(self, node: ast.With) -> None:
        """`with torch.no_grad():` and the like, which say nothing about values; any other would run methods of its own."""
        for item in node.items:
            context = item.context_expr
            name = (dotted_names(context.func if isinstance(context, ast.Call) else context) or [""])[-1]
            if isinstance(context, ast.Name) and isinstance(held := self._values.get(name), ScriptObject):
                name = held.class_name.rpartition(".")[2]
            if item.optional_vars is not None or name not in _GUARDS:
                raise self._unsupported_error(f"the statement With of {ast.unparse(context)[:80]!r} in its code", node)
        self.statements(node.body)


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


def _raises(body: Sequence[ast.stmt]) -> bool:
    """Whether a branch raises an error."""
    calls = (node.value for node in body if isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call))
    return any(dotted_names(call.func)[-1:] == ["RaiseException"] for call in calls)


#: What says how tensors are followed, not what they are.
_GUARDS = frozenset(["no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "record_function", "autocast"])
