"""Processor time of each operator of a .tflite model in LiteRT and in onnxruntime, and the forms that cost most beyond LiteRT's.

    python benchmarks/latency.py [MODELS.tflite ...] [--targets ort-x86,ort-x86:weights_by_cpu,ort-x86-vnni] [--runs N]
        [--operators N] [--json FILE] [--markdown docs/measured/latency.md]

Without models: the .tflite fixtures. A target may be followed by an option that is set to true. One thread. Whole models: the least
processor time of N runs of each, in turns. An operator in LiteRT: the least time of a model of that operator alone, less that of an empty
one (XNNPACK runs a whole graph as one operator, so its own profile does not tell). An operator in onnxruntime: the least time of its nodes
in onnxruntime's profile of the whole model, less what the profiler adds to each; a node belongs to the operator of the source whose tensor
it leads to first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measures import Array, OnnxModel, SourceModel, profile_nodes, random_inputs
from page import Section, machine, publish

from qconvert import QConvertError, convert, load
from qconvert.conversion.adapting.named_tensors import cut_out
from qconvert.conversion.saving import save
from qconvert.formats.tflite.probe import accepted_copy
from qconvert.graph import Graph, Op

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass
class Measured:
    """One operator of a source.

    Attributes:
        form: its kind and the nodes of the result that compute it.
        source: microseconds in LiteRT; None where LiteRT does not run it alone.
        result: microseconds in onnxruntime.
    """

    model: str
    target: str
    name: str
    form: str
    source: float | None
    result: float


@dataclass
class Whole:
    """One model: milliseconds of processor time in LiteRT and, by target, in onnxruntime; whether all targets give equal outputs."""

    model: str
    source: float
    equal: bool
    results: dict[str, float] = field(default_factory=dict)


def processor_time(runners: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """The least processor time of a call in milliseconds; in turns, each turn of as many calls as take about 5 ms."""
    best = dict.fromkeys(runners, float("inf"))
    calls = {}
    for name, runner in runners.items():
        runner()
        started = time.perf_counter()
        runner()
        calls[name] = max(1, int(0.005 / max(time.perf_counter() - started, 1e-7)))
    for _ in range(runs):
        for name, runner in runners.items():
            runner()
            started = time.process_time()
            for _ in range(calls[name]):
                runner()
            best[name] = min(best[name], (time.process_time() - started) / calls[name] * 1000)
    return best


def time_forms(source: Path, given: Array, files: dict[str, Path], data: Array, runs: int) -> tuple[list[str], list[Array]]:
    """The processor time of a model in LiteRT and of its forms in onnxruntime, in whole microseconds, and the results of all.

    Args:
        source: the .tflite file.
        given: what LiteRT reads.
        files: .onnx files by name, with input x and output y.
        data: what they read.
        runs: see processor_time().
    """
    from qconvert.runtimes.onnxruntime import OnnxRuntime

    litert, sessions = SourceModel(source.read_bytes()), {name: OnnxRuntime(path) for name, path in files.items()}
    results = [litert.run([given])[0], *(session.run({"x": data})["y"] for session in sessions.values())]
    runners: dict[str, Callable[[], object]] = {"": partial(litert.run, [given])}
    runners |= {name: partial(item.session.run, None, {"x": data}) for name, item in sessions.items()}
    return [f"{1000 * time:.0f}" for time in processor_time(runners, runs).values()], results


def alone(graph: Graph, op: Op, folder: Path, runs: int) -> float | None:
    """Microseconds of a model of one operator in LiteRT; None where LiteRT does not run it."""
    reads = [name for name in op.inputs if name and not graph[name].is_constant]
    path = folder / "alone.tflite"
    try:
        part = cut_out(graph, f"{','.join(dict.fromkeys(reads))}:{','.join(op.outputs)}")
        path.unlink(missing_ok=True)
        save(part, path, "tflite")
        model = SourceModel(accepted_copy(path.read_bytes()))
        values = random_inputs(model, 1)[0]
        return processor_time({"": partial(model.run, values)}, max(runs // 3, 5))[""] * 1000
    except (QConvertError, ValueError, RuntimeError):
        return None


def profile(path: Path, feeds: dict[str, Array], graph: Graph, runs: int, folder: Path) -> list[tuple[str, str, float]]:
    """(type, the source's tensor or "", microseconds) of each node of the graph that onnxruntime runs."""
    import onnx

    times = {name: duration for name, _, duration in profile_nodes(path, feeds, runs, folder)}
    nodes = list(onnx.load(folder / "optimized.onnx").graph.node)
    readers: dict[str, list[Any]] = defaultdict(list)
    for node in nodes:
        for name in node.input:
            readers[name].append(node)
    made = {name for op in graph.ops for name in op.outputs}

    def owner(node: Any) -> str:
        row, seen = [node], set()
        while row:
            for item in row:
                # A node is named Kind:tensor, and a tensor in another storage or in float has a suffix after a slash.
                for name in (item.name.partition(":")[2], *item.output):
                    for candidate in (name, name.rpartition("/")[0]):
                        if candidate in made:
                            return candidate
            seen |= {id(item) for item in row}
            row = [other for item in row for name in item.output for other in readers[name] if id(other) not in seen]
        return ""

    return [(node.op_type, owner(node), times[node.name]) for node in nodes if node.name in times]


def operators(
    model: str, target: str, graph: Graph, nodes: list[tuple[str, str, float]], source: dict[str, float | None]
) -> list[Measured]:
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for kind, tensor, duration in nodes:
        found[tensor].append((kind, duration))
    rows = []
    for op in graph.ops:
        mine = [item for name in op.outputs for item in found.pop(name, [])]
        form = f"{op.kind}: {' + '.join(sorted({kind for kind, _ in mine})) or 'no node'}"
        rows.append(Measured(model, target, op.outputs[0], form, source[op.outputs[0]], sum(duration for _, duration in mine)))
    rest = [item for items in found.values() for item in items]
    if rest:
        rows.append(
            Measured(model, target, "edges", f"edges: {' + '.join(sorted({kind for kind, _ in rest}))}", 0.0, sum(d for _, d in rest))
        )
    return rows


def measure(path: Path, targets: list[str], options: argparse.Namespace, folder: Path) -> tuple[Whole, list[Measured]] | None:
    graph, model = load(path), path.stem
    if graph.states:
        raise ValueError("a step depends on those before it; benchmarks/streaming.py times stateful models")
    source = SourceModel(accepted_copy(path.read_bytes()))
    values = random_inputs(source, 1)[0]
    runners: dict[str, Callable[[], object]] = {"": partial(source.run, values)}
    feeds, outputs = {}, []
    for target in targets:
        result = folder / f"{target}.onnx"
        result.unlink(missing_ok=True)
        name, _, option = target.partition(":")
        convert(path, result, target=name, **{option: True} if option else {})
        session = OnnxModel(result, source)
        feeds[target] = session.feeds(values)
        runners[target] = partial(session.run_fed, feeds[target])
        outputs.append(session.run(values))
    equal = all(np.array_equal(a, b) for other in outputs[1:] for a, b in zip(outputs[0], other, strict=True))
    best = processor_time(runners, options.runs)
    whole = Whole(model, best.pop(""), equal, best)
    if not options.operators:
        return whole, []
    empty = _empty(folder, options.runs)
    in_litert = {op.outputs[0]: alone(graph, op, folder, options.runs) for op in graph.ops}
    in_litert = {name: None if item is None else max(item - empty, 0.0) for name, item in in_litert.items()}
    rows = []
    for target in targets:
        nodes = profile(folder / f"{target}.onnx", feeds[target], graph, options.runs, folder)
        rows += operators(model, target, graph, nodes, in_litert)
    return whole, rows


def _empty(folder: Path, runs: int) -> float:
    """Microseconds of a model of one small Relu: what a call costs by itself."""
    from qconvert.graph import Tensor

    graph = Graph("empty", {name: Tensor(name, "float32", (1, 4)) for name in "xy"}, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",))
    path = folder / "empty.tflite"
    if not path.exists():
        save(graph, path, "tflite")
    model = SourceModel(path.read_bytes())
    return processor_time({"": partial(model.run, random_inputs(model, 1)[0])}, runs)[""] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--targets", default="ort-x86,ort-x86:weights_by_cpu,ort-x86-vnni")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--operators", type=int, default=3, help="operators of each model that are listed; 0: none are measured")
    parser.add_argument("--json", type=Path, help="all operators")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    targets = options.targets.split(",")
    wholes, rows = [], []
    with tempfile.TemporaryDirectory() as name:
        for path in options.models or sorted(FIXTURES.glob("*.tflite")):
            try:
                found = measure(path, targets, options, Path(name))
            except (QConvertError, ValueError, RuntimeError) as error:
                print(f"{path.name}: {str(error).splitlines()[0]}")
                continue
            if found:
                wholes.append(found[0])
                rows += found[1]
    if options.json:
        options.json.write_text(json.dumps([vars(row) for row in rows], indent=1))
    command = "python benchmarks/latency.py"
    ratios = {target: [item.results[target] / item.source for item in wholes] for target in targets}
    lines = [
        [
            item.model,
            f"{item.source:.3f}",
            *(f"{item.results[t]:.3f} ({item.results[t] / item.source:.2f})" for t in targets),
            "yes" if item.equal else "no",
        ]
        for item in wholes
    ]
    lines.append(["median of the ratios", "", *(f"{statistics.median(ratios[target]):.2f}" for target in targets), ""])
    head = ["model", "LiteRT (ms)", *(f"{target} (ms, ratio)" for target in targets), "outputs equal"]
    publish(
        Section("Whole models", head, lines, machine()),
        options.markdown,
        command,
    )
    if not rows:
        return
    for target in targets:
        costs: dict[str, list[Measured]] = defaultdict(list)
        for row in rows:
            if row.target == target and row.source is not None:
                costs[row.form].append(row)
        # Each model weighs the same: excess as a share of the model's time in LiteRT.
        times = {item.model: item.source * 1000 for item in wholes}
        excess = {form: sum((r.result - (r.source or 0.0)) / times[r.model] for r in items) for form, items in costs.items()}
        worst = sorted(excess, key=lambda form: -excess[form])[:5]
        table = [
            [form, str(len(costs[form])), str(len({r.model for r in costs[form]})), f"{sum(r.source or 0.0 for r in costs[form]):.0f}",
             f"{sum(r.result for r in costs[form]):.0f}", f"{excess[form] / len(wholes):+.1%}"]
            for form in worst
        ]  # fmt: skip
        head = ["operator: nodes", "operators", "models", "LiteRT (µs)", "onnxruntime (µs)", "more, of a model's time"]
        publish(
            Section(f"The five forms that cost most beyond LiteRT's: {target}", head, table, "Mean over all models."),
            options.markdown,
            command,
        )
        listed = [
            [item.model, row.name, row.form, f"{row.source or 0.0:.0f}", f"{row.result:.0f}"]
            for item in wholes
            for row in sorted(
                (r for r in rows if r.model == item.model and r.target == target and r.source is not None),
                key=lambda r: (r.source or 0.0) - r.result,
            )[: options.operators]
        ]
        publish(
            Section(
                f"The operators that cost most beyond LiteRT's: {target}",
                ["model", "tensor", "operator: nodes", "LiteRT (µs)", "onnxruntime (µs)"],
                listed,
                "",
            ),
            options.markdown,
            command,
        )


if __name__ == "__main__":
    main()
