"""Where the entries of encodings stand in a graph."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from qconvert.encodings import Encoding, Encodings, Place
from qconvert.errors import InvalidModelError, format_count
from qconvert.graph import Graph, Op
from qconvert.graph.names import quote_nearest
from qconvert.operators import kind_of

__all__ = ["Matched", "match_entries"]

#: What runtimes fuse into the layer before it, which then has the name of this result.
_FUSED = frozenset(("Relu", "Clip", "LeakyRelu", "HardSwish"))
#: In the place of an input's number: the tensor itself, whoever reads it.
_WHOLE = -1
_REMEDY = "Names are those of the graph's tensors and operators, as `qconvert inspect --all` shows them."


@dataclass(frozen=True, slots=True)
class Matched:
    """Entries by what they are of.

    Attributes:
        tensors: tensor -> its encoding.
        operands: (the first result of an operator, which of its inputs) -> the encoding of that input there alone.
        absent: places that the graph lacks, and may lack.
    """

    tensors: dict[str, Encoding] = field(default_factory=dict)
    operands: dict[tuple[str, int], Encoding] = field(default_factory=dict)
    absent: list[Place] = field(default_factory=list)


def match_entries(graph: Graph, encodings: Encodings, renamed: Mapping[str, str] | None = None) -> Matched:
    """Return the places of all entries.

    Args:
        graph: that they belong to.
        encodings: the entries.
        renamed: results of operators that are gone from the graph -> what stands for them.

    Raises:
        InvalidModelError: the graph has no such place; the nearest names are listed. Or two entries of one tensor say different things.
    """
    producers, consumers, own = graph.producers(), graph.consumers(), _operators_by_name(graph.ops)
    found = Matched()
    lost: list[Place] = []
    results: list[tuple[str, Encoding, Place]] = []
    for place, encoding in encodings.entries.items():
        if place.role == "tensor":
            where = (place.name, _WHOLE) if place.name in graph.tensors else None
        else:
            op = own.get(place.name) or producers.get((renamed or {}).get(place.name, place.name))
            where = _locate_operand(op, place, graph, producers) if op is not None else _locate_graph_input(place, graph)
        if where is None:
            (lost if encoding.required else found.absent).append(place)
        elif place.role == "output":
            results.append((where[0], encoding, place))
        else:
            _add_entry(found, where, encoding, place)
    named = {*found.tensors, *(name for name, _, _ in results)}
    for name, encoding, place in results:
        _add_entry(found, (_skip_activations(name, graph, consumers, named), _WHOLE), encoding, place)
    if lost:
        raise InvalidModelError(_describe_unmatched(lost, graph, own), remedy=_REMEDY, rule="unknown-tensor")
    return found


def _operators_by_name(ops: Iterable[Op]) -> dict[str, Op]:
    """Operators by their own names in the source's file, where it gives them names: of "Conv /features/0/Conv" the second part."""
    found: dict[str, Op] = {}
    for op in ops:
        name = op.source.partition(" ")[2]
        if name and not name.startswith("#"):
            found.setdefault(name, op)
    return found


def _locate_operand(op: Op, place: Place, graph: Graph, producers: Mapping[str, Op]) -> tuple[str, int] | None:
    """The tensor or operand that is an input or output of an operator, perhaps of the layer that a runtime fuses it into."""
    if place.role == "output":
        return (op.outputs[place.index], _WHOLE) if place.index < len(op.outputs) and op.outputs[place.index] else None
    stated = op
    while op.kind in _FUSED and (place.index or _is_layer(producers.get(op.inputs[0]))):
        before = producers.get(op.inputs[0])
        if before is None:
            return None
        op = before
    if op is not stated and not _is_layer(op):  # such as a normalization, which a runtime folds into weights that the graph does not have
        return None
    if place.index >= len(op.inputs) or not op.inputs[place.index]:
        return None
    return op.outputs[0], place.index


def _locate_graph_input(place: Place, graph: Graph) -> tuple[str, int] | None:
    """An input of the graph, which runtimes have an operator for."""
    return (place.name, _WHOLE) if place.name in graph.inputs and (place.role, place.index) == ("output", 0) else None


def _skip_activations(name: str, graph: Graph, consumers: Mapping[str, list[Op]], named: Container[str]) -> str:
    """The result of an operator after the activation functions that a runtime fuses into it; those with an entry are not fused."""
    while name not in graph.public:
        readers = consumers.get(name, [])
        if len(readers) != 1 or not kind_of(readers[0]).clips or readers[0].inputs[0] != name or readers[0].outputs[0] in named:
            break
        name = readers[0].outputs[0]
    return name


def _is_layer(op: Op | None) -> bool:
    return op is not None and kind_of(op).sums_products


def _add_entry(found: Matched, where: tuple[str, int], encoding: Encoding, place: Place) -> None:
    name, index = where
    known = found.tensors.get(name) if index == _WHOLE else found.operands.get(where)
    if known is not None and (known.qparams, known.range) != (encoding.qparams, encoding.range):
        raise InvalidModelError("two entries give different encodings of this tensor", where=str(place), rule="encoding-twice")
    if index == _WHOLE:
        found.tensors[name] = encoding
    else:
        found.operands[where] = encoding


def _describe_unmatched(lost: list[Place], graph: Graph, own: Mapping[str, Op]) -> str:
    names = list(dict.fromkeys(place.name for place in lost))
    known = [*graph.tensors, *own]
    verb = "has" if len(lost) == 1 else "have"
    return f"{format_count(len(lost), 'encoding')} {verb} no tensor or operator in the graph: {quote_nearest(names, known)}"
