"""The other end of runtimes/mnn.py: a program of its own, which loads .mnn files in MNN and runs them for whoever writes to its input.

It imports nothing of qconvert. A message is a line of JSON and, after it, the bytes of the arrays that it describes. What MNN prints to
standard output goes to standard error, so that the answers stay readable.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any, BinaryIO


def main() -> None:
    """Answer each message: "load" with the inputs and outputs of a file or a part of it, "run" with the results, "time" with the times of
    runs."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    given = sys.stdin.buffer
    import MNN.expr as expr
    import MNN.nn as nn

    loaded: list[Any] = []
    while line := given.readline():
        question = json.loads(line)
        values = [read(given, item, expr) for item in question.get("values", ())]
        computed: list[Any] = []
        try:
            if "load" in question:
                found = load_model(nn, question["load"], loaded)
            elif "time" in question:
                found = time_runs(loaded[question["time"]], values, question["times"])
            else:
                results = loaded[question["run"]].forward(values)
                computed = [to_numpy(var, expr) for var in (results if isinstance(results, (list, tuple)) else [results])]
                found = {"values": [[value.dtype.name, list(value.shape)] for value in computed]}
        except Exception as error:  # of whatever class: MNN has none of its own
            found, computed = {"error": f"{type(error).__name__}: {error}"}, []
        answers.write(json.dumps(found).encode() + b"\n")
        for value in computed:
            answers.write(value.tobytes())
        answers.flush()


def load_model(nn: Any, question: dict[str, Any], loaded: list[Any]) -> dict[str, Any]:
    """Load a file, cut at the tensors that the message names; return its inputs and outputs."""
    module = nn.load_module_from_file(question["path"], question["inputs"], question["outputs"])
    found = module.get_info()
    named = zip(found["inputNames"], found["inputs"], strict=True)
    inputs = [[name, str(var.dtype).rpartition(".")[2], list(var.shape)] for name, var in named]
    loaded.append(module)
    return {"model": len(loaded) - 1, "inputs": inputs, "outputs": list(found["outputNames"]), "version": str(found["version"])}


def time_runs(module: Any, values: list[Any], times: int) -> dict[str, Any]:
    """Runs so many times; see qconvert/plugins/types.py, Timing. MNN computes when a result is read."""
    wall, processor = [], []
    for _ in range(times):
        began = time.perf_counter(), time.process_time()
        results = module.forward(values)
        for var in results if isinstance(results, (list, tuple)) else [results]:
            var.read()
        wall.append(time.perf_counter() - began[0])
        processor.append(time.process_time() - began[1])
    return {"wall": wall, "processor": processor}


def read(given: BinaryIO, item: list[Any], expr: Any) -> Any:
    """An array that a message describes, as MNN takes it: `packed` is the layout of the tensors between a network's spatial operators."""
    import numpy as np

    dtype, shape, packed = item
    value = np.frombuffer(given.read(math.prod(shape) * np.dtype(dtype).itemsize), dtype).reshape(shape)
    kinds = {"float32": expr.float, "int32": expr.int, "uint8": expr.uint8, "float64": expr.double, "int64": expr.int64}
    var = expr.const(value, list(shape), expr.NCHW, kinds[dtype])
    return expr.convert(var, expr.NC4HW4) if packed else var


def to_numpy(var: Any, expr: Any) -> Any:
    """Return a result as a numpy array, channels first."""
    import numpy as np

    if str(var.data_format).endswith("NC4HW4"):
        var = expr.convert(var, expr.NCHW)
    value = np.array(var.read())
    return np.ascontiguousarray(value.reshape(var.shape) if var.shape else value.reshape(()))


if __name__ == "__main__":
    main()
