"""What a report may replace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from qconvert.errors import OptionError
from qconvert.files.names import access_errors, require_writable

__all__ = ["require_replaceable"]

#: Bytes of a file in which it says what made it.
_HEAD = 512


def require_replaceable(out: Path, suffixes: Sequence[str], mark: str, what: str, force: bool) -> bool:
    """Whether what stands at a place may be replaced: where `force` is on, or its beginning holds a mark of qconvert's.

    Args:
        out: the place.
        suffixes: one of which its name has, the usual one first.
        mark: what a file begins with, or nearly, that qconvert wrote.
        what: what is to be written, in words.
        force: whether any file may be replaced.

    Raises:
        OptionError: the name has none of the suffixes.
        QConvertError: the place cannot be written, or another file is there.
    """
    if out.suffix.lower() not in suffixes:
        raise OptionError(f"the suffix is {out.suffix!r}; {what} requires {suffixes[0]}", file=str(out), rule="unknown-suffix")
    if os.path.isfile(out):
        with access_errors(out), out.open("rb") as file:
            force = force or mark.encode() in file.read(_HEAD)
    require_writable(out, force=force)
    return force
