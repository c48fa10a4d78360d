"""Write scales in the layout of the dumps of MNN's offline quantizer, for tools that read these (see dump.py for the fields).

An array of operators, each with the index, the scale and the zero point of its inputs and outputs; 0 where a tensor has none. Indices are
those of the .mnn where there is one, else they count the tensors of the float model in the order in which its operators have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qconvert.formats.mnn.layers import Activation
from qconvert.formats.mnn.network import Network
from qconvert.formats.mnn.places import is_own_name, model_name
from qconvert.graph import Graph

__all__ = ["dump_json", "operators_of_graph", "operators_of_network"]

_SKIPPED = ("Raster",)


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
                entry[side] = [_tensor(index, quantizations.get(name)) for index, name in tensors]
        found.append(entry)
    return json.dumps(found, indent=4, ensure_ascii=False) + "\n"


def _tensor(index: int, quantization: Activation | None) -> dict[str, Any]:
    scale, zero_point = (quantization.scale, float(quantization.zero_point)) if quantization is not None else (0.0, 0.0)
    return {"tensorIndex": index, "scales": [scale], "zeropoint": [zero_point]}


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
