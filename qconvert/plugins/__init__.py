"""Plugins: the objects they give (types), the hooks (hooks, the page for plugin authors), their host, and the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qconvert.lazy import defer_imports, lazy_getattr
from qconvert.plugins.abilities import Accelerator, Storage, Verdict, Violation
from qconvert.plugins.hooks import API_VERSION, hookimpl, replaces
from qconvert.plugins.host import LoadedPlugin, list_plugins, plugin_at_fault, plugin_failures, register, temporary_plugin
from qconvert.plugins.options import Option
from qconvert.plugins.registry import (
    codegen_of,
    declared_options,
    encodings_format_of,
    find_target,
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
from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Codegen, Format, Pass, PassResult, Runtime

if TYPE_CHECKING:
    from qconvert.plugins.loaded_models import Engine, Inside, Layer, LoadedModel, ModelFile, Pieces, Timing
    from qconvert.plugins.parameters import Decoding, Folding, Parameters
    from qconvert.plugins.results import Change, Cost, describe_worst, name_changes

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
    "PassResult",
    "Pieces",
    "Runtime",
    "Storage",
    "Target",
    "Timing",
    "Verdict",
    "Violation",
    "codegen_of",
    "declared_options",
    "defer_imports",
    "describe_worst",
    "encodings_format_of",
    "find_target",
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

__getattr__ = lazy_getattr(
    __name__,
    {
        "qconvert.plugins.loaded_models": "Engine Inside Layer LoadedModel ModelFile Pieces Timing",
        "qconvert.plugins.parameters": "Decoding Folding Parameters",
        "qconvert.plugins.results": "Change Cost describe_worst name_changes",
    },
)
