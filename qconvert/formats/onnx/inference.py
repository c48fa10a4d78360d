"""Types and shapes by onnx's own inference, on a copy of the model without its large constants."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.initializers import BITS
from qconvert.formats.onnx.model import DEFAULT_DOMAINS, Model, all_nodes, embed_constants, replace_items, subgraphs

#: Constants of more bytes are inputs of the copy, of which type and shape alone are known.
_LARGEST = 1000
#: Element types of integers and floats that a Range, a size or a shape may have.
_NUMBERS = (1, 6, 7, 11)
#: A node Constant of so many elements becomes one of the graph's constants.
_LIFTED = 256
#: The most integers of one tensor that onnx's inference may work out; it knows no bound itself, and takes all of the memory.
_MOST_VALUES = 2**16
#: What it takes the size of a tensor for that it can know the integers of, and we do not: a shape.
_LONGEST_SHAPE = 64
#: Operators whose integers it works out where it knows those of all inputs; they have at most as many as their longest input.
_PROPAGATED = frozenset("Add Cast Ceil Div Floor Gather Identity Max Min Mod Mul Neg Reshape Slice Squeeze Sub Unsqueeze".split())
#: What onnx's inference can parse; at another character in a term it goes round for ever (onnx 1.22, defs/math/utils.cc).
_EQUATION = re.compile(rb"[A-Za-z., ]*(->[A-Za-z. ]*)?")


def infer_shapes(model: Model) -> None:
    """Fills in shapes and types where onnx can; a model that it cannot infer keeps those that the file gives.

    Raises:
        InvalidModelError: an Einsum has an equation that is none.
    """
    from onnx import shape_inference

    for holder in (model.proto.graph, *model.proto.functions):
        _refuse_wrong_equations(holder)
    _lift_constants(model.proto.graph)
    model.renew()
    light = _light_copy(model)
    if not _is_bounded(light.graph, {}):
        return
    try:
        inferred = shape_inference.infer_shapes(light, check_type=False, strict_mode=False, data_prop=True)
    except Exception:  # the inference's errors share no class but Exception
        return
    _take_inner(model.proto.graph, inferred.graph)
    model.graph.infer(inferred.graph)


def _take_inner(graph: Any, inferred: Any) -> None:
    """Puts what the inference says of the graphs inside nodes into these."""
    for node, other in zip(graph.node, inferred.node, strict=True):
        for inner, known in zip(subgraphs(node), subgraphs(other), strict=True):
            _take_inner(inner, known)
            stated = {value.name for value in inner.value_info}
            inner.value_info.extend(value for value in known.value_info if value.name not in stated)
            for value, found in zip(inner.output, known.output, strict=True):
                if not value.HasField("type"):
                    value.CopyFrom(found)


def _refuse_wrong_equations(holder: Any) -> None:
    for node in all_nodes(holder.node):
        for attribute in node.attribute if node.op_type == "Einsum" else ():
            if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
                text = attribute.s.decode("utf-8", "backslashreplace")
                raise InvalidModelError(
                    f"{text!r} is not an equation of letters, commas and one arrow", where=f"Einsum {node.name!r}", rule="invalid-equation"
                )


def _is_bounded(graph: Any, outer: Mapping[str, int]) -> bool:
    """Whether the integers that onnx's inference works out stay few: a Range may have 2**50, and Concat of Concat doubles them.

    Args:
        graph: with its constants.
        outer: the numbers of integers of tensors of the graphs around it.
    """
    from onnx import numpy_helper

    counts = {**outer, **{tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if _is_known(tensor)}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors = [attribute.t for attribute in node.attribute if attribute.name == "value" and attribute.HasField("t")]
            values.update((node.output[0], numpy_helper.to_array(tensor)) for tensor in tensors if _is_known(tensor))
            counts[node.output[0]] = max([_LONGEST_SHAPE, *(math.prod(tensor.dims) for tensor in tensors)])
            continue
        given = [counts.get(name) for name in node.input if name]
        known = [count for count in given if count is not None]
        found = 0
        if node.op_type == "Shape":
            found = _LONGEST_SHAPE
        elif node.op_type == "Range":
            ends = [values.get(name) for name in node.input]
            found = _range_size([float(end.reshape(-1)[0]) for end in ends if end is not None and end.size])
        elif node.op_type == "ConstantOfShape" and node.input and (sizes := values.get(node.input[0])) is not None:
            # Of one axis, it may be a shape itself.
            found = 0 if sizes.size != 1 else math.prod(int(size) for size in sizes.reshape(-1))
        elif node.op_type == "Concat" and len(known) == len(given):
            found = sum(known)
        elif node.op_type in _PROPAGATED and len(known) == len(given):
            found = max(known, default=0)
        if found > _MOST_VALUES and node.op_type != "ConstantOfShape":
            return False
        if found:
            counts.update(dict.fromkeys(filter(None, node.output), found))
        if not all(_is_bounded(inner, counts) for inner in subgraphs(node)):
            return False
    return True


def _is_known(tensor: Any) -> bool:
    return tensor.data_type in _NUMBERS and 0 <= math.prod(tensor.dims) <= _LONGEST_SHAPE


def _range_size(ends: Sequence[float]) -> int:
    """The number of values of a Range whose start, limit and delta are known; 0 if they are not."""
    if len(ends) != 3 or not all(map(math.isfinite, ends)) or ends[2] == 0:
        return 0
    return int(max(0.0, min(abs(ends[1] - ends[0]) / abs(ends[2]), 2.0**62)))


def _lift_constants(graph: Any) -> None:
    """Turns large Constant nodes into constants of the graph, also in the graphs inside it."""
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        for inner in subgraphs(node):
            _lift_constants(inner)
        is_constant = node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS and node.output[0] not in outputs
        is_tensor = is_constant and len(node.attribute) == 1 and node.attribute[0].name == "value" and node.attribute[0].HasField("t")
        if is_tensor and math.prod(node.attribute[0].t.dims) >= _LIFTED:
            tensor = graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
        else:
            kept.append(node)
    if len(kept) < len(graph.node):
        replace_items(graph.node, kept)


def _light_copy(model: Model) -> Any:
    """The model in which all constants are inputs too, and the large ones are nothing else."""
    copy = type(model.proto)()
    copy.CopyFrom(model.proto)
    graph = copy.graph
    listed = {value.name for value in graph.input}
    constants = list(graph.initializer)
    del graph.initializer[:]
    for tensor in constants:
        if tensor.name not in listed:
            value = graph.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            value.type.tensor_type.shape.SetInParent()
            for size in tensor.dims:
                value.type.tensor_type.shape.dim.add(dim_value=size)
        if math.prod(tensor.dims) * BITS.get(tensor.data_type, 8) <= 8 * _LARGEST:
            kept = graph.initializer.add()
            kept.CopyFrom(tensor)
            model.files.embed_data(kept)
    written = {name for node in graph.node for name in node.output}
    replace_items(graph.value_info, [value for value in graph.value_info if value.name in written])
    embed_constants(graph.node, model.files)
    return copy
