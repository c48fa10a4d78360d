"""The dump of MNN's offline quantizer, <model>.json, in its three layouts (tools/quantization/calibration.cpp, dumpTensorScales).

An array of operators, each with the index, the scales and the zero point of its inputs and outputs. From October 2023 on there is one
scale and one zero point, before that no zero point, and in early 2021 one scale for each channel. Scale 0 means that the tensor has none.
Nothing in MNN reads the file; weights are not in it, since they are max|w| / 127 of each output channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.encodings import Encodings, QParams
from qconvert.errors import InvalidModelError
from qconvert.files.documents import fail, integer, list_of, number, object_of, text
from qconvert.formats.mnn.activations import activation_quantization
from qconvert.formats.mnn.network import Network, Node
from qconvert.formats.mnn.places import place_encodings

__all__ = ["is_dump", "read_dump"]


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


def read_dump(document: Any, network: Network | None = None) -> Encodings:
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
    notes = (f"{partly} tensors have a scale for some channels alone, and none here",) if partly else ()
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
