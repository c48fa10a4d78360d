"""The entry point of the command line, as `qconvert` and as `python -m qconvert`.

Ctrl-C stops the program quietly from here on: the imports of the command line take 0.05 s, before app.main() waits for it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading


def main() -> None:
    """Import the command line, run it and end the process. Where the signal is ignored, as in a background job of a shell, it stays so."""
    if sys.stderr is None:  # closed by whoever started the program: another file would get its number
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
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
        except SystemExit as end:
            _end_process(end.code)
            raise


def _end_process(code: object) -> None:
    """End the process without freeing its objects, which takes a twentieth of a conversion.

    The interpreter ends it where a thread is waited for or the output cannot be written: it says what is lost. So it does where a profiler
    or a debugger runs the program, which says afterwards what it saw.
    """
    waited_for = [item for item in threading.enumerate() if not item.daemon]  # tqdm, which PyTorch uses, leaves a daemon
    if not isinstance(code, int) or waited_for != [threading.main_thread()] or _is_observed():
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            print(end="", file=stream, flush=True)
    except (OSError, ValueError):
        return
    os._exit(code)


def _is_observed() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    tools = map(monitoring.get_tool, range(6)) if monitoring else ()
    return any((sys.gettrace(), sys.getprofile(), *tools))


if __name__ == "__main__":
    main()
