"""The nodes of the graphs of an ONNX file that is written: those that operators become, and functions as graphs inside nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.initializers import inline
from qconvert.formats.onnx.model import value_info
from qconvert.formats.onnx.noted_operators import is_decomposed
from qconvert.formats.onnx.proto import GraphProto
from qconvert.formats.onnx.signatures import require_types
from qconvert.graph import Graph, Op, canonical_dtype
from qconvert.operators import kind_of
from qconvert.plugins import operators
from qconvert.rewriting.lowering import Lowered


@dataclass(slots=True)
class Forms:
    """The forms that operators get, in all graphs of a file.

    Attributes:
        form: "qdq", "qoperator" or "qonnx".
        kept: operators that have no QOperator form, by kind and reason.
        decomposed: ids of the operators that became other nodes than their own.
        guards: whether nodes stand in the way of onnxruntime's optimizer where it would change values.
        regions: tensor of the main graph -> the region that computes it; "" or no entry for the rest.
        lowered: what lowering did.
        owners: id of a node of the main graph -> its region.
    """

    form: str
    kept: Counter[tuple[str, str]]
    decomposed: set[int]
    guards: bool
    regions: Mapping[str, str]
    lowered: Lowered
    owners: dict[int, str] = field(default_factory=dict)


def write_ops(b: Builder) -> None:
    """Writes the operators of a builder's graph."""
    writers = operators("onnx", "write")
    for op in b.graph.ops:
        b.source = op.source
        if op.attributes.get("data_format") == "channels_last" and not kind_of(op).layout.sized:
            raise b.unsupported_error(op, "channels_last data (the layout pass has not run)", rule="not-channels-first")
        first = len(b.nodes)
        reason = _write_qoperator(op, b) if b.forms.form == "qoperator" else None
        if reason != "":
            writers[op.kind](op, b)
        whole = b.forms.lowered.whole.get(id(op), op)  # that this one is a part of
        region = b.forms.regions.get(whole.outputs[0], "") if b.forms.regions and whole.outputs else ""
        b.forms.owners.update((id(node), region) for node in b.nodes[first:] if region)
        if reason and op.outputs == whole.outputs:  # one that was lowered counts once, with the reason for that
            b.forms.kept[whole.kind, b.forms.lowered.reasons.get(id(whole)) or reason] += 1
        if reason != "" and is_decomposed(op, [node.op_type for node in b.nodes[first:]]):
            b.note_decomposed(op)


def _write_qoperator(op: Op, b: Builder) -> str | None:
    """Writes `op` in QOperator form: "" if it was written, the reason if it has no such form, None if it needs none.

    Data movement works on stored integers in either form, and what is not quantized stays as it is.
    """
    write = operators("onnx", "write_qoperator").get(op.kind)
    reason = b.kernel_fault(op) or (f"QOperator has no {op.kind}" if write is None else write(op, b))
    is_quantized = any(b.tensor(name).is_quantized for name in op.names if name)
    return reason if not reason or (is_quantized and kind_of(op).rule == "real") else None


def used_nodes(b: Builder, outputs: Sequence[str]) -> tuple[list[Any], set[str]]:
    """The nodes that the outputs depend on, in order, and all names that they read: a move of integers leaves a DequantizeLinear
    that nobody reads."""
    wanted, kept = set(outputs), []
    for position in range(len(b.nodes) - 1, -1, -1):
        node = b.nodes[position]
        if wanted.intersection(node.output):
            wanted.update(node.input, b.hidden_reads.get(position, ()))
            kept.append(node)
    return kept[::-1], wanted


def graph_proto(b: Builder, inputs: Sequence[str], outputs: Sequence[str], nodes: list[Any]) -> Any:
    """The onnx.GraphProto of nodes, whose types are checked, without constants.

    Args:
        b: what wrote them.
        inputs: names of the graph's tensors.
        outputs: likewise, or names of values of theirs.
        nodes: NodeProtos in order.
    """
    types = dict(b.outer_types())
    types |= {tensor.name: tensor.dtype for tensor in b.graph.tensors.values()}
    types |= {name: canonical_dtype(data.dtype) for name, data in b.initializers.items()}
    require_types(nodes, types, b.opset)
    inner = [b.graph[name] for name in dict.fromkeys(name for node in nodes for name in node.output if name in b.graph.tensors)]
    return GraphProto(
        node=nodes,
        name=b.graph.name,
        input=[value_info(b.graph.tensors[name]) for name in inputs],
        output=[value_info(b.output_tensor(name)) for name in outputs],
        value_info=[value_info(tensor) for tensor in inner if tensor.name not in outputs and tensor.dtype != "unknown"],
    )


#: A constant of more bytes stands in the main graph, where it can go to a file compared with the model.
_LARGE = 2**20


def subgraph(op: Op, b: Builder, attribute: str, formal: int, captured: Sequence[str]) -> Any:
    """The onnx.GraphProto of a function that an operator names; the node that gets it has to be added next.

    Args:
        op: the operator.
        b: the graph around.
        attribute: that names the function.
        formal: how many of the function's inputs are inputs of the graph inside the node.
        captured: the outer tensors that are the other inputs.
    """
    function = b.functions[str(op[attribute])]
    for name in captured:
        b.stored_value(name)
    graph = _rename_values(function, formal, captured, b)
    child = b.inner_builder(graph)
    write_ops(child)
    outputs = []
    for name in graph.outputs:
        tensor = graph[name]
        if name in graph.inputs:  # onnxruntime takes no outer value for an output
            name = child.node("Identity", [name], hint=f"{name}/given")[0]
        child.declare_output(child.stored_value(name) if name in graph.tensors else name, tensor)
        outputs.append(name)
    nodes, named = used_nodes(child, outputs)
    inner = {name: data for name, data in child.initializers.items() if name in named}
    for name in [name for name, data in inner.items() if data.nbytes > _LARGE and name not in outputs]:
        b.hoist(name, inner.pop(name))
    written = {name for node in nodes for name in node.output}
    formals = graph.inputs[:formal]
    b.reads_inside(named - written - inner.keys() - {*formals, ""})
    proto = graph_proto(child, formals, outputs, nodes)
    proto.initializer.extend(inline(inner))
    return proto


def _rename_values(function: Graph, formal: int, captured: Sequence[str], b: Builder) -> Graph:
    """The function with the outer names of what it captures, and with names of its own that nothing around it has."""
    names = dict(zip(function.inputs[formal:], captured, strict=True))
    if len(set(captured)) != len(captured):
        raise UnsupportedError(
            "a function that takes the same value twice cannot be written to ONNX",
            where=f"function {function.name!r}",
            rule="duplicate-input",
        )
    names |= b.inner_names(tensor for name, tensor in function.tensors.items() if name not in names)
    return function.with_names(names)
