"""What stands for a side that cannot be compared as it is: the converted source for results whose operators are not read, and the quantized
source for float sources of quantized results.

A graph stands for a result only after its integers and scales are compared with those of the file. A result of a float source is compared
with the float source itself too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checking.file_in_runtime import Side, model_file
from qconvert.checking.findings import OutputComparison
from qconvert.checking.outputs import Border
from qconvert.checking.recurrent import Sequences
from qconvert.checking.same_codes import shift_codes
from qconvert.conversion import convert
from qconvert.conversion.judging import Declared
from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.encodings import Encoding, Encodings
from qconvert.errors import InvalidModelError, format_count, format_verb, quote_some
from qconvert.graph import Array, Arrays, Graph, Op, Tensor
from qconvert.graph.metadata import OPTIONS, PROVENANCE, SIDE_FILE, SOURCE_METADATA, VERSION, origin
from qconvert.operators import kind_of
from qconvert.plugins import LoadedModel, format_named, pass_named, runtime_of

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
    floats = (
        f"{format_count(len(missing), 'layer', 'have')} no scales in the file and {format_verb(len(missing), 'are')} float: "
        + quote_some(missing, _NAMED)
    )
    real = _find_unquantized(graph, encodings)
    unrounded = (
        f"{format_count(len(real), 'result')} of operators {format_verb(len(real), 'have')} no scale in the file, which quantizes them "
        "with own operators or not at all"
    )
    notes = [said, *([floats] if missing else []), *([unrounded + f", such as {real[0]!r}"] if real else [])]
    outputs = _find_unrounded_outputs(graph, real)
    if outputs:
        listed = quote_some(outputs, _NAMED)
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
    writers = graph.producers()
    given = {op.outputs[0] for place in encodings.entries if place.index == 1 and (op := _find_layer(writers, place.name)) is not None}
    return {
        op.outputs[0]: op.outputs[0] in given
        for op in graph.ops
        if kind_of(op).has_weights and graph[op.inputs[1]].is_quantized and graph[op.outputs[0]].is_quantized
    }


def _find_unquantized(graph: Graph, encodings: Encodings) -> list[str]:
    """Results that the graph rounds and the file has no quantization for; what is only moved has the quantization of what it is moved
    from."""
    given = {place.name for place in encodings.entries if place.role == "tensor"}
    found, readers = [], graph.consumers()
    for op in graph.ops:
        rounded = kind_of(op).rule == "real" and not kind_of(op).clips
        rounded |= kind_of(op).quantizes and op.inputs[0] not in graph.inputs and op.inputs[0] not in given
        if rounded and graph[op.outputs[0]].is_quantized:
            activated = (reader.outputs[0] for reader in readers.get(op.outputs[0], ()) if kind_of(reader).clips)  # which is rounded then
            found += [op.outputs[0]] if given.isdisjoint((op.outputs[0], *activated)) else []
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
    return [op.outputs[0] for op in graph.of_kind("Dequantize") if op.inputs[0] in moved and op.outputs[0] in graph.outputs]


def _find_layer(writers: Mapping[str, Op], name: str) -> Op | None:
    """The operator with weights that computes a tensor, perhaps with an activation after it."""
    op = writers.get(name)
    if op is not None and kind_of(op).clips:
        op = writers.get(op.inputs[0])
    return op if op is not None and kind_of(op).has_weights else None


def _compare_encodings(graph: Graph, encodings: Encodings) -> Iterator[tuple[str, str]]:
    """Tensors of which the file has other integers or another quantization than the graph, and what, in words."""
    writers = graph.producers()
    for place, found in encodings.entries.items():
        if place.role == "tensor" and place.name in graph.tensors:
            tensor: Tensor | None = graph[place.name]
        elif (place.role, place.index) == ("input", 1) and (op := _find_layer(writers, place.name)) is not None:
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
    if not _is_same(q.zero_point, shift_codes(quantization.quantization.zero_point, quantization.dtype, tensor.dtype)):
        return f"zero point {quantization.quantization.zero_point.flat[0]} instead of {q.zero_point.flat[0]}"
    if tensor.data is not None and found.integers is not None and not np.array_equal(tensor.data.reshape(-1), found.integers.reshape(-1)):
        differing = int((tensor.data.reshape(-1) != found.integers.reshape(-1)).sum()) if tensor.data.size == found.integers.size else -1
        return f"{differing} integers differ" if differing >= 0 else f"{found.integers.size} integers instead of {tensor.data.size}"
    return ""


def _is_same(a: Array, b: Array) -> bool:
    """Whether two quantizations have the same numbers, one for all channels being the same as one for each."""
    left, right = a.reshape(-1), b.reshape(-1)
    return bool((left == right).all()) if left.size == right.size or 1 in (left.size, right.size) else False


def _format_range(values: Array) -> str:
    return f"{values.flat[0]:.6g}" if values.size == 1 else f"{values.min():.6g} to {values.max():.6g}"


#: Decibels that an output keeps at least where a quantized model is compared with its float source: below, little of it is left.
LEAST_OF_FLOAT = 10.0

#: Options of the pass that applies encodings, which the conversion of the result may have had.
_PASS_OPTIONS = ("fill", "range_dtype")


def quantize_source(source: Side, result: Side, encodings: Path, folder: Path, kernels: str | Sequence[str]) -> Side:
    """The source with encodings, as an ONNX file in a folder, changed no more than that asks for.

    Raises:
        QConvertError: the encodings cannot be read, or do not fit the source.
    """
    written = folder / f"{source.path.stem}.onnx"
    options = {**source.file.options, **_read_pass_options(result)}
    how = {"target": "generic", "encodings": str(encodings), "min_tensor_sqnr": float("-inf"), **options}
    convert(source.path, written, source_format=source.format.name, **how)
    runtime, chosen = runtime_of("onnx", kernels)
    reader = format_named("onnx")
    return Side(model_file(written, reader, chosen), reader, runtime)


def _read_pass_options(result: Side) -> dict[str, Any]:
    """How the encodings were applied, as the result's metadata say."""
    if result.format.read is None:
        return {}
    try:
        given = json.loads(str(origin(result.graph.metadata).get(OPTIONS, "{}")))["options"]
        return {name: given[name] for name in _PASS_OPTIONS if name in given}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def is_quantized_of_float(graph: Graph, other: Graph) -> bool:
    """Whether nothing of a source is quantized, and something of its result is."""
    return not any(t.is_quantized for t in graph.tensors.values()) and any(t.is_quantized for t in other.tensors.values())


def compare_with_float_source(
    source: Side, sides: tuple[Side, Side], model: LoadedModel, feeds: Sequence[Arrays], steps: int
) -> tuple[OutputComparison, ...]:
    """Return how far the outputs of a result are from those of its float source, on the same inputs.

    Args:
        source: the float source's file.
        sides: the source with encodings, whose inputs are given, and the result.
        model: the result, loaded.
        feeds: stored inputs.
        steps: of a sequence; 0 for models without states.
    """
    original = source.open()
    models = [Sequences(item, side.open, steps) for item, side in ((original, source), (model, sides[1]))] if steps else [original, model]
    entering = [Border.of(sides[0].graph, side.graph, layout=side.find_other_layout(sides[0])) for side in (source, sides[1])]
    border = Border.of(source.graph, sides[1].graph, layout=sides[1].find_other_layout(source))

    def run(place: int, feed: Arrays) -> dict[str, Array]:
        return models[place].run(entering[place].convert_inputs(feed, models[place]))

    pairs = border.pair_runs((run(0, feed), run(1, feed)) for feed in feeds)
    return tuple(border.compare_output(name, found) for name, found in pairs.items())


def explain_missing_encodings(source: Side, result: Side) -> str:
    """Why a result cannot be judged without its encodings, in a sentence; "" if it has none, or the source is quantized itself."""
    if result.format.read is None or any(tensor.is_quantized for tensor in source.graph.tensors.values()):
        return ""
    scales = origin(result.graph.metadata).get(f"{SIDE_FILE}encodings")
    if not scales:
        return ""
    return (
        f"{result.path.name} was quantized with the scales of {scales}, {source.path.name} computes in float: "
        "name the scales that both use with `--encodings FILE`; `qconvert calibrate --scales FILE` keeps them"
    )
