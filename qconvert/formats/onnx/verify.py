"""Checks that a parsed ONNX protobuf is sound, before anything else looks at it.

The rules are those of the ONNX specification (docs/IR.md, onnx.proto) as far as reading depends on them: constants hold what
their dims say, external data lie in regular files beside the model, every value is written once and before it can be read,
and functions do not call themselves. Afterwards a walk over the model takes time and memory in proportion to the file.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError

__all__ = ["MAX_NODES", "external_place", "verify"]

#: Nodes of all graphs and functions, and after all function calls are replaced by the functions' nodes.
MAX_NODES = 1_000_000
_MAX_DEPTH = 64
_MAX_ELEMENTS = 2**40
LOWEST_OPSET = 7

#: TensorProto.DataType -> bits of an element in raw_data and external data (onnx.proto; below 8 bits packed without gaps).
BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2, 27: 6, 28: 6,
}  # fmt: skip
STRING = 8
#: TensorProto.DataType -> the field that holds the values if raw_data does not; all others use int32_data (onnx.proto).
_FIELDS = {
    1: "float_data", 14: "float_data", 7: "int64_data", STRING: "string_data", 11: "double_data", 15: "double_data",
    12: "uint64_data", 13: "uint64_data",
}  # fmt: skip
_ALL_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_EXTERNAL = 1
_GRAPH, _GRAPHS, _TENSOR, _TENSORS, _SPARSE, _SPARSES = 5, 10, 4, 9, 11, 12
_DEFAULT_DOMAINS = ("", "ai.onnx")
_FunctionId = tuple[str, str, str]


def verify(model: Any, folder: Path) -> None:
    """Checks a ModelProto.

    Args:
        model: an onnx.ModelProto.
        folder: where external data lie.

    Raises:
        InvalidModelError: the model contradicts the specification; the error names the node or the tensor.
        UnsupportedError: it holds something that the reader does not cover at all (sparse constants).
    """
    if not model.HasField("graph"):
        raise InvalidModelError("the file holds no graph, so it is no ONNX model")
    functions = {_function_id(item): item for item in model.functions}
    if len(functions) != len(model.functions):
        raise InvalidModelError("a function is defined twice")
    checker = _Checker(folder, functions)
    checker.opsets(model.opset_import, "the model", [node.domain for node in model.graph.node])
    checker.graph(model.graph, [], 1)
    for function in functions.values():
        checker.function(function)
    _check_expansion(model.graph, functions)


class _Checker:
    """Walks graphs, nodes and tensors; `nodes` counts what it met."""

    def __init__(self, folder: Path, functions: Mapping[_FunctionId, Any]) -> None:
        self.folder = folder
        self.functions = functions
        self.nodes = 0

    def opsets(self, imports: Iterable[Any], owner: str, domains: Iterable[str]) -> None:
        """Every domain has one version, and the default one a version that is known."""
        from onnx.defs import onnx_opset_version

        versions: dict[str, int] = {}
        for item in imports:
            domain = "" if item.domain in _DEFAULT_DOMAINS else item.domain
            if versions.setdefault(domain, item.version) != item.version:
                raise InvalidModelError(f"{owner} imports two versions of the operator set {domain or 'ai.onnx'!r}")
        if "" not in versions:
            if any(domain in _DEFAULT_DOMAINS for domain in domains):
                raise InvalidModelError(f"{owner} uses operators of ONNX but does not import their operator set")
            return
        newest = onnx_opset_version()
        if not LOWEST_OPSET <= versions[""] <= newest:
            remedy = "Convert it with onnx.version_converter first." if versions[""] < LOWEST_OPSET else "A newer onnx package may know it."
            reason = f"{owner} uses opset {versions['']}; opsets {LOWEST_OPSET} to {newest} are known"
            raise InvalidModelError(reason, remedy=remedy)

    def function(self, function: Any) -> None:
        """A function's own scope: its inputs and its nodes."""
        where = f"function {function.name!r}"
        self.opsets(function.opset_import, where, [node.domain for node in function.node])
        names = _Names(where)
        for name in function.input:
            names.define(name, "an input")
        self._nodes(function.node, names, [], 1, in_function=True)
        for name in function.output:
            if name not in names.defined:
                raise InvalidModelError(f"output {name!r} is written by no node", where=where)

    def graph(self, graph: Any, outer: list[set[str]], depth: int, in_function: bool = False) -> set[str]:
        """Checks a graph and those inside it; returns the outer values that it reads."""
        where = f"graph {graph.name!r}"
        if depth > _MAX_DEPTH:
            raise InvalidModelError(f"graphs are nested more than {_MAX_DEPTH} deep", where=where)
        if graph.sparse_initializer:
            raise UnsupportedError("sparse constants are not covered", where=f"constant {graph.sparse_initializer[0].values.name!r}")
        names = _Names(where)
        for value in graph.input:
            names.define(value.name, "an input")
        listed = set(names.defined)
        for tensor in graph.initializer:
            self.tensor(tensor, f"constant {tensor.name!r}")
            if tensor.name in listed:  # IR version < 4 lists constants as inputs too
                listed.discard(tensor.name)
            else:
                names.define(tensor.name, "a constant")
        for value in (*graph.input, *graph.output, *graph.value_info):
            _check_type(value.type, f"value {value.name!r}")
        free = self._nodes(graph.node, names, outer, depth, in_function)
        for value in graph.output:
            if value.name not in names.defined:
                if not any(value.name in scope for scope in outer):
                    raise InvalidModelError(f"output {value.name!r} is written by no node", where=where)
                free.add(value.name)
        return free

    def _nodes(self, nodes: Any, names: _Names, outer: list[set[str]], depth: int, in_function: bool) -> set[str]:
        """Checks nodes in one scope; returns the outer values that they read."""
        self.nodes += len(nodes)
        if self.nodes > MAX_NODES:
            raise InvalidModelError(f"the model has more than {MAX_NODES:,} nodes")
        for node in nodes:
            for name in node.output:
                if name:
                    names.define(name, node_label(node))
        free: set[str] = set()
        reads: list[set[str]] = []
        for node in nodes:
            found = {name for name in node.input if name}
            for graph in self._attributes(node, in_function):
                found |= self.graph(graph, [*outer, names.defined], depth + 1, in_function)
            unknown = found - names.defined
            for name in unknown:
                if not any(name in scope for scope in outer):
                    raise InvalidModelError(f"reads {name!r}, which nothing writes", where=node_label(node))
            free |= unknown
            reads.append(found - unknown)
        _check_order(nodes, reads)
        return free

    def _attributes(self, node: Any, in_function: bool) -> Iterator[Any]:
        """Checks a node's attributes and gives the graphs among them."""
        seen = set()
        for attribute in node.attribute:
            where = f"{node_label(node)}, attribute {attribute.name!r}"
            if attribute.name in seen:
                raise InvalidModelError("is given twice", where=where)
            seen.add(attribute.name)
            if attribute.ref_attr_name and not in_function:
                raise InvalidModelError("refers to a function's attribute outside of any function", where=where)
            if attribute.type in (_SPARSE, _SPARSES) or attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise UnsupportedError("sparse constants are not covered", where=where)
            if attribute.HasField("t"):
                self.tensor(attribute.t, where)
            elif attribute.type == _TENSOR and not attribute.ref_attr_name:
                raise InvalidModelError("holds no tensor", where=where)
            for tensor in attribute.tensors:
                self.tensor(tensor, where)
            if attribute.HasField("g"):
                yield attribute.g
            elif attribute.type == _GRAPH and not attribute.ref_attr_name:
                raise InvalidModelError("holds no graph", where=where)
            yield from attribute.graphs

    def tensor(self, tensor: Any, where: str) -> None:
        """The data of a constant are as long as its dims and data type say."""
        count = _element_count(tensor, where)
        if tensor.data_location == _EXTERNAL:
            external_place(tensor, self.folder, where)
            return
        filled = [name for name in _ALL_FIELDS if len(getattr(tensor, name))]
        if tensor.HasField("raw_data"):
            if tensor.data_type == STRING:
                raise InvalidModelError("strings cannot be raw data", where=where)
            if filled:
                raise InvalidModelError(f"has both raw_data and {filled[0]}", where=where)
            _require_length("raw_data holds {} bytes", len(tensor.raw_data), _byte_count(tensor.data_type, count), tensor, where)
            return
        field = _FIELDS.get(tensor.data_type, "int32_data")
        for name in filled:
            if name != field:
                raise InvalidModelError(f"data type {tensor.data_type} is given in {name} instead of {field}", where=where)
        expected = count
        if tensor.data_type in (14, 15):  # complex: real and imaginary parts
            expected = 2 * count
        elif BITS.get(tensor.data_type, 8) in (2, 4):  # packed into bytes, one in each int32 (onnx.proto, int32_data)
            expected = _byte_count(tensor.data_type, count)
        _require_length(f"{field} holds {{}} values", len(getattr(tensor, field)), expected, tensor, where)


class _Names:
    """The values that one scope defines; each once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.defined: set[str] = set()

    def define(self, name: str, by: str) -> None:
        if not name:
            raise InvalidModelError(f"{by} has no name", where=self.where)
        if name in self.defined:
            raise InvalidModelError(f"the value {name!r} is defined twice, the second time by {by}", where=self.where)
        self.defined.add(name)


def node_label(node: Any) -> str:
    """How an error calls a node: its type and its name, or else its first output."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{node.op_type} {name!r}" if name else f"a node {node.op_type}"


def _check_type(value: Any, where: str) -> None:
    """Element types exist; a negative size, which some exporters write for an unknown one, becomes unknown."""
    for _ in range(_MAX_DEPTH):
        kind = value.WhichOneof("value")
        if kind in ("sequence_type", "optional_type"):
            value = getattr(value, kind).elem_type
            continue
        if kind in ("tensor_type", "sparse_tensor_type"):
            tensor = getattr(value, kind)
            if tensor.elem_type and tensor.elem_type != STRING and tensor.elem_type not in BITS:
                raise InvalidModelError(f"has the unknown data type {tensor.elem_type}", where=where)
            for dim in tensor.shape.dim:
                if dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.ClearField("dim_value")
        return


def _element_count(tensor: Any, where: str) -> int:
    if tensor.data_type != STRING and tensor.data_type not in BITS:
        raise InvalidModelError(f"has the unknown data type {tensor.data_type}", where=where)
    if any(size < 0 for size in tensor.dims):
        raise InvalidModelError(f"has the negative size {min(tensor.dims)}", where=where)
    if len(tensor.dims) > 64:  # numpy's limit, above that of any operator
        raise InvalidModelError(f"has {len(tensor.dims)} dimensions", where=where)
    if tensor.HasField("segment"):
        raise InvalidModelError("is given in segments, which no runtime reads", where=where)
    count = math.prod(tensor.dims)
    # a size of 0 must not hide others that numpy cannot hold
    if math.prod(size for size in tensor.dims if size) > _MAX_ELEMENTS:
        raise InvalidModelError(f"has dims {list(tensor.dims)}, more than {_MAX_ELEMENTS:,} elements", where=where)
    return count


def _byte_count(data_type: int, count: int) -> int:
    bits: int = BITS[data_type] * count
    return (bits + 7) // 8


def _require_length(text: str, found: int, expected: int, tensor: Any, where: str) -> None:
    if found != expected:
        raise InvalidModelError(f"{text.format(found)}, but dims {list(tensor.dims)} need {expected}", where=where)


def external_place(tensor: Any, folder: Path, where: str) -> tuple[Path, int, int]:
    """Where the data of an external tensor lie: (file, offset, length in bytes), all checked against the file system.

    The location is a path relative to the model's folder and stays inside it (ONNX, docs/ExternalData.md); links are refused
    too, since a model that one was given could point anywhere with them.
    """
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entries.setdefault(entry.key, entry.value) != entry.value:
            raise InvalidModelError(f"says twice what its external data's {entry.key} is", where=where)
    if tensor.data_type == STRING:
        raise InvalidModelError("strings cannot be external data", where=where)
    place = _regular_file(entries.get("location", ""), folder, where)
    offset = _number(entries.get("offset", "0"), "offset", where)
    expected = _byte_count(tensor.data_type, math.prod(tensor.dims))
    length = _number(entries.get("length", str(expected)), "length", where)
    if length != expected:
        raise InvalidModelError(f"has {length} bytes of external data, but dims {list(tensor.dims)} need {expected}", where=where)
    size = place.stat().st_size
    if offset + length > size:
        reason = f"its external data, bytes {offset} to {offset + length}, end behind the {size} bytes of {entries['location']!r}"
        raise InvalidModelError(reason, where=where, remedy="The file may be cut off; fetch it again.")
    return place, offset, length


def _number(text: str, name: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidModelError(f"the {name} of its external data is {text[:40]!r}, no valid number", where=where)
    return int(text)


def _regular_file(location: str, folder: Path, where: str) -> Path:
    parts = location.split("/")
    if not location:
        raise InvalidModelError("its external data have no location", where=where)
    if location.startswith("/") or "\\" in location or "\0" in location or re.match(r"[A-Za-z]:", location):
        raise InvalidModelError(f"its external data's location {location!r} is no relative path with slashes", where=where)
    if ".." in parts:
        raise InvalidModelError(f"its external data's location {location!r} leads out of the model's folder", where=where)
    place = folder
    for part in parts:
        place = place / part
        try:
            mode = os.lstat(place).st_mode
        except (OSError, ValueError) as error:
            reason = f"its external data file {location!r} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise InvalidModelError(reason, where=where, remedy="The file belongs beside the model.") from error
        if stat.S_ISLNK(mode):
            remedy = "Put the file itself beside the model."
            raise InvalidModelError(f"its external data file {location!r} is a symbolic link", where=where, remedy=remedy)
    if not stat.S_ISREG(mode):
        raise InvalidModelError(f"its external data {location!r} is not a regular file", where=where)
    return place


def _check_order(nodes: Any, reads: list[set[str]]) -> None:
    """Some order of the nodes writes every value before it is read (Kahn's algorithm)."""
    writers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    needs = [{writers[name] for name in names if name in writers} for names in reads]
    readers: dict[int, list[int]] = {}
    for position, found in enumerate(needs):
        for writer in found:
            readers.setdefault(writer, []).append(position)
    waiting = [len(found) for found in needs]
    ready = [position for position, count in enumerate(waiting) if not count]
    done = 0
    while ready:
        done += 1
        for reader in readers.get(ready.pop(), ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if done == len(nodes):
        return
    # what still waits leads back to a cycle: following unfinished writers must meet a node again
    position, seen = next(index for index, count in enumerate(waiting) if count), set()
    while position not in seen:
        seen.add(position)
        position = min(writer for writer in needs[position] if waiting[writer])
    raise InvalidModelError("depends on its own output (a cycle)", where=node_label(nodes[position]))


def _function_id(item: Any) -> _FunctionId:
    domain = "" if item.domain in _DEFAULT_DOMAINS else item.domain
    return domain, (item.op_type if hasattr(item, "op_type") else item.name), item.overload


def _calls(nodes: Any, functions: Mapping[_FunctionId, Any]) -> tuple[int, list[_FunctionId]]:
    """The number of nodes, those in subgraphs included, and the functions that they call, once for each call."""
    count, called, open_nodes = 0, [], [nodes]
    while open_nodes:
        for node in open_nodes.pop():
            count += 1
            if functions and _function_id(node) in functions:
                called.append(_function_id(node))
            for attribute in node.attribute:
                open_nodes += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]
    return count, called


def _check_expansion(graph: Any, functions: Mapping[_FunctionId, Any]) -> None:
    """No function calls itself, and replacing all calls by the functions' nodes leaves a model that fits into memory."""
    from graphlib import CycleError, TopologicalSorter

    found = {name: _calls(function.node, functions) for name, function in functions.items()}
    try:
        order = list(TopologicalSorter({name: set(called) for name, (_, called) in found.items()}).static_order())
    except CycleError as error:
        raise InvalidModelError("the function calls itself", where=f"function {error.args[1][0][1]!r}") from error
    sizes: dict[_FunctionId, int] = {}
    for name in order:
        count, called = found[name]
        sizes[name] = count + sum(sizes[other] for other in called)
    count, called = _calls(graph.node, functions)
    if count + sum(sizes[name] for name in called) > MAX_NODES:
        raise InvalidModelError(f"the model has more than {MAX_NODES:,} nodes once its functions are inlined")
