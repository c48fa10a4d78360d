"""The files of an intermediate representation: operators as XML, constants in a file of the same name that ends in .bin.

They are read here and not by OpenVINO, which trusts some sizes and offsets of damaged files. A file can also be read without OpenVINO
installed. The layout: https://docs.openvino.ai, "Intermediate Representation".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qconvert.plugin import Array, FileAccessError, InvalidModelError, NotedTensor, UnsupportedError, map_file
from qconvert_openvino.elements import DTYPES, array_of

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


_LARGEST_XML = 2**28
_MOST_LAYERS = 2**20
_LARGEST_SIZE = 2**40
_VERSIONS = ("10", "11")


@dataclass(frozen=True, slots=True)
class Port:
    """A result of a layer: OpenVINO's name of its type, its sizes (-1 for a dynamic dimension), its names."""

    type: str
    shape: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(slots=True)
class Node:
    """A layer.

    Attributes:
        id: as in the file.
        name, type, opset: as in the file, with the operator set of the type.
        attributes: as texts.
        ports: its results, by their ids in the file.
        inputs: for each input the layer that computes it and the id of its output port, in order.
        data: the elements of a Const.
    """

    id: int
    name: str
    type: str
    opset: str
    attributes: Mapping[str, str]
    ports: dict[int, Port]
    inputs: list[tuple[Node, int]] = field(default_factory=list)
    data: Array | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.name!r}"

    def invalid(self, what: str, *, rule: str) -> InvalidModelError:
        """Return the error for something that OpenVINO does not allow."""
        return InvalidModelError(what, where=str(self), rule=rule)


@dataclass(frozen=True, slots=True)
class Model:
    """A network: its layers in topological order, and qconvert's notes."""

    name: str
    nodes: tuple[Node, ...]
    notes: Notes


def read_model(path: Path) -> Model:
    """Read the network in an .xml file and the .bin file next to it.

    Raises:
        FileAccessError: a file cannot be read.
        InvalidModelError: the files are damaged, or no OpenVINO model.
        UnsupportedError: layers hold networks of their own (If, Loop, TensorIterator).
    """
    root = _parse_xml(path)
    if root.tag != "net" or root.get("version") not in _VERSIONS:
        raise InvalidModelError(f"is not an OpenVINO model of version {' or '.join(_VERSIONS)}", rule="not-this-format")
    layers = list(root.findall("layers/layer"))
    if not layers or len(layers) > _MOST_LAYERS:
        raise InvalidModelError(f"the number of layers is {len(layers)}; 1 to {_MOST_LAYERS} are allowed", rule="too-many-layers")
    nodes: dict[int, Node] = {}
    for layer in layers:
        node = _read_layer(layer)
        if nodes.setdefault(node.id, node) is not node:
            raise InvalidModelError(f"two layers have the id {node.id}", rule="duplicate-name")
    places = {
        int(layer.get("id", "")): [_parse_integer(port.get("id"), "the id of a port") for port in layer.findall("input/port")]
        for layer in layers
    }
    _connect_layers(nodes, places, root.findall("edges/edge"))
    _load_constants(path.with_suffix(".bin"), nodes.values())
    noted = root.find("rt_info/qconvert")
    texts = {} if noted is None else {item.tag: item.get("value", "") for item in noted}
    return Model(root.get("name", ""), tuple(_sort_nodes(nodes)), Notes.of(texts))


def _parse_xml(path: Path) -> Element:
    """Parse the XML of a file. Raise InvalidModelError for a document type, which could define entities."""
    from xml.etree.ElementTree import ParseError, fromstring

    data = map_file(path)
    if len(data) > _LARGEST_XML:
        raise InvalidModelError("is too large for the operators of a model", rule="file-too-large")
    text = bytes(data)
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text or text[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InvalidModelError("the file has a document type, or is not UTF-8", rule="malformed-xml")
    try:
        return fromstring(text)
    except (ParseError, ValueError, LookupError) as error:
        raise InvalidModelError(f"is not XML: {error}", rule="malformed-xml") from error


def _parse_integer(text: str | None, what: str, low: int = 0, high: int = _LARGEST_SIZE) -> int:
    if text is None or not re.fullmatch(r"-?[0-9]{1,18}", text.strip()) or not low <= int(text) <= high:
        raise InvalidModelError(f"{what} is {str(text)[:40]!r}", rule="malformed-number")
    return int(text)


def _read_layer(layer: Element) -> Node:
    data = layer.find("data")
    ports = {}
    for port in layer.findall("output/port"):
        shape = tuple(_parse_integer(dim.text, "a size", -1) for dim in port.findall("dim"))
        names = tuple(name.replace("\\,", ",") for name in re.findall(r"(?:[^,\\]|\\.)+", port.get("names", "")))
        if len(shape) > 64:
            raise InvalidModelError(
                f"a result of {layer.get('name', '')!r} has {len(shape)} dimensions; at most 64 are allowed", rule="wrong-rank"
            )
        ports[_parse_integer(port.get("id"), "the id of a port")] = Port(port.get("precision", "").lower().replace("fp", "f"), shape, names)
    kind = layer.get("type", "")
    if layer.find("body") is not None or layer.find("then_body") is not None:
        raise UnsupportedError(
            f"{kind} holds a subgraph, which is not covered", where=repr(layer.get("name", "")), rule="subgraphs-not-covered"
        )
    if not ports and kind != "Result":
        raise InvalidModelError("the layer has no result", where=f"{kind} {layer.get('name', '')!r}", rule="no-inputs-or-outputs")
    number = _parse_integer(layer.get("id"), "the id of a layer")
    return Node(number, layer.get("name", ""), kind, layer.get("version", "opset1"), {} if data is None else dict(data.items()), ports)


def _connect_layers(nodes: Mapping[int, Node], inputs: Mapping[int, list[int]], edges: list[Element]) -> None:
    """Set the inputs of every layer. Raise InvalidModelError for unknown, duplicate, or missing edges."""
    found: dict[tuple[int, int], tuple[Node, int]] = {}
    for edge in edges:
        source, port, reader, place = (
            _parse_integer(edge.get(key), "an edge") for key in ("from-layer", "from-port", "to-layer", "to-port")
        )
        if source not in nodes or port not in nodes[source].ports or (reader, place) in found:
            raise InvalidModelError(
                f"the edge from layer {source}, port {port}, to layer {reader}, port {place}, does not fit the layers",
                rule="malformed-edge",
            )
        found[reader, place] = nodes[source], port
    for number, places in inputs.items():
        missing = [place for place in places if (number, place) not in found]
        if missing:
            raise nodes[number].invalid(f"port {missing[0]} has no edge", rule="input-missing")
        nodes[number].inputs = [found[number, place] for place in places]


def _load_constants(path: Path, nodes: Iterable[Node]) -> None:
    """Set the elements of constants, views on the .bin file."""
    constants = [node for node in nodes if node.type == "Const"]
    if not constants:
        return
    try:
        content: Array = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise FileAccessError(
            f"cannot be read: {error.strerror or error}; this file holds the constants",
            file=str(path),
            remedy="Keep the .bin file next to the .xml file.",
            rule="file-not-read",
        ) from error
    for node in constants:
        offset, size = (_parse_integer(node.attributes.get(key), key) for key in ("offset", "size"))
        own = node.attributes.get("element_type", "")
        shape = tuple(_parse_integer(part, "a size") for part in node.attributes.get("shape", "").split(",") if part.strip())
        if own not in DTYPES:
            raise UnsupportedError(f"constants of the type {own!r} are not covered", where=str(node), rule="dtype-not-covered")
        if offset + size > content.size:
            reason = f"its {size} bytes at {offset} are not in the .bin file, which has {content.size}"
            raise node.invalid(reason, rule="file-too-short")
        try:
            node.data = array_of(content[offset : offset + size], own, shape)
        except InvalidModelError as error:
            error.where = str(node)
            raise
        except ValueError as error:  # more dimensions, or larger ones, than an array can have
            raise node.invalid(f"is not the shape of an array: {error}", rule="malformed-shape") from error


def _sort_nodes(nodes: Mapping[int, Node]) -> Iterator[Node]:
    """Yield the layers in topological order, otherwise as in the file. Raise InvalidModelError for a cycle."""
    state: dict[int, int] = {}  # 1 while its inputs are visited, 2 after that
    for first in nodes.values():
        waiting = [first]
        while waiting:
            node = waiting[-1]
            if state.get(node.id) is None:
                state[node.id] = 1
                open_ones = [source for source, _ in node.inputs if state.get(source.id) != 2]
                if any(state.get(source.id) == 1 for source in open_ones):
                    raise node.invalid("the layers form a cycle", rule="cycle")
                waiting += open_ones[::-1]
                continue
            waiting.pop()
            if state[node.id] == 1:
                state[node.id] = 2
                yield node


@dataclass(slots=True)
class Notes:
    """qconvert's notes in a file.

    Attributes:
        quantizations: those that the ranges of FakeQuantize do not determine: name of its result -> its tensor of integers.
        metadata: of the graph.
    """

    quantizations: dict[str, NotedTensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def texts(self) -> dict[str, str]:
        """Return the notes as texts of the file."""
        return {
            "quantizations": json.dumps({name: item.note() for name, item in self.quantizations.items()}),
            "metadata": json.dumps(self.metadata),
        }

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Notes:
        """Read the notes of a file, without malformed ones."""
        found = cls()
        for name, item in _mapping(texts.get("quantizations", "")).items():
            noted = NotedTensor.of(item)
            if noted is not None:
                found.quantizations[name] = noted
        found.metadata = {name: value for name, value in _mapping(texts.get("metadata", "")).items() if isinstance(value, str)}
        return found


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
