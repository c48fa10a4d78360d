"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes
import gc

__all__ = ["release_memory"]


def release_memory() -> None:
    """Gives back what was freed. glibc keeps it in small pieces otherwise, which the large arrays after do not fit into: of MobileNet v2,
    whose protobuf messages come and go before it runs, half as much again as is in use."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        pass
