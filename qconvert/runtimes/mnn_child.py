"""The other end of runtimes/mnn.py: the program that loads .mnn files in MNN and runs them (runtimes/child_loop.py runs it). It imports
nothing of qconvert.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def start() -> Callable[..., tuple[dict[str, Any], list[Any]]]:
    """Return what answers "load" with the inputs and outputs of a file or a part of it, "run" with the results, "time" with the times of
    runs."""
    import MNN.expr as expr
    import MNN.nn as nn

    loaded: list[Any] = []

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], list[Any]]:
        if "load" in question:
            return load_model(nn, question["load"], loaded), []
        values = [to_variable(read(dtype, shape), packed, expr) for dtype, shape, packed in question["values"]]
        if "time" in question:
            return time_runs(loaded[question["time"]], values, question["times"]), []
        results = loaded[question["run"]].forward(values)
        computed = [to_numpy(var, expr) for var in (results if isinstance(results, (list, tuple)) else [results])]
        return {"values": [[value.dtype.name, list(value.shape)] for value in computed]}, computed

    return answer


def load_model(nn: Any, question: dict[str, Any], loaded: list[Any]) -> dict[str, Any]:
    """Load a file, cut at the tensors that the message names; return its inputs and outputs."""
    settings = {"runtime_manager": nn.create_runtime_manager(({"numThread": question["threads"]},))} if question["threads"] else {}
    module = nn.load_module_from_file(question["path"], question["inputs"], question["outputs"], **settings)
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


def to_variable(value: Any, packed: bool, expr: Any) -> Any:
    """Return an array as MNN takes it: `packed` is the layout of the tensors between a network's spatial operators."""
    kinds = {"float32": expr.float, "int32": expr.int, "uint8": expr.uint8, "float64": expr.double, "int64": expr.int64}
    var = expr.const(value, list(value.shape), expr.NCHW, kinds[value.dtype.name])
    return expr.convert(var, expr.NC4HW4) if packed else var


def to_numpy(var: Any, expr: Any) -> Any:
    """Return a result as a numpy array, channels first."""
    import numpy as np

    if str(var.data_format).endswith("NC4HW4"):
        var = expr.convert(var, expr.NCHW)
    value = np.array(var.read())
    return np.ascontiguousarray(value.reshape(var.shape) if var.shape else value.reshape(()))
