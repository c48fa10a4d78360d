"""The conversion that a result says it comes from, made once more: whatever is altered in the result since then is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from qconvert.checking.altered_operators import find_altered_operators
from qconvert.checking.attributes import has_same_activation
from qconvert.checking.checked_file import Side
from qconvert.conversion import convert, load
from qconvert.conversion.loading import read_literal_graph
from qconvert.errors import QConvertError
from qconvert.files import file_digest
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Graph, Op
from qconvert.graph.metadata import BESIDE, OPTIONS, SOURCE_SHA256, TARGET, TRANSPOSED, VERSION, find_layout_changes, origin
from qconvert.plugins import Format, pass_named
from qconvert.rules.differences import attribute_differences, tensor_differences
from qconvert.version import __version__

__all__ = ["RepeatedConversion", "repeat_conversion"]

#: Passes of targets that do nothing unless an option asks for another model than the exact one.
_ASKED = ("real_recurrence",)


@dataclass(frozen=True, slots=True)
class RepeatedConversion:
    """What a result has that the conversion it says it comes from does not give.

    Attributes:
        altered: in words, by the tensor of the result at which it is.
        rebuilt: whether operators of the conversion are in the result under no name, or others are: it was worked on since.
        same: whether the result is what the conversion gives, to the byte or in all that it computes.
        notes: what the reader should know.
        lossy: the inexact passes that the user named or requested by an option, if the result is what the conversion gives.
    """

    altered: Mapping[str, str] = field(default_factory=dict)
    rebuilt: bool = False
    same: bool = False
    notes: tuple[str, ...] = ()
    lossy: tuple[str, ...] = ()


def repeat_conversion(source: Side, result: Side, encodings: Path | None = None) -> RepeatedConversion:
    """Makes the conversion that a result's metadata name, with their target, passes and options, and compares.

    Args:
        source, result: the files.
        encodings: the scales with which the source is quantized, if it is.

    Nothing is known where the metadata name no such conversion, or one by another version of qconvert. Where they name another source,
    a note says so.
    """
    said = origin(result.graph.metadata)
    if OPTIONS not in said:
        return RepeatedConversion()
    if said.get(VERSION) != __version__:
        return RepeatedConversion(
            notes=(f"{result.path.name} was written by qconvert {said.get(VERSION)}; {__version__} does not repeat its conversion",)
        )
    if said.get(SOURCE_SHA256) != file_digest(source.path):
        return RepeatedConversion(notes=(f"the metadata of {result.path.name} name another source file than {source.path.name}",))
    files = {option.name: source.file.options[option.name] for option in source.format.read_options if option.is_file}
    graph = files.get("graph")
    if said.get(f"{BESIDE}graph_sha256") != (file_digest(Path(graph)) if graph else None):
        return RepeatedConversion(notes=(f"the metadata of {result.path.name} name another graph",))
    if said.get(f"{BESIDE}encodings_sha256") != (file_digest(encodings) if encodings else None):
        return RepeatedConversion(notes=(f"the metadata of {result.path.name} name other encodings",))
    if encodings is not None:
        files["encodings"] = str(encodings)
    try:
        given = json.loads(str(said[OPTIONS]))
        with temporary_folder() as folder:
            suffixes = result.format.suffixes  # which may say the form
            again = Path(folder, result.path.name if result.path.suffix in suffixes else f"again{suffixes[0]}")
            report = convert(
                source.path,
                again,
                source_format=source.format.name,
                target=str(said.get(TARGET, "")),
                passes=given["passes"],
                min_tensor_sqnr=float("-inf"),
                **{**given["options"], **files, **_scales_options(said, result.format, Path(folder))},
            )
            companions = result.format.companions(result.path) if result.format.companions else ()
            lossy = tuple(name for name in given["passes"] if not pass_named(name).exact)
            lossy += tuple(dict.fromkeys(item.by for item in report.changes if item.by in _ASKED and not item.exact))
            if not companions and file_digest(again) == file_digest(result.path):
                return RepeatedConversion(same=True, lossy=lossy)
            altered, rebuilt = _compare_graphs(load(again, result.format.name, **result.file.options), result.graph)
            read = [read_literal_graph(path, result.format, result.file.options) for path in (again, result.path)]
            others = find_altered_operators(*read)
            altered = {**altered, **{name: f"differs from what the conversion makes: {text}" for name, text in (others or {}).items()}}
            return RepeatedConversion(
                altered, rebuilt, not altered and not rebuilt and others == {}, lossy=() if altered or rebuilt else lossy
            )
    except (QConvertError, ValueError, TypeError, KeyError, AttributeError):
        return RepeatedConversion(notes=(f"the conversion that the metadata of {result.path.name} name cannot be repeated",))


def _scales_options(said: Mapping[str, object], format: Format, folder: Path) -> dict[str, str]:
    """The options by which scales go to a file compared with the result, with such a file in a folder, of the name that the metadata
    say."""
    named = {option.name: said.get(f"{BESIDE}{option.name}") for option in format.write_options if option.scales}
    return {option: str(folder / PurePath(str(name)).name) for option, name in named.items() if name}


def _compare_graphs(again: Graph, graph: Graph) -> tuple[dict[str, str], bool]:
    """What is altered in `graph`, and whether its operators are others."""
    found: dict[str, list[str]] = {}
    others = {_op_key(op): op for op in graph.ops}
    gone = False
    for op in again.ops:
        other = others.pop(_op_key(op), None)
        if other is None or other.kind != op.kind:
            gone = True
        else:
            found.setdefault(next(filter(None, (*op.outputs, *op.inputs)), ""), []).extend(_compare_operators(again, op, graph, other))
    for name, tensor in again.tensors.items():
        other_tensor = graph.tensors.get(name)
        if other_tensor is not None and not tensor.is_constant and not other_tensor.is_constant:
            found.setdefault(name, []).extend(tensor_differences(tensor, other_tensor, shapes=False))
    for name, lines in _compare_borders(again, graph):
        found.setdefault(name, []).append(lines)
    altered = {name: f"differs from what the conversion makes: {'; '.join(dict.fromkeys(lines))}" for name, lines in found.items() if lines}
    return altered, gone or bool(others)


def _op_key(op: Op) -> tuple[object, ...]:
    """By what an operator is found again: its results, or of one without any the state that it writes."""
    return op.outputs or (op.kind, *sorted(op.attributes.items()))


def _compare_operators(again: Graph, op: Op, graph: Graph, other: Op) -> Iterator[str]:
    """What two operators of one kind with the same outputs do otherwise."""
    fused = "activation" in op.attributes and bool(op.outputs[0]) and has_same_activation(again, op, graph, other)
    yield from attribute_differences(op, other.with_attributes(activation=op.attributes["activation"]) if fused else other)
    if len(op.inputs) != len(other.inputs):
        yield f"{len(op.inputs)} inputs -> {len(other.inputs)}"
    for name, own in zip(op.inputs, other.inputs, strict=False):
        if bool(name) != bool(own):
            yield f"input {name!r} -> {own!r}"
        elif name and again[name].is_constant and graph[own].is_constant:
            yield from (f"constant {name!r}: {text}" for text in tensor_differences(again[name], graph[own]))
        elif name != own and own in again.tensors:
            yield f"reads {own!r} instead of {name!r}"


def _compare_borders(again: Graph, graph: Graph) -> Iterator[tuple[str, str]]:
    """What is altered in the order of inputs and outputs, in signatures, and in the record of layouts."""
    for what, own, other in (("inputs", again.inputs, graph.inputs), ("outputs", again.outputs, graph.outputs)):
        if own != other and set(own) == set(other):
            yield other[0], f"the {what} are in another order"
    if _signature_keys(again) != _signature_keys(graph):
        yield next(iter(graph.outputs), ""), "the signatures differ"
    for name in sorted(find_layout_changes(again.metadata, graph.metadata)):
        yield name, f"the record of its layout ({TRANSPOSED}) differs"


def _signature_keys(graph: Graph) -> list[Any]:
    return sorted((item.key, item.function, sorted(item.inputs.items()), sorted(item.outputs.items())) for item in graph.signatures)
