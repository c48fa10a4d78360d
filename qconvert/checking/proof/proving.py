"""prove(): which operators of a result give the source's integers for every input, and whether its outputs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.checking.checked_file import Side, sides_of
from qconvert.checking.outputs import Border
from qconvert.checking.proof.classes import EQUAL_CLASSES, Proof, Proved
from qconvert.checking.proof.correspondence import NOT_TRACED, Trace
from qconvert.checking.proof.deciding import ROUNDS_INPUTS, Computed, decided, decided_clip
from qconvert.checking.proof.elements import Elements, clipped
from qconvert.checking.proof.running import integers_by_running
from qconvert.conversion.in_memory import Model, as_file
from qconvert.graph import Graph, Op
from qconvert.plugins import runtimes
from qconvert.plugins.option_types import ReadOptions

__all__ = ["proof_of", "prove"]


@with_checked_arguments
def prove(
    source: Model,
    result: Model,
    *,
    source_format: str = "",
    result_format: str = "",
    kernels: str | Sequence[str] = (),
    **options: Unpack[ReadOptions],
) -> Proof:
    """Decides which operators of a converted model give the source's integers for every input; neither model is run.

    The result is followed from its inputs, operator by operator: what each reads, its attributes, constants and grids have to be those of
    an operator of the source, but for the order of axes and the type that stores the same integers. Then the kernels of both runtimes are
    compared, as their rows state them: of one or two operands of 8 bits for all 256 codes or 65,536 pairs, of sums of products by the
    thresholds between integers, over every accumulator that the weights allow. A kernel without a reference is run alone, on all codes.

    Args:
        source, result: as of check().
        source_format, result_format: the names of their formats, if suffix and content do not determine them.
        kernels: what runs files of a format, as of check().
        options: of the readers of both formats.

    Raises:
        QConvertError: a file cannot be read, or nothing runs such files.
    """
    formats = tuple("" if isinstance(model, Graph) else name for model, name in ((source, source_format), (result, result_format)))
    with as_file(source, source_format, runs=True) as before, as_file(result, result_format, runs=True) as after:
        return proof_of(sides_of(before, after, kernels, options, (formats[0], formats[1]))[0])


def proof_of(sides: tuple[Side, Side]) -> Proof:
    """Proves what can be proved of a result, the second side, beside its source."""
    source, result = sides
    border = Border.of(source.graph, result.graph)
    trace = Trace.of(border)
    own, other = _Read(source, trace.source), _Read(result, trace.result)
    found = [decided(pair, trace, own.computed(pair.source), other.computed(pair.result)) for pair in trace.pairs]
    starts = [
        item
        for pair, item in zip(trace.pairs, found, strict=True)
        if item.why == ROUNDS_INPUTS and trace.elements[pair.result.inputs[0]].root in trace.source.inputs
    ]
    found += [Proved(op.source or op.kind, next(filter(None, op.outputs), ""), "?", "", why) for op, why in trace.strange]
    for ops, side in zip(trace.clips, (own, other), strict=True):
        clips = [side.decided_clip(op) for op in ops]
        found += clips if side is other else [item for item in clips if item.class_ not in EQUAL_CLASSES]
    ends = {name: f"output {name!r} {words}" for name, words in trace.ends.items()}
    problems = (*border.problems, *trace.states_differ(), *ends.values())
    faults = [f"{item.operator} ({item.output!r}): {pair.other}" for pair, item in zip(trace.pairs, found, strict=False) if pair.other]
    faults += [text for name, text in ends.items() if trace.ends[name] != NOT_TRACED]
    unequal = [item for item in found if item.class_ not in EQUAL_CLASSES]
    lost = tuple(op.source or op.kind for op in trace.lost)
    whole, begun = not problems and not unequal, not problems and all(item in starts for item in unequal)
    return Proof(tuple(found), problems, lost, tuple(faults), whole, begun)


class _Read:
    """The operators of a side as they were read, and what computes them."""

    def __init__(self, side: Side, restated: Graph) -> None:
        self._side, self._restated, self._producers = side, restated, side.graph.producers()

    def decided_clip(self, op: Op) -> Proved:
        """The class of an operator of this side that clips codes and is paired with none."""
        exact = clipped(self._restated, op, Elements.of(self._restated[op.inputs[0]]))
        assert exact is not None and exact.codes is not None
        return decided_clip(op.source or op.kind, self.computed(op), exact.codes)

    def computed(self, op: Op) -> Computed:
        """An operator in the form of comparisons as the side computes it: as it was read, if it was, and its kernels.

        Of kernels that the runtime takes in the place of the chosen ones it is not known which variant of theirs runs, and so no integers.
        """
        side, name = self._side, next(filter(None, op.outputs), "")
        chosen = side.kernels_of(name)
        runtime, _, kernels = chosen.partition(":")
        rows = (side.runtime if runtime == side.runtime.name else runtimes()[runtime]).rows(kernels)
        if chosen != side.choice:
            rows = replace(rows, given=tuple(replace(row, reference=None) for row in rows.rows))
        read = self._producers.get(name)
        graph = self._restated if read is None or read.inputs[:1] != op.inputs[:1] else side.graph
        found = op if read is None or graph is self._restated else read
        has_forms = side.kernels == side.runtime.kernels[0]
        return Computed(graph, found, rows, partial(integers_by_running, side), has_forms)
