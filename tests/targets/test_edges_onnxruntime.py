"""onnxruntime's integer kernels at edge sizes, in both forms of a file, against the evaluator.

All operators of one kind are one model: a session is made for each kind, form and target.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from edge_graphs import FORMS, Edge, edges, feeds, joined, one_edge

from qconvert import Graph, Quantization, load, save
from qconvert.conversion import normalize
from qconvert.evaluate import evaluate_op
from qconvert.formats.onnx.writer import build
from qconvert.graph import Array, integer_range
from qconvert.kernels import KERNELS, Kernels
from qconvert.plugins import target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime

KINDS = sorted({form.kind for form in FORMS})
#: Rounding of the exact value is within the reach that checks use; nothing is allowed beyond.
ROWS = KERNELS["onnxruntime:optimized"]


def wrong(edge: Edge, feed: dict[str, Array], found: Array | None) -> str:
    """What is wrong with what a kernel gave for a feed; "" if it is right."""
    graph, op = edge.graph, edge.op
    exact = evaluate_op(graph, op, [feed[name] if name in feed else graph.constant(name) for name in op.inputs])[0]
    if found is None or found.shape != exact.stored.shape:
        return f"{None if found is None else found.shape} instead of {exact.stored.shape}"
    if np.array_equal(found, exact.stored):
        return ""
    q = graph["y"].quantization
    if exact.real is None or q is None:
        return f"moved integers differ: {found.reshape(-1)[:4]} instead of {exact.stored.reshape(-1)[:4]}"
    steps = exact.real / q.step
    position = np.clip(steps + q.point, *integer_range(graph["y"].dtype))
    beyond = np.abs(found - position) - 0.5 - ROWS.tolerance(graph, op, steps)[0]
    return f"{beyond.max():.3g} steps beyond the kernel's reach" if (beyond > 0).any() else ""


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("form", "kernels"), [("qdq", "optimized"), ("qoperator", "unoptimized")])
@pytest.mark.parametrize("target", ["ort-x86", "ort-arm"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_at_their_edges(kind: str, target: str, form: str, kernels: str) -> None:
    made = list(edges("uint8" if target == "ort-x86" else "int8", [kind]))
    graph, _ = normalize(joined([edge.graph for edge in made]), target_named(target))
    runtime = OnnxRuntime(build(graph, 0, {}, form=form).SerializeToString(), optimize=kernels == "optimized")
    fed = [feeds(edge.graph) for edge in made]
    for run in range(len(fed[0])):
        found = runtime.run({f"{name}_{index}": value for index, feed in enumerate(fed) for name, value in feed[run].items()})
        faults = {str(edge): wrong(edge, fed[index][run], found[f"y_{index}"]) for index, edge in enumerate(made)}
        assert not any(faults.values()), {name: text for name, text in faults.items() if text}


def softmax(dtype: str, size: int, inverse: float) -> Graph:
    """A Softmax over an axis whose result has the scale 1 / inverse."""
    form = next(form for form in FORMS if form.kind == "Softmax" and form.name == "long")
    graph = one_edge(replace(form, data=((2, size),)), dtype, "middle").graph
    return graph.evolve(tensors=[replace(graph["y"], quantization=Quantization.per_tensor(1 / inverse, integer_range(dtype)[0]))])


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("size", "inverse", "fault"), [
    (1, 148, False), (1, 149, True), (1, 256, True), (2, 256, False), (2, 296, False), (2, 297, True), (7, 1038, False), (7, 1039, True),
])  # fmt: skip
def test_the_rule_of_softmax_is_where_the_kernel_overflows(
    dtype: str, size: int, inverse: float, fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = softmax(dtype, size, inverse + 1e-3)
    assert bool(ROWS.fault(graph, graph.ops[0])) is fault
    peaked = np.full((2, size), integer_range(dtype)[0], dtype)
    peaked[:, 0] = integer_range(dtype)[1]
    expected = evaluate_op(graph, graph.ops[0], [peaked])[0].stored
    assert np.abs(run(graph, peaked).astype(int) - expected).max() <= 1
    monkeypatch.setattr(Kernels, "fault", lambda rows, graph, op: "")
    kernel = run(graph, peaked, form="qoperator")
    if dtype == "uint8":  # what int8 makes of the overflow is saturation, by chance
        overflows = fault and tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32)
        assert bool(np.abs(kernel.astype(int) - expected).max() > 1) is overflows


def run(graph: Graph, data: Array, form: str = "qdq") -> Array:
    return OnnxRuntime(build(graph, 0, {}, form=form).SerializeToString()).run({"x0": data})["y"]


@pytest.mark.formats
def test_an_operator_whose_kernel_is_wrong_is_judged_so_and_comes_back(tmp_path: Path) -> None:
    graph = softmax("uint8", 1, 256)
    verdict = target_named("ort-x86").judge(graph, graph.ops[0])
    assert verdict.runs == "floats" and "QLinearSoftmax overflows float32 over an axis of 1" in verdict.rule
    for form in ("qdq", "qoperator"):
        save(graph, tmp_path / f"{form}.onnx", form=form)
        assert [op.kind for op in load(tmp_path / f"{form}.onnx").ops] == ["Softmax"]
    assert target_named("ort-x86").judge(softmax("uint8", 10, 256), graph.ops[0]).runs == "integers"
