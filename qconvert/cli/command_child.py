"""The program of the processes of a batch (batches/jobs.py): each runs one command of the command line, in so much memory at most.

A fork server runs it where the system has forks. It imports what conversions and checks need, once for all models; what may start threads,
plugins and the packages that run models, is left to the processes.
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from qconvert.garbage import collect_rarely

#: Rooms whose modules are imported when a model needs them.
_ROOMS = ("qconvert.checking", "qconvert.formats", "qconvert.passes")


def start() -> Callable[..., tuple[dict[str, Any], Iterable[Any]]]:
    """Return what runs a command: `arguments`, `folder` and `memory` in bytes give its exit `code` and `document`.

    The folder "" is that of the fork server, and 0 bytes are no limit.
    """
    with collect_rarely():
        from qconvert.cli.app import main

        for room in _ROOMS:
            for module in walk_packages(import_module(room).__path__, f"{room}."):
                import_module(module.name)
    gc.freeze()  # no process looks through what all of them have, which would copy it

    def answer(question: dict[str, Any], read: Callable[[str, list[int]], bytes]) -> tuple[dict[str, Any], Iterable[Any]]:
        if os.name == "posix":
            os.setsid()  # so that what the command starts ends with it
        threading.Thread(target=end_with_input, args=(read,), daemon=True).start()
        if question["folder"]:
            os.chdir(question["folder"])
        limit_memory(question["memory"])
        sys.argv = ["qconvert", *question["arguments"]]
        with collect_rarely(), redirect_stdout(io.StringIO()) as printed:
            try:
                main()
            except SystemExit as end:
                code = end.code
            except MemoryError:  # there was too little to print the error too
                return {"code": 2, "document": {"error": "out-of-memory"}}, ()
        return {"code": code, "document": json.loads(printed.getvalue())}, ()

    return answer


def limit_memory(count: int) -> None:
    """Limit the address space to so many bytes, or to the limit that there is, where the system has such limits; 0 for no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return
    if count:
        highest = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = count if highest == resource.RLIM_INFINITY else min(count, highest)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def end_with_input(read: Callable[[str, list[int]], bytes]) -> None:
    """End the process, and what it started, when nobody waits for its answer any more, also because the batch was killed."""
    while read("bytes", [1]):
        pass
    if os.name == "posix":
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
