"""Scales next to a model: their files, and graphs with and without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from qconvert.arguments import with_checked_arguments
from qconvert.conversion.in_memory import Model
from qconvert.conversion.loading import load
from qconvert.encodings import Encoding, Encodings, Place, QParams, extract_encodings
from qconvert.errors import InternalError, OptionError, QConvertError, UnsupportedError
from qconvert.files import whole_file
from qconvert.graph import Graph, Op
from qconvert.kernels.products import round_bias
from qconvert.operators import kind_of
from qconvert.plugins import Change, Format, encodings_format_of, format_named, format_of, name_changes, read_encodings
from qconvert.plugins.options import check_options, fill_defaults, pick_declared
from qconvert.rules.validation import validate


@with_checked_arguments
def load_encodings(path: str | Path, format: str = "", **options: Any) -> Encodings:
    """The encodings of a file.

    Args:
        path: the file.
        format: the name of a format of encodings; by default the file's suffix and content decide.
        options: of the format's reader; `qconvert formats` lists them.

    Raises:
        QConvertError: the file cannot be read, is damaged, or is of no such format. The error names it.
    """
    return read_encodings(Path(path), format, options)


@with_checked_arguments
def save_encodings(
    encodings: Encodings,
    path: str | Path,
    format: str = "",
    *,
    graph: Graph | None = None,
    force: bool = False,
    reads: tuple[Path, ...] = (),
    **options: Any,
) -> tuple[Change, ...]:
    """Write encodings; the file appears whole or not at all. Return the notes of its format's writer.

    Args:
        encodings: what to write.
        path: the file.
        format: the name of a format of encodings; by default the first that has the file's suffix.
        graph: without quantization, that they belong to; some formats need it.
        force: whether an existing file may be replaced.
        reads: files that must not be replaced, whatever `force` says.
        options: of the format's writer.

    Raises:
        QConvertError: the format cannot hold them, or the file cannot be written.
    """
    writer = _find_encodings_format(format) if format else encodings_format_of(Path(path), is_read=False)
    path = writer.result_path(path, is_encodings=True)
    if writer.write_encodings is None:
        raise OptionError(
            f"the format is {writer.name}, which cannot be written as encodings", file=str(path), rule="format-without-encodings"
        )
    given = check_options(options, writer.write_options, f"nothing that writes {writer.name}")
    if graph is not None and writer.every_tensor:
        encodings = add_implied_encodings(graph, encodings)
    with whole_file(path, force=force, reads=reads) as temporary:
        notes = writer.write_encodings(encodings, graph, temporary, fill_defaults(given, writer.write_options))
    return name_changes(notes, by=writer.name)


def add_implied_encodings(graph: Graph, encodings: Encodings) -> Encodings:
    """Return the encodings and those that follow from them; no value of the graph changes.

    Data movement has one quantization on both sides. What a Relu or a Clip alone reads, and the ends of its range, have that of its result:
    rounding keeps order, so it gives the same integers before and after. A constant bias has input scale * weight scale, if its integers
    are of 32 bits.

    Args:
        graph: in float.
        encodings: by the names of its tensors; entries of operators' inputs and outputs imply nothing.
    """
    stated = {place.name for place in encodings.entries}
    found = {place.name: entry.qparams for place, entry in encodings.entries.items() if place.role == "tensor" and entry.qparams}
    readers, known = graph.consumers(), len(found)
    while True:
        for op in graph.ops:
            for name, quantization in _implied_by(graph, op, found):
                is_seen_here_alone = name in op.outputs or (name not in graph.public and len(readers[name]) == 1)
                if name not in stated | found.keys() and graph[name].dtype == "float32" and is_seen_here_alone:
                    found[name] = quantization
        if len(found) == known:
            break
        known = len(found)
    return encodings.evolve({**encodings.entries, **{Place(name): Encoding(q) for name, q in found.items() if name not in stated}})


def _implied_by(graph: Graph, op: Op, found: dict[str, QParams]) -> Iterator[tuple[str, QParams]]:
    """Yield tensors of an operator with the quantization that its other tensors imply: one scale, as channels may change place."""
    kind = kind_of(op)
    result = found.get(op.name)
    if result is not None and not result.quantization.is_per_tensor:
        result = None
    if kind.clips and result is not None:
        yield from ((name, result) for name in op.inputs if name)
    if kind.rule == "move":
        data = [found.get(name) for name in kind.data(op)]
        if result is not None and len(op.outputs) == 1:
            yield from ((name, result) for name in kind.data(op) if not graph[name].is_constant)
        fillers = [graph[name].data for name in kind.moved_inputs(op) if name not in kind.data(op)]  # 0 has an integer, others may not
        is_known = all(item == data[0] for item in data) and all(filler is not None and not filler.any() for filler in fillers)
        if data and data[0] is not None and data[0].quantization.is_per_tensor and is_known:
            yield from ((name, data[0]) for name in kind.results_of(op) if name)
    if kind.sums_products and op.has(2):
        first, second = found.get(op.inputs[0]), found.get(op.inputs[1])
        if first is not None and second is not None:
            weights = second.quantization  # whose scales have no axis where a file states none
            weights = replace(weights, axis=0) if weights.axis is None and weights.scale.size > 1 else weights
            bias = round_bias(graph[op.inputs[2]], first.quantization, weights)
            if bias is not None and bias.quantization is not None:
                yield bias.name, QParams("int32", bias.quantization)


def _find_encodings_format(name: str) -> Format:
    found = format_named(name)
    if found.read_encodings is None and found.write_encodings is None:
        raise OptionError(f"the format is {name}, which holds models and not encodings", rule="format-without-encodings")
    return found


@with_checked_arguments
def apply(
    graph: Model,
    encodings: Encodings | str | Path,
    *,
    format: str = "",
    fill: str = "none",
    range_dtype: str = "int8",
    **options: Any,
) -> Graph:
    """Return the quantized form of a float graph: operators whose tensors have encodings become quantized operators.

    Weights are quantized with their scales, or are the integers that the encodings hold; biases have the scale input scale * weight
    scale; tensors without an encoding stay float.

    Args:
        graph: a float graph, or its file, or bytes.
        format: the name of its format, if suffix and content do not determine it.
        encodings: by the names of its tensors and operators, or their file.
        fill: "infer" propagates scales through data movement, pooling and Relu; "none" does not.
        range_dtype: int8, uint8, int16 or uint16: of activations for which the encodings have a range alone.
        options: of the reader of the graph's file.

    Raises:
        QConvertError: a file cannot be read, an encoding is of nothing in the graph, or does not fit its tensor.
    """
    from qconvert.passes.apply_encodings import quantize_by_encodings

    if fill not in ("none", "infer"):
        raise OptionError(f"fill is {fill!r}, which is unknown", remedy="Use none or infer.", rule="unknown-fill")
    network = load(graph, format, **options)
    found = encodings if isinstance(encodings, Encodings) else load_encodings(encodings)
    changed, _ = quantize_by_encodings(network, found, fill=fill, range_dtype=range_dtype)
    validate(changed)
    return changed


@with_checked_arguments
def extract_scales(graph: Model, format: str = "", **options: Any) -> tuple[Graph, Encodings]:
    """Return the float form of a quantized graph, with the same names, and the encodings of its tensors.

    Those of constants hold their integers. apply() of the two gives the integers and scales back. Inputs and outputs are float.

    Args:
        graph: quantized, or its file, or bytes.
        format: the name of its format, if suffix and content do not determine it.
        options: of the reader of the graph's file.

    Raises:
        QConvertError: the file cannot be read, or operators are nothing without quantization.
    """
    real, found = extract_encodings(load(graph, format, **options))
    try:
        validate(real)
    except QConvertError as error:
        raise InternalError(f"without quantization the graph is not valid: {error.reason}", where=error.where, rule=error.rule) from error
    return real, found


def extract_file(
    model: str | Path,
    result: str | Path,
    *,
    real: str | Path = "",
    source_format: str = "",
    result_format: str = "",
    force: bool = False,
    **options: Any,
) -> tuple[Encodings, tuple[Change, ...]]:
    """Writes the encodings of a model file, and the model without them.

    Args:
        model: the file.
        result: of the encodings.
        real: the file for the model in float; "" for none.
        source_format, result_format: names of formats; by default the suffixes decide.
        force: whether existing files may be replaced.
        options: of the model's reader, and of the writer of encodings.

    Returns:
        The encodings, and what was written otherwise than they are.

    Raises:
        QConvertError: see extract_scales() and save_encodings(); neither file is written then.
    """
    from qconvert.conversion.normalizing import chosen_target, normalize
    from qconvert.conversion.saving import write_file

    writer = _find_encodings_format(result_format) if result_format else encodings_format_of(Path(result), is_read=False)
    result, reads = writer.result_path(result, is_encodings=True), (Path(model),)
    written = pick_declared(options, writer.write_options)
    read = {name: value for name, value in options.items() if name not in written}
    network, found = extract_scales(load(model, source_format, **read))
    if not found.entries:
        raise UnsupportedError(
            "no tensor of the model is quantized",
            file=str(model),
            remedy="`qconvert calibrate` chooses scales from data.",
            rule="nothing-quantized",
        )
    if not real:
        return found, save_encodings(found, result, writer.name, graph=network, force=force, reads=reads, **written)
    kind = format_of(Path(real))
    float_file = kind.result_path(real)
    with whole_file(result, force=force, reads=(*reads, float_file)) as temporary:
        notes = list[Change]()

        def write_scales(file: Path, graph: Graph, checked: Any) -> None:
            belongs_to = load(file, kind.name) if writer.every_tensor else network
            notes.extend(save_encodings(found, temporary, writer.name, graph=belongs_to, **written))

        fitted, changes = normalize(network, chosen_target(kind, ""))
        changes += write_file(fitted, float_file, kind, force=force, reads=(*reads, result), judge=write_scales)
    return found, (*notes, *changes)
