"""An ONNX protobuf: walks over its nodes, and the graph of nodes and values that its reader sees."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from qconvert.formats.onnx.initializers import ELEMENT_TYPES, ConstantData, Files
from qconvert.graph import Op, Tensor

#: What the domain of ONNX's own operators is called.
DEFAULT_DOMAINS = ("", "ai.onnx")


class AttributeType(IntEnum):
    """The type of an attribute (onnx.proto, AttributeProto.AttributeType)."""

    UNDEFINED = 0
    FLOAT = 1
    INT = 2
    STRING = 3
    TENSOR = 4
    GRAPH = 5
    FLOATS = 6
    INTS = 7
    STRINGS = 8
    TENSORS = 9
    GRAPHS = 10
    SPARSE_TENSOR = 11
    SPARSE_TENSORS = 12
    TYPE_PROTO = 13
    TYPE_PROTOS = 14

    @property
    def field(self) -> str:
        """The field of an AttributeProto that holds the value."""
        return {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "TYPE_PROTO": "tp"}.get(self.name, self.name.lower())


def domain_of(item: Any) -> str:
    """The domain of a node, function or import; "" is ONNX's own."""
    return "" if item.domain in DEFAULT_DOMAINS else str(item.domain)


def since_version(op_type: str, opset: int) -> int:
    """The opset in which the operator got the meaning that it has in `opset`; 0 if ai.onnx does not have it there."""
    from onnx import defs

    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except defs.SchemaError:
        return 0


def node_reads(node: Any) -> list[str]:
    """The values that a NodeProto and the graphs inside it read."""
    return [name for name in (*node.input, *node_captures(node)) if name]


def embed_constants(nodes: Iterable[Any], files: Files) -> None:
    """Puts the bytes of external constants into the attributes of nodes, those in subgraphs included."""
    for node in nodes:
        for attribute in node.attribute:
            for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
                files.embed_data(tensor)
        for graph in subgraphs(node):
            for tensor in graph.initializer:
                files.embed_data(tensor)
            embed_constants(graph.node, files)


def clear_default_domains(nodes: Iterable[Any]) -> None:
    """Leaves ai.onnx, the domain by default, out of nodes, those in subgraphs included."""
    for node in nodes:
        if node.domain in DEFAULT_DOMAINS:
            node.ClearField("domain")
        for graph in subgraphs(node):
            clear_default_domains(graph.node)


def carried_node(op: Op) -> Any:
    """The NodeProto that an Opaque operator carries, without names; None if its payload is none."""
    from google.protobuf.message import DecodeError
    from onnx import NodeProto

    try:
        return NodeProto.FromString(base64.b64decode(str(op.attributes.get("payload", "")), validate=True))
    except (ValueError, DecodeError):
        return None


def replace_items(field: Any, items: Iterable[Any]) -> None:
    """Puts messages in the place of those in a repeated field of a protobuf, which may hold them itself."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)


def subgraphs(node: Any) -> list[Any]:
    """The GraphProtos in the attributes of a NodeProto."""
    found: list[Any] = []
    for item in node.attribute:
        if item.type == AttributeType.GRAPH:
            found.append(item.g)
        elif item.type == AttributeType.GRAPHS:
            found += item.graphs
    return found


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """NodeProtos, and those of the graphs inside them."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def node_captures(node: Any) -> Iterator[str]:
    """The names that the subgraphs of a NodeProto take from outside, in order."""
    for graph in subgraphs(node):
        yield from graph_captures(graph)


def defined_names(graph: Any) -> set[str]:
    """The names of the inputs and constants of a GraphProto, and of what its nodes write."""
    return {value.name for value in (*graph.input, *graph.initializer)} | {name for node in graph.node for name in node.output}


def graph_captures(graph: Any) -> Iterator[str]:
    """The names that a GraphProto inside a node takes from outside, in order."""
    defined = defined_names(graph)
    for child in graph.node:
        yield from (name for name in (*child.input, *node_captures(child)) if name and name not in defined)
    yield from (value.name for value in graph.output if value.name not in defined)


def value_info(tensor: Tensor) -> Any:
    """The ValueInfoProto of a tensor: name, type and shape; the name alone after an operator of which nothing is known."""
    from onnx import helper

    if tensor.dtype not in ELEMENT_TYPES:
        return helper.make_empty_tensor_value_info(tensor.name)
    return helper.make_tensor_value_info(tensor.name, ELEMENT_TYPES[tensor.dtype], None if tensor.shape is None else list(tensor.shape))


class ValueType(NamedTuple):
    """The type of a value.

    Attributes:
        name: "Tensor", "Sequence" …
        element: the number of its elements' type; 0 if it is not said.
        proto: the onnx.TypeProto; None for that of a constant.
    """

    name: str
    element: int
    proto: Any = None

    def __str__(self) -> str:
        from onnx import TensorProto

        if self.name in ("Sequence", "Optional"):
            inner = _type_of(getattr(self.proto, f"{self.name.lower()}_type").elem_type)
            return f"{self.name}({inner.name}({inner}))" if inner is not None and inner.name == "Tensor" else f"{self.name}({inner})"
        return TensorProto.DataType.Name(self.element) if self.element in TensorProto.DataType.values() else self.name


class Value:
    """A value of a graph.

    Attributes:
        name: unique in its graph; "" for an output that is left out.
        type: None if neither the file nor its shape inference says it.
        shape: sizes, their names, or None for one that has neither; None if it is not known.
        const_value: of a constant.
        readers: how many nodes read it, those in subgraphs included.
        is_output: whether the graph gives it out.
    """

    __slots__ = ("const_value", "is_output", "name", "readers", "shape", "type")

    def __init__(self, name: str) -> None:
        self.name = name
        self.type: ValueType | None = None
        self.shape: tuple[int | str | None, ...] | None = None
        self.const_value: ConstantData | None = None
        self.readers = 0
        self.is_output = False

    def describe(self, proto: Any) -> None:
        """Takes type and shape from an onnx.TypeProto, also where it says nothing of them."""
        self.type, self.shape = _type_of(proto), _shape_of(proto)


def _innermost(proto: Any) -> Any:
    """The type of the elements of sequences and optional values."""
    while (field := proto.WhichOneof("value")) in ("sequence_type", "optional_type"):
        proto = getattr(proto, field).elem_type
    return proto


def _type_of(proto: Any) -> ValueType | None:
    field = proto.WhichOneof("value")
    inner = _innermost(proto)
    tensor = inner.tensor_type if inner.HasField("tensor_type") else inner.sparse_tensor_type
    if field is None or ("tensor" in field and not tensor.HasField("elem_type")):
        return None
    return ValueType("".join(word.capitalize() for word in field.split("_")[:-1]), tensor.elem_type, proto)


def _shape_of(proto: Any) -> tuple[int | str | None, ...] | None:
    inner = _innermost(proto)
    tensor = inner.tensor_type if inner.HasField("tensor_type") else inner.sparse_tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param if d.HasField("dim_param") else None for d in tensor.shape.dim)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class Node:
    """A node.

    Attributes:
        proto: the onnx.NodeProto.
        name, op_type, domain: domain "" is ai.onnx.
        inputs: None for one that is left out.
        outputs: likewise with the name "".
    """

    __slots__ = ("_files", "attributes", "domain", "inputs", "name", "op_type", "outputs", "proto")

    def __init__(self, proto: Any, inputs: list[Value | None], outputs: list[Value], files: Files) -> None:
        self.proto = proto
        self.name: str = proto.name
        self.op_type: str = proto.op_type
        self.domain = domain_of(proto)
        self.inputs = inputs
        self.outputs = outputs
        self._files = files
        #: AttributeProtos by name.
        self.attributes = {item.name: item for item in proto.attribute}

    def attribute(self, name: str) -> Any:
        """The attribute `name`: a number, text, an array, or a tuple of numbers or texts. Text that is not UTF-8 stays bytes."""
        proto = self.attributes[name]
        match proto.type:
            case AttributeType.TENSOR:
                return ConstantData(proto.t, self._files).numpy()
            case AttributeType.STRING:
                return _text(proto.s)
            case AttributeType.STRINGS:
                return tuple(_text(item) for item in proto.strings)
            case AttributeType.INTS | AttributeType.FLOATS:
                return tuple(getattr(proto, AttributeType(proto.type).field))
            case _:
                return getattr(proto, AttributeType(proto.type).field)

    def graph(self, name: str, opsets: Mapping[str, int]) -> Graph | None:
        """The graph in the attribute `name`; None if there is none."""
        proto = self.attributes.get(name)
        return None if proto is None or proto.type != AttributeType.GRAPH else Graph(proto.g, opsets, self._files)

    def copy_with_constants(self) -> Any:
        """A copy of the NodeProto in which every constant is whole, and ai.onnx is not decomposed."""
        copy = type(self.proto)()
        copy.CopyFrom(self.proto)
        embed_constants([copy], self._files)
        clear_default_domains([copy])
        return copy


class Graph:
    """A graph of a model, the main one or one inside a node; iterating gives its nodes in order.

    Attributes:
        proto: the onnx.GraphProto.
        name: "" if it has none.
        opset_imports: domain -> version; domain "" is ai.onnx.
        inputs: without those that are constants, which models before IR version 4 list as inputs too.
        initializers: the constants by name.
        outputs: in order.
    """

    def __init__(self, proto: Any, opset_imports: Mapping[str, int], files: Files) -> None:
        self.proto = proto
        self.name: str = proto.name
        self.opset_imports = opset_imports
        self._values: dict[str, Value] = {}
        stated = {item.name: item.type for item in proto.value_info}
        for item in proto.input:
            self._value(item.name).describe(item.type)
        self.initializers = {tensor.name: self._constant(tensor, files, stated) for tensor in proto.initializer}
        self.inputs = [self._values[item.name] for item in proto.input if item.name not in self.initializers]
        for name in (name for node in proto.node for name in node.output if name):
            value = self._value(name)
            if name in stated:
                value.describe(stated[name])
        self.nodes = [self._node(node, files) for node in proto.node]
        self.outputs = [self._value(item.name) for item in proto.output]
        for value, item in zip(self.outputs, proto.output, strict=True):
            value.describe(item.type)
            value.is_output = True

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def infer(self, proto: Any) -> None:
        """Takes the types and shapes that a GraphProto says, where it says them."""
        for item in (*proto.input, *proto.value_info, *proto.output):
            value = self._values.get(item.name)
            if value is not None:
                type_, shape = _type_of(item.type), _shape_of(item.type)
                value.type = value.type if type_ is None else type_
                value.shape = value.shape if shape is None else shape

    def _value(self, name: str) -> Value:
        return self._values.setdefault(name, Value(name))

    def _constant(self, tensor: Any, files: Files, stated: Mapping[str, Any]) -> Value:
        value = self._values.get(tensor.name)
        if value is None:
            value = self._value(tensor.name)
            value.type, value.shape = ValueType("Tensor", tensor.data_type), tuple(tensor.dims)
            if tensor.name in stated:
                value.describe(stated[tensor.name])
        value.const_value = ConstantData(tensor, files)
        return value

    def _node(self, node: Any, files: Files) -> Node:
        inputs = [self._value(name) if name else None for name in node.input]
        for value in inputs:
            if value is not None:
                value.readers += 1
        for name in node_captures(node):
            self._value(name).readers += 1
        return Node(node, inputs, [self._values[name] if name else Value("") for name in node.output], files)


class Model:
    """A verified model, without functions and with its nodes in order.

    Attributes:
        proto: the onnx.ModelProto, without its large constants.
        graph: its main graph.
        files: those that hold its constants.
        producer_name, producer_version, metadata_props: as the file says them.
    """

    def __init__(self, proto: Any, files: Files) -> None:
        self.proto = proto
        self.files = files
        self.graph = self._graph()
        self.producer_name: str = proto.producer_name
        self.producer_version: str = proto.producer_version
        self.metadata_props = {entry.key: entry.value for entry in proto.metadata_props}

    def _graph(self) -> Graph:
        return Graph(self.proto.graph, {domain_of(item): item.version for item in self.proto.opset_import}, self.files)

    def renew(self) -> None:
        """Makes the graph again, after `proto` was changed."""
        self.graph = self._graph()
