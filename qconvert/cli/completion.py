"""What Tab offers after an option."""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout

import typer

from qconvert.plugins import Option, declared_options, formats, passes, runtimes, targets

__all__ = [
    "answer_completion",
    "choices_of",
    "complete_words",
    "known_formats",
    "known_forms",
    "known_kernels",
    "known_methods",
    "known_pass_calls",
    "known_passes",
    "known_runtimes",
    "known_settings",
    "known_targets",
    "known_weights_methods",
    "words_of_line",
]  # fmt: skip

_Completed = list[tuple[str, str]]
#: bash splits words at these characters and completes the part after the last one (COMP_WORDBREAKS).
_BREAKS = "=:"


def answer_completion(app: typer.Typer) -> None:
    """Answers a shell that asks what may stand at the end of a command line.

    bash takes words apart, `--kernels litert:reference` into four, and completes what stands after the last break: here the words are put
    together again first, and what stands before the break is taken off the answers.
    """
    before = _rejoin_words() if os.environ.get("_QCONVERT_COMPLETE") == "complete_bash" else ""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            app(standalone_mode=False)
    finally:
        for line in said.getvalue().splitlines():
            if line != before or not before:
                typer.echo(line.removeprefix(before))


def words_of_line() -> list[str]:
    """The words after the program's name: of the command line, or of the line that a shell is to complete."""
    try:
        return shlex.split(os.environ["COMP_WORDS"])[1:] if "_QCONVERT_COMPLETE" in os.environ else sys.argv[1:]
    except (KeyError, ValueError):  # an open quotation
        return []


def _rejoin_words() -> str:
    """Writes the words again into the environment, and gives the part of the last one up to its last break."""
    try:
        words, place = shlex.split(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
    except (KeyError, ValueError):  # an open quotation, which typer knows how to read
        return ""
    words += [""] * (place + 1 - len(words))
    joined: list[str] = []
    found, is_open = 0, False
    for number, word in enumerate(words):
        is_break = bool(word) and not word.strip(_BREAKS)
        if joined and (is_break or is_open):
            joined[-1] += word
        else:
            joined.append(word)
        is_open = is_break
        if number == place:
            found = len(joined) - 1
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = shlex.join(joined), str(found)
    return joined[found][: max(joined[found].rfind(letter) for letter in _BREAKS) + 1]


def _beginning(incomplete: str, items: Iterable[tuple[str, str]]) -> _Completed:
    return [(name, help) for name, help in items if name.startswith(incomplete)]


def known_targets(context: typer.Context, incomplete: str) -> _Completed:
    """Targets with what they are; after a command such as tflite2onnx those of its result's format."""
    wanted = (context.info_name or "").partition("2")[2]
    found = [item for item in targets().values() if wanted not in formats() or item.format == wanted]
    return _beginning(incomplete, ((item.name, item.summary) for item in found))


def known_formats(incomplete: str) -> _Completed:
    """Formats with what they are."""
    return _beginning(incomplete, ((item.name, item.summary) for item in formats().values()))


def known_forms(incomplete: str) -> _Completed:
    """Formats that can be written and read, and with a colon after them their forms."""
    return _beginning(incomplete, _forms())


def _forms() -> Iterator[tuple[str, str]]:
    for item in formats().values():
        if item.read is None or item.write is None:
            continue
        yield item.name, item.summary
        forms = next((option.choices for option in item.write_options if option.name == "form"), ())
        yield from ((f"{item.name}:{form}", "") for form in forms)


def known_kernels(incomplete: str) -> _Completed:
    """Runtimes with the sets of their kernels."""
    return _beginning(incomplete, ((f"{item.name}:{kernels}", item.summary) for item in runtimes().values() for kernels in item.kernels))


def known_runtimes(incomplete: str) -> _Completed:
    """Runtimes that give out inner tensors, as calibration needs them."""
    return _beginning(incomplete, ((item.name, item.summary) for item in runtimes().values() if item.watch is not None))


def known_settings(incomplete: str) -> _Completed:
    """Names of options as -O takes them, and after the = what they may be."""
    name, equals, _ = incomplete.partition("=")
    option = declared_options().get(name.replace("-", "_"))
    if not equals:
        return _beginning(incomplete, ((f"{item.name}=", item.help) for item in declared_options().values()))
    values = () if option is None else ("true", "false") if option.type is bool else option.choices
    return _beginning(incomplete, ((f"{name}={value}", "") for value in values if value != ""))


def known_passes(incomplete: str) -> _Completed:
    """Passes with what they change, and "all"."""
    return _beginning(
        incomplete, [("all", "every pass that changes something"), *((item.name, item.summary) for item in passes().values())]
    )


def known_pass_calls(incomplete: str) -> _Completed:
    """Passes as --pass takes them, and after the colon their options."""
    name, colon, rest = incomplete.partition(":")
    if not colon:
        return _beginning(incomplete, ((item.name, item.summary) for item in passes().values()))
    before = incomplete[: len(incomplete) - len(rest.rpartition(",")[2])]
    options = passes()[name].options if name in passes() else ()
    return _beginning(incomplete, ((f"{before}{option.name}=", option.help) for option in options))


def known_methods(incomplete: str) -> _Completed:
    """Methods of calibration."""
    from qconvert.calibration import METHODS

    return _beginning(incomplete, ((name, "") for name in METHODS))


def known_weights_methods(incomplete: str) -> _Completed:
    """Methods that choose scales of weights."""
    from qconvert.calibration import WEIGHT_METHODS

    return _beginning(incomplete, ((name, "") for name in WEIGHT_METHODS))


def complete_words(*words: str) -> Callable[[str], _Completed]:
    """Completes one of some words."""

    def complete(incomplete: str) -> _Completed:
        return _beginning(incomplete, ((word, "") for word in words))

    return complete


def choices_of(option: Option) -> Callable[[str], _Completed]:
    """Completes the choices of a declared option."""
    return complete_words(*(str(choice) for choice in option.choices if choice != ""))
