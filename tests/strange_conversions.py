"""Strange models converted in each way, and both sides run: what comes of one, in words.

python tests/strange_conversions.py SECONDS [SEED [WAY…]]     goes on for so long, and prints what went wrong with the seeds of it

Refusals are counted too: a rule that refuses many valid models is too wide.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from strange_models import strange_model
from strange_qoperator import strange_qoperator
from strange_tflite import strange_tflite

from qconvert import Graph, QConvertError, Tensor, check, convert, load
from qconvert.arithmetic import dequantize
from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.operators import is_dynamic
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Way:
    """How models of one kind are converted.

    Attributes:
        source: a key of MAKERS.
        steps: the options of each conversion, in order; the format of a result is that of its suffix.
        allowed: by how many steps of the model's coarsest quantization an output may differ; 0: not at all.
    """

    source: str
    steps: Sequence[tuple[str, Mapping[str, Any]]]
    allowed: float


MAKERS: Mapping[str, Callable[[random.Random, int], bytes]] = {
    "onnx": lambda rng, networks: strange_model(rng, networks).SerializeToString(),
    "qoperator": lambda rng, networks: strange_qoperator(rng, networks).SerializeToString(),
    "tflite": lambda rng, networks: strange_tflite(rng, networks),
}

WAYS: Mapping[str, Way] = {
    "generic": Way("onnx", [("onnx", {})], 0.0),
    "qoperator": Way("onnx", [("onnx", {"form": "qoperator"})], 8.0),
    "ort-x86": Way("onnx", [("onnx", {"target": "ort-x86"})], 0.0),
    "ort-arm": Way("onnx", [("onnx", {"target": "ort-arm"})], 0.0),
    "tflite": Way("onnx", [("tflite", {})], 12.0),
    "tflite-int8": Way("onnx", [("tflite", {"target": "tflite", "min_tensor_sqnr": -100.0})], 24.0),
    "lite-generic": Way("tflite", [("onnx", {"target": "generic"})], 12.0),
    "lite-qoperator": Way("tflite", [("onnx", {"form": "qoperator"})], 12.0),
    "lite-x86": Way("tflite", [("onnx", {})], 12.0),
    "lite-arm": Way("tflite", [("onnx", {"target": "ort-arm"})], 12.0),
    "lite-back": Way("tflite", [("onnx", {}), ("tflite", {})], 12.0),
    "q-generic": Way("qoperator", [("onnx", {"form": "qdq"})], 8.0),
    "q-x86": Way("qoperator", [("onnx", {"target": "ort-x86"})], 8.0),
    "q-same": Way("qoperator", [("onnx", {"form": "qoperator"})], 8.0),
    "q-tflite": Way("qoperator", [("tflite", {})], 12.0),
}


@dataclass
class Outcome:
    """What came of one model in one way: what went wrong, or why it was refused; "" for what did not happen."""

    problem: str = ""
    refusal: str = ""
    detail: str = field(default="", repr=False)


def make(source: str, seed: int, networks: int = 3) -> bytes:
    """The model of a seed."""
    return MAKERS[source](random.Random(seed), networks)


def attempt(data: bytes, way: str, folder: Path, checked: bool = False) -> Outcome:
    """Converts a model that its runtime runs, reads and runs the result.

    Args:
        data: the model.
        way: a key of WAYS.
        folder: for files, which are written over.
        checked: whether qconvert.check judges the result too.
    """
    how = WAYS[way]
    lite = how.source == "tflite"
    source = folder / f"strange.{'tflite' if lite else 'onnx'}"
    source.write_bytes(data)
    inputs = _inputs(data, lite)
    wanted = _run(data, lite, inputs)
    result = source
    try:
        before = load(source)
        for number, (suffix, options) in enumerate(how.steps):
            given, result = result, folder / f"result{number}.{suffix}"
            convert(given, result, force=True, **options)
        after = load(result)
        found = _run(result.read_bytes(), result.suffix == ".tflite", inputs)
    except UnsupportedError as error:
        return Outcome(refusal=_plain(error), detail=str(error))
    except RuntimeRefusedError as error:
        return Outcome(f"not loadable: {_plain(error)}", detail=str(error))
    except QConvertError as error:
        return Outcome(f"{type(error).__name__}: {_plain(error)}", detail=str(error))
    except Exception as error:
        return Outcome(f"{type(error).__name__}: {_plain(error)}", detail=traceback.format_exc())
    problem = _difference(before, wanted, after, found, how)
    if not problem and checked:
        return _judged(source, result)
    return Outcome(problem)


def _judged(source: Path, result: Path) -> Outcome:
    try:
        report = check(source, result)
    except Exception as error:
        return Outcome(f"check: {type(error).__name__}: {_plain(error)}", detail=traceback.format_exc())
    if report.passed:
        return Outcome()
    sentences = report.problems or report.unjudged
    return Outcome(f"check: {report.verdict}: {_plain(sentences[0])}", detail="\n".join(sentences))


def _difference(before: Graph, wanted: list[Array], after: Graph, found: list[Array], way: Way) -> str:
    """Of outputs of both sides; integers with a scale are compared as the float values that they stand for."""
    if len(wanted) != len(found):
        return "another number of outputs"
    coarsest = max(_step(graph) for graph in (before, after))
    bound = way.allowed * coarsest + 1e-5 * bool(way.allowed)
    if not way.allowed and any(op.kind == "Gemm" for op in before.ops):
        bound = 2 * coarsest  # the weights are kept turned, and float products are added in another order
    hybrid = any(is_dynamic(op) for op in before.ops)
    for a, b, one, other in zip(wanted, found, before.outputs, after.outputs, strict=True):
        if a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            continue
        if a.shape != b.shape:
            return f"another shape of an output: {a.shape} {b.shape}"
        if a.dtype != b.dtype and before[one].quantization == after[other].quantization:
            return f"another type of an output: {a.dtype} {b.dtype}"
        plain = a.dtype.kind in "iub" and before[one].quantization is None
        if plain and bound:
            continue  # the index of a largest value may be that of its neighbour
        x, y = _real(a, before[one]), _real(b, after[other])
        more = float(np.abs(x).max(initial=0)) / 20 if hybrid else 0.0  # such kernels of LiteRT round their real data to 8 bits
        if not np.array_equal(x, y, equal_nan=True) and not np.allclose(x, y, rtol=1e-5, atol=bound + more, equal_nan=True):
            return "another result"
    return ""


def _step(graph: Graph) -> float:
    """The coarsest scale of a model's activations."""
    quantizations = [t.quantization.scale for t in graph.tensors.values() if not t.is_constant and t.quantization is not None]
    return max((float(scale.max()) for scale in quantizations), default=0.0)


def _real(values: Array, tensor: Tensor) -> Array:
    stored = tensor.quantization is not None and values.dtype.kind in "iu"
    return dequantize(values, tensor.quantization) if stored else values.astype(np.float64)  # type: ignore[arg-type]


def _inputs(data: bytes, lite: bool) -> list[Array]:
    """Values for the inputs: integers over their whole range, real numbers around 0; sizes with a name get the number that it ends in."""
    rng = np.random.default_rng(0)
    if lite:
        described = list(LiteRT(data).inputs.values())
    else:
        from onnx import helper, load_from_string

        described = []
        for value in load_from_string(data).graph.input:
            of = value.type.tensor_type
            sizes = tuple(dim.dim_value or int(dim.dim_param[1:]) for dim in of.shape.dim)
            described.append((helper.tensor_dtype_to_np_dtype(of.elem_type).name, sizes))
    found = []
    for dtype, shape in described:
        if dtype == "float32":
            found.append((rng.standard_normal(shape) * 2).astype(np.float32))
        else:
            limits = np.iinfo(dtype)
            found.append(rng.integers(limits.min, limits.max + 1, shape).astype(dtype))
    return found


def _run(data: bytes, lite: bool, inputs: list[Array]) -> list[Array]:
    """Outputs in their order, since LiteRT's names need not be unique."""
    if lite:
        return LiteRT(data).run_in_order(inputs)
    session = OnnxRuntime(data, optimize=False)
    return list(session.run(dict(zip(session.inputs, inputs, strict=True))).values())


def _plain(error: object) -> str:
    reason = str(getattr(error, "reason", error))
    return re.sub(r"\d+", "#", re.sub(r"'[^']*'", "'…'", reason)).replace("\n", " ")[:170]


def attempt_apart(data: bytes, way: str, folder: Path, checked: bool = False) -> Outcome:
    """attempt(), in a process of its own where LiteRT runs the result, which may end it. That it runs the source is known before."""
    if WAYS[way].steps[-1][0] != "tflite":
        return attempt(data, way, folder, checked)
    said = folder / "said.txt"
    said.write_text("the process died\0\0")
    child = os.fork()
    if not child:
        try:
            found = attempt(data, way, folder, checked)
            said.write_text("\0".join((found.problem, found.refusal, found.detail)))
        except BaseException:
            said.write_text("\0".join((f"the test: {traceback.format_exc()[-300:]}", "", "")))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return Outcome(*said.read_text().split("\0"))


def refused(source: str, data: bytes) -> str:
    """Why the source's own runtime refuses a model; "" if it runs it."""
    try:
        _run(data, source == "tflite", _inputs(data, source == "tflite"))
    except RuntimeRefusedError as error:
        return _plain(error)
    return ""


def refused_apart(source: str, data: bytes, folder: Path) -> str:
    """refused(), in a process of its own where LiteRT may end it."""
    if source != "tflite":
        return refused(source, data)
    said = folder / "said.txt"
    said.write_text("the process died")
    child = os.fork()
    if not child:
        try:
            said.write_text(refused(source, data))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return said.read_text()


def main() -> None:
    end, seed = time.time() + float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.getrandbits(32)
    ways = sys.argv[3:] or list(WAYS)
    folder, count, kept = Path("build/strange"), Counter[str](), dict[str, list[int]]()
    folder.mkdir(parents=True, exist_ok=True)
    for way in WAYS:  # imports what the children need
        attempt(make(WAYS[way].source, 3, 1), way, folder)
    while time.time() < end:
        seed += 1
        for source in dict.fromkeys(WAYS[way].source for way in ways):
            data = make(source, seed)
            count[f"models: {source}"] += 1
            reason = refused_apart(source, data, folder)
            if reason:
                key = f"not runnable: {source}: {reason}"
                count[key] += 1
                kept.setdefault(key, []).append(seed)
                continue
            for way in (way for way in ways if WAYS[way].source == source):
                count["conversions"] += 1
                outcome = attempt_apart(data, way, folder, checked=seed % 4 == 0)
                for word, text in (("", outcome.problem), ("refused: ", outcome.refusal)):
                    if text:
                        key = f"{way}: {word}{text}"
                        count[key] += 1
                        kept.setdefault(key, []).append(seed)
    for key, number in count.most_common():
        print(number, key, kept.get(key, [])[:4])


if __name__ == "__main__":
    main()
