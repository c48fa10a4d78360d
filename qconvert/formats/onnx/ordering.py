"""Puts the nodes of an ONNX protobuf into an order in which they can run: functions inlined, every node after those that it reads."""

from __future__ import annotations

import heapq
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.onnx.calls import DEFAULT_DOMAINS, drop_uncalled
from qconvert.formats.onnx.messages import all_nodes, node_captures, subgraphs

__all__ = ["inline_functions", "sort_nodes"]


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
            if all(_since(node, item.version) == _since(node, wanted) for node in all_nodes(function.node)):
                item.version = wanted
            else:
                same = False
    return same


def _since(node: Any, opset: int) -> int:
    """The opset in which an operator of ai.onnx got the meaning that it has in `opset`; 0 for those of other domains."""
    from onnx import defs

    known = node.domain in DEFAULT_DOMAINS and defs.has(node.op_type, opset, "")
    return int(defs.get_schema(node.op_type, opset, "").since_version) if known else 0


def sort_nodes(nodes: Any) -> None:
    """Sorts the NodeProtos of a graph and of those inside it; an order in which they can run is left as it is.

    The order is the one that is nearest to the file's: from the end, the last node whose readers have all been placed is taken
    (Kahn's algorithm, backwards).
    """
    for node in nodes:
        for graph in subgraphs(node):
            sort_nodes(graph.node)
    writers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    reads = [{writers[name] for name in (*node.input, *node_captures(node)) if name in writers} for node in nodes]
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
    ordered = [nodes[position] for position in reversed(order)]
    copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
    del nodes[:]
    nodes.extend(copies)
