"""The plugin host and its hooks: the one page that a plugin author reads.

A plugin is any module or object with functions of the names below, marked `@qconvert.hookimpl`, and announced in its package's
metadata: `[project.entry-points.qconvert]` with `my_plugin = "my_package.my_module"`. The formats, targets and passes of
qconvert itself are loaded through the same hooks (BUILTIN). docs/plugins.md has a complete example for each hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from qconvert.errors import OptionError

if TYPE_CHECKING:
    from qconvert.graph import Graph

__all__ = ["Format", "LoadedPlugin", "Pass", "Target", "Violation", "formats", "hookimpl", "loaded", "operators", "passes", "targets"]

GROUP = "qconvert"
BUILTIN = {
    "tflite": "qconvert.formats.tflite",
    "onnx": "qconvert.formats.onnx",
    "qgraph": "qconvert.formats.qgraph",
    "targets": "qconvert.targets",
    "passes": "qconvert.passes",
}

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. `read` and `write` import what they need when they are called.

    Attributes:
        name: as on the command line, such as "tflite".
        suffixes: file name endings, with the dot.
        summary: one line for `qconvert formats`.
        read: file -> Graph, or None if the format cannot be read.
        write: (Graph, file, options) -> notes, or None. It writes the file at the path given, and further files beside it if the
            format needs them, which the caller moves into place. It may return, in words, what the user should know of the form
            that it chose.
        default_target: the target that a conversion to this format uses when none is named.
        own_target: likewise for a conversion from this format to itself.
        companions: file -> the further files that belong to it, or None if there are never any.
    """

    name: str
    suffixes: tuple[str, ...]
    summary: str
    read: Callable[[Path], Graph] | None = None
    write: Callable[[Graph, Path, Mapping[str, Any]], tuple[str, ...] | None] | None = None
    default_target: str = ""
    own_target: str = ""
    companions: Callable[[Path], tuple[Path, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What one destination can do, as data.

    Attributes:
        name: as in `--target`.
        format: the name of the format that it writes.
        summary: one line for `qconvert formats`.
        passes: names of the passes that fit a graph to the target, in the order in which they run.
        layout: the data_format that spatial operators must have; "" keeps the source's.
        activations: storage of 8-bit activations inside the graph: "uint8", "int8" or "" (as the source has it).
        max_pair_sum: largest magnitude of the sum of two int8 weights adjacent along K, of the same sign, that the target's
            kernels add without saturation; 0 means any. Other weights are stored as uint8 with zero point 128.
        integer_kernels: which quantized operators the runtime runs as integer kernels: kind -> dtypes of the activation. Empty if the
            runtime is not known; then there is no audit.
        symmetric_weights: whether weights are signed with zero point 0.
        fixed_outputs: the quantization that an operator's result must have: kind -> dtype -> (scale, zero point).
        equal_scales: kinds that compute on real values and whose data inputs and results must have one quantization nevertheless,
            with the types of which that is true.
        check: says what in a normalized graph the target does not take; None if it takes all that its format can hold.
    """

    name: str
    format: str
    summary: str
    passes: tuple[str, ...] = ()
    layout: str = ""
    activations: str = ""
    max_pair_sum: int = 0
    integer_kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    symmetric_weights: bool = False
    fixed_outputs: Mapping[str, Mapping[str, tuple[float, int]]] = field(default_factory=dict)
    equal_scales: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    check: Callable[[Graph], Iterable[Violation]] | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """Something in a graph that a target does not take.

    Attributes:
        where: the operator and the tensor concerned.
        rule: what the target's specification says, in words.
        remedy: the pass or the option that would help; "" if there is none.
    """

    where: str
    rule: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewriting: (graph, target, options of its own) -> the new graph and, in words, what was changed.

    Attributes:
        name: as in `--passes`.
        summary: one line for `qconvert passes`.
        run: the function; its target is None where a conversion has none.
        exact: whether every output stays the same, bit for bit; if not, what was changed says by how much.
    """

    name: str
    summary: str
    run: Callable[..., tuple[Graph, tuple[str, ...]]]
    exact: bool = True


class Hooks:
    """The hooks that a plugin may implement."""

    @hookspec
    def qconvert_formats(self) -> Iterable[Format]:  # type: ignore[empty-body]
        """Formats to add, each a Format."""

    @hookspec
    def qconvert_targets(self) -> Iterable[Target]:  # type: ignore[empty-body]
        """Targets to add, each a Target."""

    @hookspec
    def qconvert_passes(self) -> Iterable[Pass]:  # type: ignore[empty-body]
        """Passes to add, each a Pass."""

    @hookspec
    def qconvert_operators(self, format: str, direction: str) -> Mapping[str, Callable[..., Any]]:  # type: ignore[empty-body]
        """Operators to add to the tables of a format: name -> function; direction is "read" or "write", and for onnx "write_qoperator"."""


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin as `qconvert plugins` lists it; `problem` says why it was skipped."""

    name: str
    origin: str
    problem: str = ""


@cache
def _host() -> tuple[pluggy.PluginManager, tuple[LoadedPlugin, ...]]:
    """The plugin manager with everything loaded; a plugin that fails is named and skipped."""
    from importlib.metadata import entry_points

    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    found: list[LoadedPlugin] = []
    announced = [(point.name, point.value, point) for point in entry_points(group=GROUP) if point.name not in BUILTIN]
    for name, module in BUILTIN.items():
        manager.register(import_module(module), name)
        found.append(LoadedPlugin(name, module))
    for name, value, point in announced:
        origin = f"{value} ({point.dist.name} {point.dist.version})" if point.dist else value
        try:
            manager.register(point.load(), name)
            manager.check_pending()
        except Exception as error:  # a plugin's own failure, whatever it is, must not stop the others
            if manager.has_plugin(name):
                manager.unregister(name=name)
            found.append(LoadedPlugin(name, origin, f"{type(error).__name__}: {error}"))
        else:
            found.append(LoadedPlugin(name, origin))
    return manager, tuple(found)


def loaded() -> tuple[LoadedPlugin, ...]:
    """Every plugin found, built-in ones first, with the reason for each that was skipped."""
    return _host()[1]


def _collect(hook: str) -> dict[str, Any]:
    """All objects that the plugins give for a hook, by name, built-in ones first; a later one replaces an earlier."""
    results = getattr(_host()[0].hook, hook)()
    return {item.name: item for items in reversed(results) for item in items}


@cache
def formats() -> Mapping[str, Format]:
    """Every format, by name."""
    return _collect("qconvert_formats")


@cache
def targets() -> Mapping[str, Target]:
    """Every target, by name."""
    return _collect("qconvert_targets")


@cache
def passes() -> Mapping[str, Pass]:
    """Every pass, by name."""
    return _collect("qconvert_passes")


@cache
def operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    """The operator functions of a format, by the name that the source side gives each operator.

    Args:
        format: the name of the format.
        direction: "read", "write", or "write_qoperator" (see formats/onnx/qoperator).
    """
    tables = _host()[0].hook.qconvert_operators(format=format, direction=direction)
    return {name: function for table in reversed(tables) for name, function in table.items()}


def format_named(name: str) -> Format:
    """The format called `name`; raises OptionError, listing the known ones, if there is none."""
    if name not in formats():
        raise OptionError(f"there is no format {name!r}", remedy=f"Known formats: {', '.join(sorted(formats()))}.")
    return formats()[name]


def format_of(path: Path) -> Format:
    """The format that a file's suffix stands for; raises OptionError if none does."""
    for candidate in formats().values():
        if path.suffix.lower() in candidate.suffixes:
            return candidate
    known = ", ".join(suffix for item in formats().values() for suffix in item.suffixes)
    raise OptionError(f"the suffix {path.suffix!r} belongs to no known format", file=str(path), remedy=f"Known suffixes: {known}.")


def target_named(name: str) -> Target:
    """The target called `name`; raises OptionError, listing the known ones, if there is none."""
    if name not in targets():
        raise OptionError(f"there is no target {name!r}", remedy=f"Known targets: {', '.join(sorted(targets()))}.")
    return targets()[name]


def pass_named(name: str) -> Pass:
    """The pass called `name`; raises OptionError, listing the known ones, if there is none."""
    if name not in passes():
        raise OptionError(f"there is no pass {name!r}", remedy=f"Known passes: {', '.join(sorted(passes()))}.")
    return passes()[name]
