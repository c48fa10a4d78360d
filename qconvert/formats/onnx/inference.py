"""Types and shapes by onnx's own inference, on a copy of the model without its large constants."""

from __future__ import annotations

import math
import re
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.mapped import Files
from qconvert.formats.onnx.messages import embed, subgraphs
from qconvert.formats.onnx.model import Model
from qconvert.formats.onnx.verify_constants import BITS

__all__ = ["infer_shapes"]

#: Constants of more bytes are inputs of the copy, of which type and shape alone are known.
_LARGEST = 1000
#: A node Constant of so many elements becomes one of the graph's constants.
_LIFTED = 256
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
    try:
        inferred = shape_inference.infer_shapes(_light_copy(model), check_type=False, strict_mode=False, data_prop=True)
    except Exception:  # the inference's errors share no class but Exception
        return
    model.graph.infer(inferred.graph)


def _refuse_wrong_equations(holder: Any) -> None:
    for node in holder.node:
        for inner in subgraphs(node):
            _refuse_wrong_equations(inner)
        for attribute in node.attribute if node.op_type == "Einsum" else ():
            if attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
                text = attribute.s.decode("utf-8", "backslashreplace")
                raise InvalidModelError(f"{text!r} is no equation of letters, commas and one arrow", where=f"Einsum {node.name!r}")


def _lift_constants(graph: Any) -> None:
    """Turns large Constant nodes into constants of the graph, also in the graphs inside it."""
    outputs = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        for inner in subgraphs(node):
            _lift_constants(inner)
        is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx") and node.output[0] not in outputs
        is_tensor = is_constant and len(node.attribute) == 1 and node.attribute[0].name == "value" and node.attribute[0].HasField("t")
        if is_tensor and math.prod(node.attribute[0].t.dims) >= _LIFTED:
            tensor = graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
        else:
            kept.append(node)
    if len(kept) < len(graph.node):
        copies = [type(node).FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


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
            _add_whole(graph, tensor, model.files)
    written = {name for node in graph.node for name in node.output}
    stated = [value for value in graph.value_info if value.name in written]
    del graph.value_info[:]
    graph.value_info.extend(stated)
    embed(graph.node, model.files)
    return copy


def _add_whole(graph: Any, tensor: Any, files: Files) -> None:
    kept = graph.initializer.add()
    kept.CopyFrom(tensor)
    files.embed(kept)
