"""Plugins: what they give (types), the hooks (hooks, the page that a plugin author reads), their host, and what is registered."""

from __future__ import annotations

from qconvert.plugins.hooks import hookimpl
from qconvert.plugins.host import LoadedPlugin, loaded
from qconvert.plugins.registry import format_named, format_of, formats, operators, pass_named, passes, target_named, targets
from qconvert.plugins.types import Format, Pass, Target, Violation

__all__ = [
    "Format",
    "LoadedPlugin",
    "Pass",
    "Target",
    "Violation",
    "format_named",
    "format_of",
    "formats",
    "hookimpl",
    "loaded",
    "operators",
    "pass_named",
    "passes",
    "target_named",
    "targets",
]
