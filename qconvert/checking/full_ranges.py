"""Values over the whole range of each tensor at which a check cuts the source, and what the source's own kernels compute of them.

The tensors of a run hardly come near the ends of their ranges, and those of a network that was calibrated well do not on purpose: what a
result does there, such as a Clip that is missing or one too many, shows in no run. Between two cuts it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from qconvert.checking.equal_operators import find_representatives
from qconvert.checking.file_in_runtime import Side, model_file
from qconvert.checking.value_limits import limits_of
from qconvert.conversion.pieces import computed_names
from qconvert.conversion.saving import save
from qconvert.data import extreme_inputs
from qconvert.errors import QConvertError
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Arrays, Graph
from qconvert.operators import kind_of
from qconvert.rewriting.parts import cut

#: Rules of operators that hand values on.
_PASSING = ("move", "relabel", "convert")


def run_full_ranges(
    source: Side, other: Graph, shared: Collection[str], known: Arrays
) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Yield pairs of tensors by name: values over the full ranges of the tensors at which the source is cut, with all results between the
    cuts; and the results at the cuts.

    The source's canonical graph is cut, written and run by its runtime. A tensor that this does not compute as the untouched file does is
    left out, and so is what the runtime refuses to compute.

    Args:
        source: the file.
        other: the result's canonical graph.
        shared: names of the tensors.
        known: all its tensors in a run.
    """
    graph = source.graph
    writers, twins = graph.producers(), find_representatives(graph, shared)
    # Results of data movement and conversions are computed, so that tensors with the same values keep them; so are tensors that the
    # result computes for itself.
    free = {name for name in shared if name not in writers or kind_of(writers[name]).rule not in _PASSING}
    free -= _find_bypassed(graph, other, shared, free)
    try:
        part = cut(graph, free, frozenset(computed_names(graph, {*shared})))
        inner = [name for name in part.graph.tensors if name in shared and name not in free]
        whole = part.graph.evolve(outputs=(*part.graph.outputs, *inner))
        with temporary_folder() as folder:
            suffix = source.path.suffix.lower()
            path = Path(folder, f"pieces{suffix if suffix in source.format.suffixes else source.format.suffixes[0]}")
            save(whole, path, source.format.name)
            inside = Side(model_file(path, source.format, source.kernels), source.format, source.runtime).inside(whole)
    except QConvertError:
        return
    if inside is None:
        return
    back = {own: name for name, own in part.computed.items()}

    def run(feed: Arrays) -> dict[str, Array]:
        """The tensors that the part computes, by their names in the whole graph."""
        return {back.get(name, name): value for name, value in inside.values(feed).items() if name not in feed}

    like = {name: known[name] for name in part.graph.inputs if name in known}
    if len(like) < len(part.graph.inputs):
        return
    within = {name: limits_of(graph, writers, name) for name in like}
    try:
        right = {name for name, value in run(like).items() if name in known and _is_equal(value, known[name])}
    except QConvertError:
        return
    for chosen in extreme_inputs(part.graph, like, 0, within):
        feed = {name: chosen.get(twins.get(name, name), value) for name, value in chosen.items()}
        try:
            found = run(feed)
        except QConvertError:
            continue
        # Where a tensor is both read and computed, pieces before it give another value than pieces after it are fed with.
        yield {**found, **feed}, {name: found[name] for name in (*part.computed, *inner) if name in right and name in found}


def _find_bypassed(graph: Graph, other: Graph, shared: Collection[str], free: Collection[str]) -> set[str]:
    """Those of `free` that the result does not read where the source does, but computes for itself: before it turns an axis, or in a
    function that gives out both."""
    found: set[str] = set()
    its = _find_origins(other, shared)
    while True:
        own = _find_origins(graph, {*free} - found)
        new: set[str] = set()
        for name in shared:
            read = frozenset[str]().union(
                *([item] if item in free and item not in found else own.get(item, ()) for item in its.get(name, ()))
            )
            if not read <= own.get(name, frozenset()):
                new |= own.get(name, frozenset()) - read
        new -= {*graph.inputs}
        if not new:
            return found
        found |= new


def _find_origins(graph: Graph, cuts: Collection[str]) -> dict[str, frozenset[str]]:
    """Return, for each computed tensor, the tensors of `cuts` before it."""
    found: dict[str, frozenset[str]] = {}
    for op in graph.ops:
        read = frozenset[str]().union(*([name] if name in cuts else found.get(name, ()) for name in op.inputs))
        found.update((name, read) for name in op.outputs)
    return found


def _is_equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
