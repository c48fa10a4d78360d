"""TorchScript's code, followed step by step: numbers, lists and modules are worked out, and operators on tensors become calls.

Nothing of the file runs: this walks the syntax tree of its methods with a budget of steps. What depends on the values of tensors is named
as not covered; what depends on sizes is known from the shapes of the inputs.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.calls import Calls
from qconvert.formats.torch.constants import Constants
from qconvert.formats.torch.packed import is_packed, unpacked
from qconvert.formats.torch.pickled import ScriptObject, StoredTensor
from qconvert.formats.torch.torchscript.code import Code, Method
from qconvert.formats.torch.torchscript.numbers import NUMBERS
from qconvert.formats.torch.values import Packed, Ref, references

__all__ = ["Interpreter"]

#: Statements and expressions; d2go, a real detector, takes 40,000.
_MOST_STEPS = 2_000_000
_DEEPEST = 120
#: Names of what a file calls without meaning: their result is their last argument.
_OTHER_SHAPES = "Inputs of other shapes may be meant: --input-shape."
_PACKED = re.compile(r"(\._packed_params)+(\.\d+)?$")
_CASTS = ("annotate", "unchecked_cast")


class _ReturnedError(Exception):
    """A return statement was reached."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _CodeError(Exception):
    """The code raises an error of its own."""


class _Function:
    """What stands in front of a call: a method with its object, or an operator by its name."""

    def __init__(self, name: str, target: Any = None) -> None:
        self.name = name
        self.target = target


class Interpreter:
    """Follows the methods of a model.

    Args:
        code: the archive's classes.
        calls: of operators.
        constants: of the file, by their places.
        listed: what the code calls CONSTANTS.c0 and so on.
    """

    def __init__(self, code: Code, calls: Calls, constants: Constants, listed: Sequence[Any]) -> None:
        self._code = code
        self._calls = calls
        self._constants = constants
        self._listed = listed
        self._steps = 0
        self._depth = 0
        self._places: dict[int, str] = {}
        self._packed: dict[int, Packed] = {}

    def run(self, model: ScriptObject, name: str, arguments: Sequence[Any]) -> Any:
        """What a method of the model returns for these arguments.

        Raises:
            UnsupportedError: it calls what is not covered, or branches on what is known only at run time.
            InvalidModelError: the code is damaged, raises an error of its own, or does not end.
        """
        self._places[id(model)] = ""
        try:
            return self._invoke(model, name, list(arguments), {})
        except _CodeError as raised:
            raise InvalidModelError(f"its code raises an error: {raised}", remedy=_OTHER_SHAPES) from None
        except RecursionError as error:
            raise InvalidModelError("its code is nested too deeply") from error

    def _invoke(self, target: ScriptObject, name: str, given: list[Any], named: Mapping[str, Any]) -> Any:
        method = self._code.method(target.class_name, name)
        if method is None:
            raise UnsupportedError(f"the class {target.class_name} has no method {name!r}", where=self._places.get(id(target), ""))
        return self._followed(method, [target, *given], named, self._places.get(id(target), ""))

    def _followed(self, method: Method, given: list[Any], named: Mapping[str, Any], place: str) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InvalidModelError(f"its code calls itself more than {_DEEPEST} times", where=method.file)
        arguments = method.node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        values: dict[str, Any] = dict(zip(names, given, strict=False))
        values.update(named)
        frame = _Frame(self, method, place, values)
        missing = [name for name in names if name not in values]
        defaults = dict(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
        for name in missing:
            if name not in defaults:
                raise InvalidModelError(f"a call of {method.node.name!r} lacks the argument {name!r}", where=method.file)
            values[name] = frame.value(defaults[name])
        try:
            frame.statements(method.node.body)
        except _ReturnedError as returned:
            return returned.value
        finally:
            self._depth -= 1
        return None

    def step(self, where: str) -> None:
        """Counts a step; raises InvalidModelError where there are too many."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise InvalidModelError(f"its code does not end within {_MOST_STEPS} steps", where=where)

    def attribute(self, target: Any, name: str) -> Any:
        """An attribute of an object of the file."""
        if not isinstance(target, ScriptObject) or not isinstance(target.state, dict) or name not in target.state:
            kind = target.class_name if isinstance(target, ScriptObject) else type(target).__name__
            raise InvalidModelError(f"{kind} has no attribute {name!r}", where=self._places.get(id(target), ""))
        value = target.state[name]
        place = ".".join(filter(None, (self._places.get(id(target), ""), name)))
        return self.placed(value, place)

    def placed(self, value: Any, place: str) -> Any:
        """A value of the file, with its place noted and packed parameters unpacked."""
        if isinstance(value, StoredTensor):
            self._constants.place(value, place)
        elif is_packed(value):
            if id(value) not in self._packed:
                self._packed[id(value)] = unpacked(value, _layer(place))
            return self._packed[id(value)]
        elif isinstance(value, ScriptObject):
            self._places.setdefault(id(value), place)
        return value

    def constant(self, name: str) -> Any:
        """CONSTANTS.c<number>."""
        number = name[1:]
        if not number.isdecimal() or int(number) >= len(self._listed):
            raise InvalidModelError(f"the archive has no constant {name!r}")
        return self.placed(self._listed[int(number)], f"CONSTANTS.{name}")

    def method_of(self, target: ScriptObject, name: str) -> bool:
        """Whether an object's class has a method."""
        return self._code.method(target.class_name, name) is not None

    def call(self, function: _Function, given: list[Any], named: dict[str, Any], where: str, hint: str) -> Any:
        """What a call returns: of a method, of something on numbers and lists, or of an operator on tensors."""
        if isinstance(function.target, ScriptObject):
            return self._invoke(function.target, function.name, given, named)
        name = function.name
        if name in ("prim::RaiseException", "aten::raise"):
            raise _CodeError(str(given[0]) if given else "")
        if name in NUMBERS and not any(not ref.number for ref in references(given)) and not any(isinstance(v, StoredTensor) for v in given):
            if not any(True for _ in references(given)) or name in ("aten::len", "aten::append", "aten::__getitem__"):
                return NUMBERS[name](*given, **named)
        if name.startswith("__torch__."):
            method = self._code.function(name)
            if method is None:
                raise InvalidModelError(f"the archive has no function {name}", where=where)
            return self._followed(method, given, named, "")
        if name.endswith("_") and not name.endswith("__") and not self._calls.covers(name):
            name = name.rstrip("_")  # in place: the result is what follows
        return self._calls.call(name, given, named, where, hint)


class _Frame:
    """One running method: its variables and where it stands."""

    def __init__(self, interpreter: Interpreter, method: Method, place: str, values: dict[str, Any]) -> None:
        self._interpreter = interpreter
        self._method = method
        self._place = place
        self._values = values

    def statements(self, nodes: Sequence[ast.stmt]) -> None:
        """Follows statements in order."""
        for node in nodes:
            self._interpreter.step(self._where(node))
            handler = _STATEMENTS.get(type(node))
            if handler is None:
                raise UnsupportedError(f"the statement {type(node).__name__} in its code is not covered", where=self._where(node))
            handler(self, node)

    def _where(self, node: ast.AST) -> str:
        return f"{self._method.file}:{getattr(node, 'lineno', 0)}"

    def assign(self, node: ast.Assign) -> None:
        """`a = value`, `a, b, = value`."""
        if len(node.targets) != 1:
            raise UnsupportedError("a statement with several assignments is not covered", where=self._where(node))
        target = node.targets[0]
        value = self.value(node.value, target.id if isinstance(target, ast.Name) else "")
        self._bind(target, value)

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._values[target.id] = value
        elif isinstance(target, ast.Tuple):
            if not isinstance(value, (list, tuple)) or len(value) != len(target.elts):
                raise InvalidModelError(f"{len(target.elts)} names are given to another number of values", where=self._where(target))
            for part, item in zip(target.elts, value, strict=True):
                self._bind(part, item)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            if not isinstance(owner, ScriptObject) or not isinstance(owner.state, dict):
                raise InvalidModelError("an attribute is given to what has none", where=self._where(target))
            owner.state[target.attr] = value
        else:
            raise UnsupportedError(f"an assignment to {type(target).__name__} is not covered", where=self._where(target))

    def annotated(self, node: ast.AnnAssign) -> None:
        """`a : T = value`."""
        if node.value is not None:
            hint = node.target.id if isinstance(node.target, ast.Name) else ""
            self._bind(node.target, self.value(node.value, hint))

    def expression(self, node: ast.Expr) -> None:
        """A call whose result nobody wants."""
        self.value(node.value)

    def returned(self, node: ast.Return) -> None:
        """`return value`."""
        raise _ReturnedError(None if node.value is None else self.value(node.value, "output"))

    def branch(self, node: ast.If) -> None:
        """The branch that the condition names. Where it is known only at run time, that which does not raise an error."""
        condition = self.value(node.test)
        if any(True for _ in references(condition)) or isinstance(condition, StoredTensor):
            raising = [_raises(body) for body in (node.body, node.orelse)]
            if raising[0] == raising[1]:
                raise UnsupportedError("a branch on what is known only at run time is not covered", where=self._where(node))
            condition = raising[1]
        self.statements(node.body if condition else node.orelse)

    def loop(self, node: ast.For) -> None:
        """`for i in range(n)`, or over a list."""
        items = self.value(node.iter)
        if not isinstance(items, (list, tuple, range)):
            raise UnsupportedError("a loop whose length is known only at run time is not covered", where=self._where(node))
        for item in items:
            self._interpreter.step(self._where(node))
            self._bind(node.target, item)
            self.statements(node.body)

    def repeated(self, node: ast.While) -> None:
        """`while condition`."""
        while True:
            self._interpreter.step(self._where(node))
            condition = self.value(node.test)
            if any(True for _ in references(condition)):
                raise UnsupportedError("a loop whose length is known only at run time is not covered", where=self._where(node))
            if not condition:
                return
            self.statements(node.body)

    def nothing(self, node: ast.stmt) -> None:
        """`pass`."""

    def asserted(self, node: ast.Assert) -> None:
        """`assert condition`."""
        condition = self.value(node.test)
        if not condition and not any(True for _ in references(condition)):
            raise _CodeError(ast.unparse(node.test))

    def value(self, node: ast.expr, hint: str = "") -> Any:
        """The value of an expression.

        Args:
            node: the expression.
            hint: the variable that it is for.
        """
        self._interpreter.step(self._where(node))
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            raise UnsupportedError(f"the expression {type(node).__name__} in its code is not covered", where=self._where(node))
        return handler(self, node, hint)

    def constant(self, node: ast.Constant, hint: str) -> Any:
        return node.value

    def variable(self, node: ast.Name, hint: str) -> Any:
        if node.id in self._values:
            return self._values[node.id]
        if node.id in _NAMES:
            return _NAMES[node.id]
        raise InvalidModelError(f"its code uses {node.id!r} before it is known", where=self._where(node))

    def attribute(self, node: ast.Attribute, hint: str) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id == "CONSTANTS":
            return self._interpreter.constant(node.attr)
        return self._interpreter.attribute(self.value(node.value), node.attr)

    def sequence(self, node: ast.List | ast.Tuple, hint: str) -> Any:
        items = [self.value(item, f"{hint}/{index}" if hint else "") for index, item in enumerate(node.elts)]
        return items if isinstance(node, ast.List) else tuple(items)

    def mapping(self, node: ast.Dict, hint: str) -> Any:
        return {self.value(key): self.value(value, hint) for key, value in zip(node.keys, node.values, strict=True) if key is not None}

    def negated(self, node: ast.UnaryOp, hint: str) -> Any:
        value = self.value(node.operand)
        if isinstance(value, (Ref, StoredTensor)):
            return self._interpreter.call(_Function("aten::neg"), [value], {}, self._where(node), self._hint(hint, node))
        if isinstance(node.op, ast.USub):
            return -value
        return not value

    def item(self, node: ast.Subscript, hint: str) -> Any:
        target, index = self.value(node.value), self.value(node.slice)
        if isinstance(target, (list, tuple)) and isinstance(index, int) and -len(target) <= index < len(target):
            return target[index]
        if isinstance(target, dict) and index in target:
            return target[index]
        raise UnsupportedError("an item that is not there, or is known only at run time, is not covered", where=self._where(node))

    def called(self, node: ast.Call, hint: str) -> Any:
        if isinstance(node.func, ast.Name):
            known = self._plain(node)
            if known is not NotImplemented:
                return known
        function = self._function(node.func)
        given = [self.value(argument) for argument in node.args]
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords if keyword.arg}
        return self._interpreter.call(function, given, named, self._where(node), self._hint(hint, node))

    def _hint(self, hint: str, node: ast.AST) -> str:
        """The name of a result: the variable's, behind the place of the module."""
        name = hint or f"line{getattr(node, 'lineno', 0)}"
        return f"{self._place}/{name}" if self._place else name

    def _plain(self, node: ast.Call) -> Any:
        """Casts and getattr; NotImplemented for everything else."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _CASTS:
            return self.value(node.args[-1])
        if name == "uninitialized":
            return None
        if name == "getattr":
            target, attribute = (self.value(argument) for argument in node.args)
            return self._interpreter.attribute(target, attribute)
        if name in _BUILTIN:
            given = [self.value(argument) for argument in node.args]
            if not any(True for _ in references(given)) and not any(isinstance(value, StoredTensor) for value in given):
                try:
                    return _BUILTIN[name](*given)
                except (TypeError, ValueError, OverflowError) as error:
                    raise InvalidModelError(f"its code is damaged: {error}", where=self._where(node)) from error
            if name in ("int", "float") and len(given) == 1:
                return self._interpreter.call(_Function(f"prim::{name}"), given, {}, self._where(node), self._hint("", node))
        return NotImplemented

    def _function(self, node: ast.expr) -> _Function:
        """What a call calls: `torch.conv2d`, `ops.quantized.conv2d`, `(self.layer).forward`, `__torch__.module.function`."""
        parts = _dotted(node)
        if parts and parts[0] not in self._values:
            if parts[0] == "torch":
                return _Function(f"aten::{parts[-1]}")
            if parts[0] == "ops" and len(parts) == 3:
                return _Function(f"{parts[1]}::{parts[2]}")
            if parts[0] == "__torch__":
                return _Function(".".join(parts))
        if isinstance(node, ast.Attribute):
            target = self.value(node.value)
            if isinstance(target, ScriptObject):
                return _Function(node.attr, target)
        if isinstance(node, ast.Name):
            return _Function(f"aten::{node.id}")
        raise UnsupportedError(f"a call of {ast.unparse(node)[:80]} is not covered", where=self._where(node))


def _layer(place: str) -> str:
    """The layer that packed parameters belong to: its place without what PyTorch's passes put around it."""
    return _PACKED.sub("", place.removeprefix("_jit_pass_hoist_conv_packed_params.")) or place


def _dotted(node: ast.expr) -> list[str]:
    """The names in `a.b.c`; [] for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id][::-1] if isinstance(node, ast.Name) else []


def _raises(body: Sequence[ast.stmt]) -> bool:
    """Whether a branch does nothing but raise an error."""
    return any("RaiseException" in ast.unparse(node) for node in body if isinstance(node, (ast.Expr, ast.Assign)))


#: Names that stand for values.
_NAMES: Mapping[str, Any] = {
    "True": True, "False": False, "None": None, "inf": math.inf, "nan": math.nan, "infj": complex(0, math.inf), "CONSTANTS": None,
}  # fmt: skip
_BUILTIN: Mapping[str, Callable[..., Any]] = {
    "int": int, "float": float, "bool": bool, "str": str, "range": range, "len": len, "max": max, "min": min,
}  # fmt: skip
_STATEMENTS: Mapping[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: _Frame.assign, ast.AnnAssign: _Frame.annotated, ast.Expr: _Frame.expression, ast.Return: _Frame.returned,
    ast.If: _Frame.branch, ast.For: _Frame.loop, ast.While: _Frame.repeated, ast.Pass: _Frame.nothing, ast.Assert: _Frame.asserted,
}  # fmt: skip
_EXPRESSIONS: Mapping[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: _Frame.constant, ast.Name: _Frame.variable, ast.Attribute: _Frame.attribute, ast.List: _Frame.sequence,
    ast.Tuple: _Frame.sequence, ast.Dict: _Frame.mapping, ast.UnaryOp: _Frame.negated, ast.Subscript: _Frame.item, ast.Call: _Frame.called,
}  # fmt: skip
