"""How child processes ended, in words."""

from __future__ import annotations

import signal

__all__ = ["describe_exit", "quote_output"]

#: Lines of what a process printed that an error shows, the last ones.
_SHOWN = 6


def describe_exit(returncode: int) -> str:
    """In words, how a process ended."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"


def quote_output(printed: bytes) -> str:
    """The end of what a process printed, as the end of a sentence; "" if it printed nothing."""
    lines = [line.strip() for line in printed.decode(errors="replace").splitlines() if line.strip()]
    return f"; it printed: {' | '.join(lines[-_SHOWN:])}" if lines else ""
