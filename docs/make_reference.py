"""Commands, formats, options, targets and passes as pages, from the code: docs/reference.

python docs/make_reference.py            writes the pages
python docs/make_reference.py --check    says whether they are up to date
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from make_operators import DOCS, cell, table, written

import qconvert.plugin
import qconvert.testing
from qconvert.cli.app import all_commands
from qconvert.cli.reports import formats_document, passes_document
from qconvert.plugins import Target, targets

MADE = "<!-- made by docs/make_reference.py; change the code, not this page -->"
REFERENCE = DOCS / "reference"
PYTHON = """\
What `import qconvert` gives. [Graphs in Python](../library.md) shows how the parts go together. Everything that a model, a file or an
option can cause is a `QConvertError`."""
PLUGIN = """\
What `from qconvert.plugin import …` gives besides [what qconvert itself has](python.md). [Plugins](../plugins.md) explains it with
examples."""
TESTING = """\
What `from qconvert.testing import …` gives: sample graphs, and assertions that hold a format, a pass or a target to what it promises."""
#: What click calls the sorts of values, in words.
_SORTS = {"str": "TEXT", "text": "TEXT", "int": "NUMBER", "integer": "NUMBER", "float": "NUMBER", "path": "PATH", "file": "PATH"}
_GRANULARITY = {"": "", "per_tensor": "per tensor", "per_axis": "per axis", "per_axis_signed": "per axis if signed"}


def _of(command: Any, sort: str) -> list[Any]:
    return [item for item in command.params if item.param_type_name == sort]


def _value(parameter: Any) -> str:
    """What stands after a flag, as its help has it; "" after one that takes nothing."""
    if parameter.is_flag:
        return ""
    if choices := getattr(parameter.type, "choices", ()):
        return " or ".join(map(str, choices))
    return parameter.metavar or _SORTS.get(parameter.type.name.split()[0], parameter.type.name)


def _default(parameter: Any) -> str:
    default = parameter.default
    return "" if default in (None, "", False, True, ()) or callable(default) or type(default).__module__ != "builtins" else str(default)


def _help(parameter: Any) -> str:
    return cell(getattr(parameter, "help", "") or "")


def _options(command: Any) -> Iterator[str]:
    rows = []
    for parameter in _of(command, "option"):
        flags = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = _value(parameter)
        rows.append([f"{flags} {cell(value)}".strip(), _help(parameter), cell(_default(parameter))])
    yield from table(("option", "what it says", "default"), rows)


def _usage(name: str, command: Any) -> str:
    arguments = _of(command, "argument")
    words = [item.human_readable_name.upper() if item.required else f"[{item.human_readable_name.upper()}]" for item in arguments]
    return " ".join([f"qconvert {name}", "[OPTIONS]", *words])


def _command(name: str, command: Any) -> Iterator[str]:
    """A command with its arguments and options; a group's commands each by itself."""
    if inner := getattr(command, "commands", {}):
        for part, found in inner.items():
            yield from _command(f"{name} {part}", found)
        return
    yield from ("", f"## {name}", "", cell(command.help or ""), "", "```text", _usage(name, command), "```", "")
    arguments = _of(command, "argument")
    if arguments:
        yield from (*table(("argument", "what it is"), ([f"`{a.human_readable_name.upper()}`", _help(a)] for a in arguments)), "")
    yield from _options(command)


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(all_commands())  # of click, or of typer's own copy of it
    formats = {one["name"] for one in formats_document()["formats"]}
    pairs = [name for name in group.commands if {*name.split("2", 1)} <= formats and "2" in name]
    yield from ("# Commands", "", MADE, "")
    yield "Every command has `--help`; `--json` prints for programs what the others print for people. Which code a command ends with is in"
    yield "[exit codes](../exit-codes.md), and [options](../options.md) says more of those that people use most."
    found = {name: command for name, command in group.commands.items() if name not in pairs}
    rows = [[f"[{name}](#{name})", cell(one.get_short_help_str(200))] for name, one in found.items() if not hasattr(one, "commands")]
    yield from ("", *table(("command", "what it does"), rows))
    yield from ("", "## qconvert", "", *_options(group))
    for name, command in found.items():
        yield from _command(name, command)
    yield from ("", "## One pair of formats", "")
    yield "Each is `convert` for one pair, with its options but `--from` and `--to` and those of other formats:"
    yield from ("", ", ".join(f"`{name}`" for name in pairs) + ".")


def _declared(options: Iterable[Mapping[str, Any]], owner: str) -> Iterator[list[str]]:
    for option in options:
        kind = " or ".join(f"`{choice}`" for choice in option["choices"] if choice != "") or option["type"]
        default = "" if option["default"] == "" else f"`{option['default']}`"
        yield [f"`{option['name']}`", kind, default, owner, cell(option["help"])]


def _formats() -> Iterator[str]:
    found = formats_document()
    yield from ("# Formats, runtimes and their options", "", MADE, "")
    yield "What `qconvert formats` lists. An option is a flag of the commands that read or write the format (`external_data` is"
    yield "`--external-data`), a keyword in Python, and `-O name=value` everywhere. What each format holds is in [formats](../formats.md)."
    yield ""
    rows = [
        [f"`{one['name']}`", " ".join(one["suffixes"]), *("yes" if one[can] else "" for can in ("reads", "writes")), cell(one["summary"])]
        for one in found["formats"]
    ]
    yield from table(("format", "suffixes", "reads", "writes", "what it is"), rows)
    yield from ("", "## Options of formats", "")
    header = ("option", "type", "default", "format", "what it says")
    verbs = {"read_options": "reading", "write_options": "writing"}
    sides = [(one[side], f"{one['name']}, {verb}") for one in found["formats"] for side, verb in verbs.items()]
    yield from table(header, (row for options, owner in sides for row in _declared(options, owner)))
    yield from ("", "## Runtimes", "", "What `--kernels` takes. The first of a runtime is its default.", "")
    yield from table(
        ("runtime", "formats", "`--kernels`", "what it is"),
        ([r["name"], ", ".join(r["formats"]), ", ".join(f"`{k}`" for k in r["kernels"]), cell(r["summary"])] for r in found["runtimes"]),
    )


def _passes() -> Iterator[str]:
    found = passes_document()
    using = {one["name"]: [target.name for target in targets().values() if one["name"] in target.passes] for one in found}
    yield from ("# Passes and their options", "", MADE, "")
    yield "What `qconvert passes` lists. [Passes](../passes.md) says what each does and what it costs; `--pass NAME` runs one by hand,"
    yield "and `qconvert passes model.tflite` says what those that are not exact would cost a model."
    yield ""
    everywhere = len(targets())
    rows = [
        [
            f"`{one['name']}`",
            "yes" if one["exact"] else "no",
            cell(one["summary"]),
            "all targets" if len(using[one["name"]]) == everywhere else ", ".join(using[one["name"]]) or "by hand, or in reading",
        ]
        for one in found
    ]
    yield from table(("pass", "exact", "what it changes", "run by"), rows)
    yield from ("", "## Options of passes", "")
    header = ("option", "type", "default", "pass", "what it says")
    yield from table(header, (row for one in found for row in _declared(one["options"], f"`{one['name']}`")))


def _types(names: Iterable[str]) -> str:
    return ", ".join(names)


def _target(one: Target) -> list[str]:
    stored = one.storage
    weights = " ".join(
        part for part in (stored.weights if stored.weights != "source" else "", _GRANULARITY[stored.weight_granularity]) if part
    )
    return [
        f"`{one.name}`",
        one.format,
        cell(one.summary),
        one.layout or "the source's",
        {"": "the source's", "source": "the source's"}.get(stored.activations, stored.activations),
        _types(stored.symmetric_activations),
        weights,
    ]


def _targets() -> Iterator[str]:
    yield from ("# Targets", "", MADE, "")
    yield "What `--target` takes, from the tables by which the audit, the passes and the refusals go."
    yield "[Which target](../tasks/choose-a-target.md) says which one is for your machine, and [writing a target](../targets.md) what the"
    yield "fields mean. An empty cell demands nothing."
    yield ""
    header = ("target", "format", "for", "layout", "8-bit activations", "zero point 0", "weights")
    yield from table(header, (_target(one) for one in targets().values()))
    for one in targets().values():
        yield from ("", f"## {one.name}", "", f"{cell(one.summary)}.", "")
        yield "Passes: " + ", ".join(f"`{name}`" for name in one.passes) + "."
        if one.kernels.missing:
            yield from ("", "Without a kernel: " + ", ".join(f"`{name}`" for name in sorted(one.kernels.missing)) + ".")
        if dict(one.kernels):
            yield from ("", *table(("operators with an integer kernel", "types of the data"), _kernels(one)))


def _kernels(one: Target) -> Iterator[list[str]]:
    groups: dict[str, list[str]] = {}
    for kind, types in one.kernels:
        groups.setdefault(_types(types), []).append(kind)
    yield from ([", ".join(sorted(names)), types] for types, names in sorted(groups.items()))


def _summary(found: Any) -> str:
    """The first line of what a function or a class says of itself."""
    return (inspect.getdoc(found) or "").split("\n")[0]


def _names(module: ModuleType, without: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """The functions and the classes that a module publishes."""
    names = [name for name in sorted(set(module.__all__) - {*without}, key=str.lower) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    return [n for n in names if inspect.isfunction(found[n])], [n for n in names if inspect.isclass(found[n])]


def _published(title: str, module: ModuleType, introduction: str, without: Iterable[str] = ()) -> Iterator[str]:
    """A page of what a module publishes: a table, and the docstrings, which mkdocstrings puts in the place of each `:::`."""
    yield from (f"# {title}", "", MADE, "", introduction)
    for heading, names in zip(("Functions", "Classes"), _names(module, without), strict=True):
        rows = ([f"`{name}`", cell(_summary(getattr(module, name)))] for name in names)
        yield from ("", f"## {heading}", "", *table(("name", "what it is"), rows))
        for name in names:
            found = getattr(module, name)
            yield from ("", f"::: {found.__module__}.{found.__qualname__}")  # a name may be a module's too


def pages() -> dict[Path, str]:
    """Every page with its text."""
    made = {
        "commands": _commands(),
        "formats": _formats(),
        "targets": _targets(),
        "passes": _passes(),
        "python": _published("Python", qconvert, PYTHON),
        "plugin": _published("For plugins", qconvert.plugin, PLUGIN, qconvert.__all__),
        "testing": _published("For tests of plugins", qconvert.testing, TESTING, (*qconvert.__all__, *qconvert.plugin.__all__)),
    }
    return {REFERENCE / f"{name}.md": "\n".join(line.rstrip() for line in lines) + "\n" for name, lines in made.items()}


if __name__ == "__main__":
    raise SystemExit(written(pages(), sys.argv[1:]))
