"""When Python's garbage collector looks for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Let the garbage collector wait in the block: all of a conversion, and of the command line the imports too.

    Graphs are millions of small objects without cycles, which it would walk again and again: a tenth of the imports, and a sixth of the
    conversion of 20,000 operators. A conversion of MobileNet v2 makes 114,000 objects, the imports included: it ends before the first
    collection.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
