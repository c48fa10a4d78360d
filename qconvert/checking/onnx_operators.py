"""The per-operator check from ONNX to ONNX: both files are cut at the tensors that both have, and fed with the source's values.

Names are those of the source's canonical graph, so that an operator is found whether it is written as QDQ or as QOperator: both
keep the name of the quantized tensor that it writes. Types and shapes of the cuts are those that onnxruntime finds, since onnx's own
inference does not know com.microsoft's operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checking.classify import Finding, classify
from qconvert.checking.constants import changed_quantization
from qconvert.checking.islands import Islands, cut
from qconvert.checking.operators import OperatorFinding, is_rounded, worse
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.graph import DTYPES, Array, Graph, Op
from qconvert.ops import OPS
from qconvert.runtimes.onnxruntime import OnnxRuntime

__all__ = ["check_onnx_operators"]

#: Differences that an operator without an exact evaluation may have: steps of 8- and 16-bit integers, a share of the largest float.
_LARGEST_STEPS, _LARGEST_SHARE = 1, 1e-5
#: onnxruntime turns a MatMul by 8-bit weights into MatMulNBits, which by default (4) rounds the other operand to int8, an error of 0.7%
#: that the whole model need not have, since whether it does so depends on the nodes around. 1 stands for float32.
_SETTINGS = {"session.qdq_matmulnbits_accuracy_level": "1"}
_STORED = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True, slots=True)
class _Side:
    """One file: cut at the shared tensors and loaded in onnxruntime."""

    islands: Islands
    runtime: OnnxRuntime


def check_onnx_operators(
    source: Path, result: Path, graph: Graph, feeds: list[dict[str, Array]], optimize: bool, progress: Callable[[str, int, int], None]
) -> tuple[tuple[OperatorFinding, ...], str]:
    """A finding for each operator output of the source that both files name, and a line on the operators that could not be matched.

    Args:
        source, result: .onnx files.
        graph: the source's canonical graph.
        feeds: stored inputs of each run.
        optimize: whether onnxruntime optimizes the graphs.
        progress: is called with (what, done, total).

    Raises:
        QConvertError: the result cannot be read, or onnxruntime refuses one of the cut models.
    """
    from qconvert.conversion import load

    models = [_whole(path) for path in (source, result)]
    wanted = [name for name, tensor in graph.tensors.items() if not tensor.is_constant]
    shared = set(wanted) & _values(models[0]) & _values(models[1])
    probes = [OnnxRuntime(_with_outputs(model, shared), optimize=optimize) for model in models]
    shared = {name for name in shared if all(_type(probe, name) in DTYPES for probe in probes)}
    sides = [_side(model, probe, shared, optimize) for model, probe in zip(models, probes, strict=True)]
    findings: dict[str, OperatorFinding] = {}
    for run, feed in enumerate(feeds):
        values = {**probes[0].run(feed), **feed}
        values = {name: value for name, value in values.items() if name in shared}
        computed = [_computed(side, graph, values) for side in sides]
        for position, op in enumerate(graph.ops):
            _judge(graph, op, values, computed, sides[1].islands, findings)
            progress("operators", run * len(graph.ops) + position + 1, len(feeds) * len(graph.ops))
    _name_changed(graph, changed_quantization(graph, load(result)), findings)
    return tuple(findings.values()), _unmatched(graph, findings)


def _whole(path: Path) -> Any:
    """The onnx.ModelProto of a file with its external data."""
    from onnx.external_data_helper import load_external_data_for_model

    from qconvert.formats.onnx.container import external_files, load_proto

    companions = external_files(path)
    if sum(item.stat().st_size for item in (path, *companions)) >= 2**31:
        raise UnsupportedError("is above 2 GB, too large to be cut at its operators", file=str(path), remedy="Check it without --per-op.")
    model = load_proto(path)
    if companions:
        load_external_data_for_model(model, str(path.parent))
    return model


def _values(model: Any) -> set[str]:
    """Names of everything that the main graph computes or is given."""
    computed = {name for node in model.graph.node for name in node.output if name}
    return (computed | {value.name for value in model.graph.input}) - {item.name for item in model.graph.initializer}


def _with_outputs(model: Any, names: set[str]) -> bytes:
    """The model with further outputs; onnxruntime finds their types."""
    from onnx import ValueInfoProto

    copy = type(model)()
    copy.CopyFrom(model)
    present = {value.name for value in (*model.graph.output, *model.graph.input)}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in sorted(names - present))
    return bytes(copy.SerializeToString())


def _type(runtime: OnnxRuntime, name: str) -> str:
    return str({**runtime.inputs, **runtime.outputs}[name][0])


def _side(model: Any, probe: OnnxRuntime, names: set[str], optimize: bool) -> _Side:
    from onnx import helper

    described = {}
    for name in names:
        dtype, shape = {**probe.inputs, **probe.outputs}[name]
        # onnxruntime gives () for a scalar and for an unknown shape alike.
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        described[name] = helper.make_tensor_value_info(name, element, list(shape) if shape else None)
    islands = cut(model, names, described)
    if not islands.computed:
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators")
    return _Side(islands, OnnxRuntime(islands.model, optimize=optimize, settings=_SETTINGS))


def _computed(side: _Side, graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """What one side computes from the source's stored values, by the source's names."""
    fed = {name: side.islands.as_stored_in_result(graph[name], values[name]) for name in side.islands.fed}
    found = side.runtime.run(fed)
    return {name: found[output] for name, output in side.islands.computed.items()}


def _judge(
    graph: Graph, op: Op, values: dict[str, Array], computed: list[dict[str, Array]], result: Islands, findings: dict[str, OperatorFinding]
) -> None:
    """Judges the outputs of one operator that both sides have. What is equal needs no exact evaluation."""
    for index, name in enumerate(op.outputs):
        if name not in computed[0]:
            continue
        a = computed[0][name]
        b = result.as_stored_in_source(graph[name], computed[1][name], a)
        if a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            found = Finding("equal", "", 1.0, 0.0, 0.0, 0)
        elif a.shape == b.shape and not _is_known(graph, op, values):
            found = _compared(a, b)
        else:
            real = _exact(graph, op, values, index) if OPS[op.kind].rule in ("real", "convert") and is_rounded(graph, op) else None
            found = classify(graph, replace(op, outputs=op.outputs[index:]), a, b, real, "onnxruntime")
            if real is None and OPS[op.kind].rule in ("real", "convert"):
                found = _compared(a, b) if a.shape == b.shape else found
        findings[name] = worse(findings.get(name), op, name, found)


def _is_known(graph: Graph, op: Op, values: Mapping[str, Array]) -> bool:
    """Whether what the operator computes, and all that it reads, is known: else its island holds other operators too."""
    return op.kind != "Opaque" and all(graph[name].is_constant or name in values for name in op.inputs if name)


def _exact(graph: Graph, op: Op, values: Mapping[str, Array], index: int) -> Array | None:
    from qconvert.checking.evaluate import evaluate_op

    inputs = [None if not name else graph.constant(name) if graph[name].is_constant else values[name] for name in op.inputs]
    try:
        return evaluate_op(graph, op, inputs)[index].real
    except UnsupportedError:
        return None


def _compared(a: Array, b: Array) -> Finding:
    """Two outputs that differ, of an operator without an exact evaluation."""
    differing = a != b
    equal = 1.0 - float(differing.mean())
    if a.dtype.kind not in "biuf":
        return Finding("unexplained", "values differ", equal, float("inf"), 0.0, int(differing.sum()))
    difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    if a.dtype.kind == "f":
        scale, allowed, reason = float(np.abs(a[np.isfinite(a)]).max(initial=0)) or 1.0, _LARGEST_SHARE, "float arithmetic"
        difference = np.where(np.isnan(difference), np.where(differing & ~(np.isnan(a) & np.isnan(b)), np.inf, 0.0), difference) / scale
    else:
        allowed, reason = (_LARGEST_STEPS if a.dtype.name in _STORED else 0), "compared without an exact value"
    wrong = int((difference > allowed).sum())
    largest = float(difference.max(initial=0))
    verdict = "unexplained" if wrong else "approximate"
    return Finding(verdict, "values differ" if wrong else reason, equal, largest, 1.0, wrong)


def _name_changed(graph: Graph, changed: dict[str, str], findings: dict[str, OperatorFinding]) -> None:
    """Operators that read a constant or write a tensor whose integers, scale or zero point are not the source's."""
    for op in graph.ops:
        reasons = [changed[name] for name in op.inputs if name in changed and graph[name].is_constant]
        for name in op.outputs:
            own = [*reasons, *([changed[name]] if name in changed else [])]
            if own and name in findings:
                findings[name] = replace(findings[name], verdict="unexplained", reason=", ".join(own))


def _unmatched(graph: Graph, findings: Mapping[str, OperatorFinding]) -> str:
    """One line on the operators without a finding; "" if there are none."""
    left = Counter(op.kind for op in graph.ops if not any(name in findings for name in op.outputs))
    if not left:
        return ""
    listed = ", ".join(f"{kind} ({count})" for kind, count in left.most_common())
    several = sum(left.values()) != 1
    return (
        f"{sum(left.values())} of {len(graph.ops)} operators {'are' if several else 'is'} not compared by "
        f"{'themselves' if several else 'itself'}, since no output has the same name in both files: {listed}"
    )
