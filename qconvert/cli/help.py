"""What `--help` prints: commands in groups, options under headings, rare ones with `--help-all` alone."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer.core

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: Asks for the help with every option that a command takes.
ALL = "--help-all"
#: The commands by what one wants to do, in the order of the help; commands of pairs such as tflite2onnx are not listed.
GROUPS: Mapping[str, Sequence[str]] = {
    "Convert": ("convert", "batch", "partition"),
    "Judge": ("check", "accuracy", "audit", "roundtrip"),
    "Look": ("inspect", "view", "diff", "run", "benchmark"),
    "Scales": ("calibrate", "apply", "extract-scales"),
    "Extend": ("formats", "passes", "plugins", "plugin"),
}
#: Heading -> the parameters under it; others stand under "Options".
_HEADINGS: Mapping[str, Sequence[str]] = {
    "Data": ("data", "mean", "std", "pixel_range", "resize", "crop", "colour", "layout", "samples", "seed", "mnn_config"),
    "Output": ("html", "explorer", "force", "quiet", "verbose", "json", "dry_run", "debug"),
    "Formats": ("source_format", "result_format"),
}
_HEADING_OF = {name: heading for heading, names in _HEADINGS.items() for name in names}

#: Whether this run prints rare options too; rewrite_help_all() sets it.
_all_shown = False


def rewrite_help_all(words: list[str]) -> None:
    """Turn `--help-all` on a command line into `--help`, and note that every option is asked for."""
    global _all_shown
    if ALL in words:
        _all_shown = True
        words[words.index(ALL)] = "--help"


def formats_on_line(words: Sequence[str]) -> tuple[str, str]:
    """Return the names of the formats of source and result that a command line says, each "" where it does not.

    --from and --to come first, then the suffixes of the words that are no options.
    """
    from qconvert.plugins import formats

    suffixes = {suffix: item.name for item in formats().values() for suffix in item.suffixes}
    named = {"--from": "", "--to": ""}
    found: list[str] = []
    for index, word in enumerate(words):
        option, is_assigned, value = word.partition("=")
        if option in named:
            named[option] = value if is_assigned else next(iter(words[index + 1 : index + 2]), "")
        elif not word.startswith("-"):
            suffix = word[word.rfind(".") :].lower() if "." in word else ""
            if suffix in suffixes:
                found.append(suffixes[suffix])
    source, result = (*found, "", "")[:2]
    return named["--from"] or source, named["--to"] or result


class GroupedCommands(typer.core.TyperGroup):
    """The program, whose commands stand in GROUPS."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Of a first word that is a file and no command, say which command was meant."""
        if args and args[0] not in self.commands and Path(args[0]).exists():
            meant = "convert" if len(args) > 1 and not args[1].startswith("-") else "inspect"
            ctx.fail(f"{args[0]!r} is a file, not a command. Did you mean: qconvert {meant} {shlex.join(args)}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for names in GROUPS.values() for name in names]
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else len(order))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        grouped = {name for names in GROUPS.values() for name in names}
        others = [name for name, item in self.commands.items() if name not in grouped and not item.hidden]
        for title, names in (*GROUPS.items(), ("Further", others)):
            rows = [(name, _first_sentence(self.commands[name].help or "")) for name in names if name in self.commands]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].split(": ")[0].rstrip(".")


class GroupedOptions(typer.core.TyperCommand):
    """A command, whose options stand under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        hidden = 0
        for item in self.get_params(ctx):
            if getattr(item, "hidden", False):
                hidden += 1
                if not _all_shown:
                    continue
                item.hidden = False  # type: ignore[attr-defined]
            record = item.get_help_record(ctx)
            if record is not None:
                heading = "Arguments" if item.param_type_name == "argument" else getattr(item, "rich_help_panel", None)
                sections.setdefault(heading or _HEADING_OF.get(str(item.name), "Options"), []).append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if hidden and not _all_shown:
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more options are rarely needed: qconvert {self.name} {ALL}")
