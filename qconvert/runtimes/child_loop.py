"""The other end of runtimes/packages.py: it runs a program of its own, such as litert_child.py, for whoever writes to its input.

It imports nothing of qconvert. A program has a function start(), which imports what it needs and returns its function
answer(question, read): a message is a line of JSON, the question, and after it the bytes of arrays, which read(dtype, shape) gives one by
one, or read("bytes", [count]) as they are. The answer is a document and arrays, whose bytes follow it; that of an empty question is empty.
What is printed to standard output meanwhile goes to standard error, so that the answers stay readable.

With the number of a socket as its first argument it is a fork server: it starts the program once, and forks a process for each Child. It
answers no questions itself and so has no threads, which a fork would not copy.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from runpy import run_path
from typing import Any, BinaryIO

#: Seconds between two looks at a process that is to end by itself.
_PAUSE = 0.01
#: Bytes of a message to the fork server.
_MESSAGE = 64

#: (a question, what reads an array after it) -> the answer, and the arrays after it.
Answer = Callable[[dict[str, Any], Callable[[str, list[int]], Any]], tuple[dict[str, Any], Iterable[Any]]]


def main() -> None:
    """Answer the questions of standard input, or those of each process that is asked for."""
    number, program, *arguments = sys.argv[1:]
    start = run_path(program)["start"]
    if number:
        serve(socket.socket(fileno=int(number)), start(*arguments))
        return
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer_questions(sys.stdin.buffer, answers, start(*arguments))
    sys.stdout.flush()
    os._exit(0)  # the library of a runtime does not always exit


def answer_questions(given: BinaryIO, answers: BinaryIO, answer: Answer) -> None:
    """Answer questions until there are no more; what an answer raises is its "error"."""

    def read(dtype: str, shape: list[int]) -> Any:
        if dtype == "bytes":
            return given.read(shape[0])
        import numpy as np

        return np.frombuffer(given.read(math.prod(shape) * np.dtype(dtype).itemsize), dtype).reshape(shape)

    while line := given.readline():
        try:
            question = json.loads(line)
            found, arrays = answer(question, read) if question else ({}, ())
        except Exception as error:  # of whatever class: some runtimes have none of their own
            found, arrays = {"error": f"{type(error).__name__}: {error}"}, ()
        answers.write(json.dumps(found).encode() + b"\n")
        for value in arrays:
            answers.write(value.tobytes())
        answers.flush()


def serve(asked: socket.socket, answer: Answer) -> None:
    """Answer the messages of a fork server until its socket is closed.

    "fork", with the descriptors of a socket and of a file for printed text, gives the number of a new process. "end NUMBER SECONDS" gives
    the exit code of a process; it is killed after that time. "drop NUMBER" kills a process without an answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for answers
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE, 2)
        word, *numbers = message.split() or [b""]
        if not word:
            return
        if word == b"fork":
            number = os.fork()
            if number == 0:
                asked.close()
                os.dup2(descriptors[1], 1)
                os.dup2(descriptors[1], 2)
                with socket.socket(fileno=descriptors[0]) as pipe:
                    answer_questions(pipe.makefile("rb"), pipe.makefile("wb"), answer)
                os._exit(0)
            for descriptor in descriptors:
                os.close(descriptor)
            asked.sendall(b"%d" % number)
        elif word == b"end":
            asked.sendall(b"%d" % wait_or_kill(int(numbers[0]), float(numbers[1])))
        else:
            wait_or_kill(int(numbers[0]), 0.0)


def wait_or_kill(number: int, seconds: float) -> int:
    """Return the exit code of a child process, below 0 if a signal ended it; it is killed after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            os.kill(number, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
