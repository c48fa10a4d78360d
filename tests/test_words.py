"""What users read is in the field's words: help, summaries, errors, notes and names of the public API (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer

import qconvert
from qconvert import errors
from qconvert.cli.app import all_commands
from qconvert.plugins import formats, passes, runtimes, targets
from qconvert.plugins.options import READING

ROOT = Path(__file__).parent.parent / "qconvert"
#: Words of this project alone, which nobody outside speaks, and what says the same.
STRANGE = {
    r"\bbeside\b": "next to, compared with",
    r"\bbehind\b": "after",
    r"\bin front of\b": "before",
    r"\banew\b": "again, rebuilt",
    r"\bspel(l|ls|led|ling|t)\b": "decompose, write",
    r"\breal values?\b": "floats, dequantized values",
    r"\b(re)?grids?\b": "quantization, scale and zero point",
    r"\breach(es)?\b": "tolerance",
    r"\blikeliest\b": "optimal",
    r"\bopen sizes?\b": "dynamic dimensions",
}
#: Errors, notes and warnings are arguments of these, or texts that begin so.
_SAID = re.compile(r"^(note|warning|cost|problem): ")
_RAISED = re.compile(r"(Error|invalid|unsupported|refused)$")


def _strange(text: str) -> list[str]:
    return [f"{found[0]!r} in: {text[:120]} ({better})" for word, better in STRANGE.items() if (found := re.search(word, text, re.I))]


def _help() -> Iterator[str]:
    group = typer.main.get_command(all_commands())
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        yield f"{name}: {command.help or ''}"
        yield from (f"{name} {item.name}: {getattr(item, 'help', '') or ''}" for item in command.params)


def test_help_and_summaries() -> None:
    texts = list(_help())
    for table in (formats(), passes(), targets(), runtimes()):
        texts += [f"{name}: {item.summary}" for name, item in table.items()]  # type: ignore[attr-defined]
    options = [option for item in passes().values() for option in item.options]
    options += [option for item in formats().values() for option in (*item.read_options, *item.write_options)]
    texts += [f"{option.name}: {option.help}" for option in (*options, *READING)]
    assert len(texts) > 300
    assert [line for text in texts for line in _strange(text)] == []


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of errors, remedies and notes in a file, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and _RAISED.search(ast.unparse(node.func)):
            parts = [part for item in (*node.args, *(word.value for word in node.keywords)) for part in ast.walk(item)]
            yield from ((node.lineno, part.value) for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _SAID.match(node.value):
            yield node.lineno, node.value


def test_messages() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, said in _messages(path)
        for text in _strange(said)
    ]
    assert found == []


def test_errors_state_the_rule_that_is_broken() -> None:
    """Scripts and tests rely on it, whatever the words are (docs/decisions/options-and-errors.md)."""
    kinds = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, errors.QConvertError)}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds
        if not any(word.arg in ("rule", None) for word in node.keywords)
    ]
    assert found == []


def test_public_names() -> None:
    assert [line for name in qconvert.__all__ for line in _strange(name.replace("_", " "))] == []
