"""The other end of runtimes/mnn.py: a program of its own, which loads a .mnn file in MNN and runs it for whoever writes to its input.

It imports nothing of qconvert. A message is a line of JSON and, behind it, the bytes of the arrays that it describes. What MNN prints to
standard output goes to standard error, so that the answers stay readable.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any, BinaryIO

TYPES = {"float": "float32", "double": "float64", "int": "int32", "int64": "int64", "uint8": "uint8"}


def main() -> None:
    """Loads the file that the first message names, then answers each message with what the model computes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    given = sys.stdin.buffer
    question = json.loads(given.readline())
    import MNN.expr as expr
    import MNN.nn as nn

    try:
        module = nn.load_module_from_file(question["path"], question["inputs"], question["outputs"])
        found = module.get_info()
        inputs = [
            [name, str(var.dtype).rpartition(".")[2], list(var.shape)]
            for name, var in zip(found["inputNames"], found["inputs"], strict=True)
        ]
        answer(answers, {"inputs": inputs, "outputs": list(found["outputNames"]), "version": str(found["version"])})
    except Exception as error:  # of whatever class: MNN has none of its own
        answer(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    while line := given.readline():
        question = json.loads(line)
        values = [read(given, item, expr) for item in question["inputs"]]
        try:
            results = module.forward(values)
            computed = [stored(var, expr) for var in (results if isinstance(results, (list, tuple)) else [results])]
        except Exception as error:  # likewise
            answer(answers, {"error": f"{type(error).__name__}: {error}"})
            continue
        answer(answers, {"outputs": [[value.dtype.name, list(value.shape)] for value in computed]}, computed)


def read(given: BinaryIO, item: list[Any], expr: Any) -> Any:
    """An array that a message describes, as MNN takes it; `packed` is MNN's own layout of inner tensors of convolutions."""
    import numpy as np

    dtype, shape, packed = item
    value = np.frombuffer(given.read(math.prod(shape) * np.dtype(dtype).itemsize), dtype).reshape(shape)
    kinds = {"float32": expr.float, "int32": expr.int, "uint8": expr.uint8, "float64": expr.double, "int64": expr.int64}
    var = expr.const(value, list(shape), expr.NCHW, kinds[dtype])
    return expr.convert(var, expr.NC4HW4) if packed else var


def stored(var: Any, expr: Any) -> Any:
    """A result as numpy has it, channels first."""
    import numpy as np

    if str(var.data_format).endswith("NC4HW4"):
        var = expr.convert(var, expr.NCHW)
    value = np.array(var.read())
    return np.ascontiguousarray(value.reshape(var.shape) if var.shape else value.reshape(()))


def answer(answers: BinaryIO, words: dict[str, Any], values: Any = ()) -> None:
    answers.write(json.dumps(words).encode() + b"\n")
    for value in values:
        answers.write(value.tobytes())
    answers.flush()


if __name__ == "__main__":
    main()
