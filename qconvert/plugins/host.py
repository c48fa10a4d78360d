"""The plugin host: loads the built-in plugins, those that installed packages announce, and those that a program or a user names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pluggy

from qconvert.arguments import with_checked_arguments
from qconvert.errors import OptionError, QConvertError
from qconvert.plugins.hooks import API_VERSION, GROUP, Hooks, replaced_names
from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Codegen, Format, Pass, Runtime

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


#: The variable of the environment that keeps installed plugins from being loaded: 1 for all, or their names with commas between.
DISABLE = "QCONVERT_DISABLE_PLUGINS"


def is_disabled(name: str) -> bool:
    """Whether the environment says that an installed plugin is not to be loaded."""
    wanted = os.environ.get(DISABLE, "")
    return wanted == "1" or name in {part.strip() for part in wanted.split(",")}


def announced_plugins() -> list[EntryPoint]:
    """The entry points of qconvert's group.

    importlib.metadata takes longer to import than the rest of the command line does, so it is asked only where some package may announce
    one.
    """
    if not any(_may_announce(folder or os.curdir) for folder in sys.path):
        return []
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def _may_announce(folder: str) -> bool:
    """Whether a package in a folder of sys.path may have entry points in the group; archives and eggs are not looked into."""
    try:
        with os.scandir(folder) as items:
            found = [item.path for item in items if item.name.endswith((".dist-info", ".egg-info", ".egg"))]
    except NotADirectoryError:
        return True
    except OSError:  # a path that is not there, or that may not be read
        return False
    return any(path.endswith(".egg") or _has_group(path) for path in found)


def _has_group(metadata: str) -> bool:
    try:
        with open(os.path.join(metadata, "entry_points.txt"), "rb") as stream:
            return f"[{GROUP}]".encode() in stream.read().replace(b" ", b"")
    except OSError:
        return False


BUILTIN = {
    "tflite": "qconvert.formats.tflite",
    "onnx": "qconvert.formats.onnx",
    "torch": "qconvert.formats.torch",
    "qgraph": "qconvert.formats.qgraph",
    "encodings": "qconvert.formats.encodings",
    "checkpoints": "qconvert.formats.checkpoints",
    "mnn": "qconvert.formats.mnn",
    "ncnn": "qconvert.formats.ncnn",
    "tensorrt-cache": "qconvert.formats.calibration_cache",
    "targets": "qconvert.targets",
    "passes": "qconvert.passes",
    "runtimes": "qconvert.runtimes",
    "partitioning": "qconvert.partitioning",
}

P = ParamSpec("P")
T = TypeVar("T")
#: What a plugin may do wrong, including a plugin that exits the program.
_FAILURES = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin as `qconvert plugins` lists it.

    Attributes:
        name: as it is announced or registered.
        origin: the module, and the package if one announces it.
        problem: why it was skipped, as a whole or in one of its hooks; "" if it was not.
        replaces: the objects of other plugins that it replaces, such as "format onnx".
    """

    name: str
    origin: str
    problem: str = ""
    replaces: tuple[str, ...] = ()


@dataclass(slots=True)
class _Host:
    """Everything that is loaded.

    Attributes:
        manager: pluggy's.
        origins: where each plugin is from, by its name, in the order in which they were loaded.
        problems: why plugins were skipped as a whole.
        noticed: what has failed so far, of plugins and of their hooks.
    """

    manager: pluggy.PluginManager
    origins: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    noticed: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, origin: str, load: Callable[[], Any]) -> BaseException | None:
        """Loads a plugin. One that fails is named and left out; returns what it raised."""
        self.origins[name] = origin
        try:
            plugin = load()
            _require_version(plugin)
            self.manager.register(plugin, name)
            self.manager.check_pending()
            _add_kinds(plugin)
        except _FAILURES as error:  # a plugin's own failure, whatever it is, must not stop the others
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
            self.problems[name] = self.noticed[name] = _error_text(error)
            return error
        return None

    def remove(self, name: str) -> None:
        """Takes a plugin out, with what was noticed of it, whether it failed or not."""
        if self.manager.has_plugin(name):
            self.manager.unregister(name=name)
        del self.origins[name]
        self.problems.pop(name, None)
        self.noticed.pop(name, None)
        _forget()


@cache
def _host() -> _Host:
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    host = _Host(manager)
    for name, module in BUILTIN.items():
        manager.register(import_module(module), name)
        host.origins[name] = module
    for point in announced_plugins():
        if point.name in BUILTIN:
            continue
        origin = f"{point.value} ({point.dist.name} {point.dist.version})" if point.dist else point.value
        if is_disabled(point.name):
            host.origins[point.name], host.problems[point.name] = origin, f"disabled by {DISABLE}"
        else:
            host.add(point.name, origin, point.load)
    return host


_forgotten: list[Callable[[], None]] = []


def plugin_cache(function: Callable[P, T]) -> Callable[P, T]:
    """A function of what the plugins give, whose results are kept until another plugin is registered."""
    kept = cache(function)
    _forgotten.append(kept.cache_clear)
    return kept  # type: ignore[return-value]  # the same parameters, all of them hashable


@with_checked_arguments
def register(plugin: Any, name: str = "") -> None:
    """Adds a plugin to the running program, without an installed package.

    Args:
        plugin: a module, or an object with hooks, each marked `@hookimpl`.
        name: as `qconvert plugins` lists it; by default the module's own.

    Raises:
        OptionError: it fails, has no hook, is made for another version of the interface, gives what another plugin gives, or there is one
            of that name.
    """
    name = name or getattr(plugin, "__name__", type(plugin).__name__)
    host = _host()
    if name in host.origins:
        raise OptionError(f"a plugin {name!r} is registered already", remedy="Register it under another name.", rule="duplicate-plugin")
    if not any(host.manager.parse_hookimpl_opts(plugin, hook) for hook in dir(plugin) if not hook.startswith("__")):
        known = ", ".join(hook for hook in vars(Hooks) if hook.startswith(GROUP))
        raise OptionError(f"the plugin {name!r} has no hook", remedy=f"Mark one of these with @qconvert.hookimpl: {known}.", rule="no-hook")
    failed = host.add(name, getattr(plugin, "__file__", None) or type(plugin).__module__, lambda: plugin)
    _forget()
    problem = host.problems.get(name) or next((item.problem for item in list_plugins() if item.name == name), "")
    if problem:
        host.remove(name)
        raise OptionError(
            f"the plugin {name!r} fails: {problem}", rule=(failed.rule if isinstance(failed, QConvertError) else "") or "plugin-fails"
        ) from failed


@contextmanager
def temporary_plugin(plugin: Any, name: str = "") -> Iterator[None]:
    """A plugin that is there for a while: for tests. Kinds and formulas that it brings stay. See register()."""
    before = set(_host().origins)
    register(plugin, name)
    (name,) = _host().origins.keys() - before
    try:
        yield
    finally:
        _host().remove(name)


def _forget() -> None:
    for forget in _forgotten:
        forget()


def _require_version(plugin: Any) -> None:
    """A plugin may state the version of the interface that it was made for, as QCONVERT_API."""
    stated = getattr(plugin, "QCONVERT_API", API_VERSION)
    try:
        (major, minor), own = ([int(part) for part in str(version).split(".")] for version in (stated, API_VERSION))
    except ValueError:
        raise TypeError(f"QCONVERT_API is {stated!r}, not two numbers such as {API_VERSION!r}") from None
    if major != own[0] or minor > own[1]:
        raise TypeError(f"it is made for version {stated} of the plugin interface, and this is {API_VERSION}")


def _add_kinds(plugin: Any) -> None:
    """Puts the kinds of a plugin, and its formulas, into the operator set before anything reads a graph."""
    if hasattr(plugin, "qconvert_kinds"):
        from qconvert.operators import register

        register(plugin.qconvert_kinds())
    if hasattr(plugin, "qconvert_formulas"):
        from qconvert.operators import formulas

        formulas.register(plugin.qconvert_formulas())


#: What the hooks without arguments give, and what one is called.
_GIVEN: Mapping[str, tuple[tuple[type, ...], str]] = {
    "qconvert_formats": ((Format,), "format"),
    "qconvert_targets": ((Target, Derived), "target"),
    "qconvert_passes": ((Pass,), "pass"),
    "qconvert_runtimes": ((Runtime,), "runtime"),
    "qconvert_codegen": ((Codegen,), "code generator"),
}
_TABLES = [(name, direction) for name in ("tflite", "onnx", "torch") for direction in ("read", "write")] + [("onnx", "write_qoperator")]


@dataclass(frozen=True, slots=True)
class _Given:
    """What the plugins give for a hook: by name, with the name of its giver; and what went wrong or took another's place, by plugin."""

    hook: str
    items: dict[str, Any] = field(default_factory=dict)
    givers: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, list[str]] = field(default_factory=dict)

    def add(self, plugin: str, name: str, item: Any, replaces: bool, what: str) -> None:
        """One that bears the name of another's is left out, unless it says that it takes its place."""
        other = self.givers.get(name)
        if other is not None and not replaces:
            whose = "twice" if other == plugin else f"as {other} does; with replaces={name!r} it takes its place"
            self.fail(plugin, f"gives the {what} {name!r} {whose}")
            return
        if other is not None:
            self.replaced.setdefault(plugin, []).append(f"{what} {name}")
        self.items[name], self.givers[name] = item, plugin

    def skip(self, plugin: str, error: BaseException) -> None:
        """What a plugin gives there is left out, as it fails; a built-in one may not."""
        if plugin in BUILTIN:
            raise error
        self.fail(plugin, _error_text(error))

    def fail(self, plugin: str, problem: str) -> None:
        self.problems.setdefault(plugin, f"in {self.hook}: {problem}")
        _host().noticed.setdefault(plugin, self.problems[plugin])


def list_plugins() -> tuple[LoadedPlugin, ...]:
    """Every plugin found, built-in ones first, with the objects of other plugins that it replaces, or the reason why it was skipped."""
    host = _host()
    given = [*map(_call_hook, _GIVEN), *(_table(*names) for names in _TABLES)]
    problems, replaces = dict(host.problems), dict[str, list[str]]()
    for found in given:
        for plugin, problem in found.problems.items():
            problems.setdefault(plugin, problem)
        for plugin, names in found.replaced.items():
            replaces.setdefault(plugin, []).extend(name for name in names if name not in replaces.get(plugin, ()))
    return tuple(LoadedPlugin(n, origin, problems.get(n, ""), tuple(replaces.get(n, ()))) for n, origin in host.origins.items())


def collect_items(hook: str) -> dict[str, Any]:
    """All objects that the plugins give for a hook, by name, built-in ones first."""
    return _call_hook(hook).items


@plugin_cache
def _call_hook(hook: str) -> _Given:
    found, (types, what) = _Given(hook), _GIVEN[hook]
    for plugin, function in _implementations(hook):
        try:
            items = list(function() or ())
            wrong = next((item for item in items if not isinstance(item, types)), None)
            if wrong is not None:
                raise TypeError(f"{wrong!r} is no {types[0].__name__}")
        except _FAILURES as error:
            found.skip(plugin, error)
            continue
        for item in items:
            found.add(plugin, item.name, item, item.replaces == item.name, what)
    return found


def operator_tables(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    """The operator functions that the plugins give for a format, built-in ones first."""
    return _table(format, direction).items


@plugin_cache
def _table(format: str, direction: str) -> _Given:
    found = _Given("qconvert_operators")
    for plugin, function in _implementations("qconvert_operators"):
        try:
            table = dict(function(format=format, direction=direction) or {})
            wrong = next((name for name, item in table.items() if not (isinstance(name, str) and callable(item))), None)
            if wrong is not None:
                raise TypeError(f"the function of {wrong!r} is {table[wrong]!r}")
        except _FAILURES as error:
            found.skip(plugin, error)
            continue
        for name, item in table.items():
            found.add(plugin, name, item, plugin in BUILTIN or name in replaced_names(item), f"{format} operator")
    return found


def _implementations(hook: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each plugin's function for a hook, in the order of registration."""
    host = _host()
    found = {item.plugin_name: item for item in getattr(host.manager.hook, hook).get_hookimpls()}

    def call_implementation(name: str, **arguments: Any) -> Any:
        return found[name].function(**{key: value for key, value in arguments.items() if key in found[name].argnames})

    return ((name, partial(call_implementation, name)) for name in host.origins if name in found)


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def plugin_failures() -> Mapping[str, str]:
    """What has failed so far in the running program: plugin -> the reason why it was skipped, as a whole or in a hook."""
    return dict(_host().noticed)


def plugin_at_fault(error: BaseException) -> str:
    """The name of the plugin in whose code an error was raised, the innermost if there are several; "" if it was in none."""
    modules: dict[str, str] = {}
    host = _host()
    for name in host.origins.keys() - BUILTIN.keys():
        plugin = host.manager.get_plugin(name)
        modules[(plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__).partition(".")[0]] = name
    at, found = error.__traceback__, ""
    while at is not None:
        found = modules.get(str(at.tb_frame.f_globals.get("__name__", "")).partition(".")[0], found)
        at = at.tb_next
    return found
