"""Read back the graph of a file just written: operators that the writer decomposed are their nodes in the file."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from qconvert.files import map_file
from qconvert.formats.onnx.initializers import Files
from qconvert.formats.onnx.model import Model, node_reads
from qconvert.formats.onnx.reader import read_inferred
from qconvert.formats.reading.quantizations import fuse_quantized_ops
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.metadata import DECOMPOSED

#: The function that holds the nodes of all operators that are decomposed.
_DECOMPOSED = "decomposed"


def as_written(path: Path, graph: Graph, proto: Any) -> Graph:
    """The graph with a Call of a function of their nodes in place of the operators that are decomposed.

    The rest is not read again: the writer notes every operator whose nodes are not read as that operator. Of a graph with functions, whose
    operators are not noted, the whole file is read.

    Args:
        path: the file.
        graph: that was written.
        proto: the file's verified onnx.ModelProto, without large constants (wire.py).
    """
    files = Files(path.parent, map_file(path))
    if graph.functions:
        return _read(proto, graph, files)
    notes = [entry.value for entry in proto.metadata_props if entry.key == DECOMPOSED]
    decomposed = {name for text in notes for item in json.loads(text) for name in item["outputs"] if name}
    if not decomposed:
        return graph
    part = _read(_cut_decomposed(proto, graph, decomposed), graph, files)
    ops = [_call(op) if decomposed.intersection(op.outputs) else op for op in graph.ops]
    return graph.evolve(ops=ops, functions={**part.functions, _DECOMPOSED: replace(part, functions={})})


def _call(op: Op) -> Op:
    return op.derive("Call", op.inputs, op.outputs, function=_DECOMPOSED)


def _read(proto: Any, graph: Graph, files: Files) -> Graph:
    """The quantized graph of nodes; of borders of a part the scales are those of the graph, as no node may say them."""
    found = read_inferred(Model(proto, files), graph.name, again=True)
    labelled = (_copy_quantization(found[name], graph.tensors.get(name)) for name in (*found.inputs, *found.outputs))
    return fuse_quantized_ops(found.evolve(tensors=labelled, ops=found.ops))


def _copy_quantization(tensor: Tensor, written: Tensor | None) -> Tensor:
    if written is None or tensor.is_quantized or tensor.dtype != written.dtype:
        return tensor
    return replace(tensor, quantization=written.quantization)


def _cut_decomposed(proto: Any, graph: Graph, decomposed: Set[str]) -> Any:
    """A ModelProto of the nodes that compute the tensors `decomposed` from other tensors of the graph."""
    import onnx

    nodes = _needed_nodes(proto.graph.node, decomposed, graph.tensors.keys() - decomposed)
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node_reads(node) if name not in made)
    types = {value.name: value for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)}
    constants = [tensor for tensor in proto.graph.initializer if tensor.name in read]
    held = {tensor.name for tensor in constants}
    return onnx.ModelProto(
        ir_version=proto.ir_version,
        opset_import=proto.opset_import,
        metadata_props=[entry for entry in proto.metadata_props if entry.key != DECOMPOSED],
        graph=onnx.GraphProto(
            node=nodes,
            initializer=constants,
            input=[types[name] for name in read if name not in held],
            output=[types[name] for name in sorted(decomposed & made)],
            value_info=[types[name] for name in made - decomposed if name in types],
        ),
    )


def _needed_nodes(nodes: Any, wanted: Set[str], known: Set[str]) -> list[Any]:
    """The nodes that `wanted` depends on, in order, from the tensors `known` on."""
    producers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    waiting, taken = list(wanted), set[int]()
    while waiting:
        place = producers.get(waiting.pop())
        if place is not None and place not in taken:
            taken.add(place)
            waiting += (name for name in node_reads(nodes[place]) if name not in known)
    return [nodes[place] for place in sorted(taken)]
