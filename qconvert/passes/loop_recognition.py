"""A While whose number of turns is known, and which takes an element of a sequence at each turn, is a Scan.

TensorFlow's converter writes Keras' recurrences so: a counter below a constant, the whole sequence carried along and read by a Gather,
and a list of results that is written at one place a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qconvert.evaluate.known_values import KnownValues
from qconvert.graph import Array, Graph, Op, numpy_dtype
from qconvert.rewriting import Pattern, Rewriter
from qconvert.rewriting.control_flow import counter_start, single_number, turns_while
from qconvert.rewriting.parts import match_producer

_PASSED = ("Identity", "Cast")
_INSERTED = Pattern(
    "Concat", Pattern("Slice", "list", name="front"), "value", Pattern("Slice", "list", name="back"), attributes={"axis": 0}
)


@dataclass(frozen=True, slots=True)
class ScanForm:
    """A While as a Scan.

    Attributes:
        body: the Scan's: states, then an element of each sequence.
        states: positions in the While of what is carried.
        sequences: positions of what is taken apart.
        stacks: positions of the lists of results.
        counters: position -> the number after the last turn.
        kept: positions of what no turn changes, but is no sequence.
        captures: those of them that the body reads, after its other inputs.
    """

    body: Graph
    states: tuple[int, ...]
    sequences: tuple[int, ...]
    stacks: tuple[int, ...]
    counters: Mapping[int, int]
    kept: tuple[int, ...]
    captures: tuple[int, ...]


def scan_form(graph: Graph, op: Op, condition: Graph, body: Graph) -> ScanForm | None:
    """Return the Scan that a While is; None if it is none.

    Args:
        graph: that the operator belongs to.
        op: the While.
        condition, body: its functions.
    """
    loop = _Loop(graph, op, body)
    turns = loop.count_turns(condition)
    if turns is None:
        return None
    kept = [index for index, (a, b) in enumerate(zip(body.inputs, body.outputs, strict=True)) if a == b]
    sequences = {index: gathers for index in kept if (gathers := loop.elements(index, turns))}
    if not sequences:
        return None
    stacks = {index: name for index in range(len(body.inputs)) if (name := loop.find_stacked_value(index, turns))}
    others = {*kept, *stacks, *loop.counters}
    states = [index for index in range(len(body.inputs)) if index not in others]
    rest = [index for index in kept if index not in sequences]
    read = {name for maker in body.ops for name in maker.inputs}
    captures = [index for index in rest if body.inputs[index] in read]
    found = _scan_body(body, states, sequences, stacks, captures)
    if found is None:
        return None
    counters = {index: start + turns for index, start in loop.counters.items()}
    return ScanForm(found, tuple(states), tuple(sequences), tuple(stacks), counters, tuple(rest), tuple(captures))


class _Loop:
    """A While that is being looked at.

    Attributes:
        counters: positions of the integers that grow by 1 each turn, and where they start.
    """

    def __init__(self, graph: Graph, op: Op, body: Graph) -> None:
        self._body, self._makers, self._readers = body, body.producers(), body.consumers()
        given = [graph.constant(name) for name in op.inputs]
        found = (
            counter_start(self._makers, first, own, after, lambda name: single_number(body.constant(name)))
            for first, own, after in zip(given, body.inputs, body.outputs, strict=True)
        )
        self.counters = {index: start for index, start in enumerate(found) if start is not None}

    def count_turns(self, condition: Graph) -> int | None:
        """Return how often the body runs: as long as counters are below constants."""
        starts = {condition.inputs[index]: float(start) for index, start in self.counters.items()}
        makers, number = condition.producers(), lambda name: single_number(condition.constant(name))
        turns = turns_while(makers, condition.outputs[0], starts.get, number)
        return int(turns) if turns else None

    def _is_turn(self, name: str) -> bool:
        """Return whether a value is the number of the turn, from 0 on."""
        while (op := self._makers.find(name, *_PASSED)) is not None:
            name = op.inputs[0]
        return name in self._body.inputs and self.counters.get(self._body.inputs.index(name)) == 0

    def elements(self, index: int, turns: int) -> list[Op]:
        """Return the Gathers that take an element of a carried sequence; none if it is read otherwise too."""
        name = self._body.inputs[index]
        readers, shape = self._readers[name], self._body[name].static_shape
        fits = shape is not None and len(shape) > 0 and shape[0] == turns
        rows = [op for op in readers if op.kind == "Gather" and op.inputs[0] == name and op["axis"] == 0 and not op["batch_dims"]]
        single = all(self._body[op.inputs[1]].shape == () and self._is_turn(op.inputs[1]) for op in rows)
        return rows if fits and single and len(rows) == len(readers) else []

    def find_stacked_value(self, index: int, turns: int) -> str:
        """Return the value that each turn puts into a list, at the place of its number; "" if it is no list."""
        name, result = self._body.inputs[index], self._body.outputs[index]
        shape = self._body[name].static_shape
        if not shape or shape[0] != turns:
            return ""
        if (maker := self._makers.find(result, "DynamicUpdateSlice")) is not None:
            return maker.inputs[1] if self._is_put(maker, name, shape) else ""
        return self._find_inserted_value(name, result, shape)

    def _is_put(self, op: Op, name: str, shape: tuple[int, ...]) -> bool:
        """Return whether an operator puts one row into the list `name`, at the number of the turn, and nobody else reads that list."""
        tried = _tried_turns(shape[0])
        starts = [self._at_turn(turn, op.inputs[2:]) for turn in tried]
        wanted = [[turn, *[0] * (len(shape) - 1)] for turn in tried]
        found = [None if start is None else start.reshape(-1).tolist() for (start,) in starts]
        is_one = self._body[op.inputs[1]].static_shape == (1, *shape[1:])
        return op.inputs[0] == name and is_one and found == wanted and len(self._readers[name]) == 1

    def _find_inserted_value(self, name: str, result: str, shape: tuple[int, ...]) -> str:
        """Return the value between the front and the back of a list, cut off at the number of the turn: front ++ value ++ back."""
        match = match_producer(self._body, self._makers, _INSERTED, result)
        if match is None or match.tensors["list"] != name or len(self._makers[result].inputs) != 3:
            return ""
        front, back, value = match.named["front"], match.named["back"], match.tensors["value"]
        is_one = self._body[value].static_shape == (1, *shape[1:])
        others = [op for op in self._readers[name] if op is not front and op is not back]
        return value if is_one and not others and self._cuts(front, back, shape[0]) else ""

    def _cuts(self, front: Op, back: Op, turns: int) -> bool:
        """Return whether two Slices are all before the turn's place and all after it, which is tried for some turns."""
        for turn in _tried_turns(turns):
            bounds = [self._at_turn(turn, op.inputs[1:4]) for op in (front, back)]
            if any(item is None for listed in bounds for item in listed):
                return False
            (first, end), (begin, last) = ([_bound(listed, place) for place in (0, 1)] for listed in bounds)
            if first != 0 or end != turn or begin != turn + 1 or last is None or last < 2**31 - 1:
                return False
        return all(not op.has(4) or np.all(self._body.constant(op.inputs[4]) == 1) for op in (front, back))

    def _at_turn(self, turn: int, names: Sequence[str]) -> list[Array | None]:
        """Return what values are in a turn, as far as its number says."""
        tensors = dict(self._body.tensors)
        for index, start in self.counters.items():
            name = self._body.inputs[index]
            tensors[name] = replace(tensors[name], shape=(), data=np.array(start + turn, numpy_dtype(tensors[name].dtype)))
        known = KnownValues(tensors, {name: op for name, op in self._makers.items() if name not in self._body.inputs})
        return [known.get(name) for name in names]


def _tried_turns(turns: int) -> list[int]:
    """Return the turns for which places in a list are looked at: with the last one, a place that is clipped to less than all is none."""
    return sorted({0, min(1, turns - 1), turns // 2, turns - 1})


def _bound(listed: list[Array | None], place: int) -> int | None:
    """Return the bound of a Slice along axis 0, where it cuts no other axis."""
    values, axes = listed[place], listed[2]
    if values is None or axes is None or 0 not in axes.reshape(-1).tolist():
        return None
    return int(values.reshape(-1)[axes.reshape(-1).tolist().index(0)])


def _scan_body(
    body: Graph, states: list[int], sequences: Mapping[int, list[Op]], stacks: Mapping[int, str], captures: list[int]
) -> Graph | None:
    """Return the body without counters, lists and whole sequences; None if something that stays needs one of them."""
    rewriter = Rewriter(body)
    elements = [rows[0].name for rows in sequences.values()]
    for element, rows in zip(elements, sequences.values(), strict=True):
        for op in rows:
            rewriter.remove(op)
            if op is not rows[0]:
                rewriter.forward(op.name, element)
    values = []  # what a list takes has an axis of 1 in front, which the stack of a Scan makes
    for name in stacks.values():
        tensor = body[name]
        assert tensor.shape is not None
        values.append(rewriter.add(f"{name}/element", tensor, shape=tensor.shape[1:]))
        rewriter.append(Op("Squeeze", (name, rewriter.constant(f"{name}/axes", [0])), (values[-1],)))
    inputs = (*(body.inputs[index] for index in states), *elements, *(body.inputs[index] for index in captures))
    found = rewriter.finish(prune=True, inputs=inputs, outputs=(*(body.outputs[index] for index in states), *values))
    written = found.producers().keys()
    known = {*written, *inputs, *(tensor.name for tensor in found.constants())}
    if not known.issuperset(found.consumers()) or not written >= {*found.outputs}:  # the latter: a state that is an input or a constant
        return None
    return found
