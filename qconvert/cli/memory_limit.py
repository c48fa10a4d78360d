"""`python -m qconvert.cli.memory_limit BYTES ARGUMENTS…` is `qconvert ARGUMENTS…` with so much address space at most; 0 for no limit.

It is for a process that waits for the command and holds its standard input open so long. When the input is closed, also because the
process was killed, the command exits too, since nobody wants its result any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Sets the limit, where the system has such limits, and runs the command."""
    limit = int(sys.argv.pop(1))
    threading.Thread(target=_end_with_input, daemon=True).start()
    if limit:
        try:
            import resource
        except ImportError:  # Windows
            pass
        else:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from qconvert.cli import collect_rarely

    collect_rarely()
    from qconvert.cli.app import main as command

    command()


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # with what it has started
    os._exit(1)


if __name__ == "__main__":
    main()
