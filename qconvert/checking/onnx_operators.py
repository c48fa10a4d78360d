"""The per-operator check from ONNX to ONNX: both files are cut at the tensors that both have, and fed with the source's values.

Names are those of the source's canonical graph, so that an operator is found whether it is written as QDQ or as QOperator: both
keep the name of the quantized tensor that it writes. Types and shapes of the cuts are those that onnxruntime finds, since onnx's own
inference does not know com.microsoft's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checking.constants import changed_quantization
from qconvert.checking.further_roundings import further_reach
from qconvert.checking.islands import Islands, cut
from qconvert.checking.judging import OperatorFinding, judge, name_changed, unmatched, worse
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.graph import DTYPES, Array, Graph, Op
from qconvert.runtimes.onnxruntime import OnnxRuntime

__all__ = ["OnnxSource", "check_onnx_operators"]

#: onnxruntime turns a MatMul by 8-bit weights into MatMulNBits, which by default (4) rounds the other operand to int8, an error of 0.7%
#: that the whole model need not have, since whether it does so depends on the nodes around. 1 stands for float32.
_SETTINGS = {"session.qdq_matmulnbits_accuracy_level": "1"}


@dataclass(frozen=True, slots=True)
class _Side:
    """One file: cut at the shared tensors and loaded in onnxruntime."""

    islands: Islands
    runtime: OnnxRuntime


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """An ONNX file whose inner values are given out, and which is cut at them so that each operator is run by itself.

    Attributes:
        names: those of the wanted tensors that it has.
    """

    names: set[str]
    kernels: str
    _graph: Graph
    _probe: OnnxRuntime
    _side: _Side

    @classmethod
    def load(cls, path: Path, graph: Graph, wanted: set[str], optimize: bool) -> OnnxSource:
        """The file at `path`, cut at the values called `wanted`; `graph` is its canonical graph."""
        model = _whole(path)
        names = wanted & _values(model)
        probe = OnnxRuntime(_with_outputs(model, names), optimize=optimize)
        names = {name for name in names if _type(probe, name) in DTYPES}
        return cls(names, "onnxruntime", graph, probe, _side(model, probe, names, optimize))

    def run(self, feed: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """The values of a run, and what each operator computes from them by itself, by name."""
        values = {name: value for name, value in {**self._probe.run(feed), **feed}.items() if name in self.names}
        return values, _computed(self._side, self._graph, values)


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
    other = load(result)
    further = further_reach(graph, other, shared)
    findings: dict[str, OperatorFinding] = {}
    for run, feed in enumerate(feeds):
        values = {**probes[0].run(feed), **feed}
        values = {name: value for name, value in values.items() if name in shared}
        computed = [_computed(side, graph, values) for side in sides]
        for position, op in enumerate(graph.ops):
            _judge(graph, op, values, computed, sides[1].islands, further, findings)
            progress("operators", run * len(graph.ops) + position + 1, len(feeds) * len(graph.ops))
    name_changed(graph, changed_quantization(graph, other), findings)
    return tuple(findings.values()), unmatched(graph, findings)


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
    islands = replace(cut(model, names, described), transposed=frozenset())  # every ONNX file is channels first
    if not islands.computed:
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators")
    return _Side(islands, OnnxRuntime(islands.model, optimize=optimize, settings=_SETTINGS))


def _computed(side: _Side, graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """What one side computes from the source's stored values, by the source's names."""
    fed = {name: side.islands.as_stored_in_result(graph[name], values[name]) for name in side.islands.fed}
    found = side.runtime.run(fed)
    return {name: found[output] for name, output in side.islands.computed.items()}


def _judge(
    graph: Graph,
    op: Op,
    values: dict[str, Array],
    computed: list[dict[str, Array]],
    result: Islands,
    further: Mapping[str, float],
    findings: dict[str, OperatorFinding],
) -> None:
    """Judges the outputs of one operator that both sides have."""
    for index, name in enumerate(op.outputs):
        if name in computed[0]:
            a = computed[0][name]
            b = result.as_stored_in_source(graph[name], computed[1][name], a)
            found = judge(graph, op, index, values, (a, b), ("onnxruntime", "onnxruntime"), further.get(name, 0.0))
            findings[name] = worse(findings.get(name), op, name, found)
