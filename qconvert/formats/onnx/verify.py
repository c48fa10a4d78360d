"""Checks that a parsed ONNX protobuf is sound, before anything else looks at it.

The rules are those of the ONNX specification (docs/IR.md, onnx.proto) as far as reading depends on them: constants hold what
their dims say, external data lie in regular files next to the model, every value is written once and before it can be read,
and functions do not call themselves. Afterwards a walk over the model takes time and memory in proportion to the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.onnx.initializers import BITS, STRING, check_constant
from qconvert.formats.onnx.local_functions import check_expansion, function_id
from qconvert.formats.onnx.model import DEFAULT_DOMAINS, domain_of
from qconvert.formats.onnx.proto import AttributeType, newest_opset

#: Nodes of all graphs and functions, also after all function calls are replaced by the functions' nodes.
MAX_NODES = 1_000_000
_MAX_DEPTH = 64
LOWEST_OPSET = 1
_SPARSE = (AttributeType.SPARSE_TENSOR, AttributeType.SPARSE_TENSORS)


def verify(model: Any, folder: Path, own_size: int) -> None:
    """Checks a ModelProto.

    Args:
        model: an onnx.ModelProto.
        folder: where external data lie.
        own_size: the bytes of the model's own file, in which large constants lie (wire.py).

    Raises:
        InvalidModelError: the model contradicts the specification; the error names the node or the tensor.
        UnsupportedError: it holds something that the reader does not cover at all (sparse constants).
    """
    if not model.HasField("graph"):
        raise InvalidModelError("the file holds no graph, so it is not an ONNX model", rule="graph-missing")
    functions = {function_id(item): item for item in model.functions}
    if len(functions) != len(model.functions):
        raise InvalidModelError("a function is defined twice", rule="duplicate-function")
    checker = _Checker(folder, own_size)
    checker.opsets(model.opset_import, "the model", [node.domain for node in model.graph.node])
    checker.graph(model.graph, [], 1)
    for function in functions.values():
        checker.function(function)
    check_expansion(model.graph, functions, MAX_NODES)


class _Checker:
    """Walks graphs, nodes and tensors; `nodes` counts what it met."""

    def __init__(self, folder: Path, own_size: int) -> None:
        self.folder = folder
        self.own_size = own_size
        self.nodes = 0

    def opsets(self, imports: Iterable[Any], owner: str, domains: Iterable[str]) -> None:
        """Every domain has one version, and the default one a version that is known."""
        versions: dict[str, int] = {}
        for item in imports:
            domain = domain_of(item)
            if versions.setdefault(domain, item.version) != item.version:
                raise InvalidModelError(
                    f"{owner} imports two versions of the operator set {domain or 'ai.onnx'!r}", rule="two-opset-versions"
                )
        if "" not in versions:
            if any(domain in DEFAULT_DOMAINS for domain in domains):
                raise InvalidModelError(f"{owner} uses operators of ONNX but does not import their operator set", rule="no-opset")
            return
        newest = newest_opset()
        if not LOWEST_OPSET <= versions[""] <= newest:
            remedy = "" if versions[""] < LOWEST_OPSET else "A newer onnx package may know it."
            reason = f"{owner} uses opset {versions['']}; opsets {LOWEST_OPSET} to {newest} are known"
            raise InvalidModelError(reason, remedy=remedy, rule="unknown-version")

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
                raise InvalidModelError(f"output {name!r} is written by no node", where=where, rule="not-computed")

    def graph(self, graph: Any, outer: list[set[str]], depth: int, in_function: bool = False) -> set[str]:
        """Checks a graph and those inside it; returns the outer values that it reads."""
        where = f"graph {graph.name!r}"
        if depth > _MAX_DEPTH:
            raise InvalidModelError(f"graphs are nested more than {_MAX_DEPTH} deep", where=where, rule="nested-too-deeply")
        if graph.sparse_initializer:
            raise _sparse_error(f"constant {graph.sparse_initializer[0].values.name!r}")
        names = _Names(where)
        for value in graph.input:
            names.define(value.name, "an input")
        listed = set(names.defined)
        for tensor in graph.initializer:
            self._constant(tensor, f"constant {tensor.name!r}")
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
                    raise InvalidModelError(f"output {value.name!r} is written by no node", where=where, rule="not-computed")
                free.add(value.name)
        return free

    def _nodes(self, nodes: Any, names: _Names, outer: list[set[str]], depth: int, in_function: bool) -> set[str]:
        """Checks nodes in one scope; returns the outer values that they read."""
        self.nodes += len(nodes)
        if self.nodes > MAX_NODES:
            raise InvalidModelError(f"the model has more than {MAX_NODES:,} nodes", rule="too-many-nodes")
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
                    raise InvalidModelError(f"reads {name!r}, which nothing writes", where=node_label(node), rule="unknown-value")
            free |= unknown
            reads.append(found - unknown)
        _check_order(nodes, reads)
        return free

    def _attributes(self, node: Any, in_function: bool) -> Iterator[Any]:
        """Checks a node's attributes and gives the graphs among them."""
        seen, label = set(), node_label(node)
        for attribute in node.attribute:
            where = f"{label}, attribute {attribute.name!r}"
            if attribute.name in seen:
                raise InvalidModelError("is stated twice", where=where, rule="duplicate-attribute")
            seen.add(attribute.name)
            if attribute.ref_attr_name and not in_function:
                raise InvalidModelError("refers to a function's attribute outside of any function", where=where, rule="unbound-attribute")
            if attribute.type in _SPARSE or attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise _sparse_error(where)
            if attribute.HasField("t"):
                self._constant(attribute.t, where)
            elif attribute.type == AttributeType.TENSOR and not attribute.ref_attr_name:
                raise InvalidModelError("holds no tensor", where=where, rule="invalid-attribute")
            for tensor in attribute.tensors:
                self._constant(tensor, where)
            if attribute.HasField("g"):
                yield attribute.g
            elif attribute.type == AttributeType.GRAPH and not attribute.ref_attr_name:
                raise InvalidModelError("holds no graph", where=where, rule="invalid-attribute")
            yield from attribute.graphs

    def _constant(self, tensor: Any, where: str) -> None:
        check_constant(tensor, self.folder, self.own_size, where)


class _Names:
    """The values that one scope defines; each once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.defined: set[str] = set()

    def define(self, name: str, by: str) -> None:
        if not name:
            raise InvalidModelError(f"{by} has no name", where=self.where, rule="no-name")
        if name in self.defined:
            raise InvalidModelError(
                f"the value {name!r} is defined twice, the second time by {by}", where=self.where, rule="duplicate-name"
            )
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
                raise InvalidModelError(f"has the unknown data type {tensor.elem_type}", where=where, rule="unknown-type")
            for dim in tensor.shape.dim:
                if dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.ClearField("dim_value")
        return


def _check_order(nodes: Any, reads: list[set[str]]) -> None:
    """Some order of the nodes writes every value before it is read."""
    writers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    needs = {position: {writers[name] for name in names if name in writers} for position, names in enumerate(reads)}
    if all(writer < position for position, found in needs.items() for writer in found):  # as in nearly all files
        return
    from graphlib import CycleError, TopologicalSorter

    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        where = node_label(nodes[min(error.args[1])])
        raise InvalidModelError("depends on its own output (a cycle)", where=where, rule="cycle") from error


def _sparse_error(where: str) -> UnsupportedError:
    remedy = "Store it as a dense tensor (TensorProto)."
    return UnsupportedError("sparse constants are not covered", where=where, remedy=remedy, rule="sparse-constants")
