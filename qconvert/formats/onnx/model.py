"""An ONNX protobuf: walks over its nodes, and the graph of nodes and values that its reader sees."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from qconvert.formats.onnx.initializers import ELEMENT_TYPES, Files
from qconvert.formats.onnx.proto import AttributeType, NodeProto, TensorProto, ValueInfoProto, defs, make_tensor_type, make_value_info
from qconvert.graph import Op, Tensor

#: What the domain of ONNX's own operators is called.
DEFAULT_DOMAINS = ("", "ai.onnx")


def domain_of(item: Any) -> str:
    """The domain of a node, function or import; "" is ONNX's own."""
    return "" if item.domain in DEFAULT_DOMAINS else str(item.domain)


def since_version(op_type: str, opset: int) -> int:
    """The opset in which the operator got the meaning that it has in `opset`; 0 if ai.onnx does not have it there."""
    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except defs.SchemaError:
        return 0


def node_reads(node: Any) -> list[str]:
    """The values that a NodeProto and the graphs inside it read."""
    return [name for name in (*node.input, *node_captures(node)) if name]


def embed_constants(nodes: Iterable[Any], files: Files) -> None:
    """Puts the bytes of external constants into the attributes of nodes, those in subgraphs included."""
    for node in all_nodes(nodes):
        in_attributes = [item for attribute in node.attribute for item in (*([attribute.t] * attribute.HasField("t")), *attribute.tensors)]
        for tensor in (*in_attributes, *(item for graph in subgraphs(node) for item in graph.initializer)):
            files.embed_data(tensor)


def carried_node(op: Op) -> Any:
    """The NodeProto that an Opaque operator carries, without names; None if its payload is none."""
    from google.protobuf.message import DecodeError

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
    if tensor.dtype not in ELEMENT_TYPES:
        return ValueInfoProto(name=tensor.name)
    return make_value_info(tensor.name, ELEMENT_TYPES[tensor.dtype], tensor.shape)


#: The onnx.TypeProto and the sizes of a value, names and None among these; None for what is not said.
ValueFacts = tuple[Any, tuple[int | str | None, ...] | None]


def _innermost(proto: Any) -> Any:
    """The type of the elements of sequences and optional values, if it is that of a tensor."""
    while (field := proto.WhichOneof("value")) in ("sequence_type", "optional_type"):
        proto = getattr(proto, field).elem_type
    return proto.tensor_type if proto.HasField("tensor_type") else proto.sparse_tensor_type


def _facts_of(proto: Any) -> ValueFacts:
    field, tensor = proto.WhichOneof("value"), _innermost(proto)
    is_stated = field is not None and ("tensor" not in field or tensor.HasField("elem_type"))
    sizes = (d.dim_value if d.HasField("dim_value") else d.dim_param if d.HasField("dim_param") else None for d in tensor.shape.dim)
    return proto if is_stated else None, tuple(sizes) if tensor.HasField("shape") else None


@lru_cache(maxsize=256)  # constants of a model are of few types and shapes
def _facts_of_constant(data_type: int, dims: tuple[int, ...]) -> ValueFacts:
    return _facts_of(make_tensor_type(data_type, dims))


def describe_type(proto: Any) -> str:
    """What an onnx.TypeProto says: the type of a tensor's elements, such as "FLOAT", or "Sequence(Tensor(FLOAT))"."""
    field = proto.WhichOneof("value") or ""
    name = "".join(word.capitalize() for word in field.split("_")[:-1])
    if name in ("Sequence", "Optional"):
        inner = getattr(proto, field).elem_type
        return f"{name}(Tensor({describe_type(inner)}))" if inner.HasField("tensor_type") else f"{name}({describe_type(inner)})"
    element = _innermost(proto).elem_type
    return TensorProto.DataType.Name(element) if element in TensorProto.DataType.values() else name


def attribute_value(proto: Any, files: Files) -> Any:
    """The value of an AttributeProto: a number, text, an array, or a tuple of numbers or texts. Text that is not UTF-8 stays bytes."""
    match proto.type:
        case AttributeType.TENSOR:
            return files.numpy(proto.t)
        case AttributeType.STRING:
            return _text(proto.s)
        case AttributeType.STRINGS:
            return tuple(_text(item) for item in proto.strings)
        case AttributeType.INTS | AttributeType.FLOATS:
            return tuple(getattr(proto, AttributeType(proto.type).field))
        case _:
            return getattr(proto, AttributeType(proto.type).field)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class Graph:
    """A graph of a model, the main one or one inside a node.

    Attributes:
        proto: the onnx.GraphProto.
        opsets: domain -> version; domain "" is ai.onnx.
        files: those that hold constants.
        constants: TensorProtos by name.
        inputs: names, without those of constants, which models before IR version 4 list as inputs too.
        values: type and shape of values by name, as the file or its shape inference says them.
        read: the values that nodes read, those in subgraphs included, or that the graph gives out.
    """

    def __init__(self, proto: Any, opsets: Mapping[str, int], files: Files) -> None:
        self.proto, self.opsets, self.files = proto, opsets, files
        self.constants = {tensor.name: tensor for tensor in proto.initializer}
        self.inputs: list[str] = [item.name for item in proto.input if item.name not in self.constants]
        self.values = {item.name: _facts_of_constant(item.data_type, tuple(item.dims)) for item in proto.initializer}
        self.values |= {item.name: _facts_of(item.type) for item in (*proto.value_info, *proto.input, *proto.output)}
        self.read = {item.name for item in proto.output}.union(*map(node_reads, proto.node))

    def infer(self, proto: Any) -> None:
        """Takes the types and shapes that a GraphProto says, where it says them."""
        for item in (*proto.input, *proto.value_info, *proto.output):
            known, found = self.values.get(item.name, (None, None)), _facts_of(item.type)
            self.values[item.name] = known[0] if found[0] is None else found[0], known[1] if found[1] is None else found[1]


class Model:
    """A verified model, without functions and with its nodes in order.

    Attributes:
        proto: the onnx.ModelProto, without its large constants.
        files: those that hold its constants.
        graph: its main graph.
    """

    def __init__(self, proto: Any, files: Files) -> None:
        self.proto, self.files = proto, files
        self.renew()

    def renew(self) -> None:
        """Makes the graph again, after `proto` was changed."""
        self.graph = Graph(self.proto.graph, {domain_of(item): item.version for item in self.proto.opset_import}, self.files)
