"""The program that runs ncnn in a process of its own: a damaged network may end it. It imports nothing of qconvert.

Lines of JSON come in and go out, with the bytes of arrays after them: {"load": [param, bin, threads]}, and {"run": [[name, sizes]…],
"give": [name…]} with the inputs, float32, after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, BinaryIO

import numpy as np


class _RefusedError(Exception):
    pass


def _load_network(param: str, weights: str, threads: int) -> Any:
    os.environ["OMP_NUM_THREADS"] = str(max(threads, 1))  # read at ncnn's start; further threads would spin
    import ncnn

    net = ncnn.Net()
    net.opt.use_vulkan_compute = False
    # Float values stay float32, as files and graphs have them.
    for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage", "use_bf16_packed"):
        with contextlib.suppress(AttributeError):  # of later versions
            setattr(net.opt, name, False)
    net.opt.num_threads = max(threads, 1)
    if net.load_param(param) != 0 or net.load_model(weights) != 0:
        raise _RefusedError("the files cannot be loaded")
    return net


def _run_network(net: Any, given: list[tuple[str, Any]], wanted: list[str]) -> list[Any]:
    import ncnn

    extractor = net.create_extractor()
    for name, data in given:
        if extractor.input(name, ncnn.Mat(data).clone()) != 0:  # the Mat itself borrows the memory
            raise _RefusedError(f"there is no input {name!r}")
    found = []
    for name in wanted:
        code, result = extractor.extract(name)
        if code != 0:
            raise _RefusedError(f"the output {name!r} cannot be computed (code {code})")
        found.append(np.array(result, np.float32))
    return found


def _answer_requests(source: BinaryIO, sink: BinaryIO) -> None:
    net: Any = None
    for line in source:
        question = json.loads(line)
        try:
            if "load" in question:
                net = _load_network(*question["load"])
                import ncnn

                answer, arrays = {"version": str(ncnn.__version__)}, list[Any]()
            else:
                given = []
                for name, sizes in question["run"]:
                    count = int(np.prod(sizes))
                    given.append((name, np.frombuffer(source.read(4 * count), np.float32).reshape(sizes).copy()))
                arrays = _run_network(net, given, question["give"])
                answer = {"arrays": [["float32", list(item.shape)] for item in arrays]}  # type: ignore[dict-item]
        except (_RefusedError, ImportError, RuntimeError, ValueError, TypeError) as error:
            answer, arrays = {"error": str(error)}, []
        sink.write(json.dumps(answer).encode() + b"\n")
        for item in arrays:
            sink.write(np.ascontiguousarray(item).tobytes())
        sink.flush()


if __name__ == "__main__":
    # ncnn prints warnings to stdout; the pipe is for answers only.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _answer_requests(sys.stdin.buffer, answers)
