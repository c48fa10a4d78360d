"""The hooks: the one page that a plugin author reads.

A plugin is any module or object with functions of the names below, marked `@qconvert.hookimpl`, and announced in its package's
metadata: `[project.entry-points.qconvert]` with `my_plugin = "my_package.my_module"`. The formats, targets, passes and
runtimes of qconvert itself are loaded through the same hooks (host.BUILTIN). docs/plugins.md has a complete example for each hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Codegen, Format, Pass, Runtime

if TYPE_CHECKING:
    from qconvert.operators import Kind
    from qconvert.operators.formulas import Formula


GROUP = "qconvert"

#: The version of what a plugin may use: these hooks, qconvert.__all__ and qconvert.plugin.__all__. What is made for 1.x works with each
#: later 1.y: names and parameters are added there, and neither taken away nor given another meaning. A plugin may state the version that
#: it needs as QCONVERT_API; it is skipped, with the reason, where that is another or later one.
API_VERSION = "1.0"

F = TypeVar("F", bound=Callable[..., Any])

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


def replaces(*names: str) -> Callable[[F], F]:
    """Says of a function in a table of operators that it takes the place of another plugin's function for operators of these names."""

    def mark_function(function: F) -> F:
        function.qconvert_replaces = names  # type: ignore[attr-defined]
        return function

    return mark_function


def replaced_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of operators that a function of a table says it replaces."""
    names: tuple[str, ...] = getattr(function, "qconvert_replaces", ())
    return names


class Hooks:
    """The hooks that a plugin may implement.

    An object with the name of another plugin's object is left out, unless it declares to replace that one (`replaces`). A hook
    that raises is skipped: `qconvert plugins` says so, and what the plugin gives in other hooks stays.
    """

    @hookspec
    def qconvert_formats(self) -> Iterable[Format]:  # type: ignore[empty-body]
        """Formats to add, each a Format."""

    @hookspec
    def qconvert_targets(self) -> Iterable[Target | Derived]:  # type: ignore[empty-body]
        """Targets to add, each a Target, or one derived from another by its name (Target.derive)."""

    @hookspec
    def qconvert_passes(self) -> Iterable[Pass]:  # type: ignore[empty-body]
        """Passes to add, each a Pass."""

    @hookspec
    def qconvert_kinds(self) -> Iterable[Kind]:  # type: ignore[empty-body]
        """Kinds to add to the canonical operator set, each a qconvert.operators.Kind."""

    @hookspec
    def qconvert_formulas(self) -> Iterable[Formula]:  # type: ignore[empty-body]
        """Formulas to add, each a function that qconvert.operators.formulas.lowers() decorates: a kind as others, for all formats."""

    @hookspec
    def qconvert_runtimes(self) -> Iterable[Runtime]:  # type: ignore[empty-body]
        """Runtimes to add, each a Runtime."""

    @hookspec
    def qconvert_codegen(self) -> Iterable[Codegen]:  # type: ignore[empty-body]
        """Code generators to add, each a Codegen: what makes artefacts of the regions that `partition` gives a target."""

    @hookspec
    def qconvert_operators(self, format: str, direction: str) -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
        """Operators to add to the tables of a format: name -> function; direction is "read" or "write", and for onnx "write_qoperator".

        A function for an operator that the format has already is marked `@qconvert.plugin.replaces("CONV_2D")`.
        """
