"""What is done with a command line before any command is: plugins, defaults of options from qconvert.toml (it sets options alone, since a
folder of somebody's models may have one), and which command is put together at all.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin

import typer

from qconvert.errors import FileAccessError, OptionError, printable
from qconvert.plugins import declared_options, list_kernels

FILE = "qconvert.toml"
_LARGEST = 2**20
_OUTSIDE = "it names a file that is written"
#: Names of options that no file sets, and why.
_REFUSED = {
    "plugin": "plugins are code that runs",
    "scheduler": "a scheduler runs what it is given on other machines",
    "force": "it replaces files",
    "option": "each option has a name of its own here",
    **dict.fromkeys(("html", "model-explorer", "keep", "float", "scales", "output", "in"), _OUTSIDE),
    **dict.fromkeys(("version", "help", "config", "no-config", "debug"), "it is for one run"),
}
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}


class _Flag(NamedTuple):
    """An option of a command: the parameter, its flags (none where it is given with -O), its type, and whether it is repeatable."""

    parameter: str
    flags: tuple[str, ...]
    type: type
    many: bool


class Defaults(NamedTuple):
    """What a file sets for a command.

    Attributes:
        values: parameter -> value, as click's default_map takes them.
        words: `-O name=value` for options that have no flag, as further words of the command line.
        said: what of it holds, since the command line does not say it, as a line; "" if nothing does.
    """

    values: Mapping[str, Any]
    words: tuple[str, ...]
    said: str


def take_config_flag(words: list[str]) -> tuple[list[str], Path | None]:
    """The words of a command line without --config FILE and --no-config, and the file that sets defaults, if there is one.

    Raises:
        OptionError: --config has no file after it.
    """
    words, named = _take_flag(words, "--config", FILE)
    own = words[: words.index("--")] if "--" in words else words
    if "--no-config" in own:
        return [word for word in own if word != "--no-config"] + words[len(own) :], None
    return words, Path(named[-1]) if named else Path(FILE) if Path(FILE).exists() else None


def _take_flag(words: list[str], flag: str, example: str) -> tuple[list[str], list[str]]:
    """The words of a command line without a flag and its values, and these values.

    Raises:
        OptionError: the flag has no file after it.
    """
    kept, found = list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        name, is_assigned, value = word.partition("=")
        if word == "--":
            kept += [word, *rest]
        elif name == flag:
            found.append(value if is_assigned else next(rest, ""))
            if not found[-1]:
                raise OptionError(f"{flag} has no file after it", remedy=f"Write {flag} {example}.", rule="file-missing")
        else:
            kept.append(word)
    return kept, found


def defaults_for(file: Path, command: str, callbacks: Mapping[str, Callable[..., Any]], words: Sequence[str]) -> Defaults:
    """What a file sets for a command: its top level, [convert] for the commands of pairs such as tflite2onnx, and the command's own table.

    Args:
        file: of TOML.
        command: its name.
        callbacks: the function of each command, by its name.
        words: of the command line, which comes first.

    Raises:
        FileAccessError: the file cannot be read.
        OptionError: it is no TOML, sets what is no option, what no file may set, or a wrong value. The error names it.
    """
    found = _read(file)
    tables = {name: value for name, value in found.items() if isinstance(value, dict)}
    top = {name: value for name, value in found.items() if name not in tables}
    if strangers := [name for name in tables if name not in callbacks]:
        from qconvert.graph.names import quote_nearest  # without numpy until something is wrong

        raise OptionError(
            f"there is no command {quote_nearest(strangers, callbacks)}",
            file=str(file),
            remedy="A table is called as a command.",
            rule="unknown-command",
        )
    flags = {name: _flags(callbacks[name]) for name in (callbacks if top else {command, *tables})}
    own = flags[command]
    everywhere = {name: flag for known in flags.values() for name, flag in known.items()}
    common = {name: value for name, value in _check_table(top, file, "at its top", everywhere).items() if name in own}
    of_table = {table: _check_table(values, file, f"in [{table}]", flags[table]) for table, values in tables.items()}
    for table, found_there in of_table.items():  # those of other commands too: a file is right or wrong, whatever is called
        for name, value in found_there.items():
            _value(flags[table][name], name, value, file)
    parents = ["convert"] if "2" in command else []
    given = {**common, **{name: value for table in (*parents, command) for name, value in of_table.get(table, {}).items() if name in own}}
    values = {own[name].parameter: _value(own[name], name, value, file) for name, value in given.items() if own[name].flags}
    holding = {name: value for name, value in given.items() if not _is_stated(own[name], name, words)}
    settings = [word for name, value in holding.items() if not own[name].flags for word in ("-O", f"{name}={_text(value)}")]
    said = ", ".join(f"{name} = {_value_text(value)}" for name, value in holding.items())
    return Defaults(values, tuple(settings), f"{file} sets {said}" if said else "")


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        if not file.is_file():
            raise FileAccessError(
                "there is no such file" if not file.exists() else "is no plain file", file=str(file), rule="file-not-found"
            )
        with file.open("rb") as stream:
            content = stream.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise FileAccessError(f"cannot be read: {getattr(error, 'strerror', '') or error}", file=str(file), rule="not-readable") from error
    if len(content) > _LARGEST:
        raise OptionError(f"is larger than {_LARGEST:,} bytes", file=str(file), rule="file-too-large")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"is no TOML: {error}", file=str(file), rule="not-toml") from error


def _check_table(table: Mapping[str, Any], file: Path, where: str, known: Mapping[str, _Flag]) -> dict[str, Any]:
    """The options of a table by their names as flags have them; raises OptionError for what a file may not set, and for what is none."""
    found: dict[str, Any] = {}
    writing = {name.replace("_", "-") for name, option in declared_options().items() if option.scales}
    for written, value in table.items():
        name = written.replace("_", "-")
        reason = _OUTSIDE if name in writing else _REFUSED.get(name, "")
        if name == "kernels" and not reason:
            texts = value if isinstance(value, list) else [value]
            runs_code = any(runtime.runs_code for runtime, _ in list_kernels([text for text in texts if isinstance(text, str)]))
            reason = "they run code that is in files" if runs_code else ""
        if reason:
            raise OptionError(
                f"sets {written} {where}, which no file may: {reason}",
                file=str(file),
                remedy="Write it on the command line.",
                rule="option-not-allowed",
            )
        if name not in known:
            from qconvert.graph.names import quote_nearest

            raise OptionError(f"sets what is no option {where}: {quote_nearest([name], known)}", file=str(file), rule="unknown-option")
        if name in found:
            raise OptionError(f"sets {name} twice {where}", file=str(file), rule="duplicate-option")
        found[name] = value
    return found


def _value(flag: _Flag, name: str, value: Any, file: Path) -> Any:
    if flag.many:
        return [_one(flag, name, item, file) for item in (value if isinstance(value, list) else [value])]
    return _one(flag, name, value, file)


def _one(flag: _Flag, name: str, value: Any, file: Path) -> Any:
    taken, words = _KINDS.get(flag.type, ((str, int, float), "one text"))
    if not isinstance(value, taken) or (isinstance(value, bool) and flag.type is not bool):
        raise OptionError(f"{name} takes {words}, not {_value_text(value)}", file=str(file), rule="wrong-type")
    return value if flag.type in _KINDS else str(value)


def _value_text(value: Any) -> str:
    return _text(value) if isinstance(value, bool) else repr(value)[:80]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_stated(flag: _Flag, name: str, words: Sequence[str]) -> bool:
    """Whether the command line has the option."""
    if not flag.flags:
        before = ("", *words)
        return any(
            word.replace("_", "-").startswith((f"{name}=", f"--option={name}=", f"-O{name}="))
            for last, word in zip(before, words, strict=False)
            if last in ("-O", "--option") or word.startswith("-")
        )
    short = "".join(item[1] for item in flag.flags if not item.startswith("--"))
    for word in words:
        if word == "--":
            return False
        if word.partition("=")[0] in flag.flags:
            return True
        if short and word.startswith("-") and not word.startswith("--") and any(letter in short for letter in word[1:2]):
            return True
    return False


def _flags(callback: Callable[..., Any]) -> dict[str, _Flag]:
    """The options of a command, by their long names without dashes in front."""
    found = {}
    for item in inspect.signature(callback, eval_str=True).parameters.values():
        info = next((part for part in getattr(item.annotation, "__metadata__", ()) if isinstance(part, typer.models.OptionInfo)), None)
        if info is None:
            continue
        stated = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str) and word.startswith("-")]
        flags = tuple(part for word in stated for part in word.split("/"))
        kind, many = _kind(item.annotation.__origin__)
        name = next(word for word in flags if word.startswith("--")).removeprefix("--")
        found[name] = _Flag(item.name, flags, kind, many)
    if "option" in found:
        for option in (*declared_options().values(), *getattr(callback, "settings", tuple)()):
            found.setdefault(option.name.replace("_", "-"), _Flag("option", (), option.type, option.many))
    return found


def _kind(annotation: Any) -> tuple[type, bool]:
    """The type of an option's values, and whether there may be several."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(item for item in get_args(annotation) if item is not type(None))
    if get_origin(annotation) is list:
        return get_args(annotation)[0], True
    return annotation, False


def register_plugins() -> None:
    """Load what --plugin names, wherever it stands on the command line, and take it off.

    Raises:
        OptionError: --plugin has no file after it.
    """
    sys.argv[1:], files = _take_flag(sys.argv[1:], "--plugin", "FILE.py")
    if files:
        from qconvert.plugins.plugin_files import register_file

        for file in files:
            register_file(Path(file))


def apply_config(app: typer.Typer) -> dict[str, Any]:
    """The values of the called command from qconvert.toml, listed on standard error; --config is removed."""
    sys.argv[1:], file = take_config_flag(sys.argv[1:])
    words = sys.argv[1:]
    command = _find_command(words)
    callbacks = {str(item.name): item.callback for item in app.registered_commands if item.callback is not None}
    if file is None or command not in callbacks or not {"--help", "-h"}.isdisjoint(words):
        return {}
    found = defaults_for(file, command, callbacks, words)
    if found.said and {"--quiet", "-q"}.isdisjoint(words) and not found.values.get("quiet"):
        typer.echo(f"note: {printable(found.said, one_line=True)}", err=True)
    place = sys.argv.index(command) + 1
    sys.argv[place:place] = found.words
    return {command: found.values}


def _find_command(words: Sequence[str]) -> str:
    """The command that is called: the first word, since the program's own options before it end the program."""
    return next((word for word in words if word != "--"), "")


def _placeholder() -> None:
    """Stands for a command that is listed alone: its options need not be put together."""


def keep_called(app: typer.Typer, words: Sequence[str]) -> None:
    """Leave the called command alone in the program, or of all commands what a list of them shows: Typer makes each one at every start.

    Args:
        app: the program.
        words: of the command line.
    """
    called = [command for command in app.registered_commands if command.name == _find_command(words)]
    for command in () if called else app.registered_commands:
        command.help = command.help or inspect.getdoc(command.callback)
        command.callback = _placeholder
    if called:
        app.registered_commands, app.registered_groups = called, []
