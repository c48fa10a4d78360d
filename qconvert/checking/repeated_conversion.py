"""The conversion that a result says it comes from, made once more: whatever is altered in the result since then is named, and whether
altered operators compute other values.

Operators are compared as both graphs were read, before any normal form. What is not the same in both stands between tensors that both have,
and is evaluated there with values over the whole range of each: an optimizer that folds constants or leaves out an Identity changes none of
them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from qconvert.checking.attributes import has_same_activation
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.file_values import complete_values
from qconvert.checking.outputs import absolute_difference, largest_magnitude
from qconvert.checking.value_limits import limits_of
from qconvert.conversion import convert, load
from qconvert.conversion.loading import read_literal_graph
from qconvert.data import extreme_inputs, random_inputs
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.files import file_digest
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Arrays, Graph, Op, Tensor, equal_data
from qconvert.graph.metadata import OPTIONS, SIDE_FILE, SOURCE_SHA256, TARGET, TRANSPOSED, VERSION, find_layout_changes, origin
from qconvert.operators import kind_of
from qconvert.plugins import Format, pass_named
from qconvert.rewriting.parts import Cut, computable_ops, cut
from qconvert.rules.differences import operator_differences, tensor_differences
from qconvert.version import __version__

#: By what share of the largest value floats may differ that are summed in another order.
_ROUNDED = 1e-6
#: Numbers for sizes that are known only when the model runs; see data/input_limits.py.
_SIZE = 7


def find_altered_operators(again: Graph, graph: Graph) -> dict[str, str] | None:
    """What the operators of a graph that are not those of the conversion compute otherwise, in words, by the tensor; None where that cannot
    be evaluated.

    Args:
        again: what the conversion gives, as it is read.
        graph: the file's, likewise.
    """
    others, own = ({_op_key(op): op for op in side.ops} for side in (again, graph))
    gone = [op for key, op in others.items() if key not in own or not _is_same_op(again, op, graph, own[key])]
    new = [op for key, op in own.items() if key not in others or not _is_same_op(again, others[key], graph, op)]
    if not gone and not new:
        return {}
    shared = {name for name, tensor in again.tensors.items() if name in graph.tensors and _has_same_type(tensor, graph[name])}
    shared = {name for name in shared if not again[name].is_constant and not graph[name].is_constant}
    read = again.consumers().keys() | graph.consumers().keys()
    shared -= (_find_dequantized(again) | _find_dequantized(graph)) - (set(graph.outputs) - read)
    wanted = _find_boundary(again, gone, shared) | _find_boundary(graph, new, shared)
    try:
        parts = [cut(side, shared, frozenset(wanted)) for side in (again, graph)]
        if any(set(part.computed) != wanted for part in parts):
            return None
        found: dict[str, str] = {}
        for values in _make_values(again, parts):
            results = [evaluate(part.graph, {name: values[name] for name in part.graph.inputs}) for part in parts]
            for name in sorted(wanted - found.keys()):
                a, b = (result[part.computed[name]] for result, part in zip(results, parts, strict=True))
                if text := _difference(a, b):
                    found[name] = f"{_describe_altered(again, graph, new, gone, shared, name)}: {text}"
        return found
    except QConvertError:
        return None


def _is_same_op(a: Graph, op: Op, b: Graph, other: Op) -> bool:
    """Whether two operators with the same outputs are one: of one kind, with the same attributes, that read the same."""
    if len(op.inputs) != len(other.inputs) or any(operator_differences(op, other)):
        return False
    if not all(_has_same_type(a[name], b[name]) for name in op.outputs if name):
        return False
    return all(_is_same_input(a, name, b, its) for name, its in zip(op.inputs, other.inputs, strict=True))


def _is_same_input(a: Graph, name: str, b: Graph, other: str) -> bool:
    if not name or not other:
        return name == other
    own, its = a[name], b[other]
    if own.is_constant or its.is_constant:
        return own.is_constant and its.is_constant and _has_same_type(own, its) and equal_data(own.data, its.data)
    return name == other


def _find_dequantized(graph: Graph) -> set[str]:
    """Return dequantized float tensors, also after data movement: quantizing these again does not change them."""
    return {
        name
        for op in graph.ops
        if kind_of(op).dequantizes or kind_of(op).rule in ("move", "relabel")
        for name in op.outputs
        if name and "float" in graph[name].dtype
    }


def _has_same_type(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold values of one sort; integers that nothing labels with a scale are compared as they are stored."""
    quantizations = {tensor.quantization.key for tensor in (a, b) if tensor.quantization is not None}
    return a.dtype == b.dtype and len(quantizations) <= 1 and (a.rank == b.rank or None in (a.rank, b.rank))


def _find_boundary(graph: Graph, ops: Collection[Op], shared: Collection[str]) -> set[str]:
    """Return the first shared tensors that are computed from results of some operators."""
    inner = {name for op in ops for name in op.outputs if name and name not in shared}
    found = {name for op in ops for name in op.outputs if name in shared}
    for op in graph.ops:
        if inner.intersection(op.inputs):
            inner.update(name for name in op.outputs if name not in shared)
            found.update(name for name in op.outputs if name in shared)
    return found


def _make_values(again: Graph, parts: Collection[Cut]) -> Iterator[Arrays]:
    """Values of all tensors that the parts read, at random and over their ranges."""
    names = list(dict.fromkeys(name for part in parts for name in part.graph.inputs))
    sizes = {size: _SIZE for name in names for size in again[name].shape or () if isinstance(size, str)}
    shapeless = [again[name] for name in names if again[name].shape is None]
    known = complete_values(again, random_inputs(again, 1, 0)[0]) if shapeless else {}
    again = again.evolve(tensors=[replace(tensor, shape=known[tensor.name].shape) for tensor in shapeless if tensor.name in known])
    writers = again.producers()
    within = {name: limits_of(again, writers, name) for name in names}
    like: dict[str, Array] = {}
    for part in parts:  # each may read what the other does not, and round it onto a range of its own
        whole = part.graph.evolve(tensors=[again[name] for name in names], inputs=tuple(names))
        like = like or random_inputs(whole, 1, 0, sizes=sizes)[0]
        yield like
        yield from extreme_inputs(whole, like, 0, within)


def _difference(a: Array, b: Array) -> str:
    """What differs between values of both graphs; "" if nothing does but the last bits of floats."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{b.dtype} {b.shape} instead of {a.dtype} {a.shape}"
    wrong = absolute_difference(a, b) > _ROUNDED * largest_magnitude(a) if a.dtype.kind == "f" else a != b
    count = int(wrong.sum())
    return f"{count} of {a.size} elements differ for values over the whole range" if count else ""


def _describe_altered(again: Graph, graph: Graph, new: Collection[Op], gone: Collection[Op], shared: Collection[str], name: str) -> str:
    """In words, the altered operators that lead to a tensor, and constants of theirs that are others."""
    leading = [op for op in computable_ops(graph, shared, frozenset([name])) if op in new]
    others = {_op_key(op): op for op in gone}
    constants = [
        repr(own)
        for op in leading
        for own, its in zip(op.inputs, others[_op_key(op)].inputs if _op_key(op) in others else (), strict=False)
        if own and graph[own].is_constant and not _is_same_input(again, its, graph, own)
    ]
    added = [str(op) for op in leading if op.outputs[0] not in shared]
    changed = [str(op) for op in leading if op.outputs[0] in shared]
    left = [str(op) for op in gone if op.outputs and op.outputs[0] not in graph.tensors]
    named = (("added", added), ("altered", changed), ("altered constant", constants), ("left out", left))
    return "; ".join(f"{what} {', '.join(items[:3])}" for what, items in named if items)


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
    files = {option.name: source.file.options[option.name] for option in source.format.read_options if option.is_file}
    if encodings is not None:
        files["encodings"] = str(encodings)
    if note := _describe_other_origin(said, source.path, files, result.path.name):
        return RepeatedConversion(notes=(note,))
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
    except (QConvertError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = f": {error.sentence}" if isinstance(error, QConvertError) else ""
        return RepeatedConversion(notes=(f"the conversion that the metadata of {result.path.name} name cannot be repeated{why}",))


def _describe_other_origin(said: Mapping[str, object], source: Path, files: Mapping[str, Any], result: str) -> str:
    """A line where metadata name another version of qconvert, or other files than those of the check; "" where they name these.

    Args:
        said: the metadata.
        source: the source's file.
        files: those next to it, by the option that names them.
        result: the name of the file that has the metadata.
    """
    if said.get(VERSION) != __version__:
        return f"{result} was written by qconvert {said.get(VERSION)}; {__version__} does not repeat its conversion"
    if said.get(SOURCE_SHA256) != file_digest(source):
        return f"the metadata of {result} name another source file than {source.name}"
    for option, words in (("graph", "another graph"), ("encodings", "other encodings")):
        if said.get(f"{SIDE_FILE}{option}_sha256") != (file_digest(Path(files[option])) if files.get(option) else None):
            return f"the metadata of {result} name {words}"
    return ""


def _scales_options(said: Mapping[str, object], format: Format, folder: Path) -> dict[str, str]:
    """The options by which scales go to a file compared with the result, with such a file in a folder, of the name that the metadata
    say."""
    named = {option.name: said.get(f"{SIDE_FILE}{option.name}") for option in format.write_options if option.scales}
    return {option: str(folder / PurePath(str(name)).name) for option, name in named.items() if name}


def _compare_graphs(again: Graph, graph: Graph) -> tuple[dict[str, str], bool]:
    """What is altered in `graph`, and whether its operators are others."""
    found: dict[str, list[str]] = {}
    others = {_op_key(op): op for op in graph.ops}
    gone = False
    for op in again.ops:
        other = others.pop(_op_key(op), None)
        if other is None:
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
    """By what an operator is found again: its kind and results, or of one without any the state that it writes."""
    return op.kind, *(op.outputs or sorted(op.attributes.items()))


def _compare_operators(again: Graph, op: Op, graph: Graph, other: Op) -> Iterator[str]:
    """What two operators of one kind with the same outputs do otherwise."""
    fused = "activation" in op.attributes and bool(op.outputs[0]) and has_same_activation(again, op, graph, other)
    yield from operator_differences(op, other.with_attributes(activation=op.attributes["activation"]) if fused else other)
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
            continue
        for before, after in zip(own, other, strict=False):
            sizes = again[before].static_shape or (), graph[after].static_shape or ()
            if sizes[0] != sizes[1] and sorted(sizes[0]) == sorted(sizes[1]):
                yield after, f"the axes of {after!r} are in another order: {sizes[1]} instead of {sizes[0]}"
    if _signature_keys(again) != _signature_keys(graph):
        yield next(iter(graph.outputs), ""), "the signatures differ"
    for name in sorted(find_layout_changes(again.metadata, graph.metadata)):
        yield name, f"the record of its layout ({TRANSPOSED}) differs"


def _signature_keys(graph: Graph) -> list[Any]:
    return sorted((item.key, item.function, sorted(item.inputs.items()), sorted(item.outputs.items())) for item in graph.signatures)
