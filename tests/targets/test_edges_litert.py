"""LiteRT's integer kernels at edge sizes against the evaluator, as the targets of TFLite write them.

A kernel may end the process, so all models of a type run in a child process, which writes down what it finds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from edge_graphs import FORMS, Edge, feeds, one_edge

from qconvert import Graph
from qconvert.conversion import normalize, save
from qconvert.errors import QConvertError, RuntimeRefusedError
from qconvert.evaluate import evaluate
from qconvert.operators import KINDS
from qconvert.plugins import target_named
from qconvert.runtimes.litert import LiteRT
from qconvert.targets.audit import violations

pytestmark = pytest.mark.end_to_end

TARGETS = {"int8": "tflite", "uint8": "tflite-uint8", "int16": "tflite-same"}
GRIDS = ("middle", "zero points at the upper end")
#: What docs/measured/kernels.md says of kernels that are wrong: (kind, kernels) -> form, or "" for all.
FAULTS = {("ReduceSum", "reference"): "", ("Softmax", "reference"): "long", ("MaxPool", "default"): "batch of 0"}
#: int16 EXP is a table of 513 values, coarse where the function is steep.
COARSE = {("Exp", "int16"): 300.0}


def allowed(graph: Graph, edge: Edge, dtype: str) -> float:
    """One step, two where int16 comes from a table, four from the two tables of SOFTMAX.

    Where another scale follows, these steps in the new scale, and one more.
    """
    steps, ratios = (1.0 if dtype != "int16" else 4.0 if edge.form.kind == "Softmax" else 2.0), []
    producers = graph.producers()
    for op in graph.ops:
        maker = producers.find(op.inputs[0], "Dequantize") if op.kind == "Quantize" else op
        before = None if maker is None else graph[maker.inputs[0]].quantization
        after = graph[op.outputs[0]].quantization
        if op.kind in ("Requantize", "Quantize") and before is not None and after is not None:
            ratios.append(float(before.scale[0] / after.scale[0]))
    return COARSE.get((edge.form.kind, dtype), 1 + steps * max(ratios) if ratios else steps)


def found(edge: Edge, dtype: str, folder: Path) -> Iterator[str]:
    """What is wrong with an edge, on either set of kernels; what the target refuses by name is not."""
    target = target_named(TARGETS[dtype])
    try:
        graph, _ = normalize(edge.graph, target)
        if violations(graph, target):
            return
    except QConvertError:
        return
    (folder / "m.tflite").unlink(missing_ok=True)
    save(graph, folder / "m.tflite")
    data = (folder / "m.tflite").read_bytes()
    for kernels in ("default", "reference"):
        if FAULTS.get((edge.form.kind, kernels), edge.form.name + "?") in ("", edge.form.name):
            continue
        yield from (f"{edge}, {dtype}, {kernels}: {text}" for text in compared(graph, edge, data, kernels, dtype))


def compared(graph: Graph, edge: Edge, data: bytes, kernels: str, dtype: str) -> Iterator[str]:
    try:
        runtime = LiteRT(data, kernels)
    except RuntimeRefusedError as error:
        without = 0 in (graph[name].shape or ()) if (name := graph.inputs[0]) else False
        if "Didn't find op" not in str(error) and not (without and "XNNPack delegate failed" in str(error)):
            yield str(error)
        return
    for feed in feeds(edge.graph):
        expected = evaluate(graph, feed)[graph.outputs[0]]
        got, *_ = runtime.run_in_order([feed[name] for name in graph.inputs])
        if got.shape != expected.shape:
            yield f"{got.shape} instead of {expected.shape}"
        elif np.abs(got.astype(float) - expected).max(initial=0) > allowed(graph, edge, dtype):
            yield f"off by {np.abs(got.astype(float) - expected).max():g}"


@pytest.mark.parametrize("dtype", TARGETS)
def test_kernels_at_their_edges(dtype: str, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        wrong: list[str] = []
        try:
            for form in FORMS:
                moves = KINDS[form.kind].rule in ("move", "index")
                for quantization in GRIDS[:1] if moves else GRIDS:
                    (tmp_path / "at").write_text(f"{form.kind} {form.name}, {quantization}")
                    wrong += found(one_edge(form, dtype, quantization), dtype, tmp_path)
        except BaseException as error:
            wrong.append(f"{(tmp_path / 'at').read_text()}: {error!r}")
        (tmp_path / "found").write_text(json.dumps(wrong))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the process ended at {(tmp_path / 'at').read_text()}"
    assert json.loads((tmp_path / "found").read_text()) == []
