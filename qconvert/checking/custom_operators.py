"""Models with custom operators, which no runtime runs here: both are cut around them, so that everything else is run and judged.

What a custom operator computes becomes an input of the model, and what it reads an output; so a result that feeds it with other values
than the source does is seen. The operators themselves are compared as they stand: their options to the byte, constants, types,
quantizations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qconvert.checking.checked_file import Side
from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.graph import Graph, Op
from qconvert.operators.opaque import custom_name, is_custom
from qconvert.rules.differences import tensor_differences

__all__ = ["Around", "cut_around_custom"]

_Pair = tuple[Op, Op]
_NAMED = 8


class _Tensor(NamedTuple):
    """What a custom operator computes or reads: its names in source and result, and those that it has in their copies."""

    names: tuple[str, str]
    called: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Around:
    """Two models without their custom operators.

    Attributes:
        sides: the copies; None where the operators differ so that nothing can be run.
        problems: in sentences, what differs in the operators themselves.
        unjudged: in a sentence, which they are.
    """

    sides: tuple[Side, Side] | None
    problems: tuple[str, ...]
    unjudged: str


def cut_around_custom(sides: tuple[Side, Side], folder: Path) -> Around | None:
    """Copies of both files, in `folder`, around their custom operators; None where there are none, or both runtimes run the whole.

    Raises:
        QConvertError: a file cannot be read or cut.
    """
    source, result = (side.graph for side in sides)
    own, others = ([op for op in graph.ops if is_custom(op)] for graph in (source, result))
    if not (own or others) or all(_can_run(side) for side in sides):
        return None
    counts = Counter(custom_name(op) for op in own or others)
    listed = ", ".join(f"{name} ({count})" for name, count in counts.most_common(_NAMED)) + (" …" if len(counts) > _NAMED else "")
    unjudged = f"{len(own or others)} custom operators cannot be run here; their attributes and tensors were compared: {listed}"
    pairs, problems = _pair_operators(own, others)
    if problems:
        return Around(None, tuple(problems), unjudged)
    for op, other in pairs:
        place = f"{op.source or op.kind} ({next(filter(None, op.outputs), '')!r})"
        problems += [f"{place}: {text}" for text in _differences(source, op, result, other)]
    inputs, outputs = _list_border_tensors(source, result, pairs)
    copies = []
    for position, side in enumerate(sides):
        if side.runtime.around is None:
            raise UnsupportedError(
                f"{side.runtime.title} does not cut files at custom operators", file=str(side.path), rule="not-cut-at-custom"
            )
        path = folder / f"around{position}{side.path.suffix}"
        gone = frozenset(name for pair in pairs for name in pair[position].outputs if name)
        fed = [(side.graph[item.names[position]], item.called[position]) for item in inputs]
        given = [(_find_file_tensor(side.graph, item.names[position]), item.called[position]) for item in outputs]
        side.runtime.around(side.file, gone, fed, given, path)
        copies.append(side.replace_path(path))
    return Around((copies[0], copies[1]), tuple(problems), unjudged)


def _find_file_tensor(graph: Graph, name: str) -> str:
    """The tensor of the file whose stored integers the reader gave another label."""
    writers = graph.producers()
    while (op := writers.get(name)) is not None and op.kind == "Reinterpret":
        name = op.inputs[0]
    return name


def _can_run(side: Side) -> bool:
    """Whether the runtime takes the whole file; where sizes are open, LiteRT says so only when it runs."""
    if any(side.graph[name].static_shape is None for name in side.graph.inputs):
        return False
    try:
        side.open()
    except RuntimeRefusedError:
        return False
    return True


def _pair_operators(own: Sequence[Op], others: Sequence[Op]) -> tuple[list[_Pair], list[str]]:
    """The operators that stand for each other: by what they compute, else in their order; or what is wrong with their number."""
    by_outputs = {op.outputs: op for op in others}
    found = {id(op): by_outputs.pop(op.outputs) for op in own if op.outputs in by_outputs}
    rest = [op for op in others if op.outputs in by_outputs]
    left = [op for op in own if id(op) not in found]
    if len(left) != len(rest):
        return [], [f"the source has {len(own)} custom operators, the result {len(others)}"]
    found |= {id(op): other for op, other in zip(left, rest, strict=True)}
    return [(op, found[id(op)]) for op in own], []


def _differences(graph: Graph, op: Op, result: Graph, other: Op) -> Iterator[str]:
    """What two custom operators that stand for each other have otherwise."""
    if custom_name(op) != custom_name(other):
        yield f"is {custom_name(other)} instead of {custom_name(op)}"
    for name in ("version", "payload", "captures", "format"):
        if op[name] != other[name]:
            yield "other options" if name == "payload" else f"{name} {op[name]} -> {other[name]}"
    for what, names, theirs in (("input", op.inputs, other.inputs), ("output", op.outputs, other.outputs)):
        if len(names) != len(theirs):
            yield f"{len(names)} {what}s -> {len(theirs)}"
        for index, (name, its) in enumerate(zip(names, theirs, strict=False)):
            if bool(name) != bool(its):
                yield f"{what} {index}: {name!r} -> {its!r}"
            elif name:
                a, b = graph[name], result[its]
                shapes = a.static_shape is not None and b.static_shape is not None
                yield from (f"{what} {index} ({name!r}): {text}" for text in tensor_differences(a, b, shapes=shapes))


def _list_border_tensors(graph: Graph, result: Graph, pairs: Sequence[_Pair]) -> tuple[list[_Tensor], list[_Tensor]]:
    """The further inputs of both models, and all their outputs."""
    inputs = [(a, b) for op, other in pairs for a, b in zip(op.outputs, other.outputs, strict=False) if a and b]
    outputs = list(zip(graph.outputs, result.outputs, strict=False))
    for pair in (pair for op, other in pairs for pair in zip(op.inputs, other.inputs, strict=False)):
        if all(pair) and not graph[pair[0]].is_constant and not result[pair[1]].is_constant and pair not in outputs:
            outputs.append(pair)
    count = len(graph.outputs)
    return _name_tensors(inputs, result, 0), _name_tensors(outputs, result, count)


def _name_tensors(pairs: Sequence[tuple[str, str]], result: Graph, keep: int) -> list[_Tensor]:
    """The tensors with their names in the copies: the source's in both, unless the result has another so called, or it is one already.

    The first `keep` are the result's own outputs, by their names.
    """
    taken: tuple[set[str], set[str]] = (set(), set())
    found = []
    for number, (a, b) in enumerate(pairs):
        fresh = f"{a}/{number}"
        first = fresh if a in taken[0] else a
        second = first if first not in result.tensors and number >= keep else fresh if b in taken[1] else b
        taken[0].add(first)
        taken[1].add(second)
        found.append(_Tensor((a, b), (first, second)))
    return found
