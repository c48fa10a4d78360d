"""Writes the canonical graph as an ONNX model: the container; operators come from ops/ (QDQ) and qoperator/."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qconvert.arithmetic import ADDITIONS
from qconvert.errors import OptionError, UnsupportedError
from qconvert.formats.onnx.builder import Builder, qdq_opset
from qconvert.formats.onnx.graph_writing import Forms, graph_proto, used_nodes, write_ops
from qconvert.formats.onnx.initializers import inline, store, write_model
from qconvert.formats.onnx.local_functions import make_region_functions
from qconvert.formats.onnx.model import all_nodes
from qconvert.formats.onnx.noted_operators import relabelled_notes
from qconvert.formats.onnx.ops import OPSETS
from qconvert.formats.onnx.ops.pool import may_tie
from qconvert.formats.onnx.proto import HIGHEST_OPSET, ModelProto, make_opset, make_properties
from qconvert.formats.onnx.weights_by_cpu import choose_weights
from qconvert.formats.reading.notes import decomposition_notes, dump_notes, noted_signatures
from qconvert.formats.writing import list_kinds
from qconvert.graph import Array, Graph, drop_keys
from qconvert.graph.activations import find_unstated_attributes, narrow_constants
from qconvert.graph.metadata import (
    DECOMPOSED,
    RELABELLED,
    SOURCE_KERNELS,
    STATED_ATTRIBUTES,
    STATED_BIAS_SCALES,
    STATED_LIMITS,
    source_opset,
)
from qconvert.kernels.torch_forms import has_torch_form
from qconvert.operators.formulas import FORMULAS
from qconvert.operators.shapes_and_functions import all_graphs, all_ops
from qconvert.plugins import operators
from qconvert.rewriting.control_flow import require_few_expanded, whiles_to_loops, without_calls, without_regions
from qconvert.rewriting.lowering import legality, lower, require_legal
from qconvert.rewriting.torch_forms import TorchForms

DEFAULT_OPSET = 17
LOWEST_OPSET = 13
#: The newest opset of each IR version (ONNX's docs/Versioning.md).
_IR_VERSIONS = ((14, 7), (18, 8), (20, 9), (22, 10), (23, 11), (24, 12), (26, 13))
#: Counted where regions of a partition become no functions.
_FLAT = ("", "regions")
_NO_CHOICE = ("weights_by_cpu", "")
#: What is said where these are counted.
_REMARKS = {
    _FLAT: "regions are no functions: in ONNX they share nodes, and would wait for each other",
    _NO_CHOICE: "weights_by_cpu leaves nothing to onnxruntime: the model has no weights of uint8 after a DequantizeLinear",
}
#: Values of `arithmetic` that become other nodes than the operator's own.
_DECOMPOSED = (*ADDITIONS, "xnnpack_line", "xnnpack_qs8", "xnnpack_qu8", "tflite", "tflite_hard_swish", "tflite_softmax")


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Write `graph` to `path`; return, in words, what the user should know of the form chosen.

    Args:
        graph: activations and weights in the layout and storage types that the target wants; shapes known.
        path: the file; it is overwritten.
        options: "opset" (int, 0 for the default), "provenance" (str -> str, goes into metadata_props), "external_data" (bool:
            constants go to a file next to `path` even if they are less than 1 GiB), "form" ("qdq", the default, "qoperator", with QDQ
            for operators without such a form, or "qonnx"), "numerics", "guards" and "weights_by_cpu" as in build().

    Raises:
        OptionError: the opset does not exist or is too low for a type in the graph, or there is no such form.
        UnsupportedError: operators that no plugin writes; all are listed.
    """
    deferred: dict[str, Array] = {}
    storage = partial(store, model=path, deferred=deferred, external=bool(options.get("external_data")))
    kept: Counter[tuple[str, str]] = Counter()
    form = str(options.get("form") or "qdq")
    model = build(graph, int(options.get("opset") or 0), dict(options.get("provenance") or {}), storage, form, kept,
                  str(options.get("numerics") or "exact"), bool(options.get("guards", True)),
                  bool(options.get("weights_by_cpu")))  # fmt: skip
    locations = {entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"}
    write_model(model, deferred, path)
    notes = [text for key, text in _REMARKS.items() if kept.pop(key, 0)]
    notes += [f"{count} {kind} {'stays' if count == 1 else 'stay'} in QDQ form: {reason}" for (kind, reason), count in sorted(kept.items())]
    return (*notes, *(f"the constants are in {name}, which belongs to the model" for name in sorted(locations)))


def build(
    graph: Graph,
    opset: int,
    provenance: Mapping[str, str],
    storage: Callable[[Mapping[str, Array]], Iterable[Any]] = inline,
    form: str = "qdq",
    kept: Counter[tuple[str, str]] | None = None,
    numerics: str = "exact",
    guards: bool = True,
    weights_by_cpu: bool = False,
) -> Any:
    """Return the onnx.ModelProto of `graph`; see write().

    `numerics` is "exact" or "fast", as in conversion.convert(). `storage` makes TensorProtos of the constants; `kept` counts the
    operators that have no QOperator form, with the reasons. `guards`: whether nodes stand in the way of onnxruntime's optimizer where it
    would change values. `weights_by_cpu`: whether onnxruntime chooses between unsigned weights and signed ones when it loads a QDQ file.
    """
    if form == "qonnx":
        from qconvert.formats.onnx.qonnx.write import as_qonnx

        graph = as_qonnx(_with_torch_forms(graph))  # Quant takes no arithmetic
    kept = Counter() if kept is None else kept
    targets = {str(op["function"]): str(op["target"]) for op in graph.of_kind("Call")}
    graph, regions = without_regions(graph)
    graph = whiles_to_loops(without_calls(graph))
    require_few_expanded(graph)
    opset = _chosen_opset(graph, opset)
    writers = operators("onnx", "write")
    source = graph
    legal = legality(writers, opset, graph.metadata)
    lowered = lower(_with_torch_forms(graph), legal)
    graph = lowered.graph
    if missing := list_kinds(all_ops(graph), (writers, FORMULAS)):
        raise UnsupportedError(f"operators without an ONNX form: {missing}", rule="operators-not-writable")
    require_legal(graph, legal, "ONNX")
    others = {id(op) for op in source.ops if has_torch_form(op)} | {id(op) for op in lowered.whole.values()}
    forms = Forms(form, kept, others, guards, regions, lowered)
    builder = Builder(graph, opset, forms, numerics)
    write_ops(builder)
    for name in graph.outputs:
        builder.stored_value(name)
    nodes, named = used_nodes(builder, graph.outputs)
    proto = graph_proto(builder, graph.inputs, graph.outputs, nodes)
    domains = {node.domain: builder.domains[node.domain] for node in all_nodes(nodes) if node.domain in builder.domains}
    imports = [make_opset("", opset), *(make_opset(domain, domains[domain]) for domain in sorted(domains))]
    version = next(version for newest, version in _IR_VERSIONS if opset <= newest)
    model = ModelProto(ir_version=version, opset_import=imports, producer_name="qconvert", graph=proto)  # which copies the graph
    model.graph.initializer.extend(storage({name: data for name, data in builder.initializers.items() if name in named}))
    model.metadata_props.extend(make_properties(_properties(source, builder, named, provenance)))
    if weights_by_cpu and (form != "qdq" or regions or not choose_weights(model, builder.initializers)):
        kept[_NO_CHOICE] += 1
    if regions and not make_region_functions(model, [forms.owners.get(id(node), "") for node in nodes], targets):
        kept[_FLAT] += 1
    return model


def _with_torch_forms(graph: Graph) -> Graph:
    """Return the graph with other operators in place of those that round as PyTorch's engines do."""
    if graph.functions:
        graph = replace(graph, functions={name: _with_torch_forms(inner) for name, inner in graph.functions.items()})
    if not any(map(has_torch_form, graph.ops)):
        return graph
    forms = TorchForms(graph, "onnx")
    for op in forms:
        forms.visit(op)
    return forms.finish()


def _properties(graph: Graph, builder: Builder, named: Collection[str], provenance: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of the file: the graph's own, where it came from, and what ONNX cannot state of it."""
    own = drop_keys(graph.metadata, SOURCE_KERNELS)
    notes = {
        STATED_BIAS_SCALES: {name: scales for name, scales in builder.stated_scales.items() if name in named},
        DECOMPOSED: decomposition_notes(
            graph,
            lambda op: (
                id(op) in builder.forms.decomposed or op.attributes.get("arithmetic") in _DECOMPOSED or bool(builder.kernel_fault(op))
            ),
        ),
        RELABELLED: relabelled_notes(builder.graph, *builder.functions.values()),
        STATED_ATTRIBUTES: find_unstated_attributes(graph, lambda op: may_tie(op, builder)),
        STATED_LIMITS: narrow_constants(graph),
    }
    return {**own, **provenance, **noted_signatures(graph), **dump_notes(notes)}


def _chosen_opset(graph: Graph, opset: int) -> int:
    """Return the opset asked for, or the source's, or the default, raised where a type or an operator in the graph needs more."""
    needs = ((OPSETS[op.kind](inner, op), op.kind) for _, inner in all_graphs(graph) for op in inner.of_kind(*OPSETS))
    needed, kind = max(needs, key=lambda need: need[0], default=(0, ""))
    if 0 < opset < needed:
        raise OptionError(f"{kind} needs opset {needed}, not {opset}", remedy=f"Use --opset {needed}.", rule="opset-too-old")
    if not opset:
        source = source_opset(graph.metadata)
        wanted = DEFAULT_OPSET if source is None else min(max(source, LOWEST_OPSET), HIGHEST_OPSET)
        return max(wanted, needed, *(qdq_opset(t) for _, inner in all_graphs(graph) for t in inner.tensors.values()))
    if not LOWEST_OPSET <= opset <= HIGHEST_OPSET:
        raise OptionError(f"opset {opset} is outside {LOWEST_OPSET} to {HIGHEST_OPSET}", rule="opset-out-of-range")
    return opset
