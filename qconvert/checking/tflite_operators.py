"""The per-operator check of .tflite results: the result's graph is cut at the tensors that the source has too, and runs in LiteRT.

The canonical graph is cut, not the file: the writer is the reader's mirror, so the cut graph, written, has the file's own operators.
Between the cuts stand islands, one for each operator of the source that kept its output; one interpreter runs them all, each fed with
the source's own values. An ONNX source is cut at the same tensors and runs in onnxruntime; a .tflite source gives out all its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qconvert.checking.constants import changed_quantization
from qconvert.checking.further_roundings import computable, further_reach
from qconvert.checking.islands import COMPUTED, Islands, transposed
from qconvert.checking.judging import OperatorFinding, judge, name_changed, unmatched, worse
from qconvert.errors import InvalidModelError, OptionError
from qconvert.files import map_file
from qconvert.graph import Array, Graph, Tensor
from qconvert.plugins import format_of

__all__ = ["check_into_tflite"]

_TO_LAST = (0, 2, 3, 1)
_BYTES = {"int8", "uint8"}


class _Source(Protocol):
    """The source in its runtime; `kernels` as classify.kernel_reach() names them."""

    @property
    def kernels(self) -> str: ...

    def run(self, feed: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """The source's tensors in a run, and what each operator computes from them by itself; stored values by name."""
        ...


def check_into_tflite(
    source: Path,
    result: Path,
    graph: Graph,
    feeds: list[dict[str, Array]],
    kernels: str,
    optimize: bool,
    progress: Callable[[str, int, int], None],
) -> tuple[tuple[OperatorFinding, ...], str]:
    """A finding for each operator output of the source that both files name, and a line on the operators that could not be matched.

    Args:
        source: an .onnx or .tflite file.
        result: a .tflite file.
        graph: the source's canonical graph.
        feeds: stored inputs of each run.
        kernels: LiteRT's kernels, "default" or "reference".
        optimize: whether onnxruntime optimizes the graph of an .onnx source.
        progress: is called with (what, done, total).

    Raises:
        QConvertError: the result cannot be read, or a runtime refuses one of the cut models.
    """
    from qconvert.conversion import load
    from qconvert.formats.tflite.writer import build
    from qconvert.runtimes.litert import LiteRT

    other = load(result)
    side, shared = _source(source, graph, _shared(graph, other), kernels, optimize)
    part, islands = _cut(graph, other, shared)
    runtime = LiteRT(build(part, {}), kernels)
    further = further_reach(graph, other, shared)
    findings: dict[str, OperatorFinding] = {}
    for run, feed in enumerate(feeds):
        values, references = side.run(feed)
        found = runtime.run({name: islands.as_stored_in_result(graph[name], values[name]) for name in islands.fed})
        for position, op in enumerate(graph.ops):
            for index, name in enumerate(op.outputs):
                if name in islands.computed and name in references:
                    pair = references[name], islands.as_stored_in_source(graph[name], found[islands.computed[name]], references[name])
                    finding = judge(graph, op, index, values, pair, (side.kernels, kernels), further.get(name, 0.0))
                    findings[name] = worse(findings.get(name), op, name, finding)
            progress("operators", run * len(graph.ops) + position + 1, len(feeds) * len(graph.ops))
    name_changed(graph, changed_quantization(graph, other), findings)
    return tuple(findings.values()), unmatched(graph, findings)


def _shared(graph: Graph, other: Graph) -> set[str]:
    """Names of the activations that both graphs have in comparable types and shapes; LiteRT gives out nothing that is constant."""
    fixed = {tensor.name for tensor in other.constants()}
    for op in other.ops:
        if op.inputs and all(not name or name in fixed for name in op.inputs):
            fixed.update(op.outputs)
    both = graph.tensors.keys() & other.tensors.keys() - fixed
    return {name for name in both if _comparable(graph[name], other[name])}


def _comparable(a: Tensor, b: Tensor) -> bool:
    if a.is_constant or b.is_constant or (a.rank is not None and b.rank is not None and a.rank != b.rank):
        return False
    stored_as_real = "float32" in (a.dtype, b.dtype) and a.quantization is not None and a.quantization.is_per_tensor
    return a.dtype == b.dtype or {a.dtype, b.dtype} == _BYTES or stored_as_real


def _cut(graph: Graph, other: Graph, shared: set[str]) -> tuple[Graph, Islands]:
    """The result's graph cut at the shared tensors, without the operators that no shared tensor needs or whose inputs are not known."""
    ops = computable(other, shared)
    written = {name for op in ops for name in op.outputs if name in shared}
    read = {name for op in ops for name in op.inputs if name in shared}
    computed = {name: name + COMPUTED for name in other.tensors if name in written}
    if not computed:
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators")
    fed = tuple(name for name in other.tensors if name in read)
    part = other.evolve(
        tensors=[replace(other[name], name=new) for name, new in computed.items()],
        ops=[replace(op, outputs=tuple(computed.get(name, name) for name in op.outputs)) for op in ops],
        inputs=fed,
        outputs=tuple(computed.values()),
        signatures=(),
        metadata={},
    )
    names = {*fed, *computed}
    shapes = {name: _sizes(other[name]) for name in names}
    dtypes = {name: other[name].dtype for name in names}
    turned = transposed(other.metadata) if graph.is_from("onnx") else ()  # a .tflite source has the same layout
    return part, Islands(b"", fed, computed, shapes, dtypes, frozenset(turned), _TO_LAST)


def _sizes(tensor: Tensor) -> tuple[int | None, ...] | None:
    return None if tensor.shape is None else tuple(size if isinstance(size, int) else None for size in tensor.shape)


def _source(path: Path, graph: Graph, shared: set[str], kernels: str, optimize: bool) -> tuple[_Source, set[str]]:
    """The source in its runtime, and those of the shared names whose values it gives."""
    kind = format_of(path).name
    if kind == "onnx":
        from qconvert.checking.onnx_operators import OnnxSource

        onnx = OnnxSource.load(path, graph, shared, optimize)
        return onnx, onnx.names
    if kind == "tflite":
        lite = _LiteSource(path, graph, kernels)
        return lite, shared & {*lite.names, *graph.inputs}
    raise OptionError(f"operators can be checked from .onnx and .tflite files only, not from {kind}", file=str(path))


@dataclass(slots=True)
class _LiteSource:
    """A .tflite source: every tensor of one run is what its operator computed."""

    kernels: str
    names: list[str]
    _probe: Any
    _inputs: tuple[str, ...]

    def __init__(self, path: Path, graph: Graph, kernels: str) -> None:
        from qconvert.formats.tflite.probe import accepted_copy, with_all_outputs
        from qconvert.runtimes.litert import LiteRT

        model, self.names = with_all_outputs(accepted_copy(bytes(map_file(path))))
        self._probe, self._inputs, self.kernels = LiteRT(model, kernels), graph.inputs, kernels

    def run(self, feed: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        found = self._probe.run_in_order([feed[name] for name in self._inputs])
        computed = {name: np.asarray(value) for name, value in zip(self.names, found, strict=True)}
        return {**feed, **computed}, computed
