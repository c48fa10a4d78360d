"""The plugin host: loads the built-in plugins and those that installed packages announce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import pluggy

from qconvert.errors import OptionError, QConvertError
from qconvert.plugins.announced import announced_plugins
from qconvert.plugins.hooks import GROUP, Hooks
from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Format, Pass, Runtime

__all__ = ["BUILTIN", "LoadedPlugin", "collected", "hook_results", "loaded"]

BUILTIN = {
    "tflite": "qconvert.formats.tflite",
    "onnx": "qconvert.formats.onnx",
    "torch": "qconvert.formats.torch",
    "qgraph": "qconvert.formats.qgraph",
    "encodings": "qconvert.formats.encodings",
    "aimet": "qconvert.formats.aimet",
    "mnn": "qconvert.formats.mnn",
    "ncnn": "qconvert.formats.ncnn",
    "tensorrt-cache": "qconvert.formats.calibration_cache",
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


#: What the hooks without arguments give.
_GIVEN: Mapping[str, tuple[type, ...]] = {
    "qconvert_formats": (Format,),
    "qconvert_targets": (Target, Derived),
    "qconvert_passes": (Pass,),
    "qconvert_runtimes": (Runtime,),
}


def loaded() -> tuple[LoadedPlugin, ...]:
    """Every plugin found, built-in ones first, with the reason for each that was skipped, as a whole or in one of its hooks."""
    problems = {plugin: f"in {hook}: {problem}" for hook in _GIVEN for plugin, _, problem in _asked(hook) if problem}
    return tuple(replace(item, problem=item.problem or problems.get(item.name, "")) for item in _host()[1])


def collected(hook: str) -> dict[str, Any]:
    """All objects that the plugins give for a hook, by name, built-in ones first; a later one replaces an earlier."""
    return {item.name: item for _, items, _ in _asked(hook) for item in items}


def _asked(hook: str) -> Iterator[tuple[str, list[Any], str]]:
    """For each plugin with the hook its name, what it gives, and why that is nothing if the plugin fails: others must go on working."""
    for implementation in getattr(_host()[0].hook, hook).get_hookimpls():
        try:
            items = list(implementation.function() or ())
            wrong = next((item for item in items if not isinstance(item, _GIVEN[hook])), None)
            if wrong is not None:
                raise TypeError(f"{wrong!r} is no {_GIVEN[hook][0].__name__}")
            yield implementation.plugin_name, items, ""
        except Exception as error:
            if implementation.plugin_name in BUILTIN:
                raise
            yield implementation.plugin_name, [], f"{type(error).__name__}: {error}"


def hook_results(hook: str, **arguments: Any) -> list[Any]:
    """What each plugin gives for a hook, built-in ones first.

    Raises:
        OptionError: a plugin fails there.
    """
    try:
        results: list[Any] = getattr(_host()[0].hook, hook)(**arguments)
    except QConvertError:
        raise
    except Exception as error:  # a plugin's own failure, whatever it is
        raise OptionError(
            f"a plugin fails in its hook {hook}: {type(error).__name__}: {error}", remedy="`qconvert plugins` lists the plugins."
        ) from error
    return results[::-1]
