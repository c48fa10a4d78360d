"""Checks the types of the values of nodes that are about to be written: onnxruntime loads no model whose types do not fit its operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.formats.onnx.signatures import signature, type_reason
from qconvert.formats.onnx.verify import node_label

__all__ = ["require_types"]

_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}


def require_types(nodes: Iterable[Any], known: Mapping[str, str], opset: int) -> None:
    """Follows types through nodes in order, and checks each against its operator's signature.

    Args:
        nodes: NodeProtos of the main graph; values whose type nothing says are let through.
        known: canonical types of inputs, constants and the graph's own tensors.
        opset: of ONNX's own domain.

    Raises:
        UnsupportedError: an operator takes or gives no value of such a type.
    """
    types = dict(known)
    for node in nodes:
        if node.domain not in ("", "ai.onnx"):
            continue
        inputs = [types.get(name, "") for name in node.input]
        reason = type_reason(node.op_type, "", opset, inputs, [types.get(name, "") for name in node.output])
        if reason:
            raise UnsupportedError(f"{node.op_type} of ONNX {reason}", where=node_label(node), rule="operand-types")
        for index, name in enumerate(node.output):
            if name and name not in types:
                types[name] = _result_type(node, index, inputs, opset)


def _result_type(node: Any, index: int, inputs: list[str], opset: int) -> str:
    """The type of an output, "" where the signature and the types of the inputs do not say it."""
    if node.op_type == "Cast":
        return next((_NAMES.get(item.i, "") for item in node.attribute if item.name == "to"), "")
    found = signature(node.op_type, "", opset)
    if found is None or not found.output_types:
        return ""
    letter, allowed = found.output_types[min(index, len(found.output_types) - 1)]
    if len(allowed) == 1:
        return next(iter(allowed))
    sides = zip(inputs, (*found.input_types, *found.input_types[-1:] * len(inputs)), strict=False)
    return next((dtype for dtype, (other, _) in sides if letter and other == letter and dtype), "")
