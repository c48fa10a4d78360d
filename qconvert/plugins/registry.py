"""Formats, targets, passes, runtimes and operator functions by their names."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from qconvert.errors import OptionError, RuntimeRefusedError, name_file_in_errors
from qconvert.plugins.host import collect_items, operator_tables, plugin_cache
from qconvert.plugins.options import READING, Option, check_options, fill_defaults, parse_options
from qconvert.plugins.target import Derived, Target
from qconvert.plugins.types import Codegen, Format, Pass, Runtime

T = TypeVar("T")

#: The packages of plugins/, which are installed by themselves: what each adds, by the names and suffixes that are asked for.
_PLUGINS = {
    "qconvert-aimet": ("aimet", ".encodings"),
    "qconvert-ethos": ("ethos-u55", "ethos-u65", "ethos-u85"),
    "qconvert-gguf": ("gguf", ".gguf"),
    "qconvert-ncnn": ("ncnn-net", "ncnn", ".param"),
    "qconvert-openvino": ("openvino", ".xml"),
    "qconvert-qnn": ("qnn-htp",),
    "qconvert-tvm": ("tvm",),
}

#: Suffixes of models of TensorFlow and Keras, which have to become .tflite files first.
_OF_TENSORFLOW = (".h5", ".keras", ".pb")

if TYPE_CHECKING:
    from qconvert.encodings import Encodings
    from qconvert.graph import Graph
    from qconvert.kernels import Kernels


@plugin_cache
def formats() -> Mapping[str, Format]:
    """Every format, by name; those that read networks take the options for every format too."""
    return {name: _with_shared_options(item) for name, item in collect_items("qconvert_formats").items()}


def _with_shared_options(item: Format) -> Format:
    own = {option.name for option in item.read_options}
    shared = tuple(option for option in READING if option.name not in own)
    return replace(item, read_options=(*item.read_options, *shared)) if item.read is not None else item


@plugin_cache
def targets() -> Mapping[str, Target]:
    """Every target, by name. One that derives from a target that does not exist is left out; target_named() says so."""
    return {name: target for name, item in _unresolved_targets().items() if (target := _resolve_target(item)) is not None}


def _unresolved_targets() -> Mapping[str, Target | Derived]:
    return collect_items("qconvert_targets")


def _resolve_target(item: Target | Derived) -> Target | None:
    """The target itself; a derived one with all that the others before it changed. None if they lead nowhere or in a circle."""
    found: Target | Derived | None = item
    chain: list[Derived] = []
    while isinstance(found, Derived):
        if found in chain:
            return None
        chain.append(found)
        found = _unresolved_targets().get(found.base)
    for derived in reversed(chain):
        found = found.derive(**derived.changes) if found is not None else None
    return found


def passes() -> Mapping[str, Pass]:
    """Every pass, by name."""
    return collect_items("qconvert_passes")


@plugin_cache
def declared_options() -> Mapping[str, Option]:
    """Every option that a format or a pass declares, by name; where several share a name, the first."""
    found: dict[str, Option] = {}
    for item in formats().values():
        for option in (*item.write_options, *item.read_options):
            found.setdefault(option.name, option)
    for known in passes().values():
        for option in known.options:
            found.setdefault(option.name, option)
    return found


def runtimes() -> Mapping[str, Runtime]:
    """Every runtime, by name."""
    return collect_items("qconvert_runtimes")


def codegen_of(target: str) -> Codegen | None:
    """What makes artefacts for a target of that name; None if nothing does, so that files of its format are written."""
    return collect_items("qconvert_codegen").get(target)


def operators(format: str, direction: str) -> Mapping[str, Callable[..., Any]]:
    """The operator functions of a format, by the name that the source side gives each operator.

    Args:
        format: the name of the format.
        direction: "read", "write", or "write_qoperator" (see formats/onnx/qoperator).
    """
    return operator_tables(format, direction)


def format_named(name: str) -> Format:
    """The format called `name`; raises OptionError, listing the known ones, if there is none."""
    return _find_named("format", name, formats())


def format_of(path: Path) -> Format:
    """The format of models that a file's suffix stands for; raises OptionError if none or more than one does."""
    models = [item for item in formats().values() if item.content == "model"]
    fitting = [item for item in models if path.suffix.lower() in item.suffixes]
    if len(fitting) > 1:
        names = " and ".join(item.name for item in fitting)
        raise OptionError(
            f"the suffix {path.suffix} belongs to the formats {names}",
            file=str(path),
            remedy=f"Name the format (--from {fitting[0].name}, --to {fitting[-1].name}), or set QCONVERT_DISABLE_PLUGINS.",
            rule="ambiguous-suffix",
        )
    if fitting:
        return fitting[0]
    known = ", ".join(suffix for item in models for suffix in item.suffixes)
    scales = [item.name for item in formats().values() if item.content == "encodings" and path.suffix.lower() in item.suffixes]
    reason = f"belongs to files of scales ({', '.join(scales)}), which hold no model" if scales else "belongs to no known format"
    if not path.suffix:
        raise OptionError(
            "the name has no suffix that says the format",
            file=str(path),
            remedy=f"Name the format with --from or --to, or add one of {known}.",
            rule="unknown-suffix",
        )
    remedy = f"{_suggest_tool(path.suffix.lower())}Known suffixes: {known}."
    raise OptionError(f"the suffix {path.suffix!r} {reason}", file=str(path), remedy=remedy, rule="unknown-suffix")


def _suggest_tool(name: str) -> str:
    """Return a sentence that names what makes a file readable here, or the plugin that adds a format or target; "" without one."""
    if name in _OF_TENSORFLOW:
        return "TensorFlow's converter, tf.lite.TFLiteConverter, makes a .tflite file of it. "
    found = next((package for package, names in _PLUGINS.items() if name in names), "")
    return f"The plugin {found} adds it (`qconvert plugins` lists those that are installed). " if found else ""


def encodings_format_of(path: Path, *, is_read: bool) -> Format:
    """The format of encodings that a file is of: by its suffix, and where several share it by its content, or, if it is yet to be
    written, the first.

    Raises:
        FileAccessError: the file cannot be read.
        OptionError: no format has the suffix, or the file is of none of those that do.
    """
    known = [
        (item, item.encodings_suffixes or item.suffixes)
        for item in formats().values()
        if (item.read_encodings if is_read else item.write_encodings) is not None
    ]
    fitting = [item for item, suffixes in known if path.suffix.lower() in suffixes]
    if not fitting:
        suffixes = ", ".join(dict.fromkeys(suffix for _, suffixes in known for suffix in suffixes))
        reason = f"the suffix {path.suffix!r} belongs to no format of encodings"
        is_model = is_read and any(path.suffix.lower() in item.suffixes for item in formats().values() if item.read is not None)
        command = f"qconvert extract-scales {shlex.quote(str(path))} scales.json"
        model = f"Take the scales out of the model first: {command}. " if is_model else ""
        remedy = f"{model}{_suggest_tool(path.suffix.lower())}Suffixes of scales: {suffixes}."
        raise OptionError(reason, file=str(path), remedy=remedy, rule="unknown-suffix")
    if not is_read:
        return fitting[0]
    for candidate in fitting:
        if len(fitting) == 1 or candidate.holds is None or candidate.holds(path):  # the only one says itself what is wrong with the file
            return candidate
    names = ", ".join(item.name for item in fitting)
    raise OptionError(
        f"the file is not of any format of encodings with the suffix {path.suffix}: {names}", file=str(path), rule="not-this-format"
    )


def read_encodings(path: Path, format: str = "", options: Mapping[str, Any] = MappingProxyType({})) -> Encodings:
    """The encodings of a file.

    Args:
        path: the file.
        format: the name of a format of encodings; by default the file's suffix and content decide.
        options: of its reader.

    Raises:
        QConvertError: the file cannot be read, is damaged, or is of no such format. The error names it.
    """
    from qconvert.encodings import Encodings  # which comes with numpy

    reader = format_named(format) if format else encodings_format_of(path, is_read=True)
    if reader.read_encodings is None:
        raise OptionError(f"files of the format {reader.name} cannot be read as encodings", file=str(path), rule="not-encodings")
    given = check_options(options, reader.read_options, f"nothing that reads {reader.name}")
    try:
        with name_file_in_errors(path):
            found = reader.read_encodings(path, fill_defaults(given, reader.read_options))
    except OSError as error:  # a plugin opens the file itself
        from qconvert.files.names import unreadable  # which imports numpy

        raise unreadable(path, error) from error
    if not isinstance(found, Encodings):
        raise OptionError(
            f"the reader of {reader.name} returned {found!r}"[:200],
            file=str(path),
            remedy="Return qconvert.Encodings.",
            rule="wrong-result",
        )
    return found


def _find_named(what: str, name: str, known: Mapping[str, T]) -> T:
    """What bears a name; raises OptionError, with the nearest name and all, if nothing does."""
    if name in known:
        return known[name]
    from qconvert.graph.names import quote_nearest  # without numpy until something is wrong

    kinds = {"pass": "passes"}.get(what, f"{what}s")
    remedy = f"{_suggest_tool(name)}Known {kinds}: {', '.join(sorted(known))}."
    raise OptionError(f"there is no {what} {quote_nearest([name], known)}", remedy=remedy, rule=f"unknown-{what}")


def target_named(name: str) -> Target:
    """The target called `name`; raises OptionError, listing the known ones, if there is none."""
    item = _unresolved_targets().get(name)
    if isinstance(item, Derived) and name not in targets():
        seen: list[str] = []
        while isinstance(item, Derived) and item.base not in seen:
            seen.append(item.base)
            item = _unresolved_targets().get(item.base)
        why = "does not exist" if item is None else "derives from itself"
        raise OptionError(f"the target {name!r} derives from {seen[-1]!r}, which {why}", rule="unknown-target")
    return _find_named("target", name, targets())


def find_target(wanted: Target | Derived | str) -> Target:
    """Return a target that is given itself, by its name, or as one with changes of another; raises OptionError where there is none."""
    if isinstance(wanted, Derived):
        return target_named(wanted.base).derive(**wanted.changes)
    return target_named(wanted) if isinstance(wanted, str) else wanted


def options_named(text: str) -> dict[str, str]:
    """The options that the name of a pass brings, as texts: {"rounding": "mse"} of `power_of_two:rounding=mse`."""
    _, colon, options = text.partition(":")
    return parse_options(options.split(","), "--pass NAME:OPTION=VALUE") if colon else {}


def pass_named(text: str) -> Pass:
    """Return the pass that a user names, with the options that the name brings: `power_of_two` or `power_of_two:rounding=mse,edges=change`.

    Raises:
        OptionError: there is no such pass, it has no such option, or the value is wrong; the known ones are listed.
    """
    found = _find_named("pass", text.partition(":")[0], passes())
    given = check_options(options_named(text), found.options, f"nothing in the pass {found.name}")
    if not given:
        return found
    options = tuple(replace(item, by_hand=given[item.name]) if item.name in given else item for item in found.options)
    return replace(found, options=options)


def kernels_named(name: str) -> tuple[Runtime, str]:
    """The runtime and the set of its kernels that `name` stands for, such as "litert:reference"; a runtime alone means its first set.

    Raises:
        OptionError: there is no such runtime, or it has no such kernels; the known ones are listed.
    """
    title, _, wanted = name.partition(":")
    runtime = runtimes().get(title)
    if runtime is not None and (not wanted or wanted in runtime.kernels):
        return runtime, wanted or runtime.kernels[0]
    from qconvert.graph.names import quote_nearest  # without numpy until something is wrong

    known = [f"{item.name}:{kernels}" for item in runtimes().values() for kernels in item.kernels]
    raise OptionError(
        f"there are no kernels {quote_nearest([name], known)}",
        remedy=f"{_suggest_tool(title)}Known kernels: {', '.join(known)}.",
        rule="unknown-kernels",
    )


def kernels_of_source(graph: Graph) -> tuple[Runtime, Kernels] | None:
    """The runtime that the source of a graph was made for, with the rows of its kernels (metadata SOURCE_KERNELS); None if it is none that
    is known."""
    from qconvert.graph.metadata import SOURCE_KERNELS  # which comes with numpy

    title, _, kernels = graph.metadata.get(SOURCE_KERNELS, "").partition(":")
    runtime = runtimes().get(title)
    return (runtime, runtime.rows(kernels)) if runtime is not None and kernels in runtime.kernels else None


def list_kernels(kernels: str | Sequence[str]) -> list[tuple[Runtime, str]]:
    """What kernels_named() says of names separated by commas or in a list, each once."""
    names = [part.strip() for item in ([kernels] if isinstance(kernels, str) else kernels) for part in item.split(",")]
    return list({f"{runtime.name}:{chosen}": (runtime, chosen) for runtime, chosen in map(kernels_named, filter(None, names))}.values())


def runtime_of(format: str, kernels: str | Sequence[str] = ()) -> tuple[Runtime, str]:
    """What runs files of a format: the runtime and its kernels.

    Args:
        format: the format's name.
        kernels: those wanted, as in kernels_named(), separated by commas or in a list; those of other formats say nothing of this one.
            Where none are of this format, the first runtime's first.

    Raises:
        OptionError: no runtime has such kernels, or two are named for the format.
        RuntimeRefusedError: none loads the format.
    """
    listed = list_kernels(kernels)
    fitting = [item for item in listed if format in item[0].formats]
    if len(fitting) > 1:
        both = " and ".join(f"{runtime.name}:{chosen}" for runtime, chosen in fitting)
        raise OptionError(f"{both} both run {format} files", remedy="Name one of them.", rule="ambiguous-kernels")
    for runtime in runtimes().values():
        if not fitting and format in runtime.formats:
            return _with_others(runtime, runtime.kernels[0], listed)
    if not fitting:
        raise RuntimeRefusedError(
            f"no runtime runs {format} files", remedy="Convert the model to .onnx first, and check that file.", rule="no-runtime"
        )
    return _with_others(*fitting[0], listed)


def runtimes_of_target(target: Target) -> list[str]:
    """Names of the runtimes that are called as a target, or as its family, as tensorrt is of tensorrt-rtx; the closer one first."""
    return [name for name in dict.fromkeys((target.name, target.name.partition("-")[0])) if name in runtimes()]


def _with_others(runtime: Runtime, kernels: str, listed: Sequence[tuple[Runtime, str]]) -> tuple[Runtime, str]:
    """A runtime and its kernels, followed by the user's kernels of other runtimes where these run its files' parts."""
    others = [f"{other.name}:{chosen}" for other, chosen in listed if other is not runtime] if runtime.by_others else []
    return runtime, ",".join((kernels, *others))
