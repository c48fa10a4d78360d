"""Weights whose storage onnxruntime chooses when it loads a file: signed where its kernels add products in 32 bits, else unsigned.

On x86 CPUs without VNNI, onnxruntime's kernels of unsigned data and signed weights add two products in 16 bits and saturate
(passes/weight_storage.py); those of unsigned weights are exact, and 2 to 4 times slower where a CPU has VNNI. One product of
constants that would saturate tells which CPU it is: onnxruntime folds it to a constant, and inlines the branch of the If that it chooses
(from 1.17 on), before it puts integer kernels in the place of operators. Both branches give the same float values, so that a runtime
that folds nothing computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.onnx.initializers import ELEMENT_TYPES, Files, inline
from qconvert.formats.onnx.model import all_nodes, defined_names, replace_items, subgraphs
from qconvert.formats.onnx.proto import GraphProto, make_node, make_value_info
from qconvert.graph import Array, equal_data
from qconvert.operators import KINDS

#: Before the names of values that tell the CPU, and the value that says whether its sums have 32 bits.
_PREFIX = "sums_of_products/"
_CONDITION = f"{_PREFIX}have_32_bits"
#: Rows, depth and columns of the product that tells the CPU. One row would be multiplied by another kernel than convolutions are.
_ROWS, _DEPTH, _COLUMNS = 2, 8, 16
_LARGEST_DATA, _LARGEST_WEIGHT = 255, 127


def choose_weights(model: Any, constants: Mapping[str, Array]) -> bool:
    """Let one If of a ModelProto's main graph dequantize all unsigned weights that dequantized data are multiplied with, or signed ones.

    Return whether the graph has such an If.

    A graph that has such an If already, changed so that it was read as it stands, gets no other.

    Args:
        model: with weights that could saturate next to unsigned data stored as uint8.
        constants: the initializers of its main graph.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    if any(name.startswith(_PREFIX) for name in defined_names(model.graph)):
        return True
    dequantized = {name for name, node in producers.items() if node.op_type == "DequantizeLinear"}
    # Weights are the second input of what onnxruntime multiplies by integer kernels: it has none for ConvTranspose.
    weights = {
        node.input[1]
        for node in model.graph.node
        if node.op_type in KINDS and KINDS[node.op_type].sums_all_weights and dequantized.issuperset(node.input[:2])
    }
    chosen = [node for node in model.graph.node if weights.intersection(node.output) and _is_unsigned(node, constants)]
    if chosen:
        first = [*_tell_cpu(model.graph), _choice(model.graph, chosen, constants)]
        outputs = {name for node in chosen for name in node.output}
        replace_items(model.graph.node, [*first, *(node for node in model.graph.node if outputs.isdisjoint(node.output))])
    return bool(chosen)


def _is_unsigned(node: Any, constants: Mapping[str, Array]) -> bool:
    """Whether a node dequantizes a constant of uint8 to float32, which alone onnxruntime multiplies by integer kernels."""
    types = [constants[name].dtype for name in node.input if name in constants and constants[name].size]
    return node.op_type == "DequantizeLinear" and types == [np.uint8, np.float32, np.uint8]


def _tell_cpu(graph: Any) -> list[Any]:
    """Return the nodes that compute the condition; their constants are added to the graph."""
    data, weights, exact = (f"{_PREFIX}{name}" for name in ("data", "weights", "exact"))
    products, least = (f"{_PREFIX}{name}" for name in ("products", "least"))
    _add_constant(graph, data, np.full((_ROWS, _DEPTH), _LARGEST_DATA, np.uint8))
    _add_constant(graph, weights, np.full((_DEPTH, _COLUMNS), _LARGEST_WEIGHT, np.int8))
    _add_constant(graph, exact, np.array(_DEPTH * _LARGEST_DATA * _LARGEST_WEIGHT, np.int32))
    return [
        make_node("MatMulInteger", [data, weights], [products], products),
        make_node("ReduceMin", [products], [least], least, keepdims=0),
        make_node("Equal", [least, exact], [_CONDITION], _CONDITION),
    ]


def _choice(graph: Any, dequantized: Sequence[Any], constants: Mapping[str, Array]) -> Any:
    """Return the If in the place of the DequantizeLinears of unsigned weights."""
    signed, unsigned = [], []
    for number, node in enumerate(dequantized):
        weights, scale, zero_point = node.input
        points = constants[zero_point]
        shift = _signed_shift(constants[weights], points)
        amount, point = f"{_PREFIX}shift/{number}", f"{_PREFIX}zero_point/{number}"
        _add_constant(graph, amount, np.array(shift, np.int32))
        _add_constant(graph, point, (points.astype(np.int16) - shift).astype(np.int8))
        wide, shifted, stored, floats = (f"{_PREFIX}{name}/{number}" for name in ("int32", "shifted", "int8", "signed"))
        axis = {item.name: item.i for item in node.attribute}
        signed += [
            make_node("Cast", [weights], [wide], to=ELEMENT_TYPES["int32"]),
            make_node("Sub", [wide, amount], [shifted]),
            make_node("Cast", [shifted], [stored], to=ELEMENT_TYPES["int8"]),
            make_node("DequantizeLinear", [stored, scale, point], [floats], **axis),
        ]
        unsigned.append(make_node("DequantizeLinear", list(node.input), [f"{_PREFIX}unsigned/{number}"], node.name, **axis))
    branches = {"then_branch": signed, "else_branch": unsigned}
    graphs = {}
    for branch, nodes in branches.items():
        outputs = [node.output[0] for node in nodes if node.op_type == "DequantizeLinear"]
        values = [make_value_info(name, ELEMENT_TYPES["float32"], None) for name in outputs]
        graphs[branch] = GraphProto(node=nodes, name=f"{_PREFIX}{branch}", output=values)
    return make_node("If", [_CONDITION], [node.output[0] for node in dequantized], f"{_PREFIX}weights", **graphs)


def _signed_shift(stored: Array, points: Array) -> int:
    """Return what weights lose to be int8: their zero point where that fits, since convolutions without zero points are the fastest."""
    least, largest = int(stored.min(initial=255)), int(stored.max(initial=0))
    point = int(points.reshape(-1)[0])
    return point if (points == point).all() and least - point >= -128 and largest - point <= 127 else 128


def _add_constant(graph: Any, name: str, values: Array) -> None:
    graph.initializer.extend(inline({name: values}))


def take_unsigned_weights(model: Any, files: Files) -> None:
    """Put the DequantizeLinears of unsigned weights back in the place of the If that choose_weights() made.

    Any other If stays, since its branches may give different values.

    Args:
        model: a verified ModelProto.
        files: which hold its constants.
    """
    graph = model.graph
    choice = next((node for node in graph.node if node.op_type == "If" and list(node.input) == [_CONDITION]), None)
    chosen = [] if choice is None else _unsigned_branch(choice)
    protos = {item.name: item for item in graph.initializer}
    constants = {name: files.numpy(protos[name]) for node in chosen for name in node.input if name in protos}
    if not chosen or not all(_is_unsigned(node, constants) for node in chosen):
        return
    made = type(graph)()
    written = [*_tell_cpu(made), _choice(made, chosen, constants)]
    names = {name for node in written for name in node.output}
    found = [node for node in graph.node if not names.isdisjoint(node.output)]
    kept = [node for node in graph.node if names.isdisjoint(node.output)]
    read = {name for node in all_nodes(kept) for name in node.input} | {value.name for value in graph.output}
    is_read = any(name in read for node in written[:-1] for name in node.output)
    if is_read or list(map(_strip_types, found)) != list(map(_strip_types, written)):
        return
    own = {item.name: files.numpy(item) for item in made.initializer}
    if own.keys() <= protos.keys() and all(equal_data(files.numpy(protos[name]), own[name]) for name in own):
        replace_items(graph.node, [*chosen, *kept])
        replace_items(graph.initializer, [item for item in graph.initializer if item.name in read or item.name not in own])


def _unsigned_branch(choice: Any) -> list[Any]:
    """Return the nodes of the else branch of an If, each writing an output of the If; [] unless each has three inputs and one output."""
    nodes = [node for item in choice.attribute if item.name == "else_branch" for node in item.g.node]
    if len(nodes) != len(choice.output) or any((len(node.input), len(node.output)) != (3, 1) for node in nodes):
        return []
    named = [type(node).FromString(node.SerializeToString()) for node in nodes]
    for node, name in zip(named, choice.output, strict=True):
        node.output[0] = name
    return named


def _strip_types(node: Any) -> Any:
    """Return a copy of a node without the types that its graphs state, which other programs may have completed."""
    copy = type(node).FromString(node.SerializeToString())
    for graph in subgraphs(copy):
        del graph.value_info[:]
        for value in graph.output:
            value.ClearField("type")
    return copy
