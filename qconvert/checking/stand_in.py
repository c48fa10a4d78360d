"""Results in formats without a reader of operators: the graph that the conversion makes of the source stands for them, after its integers
and scales are compared with those of the file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.checking.checked_file import Side
from qconvert.conversion.declared_changes import Declared
from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.encodings import Encoding, Encodings, QParams
from qconvert.errors import InvalidModelError
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.graph.metadata import OPTIONS, PROVENANCE, SOURCE_METADATA, VERSION
from qconvert.operators import kind_of
from qconvert.plugins import pass_named

__all__ = ["StandIn", "find_stand_in"]

#: Metadata of an earlier conversion that made the source.
_EARLIER = (VERSION, OPTIONS, SOURCE_METADATA + PROVENANCE)
#: Layers that a note names.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class StandIn:
    """What stands for a file whose operators are not read.

    Attributes:
        side: of the file, with that graph.
        altered: what the file has otherwise, in words, by the tensor's name.
        notes: what the reader should know.
    """

    side: Side
    altered: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find_stand_in(source: Side, result: Side) -> StandIn:
    """The graph for a result, and where its file has other integers and scales.

    Args:
        source: that it is compared with; its operators are read.
        result: of a format without a reader of networks.

    Raises:
        QConvertError: the source does not fit the target of the result's format, or the scales of the file cannot be read.
    """
    target = chosen_target(result.format, "")
    declared = Declared(source.graph)
    graph, _ = normalize(source.graph, target, observers=[declared])
    metadata = {key: text for key, text in graph.metadata.items() if key not in _EARLIER}
    graph = replace(graph, metadata={**metadata, **declared.provenance(graph)})
    if target is not None:
        graph, _ = pass_named("float_io").run(graph, target, io="float")
    words = f"the operators of {result.path.name} cannot be read: it is compared by the graph that a conversion makes of the source"
    encodings = _read_encodings(result)
    if encodings is None:
        none = f"{words}; the file has no scales, its layers are float"
        return StandIn(result.use_graph(graph, _follow_movement(graph, _find_unquantized(graph, Encodings({})))), {}, (none,))
    altered, layers = dict(_compare_encodings(graph, encodings)), _find_layers(graph, encodings)
    missing = [name for name, given in layers.items() if not given]
    said = f"{words}; the scales and integers of {len(layers) - len(missing)} layers are read and compared"
    floats = f"{len(missing)} layers have no scales in the file and are float: " + ", ".join(map(repr, missing[:_NAMED]))
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    real = _find_unquantized(graph, encodings)
    unrounded = f"{len(real)} results of operators have no scale in the file, which quantizes them with own operators or not at all"
    notes = [said, *([f"{floats}{more}"] if missing else []), *([unrounded + f", such as {real[0]!r}"] if real else [])]
    outputs = _find_unrounded_outputs(graph, real)
    if outputs:
        listed = ", ".join(map(repr, outputs[:_NAMED])) + (f" and {len(outputs) - _NAMED} more" if len(outputs) > _NAMED else "")
        notes.append(
            f"floats of {listed}, which {result.path.name} does not quantize, are compared after quantization with the source's scale"
        )
    return StandIn(result.use_graph(graph, _follow_movement(graph, real)), altered, tuple(notes))


def _read_encodings(result: Side) -> Encodings | None:
    """What the file says of scales; None if it has none."""
    if result.format.read_encodings is None:
        return None
    try:
        return result.format.read_encodings(result.path, result.file.options)
    except InvalidModelError as error:
        if error.rule == "no-scales":
            return None
        raise


def _find_layers(graph: Graph, encodings: Encodings) -> dict[str, bool]:
    """The results of quantized layers, and whether the file has integers of their weights."""
    given = {op.outputs[0] for place in encodings.entries if place.index == 1 and (op := _find_layer(graph, place.name)) is not None}
    return {
        op.outputs[0]: op.outputs[0] in given
        for op in graph.ops
        if kind_of(op).has_weights and graph[op.inputs[1]].is_quantized and graph[op.outputs[0]].is_quantized
    }


def _find_unquantized(graph: Graph, encodings: Encodings) -> list[str]:
    """Results that the graph rounds and the file has no quantization for; what is only moved has the quantization of what it is moved
    from."""
    given = {place.name for place in encodings.entries if place.role == "tensor"}
    found = []
    for op in graph.ops:
        rounded = kind_of(op).rule == "real" and not kind_of(op).clips
        rounded |= op.kind == "Quantize" and op.inputs[0] not in graph.inputs and op.inputs[0] not in given
        if rounded and graph[op.outputs[0]].is_quantized and given.isdisjoint((op.outputs[0], *_find_activations(graph, op))):
            found.append(op.outputs[0])
    return found


def _follow_movement(graph: Graph, names: Collection[str]) -> set[str]:
    """Return tensors with the results of data movement on them."""
    found = set(names)
    for op in graph.ops:
        if kind_of(op).rule == "move" and (data := kind_of(op).moved_inputs(op)) and found.issuperset(data):
            found.update(op.outputs)
    return found


def _find_unrounded_outputs(graph: Graph, real: Collection[str]) -> list[str]:
    """The real outputs that come of results without a quantization."""
    moved = _follow_movement(graph, real)
    return [op.outputs[0] for op in graph.ops if op.kind == "Dequantize" and op.inputs[0] in moved and op.outputs[0] in graph.outputs]


def _find_activations(graph: Graph, op: Op) -> list[str]:
    """What activations make of a result, which is rounded after them."""
    return [reader.outputs[0] for reader in graph.ops if kind_of(reader).clips and reader.inputs[0] == op.outputs[0]]


def _find_layer(graph: Graph, name: str) -> Op | None:
    """The operator with weights that computes a tensor, perhaps with an activation after it."""
    writers = graph.producers()
    op = writers.get(name)
    if op is not None and kind_of(op).clips:
        op = writers.get(op.inputs[0])
    return op if op is not None and kind_of(op).has_weights else None


def _compare_encodings(graph: Graph, encodings: Encodings) -> Iterator[tuple[str, str]]:
    """Tensors of which the file has other integers or another quantization than the graph, and what, in words."""
    for place, found in encodings.entries.items():
        if place.role == "tensor" and place.name in graph.tensors:
            tensor: Tensor | None = graph[place.name]
        elif (place.role, place.index) == ("input", 1) and (op := _find_layer(graph, place.name)) is not None:
            tensor = graph[op.inputs[1]]
        else:
            continue
        if tensor is not None and tensor.is_quantized and (text := _difference(tensor, found)):
            yield tensor.name, text


def _difference(tensor: Tensor, found: Encoding) -> str:
    q, quantization = tensor.quantization, found.qparams
    if q is None or quantization is None:
        return ""
    if not _is_same(q.scale, quantization.quantization.scale):
        return f"scale {_format_range(quantization.quantization.scale)} instead of {_format_range(q.scale)}"
    if not _is_same(q.zero_point, quantization.quantization.zero_point - _storage_offset(tensor, quantization)):
        return f"zero point {quantization.quantization.zero_point.flat[0]} instead of {q.zero_point.flat[0]}"
    if tensor.data is not None and found.integers is not None and not np.array_equal(tensor.data.reshape(-1), found.integers.reshape(-1)):
        differing = int((tensor.data.reshape(-1) != found.integers.reshape(-1)).sum()) if tensor.data.size == found.integers.size else -1
        return f"{differing} integers differ" if differing >= 0 else f"{found.integers.size} integers instead of {tensor.data.size}"
    return ""


def _storage_offset(tensor: Tensor, quantization: QParams) -> int:
    """By how much the file's integers are above the graph's, where one stores them signed."""
    return (quantization.dtype == "uint8" and tensor.dtype == "int8") * 128 - (
        quantization.dtype == "int8" and tensor.dtype == "uint8"
    ) * 128


def _is_same(a: Array, b: Array) -> bool:
    """Whether two quantizations have the same numbers, one for all channels being the same as one for each."""
    left, right = a.reshape(-1), b.reshape(-1)
    return bool((left == right).all()) if left.size == right.size or 1 in (left.size, right.size) else False


def _format_range(values: Array) -> str:
    return f"{values.flat[0]:.6g}" if values.size == 1 else f"{values.min():.6g} to {values.max():.6g}"
