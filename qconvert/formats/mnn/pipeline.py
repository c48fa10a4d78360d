"""MNN's compression parameters (`mnnconvert --compressionParamsFile`), a Pipeline as JSON or as protobuf: read as Encodings and written.

Its messages are proto2 of tools/converter/source/compression/MNN_compression.proto, package MNN.Compression. A message becomes a dict with
all its fields in lower camel case, absent ones with their defaults; enumerations are names. Unknown fields are ignored, as MNN does.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from qconvert.encodings import Encoding, Encodings, Place
from qconvert.errors import InvalidModelError, UnsupportedError, format_count
from qconvert.files.documents import fail, integer, list_of, number, sort_of, text, truth
from qconvert.formats.mnn.layers import Activation, Layer
from qconvert.formats.mnn.scales import activation_quantization, model_name

_ORIGIN = "MNN's Pipeline"
_ALONE = frozenset(("mnnUuid", "mnn_uuid", "forGuide", "for_guide"))
_MOST_BITS = 8


def is_pipeline(document: Any) -> bool:
    """Whether a JSON document looks like a Pipeline: it has algorithms, or what else only one has."""
    return isinstance(document, dict) and ("algo" in document or ("version" in document and bool(document.keys() & _ALONE)))


def pipeline_encodings(pipeline: Mapping[str, Any]) -> Encodings:
    """The encodings of a Pipeline as from_json() and from_bytes() return it.

    Raises:
        InvalidModelError: a scale is no positive number, or a zero point or limit is beyond its type; layers contradict each other.
        UnsupportedError: it guides bits of weights alone, prunes, or has weights with offsets or in blocks.
    """
    if pipeline["forGuide"]:
        raise UnsupportedError(
            "the Pipeline states only how many bits the weights get (for_guide): MNN takes no scales from it",
            remedy="Set forGuide to false if the scales are meant, or give the .mnn file.",
            rule="no-scales",
        )
    layers = list(_layers(pipeline))
    if not layers:
        raise InvalidModelError("no layer has scales", rule="no-scales")
    entries: dict[Place, Encoding] = {}
    for at, layer in layers:
        name = model_name(layer["output"][0]["name"])
        _put(entries, Place(name), _activation(layer["output"][0], f"{at}.output[0]"), at)
    for at, layer in layers:
        name = model_name(layer["output"][0]["name"])
        _operands(entries, name, layer, at)
    metadata = {"mnn.uuid": pipeline["mnnUuid"]} if pipeline["mnnUuid"] else {}
    return Encodings(entries, _ORIGIN, metadata=metadata, notes=_notes(layers))


def _layers(pipeline: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for position, algorithm in enumerate(pipeline["algo"]):
        at = f"algo[{position}]"
        if algorithm["type"] != "QUANTIZE":
            raise UnsupportedError(
                f"{at} prunes the network, which scales do not express",
                remedy="Give a Pipeline that only quantizes.",
                rule="not-quantization",
            )
        for index, layer in enumerate((algorithm["quantParams"] or {}).get("layer", ())):
            place = f"{at}.quantParams.layer[{index}]"
            if not layer["output"]:
                fail(place, "the layer has no output; MNN finds the layer by the name of its output", rule="missing-member")
            yield place, layer


def _operands(entries: dict[Place, Encoding], name: str, layer: Mapping[str, Any], at: str) -> None:
    """The entries of a layer's data and weights. Data that another layer computes have the entry of that, if it is the same."""
    if layer["input"]:
        stated = layer["input"][0]
        found = _activation(stated, f"{at}.input[0]")
        known = entries.get(Place(model_name(stated["name"])))
        if known is None or known.qparams != found.qparams:
            _put(entries, Place(name, "input"), found, at)
    if layer["weight"]:
        _put(entries, Place(name, "input", 1), _weights(layer["weight"][0], f"{at}.weight[0]"), at)


def _put(entries: dict[Place, Encoding], place: Place, found: Encoding, at: str) -> None:
    known = entries.setdefault(place, found)
    if known.qparams != found.qparams:
        fail(at, f"{place} has two different scales", rule="contradicting-scales")


def _activation(stated: Mapping[str, Any], at: str) -> Encoding:
    dtype = _dtype(stated["bits"], at)
    if len(stated["scales"]) != 1:
        fail(at, f"the number of scales is {len(stated['scales'])}; MNN requires one scale for an activation", rule="not-per-tensor")
    limits = _limits(stated, at)
    return Encoding(activation_quantization(stated["scales"], stated["zeroPoint"], at, limits, dtype=dtype), origin=_ORIGIN)


def _weights(stated: Mapping[str, Any], at: str) -> Encoding:
    dtype = _dtype(stated["bits"], at)
    if stated["asymmetric"] or stated["blockSize"]:
        what = "offsets" if stated["asymmetric"] else f"blocks of {stated['blockSize']}"
        raise UnsupportedError(f"weights with {what} have an unknown form in a Pipeline", where=at, rule="form-not-covered")
    if not stated["scales"]:
        fail(at, "has no scales", rule="no-scales")
    quantization = activation_quantization(stated["scales"], 0, at, _limits(stated, at), dtype=dtype)
    return Encoding(replace(quantization, quantization=quantization.quantization.with_axis(None)), origin=_ORIGIN)


def _dtype(bits: int, at: str) -> str:
    if not 2 <= bits <= _MOST_BITS:
        raise UnsupportedError(f"the number of bits is {bits}; 2 to {_MOST_BITS} are covered", where=at, rule="bits-not-covered")
    return "int4" if bits <= 4 else "int8"


def _limits(stated: Mapping[str, Any], at: str) -> tuple[int, int]:
    """The integers that are used: those stated, of as many bits as stated."""
    half = 1 << (stated["bits"] - 1)
    low, high = stated["clampMin"], stated["clampMax"]
    if low < -128 or high > 127:
        fail(at, f"the values are clipped to {low} and {high}, which are outside of int8", rule="limits-outside-type")
    return max(low, -half), min(high, half - 1)


def _notes(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, ...]:
    methods = Counter(layer["method"] for _, layer in layers if layer["method"] != "QAT")
    return tuple(
        f"{format_count(count, 'layer', 'have')} the method {name}, whose own arithmetic is not carried over"
        for name, count in methods.items()
    )


_VERSION = "0.0.0"
_LOW, _HIGH = -128, 127


def pipeline_json(layers: Iterable[Layer]) -> str:
    """The Pipeline as JSON, as protobuf writes it."""
    return json.dumps(_pipeline(layers), indent=1, ensure_ascii=False) + "\n"


def pipeline_binary(layers: Iterable[Layer]) -> bytes:
    """The same as protobuf."""
    return to_bytes(_pipeline(layers))


def _pipeline(layers: Iterable[Layer]) -> dict[str, Any]:
    entries = [
        {
            "input": [_activation_fields(layer.data)],
            "weight": [
                {"name": layer.weights, "bits": 8, "scales": [float(scale) for scale in layer.scales], "clampMin": _LOW, "clampMax": _HIGH}
            ],
            "output": [_activation_fields(layer.result, layer.name)],
            "method": "QAT",
            "opName": layer.operator,
        }
        for layer in layers
    ]
    return {"version": _VERSION, "algo": [{"type": "QUANTIZE", "quantParams": {"layer": entries}}], "forGuide": False}


def _activation_fields(tensor: Activation, name: str = "") -> dict[str, Any]:
    return {
        "name": name or tensor.name,
        "bits": 8,
        "scales": [tensor.scale],
        "zeroPoint": tensor.zero_point,
        "clampMin": _LOW,
        "clampMax": _HIGH,
    }


class MessageField(NamedTuple):
    """A field of a message.

    Attributes:
        name: in lower camel case.
        type: "string", "int32", "bool", "float", the name of a message, or the names of an enumeration, a tuple from 0.
        repeated: whether there may be several.
        default: where it is absent; None if it is required.
    """

    name: str
    type: str | tuple[str, ...]
    repeated: bool = False
    default: Any = None


_ROUNDING = ("ROUND_TOWARDS_ZERO", "ROUND_AWAY_FROM_ZERO", "ROUND_HALF_TO_EVEN")
_METHODS = ("QAT", "OverflowAware", "WinogradAware")
#: Message -> the number of a field -> the field.
MESSAGES: dict[str, dict[int, MessageField]] = {
    "Pipeline": {
        1: MessageField("version", "string"),
        2: MessageField("algo", "CompressionAlgo", True),
        3: MessageField("mnnUuid", "string", default=""),
        4: MessageField("forGuide", "bool", default=False),
    },
    "CompressionAlgo": {
        1: MessageField("type", ("QUANTIZE", "PRUNE"), default="QUANTIZE"),
        2: MessageField("quantParams", "QuantizeParams", default={}),
    },
    "QuantizeParams": {
        1: MessageField("roundMode", _ROUNDING, default="ROUND_AWAY_FROM_ZERO"),
        4: MessageField("layer", "LayerQuantizeParams", True),
    },
    "LayerQuantizeParams": {
        1: MessageField("input", "ActivationParams", True),
        2: MessageField("weight", "WeightParams", True),
        3: MessageField("output", "ActivationParams", True),
        4: MessageField("method", _METHODS, default="QAT"),
        6: MessageField("opName", "string", default=""),
        7: MessageField("subgraphName", "string", default=""),
    },
    "ActivationParams": {
        1: MessageField("name", "string"),
        2: MessageField("bits", "int32", default=8),
        3: MessageField("scales", "float", True),
        4: MessageField("zeroPoint", "int32", default=0),
        5: MessageField("clampMin", "int32", default=-128),
        6: MessageField("clampMax", "int32", default=127),
    },
    "WeightParams": {
        1: MessageField("name", "string"),
        2: MessageField("bits", "int32", default=8),
        3: MessageField("scales", "float", True),
        4: MessageField("clampMin", "int32", default=-128),
        5: MessageField("clampMax", "int32", default=127),
        6: MessageField("asymmetric", "bool", default=False),
        7: MessageField("blockSize", "int32", default=0),
    },
}
_MISSING = "MNN would print `missing field` and leave the whole model in float."
_INT32 = (-(2**31), 2**31 - 1)
_PACKAGE = "MNN.Compression"


def _fill_defaults(message: str, given: dict[str, Any], at: str) -> dict[str, Any]:
    """A message with all its fields.

    Raises:
        InvalidModelError: a required one is absent.
    """
    for field in MESSAGES[message].values():
        if field.name in given:
            continue
        if field.default is None and not field.repeated:
            raise InvalidModelError(
                f"the field {field.name!r} is missing; the schema requires it", where=at, remedy=_MISSING, rule="missing-member"
            )
        given[field.name] = [] if field.repeated else field.default
    return given


# JSON


def from_json(document: Any, message: str = "Pipeline", at: str = "Pipeline") -> dict[str, Any]:
    """A message in JSON as protobuf reads it: names in lower camel case or as in the .proto file, enumerations as names or numbers.

    Raises:
        InvalidModelError: a value is of another sort, or a required one is absent.
    """
    if not isinstance(document, dict):
        fail(at, f"is {sort_of(document)}, not an object", rule="wrong-type")
    fields = {name: field for field in MESSAGES[message].values() for name in (field.name, re.sub(r"(?=[A-Z])", "_", field.name).lower())}
    found: dict[str, Any] = {}
    for key, value in document.items():
        field = fields.get(key)
        if field is None or value is None:
            continue
        if field.name in found:
            fail(at, f"the field {field.name!r} occurs under both of its names", rule="duplicate-name")
        place, read = f"{at}.{key}", _value_reader(field.type)
        found[field.name] = list_of(value, place, read) if field.repeated else read(value, place)
    return _fill_defaults(message, found, at)


def _int32_from_json(value: Any, at: str) -> int:
    whole = integer(int(value) if isinstance(value, float) and value.is_integer() else value, at)
    if not _INT32[0] <= whole <= _INT32[1]:
        fail(at, f"is {whole}; the schema requires an integer of 32 bits", rule="number-out-of-range")
    return whole


def _value_reader(type_: str | tuple[str, ...]) -> Callable[[Any, str], Any]:
    """The function of a value and its place that reads the values of a field."""
    if isinstance(type_, tuple):
        return partial(_read_enum, type_)
    scalars: dict[str, Callable[[Any, str], Any]] = {"string": text, "int32": _int32_from_json, "bool": truth, "float": number}
    return scalars.get(type_) or (lambda value, at: from_json(value, type_, at))


def _read_enum(names: tuple[str, ...], value: Any, at: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    if not isinstance(value, str) or value not in names:
        fail(at, f"is {value!r}, not one of {', '.join(names)}", rule="unknown-word")
    return value


# protobuf


@cache
def _message_class() -> Any:
    """The class of a Pipeline in protobuf. All fields are optional in it: from_json() says which of those that are required is absent."""
    from google.protobuf.descriptor_pb2 import EnumValueDescriptorProto, FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="MNN_compression.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number_, field in fields.items():
            label = FieldDescriptorProto.LABEL_REPEATED if field.repeated else FieldDescriptorProto.LABEL_OPTIONAL
            made = message.field.add(name=field.name, number=number_, label=label)
            if isinstance(field.type, tuple):
                words = [EnumValueDescriptorProto(name=word, number=value) for value, word in enumerate(field.type)]
                message.enum_type.add(name=f"{field.name}_values", value=words)
                made.type, made.type_name = made.TYPE_ENUM, f".{_PACKAGE}.{name}.{field.name}_values"
            elif field.type in MESSAGES:
                made.type, made.type_name = made.TYPE_MESSAGE, f".{_PACKAGE}.{field.type}"
            else:
                made.type = getattr(made, f"TYPE_{field.type.upper()}")
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Pipeline"))


def from_bytes(data: bytes) -> dict[str, Any]:
    """A Pipeline in protobuf's encoding.

    Raises:
        InvalidModelError: it is cut off, or a required value is absent.
    """
    from google.protobuf.message import DecodeError

    try:
        found = _message_class().FromString(data)
    except DecodeError as error:
        raise InvalidModelError(f"is no protobuf: {error}", rule="damaged-file") from error
    return from_json(_fields_of(found, "Pipeline"))


def _fields_of(message: Any, name: str) -> dict[str, Any]:
    """The fields that a message has, enumerations by their numbers."""
    found: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        field = MESSAGES[name][descriptor.number]
        items = list(value) if field.repeated else [value]
        if any(isinstance(item, bytes) for item in items):
            fail(f"{name}.{field.name}", "is not UTF-8", rule="not-utf8")
        if field.type in MESSAGES:
            items = [_fields_of(item, str(field.type)) for item in items]
        found[field.name] = items if field.repeated else items[0]
    return found


def to_bytes(pipeline: Mapping[str, Any]) -> bytes:
    """A Pipeline as protobuf; messages are mappings, enumerations names."""
    found: bytes = _message_class()(**pipeline).SerializeToString()
    return found
