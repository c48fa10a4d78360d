"""Nodes outside the operator set, and custom operators of TFLite.

The former are carried from one ONNX file to another as they are, subgraphs and custom domains included. The latter are nodes of the domain
`tflite.custom`, called as their code.

    tflite.custom.MyOp <custom_options: the bytes, alpha: 0.5, input_0_scale: [0.25], input_0_zero_point: [3]> (x) -> y

The options are there as TFLite has them and, where they are a FlexBuffer with a map, once more as attributes that can be read and changed:
attributes that say otherwise than the bytes rule. Scales and zero points are attributes since stored integers have none of their own in
ONNX, and a kernel needs them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.formats.onnx.model import DEFAULT_DOMAINS, carried_node, defined_names, node_captures, since_version, subgraphs
from qconvert.formats.onnx.proto import make_attribute, make_value_info
from qconvert.formats.onnx.reading import Reading
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.flexbuffer import decode_flexbuffer, encode_flexbuffer
from qconvert.graph import Op, Quantization, Shape, Tensor
from qconvert.operators.opaque import TFLITE_DOMAIN, payload_of


def read_opaque(reading: Reading, node: Any, draft: Draft) -> None:
    """An Opaque operator with the node in its payload. Outer values that its subgraphs use become inputs after its own."""
    from qconvert.formats.onnx.definitions import infer_outputs  # which reads models

    if reading.domain == TFLITE_DOMAIN:
        read_tflite_custom(reading, draft)
        return
    proto = reading.copy_node(node)
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
    nothing: tuple[str, Shape | None] = ("unknown", None)
    stated = {name: reading.declared.get(name, nothing) for name in reading.outputs if name}
    if reading.domain and not captures and any(dtype == "unknown" or shape is None for dtype, shape in stated.values()):
        inputs = {name: draft.tensors[name] for name in reading.inputs if name}
        for tensor in infer_outputs(inputs, Op("Opaque", reading.inputs, reading.outputs, attributes)):
            dtype, shape = stated[tensor.name]
            reading.declared[tensor.name] = (tensor.dtype if dtype == "unknown" else dtype, tensor.shape if shape is None else shape)
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
    _carry(op, node, given[count:], b)


def _carry(op: Op, node: Any, reads: Sequence[str], b: Builder) -> None:
    """Adds a node, whose subgraphs read the values `reads`, as it means in the version of its domain that this model has.

    Raises:
        UnsupportedError: the operator means something else in that version, or there are two versions.
    """
    nodes, version = [node], int(op["version"])
    if node.domain in DEFAULT_DOMAINS:
        nodes = _lift_node(node, op, version, b)
    elif b.domains.setdefault(node.domain, version) != version:
        raise b.unsupported_error(
            op, f"version {version} of {node.domain} in a model that imports version {b.domains[node.domain]}", rule="two-opset-versions"
        )
    for item in nodes:
        b.hidden_reads[len(b.nodes)] = list(reads)
        b.nodes.append(item)


#: The opset below which onnx 1.23's converter gives another meaning: it keeps the axis of Hardmax, the batch axis of Scan, which there is
#: no more, and the scales of GroupNormalization, one for each group; and the mask that onnxruntime gives for Dropout was all false.
_MISCONVERTED = {"Hardmax": 13, "Scan": 9, "GroupNormalization": 21, "Dropout": 12}


def _lift_node(node: Any, op: Op, version: int, b: Builder) -> list[Any]:
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
    from onnx import helper, numpy_helper, version_converter

    named = [name for name in dict.fromkeys((*node.input, *op.inputs)) if name]
    graph = helper.make_graph(
        [node],
        "node",
        [_value_info(b.tensor(name)) for name in named if name in b.graph.tensors],
        [_value_info(b.tensor(name)) for name in op.outputs if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
    try:
        converted = version_converter.convert_version(model, b.opset)
    except Exception as error:  # the converter's errors share no class but Exception
        raise b.unsupported_error(
            op, f"the definition of {node.op_type} in opset {version}, in a model of opset {b.opset},", rule="opset-differs"
        ) from error
    outer = {*named, *op.outputs}
    inner = {value.name: b.const(numpy_helper.to_array(value), f"{op.outputs[0]}/{node.op_type}") for value in converted.graph.initializer}
    for item in converted.graph.node:
        inner.update((name, b.name(f"{op.outputs[0]}/{item.op_type}")) for name in item.output if name and name not in outer)
        for names in (item.input, item.output):
            names[:] = [inner.get(name, name) for name in names]
        item.name = b.node_name(item.op_type, list(item.output))
    return list(converted.graph.node)


def _value_info(tensor: Tensor) -> Any:
    return make_value_info(tensor.name, ELEMENT_TYPES.get(tensor.dtype, 1), tensor.shape)


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


_CODE, _OPTIONS, _VERSION = "custom_code", "custom_options", "custom_version"
_GRID = re.compile(r"(input|output)_(\d{1,6})_(scale|zero_point|axis)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def write_tflite_custom(op: Op, b: Builder) -> None:
    """The node; `custom_code` is there where the code is no legal name."""
    code, options = str(op["op_type"]), payload_of(op)
    name = re.sub(r"[^A-Za-z0-9_]", "_", code)
    name = name if re.match(r"[A-Za-z_]", name) else f"_{name}"
    attributes: dict[str, Any] = _view(options)
    if name != code:
        attributes[_CODE] = code
    if options:
        attributes[_OPTIONS] = options
    if op["version"] != 1:
        attributes[_VERSION] = int(op["version"])
    for side, names in (("input", op.inputs), ("output", op.outputs)):
        for index, tensor in enumerate(names):
            attributes |= _quantization_attributes(f"{side}_{index}", b.tensor(tensor)) if tensor else {}
    b.node(name, [b.stored_value(item) for item in op.inputs], op.outputs, domain=TFLITE_DOMAIN)
    b.nodes[-1].attribute.extend(make_attribute(key, value) for key, value in attributes.items())


def read_tflite_custom(reading: Reading, draft: Draft) -> None:
    """The operator, with the scales and zero points of its tensors."""
    given = {name: reading.attribute(name) for name in reading.attributes}
    places = {(found[1], int(found[2])) for found in map(_GRID.fullmatch, given) if found and found[3] == "scale"}
    quantizations = {(side, index): _quantization(reading, given, f"{side}_{index}") for side, index in places}
    code, options, version = given.pop(_CODE, reading.op_type), given.pop(_OPTIONS, b""), given.pop(_VERSION, 1)
    code = code.decode("utf-8", "replace") if isinstance(code, bytes) else code
    options = options.encode("utf-8", "surrogateescape") if isinstance(options, str) else options
    if not isinstance(code, str) or not code or not isinstance(options, bytes) or not isinstance(version, int):
        raise reading.invalid(f"{_CODE}, {_OPTIONS} and {_VERSION} must be a string, bytes and a number", rule="damaged-payload")
    inputs = list(reading.inputs)
    for index, name in enumerate(inputs):
        quantization = quantizations.get(("input", index))
        if quantization is not None and name and draft.tensors[name].quantization != quantization:
            inputs[index] = reading.label_input(index, quantization)
    dtypes = [reading.declared_dtype(index) for index in range(len(reading.outputs))]
    for output in filter(None, reading.outputs):
        draft.tensors.pop(output, None)
    payload = base64.b64encode(_merge_options(reading, options, {key: value for key, value in given.items() if not _GRID.fullmatch(key)}))
    reading.emit(
        "Opaque",
        inputs,
        dtype=dtypes,
        format="tflite",
        domain=TFLITE_DOMAIN,
        op_type=code,
        version=version,
        payload=payload.decode("ascii"),
    )
    for index, name in enumerate(reading.outputs):
        quantization = quantizations.get(("output", index))
        if quantization is not None and name:
            draft.tensors[name] = replace(draft.tensors[name], quantization=quantization)


def _quantization_attributes(place: str, tensor: Tensor) -> dict[str, Any]:
    """The attributes for the scales of a tensor; scales in blocks are not stated."""
    quantization = tensor.quantization
    if quantization is None or quantization.block_size:
        return {}
    numbers = {f"{place}_scale": quantization.scale.tolist(), f"{place}_zero_point": quantization.zero_point.tolist()}
    return numbers if quantization.axis is None else {**numbers, f"{place}_axis": quantization.axis}


def _quantization(reading: Reading, given: Mapping[str, Any], place: str) -> Quantization:
    scales, points, axis = given[f"{place}_scale"], given.get(f"{place}_zero_point"), given.get(f"{place}_axis")
    scales = scales if isinstance(scales, tuple) else ()
    points = (0,) * len(scales) if points is None else points if isinstance(points, tuple) else ()
    numbers = all(isinstance(item, (int, float)) for item in scales) and all(isinstance(item, int) for item in points)
    if not numbers or not scales or len(scales) != len(points) or (axis is None and len(scales) > 1) or not isinstance(axis, int | None):
        raise reading.invalid(
            f"the scales, zero points and axis of {place} must be lists of one length and a number", rule="damaged-payload"
        )
    try:
        return Quantization(np.array(scales, np.float32), np.array(points, np.int64), axis)
    except (ValueError, OverflowError) as error:
        raise reading.invalid(f"the scales of {place} are invalid: {error}", rule="damaged-payload") from error


def _view(options: bytes) -> dict[str, Any]:
    """The options that have a form as attributes; nothing of what is no FlexBuffer with a map. The bytes are there in any case."""
    taken = (_CODE, _OPTIONS, _VERSION)
    free = {key: item for key, item in _map(options).items() if _NAME.fullmatch(key) and key not in taken and not _GRID.fullmatch(key)}
    return {key: value for key, item in free.items() if (value := _attribute(item)) is not None}


def _map(options: bytes) -> dict[str, Any]:
    try:
        found = decode_flexbuffer(options)
    except InvalidModelError:
        return {}
    return found if isinstance(found, dict) else {}


def _attribute(value: Any) -> Any:
    """A value as an attribute of ONNX has it; None if none has."""
    if isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return int(value)
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    if isinstance(value, (str, bytes)):
        return value
    if not isinstance(value, list) or not value or isinstance(value[0], (list, dict)):
        return None
    items = [_attribute(item) for item in value]
    sorts = {type(item) for item in items}
    return tuple(items) if len(sorts) == 1 and sorts <= {int, float, str} else None


def _merge_options(reading: Reading, options: bytes, given: Mapping[str, Any]) -> bytes:
    """The bytes of the options: those stated, unless the attributes say otherwise."""
    view = _view(options)
    same = view.keys() == given.keys() and all(_equal(view[key], value) for key, value in given.items())
    if same:
        return options
    known = _map(options)
    if options and not known:
        raise reading.invalid(f"its attributes cannot be added to its {_OPTIONS}, which are not a map", rule="damaged-payload")
    kept = {key: value for key, value in known.items() if key not in view or key in given}
    changed = {key: _value(value) for key, value in given.items() if key not in view or not _equal(view[key], value)}
    if any(value is None for value in changed.values()):
        raise reading.invalid("an attribute is neither a number nor a string, nor a list of them", rule="damaged-payload")
    return encode_flexbuffer({**kept, **changed})


def _equal(a: Any, b: Any) -> bool:
    """Whether two attributes are one; a NaN is itself."""
    if isinstance(a, (bytes, str)) and isinstance(b, (bytes, str)):
        return _raw(a) == _raw(b)
    return repr(a) == repr(b)


def _raw(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _value(given: Any) -> Any:
    """An attribute as a value of a FlexBuffer; None if it is no such."""
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return list(given) if all(isinstance(item, (int, float, str)) for item in given) else None
    return given if isinstance(given, (int, float, str, bytes)) else None


WRITERS: Writers = {"Opaque": write_opaque}
