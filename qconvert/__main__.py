"""The entry point of the command line, as `qconvert` and as `python -m qconvert`.

Ctrl-C stops the program quietly from here on: the imports of the command line take 0.05 s, before app.main() waits for it.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Imports the command line and runs it. Where the signal is ignored, as in a background job of a shell, it stays so."""
    waits = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if waits:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from qconvert.garbage import collect_rarely

    with collect_rarely():
        from qconvert.cli.app import main as command

        try:
            if waits:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            command()
        except KeyboardInterrupt:
            raise SystemExit(130) from None


if __name__ == "__main__":
    main()
