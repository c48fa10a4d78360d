"""Regions of a partitioned network as local functions of an ONNX model, and back: the nodes are those of the whole network, put together.

Constants are inputs of the functions, so that they stay initializers, and each value has the name that it has without. A DequantizeLinear
that several parts read is in each of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from qconvert.formats.onnx.calls import function_id
from qconvert.formats.onnx.messages import all_nodes, node_captures
from qconvert.formats.onnx.ordering import sort_nodes
from qconvert.graph import Names

__all__ = ["REGIONS", "inline_regions", "make_region_functions"]

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
        outside = graph_outputs.union(*(_reads(node) for node, owner in zip(nodes, owned, strict=True) if owner != region))
        call = _function(model, names.fresh(_identifier(region)), own, outside, targets[region])
        call.name = region
        calls.append(call)
    del model.graph.node[:]
    model.graph.node.extend([*kept, *calls])
    sort_nodes(model.graph.node)
    _drop_inner_values(model.graph)
    model.ir_version = max(model.ir_version, _IR_VERSION)
    model.opset_import.add(domain=REGIONS, version=1)
    return True


def inline_regions(model: Any) -> None:
    """Puts the nodes of regions in the place of the nodes that call them, under their names; other functions stay."""
    calls = Counter(map(function_id, all_nodes(chain(model.graph.node, *(item.node for item in model.functions)))))
    functions = {function_id(item): item for item in model.functions if item.domain == REGIONS and calls[function_id(item)] == 1}
    taken = {name for node in model.graph.node for name in (*_reads(node), *node.output)}
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
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    left = [item for item in model.functions if function_id(item) not in done]
    imports = [item for item in model.opset_import if item.domain != REGIONS or any(other.domain == REGIONS for other in left)]
    for field, items in ((model.functions, left), (model.opset_import, imports)):
        found = [type(item).FromString(item.SerializeToString()) for item in items]
        del field[:]
        field.extend(found)


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


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII) or "region"


def _reads(node: Any) -> list[str]:
    return [name for name in (*node.input, *node_captures(node)) if name]


def _with_own_dequantizes(graph: Any, owned: list[str]) -> tuple[list[Any], list[str]]:
    """The nodes and their owners, with a copy of each DequantizeLinear for each further owner that reads it."""
    readers: dict[str, dict[str, None]] = {value.name: {"": None} for value in graph.output}
    inside: set[str] = set()
    for node, owner in zip(graph.node, owned, strict=True):
        for name in _reads(node):
            readers.setdefault(name, {})[owner] = None
        inside.update(node_captures(node))
    names = Names({name for node in graph.node for name in (*_reads(node), *node.output)})
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
        before[part[place]].update(writers[name] for name in _reads(node) if name in writers and writers[name] != part[place])
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return False
    return True


def _function(model: Any, name: str, nodes: Sequence[Any], outside: set[str], target: str) -> Any:
    """Adds a function of nodes to the model, and returns the node that calls it."""
    from onnx import NodeProto

    made = dict.fromkeys(item for node in nodes for item in node.output if item)
    function = model.functions.add(domain=REGIONS, name=name, doc_string=f"a region for {target}")
    function.input.extend(dict.fromkeys(item for node in nodes for item in _reads(node) if item not in made))
    function.output.extend(item for item in made if item in outside)
    function.node.extend(nodes)
    function.opset_import.extend(model.opset_import)
    return NodeProto(op_type=name, domain=REGIONS, input=function.input, output=function.output)


def _drop_inner_values(graph: Any) -> None:
    """Takes the types of values out that are in functions now."""
    written = {name for node in graph.node for name in node.output}
    kept = [item for item in graph.value_info if item.name in written]
    copies = [type(item).FromString(item.SerializeToString()) for item in kept]
    del graph.value_info[:]
    graph.value_info.extend(copies)
