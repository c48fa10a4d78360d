"""Graphs of an ONNX model, the main one and those inside nodes: their values, and their nodes read in order.

Graphs inside nodes are read as functions: what they take from outside become inputs of the function and of the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from qconvert.arithmetic.storage import REALS
from qconvert.formats.onnx.initializers import DTYPE_NAMES
from qconvert.formats.onnx.model import Graph as ModelGraph
from qconvert.formats.onnx.model import graph_captures
from qconvert.formats.onnx.opaque import read_opaque
from qconvert.formats.onnx.reading import NotCoveredError, Reading, decode_texts
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.quantizations import label_tensor, requantize_end
from qconvert.graph import Graph, Names, Shape, Tensor, canonical_dtype
from qconvert.graph.metadata import SOURCE_FORMAT
from qconvert.operators.shapes_and_functions import merge_shapes
from qconvert.operators.sizes import UNKNOWN, is_compatible
from qconvert.plugins import operators

Declared = MutableMapping[str, tuple[str, Shape | None]]


def declared_values(graph: ModelGraph) -> Iterator[tuple[str, tuple[str, Shape | None]]]:
    """Name, type and shape of every value that a graph names, as the file or its shape inference says it."""
    inputs = set(graph.inputs)
    for name in (*inputs, *graph.constants, *(name for node in graph.proto.node for name in node.output if name)):
        stated, shape = graph.values.get(name, (None, None))
        is_tensor = stated is None or stated.HasField("tensor_type")
        dtype = DTYPE_NAMES.get(stated.tensor_type.elem_type, "unknown") if stated is not None and is_tensor else "unknown"
        yield name, (dtype, None if shape is None or not is_tensor else _name_sizes(shape, name if name in inputs else ""))


def _name_sizes(shape: Sequence[int | str | None], name: str) -> Shape:
    """The sizes that are stated of an input `name`, or of another value, of which sizes without a name, or numbered by onnx's shape
    inference (unk__0 …), say nothing."""
    sizes = [None if isinstance(size, str) and size.startswith("unk__") and not name else size for size in shape]
    return tuple(size if isinstance(size, int) else size or (f"{name}_{axis}" if name else UNKNOWN) for axis, size in enumerate(sizes))


def add_constants(graph: ModelGraph, draft: Draft) -> None:
    """Declares the constants of a graph."""
    for name, constant in graph.constants.items():
        data = decode_texts(graph.files.numpy(constant))
        draft.add_exactly(name, canonical_dtype(data.dtype), data.shape, data)


def read_nodes(graph: ModelGraph, draft: Draft, declared: Declared) -> None:
    """Reads nodes in order into `draft`; what no read function takes becomes an Opaque operator.

    Args:
        graph: that has the nodes.
        draft: with its inputs and constants.
        declared: see declared_values().
    """
    readers = operators("onnx", "read")
    for node in graph.proto.node:
        reading = Reading(draft, node, graph, declared)
        reading.require_types()
        key = f"{reading.domain}.{node.op_type}" if reading.domain else node.op_type
        count, functions = len(draft.ops), len(draft.functions)
        try:
            if key not in readers:
                raise NotCoveredError(key)
            readers[key](reading)
        except NotCoveredError:
            draft.withdraw(count, functions)
            read_opaque(reading, node, draft)


class Inner(NamedTuple):
    """A graph inside a node.

    Attributes:
        graph: the function; its inputs are the formal ones, then what it captures.
        formal: how many of the inputs are formal ones.
        captures: the names that the captured values have outside.
    """

    graph: Graph
    formal: int
    captures: tuple[str, ...]


def read_function(r: Reading, attribute: str, given: Sequence[Tensor]) -> Inner:
    """The graph in an attribute of a node.

    Args:
        r: the node.
        attribute: that holds the graph.
        given: type, shape and quantization of what the node gives the graph's own inputs.

    Raises:
        NotCoveredError: it takes or gives something of which the type is not known, or which is no tensor.
        InvalidModelError: it contradicts the node.
    """
    graph = r.inner(attribute)
    if graph is None:
        raise r.invalid(f"lacks the attribute {attribute!r}", rule="attribute-missing")
    if len(graph.inputs) != len(given):
        raise r.invalid(f"its {attribute} takes {len(graph.inputs)} values, not {len(given)}", rule="counts-differ")
    captures = [name for name in dict.fromkeys(graph_captures(graph.proto)) if name in r.draft.tensors]
    declared = dict(declared_values(graph))
    draft = Draft({*declared, *captures}, outer=r.draft)
    add_constants(graph, draft)
    for name, tensor in zip(graph.inputs, given, strict=True):
        _add_input(r, draft, name, tensor, *declared[name])
    steps = r.op_type == "Scan"
    outside = [name for name in captures if not _capture(draft, r.draft, name, keeps=steps and _is_of_integers(r.draft, name))]
    read_nodes(graph, draft, declared)
    for value in graph.proto.output:
        if value.name not in draft.tensors:
            raise r.invalid(f"its {attribute} gives {value.name!r}, which nothing computes", rule="not-computed")
        if draft.tensors[value.name].dtype == "unknown":
            raise NotCoveredError(f"{value.name!r} of no type that is known")
    outputs = draft.distinct([value.name for value in graph.proto.output])
    found = draft.finish(graph.proto.name, (*graph.inputs, *outside), outputs, {SOURCE_FORMAT: "onnx"})
    return Inner(found, len(graph.inputs), tuple(outside))


def _add_input(r: Reading, draft: Draft, name: str, given: Tensor, dtype: str, shape: Shape | None) -> None:
    """Declares an input of the graph, with the type and shape stated in the graph if they are compatible with `given`."""
    if "unknown" not in (dtype, given.dtype) and dtype != given.dtype:
        raise r.invalid(f"takes {name!r} of {dtype} in its graph, but gives it {given.dtype}", rule="type-mismatch")
    known = given.dtype if dtype == "unknown" else dtype
    if known == "unknown":
        raise NotCoveredError(f"{name!r} of no type that is known")
    if not given.name and shape is not None:  # a number that the operator counts: of one element, or of a list of one
        given = replace(given, shape=shape if all(size == 1 for size in shape) else ())
    stated = None if shape is None else tuple(UNKNOWN if isinstance(size, str) else size for size in shape)
    fits = stated is not None and given.shape is not None and is_compatible(stated, given.shape)
    draft.add_exactly(name, known, merge_shapes(name, stated if fits else given.shape, given.shape))
    draft.tensors[name] = replace(draft.tensors[name], quantization=given.quantization)


def _is_of_integers(outer: Draft, name: str) -> bool:
    """Whether a value is what integer constants stand for, after a Dequantize or decomposed: as a constant it would lose the integers."""
    integers = name
    while (scaling := outer.producers.find(integers, "Mul", "Sub")) is not None:
        integers = scaling.inputs[0]
    maker = outer.producers.find(integers, "Dequantize", "Cast")
    stored = outer.tensors[maker.inputs[0]] if maker is not None else None
    return stored is not None and stored.is_constant and "int" in stored.dtype and outer.tensors[name].dtype in REALS


def _capture(draft: Draft, outer: Draft, name: str, *, keeps: bool) -> bool:
    """Declares a value from outside; whether it is a constant, which the function has for itself. `keeps`: it stays outside if computed."""
    tensor = outer.tensors[name]
    data = tensor.data if tensor.data is not None or keeps else outer.known.get(name)
    if tensor.dtype == "unknown":
        raise NotCoveredError(f"{name!r} of no type that is known")
    draft.tensors[name] = replace(tensor, data=data, shape=tensor.shape if data is None else data.shape)
    return data is not None


def unify_quantizations(
    r: Reading, inners: Mapping[str, Inner], given: Sequence[str], stacks: Mapping[int, int], carried: Sequence[tuple[int, int]] = ()
) -> tuple[list[str], dict[str, Graph]]:
    """The inputs of an operator that runs functions, captures after the others, and the functions with those inputs, on equal
    quantizations.

    Args:
        r: the node.
        inners: the graphs inside it, by attribute.
        given: tensors that it gives all functions, "" for what it counts itself, in their order.
        stacks: input -> along which axis the tensor is a stack of what the function takes.
        carried: (output, input) of the functions that have one quantization.
    """
    captures = list(dict.fromkeys(name for inner in inners.values() for name in inner.captures))
    graphs = {attribute: _with_captures(inner, captures, r.draft) for attribute, inner in inners.items()}
    names: list[str] = []
    for index, name in enumerate((*given, *captures)):
        wanted = [graph[graph.inputs[index]].quantization for graph in graphs.values()]
        label = next((item for item in wanted if item is not None), None)
        tensor = r.draft.tensors[name] if name else None
        if tensor is None:
            names.append(name)
            continue
        if tensor.quantization is None and label is not None and (label.axis is None or index not in stacks):
            tensor = r.draft.tensors[label_tensor(r.draft, tensor, label, r.source)]
        elif tensor.quantization is not None and tensor.quantization.axis is not None and index in stacks:
            tensor = r.draft.tensors[r.without_label(name)]
        names.append(tensor.name)
        graphs = {attribute: requantize_end(graph, "inputs", index, tensor.quantization) for attribute, graph in graphs.items()}
    for position in range(min(len(graph.outputs) for graph in graphs.values())):
        labels = [graph[graph.outputs[position]].quantization for graph in graphs.values()]
        label = next((item for item in labels if item is not None), None)
        for attribute, graph in graphs.items():
            taken = next((graph[graph.inputs[index]].quantization for output, index in carried if output == position), label)
            graphs[attribute] = requantize_end(graph, "outputs", position, taken)
    return names, graphs


def _with_captures(inner: Inner, captures: Sequence[str], outer: Draft) -> Graph:
    """The function that takes all of some outer values, in their order, whether it needs them or not."""
    graph = inner.graph
    names = Names(graph.tensors)
    own = dict(zip(inner.captures, graph.inputs[inner.formal :], strict=True))
    new: dict[str, Tensor] = {}
    for name in captures:
        if name not in own:
            own[name] = names.fresh(name)
            new[own[name]] = replace(outer.tensors[name], name=own[name])
    inputs = (*graph.inputs[: inner.formal], *(own[name] for name in captures))
    return graph.evolve(tensors=new.values(), inputs=inputs)


def outer_shape(graph: Graph, index: int) -> Shape | None:
    """The shape of an output of a function for its caller: sizes that its inputs do not name are unknown."""
    known = {size for name in graph.inputs for size in graph[name].shape or ()}
    shape = graph[graph.outputs[index]].shape
    return None if shape is None else tuple(size if isinstance(size, int) or size in known else UNKNOWN for size in shape)
