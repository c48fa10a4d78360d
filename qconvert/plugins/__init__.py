"""Plugins: the objects they give (types), the hooks (hooks, the page for plugin authors), their host, and the registry."""

from __future__ import annotations

from qconvert.plugins.abilities import Accelerator
from qconvert.plugins.change import Change, Cost, describe_worst, name_changes
from qconvert.plugins.hooks import API_VERSION, hookimpl, replaces
from qconvert.plugins.host import LoadedPlugin, list_plugins, plugin_at_fault, plugin_failures, register, temporary_plugin
from qconvert.plugins.options import Option
from qconvert.plugins.parameters import Decoding, Folding, Parameters
from qconvert.plugins.registry import (
    codegen_of,
    declared_options,
    encodings_format_of,
    format_named,
    format_of,
    formats,
    kernels_named,
    kernels_of_source,
    list_kernels,
    operators,
    options_named,
    pass_named,
    passes,
    read_encodings,
    runtime_of,
    runtimes,
    runtimes_of_target,
    target_named,
    targets,
)
from qconvert.plugins.storage import Storage
from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Codegen, Engine, Format, Inside, Layer, LoadedModel, ModelFile, Pass, Pieces, Runtime, Timing
from qconvert.plugins.verdict import Verdict, Violation

__all__ = [
    "API_VERSION",
    "Accelerator",
    "Change",
    "Codegen",
    "Cost",
    "Decoding",
    "Derived",
    "Engine",
    "Folding",
    "Format",
    "Inside",
    "Layer",
    "LoadedModel",
    "LoadedPlugin",
    "ModelFile",
    "Option",
    "Parameters",
    "Pass",
    "Pieces",
    "Runtime",
    "Storage",
    "Target",
    "Timing",
    "Verdict",
    "Violation",
    "codegen_of",
    "declared_options",
    "describe_worst",
    "encodings_format_of",
    "format_named",
    "format_of",
    "formats",
    "hookimpl",
    "kernels_named",
    "kernels_of_source",
    "list_kernels",
    "list_plugins",
    "name_changes",
    "operators",
    "options_named",
    "pass_named",
    "passes",
    "plugin_at_fault",
    "plugin_failures",
    "read_encodings",
    "register",
    "replaces",
    "runtime_of",
    "runtimes",
    "runtimes_of_target",
    "target_named",
    "targets",
    "temporary_plugin",
]
