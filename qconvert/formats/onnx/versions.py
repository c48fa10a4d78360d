"""Nodes of older opsets in the form that the written opset has, by onnx's own version converter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.graph import Op, Tensor

if TYPE_CHECKING:
    from qconvert.formats.onnx.builder import Builder


#: The opset below which onnx 1.23's converter gives another meaning: it keeps the axis of Hardmax, the batch axis of Scan, which there is
#: no more, and the scales of GroupNormalization, one for each group; and the mask that onnxruntime gives for Dropout was all false.
_MISCONVERTED = {"Hardmax": 13, "Scan": 9, "GroupNormalization": 21, "Dropout": 12}


def lift_node(node: Any, op: Op, version: int, b: Builder) -> list[Any]:
    """The nodes that mean in b.opset what `node`, of ai.onnx, means in opset `version`.

    Raises:
        UnsupportedError: there are none.
    """
    if since_version(node.op_type, version) == since_version(node.op_type, b.opset):
        return [node]
    has_mask = node.op_type != "Dropout" or len(node.output) > 1
    if version < _MISCONVERTED.get(node.op_type, 0) and has_mask:
        raise b.unsupported_error(
            op, f"the definition of {node.op_type} in opset {version}, in a model of opset {b.opset},", rule="opset-differs"
        )
    from onnx import helper, version_converter

    named = [name for name in dict.fromkeys((*node.input, *op.inputs)) if name]
    graph = helper.make_graph(
        [node],
        "node",
        [_value(b.tensor(name)) for name in named if name in b.graph.tensors],
        [_value(b.tensor(name)) for name in op.outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    try:
        converted = version_converter.convert_version(model, b.opset)
    except Exception as error:  # the converter's errors share no class but Exception
        raise b.unsupported_error(
            op, f"the definition of {node.op_type} in opset {version}, in a model of opset {b.opset},", rule="opset-differs"
        ) from error
    from onnx import numpy_helper

    outer = {*named, *op.outputs}
    inner = {value.name: b.const(numpy_helper.to_array(value), f"{op.outputs[0]}/{node.op_type}") for value in converted.graph.initializer}
    for item in converted.graph.node:
        inner.update((name, b.name(f"{op.outputs[0]}/{item.op_type}")) for name in item.output if name and name not in outer)
        for names in (item.input, item.output):
            names[:] = [inner.get(name, name) for name in names]
        item.name = b.node_name(item.op_type, list(item.output))
    return list(converted.graph.node)


def since_version(op_type: str, opset: int) -> int:
    """The opset in which the operator got the meaning that it has in `opset`; 0 if ai.onnx does not have it there."""
    from onnx import defs

    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except defs.SchemaError:
        return 0


def _value(tensor: Tensor) -> Any:
    from onnx import helper

    shape = None if tensor.shape is None else list(tensor.shape)
    return helper.make_tensor_value_info(tensor.name, ELEMENT_TYPES.get(tensor.dtype, 1), shape)
