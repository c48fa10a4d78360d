"""What native libraries print to the process's standard error, past Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from qconvert.files.temporary import temporary_file

__all__ = ["captured"]


@contextmanager
def captured() -> Iterator[list[str]]:
    """Standard error goes to the list, filled when the block ends, instead of the terminal."""
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
