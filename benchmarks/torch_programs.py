"""What PyTorch computes with written programs, next to the meaning of the graph: whole models, and every operator on PyTorch's own inputs.

python benchmarks/torch_programs.py MODEL ...     prints a table; needs the extra `torch`

An operator that differs by itself is explained if PyTorch's integer and the exact one are both within its reach (half a step and what
float32 arithmetic may be off) of the exact value.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import qconvert
from qconvert.conversion.normalizing import normalize
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate, evaluate_op
from qconvert.formats.torch.program import torch_package
from qconvert.formats.torch.writer import live
from qconvert.graph import Array, Graph, Op
from qconvert.kernels import KERNELS
from qconvert.plugins import passes, target_named

BATCH = 2


def normalized(path: Path) -> Graph:
    target = target_named("torch")
    options = {option.name: option.default for name in target.passes for option in passes()[name].options}
    return normalize(qconvert.load(path), target, **options)[0]


def inputs_of(graph: Graph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feed = {}
    for name in graph.inputs:
        tensor = graph[name]
        shape = [size if isinstance(size, int) else BATCH for size in tensor.shape or ()]
        limits = np.iinfo(tensor.dtype) if "int" in tensor.dtype else None
        if limits is None:
            feed[name] = rng.normal(size=shape).astype(tensor.dtype)
        else:
            feed[name] = rng.integers(max(limits.min, -32768), min(limits.max, 32767) + 1, shape).astype(tensor.dtype)
    return feed


def run(graph: Graph, feed: dict[str, Array]) -> dict[str, Array]:
    torch = torch_package()
    with torch.no_grad():
        found = live(graph)(*[torch.from_numpy(feed[name]) for name in graph.inputs])
    return {name: value.numpy() for name, value in zip(graph.outputs, found, strict=True)}


def compare(path: Path) -> list[Any]:
    """A row of the table."""
    graph = normalized(path)
    feed = inputs_of(graph, 0)
    expected, found = evaluate(graph, feed), run(graph, feed)
    whole = [differences(expected[name], found[name]) for name in graph.outputs]
    inner = [name for op in graph.ops for name in op.outputs if name and graph[name].is_quantized]
    every = {**feed, **run(graph.evolve(outputs=tuple(dict.fromkeys(inner))), feed)} if inner else dict(feed)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for op in graph.ops:
        judge(graph, op, every, counts, kinds)
    off = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    return [path.name, "; ".join(whole), counts["operators"], counts["elements"], counts["off"], counts["unexplained"], off]


def judge(graph: Graph, op: Op, values: dict[str, Array], counts: Counter[str], kinds: Counter[str]) -> None:
    """Counts the elements of an operator's integers that differ, and those among them that no rounding explains."""
    known = [values.get(name, graph.constant(name)) if name else None for name in op.inputs]
    if not op.outputs or op.outputs[0] not in values or any(name and value is None for name, value in zip(op.inputs, known, strict=True)):
        return
    exact, quantization, actual = evaluate_op(graph, op, known)[0], graph[op.outputs[0]].quantization, values[op.outputs[0]]
    counts["operators"] += 1
    counts["elements"] += actual.size
    wrong = exact.stored != actual
    if not wrong.any() or quantization is None:
        return
    counts["off"] += int(wrong.sum())
    kinds[op.kind] += int(wrong.sum())
    if exact.real is None:
        counts["unexplained"] += int(wrong.sum())
        return
    steps = np.asarray(exact.real, np.float64) / quantization.scale[0].astype(np.float64)
    allowed = 0.5 + KERNELS["torch:rebuilt"].tolerance(graph, op, steps)[0]
    far = np.maximum(*(np.abs(side.astype(np.float64) - quantization.zero_point[0] - steps) for side in (exact.stored, actual)))
    counts["unexplained"] += int((wrong & (far > allowed)).sum())


def differences(expected: Array, found: Array) -> str:
    if expected.dtype.kind == "f":
        span = max(float(np.abs(expected).max(initial=0)), 1e-30)
        largest = float(np.abs(expected.astype(np.float64) - found).max(initial=0)) / span
        return "equal" if largest == 0 else f"{largest:.1g} × range"
    off = np.abs(expected.astype(np.int64) - found.astype(np.int64))
    return "equal" if not off.any() else f"{100 * float((off > 0).mean()):.2f}%, {off.max()} LSB"


def main() -> None:
    print("| model | outputs | operators | elements | differ by themselves | unexplained | kinds | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        started = time.perf_counter()
        try:
            row = compare(Path(name))
        except QConvertError as error:
            row = [Path(name).name, str(error).partition("\n")[0].partition(": ")[2], "", "", "", "", ""]
        print("| " + " | ".join(map(str, [*row, f"{time.perf_counter() - started:.1f}"])) + " |", flush=True)


if __name__ == "__main__":
    main()
