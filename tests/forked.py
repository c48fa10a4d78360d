"""The command line in processes that are forked of one that has imported it: a command of the tests does not wait a second for imports.

`run` starts such a process once for the process of the tests, and asks it to fork for each command. What a command does to a process of
its own, such as imports, threads and exit codes, stays as it is; only imports that every command makes have been made.
"""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What most commands import.
_IMPORTED = (
    "numpy", "onnx", "typer", "rich.console", "flatbuffers", "safetensors", "qconvert.cli.app", "qconvert.conversion",
    "qconvert.checking.check", "qconvert.formats.tflite.reader", "qconvert.formats.onnx.reader", "qconvert.formats.onnx.writer",
)  # fmt: skip
_servers: dict[int, tuple[subprocess.Popen[bytes], socket.socket]] = {}


def run(
    words: Sequence[object], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `qconvert WORDS`; raise subprocess.TimeoutExpired where it takes too long.

    Args:
        words: of the command line, after the program's name.
        cwd: the folder that it runs in; by default that of the tests.
        env: its environment; by default that of the tests.
        timeout: in seconds.
    """
    asked = {"words": [str(word) for word in words], "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env)}
    asked["timeout"] = timeout
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(_server(), [b"."], [theirs.fileno(), out.fileno(), err.fileno()])
            ours.sendall(json.dumps(asked).encode() + b"\n")
            answer = ours.makefile().readline()
        if not answer.strip().lstrip("-").isdigit():
            raise subprocess.TimeoutExpired(asked["words"], timeout)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace").replace("\r\n", "\n"))
    return subprocess.CompletedProcess(asked["words"], int(answer), *texts)


def _server() -> socket.socket:
    if os.getpid() not in _servers:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        _servers[os.getpid()] = process, ours
    return _servers[os.getpid()][1]


def _serve(number: int) -> None:
    """Fork for each request until the process of the tests is gone. A child waits for the command, so that commands run side by side."""
    import importlib
    import signal

    for name in _IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=number) as requests:
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 3)
            if not message:
                return
            if os.fork() == 0:
                requests.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _watch(*descriptors)
            for descriptor in array.array("i", descriptors):
                os.close(descriptor)


def _watch(channel: int, out: int, err: int) -> None:
    """Run one command in a child of its own, and say its exit code, or that it took too long."""
    import signal
    import time

    with socket.socket(fileno=channel) as told:
        asked = json.loads(told.makefile().readline())
        child = os.fork()
        if child == 0:
            told.close()
            os.setpgid(0, 0)
            _command(asked, out, err)
        deadline = time.monotonic() + asked["timeout"]
        while time.monotonic() < deadline:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                told.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os._exit(0)
            time.sleep(0.01)
        os.killpg(child, signal.SIGKILL)
        told.sendall(b"timeout\n")
    os._exit(0)


def _command(asked: dict[str, object], out: int, err: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(str(asked["cwd"]))
    os.environ.clear()
    os.environ.update(asked["env"])  # type: ignore[arg-type]
    sys.argv[:] = ["qconvert", *asked["words"]]  # type: ignore[misc]
    code = 1
    try:
        from qconvert.__main__ import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
