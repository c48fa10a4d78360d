"""Nodes outside the operator set: carried from one ONNX file to another as they are, subgraphs and custom domains included."""

from __future__ import annotations

import base64
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.custom import read_tflite_custom, write_tflite_custom
from qconvert.formats.onnx.model import carried_node, defined_names, node_captures, subgraphs
from qconvert.formats.onnx.reading import Reading
from qconvert.formats.reading.draft import Draft
from qconvert.graph import Op
from qconvert.operators.opaque import TFLITE_DOMAIN


def read_opaque(reading: Reading, node: Any, draft: Draft) -> None:
    """An Opaque operator with the node in its payload. Outer values that its subgraphs use become inputs after its own."""
    from qconvert.formats.onnx.definitions import infer_outputs  # which reads models

    if reading.domain == TFLITE_DOMAIN:
        read_tflite_custom(reading, node, draft)
        return
    proto = node.copy_with_constants()
    captures = tuple(name for name in dict.fromkeys(node_captures(proto)) if name in draft.tensors)
    for field in ("name", "input", "output", "doc_string", "metadata_props"):
        proto.ClearField(field)
    for output in filter(None, reading.outputs):
        draft.tensors.pop(output, None)
    payload = base64.b64encode(proto.SerializeToString()).decode("ascii")
    attributes: dict[str, Any] = {
        "format": "onnx",
        "domain": reading.domain,
        "op_type": reading.op_type,
        "version": reading.version,
        "payload": payload,
        "captures": captures,
    }
    used = [index for index, name in enumerate(reading.outputs) if name]
    if reading.domain and not captures and any(reading.declared_dtype(index) == "unknown" for index in used):
        inputs = {name: draft.tensors[name] for name in reading.inputs if name}
        for tensor in infer_outputs(inputs, Op("Opaque", reading.inputs, reading.outputs, attributes)):
            reading.declare(tensor.name, tensor.dtype, tensor.shape)
    dtypes = [reading.declared_dtype(index) for index in range(len(reading.outputs))]
    reading.emit("Opaque", [*reading.inputs, *captures], dtype=dtypes, **attributes)


def write_opaque(op: Op, b: Builder) -> None:
    """The node as it was, with the names that its values have now; for a custom operator of TFLite a node that stands for it."""
    if op["domain"] == TFLITE_DOMAIN:
        write_tflite_custom(op, b)
        return
    if op["format"] != "onnx":
        raise b.unsupported_error(op, f"an operator of {op['format']}", rule="operator-of-other-format")
    node = carried_node(op)
    if node is None:
        raise InvalidModelError("its payload is not an ONNX node in base64", where=op.location, rule="damaged-payload")
    if (node.op_type, node.domain) != (op["op_type"], op["domain"]):
        raise InvalidModelError(f"its payload is a node {node.op_type!r} of {node.domain!r}", where=op.location, rule="damaged-payload")
    captures = [str(name) for name in op["captures"]]
    count = len(op.inputs) - len(captures)
    given = [b.stored_value(name) for name in op.inputs]
    renamed = {old: new for old, new in zip(captures, given[count:], strict=True) if old != new}
    if renamed:
        _rename(node, renamed)
    node.input.extend(given[:count])
    node.output.extend(op.outputs)
    node.name = b.node_name(node.op_type, op.outputs)
    b.carry(node, op, int(op["version"]), given[count:])


def _rename(node: Any, names: dict[str, str]) -> None:
    """Gives outer values new names inside the subgraphs of a node; a name that the subgraph defines itself hides an outer one."""
    for graph in subgraphs(node):
        hidden = defined_names(graph)
        outer = {old: new for old, new in names.items() if old not in hidden}
        for child in graph.node:
            for position, name in enumerate(child.input):
                child.input[position] = outer.get(name, name)
            _rename(child, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


WRITERS: dict[str, WriteFunction] = {"Opaque": write_opaque}
