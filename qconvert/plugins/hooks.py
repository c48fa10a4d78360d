"""The hooks: the one page that a plugin author reads.

A plugin is any module or object with functions of the names below, marked `@qconvert.hookimpl`, and announced in its package's
metadata: `[project.entry-points.qconvert]` with `my_plugin = "my_package.my_module"`. The formats, targets, passes and
runtimes of qconvert itself are loaded through the same hooks (host.BUILTIN). docs/plugins.md has a complete example for each hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Format, Pass, Runtime

if TYPE_CHECKING:
    from qconvert.graph.kinds import Kind

__all__ = ["GROUP", "Hooks", "hookimpl", "hookspec"]

GROUP = "qconvert"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class Hooks:
    """The hooks that a plugin may implement."""

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
        """Kinds to add to the canonical operator set, each made by qconvert.graph.kinds.kind()."""

    @hookspec
    def qconvert_runtimes(self) -> Iterable[Runtime]:  # type: ignore[empty-body]
        """Runtimes to add, each a Runtime."""

    @hookspec
    def qconvert_operators(self, format: str, direction: str) -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
        """Operators to add to the tables of a format: name -> function; direction is "read" or "write", and for onnx "write_qoperator"."""
