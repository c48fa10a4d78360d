"""The command line: app (commands and options) and reports (how results are shown)."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Let the garbage collector of a process wait, best before the imports of the command line.

    Graphs are millions of small objects without cycles, which it would walk again and again: a tenth of a conversion, and of the imports. A
    conversion of MobileNet v2 makes 114,000 objects, the imports included: it ends before the first collection.
    """
    gc.set_threshold(200_000, 20, 50)
