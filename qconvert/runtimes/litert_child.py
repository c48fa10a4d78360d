"""The other end of runtimes/litert.py: a program of its own, which runs .tflite files in LiteRT for whoever writes to its input.

It imports nothing of qconvert. A message is a line of JSON and, after it, the bytes of what it describes. With the number of a socket as
its argument, the program is a fork server (runtimes/packages.py): it imports LiteRT once, and forks a process for each file. It runs no
file itself and so has no threads, which a fork would not copy.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

#: Seconds between two looks at a process that is to end by itself.
_PAUSE = 0.01
#: Bytes of a message to the fork server.
_MESSAGE = 64


def main() -> None:
    """Answers the messages of standard input, or those of each process that is asked for."""
    import ai_edge_litert.interpreter as litert
    import ml_dtypes  # noqa: F401 - which tells numpy of bfloat16 and 4 bits

    if len(sys.argv) > 1:
        serve(socket.socket(fileno=int(sys.argv[1])), litert)
    else:
        answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        answer(sys.stdin.buffer, answers, litert)


def serve(asked: socket.socket, litert: Any) -> None:
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
                    answer(pipe.makefile("rb"), pipe.makefile("wb"), litert)
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


def answer(given: BinaryIO, answers: BinaryIO, litert: Any) -> None:
    """Answer each message: load a file, run it, time it, set or read its variables, list its nodes."""
    model = Model(litert)
    while line := given.readline():
        question = json.loads(line)
        values: list[Any] = []  # functions that return the values: one value is in memory at a time
        try:
            if "load" in question:
                found = model.load(given.read(question["load"]), **question["with"])
            elif "run" in question:
                values = model.run([(index, read(given, dtype, shape)) for index, dtype, shape in question["run"]])
                found = {"values": [describe_array(value()) for value in values]}
            elif "time" in question:
                found = model.time_runs([(index, read(given, dtype, shape)) for index, dtype, shape in question["time"]], question["times"])
            elif "begin" in question:
                for index, dtype, shape in question["begin"]:
                    model.interpreter.set_tensor(index, read(given, dtype, shape))
                found = {}
            elif "kept" in question:
                values = [partial(model.interpreter.get_tensor, index) for index in question["kept"]]
                found = {"values": [describe_array(value()) for value in values]}
            else:
                found = {"nodes": [describe_node(item) for item in model.interpreter._get_ops_details()]}
        except (ValueError, RuntimeError) as error:
            found, values = {"refused": str(error)}, []
        answers.write(json.dumps(found).encode() + b"\n")
        for value in values:
            answers.write(value().tobytes())
        answers.flush()


class Model:
    """A file in LiteRT's interpreter."""

    def __init__(self, litert: Any) -> None:
        self.litert = litert
        self.content = b""
        forget_peak()
        self.held = process_memory()

    def load(self, content: bytes, kernels: str, threads: int) -> dict[str, Any]:
        """Load a file; without content, load the last file again, since only a new interpreter resets resource variables to their initial
        values. Planning may fail with the placeholder sizes of dynamic dimensions, and succeed with the sizes of a run."""
        self.content = content or self.content
        resolver = getattr(self.litert.OpResolverType, kernels)
        self.interpreter = self.litert.Interpreter(model_content=self.content, experimental_op_resolver_type=resolver, num_threads=threads)
        self.inputs = self.interpreter.get_input_details()
        try:
            self.interpreter.allocate_tensors()
        except RuntimeError:
            if all(size >= 0 for item in self.inputs for size in item["shape_signature"]):
                raise
        self.inputs, self.outputs = self.interpreter.get_input_details(), self.interpreter.get_output_details()
        return {
            "inputs": [describe_tensor(item) for item in self.inputs],
            "outputs": [describe_tensor(item) for item in self.outputs],
            "tensors": [describe_tensor(item) for item in self.interpreter.get_tensor_details()],
        }

    def run(self, values: list[tuple[int, Any]]) -> list[Any]:
        """Run once with inputs by tensor number; return a function for each output, in the model's order."""
        stated = {item["index"]: tuple(item["shape"]) for item in self.inputs}
        resized = [(index, value.shape) for index, value in values if tuple(value.shape) != stated[index]]
        for index, shape in resized:
            self.interpreter.resize_tensor_input(index, shape)
        if resized:
            self.interpreter.allocate_tensors()
            self.inputs = self.interpreter.get_input_details()
        for index, value in values:
            self.interpreter.set_tensor(index, value)
        self.interpreter.invoke()
        return [partial(self.read, item) for item in self.outputs]

    def time_runs(self, values: list[tuple[int, Any]], times: int) -> dict[str, Any]:
        """Runs so many times; see qconvert/plugins/types.py, Timing."""
        self.run(values)
        wall, processor = [], []
        for _ in range(times):
            began = time.perf_counter(), time.process_time()
            self.interpreter.invoke()
            wall.append(time.perf_counter() - began[0])
            processor.append(time.process_time() - began[1])
        return {"wall": wall, "processor": processor, "memory": max(0, process_memory(at_most=True) - self.held)}

    def read(self, item: Any) -> Any:
        """Return the value of a tensor; LiteRT returns none for some empty tensors."""
        import numpy as np

        try:
            return self.interpreter.get_tensor(item["index"])
        except ValueError as error:
            item = next(now for now in self.interpreter.get_output_details() if now["index"] == item["index"])
            if 0 not in item["shape"]:
                raise ValueError(f"the tensor {item['name']!r} is not given: {error}") from error
            return np.zeros(item["shape"], item["dtype"])


def process_memory(at_most: bool = False) -> int:
    """Return the resident memory of this process in bytes, or its peak since forget_peak(); 0 if unknown (proc(5), status)."""
    word = "VmHWM:" if at_most else "VmRSS:"
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith(word)), 0)
    except OSError:
        return 0


def forget_peak() -> None:
    """Lets held(at_most=True) count from now on (proc(5), clear_refs)."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def describe_tensor(item: Any) -> list[Any]:
    """Return number, name, type and shape of a tensor."""
    import numpy as np

    return [int(item["index"]), item["name"], np.dtype(item["dtype"]).name, [int(size) for size in item["shape"]]]


def describe_node(item: Any) -> dict[str, Any]:
    """Return index, name, tensors and types of a node after delegation."""
    import numpy as np

    numbers = {key: [int(index) for index in item[key]] for key in ("inputs", "outputs")}
    types = {key: [np.dtype(kind).kind for kind in item[key]] for key in ("operand_types", "result_types")}
    return {"index": int(item["index"]), "op_name": item["op_name"], **numbers, **types}


def describe_array(value: Any) -> list[Any]:
    """Return type and shape of an array; texts have the length of the longest."""
    return [value.dtype.str if value.dtype.kind == "S" else value.dtype.name, list(value.shape)]


def read(given: BinaryIO, dtype: str, shape: list[int]) -> Any:
    """An array that a message describes."""
    import numpy as np

    return np.frombuffer(given.read(math.prod(shape) * np.dtype(dtype).itemsize), dtype).reshape(shape)


if __name__ == "__main__":
    main()
