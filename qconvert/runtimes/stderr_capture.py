"""Redirection of the process's standard error, to which native libraries print past Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from qconvert.files.temporary import temporary_file

__all__ = ["capture_stderr"]


@contextmanager
def capture_stderr() -> Iterator[list[str]]:
    """Redirect standard error to the yielded list, which is filled at the end of the block."""
    found: list[str] = []
    saved = os.dup(2)
    with temporary_file() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            sink.seek(0)
            found.append(sink.read().decode(errors="replace"))
