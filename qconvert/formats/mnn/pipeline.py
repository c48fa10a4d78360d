"""MNN's compression parameters (`mnnconvert --compressionParamsFile`), a Pipeline as JSON or as protobuf: read as Encodings and written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.encodings import Encoding, Encodings, Place
from qconvert.errors import InvalidModelError, UnsupportedError, format_count
from qconvert.files.documents import fail
from qconvert.formats.mnn.layers import Activation, Layer
from qconvert.formats.mnn.messages import to_bytes
from qconvert.formats.mnn.scales import activation_quantization, model_name

_ORIGIN = "MNN's Pipeline"
_ALONE = frozenset(("mnnUuid", "mnn_uuid", "forGuide", "for_guide"))
_MOST_BITS = 8


def is_pipeline(document: Any) -> bool:
    """Whether a JSON document looks like a Pipeline: it has algorithms, or what else only one has."""
    return isinstance(document, dict) and ("algo" in document or ("version" in document and bool(document.keys() & _ALONE)))


def pipeline_encodings(pipeline: Mapping[str, Any]) -> Encodings:
    """The encodings of a Pipeline as messages.py has it.

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
    for number, algorithm in enumerate(pipeline["algo"]):
        at = f"algo[{number}]"
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
