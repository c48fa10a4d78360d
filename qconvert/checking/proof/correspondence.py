"""Which operator of the source each operator of a result is, followed from the inputs, without running anything.

Every tensor of the result is traced to elements of a tensor that the source computes (elements.py). An operator of the result is one of the
source's if both are of one kind, take the same elements, have the same attributes and constants, and store results with the same
quantization; integers may be stored as the other type of as many bits, and axes in another order.

Where operators of the result are none of the source's and yet compute a tensor of its name, all of them together are compared with what
computes it in the source (Group).

Operators that only clip codes need no partner. Their mapping of codes is kept, so that a Clip or an activation may stand elsewhere; a lost
or superfluous one is found at the next operator that computes with the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qconvert.checking.comparison_forms import fix_sizes, list_layouts
from qconvert.checking.outputs import Border
from qconvert.checking.proof.stored_values import (
    Elements,
    apply_activation,
    collect_operators,
    compare_constants,
    describe_other_codes,
    follow_clip,
    follow_elements,
    has_byte_codes,
    is_clipped_sum,
    is_rounded_bias,
    stored_offset,
)
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.kernels.kernel import activated_range
from qconvert.operators import kind_of
from qconvert.operators.properties import Suits, permutation
from qconvert.rules.differences import attribute_differences

#: Attributes that say how operators compute, or the order of their axes, but not what they compute.
_HOW = ("arithmetic", "data_format", "activation", "axis")
_NO_SUCH = "the source has no such operator on what it reads"
#: Of an output that is not one of the source's tensors.
NOT_TRACED = "is not traced to the source's"
#: Gives the form of a graph in which it is compared.
Form = Callable[[Graph], Graph]


@dataclass(frozen=True, slots=True)
class Pair:
    """An operator of the result and the one of the source that it is.

    Attributes:
        source, result: both, in the form that comparisons know.
        moves: whether they move or choose stored integers, and compute none.
        other: in words, which codes of their data are other ones in the result; "" if none is.
        is_fault: whether these are other ones whatever comes after them: data that are only chosen among may be clipped later.
        lost: how far their biases are apart at most, in steps of the result, where one is the other's rounded.
    """

    source: Op
    result: Op
    moves: bool = False
    other: str = ""
    is_fault: bool = False
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Operators of the result that are none of the source's one by one, and that compute a tensor of its name.

    Attributes:
        name: the tensor's, on both sides.
        source, result: the operators of each side, from what both read to the tensor.
        inputs: the tensors that they read, of source and result; constants are none.
        is_aligned: whether each of these and the tensor have their elements in the same order of axes, with integers that mean the same.
        is_rewritten: whether the result has other kinds of operators than the source, as a formula of the source's operator does, or
            dequantizes constants that the source's operator takes as they are stored.
    """

    name: str
    source: tuple[Op, ...]
    result: tuple[Op, ...]
    inputs: tuple[tuple[str, str], ...]
    is_aligned: bool
    is_rewritten: bool


@dataclass(frozen=True, slots=True)
class _Reader:
    """An operator of the source, and of what its tensors are elements."""

    op: Op
    own: Mapping[str, Elements]


@dataclass(slots=True)
class Trace:
    """The correspondence of two graphs.

    Attributes:
        source, result: the graphs.
        pairs: what was found, in the result's order.
        strange: operators of the result that none of the source accounts for, and why.
        groups: of these, what computes a tensor of the source's.
        elements: the result's tensors as elements of the source's.
        clips: operators of source and result that only clip codes, are paired with none, and are after what is paired.
        ends: outputs that are not the source's, and how, in words: NOT_TRACED, or which codes are other ones.
    """

    source: Graph
    result: Graph
    pairs: list[Pair] = field(default_factory=list)
    strange: list[tuple[Op, str]] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    elements: dict[str, Elements] = field(default_factory=dict)
    clips: tuple[list[Op], list[Op]] = field(default_factory=lambda: ([], []))
    ends: dict[str, str] = field(default_factory=dict)
    _own: dict[str, Elements] = field(default_factory=dict)
    _through: dict[str, Elements] = field(default_factory=dict)  # the same, where operators that clip codes are no roots
    _doubtful: dict[str, str] = field(default_factory=dict)  # roots whose codes may be other ones, unless they are clipped later
    _clipping: list[Op] = field(default_factory=list)  # operators of the result that only clip codes
    _readers: dict[tuple[Any, ...], list[_Reader]] = field(default_factory=dict)
    _writers: Mapping[str, Op] = field(default_factory=dict)
    _result_writers: Mapping[str, Op] = field(default_factory=dict)

    @classmethod
    def of(cls, border: Border, forms: tuple[Form, Form]) -> Trace:
        """Follow a result from its inputs to its outputs, after each graph is brought to the form in which it is compared."""
        source, result = fix_sizes(border)
        trace = cls(forms[0](source), forms[1](result))
        trace._read_source()
        trace._result_writers = trace.result.producers()
        for name, other in border.inputs.items():
            trace._trace_input(name, other, name in border.turned)
        for op in trace.result.ops:
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
        lost = {id(reader.op): reader.op for readers in self._readers.values() for reader in readers}
        return [op for key, op in lost.items() if key not in found]

    def _compare_output(self, name: str, other: str) -> str:
        """In words, how an output of the result is another one; "" if it has the elements of the source's in their order."""
        given, words = self.elements.get(other), NOT_TRACED
        for known in (self._own, self._through):
            own = known.get(name)
            if given is None or own is None or self.source[name].shape != self.result[other].shape:
                return words
            if own.is_transposed(given, range(self.source[name].rank or 0)):
                words, doubt = describe_other_codes(self.source, self._writers, own, given), self._doubtful.get(given.root, "")
                if not words or doubt:
                    self._collect_clips(own, given)
                    return NOT_TRACED if words else doubt
        return words

    def compare_states(self) -> Iterator[str]:
        """In sentences, which states are not the source's."""
        for name in dict.fromkeys((*self.source.states, *self.result.states)):
            before, after = self.source.states.get(name), self.result.states.get(name)
            if before is None or after is None:
                yield f"the state {name!r} is on one side alone"
            elif before.shape != after.shape or stored_offset(before, after) is None:
                yield f"the state {name!r} is stored otherwise"
            elif (before.data is None) != (after.data is None):
                yield f"the state {name!r} has a first value on one side alone"
            elif before.data is not None and after.data is not None and (words := compare_constants(before, after, ())):
                yield f"the state {name!r} {words}"

    def _read_source(self) -> None:
        """Source tensors as elements of those that operators compute, and the operators by what they read."""
        self._writers = self.source.producers()
        for name in self.source.inputs:
            self._own[name] = self._through[name] = Elements.of(self.source[name])
        for op in self.source.ops:
            moved = follow_elements(self.source, op, self._own)
            own = self._add_reader(op, self._own) if moved is None else moved
            through = follow_clip(self.source, op, self._through) if moved is None else None
            if through is None and all(self._own.get(name) is self._through.get(name) for name in op.inputs):
                through = own
            elif through is None:
                through = follow_elements(self.source, op, self._through) or self._add_reader(op, self._through)
            names = [name for name in op.outputs if name]
            self._own.update(zip(names, own, strict=True))
            self._through.update(zip(names, through, strict=True))

    def _add_reader(self, op: Op, known: dict[str, Elements]) -> list[Elements]:
        """The results of an operator of the source, as roots; those of its twin where it has one, else it becomes a reader."""
        key = _reader_key(self.source, op, known)
        readers = self._readers.setdefault(key, [])
        twin = next((reader.op for reader in readers if reader.own is known and self._is_twin(reader.op, op, known)), None)
        if twin is not None:
            return [known[name] for name in twin.outputs if name]
        if known is self._own or key != _reader_key(self.source, op, self._own):
            readers.append(_Reader(op, known))
        return [self._with_activation(op, name, Elements.of(self.source[name])) for name in op.outputs if name]

    def _is_twin(self, op: Op, other: Op, known: Mapping[str, Elements]) -> bool:
        """Whether two operators of the source compute the same of the same data."""
        if kind_of(op).is_structural or not any(name in known for name in op.inputs):
            return False  # without data, such as random numbers, each run is another one
        forms = [(item.kind, item.attributes, list(map(bool, item.inputs)), list(map(bool, item.outputs))) for item in (op, other)]
        if forms[0] != forms[1]:
            return False
        outputs = zip(op.outputs, other.outputs, strict=True)
        if not all(_has_same_type(self.source[a], self.source[b]) for a, b in outputs if a):
            return False
        return all(self._is_same(a, b, known) for a, b in zip(op.inputs, other.inputs, strict=True) if a)

    def _is_same(self, name: str, other: str, known: Mapping[str, Elements]) -> bool:
        """Whether two tensors of the source have the same elements, or are equal constants."""
        a, b = self.source[name], self.source[other]
        if a.data is not None or b.data is not None:
            return a.data is not None and b.data is not None and not compare_constants(a, b, ())
        return name == other or (_has_same_type(a, b) and name in known and known[name].is_same(known[other], a.rank or 0))

    def _with_activation(self, op: Op, name: str, root: Elements) -> Elements:
        """The result of an operator of the source, whose root it is: of sums of products before their activation."""
        if not is_clipped_sum(op, self.source):
            return root
        return apply_activation(self.source[name], activated_range(self.source, op), root)

    def _trace_input(self, name: str, other: str, is_turned: bool) -> None:
        """An input of the result, which may be stored as the other type, or turned."""
        before, after = self.source[name], self.result[other]
        if before.rank != after.rank or (offset := stored_offset(before, after)) is None:
            return
        perm = tuple(range(before.rank or 0))
        if is_turned or (before.shape != after.shape and before.rank is not None):
            perm = next((p for p in list_layouts(before.rank or 0) if _transpose_shape(before, p) == after.shape), perm)
        if _transpose_shape(before, perm) == after.shape:
            self.elements[other] = Elements.of(before, offset, perm)

    def _trace_operator(self, op: Op) -> None:
        found = follow_elements(self.result, op, self.elements)
        if found is not None:
            self.elements.update(zip(filter(None, op.outputs), found, strict=True))
            return
        reads = _reader_key(self.result, op, self.elements)
        candidates = self._readers.get(reads, []) if reads else []
        why = "what it reads is not traced to the source" if not reads else _NO_SUCH
        likely: tuple[int, ...] = ()
        differing: list[tuple[_Reader, tuple[int, ...], str]] = []
        for other in candidates:
            turned, reason = self._find_permutation(other, op)
            if turned is None:
                why, likely = reason, likely or next(self._list_orders(other, op), ())
            elif not (words := self._compare_data(other, op)):
                self._add_pair(other, op, turned, self._find_doubts(op))
                return
            elif self._is_likely_pair(other.op, op):
                differing.append((other, turned, words))
            else:
                why = words
        if (found := follow_clip(self.result, op, self.elements)) is not None:
            self.elements.update(zip(op.outputs, found, strict=True))
            self._clipping.append(op)
            return
        if differing:
            reader, turned, words = differing[0]
            self._add_pair(reader, op, turned, words, is_sure=not self._find_doubts(op))
            return
        self.strange.append((op, why))
        self._resume_after(op, likely)

    def _is_clip_boundary(self, op: Op) -> bool:
        """Whether what is clipped after an operator of the result is not what is clipped before it."""
        kind = kind_of(op)
        if kind.rule == "convert":
            return op.outputs[0] in self.result.outputs
        return kind.rule == "real" and not kind.chooses and not kind.clips

    def _is_likely_pair(self, source: Op, result: Op) -> bool:
        """Whether two operators are one although codes of their data differ: by their names, or products by their weights."""
        named = any(a and (b == a or b.startswith(f"{a}/")) for a, b in zip(source.outputs[:1], result.outputs[:1], strict=False))
        return named or (kind_of(result).sums_products and self.result[result.inputs[1]].data is not None)

    def _find_doubts(self, op: Op) -> str:
        """Which codes of what an operator of the result reads may be other ones than in the source, in words."""
        return next(
            (self._doubtful[known.root] for name in op.inputs if (known := self.elements.get(name)) and known.root in self._doubtful), ""
        )

    def _compare_data(self, other: _Reader, op: Op) -> str:
        """In words, which codes of an operator's data are other ones than those of the source's; "" if none is."""
        sides = [(other.own.get(name), self.elements.get(its)) for name, its in zip(other.op.inputs, op.inputs, strict=True)]
        found = (
            describe_other_codes(self.source, self._writers, own, given) for own, given in sides if own is not None and given is not None
        )
        return next(filter(None, found), "")

    def _collect_clips(self, own: Elements, given: Elements) -> None:
        """Collect operators that clip the elements of a tensor on either side."""
        for known, side in zip(self.clips, (own, given), strict=True):
            known += [op for op in side.by if all(op is not other for other in known)]

    def _resume_after(self, op: Op, likely: tuple[int, ...]) -> None:
        """Take the results of an operator that is none of the source's for those of the same names: what follows is compared too.

        Their axes are in the order of its data, `likely`, or in another one that fits their shapes.
        """
        for name in filter(None, op.outputs):
            before, after = self.source.tensors.get(name), self.result[name]
            if before is None or name not in self._own or (offset := stored_offset(before, after)) is None or before.rank != after.rank:
                continue
            orders = [likely, tuple(range(before.rank or 0)), *list_layouts(before.rank or 0)]
            perm = next((order for order in orders if len(order) == before.rank and _transpose_shape(before, order) == after.shape), None)
            if perm is not None and self._own[name].root == name:
                if (group := self._find_group(name, perm)) is not None:
                    self.groups.append(group)
                self.elements[name] = replace(Elements.of(before, offset, perm), codes=self._own[name].codes)

    def _find_group(self, name: str, perm: tuple[int, ...]) -> Group | None:
        """The operators of both sides that compute a tensor of what is traced; None where these do not read the same tensors.

        Args:
            name: the tensor's.
            perm: the transposition of the source's that gives the result's.
        """
        found = collect_operators(self._result_writers, self.result, name, self.elements)
        if found is None or not found[1]:
            return None
        roots = {self.elements[given].root: given for given in found[1]}
        own = collect_operators(self._writers, self.source, name, [key for key, known in self._own.items() if known.root in roots])
        if own is None or {self._own[given].root for given in own[1]} != set(roots):
            return None
        inputs = tuple((given, roots[self._own[given].root]) for given in own[1])
        is_aligned = len(own[1]) == len(found[1]) == len(roots) and all(self._is_aligned(*pair, perm) for pair in inputs)
        is_aligned &= not _compare_axes(own[0][-1], found[0][-1], perm)
        for before, after in inputs if is_aligned else ():
            self._collect_clips(self._own[before], self.elements[after])
        kinds = [{op.kind for op in ops if kind_of(op).rule != "convert"} for ops in (own[0], found[0])]
        unpacks = [op for op in found[0] if kind_of(op).dequantizes and self.result[op.inputs[0]].data is not None]
        is_rewritten = kinds[0].isdisjoint(kinds[1]) or len(found[0]) - len(unpacks) == len(own[0]) == 1 <= len(unpacks)
        return Group(name, own[0], found[0], inputs, is_aligned, is_rewritten)

    def _is_aligned(self, before: str, after: str, perm: tuple[int, ...]) -> bool:
        """Whether a tensor of the result has the bytes of the source's, whatever their scale, with the axes in an order."""
        own, given, shape = self._own[before], self.elements[after], self.source[before].shape
        if not (has_byte_codes(self.source[before]) and has_byte_codes(self.result[after])):
            return False
        if shape is None or (len(shape) != len(perm) and perm != tuple(range(len(perm)))):
            return False  # it is broadcast along axes that are in another order
        ranges = [integer_range(graph[item].dtype) for graph, item in ((self.source, before), (self.result, after))]
        if own.root in self._doubtful or given.offset - own.offset != ranges[1][0] - ranges[0][0]:
            return False
        is_turned = own.is_transposed(given, perm if len(perm) == len(shape) else range(len(shape)))
        return is_turned and not describe_other_codes(self.source, self._writers, own, given)

    def _add_pair(self, reader: _Reader, result: Op, perm: Sequence[int], other: str = "", is_sure: bool = True) -> None:
        source = reader.op
        ends = self._is_clip_boundary(result)
        self.pairs.append(Pair(source, result, self._is_movement(source), other, ends and is_sure, self._bias_distance(source, result)))
        if other and not ends:
            self._doubtful.update((name, other) for name in source.outputs if name)
        for before, after in zip(source.inputs, result.inputs, strict=True):
            if before in reader.own and after in self.elements:
                self._collect_clips(reader.own[before], self.elements[after])
        for before, after in zip(source.outputs, result.outputs, strict=True):
            if after and before:
                offset, turned = (
                    stored_offset(self.source[before], self.result[after]),
                    _result_permutation(source, before, perm, self.source),
                )
                assert offset is not None
                if turned is not None:
                    found = Elements.of(self.source[before], offset, turned)
                    limits = activated_range(self.result, result) if is_clipped_sum(result, self.result) else None
                    self.elements[after] = found if limits is None else apply_activation(self.result[after], limits, found)

    def _bias_distance(self, source: Op, result: Op) -> float:
        """See Pair.lost."""
        quantization = self.result[result.outputs[0]].quantization if kind_of(result).sums_products else None
        if quantization is None or not (source.has(2) and result.has(2)):
            return 0.0
        biases = self.source[source.inputs[2]], self.result[result.inputs[2]]
        if any(item.data is None for item in biases) or not compare_constants(*biases, ()):
            return 0.0
        return float(np.abs(np.subtract(*(item.float_values() for item in biases))).max(initial=0) / quantization.scale.min())

    def _operand_quantizations(self, op: Op) -> list[Quantization | None]:
        """The quantizations of data and weights of a product of the result."""
        return [self.result[name].quantization for name in op.inputs[:2]]

    def _is_movement(self, op: Op) -> bool:
        """Return whether an operator of the source is data movement, or a choice of stored integers of one quantization, or a Concat of
        plain values."""
        kind = kind_of(op)
        if kind.rule in ("move", "state"):
            return True
        result = self.source[op.outputs[0]] if op.outputs else None
        if result is None or not kind.chooses or op.attributes.get("activation", ""):
            return False
        if not result.is_quantized and "axis" not in kind.attributes:  # of two float values each runtime chooses another one if one is NaN
            return False
        return all(self.source[name].shares_quantization(result) for name in kind.data(op))

    def _find_permutation(self, reader: _Reader, result: Op) -> tuple[tuple[int, ...] | None, str]:
        """The transposition of the source's results that gives the result's, if the operators are one; else None, and why not."""
        source = reader.op
        if len(source.inputs) != len(result.inputs) or len(source.outputs) != len(result.outputs):
            return None, "it has other operands"
        words = ""
        for perm in self._list_orders(reader, result):
            reason = self._compare_operators(reader, result, perm)
            if not reason:
                return perm, ""
            words = words or reason
        return None, words or "its data are in another order"

    def _list_orders(self, reader: _Reader, result: Op) -> Iterator[tuple[int, ...]]:
        """Transpositions of the data that may be meant."""
        source, own = reader.op, reader.own
        layout = kind_of(result).layout.suits
        rank = self.result[result.inputs[0]].rank if result.inputs and result.inputs[0] else 0
        if layout is Suits.DECIDES:
            wanted = str(result["data_format"])
            yield tuple(range(rank or 0)) if wanted == source["data_format"] else permutation(wanted, rank or 0)
            return
        for before, after in zip(source.inputs, result.inputs, strict=True):
            if before in own and after in self.elements and (perm := own[before].find_permutation(self.elements[after])) is not None:
                if layout is not Suits.PINNED or perm == tuple(range(len(perm))):
                    yield perm
        yield tuple(range(rank or 0))

    def _compare_operators(self, reader: _Reader, result: Op, perm: tuple[int, ...]) -> str:
        """In words, in what two operators differ apart from how they compute; "" in nothing."""
        source = reader.op
        for index, (before, after) in enumerate(zip(source.inputs, result.inputs, strict=True)):
            if bool(before) != bool(after):
                return f"input {index} is given on one side alone"
            if before and (reason := self._compare_operand(reader, result, index, perm)):
                return f"input {index} {reason}"
        own, other = (replace(op, attributes={k: v for k, v in op.attributes.items() if k not in _HOW}) for op in (source, result))
        if words := next(attribute_differences(own, other), ""):
            return words
        if words := _compare_axes(source, result, perm):
            return words
        for before, after in zip(source.outputs, result.outputs, strict=True):
            if before and after and stored_offset(self.source[before], self.result[after]) is None:
                return "its result has another quantization"
            if before and after and not self._has_shape(source, before, after, perm):
                return "its result has another shape"
        if is_clipped_sum(source, self.source) and is_clipped_sum(result, self.result):
            return ""
        return (
            ""
            if self._activation_limits(source, self.source) == self._activation_limits(result, self.result)
            else "its activation leaves another range"
        )

    def _has_shape(self, source: Op, before: str, after: str, perm: tuple[int, ...]) -> bool:
        """Whether a result has the shape of the source's, turned; nothing is said of one that is not followed."""
        own, turned = self.source[before], _result_permutation(source, before, perm, self.source)
        return turned is None or _transpose_shape(own, turned) == self.result[after].shape

    def _activation_limits(self, op: Op, graph: Graph) -> Any:
        """What a fused activation leaves: integers from the zero point, or its name."""
        if not op.outputs or not op.outputs[0]:
            return ""
        tensor = graph[op.outputs[0]]
        if tensor.per_tensor is None or "activation" not in kind_of(op).attributes:
            return op.attributes.get("activation", "")
        return tuple(limit - tensor.per_tensor.point for limit in activated_range(graph, op))

    def _compare_operand(self, reader: _Reader, result: Op, index: int, perm: tuple[int, ...]) -> str:
        """In words, in what an operand is another one; "" if it is the source's."""
        source = reader.op
        before, after = self.source[source.inputs[index]], self.result[result.inputs[index]]
        layout, rank = kind_of(result).layout, before.rank or 0
        broadcasts = layout.suits is Suits.BROADCASTS
        if before.data is not None and after.data is not None:
            if layout.axes == index and kind_of(result).role(index) == "index":
                named = sorted(perm.index(int(axis) % len(perm)) for axis in before.data.reshape(-1))
                return "" if named == sorted(int(axis) % len(perm) for axis in after.data.reshape(-1)) else "names other axes"
            if layout.per_axis == index:
                each = before.data.reshape(-1, len(perm))[:, perm].reshape(-1)
                return "" if np.array_equal(each, after.data.reshape(-1)) else f"has other {layout.word}"
            if index == 2 and kind_of(result).sums_products and is_rounded_bias(before, after, self._operand_quantizations(result)):
                return ""
            return compare_constants(before, after, perm if broadcasts else ())
        own, given = reader.own.get(before.name), self.elements.get(after.name)
        if own is None or given is None:
            return "is constant on one side alone"
        turned = perm if len(perm) == rank else tuple(range(rank))
        stretched = broadcasts and len(perm) != rank and perm != tuple(range(len(perm))) and before.static_shape != (1,) * rank
        if stretched or not own.is_transposed(given, turned):
            return "has its elements in another order"
        if (before.quantization is None) != (after.quantization is None):
            return "is quantized on one side alone"
        if before.quantization is None or after.quantization is None:
            return "" if before.dtype == after.dtype else f"is {after.dtype}, not {before.dtype}"
        if not np.array_equal(before.quantization.scale, after.quantization.scale):
            return "is on another scale"
        points = before.quantization.zero_point - own.offset, after.quantization.zero_point - given.offset
        return "" if np.array_equal(*points) else "has another zero point"


def _reader_key(graph: Graph, op: Op, known: Mapping[str, Elements]) -> tuple[Any, ...]:
    """What an operator is found by: its kind, and the roots of its operands; () if one is not known."""
    roots = []
    for name in op.inputs:
        constant = not name or graph[name].data is not None
        if not constant and name not in known:
            return ()
        roots.append("" if constant else known[name].root)
    return op.kind, tuple(roots)


def _compare_axes(source: Op, result: Op, perm: tuple[int, ...]) -> str:
    """In words, along which other axis an operator computes whose data are transposed; "" if it is the source's."""
    if not perm or any("axis" not in kind_of(op).attributes for op in (source, result)):
        return ""
    axes = [int(op["axis"]) % len(perm) for op in (source, result)]
    return "" if perm.index(axes[0]) == axes[1] else f"axis {axes[0]} -> {axes[1]}"


def _transpose_shape(tensor: Tensor, perm: Sequence[int]) -> Any:
    return None if tensor.shape is None else tuple(tensor.shape[axis] for axis in perm)


def _has_same_type(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.shares_quantization(b)


def _result_permutation(op: Op, name: str, perm: Sequence[int], graph: Graph) -> tuple[int, ...] | None:
    """How a result of an operator is turned whose data are: axes that go are left out; None where it is not known."""
    count, rank = len(perm), graph[name].rank or 0
    if rank == count:
        return tuple(perm)
    if tuple(perm) == tuple(range(count)):
        return tuple(range(rank))
    if kind_of(op).layout.suits is not Suits.REDUCES or op.attributes.get("keepdims", 1):
        return None
    axes = graph.constant(op.inputs[1]) if op.has(1) else None
    named = [int(op["axis"])] if "axis" in op.attributes else [] if axes is None else axes.reshape(-1).tolist()
    left = [axis for axis in range(count) if axis not in {int(item) % count for item in named}]
    return tuple(left.index(axis) for axis in perm if axis in left)
