"""Weights whose storage onnxruntime chooses when it loads a file: signed where its kernels add products in 32 bits, else unsigned.

On x86 CPUs without VNNI, onnxruntime's kernels of unsigned data and signed weights add two products in 16 bits and saturate
(passes/guard_saturation.py); those of unsigned weights are exact, and 2 to 4 times slower where a CPU has VNNI. One product of
constants that would saturate tells which CPU it is: onnxruntime folds it to a constant, and inlines the branch of the If that it chooses
(from 1.17 on), before it puts integer kernels in the place of operators. Both branches give the same float values, so that a runtime
that folds nothing computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.formats.onnx.model import all_nodes, replace_items
from qconvert.graph import Array

__all__ = ["choose_weights", "take_unsigned_weights"]

#: Before the names of values that tell the CPU, and the value that says whether its sums have 32 bits.
_PREFIX = "sums_of_products/"
_CONDITION = f"{_PREFIX}have_32_bits"
#: Operators that onnxruntime multiplies by integer kernels, the second input being the weights.
_WEIGHTED = ("Conv", "Gemm", "MatMul")
#: Rows, depth and columns of the product that tells the CPU. One row would be multiplied by another kernel than convolutions are.
_ROWS, _DEPTH, _COLUMNS = 2, 8, 16
_LARGEST_DATA, _LARGEST_WEIGHT = 255, 127


def choose_weights(model: Any, constants: Mapping[str, Array]) -> None:
    """Let one If of a ModelProto's main graph dequantize all unsigned weights that dequantized data are multiplied with, or signed ones.

    Args:
        model: with weights that could saturate next to unsigned data stored as uint8.
        constants: the initializers of its main graph.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    weights = {
        node.input[1]
        for node in model.graph.node
        if node.op_type in _WEIGHTED and all(_is_dequantized(name, producers) for name in node.input[:2])
    }
    chosen = [node for node in model.graph.node if weights.intersection(node.output) and _is_unsigned(node, constants)]
    if chosen:
        first = [*_tell_cpu(model.graph), _choice(model.graph, chosen, constants)]
        outputs = {name for node in chosen for name in node.output}
        replace_items(model.graph.node, [*first, *(node for node in model.graph.node if outputs.isdisjoint(node.output))])


def _is_dequantized(name: str, producers: Mapping[str, Any]) -> bool:
    return name in producers and producers[name].op_type == "DequantizeLinear"


def _is_unsigned(node: Any, constants: Mapping[str, Array]) -> bool:
    return node.input[0] in constants and constants[node.input[0]].dtype == np.uint8


def _tell_cpu(graph: Any) -> list[Any]:
    """Return the nodes that compute the condition; their constants are added to the graph."""
    from onnx import helper

    data, weights, exact = (f"{_PREFIX}{name}" for name in ("data", "weights", "exact"))
    products, least = (f"{_PREFIX}{name}" for name in ("products", "least"))
    _add_constant(graph, data, np.full((_ROWS, _DEPTH), _LARGEST_DATA, np.uint8))
    _add_constant(graph, weights, np.full((_DEPTH, _COLUMNS), _LARGEST_WEIGHT, np.int8))
    _add_constant(graph, exact, np.array(_DEPTH * _LARGEST_DATA * _LARGEST_WEIGHT, np.int32))
    return [
        helper.make_node("MatMulInteger", [data, weights], [products], products),
        helper.make_node("ReduceMin", [products], [least], least, keepdims=0),
        helper.make_node("Equal", [least, exact], [_CONDITION], _CONDITION),
    ]


def _choice(graph: Any, dequantized: Sequence[Any], constants: Mapping[str, Array]) -> Any:
    """Return the If in the place of the DequantizeLinears of unsigned weights."""
    from onnx import helper

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
            helper.make_node("Cast", [weights], [wide], to=ELEMENT_TYPES["int32"]),
            helper.make_node("Sub", [wide, amount], [shifted]),
            helper.make_node("Cast", [shifted], [stored], to=ELEMENT_TYPES["int8"]),
            helper.make_node("DequantizeLinear", [stored, scale, point], [floats], **axis),
        ]
        unsigned.append(helper.make_node("DequantizeLinear", list(node.input), [f"{_PREFIX}unsigned/{number}"], node.name, **axis))
    branches = {"then_branch": signed, "else_branch": unsigned}
    graphs = {}
    for branch, nodes in branches.items():
        outputs = [node.output[0] for node in nodes if node.op_type == "DequantizeLinear"]
        values = [helper.make_tensor_value_info(name, ELEMENT_TYPES["float32"], None) for name in outputs]
        graphs[branch] = helper.make_graph(nodes, f"{_PREFIX}{branch}", [], values)
    return helper.make_node("If", [_CONDITION], [node.output[0] for node in dequantized], f"{_PREFIX}weights", **graphs)


def _signed_shift(stored: Array, points: Array) -> int:
    """Return what weights lose to be int8: their zero point where that fits, since convolutions without zero points are the fastest."""
    least, largest = int(stored.min(initial=255)), int(stored.max(initial=0))
    point = int(points.reshape(-1)[0])
    return point if (points == point).all() and least - point >= -128 and largest - point <= 127 else 128


def _add_constant(graph: Any, name: str, values: Array) -> None:
    from onnx import numpy_helper

    graph.initializer.append(numpy_helper.from_array(values, name))


def take_unsigned_weights(model: Any) -> None:
    """Put the DequantizeLinears of unsigned weights back in the place of the If that choose_weights() made, in a ModelProto."""
    nodes = model.graph.node
    if not any(_CONDITION in node.output for node in nodes):
        return
    kept = []
    for node in nodes:
        dequantized = _unsigned_branch(node)
        for name, plain in zip(node.output, dequantized, strict=True) if dequantized else ():
            plain.output[0] = name
            kept.append(plain)
        if not dequantized and not all(name.startswith(_PREFIX) for name in node.output):
            kept.append(node)
    replace_items(nodes, kept)
    read = {name for node in all_nodes(kept) for name in node.input}
    constants = model.graph.initializer
    replace_items(constants, [item for item in constants if item.name in read or not item.name.startswith(_PREFIX)])


def _unsigned_branch(node: Any) -> list[Any]:
    """Return the DequantizeLinears of unsigned weights in an If that chooses weights by the CPU; [] for another node."""
    if node.op_type != "If" or list(node.input) != [_CONDITION]:
        return []
    found = [other for item in node.attribute if item.name == "else_branch" for other in item.g.node]
    plain = len(found) == len(node.output) and all(other.op_type == "DequantizeLinear" and len(other.output) == 1 for other in found)
    return found if plain else []
