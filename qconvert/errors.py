"""The errors that a user can cause. Each names the file, the operator or tensor, the reason and what to do.

The command line prints them on one screen and exits with code 2; `code` is stable, so that scripts can rely on it.
"""

from __future__ import annotations

__all__ = [
    "FileAccessError",
    "InternalError",
    "InvalidGraphError",
    "InvalidModelError",
    "MissingPackageError",
    "OptionError",
    "QConvertError",
    "RuntimeRefusedError",
    "UnsupportedError",
]


class QConvertError(Exception):
    """Base of every error that a model, a file or an option can cause.

    Args:
        reason: what is wrong, in one sentence.
        remedy: what the user can do about it.
        where: the operator or tensor concerned, by the name that the model gives it.
        file: the file concerned; filled in by whoever knows it.
    """

    code = "error"

    def __init__(self, reason: str, *, remedy: str = "", where: str = "", file: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.where = where
        self.file = file

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.where) if part)
        text = f"{place}: {self.reason}" if place else self.reason
        return f"{text}\n{self.remedy}" if self.remedy else text

    def to_dict(self) -> dict[str, str]:
        """The error as `--json` prints it."""
        fields = {"file": self.file, "where": self.where, "reason": self.reason, "remedy": self.remedy}
        return {"error": self.code, **{key: value for key, value in fields.items() if value}}


class FileAccessError(QConvertError):
    """A file cannot be read or written: absent, a directory, no permission, disk full, already there."""

    code = "file-access"


class InvalidModelError(QConvertError):
    """A model file is damaged or contradicts its format's specification."""

    code = "invalid-model"


class InvalidGraphError(QConvertError):
    """A canonical graph breaks one of its invariants."""

    code = "invalid-graph"


class UnsupportedError(QConvertError):
    """The model holds something that the conversion does not cover; all such things are listed at once."""

    code = "unsupported-op"


class OptionError(QConvertError):
    """An option, a format or a target that does not exist or does not fit the others."""

    code = "option"


class MissingPackageError(QConvertError):
    """An optional package that this operation needs is not installed."""

    code = "missing-package"


class RuntimeRefusedError(QConvertError):
    """A runtime did not load or run a model."""

    code = "runtime-refused"


class InternalError(QConvertError):
    """A fault of qconvert itself, such as a pass that changes what it says it keeps; exit code 3."""

    code = "internal"
