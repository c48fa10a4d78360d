"""When Python's garbage collector looks for cycles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = (200_000, 20, 50)
_LOCK = threading.Lock()
#: The thresholds before each of the blocks that run, of all threads; the first are those of whoever called.
_BEFORE: list[tuple[int, int, int]] = []


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Let the garbage collector wait in the block: all of a conversion, and of the command line the imports too.

    Graphs are millions of small objects without cycles, which it would walk again and again: a tenth of the imports, and a sixth of the
    conversion of 20,000 operators. A conversion of MobileNet v2 makes 114,000 objects, the imports included: it ends before the first
    collection. A collector that is off, or waits longer, stays so.
    """
    with _LOCK:
        _BEFORE.append(gc.get_threshold())
        if 0 < _BEFORE[0][0] < _RARELY[0]:
            gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        with _LOCK:
            if len(_BEFORE) == 1:
                gc.set_threshold(*_BEFORE[0])
            _BEFORE.pop()
