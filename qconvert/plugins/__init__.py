"""Plugins: what they give (types), the hooks (hooks, the page that a plugin author reads), their host, and what is registered."""

from __future__ import annotations

from qconvert.plugins.hooks import hookimpl
from qconvert.plugins.host import LoadedPlugin, loaded
from qconvert.plugins.registry import (
    format_named,
    format_of,
    formats,
    kernels_named,
    operators,
    pass_named,
    passes,
    runtime_of,
    runtimes,
    target_named,
    targets,
)
from qconvert.plugins.types import Format, Inside, Layer, LoadedModel, Pass, Pieces, Runtime, Target, Violation

__all__ = [
    "Format",
    "Inside",
    "Layer",
    "LoadedModel",
    "LoadedPlugin",
    "Pass",
    "Pieces",
    "Runtime",
    "Target",
    "Violation",
    "format_named",
    "format_of",
    "formats",
    "hookimpl",
    "kernels_named",
    "loaded",
    "operators",
    "pass_named",
    "passes",
    "runtime_of",
    "runtimes",
    "target_named",
    "targets",
]
