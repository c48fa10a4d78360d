"""The per-operator check: every operator of the result is fed with the source's own tensors, so that the one that differs is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from qconvert.checking.classify import classify
from qconvert.checking.constants import differing_constants
from qconvert.checking.islands import Islands, cut
from qconvert.checking.judging import OperatorFinding, is_rounded, worse
from qconvert.errors import OptionError
from qconvert.files import map_file
from qconvert.graph import Array, Graph, Op
from qconvert.graph.kinds import KINDS
from qconvert.plugins import format_of

__all__ = ["check_operators"]


def check_operators(
    source: Path, result: Path, graph: Graph, feeds: list[dict[str, Array]], kernels: str, progress: Callable[[str, int, int], None]
) -> tuple[OperatorFinding, ...]:
    """A finding for each operator output of the source that the result still has under its name, in the graph's order.

    Args:
        source: a .tflite file.
        result: an .onnx file made from it.
        graph: the source's canonical graph.
        feeds: stored inputs of each run.
        kernels: LiteRT's kernels.
        progress: is called with (what, done, total).
    """
    if format_of(source).name != "tflite" or format_of(result).name != "onnx":
        raise OptionError("operators can be checked between .tflite and .onnx files only")
    from qconvert.formats.onnx.container import load_proto
    from qconvert.formats.tflite.probe import accepted_copy, with_all_outputs
    from qconvert.runtimes.litert import LiteRT
    from qconvert.runtimes.onnxruntime import OnnxRuntime

    model, names = with_all_outputs(accepted_copy(bytes(map_file(source))))
    probe = LiteRT(model, kernels)
    parsed = load_proto(result)
    islands = cut(parsed, {name for name, tensor in graph.tensors.items() if not tensor.is_constant})
    runtime = OnnxRuntime(islands.model)
    findings: dict[str, OperatorFinding] = {}
    total = len(feeds) * len(graph.ops)
    for run, feed in enumerate(feeds):
        values = dict(feed)
        values.update(zip(names, probe.run_in_order([feed[name] for name in graph.inputs]), strict=True))
        fed = {name: islands.as_stored_in_result(graph[name], values[name]) for name in islands.fed}
        computed = runtime.run(fed)
        for position, op in enumerate(graph.ops):
            _judge(graph, op, values, computed, islands, kernels, findings)
            progress("operators", run * len(graph.ops) + position + 1, total)
    _name_constants(graph, differing_constants(graph, parsed), findings)
    return tuple(findings.values())


def _name_constants(graph: Graph, wrong: dict[str, str], findings: dict[str, OperatorFinding]) -> None:
    """Operators with a wrong constant are unexplained, whether or not these inputs brought it out."""
    for op in graph.ops:
        reasons = [wrong[name] for name in op.inputs if name in wrong]
        for name in op.outputs:
            if reasons and name in findings:
                findings[name] = replace(findings[name], verdict="unexplained", reason=", ".join(reasons))


def _judge(
    graph: Graph,
    op: Op,
    values: dict[str, Array],
    computed: dict[str, Array],
    islands: Islands,
    kernels: str,
    findings: dict[str, OperatorFinding],
) -> None:
    """Judges the outputs of one operator; a tensor that the source does not have is worked out for the operators behind it."""
    missing = [name for name in op.outputs if name not in values]
    exact = _exact(graph, op, values) if missing or (KINDS[op.kind].rule in ("real", "convert") and is_rounded(graph, op)) else None
    for index, name in enumerate(op.outputs):
        if name in missing:
            assert exact is not None
            values[name] = exact[index][1]
        elif name in islands.computed:
            back = islands.as_stored_in_source(graph[name], computed[islands.computed[name]], values[name])
            real = exact[index][0] if exact is not None else None
            output = op if index == 0 else replace(op, outputs=op.outputs[index:])
            found = classify(graph, output, values[name], back, real, (kernels, "onnxruntime"))
            findings[name] = worse(findings.get(name), op, name, found)


def _exact(graph: Graph, op: Op, values: dict[str, Array]) -> list[tuple[Array | None, Array]]:
    from qconvert.evaluate import evaluate_op

    inputs = [None if not name else graph.constant(name) if graph[name].is_constant else values[name] for name in op.inputs]
    return [(found.real, found.stored) for found in evaluate_op(graph, op, inputs)]
