"""The plugin host: loads the built-in plugins and those that installed packages announce."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import pluggy

from qconvert.plugins.announced import announced_plugins
from qconvert.plugins.hooks import GROUP, Hooks

__all__ = ["BUILTIN", "LoadedPlugin", "collected", "hook_results", "loaded"]

BUILTIN = {
    "tflite": "qconvert.formats.tflite",
    "onnx": "qconvert.formats.onnx",
    "qgraph": "qconvert.formats.qgraph",
    "targets": "qconvert.targets",
    "passes": "qconvert.passes",
    "runtimes": "qconvert.runtimes",
}


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin as `qconvert plugins` lists it; `problem` says why it was skipped."""

    name: str
    origin: str
    problem: str = ""


@cache
def _host() -> tuple[pluggy.PluginManager, tuple[LoadedPlugin, ...]]:
    """The plugin manager with everything loaded; a plugin that fails is named and skipped."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    found: list[LoadedPlugin] = []
    announced = [(point.name, point.value, point) for point in announced_plugins() if point.name not in BUILTIN]
    for name, module in BUILTIN.items():
        manager.register(import_module(module), name)
        found.append(LoadedPlugin(name, module))
    for name, value, point in announced:
        origin = f"{value} ({point.dist.name} {point.dist.version})" if point.dist else value
        try:
            plugin = point.load()
            manager.register(plugin, name)
            manager.check_pending()
            _add_kinds(plugin)
        except Exception as error:  # a plugin's own failure, whatever it is, must not stop the others
            if manager.has_plugin(name):
                manager.unregister(name=name)
            found.append(LoadedPlugin(name, origin, f"{type(error).__name__}: {error}"))
        else:
            found.append(LoadedPlugin(name, origin))
    return manager, tuple(found)


def _add_kinds(plugin: Any) -> None:
    """Puts the kinds of a plugin into the operator set before anything reads a graph."""
    if hasattr(plugin, "qconvert_kinds"):
        from qconvert.graph.kinds import register

        register(plugin.qconvert_kinds())


def loaded() -> tuple[LoadedPlugin, ...]:
    """Every plugin found, built-in ones first, with the reason for each that was skipped."""
    return _host()[1]


def collected(hook: str) -> dict[str, Any]:
    """All objects that the plugins give for a hook, by name, built-in ones first; a later one replaces an earlier."""
    return {item.name: item for items in hook_results(hook) for item in items}


def hook_results(hook: str, **arguments: Any) -> list[Any]:
    """What each plugin gives for a hook, built-in ones first."""
    results: list[Any] = getattr(_host()[0].hook, hook)(**arguments)
    return results[::-1]
