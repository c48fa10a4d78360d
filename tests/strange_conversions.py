"""Strange models converted in each way, and both sides run: what comes of one, in words.

python tests/strange_conversions.py SECONDS [SEED]     goes on for so long, and keeps the bad models in build/strange
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from strange_models import feed, strange_model

from qconvert import QConvertError, convert
from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.files import map_file
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime

__all__ = ["WAYS", "attempt", "largest_step"]

Array = np.ndarray[Any, np.dtype[Any]]

#: How a model is converted, and by how many steps of its coarsest grid an output may differ: none where the same nodes compute it.
WAYS: Mapping[str, tuple[dict[str, Any], float]] = {
    "generic": ({}, 0.0),
    "qoperator": ({"form": "qoperator"}, 8.0),
    "ort-x86": ({"target": "ort-x86"}, 0.0),
    "ort-arm": ({"target": "ort-arm"}, 0.0),
    "tflite": ({}, 12.0),
}


def largest_step(model: ModelProto) -> float:
    """The coarsest scale of a model's activations."""
    scales = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    values = [float(np.frombuffer(item.raw_data, np.float32).max()) for item in model.graph.initializer if item.name in scales]
    return max(values, default=0.0)


def attempt(model: ModelProto, way: str, folder: Path) -> str:
    """Converts a model that onnxruntime runs, and runs the result: what went wrong, without names and numbers; "" if nothing did."""
    source, result = folder / "strange.onnx", folder / f"result.{'tflite' if way == 'tflite' else 'onnx'}"
    source.write_bytes(model.SerializeToString())
    inputs = feed(model)
    options, steps = WAYS[way]
    wanted = list(_run(source, inputs).values())
    try:
        convert(source, result, force=True, **options)
    except UnsupportedError as error:
        return "" if way == "tflite" else f"refused: {_plain(error)}"
    except QConvertError as error:
        return f"{type(error).__name__}: {_plain(error)}"
    except Exception as error:
        return f"{type(error).__name__}: {_plain(error)}"
    try:
        found = list(_run(result, inputs).values())
    except RuntimeRefusedError as error:
        return f"not loadable: {_plain(error)}"
    if any(node.op_type == "Gemm" and not any(item.name == "transB" and item.i for item in node.attribute) for node in model.graph.node):
        steps = max(steps, 2.0)  # the weights are kept turned, and float products are added in another order
    return _difference(wanted, found, steps * largest_step(model) + 1e-5 * bool(steps))


def _difference(wanted: list[Array], found: list[Array], allowed: float) -> str:
    if len(wanted) != len(found):
        return "another number of outputs"
    for a, b in zip(wanted, found, strict=True):
        if a.shape != b.shape or (a.dtype != b.dtype and not allowed):
            return f"another type or shape of an output: {a.dtype} {b.dtype}"
        if a.dtype != np.float32 and allowed:
            continue  # the index of a largest value may be that of its neighbour, and integers may be stored otherwise
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and not np.allclose(a, b, rtol=0, atol=allowed, equal_nan=True):
            return "another result"
    return ""


def _run(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    if path.suffix == ".tflite":
        return _run_litert(path, inputs)
    return OnnxRuntime(path.read_bytes(), optimize=False).run(inputs)


def _run_litert(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """In LiteRT; outputs by their positions, since names need not be unique."""
    model = LiteRT(bytes(map_file(path)))
    return {str(index): value for index, value in enumerate(model.run_in_order([inputs[name] for name in model.inputs]))}


def _plain(error: Exception) -> str:
    reason = getattr(error, "reason", str(error))
    return re.sub(r"\d+", "#", re.sub(r"'[^']*'", "'…'", reason)).replace("\n", " ")[:150]


def _attempt_apart(model: ModelProto, way: str, folder: Path) -> str:
    """attempt(), in a process of its own where the runtime may end it."""
    if way != "tflite":
        return attempt(model, way, folder)
    said = folder / "said.txt"
    said.write_text("the process died")
    child = os.fork()
    if not child:
        try:
            said.write_text(attempt(model, way, folder))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return said.read_text()


def main() -> None:
    end, seed = time.time() + float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.getrandbits(32)
    ways = sys.argv[3:] or list(WAYS)
    folder, count, kept = Path("build/strange"), Counter[str](), {}
    folder.mkdir(parents=True, exist_ok=True)
    attempt(strange_model(random.Random(3), networks=1), "tflite", folder)  # imports what the children need
    while time.time() < end:
        seed += 1
        model = strange_model(random.Random(seed))
        try:
            OnnxRuntime(model.SerializeToString(), optimize=False).run(feed(model))
        except RuntimeRefusedError:
            count["not runnable"] += 1
            continue
        for way in ways:
            count["conversions"] += 1
            problem = _attempt_apart(model, way, folder)
            if problem:
                key = f"{way}: {problem}"
                count[key] += 1
                kept.setdefault(key, []).append(seed)
    for key, number in count.most_common():
        print(number, key, kept.get(key, [])[:4])


if __name__ == "__main__":
    main()
