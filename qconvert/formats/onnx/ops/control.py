"""If, Loop and Scan: nodes with graphs inside, which are functions here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.graph_reading import Inner, outer_shape, read_function, unify_quantizations
from qconvert.formats.onnx.graph_writing import subgraph
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.graph import Graph, Names, Op, Shape, Tensor
from qconvert.operators.shapes_and_functions import agreed_shape
from qconvert.operators.sizes import UNKNOWN

#: Loops within loops whose bodies are read again where a size turns out to change; deeper ones have all sizes open at once.
_READ_AGAIN = 2


def read_if(r: Reading) -> None:
    """If; the branch alone that runs, if the condition is known before, as one of sizes is."""
    condition = r.constant(0)
    branches = ("then_branch", "else_branch") if condition is None else ("then_branch" if condition.all() else "else_branch",)
    inners = {name: read_function(r, name, ()) for name in branches}
    if any(len(inner.graph.outputs) != len(r.outputs) for inner in inners.values()):
        raise r.invalid("its branches do not give as many values as it has outputs", rule="counts-differ")
    for index in range(len(r.outputs)):
        dtypes = {inner.graph[inner.graph.outputs[index]].dtype for inner in inners.values()}
        if len(dtypes) > 1:
            raise NotCoveredError(f"branches that give {' and '.join(sorted(dtypes))}")
    names, graphs = unify_quantizations(r, inners, (), {})
    first = next(iter(graphs.values()))
    results = [
        replace(first[name], shape=reduce(agreed_shape, (outer_shape(graph, index) for graph in graphs.values())))
        for index, name in enumerate(first.outputs)
    ]
    functions = _add_functions(r, graphs)
    if condition is None:
        r.emit_control("If", [r.input(0), *names], results, **functions)
    else:
        r.emit_control("Call", names, results, function=functions[branches[0]])


def _add_functions(r: Reading, graphs: dict[str, Graph]) -> dict[str, str]:
    """Files the functions of a node under names of their own: those of their graphs, or made of the node's first output."""
    found = {}
    for attribute, graph in graphs.items():
        name = Names(r.draft.functions).fresh(graph.name or f"{next(filter(None, r.outputs), r.op_type)}/{attribute}")
        r.draft.functions[name] = graph
        found[attribute] = name
    return found


def read_loop(r: Reading) -> None:
    names = r.inputs[2:]
    count = len(names)
    if not all(names):
        raise r.invalid("lacks a value that it carries", rule="input-missing")
    if len(r.outputs) < count:
        raise r.invalid(f"carries {count} values, but has {len(r.outputs)} outputs", rule="counts-differ")
    numbers = [Tensor("", "int64", ()), Tensor("", "bool", ())]
    inner = _read_body(r, numbers, [r.tensor(2 + index) for index in range(count)], [], 1)
    if len(inner.graph.outputs) != 1 + len(r.outputs):
        raise r.invalid(f"its body gives {len(inner.graph.outputs)} values, not the condition and {len(r.outputs)}", rule="counts-differ")
    given, graphs = unify_quantizations(r, {"body": inner}, ("", "", *names), {}, [(1 + index, 2 + index) for index in range(count)])
    body = graphs["body"]
    length = r.constant(0) if r.has(0) else None
    results = [
        _result(body, 1 + index, None if index < count else (0, UNKNOWN if length is None or r.has(1) else int(length.reshape(-1)[0])))
        for index in range(len(r.outputs))
    ]
    leading = [r.inputs[index] if r.has(index) else "" for index in (0, 1)]
    r.emit_control("Loop", [*leading, *given[2:]], results, carried=count, **_add_functions(r, graphs))


def _result(body: Graph, index: int, stacked: tuple[int, int | str] | None = None) -> Tensor:
    """An output of the operator: what its function gives, or a stack of it along (axis, length)."""
    tensor, shape = body[body.outputs[index]], outer_shape(body, index)
    if stacked is None:
        taken = next((name for name in body.inputs if name == tensor.name), None)
        return replace(tensor, shape=shape if taken is None else body[taken].shape)
    if shape is None:
        return replace(tensor, shape=None)
    axis, length = stacked
    place = axis if axis >= 0 else len(shape) + 1 + axis
    return replace(tensor, shape=(*shape[:place], length, *shape[place:]))


def _read_body(r: Reading, numbers: Sequence[Tensor], carried: list[Tensor], following: Sequence[Tensor], first: int) -> Inner:
    """The body of a loop; sizes of carried values that an iteration changes are unknown in it.

    Args:
        r: the node.
        numbers: what stands before the carried values.
        carried: these, as they are at first.
        following: what stands after them.
        first: where the new values of the carried ones stand among what the body gives.
    """
    functions = len(r.draft.functions)
    shapes: list[Shape | None] = [None if r.draft.depth >= _READ_AGAIN else tensor.shape for tensor in carried]
    while True:
        taken = [replace(tensor, data=None, shape=shape) for tensor, shape in zip(carried, shapes, strict=True)]
        inner = read_function(r, "body", [*numbers, *taken, *following])
        given = [inner.graph[name] for name in inner.graph.outputs[first : first + len(taken)]]
        if len(given) < len(taken):
            raise r.invalid(f"its body gives {len(inner.graph.outputs)} values, fewer than it carries", rule="counts-differ")
        for before, after in zip(taken, given, strict=True):
            if before.dtype not in (after.dtype, "unknown"):
                raise r.invalid(f"carries {before.name!r} of {before.dtype}, but its body gives {after.dtype}", rule="carried-mismatch")
        kept = [agreed_shape(shape, after.shape) for shape, after in zip(shapes, given, strict=True)]
        if kept == shapes:
            return inner
        r.draft.withdraw(len(r.draft.ops), functions)
        # Unknown sizes stay unknown: the third reading, at the latest, has unknown ranks.
        shapes = kept if shapes == [tensor.shape for tensor in carried] else [None] * len(shapes)


def read_scan(r: Reading) -> None:
    if r.version < 9:
        raise NotCoveredError("Scan of opset 8, which has a batch")
    scanned = int(r.attribute("num_scan_inputs", 0))
    count = len(r.inputs) - scanned
    if not 0 < scanned <= len(r.inputs) or not all(r.inputs) or len(r.outputs) < count:
        raise r.invalid(f"scans {scanned} of its {len(r.inputs)} inputs and has {len(r.outputs)} outputs", rule="counts-differ")
    given_axes = [r.axis(axis, r.rank(count + index)) for index, axis in enumerate(_read_list(r, "scan_input_axes", scanned))]
    slices = [_slice(r.tensor(count + index), axis) for index, axis in enumerate(given_axes)]
    inner = _read_body(r, (), [r.tensor(index) for index in range(count)], slices, 0)
    if len(inner.graph.outputs) != len(r.outputs):
        raise r.invalid(f"its body gives {len(inner.graph.outputs)} values, not {len(r.outputs)}", rule="counts-differ")
    stacks = dict(enumerate(given_axes, count))
    given, graphs = unify_quantizations(r, {"body": inner}, r.inputs, stacks, [(index, index) for index in range(count)])
    length = (r.tensor(count).shape or (UNKNOWN,))[given_axes[0]]
    axes = _read_list(r, "scan_output_axes", len(r.outputs) - count)
    results = [_result(graphs["body"], index, None if index < count else (axes[index - count], length)) for index in range(len(r.outputs))]
    ways = {name: _read_list(r, name, number) for name, number in
            (("scan_input_directions", scanned), ("scan_output_directions", len(axes)))}  # fmt: skip
    shown = {"scan_input_axes": tuple(given_axes), "scan_output_axes": axes, **ways}
    stated = {name: value for name, value in shown.items() if any(value)}
    r.emit_control("Scan", given, results, carried=count, num_scan_inputs=scanned, **stated, **_add_functions(r, graphs))


def _read_list(r: Reading, name: str, count: int) -> tuple[int, ...]:
    found = tuple(map(int, r.attribute(name) or (0,) * count))
    if len(found) != count:
        raise r.invalid(f"has {len(found)} {name}, not {count}", rule="counts-differ")
    return found


def _slice(tensor: Tensor, axis: int) -> Tensor:
    """One index of a tensor along an axis."""
    shape = None if tensor.shape is None else (*tensor.shape[:axis], *tensor.shape[axis + 1 :])
    quantization = tensor.quantization if tensor.quantization is None or tensor.quantization.axis is None else None
    return replace(tensor, data=None, shape=shape, quantization=quantization)


def write_if(op: Op, b: Builder) -> None:
    branches: dict[str, Any] = {name: subgraph(op, b, name, 0, op.inputs[1:]) for name in ("then_branch", "else_branch")}
    b.node("If", [b.stored_value(op.inputs[0])], op.outputs, **branches)


def write_loop(op: Op, b: Builder) -> None:
    count = 2 + int(op["carried"])
    body = subgraph(op, b, "body", count, op.inputs[count:])
    b.node("Loop", [b.stored_value(name) for name in op.inputs[:count]], op.outputs, body=body)


def write_scan(op: Op, b: Builder) -> None:
    count = int(op["carried"]) + int(op["num_scan_inputs"])
    body = subgraph(op, b, "body", count, op.inputs[count:])
    stated: dict[str, Any] = {name: list(op[name]) for name in _LISTS if op[name]}
    stated["num_scan_inputs"] = int(op["num_scan_inputs"])
    b.node("Scan", [b.stored_value(name) for name in op.inputs[:count]], op.outputs, body=body, **stated)


_LISTS = ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")

WRITERS: Writers = {"If": write_if, "Loop": write_loop, "Scan": write_scan}

READERS: Readers = {"If": read_if, "Loop": read_loop, "Scan": read_scan}
