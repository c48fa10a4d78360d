"""One method of TorchScript's code while it is followed: its arguments and statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qconvert.formats.torch.stored_values import ScriptObject, StoredTensor
from qconvert.formats.torch.torchscript.expressions import Expressions, dotted_names
from qconvert.formats.torch.values import UNKNOWN, Ref, Unknown

__all__ = ["CodeError", "Frame", "ReturnedError"]

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


class Frame(Expressions):
    """One method and where it stands: its arguments and statements.

    Args:
        interpreter: that follows it.
        method: its code.
        place: of its object in the model.
        values: its variables.
    """

    def bind_arguments(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Gives the method's arguments their values, or their defaults.

        Raises:
            InvalidModelError: there are too many, or one is missing.
        """
        node = self._method.node
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
            handler = _STATEMENTS.get(type(node))
            if handler is None:
                raise self._unsupported_error(f"the statement {type(node).__name__} in its code", node)
            handler(self, node)

    def assign(self, node: ast.Assign) -> None:
        """`a = value`, `a, b, = value`."""
        if len(node.targets) != 1:
            raise self._unsupported_error("a statement with several assignments", node)
        target = node.targets[0]
        self._bind(target, self.value(node.value, target.id if isinstance(target, ast.Name) else ""))

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

    def assign_annotated(self, node: ast.AnnAssign) -> None:
        """`a : T = value`."""
        if node.value is not None:
            self._bind(node.target, self.value(node.value, node.target.id if isinstance(node.target, ast.Name) else ""))

    def expression(self, node: ast.Expr) -> None:
        """A call whose result nobody wants."""
        self.value(node.value)

    def return_value(self, node: ast.Return) -> None:
        """`return value`."""
        raise ReturnedError(None if node.value is None else self.value(node.value, "output"))

    def branch(self, node: ast.If) -> None:
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

    def loop(self, node: ast.For) -> None:
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

    def run_while(self, node: ast.While) -> None:
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

    def leave_loop(self, node: ast.stmt) -> None:
        """`break` and `continue`."""
        raise _LeftError(isinstance(node, ast.Break))

    def run_with(self, node: ast.With) -> None:
        """`with torch.no_grad():` and the like, which say nothing about values; any other would run methods of its own."""
        for item in node.items:
            context = item.context_expr
            name = (dotted_names(context.func if isinstance(context, ast.Call) else context) or [""])[-1]
            if isinstance(context, ast.Name) and isinstance(held := self._values.get(name), ScriptObject):
                name = held.class_name.rpartition(".")[2]
            if item.optional_vars is not None or name not in _GUARDS:
                raise self._unsupported_error(f"the statement With of {ast.unparse(context)[:80]!r} in its code", node)
        self.statements(node.body)

    def skip_pass(self, node: ast.stmt) -> None:
        """`pass`."""

    def check_assert(self, node: ast.Assert) -> None:
        """`assert condition`."""
        condition = self.value(node.test)
        if not isinstance(condition, _RUN_TIME) and not condition:
            raise CodeError(ast.unparse(node.test)[:500])


def _raises(body: Sequence[ast.stmt]) -> bool:
    """Whether a branch raises an error."""
    calls = (node.value for node in body if isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call))
    return any(dotted_names(call.func)[-1:] == ["RaiseException"] for call in calls)


#: What says how tensors are followed, not what they are.
_GUARDS = frozenset(["no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "record_function", "autocast"])
_STATEMENTS: Mapping[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: Frame.assign, ast.AnnAssign: Frame.assign_annotated, ast.Expr: Frame.expression, ast.Return: Frame.return_value,
    ast.If: Frame.branch, ast.For: Frame.loop, ast.While: Frame.run_while, ast.Pass: Frame.skip_pass, ast.Assert: Frame.check_assert,
    ast.Break: Frame.leave_loop, ast.Continue: Frame.leave_loop, ast.With: Frame.run_with,
}  # fmt: skip
