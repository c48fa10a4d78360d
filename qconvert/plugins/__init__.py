"""Plugins: what they give (types), the hooks (hooks, the page that a plugin author reads), their host, and what is registered."""

from __future__ import annotations

from qconvert.plugins.hooks import hookimpl
from qconvert.plugins.host import LoadedPlugin, loaded
from qconvert.plugins.registry import format_named, format_of, formats, operators, pass_named, passes, target_named, targets
from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Format, Pass
from qconvert.plugins.verdict import Verdict, Violation

__all__ = [
    "Derived",
    "Format",
    "LoadedPlugin",
    "Pass",
    "Target",
    "Verdict",
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
