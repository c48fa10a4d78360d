"""The per-operator check, between any two runtimes: every operator of the result is fed with the source's own tensors.

Both models are cut at the tensors that both have, by the names of the source's canonical graph, and each piece runs in its side's runtime.
The truth is the source's file: its tensors come from the untouched file in its own runtime; those that the runtime does not know
come from the evaluator. What the source computes in a piece is what its runtime gives for it: the tensor itself where nothing is fused
away, else the piece of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qconvert.checking.canonical_pieces import canonical_pieces, varying
from qconvert.checking.checked_file import Side
from qconvert.checking.exchange import Exchange, transposed
from qconvert.checking.findings import Finding, joined
from qconvert.checking.further_roundings import further_reach
from qconvert.checking.known_tensors import completed
from qconvert.checking.operator_finding import name_changed, operator_finding, unmatched
from qconvert.checking.outputs import Border
from qconvert.checking.reading_errors import reading_errors
from qconvert.checking.requantized import Requantized
from qconvert.errors import InvalidModelError
from qconvert.graph import Array, Graph, Tensor
from qconvert.plugins import Inside, LoadedModel, Pieces

__all__ = ["check_operators"]

_BYTES = {"int8", "uint8"}


@dataclass(slots=True)
class _Source:
    """The source: its tensors in a run, and what each operator computes from them by itself."""

    graph: Graph
    inside: Inside | None
    pieces: Pieces | None = None

    def values(self, feed: Mapping[str, Array]) -> tuple[dict[str, Array], frozenset[str]]:
        """Stored values by name, and which of them its runtime computed."""
        measured = dict(feed) if self.inside is None else self.inside.values({name: feed[name] for name in self.graph.inputs})
        known = measured if self.inside is not None and self.inside.cuts else completed(self.graph, measured)
        return known, frozenset(measured.keys() - feed.keys())

    def computed(self, values: Mapping[str, Array], measured: frozenset[str]) -> dict[str, Array]:
        if self.pieces is not None:
            return self.pieces.run(values)
        return {name: values[name] for name in measured}


def check_operators(
    source: Side,
    result: Side,
    feeds: list[dict[str, Array]],
    model: LoadedModel,
    border: Border,
    changed: Mapping[str, str],
    declared: frozenset[str],
    progress: Callable[[str, int, int], None],
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """A finding for each operator output of the source that both sides have, and lines on how it was done.

    Args:
        source, result: the files.
        feeds: stored inputs of each run of the source.
        model: the result, loaded.
        border: which input and output of one side is which of the other.
        changed: what is not the source's in constants, scales and zero points, by the tensor's name, in words.
        declared: names of the tensors of which the conversion declared that they have other values or another grid.
        progress: is called with (what, done, total).

    Raises:
        QConvertError: a file cannot be read, or a runtime refuses one of the cut models.
    """
    graph, other = source.graph, result.graph
    left, inside = _Source(graph, source.inside(graph)), result.inside(graph)
    first = left.values(feeds[0])
    names = {name for name in first[0] if name in graph.tensors and not graph[name].is_constant}
    if inside is not None and inside.cuts:
        shared = {name for name in names & inside.names if name not in other.tensors or _comparable(graph[name], other[name])}
        pieces = inside.pieces(frozenset(shared))
    else:
        shared = {name for name in names & varying(other) if _comparable(graph[name], other[name])}
        pieces = canonical_pieces(result, shared)
    if left.inside is None:
        left.pieces = canonical_pieces(source, shared)
    elif left.inside.cuts:
        left.pieces = left.inside.pieces(frozenset(shared))
    if not pieces.computed or (left.pieces is not None and not left.pieces.computed):
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators")
    turned = transposed(other) if source.runtime.layout != result.runtime.layout else frozenset()
    exchange = Exchange(pieces, turned, result.runtime.layout)
    restated = Requantized.of(graph, other, declared)
    further, kernels = further_reach(graph, other, shared), (source.choice, result.choice)
    findings: dict[str, Finding] = {}
    misread: dict[str, Finding] = {}
    for run, feed in enumerate(feeds):
        values, measured = left.values(feed) if run else first
        references = left.computed(values, measured)
        stored = restated.values(values)
        found = pieces.run({name: exchange.to_result(restated.graph[name], stored[name]) for name in pieces.fed})
        for position, op in enumerate(graph.ops):
            for index, name in enumerate(op.outputs):
                if name in found and name in references:
                    pair = references[name], exchange.to_source(restated.graph[name], found[name], references[name])
                    extra = further.get(name, 0.0)
                    if restated.concerns(op):
                        finding = restated.finding(op, index, stored, *pair, kernels[1], extra)
                    else:
                        finding = operator_finding(graph, op, index, values, pair, kernels, extra)
                    findings[name] = joined(findings.get(name), op, name, finding)
            progress("operators", run * len(graph.ops) + position + 1, len(feeds) * len(graph.ops))
        if inside is not None and not inside.cuts:
            own = border.matched_inputs(feed, model)
            misread.update(reading_errors(result, inside, pieces, {name: own[name] for name in model.inputs}))
    name_changed(graph, dict(changed), findings)
    _name_misread(graph, misread, findings)
    return tuple(findings.values()), (unmatched(graph, findings), _unproven(result, inside))


def _comparable(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one name hold values that can be exchanged."""
    if a.is_constant or b.is_constant or (a.rank is not None and b.rank is not None and a.rank != b.rank):
        return False
    stored_as_real = "float32" in (a.dtype, b.dtype) and a.quantization is not None and a.quantization.is_per_tensor
    return a.dtype == b.dtype or {a.dtype, b.dtype} == _BYTES or stored_as_real


def _name_misread(graph: Graph, misread: Mapping[str, Finding], findings: dict[str, Finding]) -> None:
    """A reading error outweighs whatever else is true of an operator."""
    for op in graph.ops:
        for name in op.outputs:
            if name in misread:
                findings[name] = joined(None, op, name, misread[name])


def _unproven(result: Side, inside: Inside | None) -> str:
    """A line on pieces that could not be held against the file's own tensors."""
    if inside is not None:
        return ""
    return f"{result.runtime.title} gives out no inner tensors: how {result.path.name} was read is not checked against them"
