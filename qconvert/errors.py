"""The errors that a user can cause. Each names the file, the operator or tensor, the reason and what to do.

The command line prints them on one screen and exits with their `exit_code` (docs/exit-codes.md); `code` is stable, so that scripts
can rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

#: A word or a line longer than this is cut in the middle where people read it; two thirds of what is kept stand in front.
_LONGEST_WORD, _LONGEST_LINE = 400, 4000


def printable(text: str, *, one_line: bool = False) -> str:
    """Text from a model file as a terminal may show it: control and format characters escaped as repr() does, nothing endless.

    Names in a file may hold escape sequences, which a terminal obeys, and a million characters, which hide the reason of an error.

    Args:
        text: lines that hold names of a file.
        one_line: whether line breaks are escaped too, so that a name cannot look like a line of its own.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() or (c == "\n" and not one_line) else c.encode("unicode_escape").decode() for c in text)
    if len(text) <= _LONGEST_WORD:
        return text
    text = re.sub(rf"\S{{{_LONGEST_WORD + 1},}}", lambda match: _shorten_text(match[0], _LONGEST_WORD), text)
    return "\n".join(_shorten_text(line, _LONGEST_LINE) for line in text.split("\n"))


def _without_flags(text: str) -> str:
    """A message in which options are called as in Python: --input-shape is input_shape, -O unroll is unroll. Commands in it stay."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [
        re.sub(r"(?<![\w-])(?:--([a-z][a-z0-9-]*)|-O (?=\w))", lambda one: (one[1] or "").replace("-", "_"), part) for part in parts[::2]
    ]
    return "".join(parts)


def _indent_lines(text: str) -> str:
    """A text whose lines but the first begin with blanks or "-": a name that a line breaks begins no line of its own."""
    first, *more = printable(text).split("\n")
    return "\n".join((first, *(line if line[:1] in " -" else f"  {line}" for line in more)))


def _shorten_text(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    kept = longest - 40
    return f"{text[: kept * 2 // 3]}…({len(text):,} characters)…{text[-(kept // 3) :]}"


def format_count(number: int, noun: str, words: str = "") -> str:
    """Return a number with its noun, and with what is said of these, as format_verb() does: "1 input", "2 inputs", "2 biases are float"."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}" + (f" {format_verb(number, words)}" if words else "")


#: Verbs in the plural, and in the singular where that is no added s.
_OF_ONE = {"are": "is", "have": "has"}


def format_verb(number: int, words: str) -> str:
    """Return words that begin with a verb in the plural as a number of things wants it: "is float" of 1, "are float" of others."""
    verb, *rest = words.split(" ", 1)
    return words if number != 1 else " ".join([_OF_ONE.get(verb, f"{verb}s"), *rest])


def format_counts(counts: Mapping[str, int], between: str = ", ") -> str:
    """How many there are of each, by name: "3 Add, 2 Mul"."""
    return between.join(f"{count} {name}" for name, count in sorted(counts.items()))


def format_some(words: Sequence[str], most: int) -> str:
    """Return the first words of a list, and how many others there are: "a, b and 3 more"."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def quote_some(names: Iterable[str], most: int) -> str:
    """Return the first names of tensors or the like in quotes, and how many others there are; see format_some()."""
    return format_some([*map(repr, names)], most)


class QConvertError(Exception):
    """Base of every error that a model, a file or an option can cause.

    Args:
        reason: what is wrong, in one sentence.
        remedy: what the user can do about it.
        where: the operator or tensor concerned, by the name that the model gives it.
        file: the file concerned; filled in by whoever knows it.
        rule: a stable name of what was broken, such as `unknown-tensor`: the wording of the reason may change, the rule does not.
    """

    code = "error"
    exit_code: ClassVar[int] = 2

    def __init__(self, reason: str, *, remedy: str = "", where: str = "", file: str = "", rule: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.where = where
        self.file = file
        self.rule = rule

    def __str__(self) -> str:
        """The error for who writes Python: options are called as keywords are."""
        return _without_flags(self.message)

    @property
    def message(self) -> str:
        """The error as the command line prints it: place and reason, and what to do."""
        places = [printable(part, one_line=True) for part in (self.file, self.where) if part]
        reason = _indent_lines(self.reason)
        return "\n".join(filter(None, (": ".join((*places, reason)), _indent_lines(self.remedy))))

    @property
    def sentence(self) -> str:
        """The message on one line, for reports that quote it."""
        return ". ".join(line.strip().rstrip(".:") for line in self.message.splitlines() if line.strip())

    def to_dict(self) -> dict[str, str]:
        """The error as `--json` prints it: names as they are, which JSON escapes."""
        fields = {"rule": self.rule, "file": self.file, "where": self.where, "reason": self.reason, "remedy": self.remedy}
        return {"error": self.code, **{key: value for key, value in fields.items() if value}}


@contextmanager
def name_file_in_errors(file: str | Path) -> Iterator[None]:
    """Say of errors in the block that name no file that they are about this one."""
    try:
        yield
    except QConvertError as error:
        error.file = error.file or str(file)
        raise


class FileAccessError(QConvertError):
    """A file cannot be read or written: absent, a directory, no permission, disk full, already there."""

    code = "file-access"


class MissingFileError(FileAccessError, FileNotFoundError):
    """A file that is to be read does not exist."""


class InvalidModelError(QConvertError):
    """A model file is damaged or contradicts its format's specification."""

    code = "invalid-model"


class WrongFormatError(InvalidModelError):
    """A file is of another format than the one that it is read as.

    Args:
        found: the name of the format that it is of.
    """

    code = "wrong-format"

    def __init__(self, reason: str, *, found: str, remedy: str = "", file: str = "", rule: str = "") -> None:
        super().__init__(reason, remedy=remedy, file=file, rule=rule)
        self.found = found


class InvalidGraphError(QConvertError):
    """A canonical graph breaks one of its invariants."""

    code = "invalid-graph"


class UnsupportedError(QConvertError):
    """The model holds something that the conversion does not cover; all such things are listed at once."""

    code = "unsupported-op"


def join_errors(errors: Sequence[QConvertError], *, remedy: str, rule: str) -> QConvertError:
    """Return the error of several operators, with the reason of each; that of one is itself."""
    if len(errors) == 1:
        return errors[0]
    return UnsupportedError("\n".join(f"{error.where}: {error.reason}" for error in errors), remedy=remedy, rule=rule)


class OptionError(QConvertError, ValueError):
    """An option, a format or a target that does not exist or does not fit the others."""

    code = "option"


def require_word(what: str, given: str, known: Iterable[str], rule: str = "unknown-word") -> None:
    """Refuse a word that is none of those which an option takes."""
    if given not in known:
        raise OptionError(f"{what} is {given!r}, which is unknown", remedy=f"Use one of {', '.join(known)}.", rule=rule)


class LossError(QConvertError):
    """A step that a target takes by itself, or a calibration, costs tensors more than is allowed; all such tensors are listed."""

    code = "loss-over-limit"


class MissingPackageError(QConvertError, ImportError):
    """An optional package that this operation needs is not installed."""

    code = "missing-package"


class RuntimeRefusedError(QConvertError):
    """A runtime did not load or run a model, or no runtime runs such files: whatever needed its outputs could not be judged."""

    code = "runtime-refused"
    exit_code = 4


class InternalError(QConvertError):
    """A fault of qconvert itself, such as a pass that changes what it says it keeps."""

    code = "internal"
    exit_code = 3
