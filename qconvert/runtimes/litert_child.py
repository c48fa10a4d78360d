"""The other end of runtimes/litert.py: the program that runs .tflite files in LiteRT (runtimes/child_loop.py runs it). It imports nothing
of qconvert.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any


def start() -> Callable[..., tuple[dict[str, Any], Iterable[Any]]]:
    """Return what answers questions: load a file, run it, time it, set or read its variables, list its nodes."""
    import ai_edge_litert.interpreter as litert
    import ml_dtypes  # noqa: F401 - which tells numpy of bfloat16 and 4 bits

    model = Model(litert)

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], Iterable[Any]]:
        try:
            if "load" in question:
                return model.load(read("bytes", [question["load"]]), **question["with"]), ()
            if "run" in question:
                return describe_values(model.run([(index, read(dtype, shape)) for index, dtype, shape in question["run"]]))
            if "time" in question:
                return model.time_runs([(index, read(dtype, shape)) for index, dtype, shape in question["time"]], question["times"]), ()
            if "begin" in question:
                for index, dtype, shape in question["begin"]:
                    model.interpreter.set_tensor(index, read(dtype, shape))
                return {}, ()
            if "kept" in question:
                return describe_values([partial(model.interpreter.get_tensor, index) for index in question["kept"]])
            return {"nodes": [describe_node(item) for item in model.interpreter._get_ops_details()]}, ()
        except (ValueError, RuntimeError) as error:
            return {"refused": str(error)}, ()

    return answer


def describe_values(values: list[Callable[[], Any]]) -> tuple[dict[str, Any], Iterator[Any]]:
    """Return types and shapes of values, which functions give, and the values: one at a time is in memory."""
    return {"values": [describe_array(value()) for value in values]}, (value() for value in values)


class Model:
    """A file in LiteRT's interpreter."""

    def __init__(self, litert: Any) -> None:
        self.litert = litert
        self.content = b""

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
        return {"wall": wall, "processor": processor}

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
