"""Writes the canonical graph as a torch.export program (.pt2): operators come from writers/, the container from PyTorch itself.

Filling a builder with a graph's inputs, operators and outputs is shared by all forms of PyTorch's files.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qconvert.data.input_limits import number_of, sizes_to_try
from qconvert.errors import QConvertError, UnsupportedError, format_verb
from qconvert.formats.reading.notes import write_note
from qconvert.formats.torch.notes import NOTES, graph_notes
from qconvert.formats.torch.program import Module, Node, torch_package, torch_type
from qconvert.formats.torch.writers.layer_parts import computes_on_quantizations
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.formats.writing import list_kinds
from qconvert.graph import Graph
from qconvert.kernels.torch import computes_in_float32
from qconvert.plugins import operators
from qconvert.rewriting.lowering import Lowered, legality, lower, require_legal

#: How many choices of numbers for dynamic dimensions are tried that operators demand.
_DEMANDED = 3

#: Sizes that stand for those that are known only at run time while PyTorch looks at the program; 0 and 1 would be taken for constants.
_SAMPLE_SIZES = (2, 37, 41, 43, 47, 53, 59, 61, 67, 71)


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes `graph` to `path`; returns, in words, what the user should know of the form chosen.

    Args:
        graph: spatial operators channels first; shapes known but for sizes with names.
        path: the file; it is overwritten.
        options: "provenance" (str -> str, goes into the notes), "numerics" ("exact" or "fast").

    Raises:
        MissingPackageError: PyTorch is not installed.
        UnsupportedError: operators that have no form in PyTorch, or types; kinds are all listed.
    """
    torch = torch_package()
    builder = build(graph, _numerics(graph, str(options.get("numerics") or "exact")))
    made = Module(builder.nodes, builder.outputs)
    program, notes = _export_program(builder, made.module)
    buffer = io.BytesIO()
    extra = {NOTES: json.dumps(_notes(graph, builder, made, program, dict(options.get("provenance") or {})), ensure_ascii=False)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, buffer, extra_files=extra)
    path.write_bytes(buffer.getvalue())
    return notes


def build(graph: Graph, numerics: str = "exact", instead: Mapping[str, WriteFunction] | None = None) -> Builder:
    """The calls and constants of a graph; see write() and live()."""
    writers = {**operators("torch", "write"), **(instead or {})}
    found = lower_graph(graph, writers, is_exact=numerics != "fast")
    builder = Builder(found.graph, numerics, found.whole)
    fill(builder, writers)
    return builder


def _numerics(graph: Graph, wanted: str) -> str:
    """How operators with quantizations are written. What PyTorch exported is exact as it stands."""
    return "fast" if computes_in_float32(graph) else wanted


def live(graph: Graph, numerics: str = "exact", instead: Mapping[str, WriteFunction] | None = None) -> Any:
    """A torch.nn.Module that computes the graph: inputs in order, and a tuple of outputs.

    Args:
        graph, numerics: as in write().
        instead: kind -> what writes its operators in place of the functions that write files.
    """
    builder = build(graph, _numerics(graph, numerics), instead)
    return Module(builder.nodes, builder.outputs).module


@contextmanager
def _quiet() -> Iterator[None]:
    """An export tries which sizes may be open; PyTorch's warnings of this, and the tracebacks of shapes that do not fit, are not shown."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _export_program(builder: Builder, module: Any) -> tuple[Any, tuple[str, ...]]:
    """The torch.export program, without stack traces and paths of the machine that writes it."""
    torch, graph = torch_package(), builder.graph
    sizes = dict.fromkeys(size for name in graph.inputs for size in graph[name].shape or () if isinstance(size, str))
    apart = {size: _SAMPLE_SIZES[index % len(_SAMPLE_SIZES)] for index, size in enumerate(sizes)}
    open_sizes = {size: torch.export.Dim(f"size_{index}") for index, size in enumerate(sizes)}
    found = dict.fromkeys(sizes, torch.export.Dim.AUTO)  # as far as the operators let them be open
    ways = [(apart, open_sizes), (apart, found), (dict.fromkeys(sizes, _SAMPLE_SIZES[1]), found)] if sizes else [(apart, {})]
    if sizes:  # what the operators demand of sizes, which a guess of shapes does not know; fixed where nothing else is possible
        demanded = [{size: number_of(numbers)(size) for size in sizes} for numbers in sizes_to_try(graph)[:_DEMANDED]]
        fixed = dict.fromkeys(sizes, torch.export.Dim.STATIC)
        ways += [(numbers, dims) for dims in (found, fixed) for numbers in demanded]
    reason = ""
    for way, (samples, dims) in enumerate(ways):
        inputs = tuple(_sample(builder, name, samples) for name in graph.inputs)
        shapes = tuple(
            {axis: dims[size] for axis, size in enumerate(graph[name].shape or ()) if isinstance(size, str)} for name in graph.inputs
        )
        try:
            with _quiet():
                program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # PyTorch's errors share no base class but Exception
            reason = str(error).strip().partition("\n")[0]
            continue
        for node in program.graph.nodes:  # stack traces, paths of modules
            node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
        notes = () if way == 0 else ("fewer sizes of the inputs are dynamic than in the source: the operators fix the others",)
        return program, notes
    remedy = f"State the sizes that the network takes with --input-shape: {', '.join(sizes)} {format_verb(len(sizes), 'are')} open."
    refused = f"torch.export does not accept the program: {reason}"
    raise QConvertError(refused, where=graph.name, remedy=remedy if sizes else "", rule="runtime-refused-model")


def _sample(builder: Builder, name: str, samples: Mapping[str, int]) -> Any:
    tensor, torch = builder.tensor(name), torch_package()
    if tensor.shape is None:
        raise UnsupportedError("an input of unknown rank cannot be written for PyTorch", where=f"tensor {name!r}", rule="unknown-rank")
    return torch.zeros([samples.get(size, size) for size in tensor.shape], dtype=torch_type(tensor.dtype))  # type: ignore[arg-type]


def _notes(graph: Graph, builder: Builder, made: Module, program: Any, provenance: Mapping[str, str]) -> dict[str, Any]:
    """What a reader finds again: names of tensors and operators by the program's own, and the graph's metadata."""
    nodes = _match_nodes(made, program)
    buffers = {target: builder.names[node] for node, target in made.buffers.items() if node in builder.names}
    return {
        **graph_notes(graph, provenance, "exact" if builder.is_exact else ""),
        "buffers": {target: name for target, name in buffers.items() if target != name},
        "tensors": {found: builder.names[node] for node, found in nodes.items() if node in builder.names and builder.names[node] != found},
        "operators": {found: builder.sources[node] for node, found in nodes.items() if builder.sources.get(node)},
        "padding": [found for node, found in nodes.items() if node in builder.helpers],
        "sizes": _sizes(graph, program),
        "decomposed": [write_note(graph, op, is_complete=True) for op in builder.decomposed.values()],
    }


def _match_nodes(made: Module, program: Any) -> dict[Node, str]:
    """Map built nodes to the names of the program's nodes with the same operator and operands.

    Calls on sizes are left out: PyTorch asks for each size once, and first.
    """
    signature = program.graph_signature
    places = {target: name for name, target in signature.inputs_to_buffers.items()}
    inputs = iter(signature.user_inputs)
    there: dict[tuple[Any, ...], list[str]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and not _is_of_sizes(node):
            there.setdefault(_call(node, {}), []).append(node.name)
    found: dict[Node, str] = {}
    names: dict[Any, str] = {}  # torch.fx.Node -> name in the program
    for own, node in made.made.items():
        if own.is_input:
            name = str(next(inputs))
        elif own.data is not None:
            name = places.get(node.target, "")
        else:
            same = there.get(_call(node, names), [])
            name = same.pop(0) if same else ""
        names[node] = name
        if name and own.data is None:
            found[own] = name
    return found


def _call(node: Any, names: Mapping[Any, str]) -> tuple[Any, ...]:
    """What tells calls apart: the operator and the tensors that it gets, by their names in the program, and which of several results."""
    place = node.args[1:] if getattr(node.target, "__name__", "") == "getitem" else ()
    return (node.target, *place, *(names.get(item, item.name) for item in node.all_input_nodes if not _is_of_sizes(item)))


def _is_of_sizes(node: Any) -> bool:
    is_function = getattr(node.target, "__module__", "") == "_operator" and node.target.__name__ != "getitem"
    return is_function or str(node.target).startswith("aten.sym_")


def _sizes(graph: Graph, program: Any) -> dict[str, str]:
    """Symbols of the program -> the names that the graph has for these sizes."""
    found: dict[str, str] = {}
    values = [
        node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in program.graph_signature.user_inputs
    ]
    for name, value in zip(graph.inputs, values, strict=True):
        for size, symbol in zip(graph[name].shape or (), value.shape, strict=True):
            if isinstance(size, str) and not isinstance(symbol, int):
                found.setdefault(str(symbol), size)
    return found


_REMEDY = "Write these operators in a plugin (hook qconvert_operators, format torch), or convert to ONNX, which carries custom operators."


def lower_graph(graph: Graph, known: Mapping[str, Callable[..., Any]], *, is_exact: bool) -> Lowered:
    """Return the graph with operators that PyTorch lacks decomposed by formulas.

    Args:
        graph: the graph.
        known: functions for the kinds.
        is_exact: whether float values between integers are float64.
    """
    real = (
        (lambda graph, op: "float64" if computes_on_quantizations(graph, op) else "float32") if is_exact else (lambda graph, op: "float32")
    )
    return lower(graph, legality(known), real=real)


def fill(builder: Builder, known: Mapping[str, Callable[..., Any]]) -> None:
    """Writes a graph's inputs, operators and outputs into its builder, by functions for the kinds.

    Raises:
        UnsupportedError: operators that have no form in PyTorch; kinds are all listed.
    """
    graph = builder.graph
    if missing := list_kinds(graph.ops, (known,)):
        raise UnsupportedError(f"PyTorch has no operators for: {missing}", remedy=_REMEDY, rule="operators-not-writable")
    require_legal(graph, legality(known), "PyTorch")
    for name in graph.inputs:
        builder.take_input(name)
    for op in graph.ops:
        if op.attributes.get("data_format", "channels_first") != "channels_first":
            raise builder.unsupported_error(op, "channels_last data (the layout pass has not run)", rule="channels-last")
        builder.op, builder.wide = op, builder.is_exact and computes_on_quantizations(graph, op)
        known[op.kind](op, builder)
    builder.op, builder.wide = None, False
    builder.finish_program()
