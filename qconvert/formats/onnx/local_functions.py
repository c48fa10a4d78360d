"""Local functions of an ONNX model: the order of their calls, their nodes in the place of calls and in an order that runs, and regions of a
partitioned network as functions.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.onnx.model import (
    DEFAULT_DOMAINS,
    all_nodes,
    domain_of,
    node_captures,
    node_reads,
    replace_items,
    since_version,
    subgraphs,
)
from qconvert.formats.onnx.proto import NodeProto
from qconvert.graph import Names

FunctionId = tuple[str, str, str]

#: How many nodes and bytes a model may have once its functions are inlined: so many, and so many for each that the file holds. Exporters
#: that make a function of each layer call it once for each layer, at most some dozen times; functions that double grow without bound.
_NODES, _NODES_EACH = 10_000, 50
_BYTES, _BYTES_EACH = 2**26, 10


def function_id(item: Any) -> FunctionId:
    """What a function is called by, of a FunctionProto or of a NodeProto."""
    return domain_of(item), (item.op_type if hasattr(item, "op_type") else item.name), item.overload


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
    if not functions:
        return
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


def inline_functions(model: Any) -> Any:
    """The ModelProto with the nodes of its functions in the place of their calls.

    Raises:
        UnsupportedError: onnx's inliner refuses one, such as a function of another opset.
    """
    from onnx import inliner

    drop_uncalled(model)
    convert = not _share_opset(model)
    for function in model.functions:  # the inliner takes them as they stand
        sort_nodes(function.node)
    try:
        inlined = inliner.inline_local_functions(model, convert)
    except Exception as error:  # the inliner's errors share no class but Exception
        reason = next(iter(str(error).splitlines()), "")[:300] or type(error).__name__
        raise UnsupportedError(f"a function of the model cannot be inlined: {reason}", rule="function-not-inlined") from error
    if inlined.functions:
        raise UnsupportedError(f"the function {inlined.functions[0].name!r} of the model cannot be inlined", rule="function-not-inlined")
    return inlined


def _share_opset(model: Any) -> bool:
    """Gives functions of another opset the model's, if that is one in which all their operators mean the same; False if not in one of them.

    onnx's inliner converts the others with its version converter.
    """
    wanted = next((item.version for item in model.opset_import if item.domain in DEFAULT_DOMAINS), 0)
    same = True
    for function in model.functions:
        for item in function.opset_import:
            if item.domain not in DEFAULT_DOMAINS or item.version == wanted:
                continue
            own = [node.op_type for node in all_nodes(function.node) if node.domain in DEFAULT_DOMAINS]
            if all(since_version(name, item.version) == since_version(name, wanted) for name in own):
                item.version = wanted
            else:
                same = False
    return same


def sort_nodes(nodes: Any) -> None:
    """Sorts the NodeProtos of a graph and of those inside it; an order in which they can run is left as it is.

    The order is the one that is nearest to the file's: from the end, the last node whose readers have all been placed is taken
    (Kahn's algorithm, backwards).
    """
    for node in nodes:
        for graph in subgraphs(node):
            sort_nodes(graph.node)
    writers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    reads = [{writers[name] for name in node_reads(node) if name in writers} for node in nodes]
    if all(writer < position for position, found in enumerate(reads) for writer in found):
        return
    waiting = [0] * len(reads)
    for found in reads:
        for writer in found:
            waiting[writer] += 1
    ready = [-position for position, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        position = -heapq.heappop(ready)
        order.append(position)
        for writer in reads[position]:
            waiting[writer] -= 1
            if not waiting[writer]:
                heapq.heappush(ready, -writer)
    replace_items(nodes, [nodes[position] for position in reversed(order)])


#: The domain of the functions that regions are.
REGIONS = "qconvert.regions"
#: The first IR version that has functions in models.
_IR_VERSION = 8


def make_region_functions(model: Any, owners: Sequence[str], targets: Mapping[str, str]) -> bool:
    """Makes a function of the nodes of each region, and a node that calls it.

    Args:
        model: the ModelProto, without functions.
        owners: for each node of the main graph the region that it belongs to; "" for the rest.
        targets: region -> the name of what runs it.

    Returns:
        Whether that could be done: nodes that operators of several regions share may make these wait for each other. The model is as it was
        then.
    """
    nodes, owned = _with_own_dequantizes(model.graph, list(owners))
    if not _can_run(nodes, owned):
        return False
    names = Names(set())
    graph_outputs = {value.name for value in model.graph.output}
    kept = [node for node, owner in zip(nodes, owned, strict=True) if not owner]
    calls = []
    for region in dict.fromkeys(filter(None, owned)):
        own = [node for node, owner in zip(nodes, owned, strict=True) if owner == region]
        outside = graph_outputs.union(*(node_reads(node) for node, owner in zip(nodes, owned, strict=True) if owner != region))
        call = _function(model, names.fresh(re.sub(r"\W", "_", region, flags=re.ASCII) or "region"), own, outside, targets[region])
        call.name = region
        calls.append(call)
    del model.graph.node[:]
    model.graph.node.extend([*kept, *calls])
    sort_nodes(model.graph.node)
    written = {name for node in model.graph.node for name in node.output}
    replace_items(model.graph.value_info, [item for item in model.graph.value_info if item.name in written])
    model.ir_version = max(model.ir_version, _IR_VERSION)
    model.opset_import.add(domain=REGIONS, version=1)
    return True


def inline_regions(model: Any) -> None:
    """Puts the nodes of regions in the place of the nodes that call them, under their names; other functions stay."""
    calls = Counter(map(function_id, all_nodes(chain(model.graph.node, *(item.node for item in model.functions)))))
    functions = {function_id(item): item for item in model.functions if item.domain == REGIONS and calls[function_id(item)] == 1}
    taken = {name for node in model.graph.node for name in (*node_reads(node), *node.output)}
    versions = {item.domain: item.version for item in model.opset_import}
    nodes, done = [], set()
    for node in model.graph.node:
        function = functions.get(function_id(node))
        if function is None or not _is_spliced(node, function, taken, versions):
            nodes.append(node)
            continue
        done.add(function_id(node))
        sort_nodes(function.node)
        nodes += function.node
        taken.update(name for inner in function.node for name in inner.output)
    if not done:
        return
    replace_items(model.graph.node, nodes)
    left = [item for item in model.functions if function_id(item) not in done]
    imports = [item for item in model.opset_import if item.domain != REGIONS or any(other.domain == REGIONS for other in left)]
    replace_items(model.functions, left)
    replace_items(model.opset_import, imports)


def _is_spliced(node: Any, function: Any, taken: set[str], versions: Mapping[str, int]) -> bool:
    """Whether the nodes of a function mean the same in the place of a node, without any value being called otherwise."""
    inner = {name for item in function.node for name in item.output if name} - {*function.output}
    return (
        list(node.input) == list(function.input)
        and list(node.output) == list(function.output)
        and not node.attribute
        and not function.attribute
        and taken.isdisjoint(inner)
        and all(versions.get(item.domain) == item.version for item in function.opset_import)
        and not any(item.domain == REGIONS or any(attribute.ref_attr_name for attribute in item.attribute) for item in function.node)
    )


def _with_own_dequantizes(graph: Any, owned: list[str]) -> tuple[list[Any], list[str]]:
    """The nodes and their owners, with a copy of each DequantizeLinear for each further owner that reads it."""
    readers: dict[str, dict[str, None]] = {value.name: {"": None} for value in graph.output}
    inside: set[str] = set()
    for node, owner in zip(graph.node, owned, strict=True):
        for name in node_reads(node):
            readers.setdefault(name, {})[owner] = None
        inside.update(node_captures(node))
    names = Names({name for node in graph.node for name in (*node_reads(node), *node.output)})
    renamed: dict[tuple[str, str], str] = {}
    nodes, found = [], []
    for node, owner in zip(graph.node, owned, strict=True):
        reading = [*readers.get(node.output[0], {owner: None})] if node.op_type == "DequantizeLinear" else [owner]
        if len(reading) > 1 and node.output[0] in inside:
            reading = [owner]
        for number, one in enumerate(sorted(reading)):
            copy = type(node).FromString(node.SerializeToString())
            if number:
                copy.output[0] = renamed[node.output[0], one] = names.fresh(f"{node.output[0]}/{one}")
                copy.name = copy.output[0]
            for place, name in enumerate(copy.input):
                copy.input[place] = renamed.get((name, one), name)
            nodes.append(copy)
            found.append(one)
    return nodes, found


def _can_run(nodes: Sequence[Any], owned: Sequence[str]) -> bool:
    """Whether parts, each region as one, do not wait for each other."""
    from graphlib import CycleError, TopologicalSorter

    part = [owner or f"/{place}" for place, owner in enumerate(owned)]
    writers = {name: part[place] for place, node in enumerate(nodes) for name in node.output if name}
    before: dict[str, set[str]] = {name: set() for name in part}
    for place, node in enumerate(nodes):
        before[part[place]].update(writers[name] for name in node_reads(node) if name in writers and writers[name] != part[place])
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return False
    return True


def _function(model: Any, name: str, nodes: Sequence[Any], outside: set[str], target: str) -> Any:
    """Adds a function of nodes to the model, and returns the node that calls it."""
    made = dict.fromkeys(item for node in nodes for item in node.output if item)
    function = model.functions.add(domain=REGIONS, name=name, doc_string=f"a region for {target}")
    function.input.extend(dict.fromkeys(item for node in nodes for item in node_reads(node) if item not in made))
    function.output.extend(item for item in made if item in outside)
    function.node.extend(nodes)
    function.opset_import.extend(model.opset_import)
    return NodeProto(op_type=name, domain=REGIONS, input=function.input, output=function.output)
