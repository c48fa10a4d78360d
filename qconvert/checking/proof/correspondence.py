"""Which operator of the source each operator of a result is, followed from the inputs, without running anything.

Every tensor of the result is traced to elements of a tensor that the source computes (elements.py). An operator of the result is one of the
source's if both are of one kind, take the same elements, have the same attributes and constants, and store results with the same
quantization (candidates.py); integers may be stored as the other type of as many bits, and axes in another order.

Where operators of the result are none of the source's and yet compute a tensor of its name, all of them together are compared with what
computes it in the source (groups.py).

Operators that only clip codes need no partner. Their mapping of codes is kept, so that a Clip or an activation may stand elsewhere; a lost
or superfluous one is found at the next operator that computes with the codes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from qconvert.checking.comparison_forms import list_layouts
from qconvert.checking.equal_operators import find_representatives
from qconvert.checking.outputs import Border
from qconvert.checking.proof.candidates import Candidate, compare_constants, moves_integers, transpose_shape
from qconvert.checking.proof.elements import Elements, Followed, apply_activation, is_clipped_sum
from qconvert.checking.proof.groups import Group, collect_operators, find_group
from qconvert.checking.same_codes import stored_offset
from qconvert.graph import Graph, Op, Tensor
from qconvert.kernels.kernel import activated_range
from qconvert.operators import kind_of
from qconvert.operators.properties import permutation
from qconvert.passes.constants import deduplicate_constants

_NO_SUCH = "the source has no such operator on what it reads"
#: Of an output that is not one of the source's tensors.
NOT_TRACED = "is not traced to the source's"


@dataclass(frozen=True, slots=True)
class Pair:
    """An operator of the result and the one of the source that it is.

    Attributes:
        source, result: both, in the form that comparisons know.
        moves: whether they move or choose stored integers, and compute none.
        other: in words, which codes of their data are other ones in the result; "" if none is.
        is_fault: whether these are other ones whatever comes after them: data that are only chosen among may be clipped later.
        lost: how far their biases are apart at most, in steps of the result, where one is the other's rounded.
        has_other_scales: whether their data have other scales, so that only all codes say whether they give the same.
    """

    source: Op
    result: Op
    moves: bool = False
    other: str = ""
    is_fault: bool = False
    lost: float = 0.0
    has_other_scales: bool = False


@dataclass(slots=True)
class Trace:
    """The correspondence of two graphs.

    Attributes:
        source, result: the graphs, and the tensors of both as elements of the source's.
        pairs: what was found, in the result's order.
        strange: operators of the result that none of the source accounts for, and why.
        groups: of these, what computes a tensor of the source's.
        clips: operators of source and result that only clip codes, are paired with none, and are after what is paired.
        ends: outputs that are not the source's, and how, in words: NOT_TRACED, or which codes are other ones.
    """

    source: Followed
    result: Followed
    pairs: list[Pair] = field(default_factory=list)
    strange: list[tuple[Op, str]] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    clips: tuple[list[Op], list[Op]] = field(default_factory=lambda: ([], []))
    ends: dict[str, str] = field(default_factory=dict)
    _through: Followed = field(init=False)  # the source, where operators that clip codes are no roots
    _doubtful: dict[str, str] = field(default_factory=dict)  # roots whose codes may be other ones, unless they are clipped later
    _clipping: list[Op] = field(default_factory=list)  # operators of the result that only clip codes
    _readers: dict[Hashable, list[tuple[Followed, Op]]] = field(default_factory=dict)  # the source's operators, by what they read

    @classmethod
    def of(cls, border: Border, graphs: tuple[Graph, Graph]) -> Trace:
        """Follow a result from its inputs to its outputs, both graphs being in the form in which they are compared."""
        source, result = graphs
        trace = cls(Followed(source, source.producers(), {}), Followed(result, result.producers(), {}))
        trace._through = replace(trace.source, elements={})
        trace._read_source()
        for name, other in border.inputs.items():
            trace._trace_input(name, other, border.turned.get(name, ""))
        for op in result.ops:
            trace._trace_operator(op)
        for name, other in border.outputs.items():
            if words := trace._compare_output(name, other):
                trace.ends[name] = words
        unpaired = {id(op) for op in trace.clips[1]}
        trace.strange += [(op, _NO_SUCH) for op in trace._clipping if id(op) not in unpaired]
        return trace

    @property
    def lost_operators(self) -> list[Op]:
        """Operators of the source that compute something and stand for none of the result."""
        found = {id(op) for op in (*(pair.source for pair in self.pairs), *self.clips[0])}
        lost = {id(op): op for readers in self._readers.values() for _, op in readers}
        return [op for key, op in lost.items() if key not in found]

    def finds_the_same(self, other: Trace) -> bool:
        """Whether the operators of two graphs with other sizes correspond in the same way."""
        own, its = (
            (
                [(pair.source.outputs, pair.result.outputs, pair.other) for pair in trace.pairs],
                [op.outputs for op, _ in trace.strange],
                [[op.outputs for op in ops] for ops in trace.clips],
                trace.ends,
            )
            for trace in (self, other)
        )
        return own == its

    def compare_states(self) -> Iterator[str]:
        """In sentences, which states are not the source's."""
        own, others = self.source.graph.states, self.result.graph.states
        for name in dict.fromkeys((*own, *others)):
            before, after = own.get(name), others.get(name)
            if before is None or after is None:
                yield f"the state {name!r} is on one side alone"
            elif before.shape != after.shape or stored_offset(before, after) is None:
                yield f"the state {name!r} is stored otherwise"
            elif (before.data is None) != (after.data is None):
                yield f"the state {name!r} has a first value on one side alone"
            elif before.data is not None and after.data is not None and (words := compare_constants(before, after, ())):
                yield f"the state {name!r} {words}"

    def _compare_output(self, name: str, other: str) -> str:
        """In words, how an output of the result is another one; "" if it has the elements of the source's in their order."""
        given, before, after, words = self.result.elements.get(other), self.source.graph[name], self.result.graph[other], NOT_TRACED
        if given is None or name not in self.source.elements or before.shape != after.shape:
            return words
        for own in (self.source.elements[name], self._through.elements[name]):
            if before.is_quantized and after.is_quantized and stored_offset(before, after) != given.offset - own.offset:
                return NOT_TRACED
            if own.is_transposed(given, range(before.rank or 0)):
                words, doubt = self.source.describe_other_codes(own, given), self._doubtful.get(given.root, "")
                if not words or doubt:
                    self._collect_clips(own, given)
                    return NOT_TRACED if words else doubt
        return words

    def _read_source(self) -> None:
        """Source tensors as elements of those that operators compute, and the operators by what they read."""
        graph, own, through = self.source.graph, self.source.elements, self._through.elements
        first = find_representatives(deduplicate_constants(graph, None)[0])
        for name in graph.inputs:
            own[name] = through[name] = Elements.of(graph[name])
        for op in graph.ops:
            names = [name for name in op.outputs if name]
            twins = {name: first.get(name, name) for name in names}  # where the source computes them twice
            if names and all(twin != name and graph[twin].shares_quantization(graph[name]) for name, twin in twins.items()):
                for known in (own, through):
                    known.update((name, known[twin]) for name, twin in twins.items())
                continue
            moved = self.source.follow_movement(op)
            found = self._add_reader(op, self.source) if moved is None else moved
            clipped = self._through.follow_clip(op) if moved is None else None
            if clipped is None and all(own.get(name) is through.get(name) for name in op.inputs):
                clipped = found
            elif clipped is None:
                clipped = self._through.follow_movement(op) or self._add_reader(op, self._through)
            own.update(zip(names, found, strict=True))
            through.update(zip(names, clipped, strict=True))

    def _add_reader(self, op: Op, side: Followed) -> list[Elements]:
        """The results of an operator of the source, as roots: those of sums of products before their activation. It becomes a reader."""
        key, graph = side.describe_operands(op), self.source.graph
        if side is self.source or key != self.source.describe_operands(op):
            self._readers.setdefault(key, []).append((side, op))
        roots = [Elements.of(graph[name]) for name in op.outputs if name]
        if not is_clipped_sum(op, graph):
            return roots
        return [apply_activation(graph[root.root], activated_range(graph, op), root) for root in roots]

    def _trace_input(self, name: str, other: str, layout: str) -> None:
        """An input of the result, which may be stored as the other type, or turned."""
        before, after = self.source.graph[name], self.result.graph[other]
        if before.rank != after.rank:
            return
        perm = tuple(range(before.rank or 0))
        if layout or (before.shape != after.shape and before.rank is not None):
            orders = [permutation(layout, before.rank or 0)] if layout else list_layouts(before.rank or 0)
            perm = next((p for p in orders if transpose_shape(before, p) == after.shape), perm)
        if transpose_shape(before, perm) == after.shape and (offset := stored_offset(before, after, perm)) is not None:
            self.result.elements[other] = Elements.of(before, offset, perm)

    def _trace_operator(self, op: Op) -> None:
        elements = self.result.elements
        if (found := self.result.follow_movement(op)) is not None:
            elements.update(zip(filter(None, op.outputs), found, strict=True))
            return
        reads = self.result.describe_operands(op)
        why = "what it reads is not traced to the source" if reads is None else _NO_SUCH
        likely: tuple[int, ...] = ()
        differing: list[tuple[Candidate, tuple[int, ...], str]] = []
        for side, source in self._readers.get(reads, []) if reads is not None else []:
            candidate = Candidate(side, source, self.result, op)
            perm, reason = candidate.find_permutation()
            if perm is None:
                why, likely = reason, likely or next(candidate.list_orders(), ())
            elif not (words := candidate.describe_other_codes()):
                self._add_pair(candidate, perm, self._find_doubts(op))
                return
            elif candidate.is_likely():
                differing.append((candidate, perm, words))
        if (found := self.result.follow_clip(op)) is not None:
            elements.update(zip(op.outputs, found, strict=True))
            self._clipping.append(op)
        elif differing:
            self._add_pair(*differing[0], is_sure=not self._find_doubts(op))
        else:
            self.strange.append((op, why))
            self._resume_after(op, likely)

    def _add_pair(self, candidate: Candidate, perm: Sequence[int], other: str = "", is_sure: bool = True) -> None:
        source, result = candidate.op, candidate.other
        ends, moves = self._is_clip_boundary(result), moves_integers(self.source.graph, source)
        distance, is_scaled = candidate.measure_bias_distance(), candidate.has_other_scales()
        self.pairs.append(Pair(source, result, moves, other, ends and is_sure, distance, is_scaled))
        if other and not ends:
            self._doubtful.update((name, other) for name in source.outputs if name)
        for before, after in zip(source.inputs, result.inputs, strict=True):
            if before in candidate.source.elements and after in self.result.elements:
                self._collect_clips(candidate.source.elements[before], self.result.elements[after])
        for before, after in zip(source.outputs, result.outputs, strict=True):
            turned = candidate.find_result_permutation(before, perm) if after and before else None
            if turned is not None:
                offset = stored_offset(self.source.graph[before], self.result.graph[after], turned)
                assert offset is not None
                found = Elements.of(self.source.graph[before], offset, turned)
                if is_clipped_sum(result, self.result.graph):
                    found = apply_activation(self.result.graph[after], activated_range(self.result.graph, result), found)
                self.result.elements[after] = found

    def _is_clip_boundary(self, op: Op) -> bool:
        """Whether what is clipped after an operator of the result is not what is clipped before it."""
        kind = kind_of(op)
        if kind.rule == "convert":
            return op.outputs[0] in self.result.graph.outputs
        return kind.rule == "real" and not kind.chooses and not kind.clips

    def _find_doubts(self, op: Op) -> str:
        """Which codes of what an operator of the result reads may be other ones than in the source, in words."""
        roots = (known.root for name in op.inputs if (known := self.result.elements.get(name)))
        return next((self._doubtful[root] for root in roots if root in self._doubtful), "")

    def _collect_clips(self, own: Elements, given: Elements) -> None:
        """Collect operators that clip the elements of a tensor on either side."""
        for known, side in zip(self.clips, (own, given), strict=True):
            known += [op for op in side.by if all(op is not other for other in known)]

    def _resume_after(self, op: Op, likely: tuple[int, ...]) -> None:
        """Take the results of an operator that is none of the source's for those of the same names: what follows is compared too.

        Their axes are in the order `likely`, that of the data that it is computed from, or another one that fits their shapes.
        """
        for name in filter(None, op.outputs):
            before, after, own = self.source.graph.tensors.get(name), self.result.graph[name], self.source.elements.get(name)
            if before is None or own is None or after.rank not in (None, before.rank):
                continue
            found = collect_operators(self.result.writers, self.result.graph, name, self.result.elements)
            data = [self.result.elements[item] for item in (found[1] if found is not None else ())]
            # Elements that are listed one by one have the order of what they are of.
            orders_read = (item.perm or self.result.elements.get(item.root, item).perm for item in data)
            rank = before.rank or 0
            orders = [likely, *filter(None, orders_read), tuple(range(rank)), *list_layouts(rank)]
            perm = next((order for order in orders if len(order) == rank and _may_have_shape(after, transpose_shape(before, order))), None)
            if perm is None or (offset := stored_offset(before, after, perm)) is None:
                continue
            if own.root != name:
                if own.perm is None or perm != tuple(range(rank)):
                    continue
                root = replace(own, offset=own.offset + offset)
            else:
                root = replace(Elements.of(before, offset, perm), codes=own.codes)
            if (group := find_group(self.source, self.result, name, perm, self._doubtful)) is not None:
                self.groups.append(group)
                for given, read in group.inputs if group.is_aligned else ():
                    self._collect_clips(self.source.elements[given], self.result.elements[read])
            self.result.elements[name] = root


def _may_have_shape(tensor: Tensor, shape: tuple[int | str, ...] | None) -> bool:
    """Whether a tensor, of which sizes may be known only at run time, may have a shape."""
    if tensor.shape is None or shape is None:
        return tensor.shape is None
    return all(isinstance(own, str) or own == size for own, size in zip(tensor.shape, shape, strict=True))
