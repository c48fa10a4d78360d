"""Which functions of an ONNX model call which, and how large the model becomes once each call is replaced by the function's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qconvert.errors import InvalidModelError

__all__ = ["DEFAULT_DOMAINS", "check_expansion", "drop_uncalled", "function_id"]

DEFAULT_DOMAINS = ("", "ai.onnx")
FunctionId = tuple[str, str, str]

#: How many nodes and bytes a model may have once its functions are inlined: so many, and so many for each that the file holds. Exporters
#: that make a function of each layer call it once for each layer, at most some dozen times; functions that double grow without bound.
_NODES, _NODES_EACH = 10_000, 50
_BYTES, _BYTES_EACH = 2**26, 10


def function_id(item: Any) -> FunctionId:
    """What a function is called by, of a FunctionProto or of a NodeProto."""
    domain = "" if item.domain in DEFAULT_DOMAINS else item.domain
    return domain, (item.op_type if hasattr(item, "op_type") else item.name), item.overload


def drop_uncalled(model: Any) -> None:
    """Takes the functions out of a ModelProto that nothing calls: no result depends on them."""
    functions = {function_id(item): item for item in model.functions}
    _, waiting = _calls(model.graph.node, functions)
    called: set[FunctionId] = set()
    while waiting:
        name = waiting.pop()
        if name not in called:
            called.add(name)
            waiting += _calls(functions[name].node, functions)[1]
    for position in reversed(range(len(model.functions))):
        if function_id(model.functions[position]) not in called:
            del model.functions[position]


def check_expansion(graph: Any, functions: Mapping[FunctionId, Any], most: int) -> None:
    """No function calls itself, and inlining those that are called leaves a model in proportion to the file.

    Args:
        graph: the main GraphProto.
        functions: every FunctionProto.
        most: nodes, however large the file is.

    Raises:
        InvalidModelError: otherwise; the error names the function.
    """
    from graphlib import CycleError, TopologicalSorter

    found = {name: _calls(function.node, functions) for name, function in functions.items()}
    try:
        order = list(TopologicalSorter({name: set(called) for name, (_, called) in found.items()}).static_order())
    except CycleError as error:
        raise InvalidModelError(
            "the function calls itself", where=f"function {error.args[1][0][1]!r}", rule="recursive-function"
        ) from error
    own, called = _calls(graph.node, functions)
    total, size = own + sum(count for count, _ in found.values()), graph.ByteSize() + sum(item.ByteSize() for item in functions.values())
    limits = min(most, _NODES + _NODES_EACH * total), _BYTES + _BYTES_EACH * size
    grown: dict[FunctionId, tuple[int, int]] = {}
    for name in order:
        count, inner = found[name]
        grown[name] = _sum((count, functions[name].ByteSize()), (grown[other] for other in inner))
    whole = _sum((own, graph.ByteSize()), (grown[name] for name in called))
    for limit, count, unit in zip(limits, whole, ("nodes", "bytes"), strict=True):
        if count > limit:
            largest = max(called, key=lambda name: grown[name])
            reason = f"the model would have {count:,} {unit} once its functions are inlined, more than {limit:,}"
            raise InvalidModelError(reason, where=f"function {largest[1]!r}", rule="too-many-nodes")


def _sum(own: tuple[int, int], others: Iterable[tuple[int, int]]) -> tuple[int, int]:
    counts, sizes = zip(own, *others, strict=True)
    return sum(counts), sum(sizes)


def _calls(nodes: Any, functions: Mapping[FunctionId, Any]) -> tuple[int, list[FunctionId]]:
    """The number of nodes, those in subgraphs included, and the functions that they call, once for each call."""
    count, called, open_nodes = 0, [], [nodes]
    while open_nodes:
        for node in open_nodes.pop():
            count += 1
            if functions and function_id(node) in functions:
                called.append(function_id(node))
            for attribute in node.attribute:
                open_nodes += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]
    return count, called
