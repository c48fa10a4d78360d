"""Writes an .xml file with its .bin: inputs, operators by the functions in ops/, outputs, and notes of quantizations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.plugin import (
    Change,
    Graph,
    NotedTensor,
    QConvertError,
    Target,
    Tensor,
    UnsupportedError,
    format_counts,
    join_errors,
    legality,
    lower,
    require_legal,
)
from qconvert_openvino.elements import TYPES
from qconvert_openvino.ops import WRITERS
from qconvert_openvino.writing import Writing


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    """Write the graph to `path`, and its constants next to it under the same name with .bin.

    Raises:
        UnsupportedError: operators that cannot be written; all are named.
    """
    model, ov = build(graph, options.get("provenance") or {})
    ov.serialize(model, str(path), str(path.with_suffix(".bin")))
    return ()


def build(graph: Graph, provenance: Mapping[str, str]) -> tuple[Any, Any]:
    """Return the openvino.Model of a graph, and the package; operators that OpenVINO lacks are decomposed."""
    legal = legality(WRITERS, layout="channels_first")
    graph = lower(graph, legal).graph
    if unknown := Counter(op.kind for op in graph.ops if op.kind not in WRITERS):
        raise UnsupportedError(
            f"these operators cannot be written to OpenVINO: {format_counts(unknown)}",
            remedy="Cut the model before them.",
            rule="operators-not-writable",
        )
    require_legal(graph, legal, "OpenVINO")
    w = Writing(graph)
    parameters = [_write_parameter(w, graph[name]) for name in graph.inputs]
    _write_ops(w)
    results = [_write_result(w, graph[name]) for name in graph.outputs]
    model = w.ov.Model(results, parameters, graph.name)
    w.notes.metadata = {**graph.metadata, **provenance}
    for key, text in w.notes.texts().items():
        model.set_rt_info(text, ["qconvert", key])
    return model, w.ov


def _write_ops(w: Writing) -> None:
    """Write every operator. Raise one UnsupportedError for all that cannot be written."""
    failed: list[QConvertError] = []
    for op in w.graph.ops:
        missing = [name for name in op.inputs if name and name not in w.values and not w.graph[name].is_constant]
        if missing and failed:
            continue
        try:
            WRITERS[op.kind](op, w)
        except UnsupportedError as error:
            error.where = error.where or f"{op.source} {op.outputs[0]!r}".strip()
            failed.append(error)
        except RuntimeError as error:  # of OpenVINO, for an operator that it refuses
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            failed.append(
                UnsupportedError(
                    f"OpenVINO does not accept the {op.kind}: {lines[-1]}",
                    where=f"{op.source} {op.outputs[0]!r}",
                    rule="runtime-refused-operator",
                )
            )
    if failed:
        raise join_errors(failed, remedy="Cut the model before them.", rule="operators-not-writable")


def _write_parameter(w: Writing, tensor: Tensor) -> Any:
    """Write an input, and its float values if it is quantized.

    int8 with a zero point is followed by a FakeQuantize with its own quantization, which changes no value: OpenVINO converts it to uint8;
    otherwise the first layer would run in float.
    """
    if tensor.dtype not in TYPES:
        raise UnsupportedError(
            f"inputs of {tensor.dtype} cannot be written to OpenVINO", where=repr(tensor.name), rule="dtype-not-writable"
        )
    dynamic = w.ov.PartialShape.dynamic()
    shape = dynamic if tensor.shape is None else w.ov.PartialShape([size if isinstance(size, int) else -1 for size in tensor.shape])
    found = w.op.parameter(shape, getattr(w.ov.Type, TYPES[tensor.dtype]), tensor.name)
    w.set_name(found.output(0), tensor.name)
    w.parameters[tensor.name] = w.values[tensor.name] = found.output(0)
    q = tensor.quantization
    if q is not None:
        if q.block_size:
            raise UnsupportedError(
                "an input has scales in blocks, which cannot be written to OpenVINO", where=repr(tensor.name), rule="blocks-not-writable"
            )
        real = w.dequantize(w.op.convert(found, "f32"), tensor.dtype, q, w.sizes(tensor, q)).output(0)
        shifted = tensor.dtype == "int8" and q.zero_point.any()
        w.values[tensor.name] = w.emit_fake_quantize(real, tensor, f"{tensor.name}/on_quantization") if shifted else real
    return found


def _write_result(w: Writing, tensor: Tensor) -> Any:
    """Write an output: integers if the graph's output is quantized."""
    if tensor.name in w.parameters:
        return w.op.result(w.parameters[tensor.name])
    name, value = tensor.name, w.value(tensor.name)
    if tensor.quantization is not None:
        return w.op.result(_set_output_name(w, w.emit_quantize(w.unrounded.get(name, value), tensor).output(0), name))
    own = value.get_tensor().get_names()
    # A Dequantize is not written: its values are those of a FakeQuantize.
    rounded = next((other for other in own if other in w.graph and w.graph[other].is_quantized), "")
    if rounded and name not in own and rounded not in w.graph.outputs and rounded not in w.graph.inputs:
        return w.op.result(_rename_fake_quantize(w, value, rounded, name))
    if name in own and value.get_node().get_type_name() != "Parameter":
        return w.op.result(value)
    return w.op.result(_set_output_name(w, w.op.convert(value, value.get_element_type().get_type_name()).output(0), name))


def _set_output_name(w: Writing, output: Any, name: str) -> Any:
    """Give an output the name; an inner value with this name gets another one."""
    inner = w.values.get(name)
    if inner is not None and name in inner.get_tensor().get_names() and inner.get_node().get_type_name() != "Parameter":
        inner.get_tensor().set_names({f"{name}/real"})
        inner.get_node().set_friendly_name(f"{name}/real")
        if name in w.notes.quantizations:
            w.notes.quantizations[f"{name}/real"] = w.notes.quantizations[name]
    output.get_tensor().set_names({name})
    output.get_node().set_friendly_name(name)
    return output


def _rename_fake_quantize(w: Writing, output: Any, old: str, new: str) -> Any:
    """Name a FakeQuantize after the output of its float values; a note has the name of the integers."""
    tensor = w.graph[old]
    assert tensor.quantization is not None
    output.get_tensor().set_names({new})
    output.get_node().set_friendly_name(new)
    w.notes.quantizations.pop(old, None)
    w.notes.quantizations[new] = NotedTensor(old, tensor.dtype, tensor.quantization)
    return output


def drop_source_rounding(graph: Graph, target: Target | None) -> tuple[Graph, tuple[Change, ...]]:
    """Remove the attribute `arithmetic` of operators: FakeQuantize rounds the exact value once, ties to even."""
    changed = [op for op in graph.ops if op.attributes.get("arithmetic")]
    if not changed:
        return graph, ()
    ops = tuple(op.with_attributes(arithmetic="") if op.attributes.get("arithmetic") else op for op in graph.ops)
    said = format_counts(Counter(f"{op.kind} ({op['arithmetic']})" for op in changed))
    return graph.evolve(ops=ops), (Change(f"rounded once, not as the source's kernels round: {said}", exact=False),)
