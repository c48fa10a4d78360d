"""The dump of MNN's offline quantizer, <model>.json, read in its three layouts (tools/quantization/calibration.cpp, dumpTensorScales) and
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qconvert.encodings import Encodings, QParams
from qconvert.errors import InvalidModelError, format_count
from qconvert.files.documents import fail, integer, list_of, number, object_of, text
from qconvert.formats.mnn.layers import Activation
from qconvert.formats.mnn.network import Network, Node
from qconvert.formats.mnn.scales import activation_quantization, is_own_name, model_name, place_encodings
from qconvert.graph import Graph


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the file says of a tensor."""

    index: int
    scales: tuple[float, ...]
    zero_point: float | None
    at: str


@dataclass(frozen=True, slots=True)
class _Operator:
    name: str
    inputs: tuple[_Stated, ...]
    outputs: tuple[_Stated, ...]


def is_dump(document: Any) -> bool:
    """Whether a JSON document looks like a dump."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, dict) and "name" in first and first.keys() <= {"name", "inputs", "outputs"}


def read_dump(document: Any, network: Network | None) -> Encodings:
    """The encodings of a dump.

    Args:
        document: the values of the JSON file.
        network: the .mnn file next to it, which names the tensors; else they are outputs of operators by name.

    Raises:
        InvalidModelError: it is no dump, has no scale but 0, contradicts itself, or does not belong to the network.
    """
    operators = list_of(document, "dump", _read_operator)
    stated = [item for operator in operators for item in (*operator.inputs, *operator.outputs)]
    _require_layout(stated)
    if not any(any(item.scales) for item in stated):
        raise InvalidModelError(
            "every scale is 0: MNN's quantizer writes such a dump with the method EMA, whose scales are stored in the .mnn file only",
            remedy="Read that .mnn file instead, or calibrate with KL or ADMM.",
            rule="all-scales-zero",
        )
    quantizations, partly = _quantizations(stated)
    nodes = _nodes(operators) if network is None else _match_network(operators, network)
    entries = place_encodings(nodes, None if network is None else network.names, quantizations, "MNN's dump")
    notes = (format_count(partly, "tensor", "have a scale for some channels alone, and none here"),) if partly else ()
    return Encodings(entries, "MNN's dump", weights="max-abs", notes=notes)


def _read_operator(item: Any, at: str) -> _Operator:
    fields = object_of(item, at, {"name"}, {"inputs", "outputs"})
    sides = [tuple(list_of(fields.get(side, []), f"{at}.{side}", _read_tensor)) for side in ("inputs", "outputs")]
    return _Operator(text(fields["name"], f"{at}.name"), *sides)


def _read_tensor(item: Any, at: str) -> _Stated:
    fields = object_of(item, at, {"tensorIndex", "scales"}, {"zeropoint"})
    scales = tuple(list_of(fields["scales"], f"{at}.scales", number))
    points = list_of(fields["zeropoint"], f"{at}.zeropoint", number) if "zeropoint" in fields else None
    if not scales:
        fail(at, "has no scales", rule="no-scales")
    if points is not None and (len(points), len(scales)) != (1, 1):
        fail(
            at,
            f"there are {len(scales)} scales and {len(points)} zero points; a dump with zero points requires one of each",
            rule="counts-differ",
        )
    return _Stated(integer(fields["tensorIndex"], f"{at}.tensorIndex", 0), scales, points[0] if points else None, at)


def _require_layout(stated: Sequence[_Stated]) -> None:
    """Raises InvalidModelError where some tensors have a zero point and others none."""
    without = [item.at for item in stated if item.zero_point is None]
    if without and len(without) < len(stated):
        fail(without[0], "the tensor has no zero point, although other tensors of the dump have one", rule="zero-point-missing")


def _quantizations(stated: Sequence[_Stated]) -> tuple[dict[int, QParams], int]:
    """Index -> quantization of all tensors with scales, and how many have one for some channels alone."""
    seen: dict[int, _Stated] = {}
    for item in stated:
        known = seen.setdefault(item.index, item)
        if (known.scales, known.zero_point) != (item.scales, item.zero_point):
            fail(item.at, f"tensor {item.index} has other scales here than at {known.at}", rule="contradicting-scales")
    given = [item for item in seen.values() if any(item.scales)]
    whole = [item for item in given if all(item.scales)]
    return {item.index: activation_quantization(item.scales, item.zero_point or 0, item.at) for item in whole}, len(given) - len(whole)


def _nodes(operators: Sequence[_Operator]) -> list[Node]:
    found = [Node(op.name, "", *(tuple(item.index for item in side) for side in (op.inputs, op.outputs))) for op in operators]
    made: dict[int, str] = {}
    for node in found:
        for index in node.outputs:
            if index in made:
                fail("dump", f"tensor {index} is a result of {made[index]!r} and of {node.name!r}", rule="duplicate-name")
            made[index] = node.name
    return found


def _match_network(operators: Sequence[_Operator], network: Network) -> list[Node]:
    """The operators of the network, once those of the dump are known to be among them."""
    outputs: dict[str, set[int]] = {}
    for node in network.nodes:
        outputs.setdefault(node.name, set()).update(node.outputs)
    for operator in operators:
        stated = {item.index for item in operator.outputs}
        if not stated <= outputs.get(operator.name, set()):
            raise InvalidModelError(
                "the dump does not belong to the .mnn file, which has no operator of this name with these results",
                where=operator.name,
                remedy="Give the .mnn file that the quantizer wrote with the dump.",
                rule="files-do-not-match",
            )
    return list(network.nodes)


_SKIPPED = ("Raster",)
#: What is written of a tensor without a quantization.
_NOTHING = Activation("", 0.0, 0)


class DumpOperator(NamedTuple):
    """An operator's name, and index and name of the tensors that it reads and computes."""

    name: str
    inputs: Sequence[tuple[int, str]]
    outputs: Sequence[tuple[int, str]]


def dump_json(operators: Iterable[DumpOperator], quantizations: Mapping[str, Activation]) -> str:
    """The dump of the quantizations of tensors, by their names."""
    found = []
    for operator in operators:
        entry: dict[str, Any] = {"name": operator.name}
        for side, tensors in (("inputs", operator.inputs), ("outputs", operator.outputs)):
            if tensors:
                stated = ((index, quantizations.get(name, _NOTHING)) for index, name in tensors)
                entry[side] = [
                    {"tensorIndex": index, "scales": [found.scale], "zeropoint": [float(found.zero_point)]} for index, found in stated
                ]
        found.append(entry)
    return json.dumps(found, indent=4, ensure_ascii=False) + "\n"


def operators_of_network(network: Network) -> Iterator[DumpOperator]:
    """The operators of a .mnn. The result of a layout conversion that MNN inserted is named after its source tensor."""
    moved: dict[int, str] = {}
    for node in network.nodes:
        for index in node.outputs:
            source = node.inputs[0] if node.type == "ConvertTensor" and node.inputs else -1
            moves = source >= 0 and is_own_name(network.names[index])
            moved[index] = moved.get(source, network.names[source]) if moves else model_name(network.names[index])
        if node.type not in _SKIPPED:
            sides = ([(index, moved.get(index, network.names[index])) for index in side] for side in (node.inputs, node.outputs))
            yield DumpOperator(node.name, *sides)


def operators_of_graph(graph: Graph) -> Iterator[DumpOperator]:
    """The operators of a float model, its inputs first. Constants are no inputs of operators, as in MNN."""
    numbers: dict[str, int] = {}
    for name in graph.inputs:
        yield DumpOperator(name, (), [(numbers.setdefault(name, len(numbers)), name)])
    for op in graph.ops:
        reads = [name for name in op.inputs if name and not graph[name].is_constant]
        sides = ([(numbers.setdefault(name, len(numbers)), name) for name in side if name] for side in (reads, op.outputs))
        yield DumpOperator(next(filter(None, op.outputs), ""), *sides)
