"""Operators outside this set: TFLite's custom ones as they are, and those of ONNX's other domains as custom ones.

A node of ONNX becomes a custom operator called by its domain and type, whose options are a FlexBuffer: domain, op_type, version, the
attributes that a kernel can read, and the node itself, of which the way back makes the node again.
"""

from __future__ import annotations

import base64
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.reading.flexbuffer import decode_flexbuffer, encode_flexbuffer
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op
from qconvert.operators.opaque import TFLITE_DOMAIN, custom_name, is_custom, payload_of

_KEYS = {"domain", "op_type", "version", "attributes", "node"}
#: Types of attributes that have a form in a FlexBuffer: FLOAT, INT, STRING, FLOATS, INTS, STRINGS (onnx.proto).
_FIELDS = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}
#: Types of attributes that hold subgraphs.
_GRAPHS = (5, 10)


def read_custom(r: Reading) -> None:
    """A custom operator that no plugin reads, or the node of ONNX that its options hold."""
    found = _node_in(r.custom_options, r.name)
    domain, op_type, version, content = (TFLITE_DOMAIN, r.name, r.version, r.custom_options) if found is None else found
    form = "tflite" if found is None else "onnx"
    r.emit("Opaque", format=form, domain=domain, op_type=op_type, version=version, payload=base64.b64encode(content).decode("ascii"))


def _node_in(options: bytes, code: str) -> tuple[str, str, int, bytes] | None:
    """Domain, type, version and node that options hold; None unless they are, to the byte, what is written for that node."""
    if b"op_type" not in options or b"domain" not in options:
        return None
    try:
        found = decode_flexbuffer(options)
    except InvalidModelError:
        return None
    if not isinstance(found, dict) or found.keys() != _KEYS or not isinstance(found["node"], bytes):
        return None
    domain, op_type, version = found["domain"], found["op_type"], found["version"]
    if not isinstance(domain, str) or not isinstance(op_type, str) or not isinstance(version, int) or code != f"{domain}.{op_type}":
        return None
    if not 0 < version < 2**31:
        return None
    same = is_custom(Op("Opaque", (), ("",), {"format": "onnx", "domain": domain})) and _options(domain, op_type, version, found["node"])
    return (domain, op_type, version, found["node"]) if same == options else None


def _options(domain: str, op_type: str, version: int, node: bytes) -> bytes | None:
    """The options of the custom operator that stands for a node; None where that is damaged, another one, or has subgraphs."""
    from google.protobuf.message import DecodeError
    from onnx import NodeProto

    try:
        proto = NodeProto.FromString(node)
        if (proto.op_type, proto.domain) != (op_type, domain) or any(item.type in _GRAPHS for item in proto.attribute):
            return None
        attributes = {item.name: _readable(getattr(item, _FIELDS[item.type])) for item in proto.attribute if item.type in _FIELDS}
        return encode_flexbuffer({"domain": domain, "op_type": op_type, "version": version, "attributes": attributes, "node": node})
    except (DecodeError, ValueError):
        return None


def _readable(value: Any) -> Any:
    """An attribute's value for a FlexBuffer: text where it is some."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    return value if isinstance(value, (int, float)) else [_readable(item) for item in value]


def write_custom(op: Op, w: Writing) -> None:
    """The custom operator as it was, or one that stands for a node of ONNX."""
    if not is_custom(op):
        raise w.unsupported_error(
            op, f"{custom_name(op).removeprefix('.')}, which belongs to ONNX or onnxruntime", rule="operator-of-other-format"
        )
    payload = payload_of(op)
    if not all(op.outputs):
        raise w.unsupported_error(op, "an output that is absent", rule="output-missing")
    unknown = [name for name in op.names if name and w.tensor(name).dtype == "unknown"]
    if unknown:
        raise w.unsupported_error(op, f"{unknown[0]!r}, whose type the file does not state", rule="unknown-type")
    if op["format"] == "tflite":
        w.emit(str(op["op_type"]), op.inputs, op.outputs, custom=payload, version=int(op["version"]))
        return
    options = None if op["captures"] else _options(str(op["domain"]), str(op["op_type"]), int(op["version"]), payload)
    if options is None:
        raise w.unsupported_error(op, f"{custom_name(op)}, whose node has subgraphs or is damaged", rule="damaged-payload")
    w.emit(custom_name(op), op.inputs, op.outputs, custom=options)


READERS: Readers = {}

WRITERS: Writers = {"Opaque": write_custom}
