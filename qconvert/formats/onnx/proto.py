"""ONNX's messages and the schemas of its operators: two modules of the package onnx, without the rest of it.

The package's own `__init__` imports its helpers and ml_dtypes, and through them modules for JSON, e-mail and archives, which takes a tenth
of a conversion. The classes are those of `import onnx`, before or after: protobuf keeps one for each message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from numbers import Integral, Real
from typing import Any


def _load_alone(name: str) -> Any:
    """Return a module of the package onnx; the package is not imported."""
    package = find_spec("onnx")
    spec = PathFinder.find_spec(f"onnx.{name}", package.submodule_search_locations if package is not None else None)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named 'onnx.{name}'", name=f"onnx.{name}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_schemas() -> Any:
    """Return onnx's functions on schemas, those that onnx.defs has; a compiled module can be loaded but once in a process."""
    name = "onnx.onnx_cpp2py_export"
    if name not in sys.modules:
        sys.modules[name] = _load_alone("onnx_cpp2py_export")
    return sys.modules[name].defs


_messages: Any = _load_alone("onnx_ml_pb2")
AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto, ValueInfoProto = (
    getattr(_messages, f"{name}Proto") for name in ("Attribute", "Graph", "Model", "Node", "OperatorSetId", "Tensor", "Type", "ValueInfo")
)

#: The functions and classes of onnx.defs.
defs: Any = _load_schemas()

#: The newest opset that is written, and whose operators are known by the names of kinds.
HIGHEST_OPSET = 26


def newest_opset() -> int:
    """Return the newest opset of ONNX's own operators that the package onnx knows."""
    return int(defs.schema_version_map()[""][1])


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


#: Python's type of a value -> the type of an attribute that is one value; that of a list has an "S" after it. The first that fits stands.
_ATTRIBUTES: Mapping[Any, str] = {
    Integral: "INT",
    Real: "FLOAT",
    bytes: "STRING",
    TensorProto: "TENSOR",
    GraphProto: "GRAPH",
    TypeProto: "TYPE_PROTO",
}


def _as_stored(item: Any) -> Any:
    """Return text as bytes, and a truth value, which protobuf takes for no number, as 0 or 1."""
    return item.encode() if isinstance(item, str) else int(item) if isinstance(item, bool) else item


def make_attribute(name: str, value: Any, attribute_type: int = 0) -> Any:
    """Return the AttributeProto of a number, a text, a message, or a list of these.

    Args:
        name: of the attribute.
        value: what it holds.
        attribute_type: its AttributeType; by default the one that the value shows, which an empty list does not.
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    values = [_as_stored(item) for item in (value if is_list else (value,))]
    if not attribute_type:
        found = next(name for wanted, name in _ATTRIBUTES.items() if values and all(isinstance(item, wanted) for item in values))
        attribute_type = AttributeType[f"{found}S" if is_list else found]
    kind = AttributeType(attribute_type)
    return AttributeProto(name=name, type=int(kind), **{kind.field: values if is_list else values[0]})


def make_node(
    op_type: str, inputs: Iterable[str], outputs: Iterable[str], name: str = "", domain: str | None = None, **attributes: Any
) -> Any:
    """Return a NodeProto; attributes that are None are left out, the others stand in the order of their names."""
    stated = [make_attribute(key, value) for key, value in sorted(attributes.items()) if value is not None]
    return NodeProto(op_type=op_type, input=inputs, output=outputs, name=name or None, domain=domain, attribute=stated)


def make_tensor_type(element_type: int, shape: Sequence[int | str | None] | None) -> Any:
    """Return the TypeProto of a tensor; sizes are numbers, names, or None for one that is not said."""
    found = TypeProto(tensor_type={"elem_type": element_type})
    if shape is not None:
        sizes = ({} if size is None else {"dim_param" if isinstance(size, str) else "dim_value": size} for size in shape)
        found.tensor_type.shape.CopyFrom(_messages.TensorShapeProto(dim=list(sizes)))
    return found


def make_value_info(name: str, element_type: int, shape: Sequence[int | str | None] | None) -> Any:
    """Return the ValueInfoProto of a tensor; see make_tensor_type()."""
    return ValueInfoProto(name=name, type=make_tensor_type(element_type, shape))


def make_opset(domain: str, version: int) -> Any:
    """Return an OperatorSetIdProto."""
    return OperatorSetIdProto(domain=domain, version=version)


def make_properties(properties: Mapping[str, str]) -> list[Any]:
    """Return StringStringEntryProtos."""
    return [_messages.StringStringEntryProto(key=key, value=value) for key, value in properties.items()]
