"""What a writer notes in the metadata next to a model, and how a reader finds it again: operators that the file holds as several, and
named entry points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.storage import IN_BYTES, integer_range
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.graph import Graph, Op, Quantization, Signature, Tensor, drop_keys, equal_data
from qconvert.graph.metadata import DECOMPOSED, SOURCE_SIGNATURES, read_entry
from qconvert.operators import KINDS, kind_of
from qconvert.operators.shapes_and_functions import needed_ops, with_used_functions
from qconvert.rules.validation import validate

#: A quantization in a note: scale and zero point, or scales, zero points and their axis; and then the limits within its type, if it has
#: any.
Stated = tuple[Any, ...]

_SMALL = 64  # elements of a constant in a note
_NOTED = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64")


class Noted(NamedTuple):
    """An operator in a note.

    Attributes:
        op: the operator.
        quantizations: of its tensors, by name.
        constants: its small constants: sizes, axes, paddings, which nodes may have in another form.
        types: of tensors of less than eight bits, and of results that nothing reads, which a file may leave out.
    """

    op: Op
    quantizations: Mapping[str, Quantization]
    constants: Sequence[Tensor]
    types: Mapping[str, str]


def write_note(graph: Graph, op: Op, *, is_complete: bool = False) -> dict[str, Any]:
    """An operator of a graph as a note has it, with its small constants: sizes, parameters, and fillers without a quantization.

    Args:
        graph: the graph.
        op: the operator.
        is_complete: whether the quantizations of data movement are noted too, which is the same with any.
    """
    kind, unread = kind_of(op), _unread(graph, op)
    names = op.names if is_complete or kind.rule != "move" else ()
    fillers = [name for name in kind.inputs_with_role(op, "filler") if not graph[name].is_quantized]
    small = [graph[name] for name in (*kind.inputs_with_role(op, "index", "parameter"), *fillers)]
    types = {name: graph[name].dtype for name in op.names if name and (graph[name].dtype in IN_BYTES or name in unread)}
    return {
        "kind": op.kind, "inputs": list(op.inputs), "outputs": list(op.outputs), "attributes": dict(op.attributes), "source": op.source,
        "quantizations": {name: stated_quantization(found) for name in names if name and (found := graph[name].quantization) is not None
                  and not found.block_size and (found.is_per_tensor or graph[name].is_constant)},
        "constants": {tensor.name: (tensor.dtype, list(data.shape), data.reshape(-1).tolist()) for tensor in small
                      if (data := tensor.data) is not None and data.size <= _SMALL and tensor.dtype in _NOTED and np.isfinite(data).all()},
        **({"types": types} if types else {}),
    }  # fmt: skip


def _unread(graph: Graph, op: Op) -> set[str]:
    """Those of several results that no operator reads and the graph does not give."""
    if len(op.outputs) < 2:
        return set()
    return set(filter(None, op.outputs)).difference(graph.outputs, *(other.inputs for other in graph.ops))


def read_note(item: Mapping[str, Any]) -> Noted:
    """The operator in a note.

    Raises:
        OverflowError, ValueError, TypeError, KeyError, AttributeError: it is none.
    """
    quantizations = {str(name): quantization_of(quantization) for name, quantization in item.get("quantizations", {}).items()}
    types = {str(name): str(dtype) for name, dtype in item.get("types", {}).items()}
    return Noted(_operator(item), quantizations, _constants(item.get("constants", {})), types)


def stated_quantization(quantization: Quantization) -> Stated:
    """A quantization as a note has it."""
    ends = quantization.quant_min, quantization.quant_max
    limits = () if ends == (None, None) else ({"limits": ends},)
    if quantization.axis is None:
        return quantization.step, quantization.point, *limits
    return tuple(quantization.scale.tolist()), tuple(quantization.zero_point.tolist()), quantization.axis, *limits


def quantization_of(given: Sequence[Any]) -> Quantization:
    """The quantization in a note; raises ValueError or TypeError if it is none."""
    numbers = [item for item in given if not isinstance(item, Mapping)]
    named = next((item for item in given if isinstance(item, Mapping)), {})
    low, high = (None if limit is None else int(limit) for limit in named.get("limits", (None, None)))
    if len(numbers) == 2:
        return replace(Quantization.per_tensor(float(numbers[0]), int(numbers[1])), quant_min=low, quant_max=high)
    scales, points, axis = numbers
    if np.ndim(scales) != 1 or np.ndim(points) != 1:
        raise ValueError("scales along an axis are not a vector")
    return replace(Quantization.per_axis(scales, int(axis), points), quant_min=low, quant_max=high)


class NotedTensor(NamedTuple):
    """A quantized tensor in a note: its name, its storage type and its quantization."""

    name: str
    dtype: str
    quantization: Quantization

    def note(self) -> list[Any]:
        """The tensor as a note has it."""
        return [self.name, self.dtype, *stated_quantization(self.quantization)]

    @classmethod
    def of(cls, item: Any) -> NotedTensor | None:
        """The tensor in a note; None if it is none, or its quantization is not sound."""
        try:
            name, dtype, *stated = item
            q = quantization_of(stated)
            (low, high), (lowest, highest) = q.limits(dtype), integer_range(dtype)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return None
        is_sound = isinstance(name, str) and q.scale.size > 0 and q.scale.shape == q.zero_point.shape and lowest <= low <= high <= highest
        is_sound = is_sound and np.isfinite(q.scale).all() and (q.scale > 0).all() and (np.abs(q.zero_point) <= 2**31).all()
        return cls(name, dtype, q) if is_sound else None


def _operator(item: Mapping[str, Any]) -> Op:
    kind = str(item["kind"])
    if kind not in KINDS:
        raise ValueError(f"there is no operator {kind!r}")
    attributes = {str(name): tuple(value) if isinstance(value, list) else value for name, value in item["attributes"].items()}
    inputs, outputs = (tuple(str(name) for name in item[side]) for side in ("inputs", "outputs"))
    return Op(kind, inputs, outputs, attributes, str(item.get("source", "")))


def _constants(given: Mapping[str, Any]) -> list[Tensor]:
    found = []
    for name, (dtype, shape, values) in given.items():
        if dtype not in _NOTED or len(values) > _SMALL:
            raise ValueError("no small constant")
        numbers = [float(value) if "float" in dtype else int(value) for value in values]
        data = np.array(numbers, dtype).reshape([int(size) for size in shape])
        found.append(Tensor(str(name), dtype, data.shape, data))
    return found


def decomposition_notes(graph: Graph, is_decomposed: Callable[[Op], bool]) -> list[dict[str, Any]]:
    """The notes for the operators that are decomposed."""
    return [write_note(graph, op) for op in graph.ops if is_decomposed(op)]


def dump_notes(notes: Mapping[str, Any]) -> dict[str, str]:
    """The metadata entries of notes, without those that are empty."""
    return {key: json.dumps(note) for key, note in notes.items() if note}


def restore_operators(
    graph: Graph,
    rewritten: Callable[[Graph], Graph],
    constants: Callable[[Graph, Op], Iterable[Tensor]] = lambda graph, op: (),
    settled: Callable[[Graph, Graph, list[Op]], Graph] = lambda graph, labelled, ops: graph,
) -> Graph:
    """The graph with the operators that its metadata note in place of those that they are decomposed into.

    Args:
        graph: as read.
        rewritten: writes a graph in the format and reads it.
        constants: those of a noted operator that the file has in another form.
        settled: of the graph with the noted operators in it, the tensors with the quantizations that notes state, and these operators: what
            stands between both.

    Raises:
        InvalidModelError: the metadata entry is no list of operators.
    """
    text = graph.metadata.get(DECOMPOSED)
    if text is None:
        return graph
    listed = _parse_notes(text, len(graph.ops))
    graph = replace(graph, metadata=drop_keys(graph.metadata, DECOMPOSED))
    found = {tensor.name: tensor for item in listed for tensor in item.constants if tensor.name not in graph.tensors}
    found |= {tensor.name: tensor for item in listed for tensor in constants(graph, item.op)}
    graph = replace(graph, tensors={**graph.tensors, **found})
    labelled = replace(graph, tensors={**graph.tensors, **_label_integers(graph, listed)})
    producers = graph.producers()
    ops = []
    for op in (item.op for item in listed):
        if _is_decomposition(graph, labelled, op, rewritten, producers):
            producers.update(dict.fromkeys(op.outputs, op))
            ops.append(op)
    graph = settled(graph.evolve(ops=_join_operators(graph, ops)), labelled, ops)
    return with_used_functions(graph.evolve(ops=needed_ops(graph.ops, graph.outputs)))


def _label_integers(graph: Graph, listed: Iterable[Noted]) -> dict[str, Tensor]:
    """The tensors of plain integers that notes give one quantization."""
    found: dict[str, set[Stated]] = {}
    for item in listed:
        for name, quantization in item.quantizations.items():
            tensor = graph.tensors.get(name)
            if tensor is not None and tensor.quantization is None and "int" in tensor.dtype:
                found.setdefault(name, set()).add(stated_quantization(quantization))
    chosen = {name: quantizations.pop() for name, quantizations in found.items() if len(quantizations) == 1}
    return {name: replace(graph[name], quantization=quantization_of(quantization)) for name, quantization in chosen.items()}


def _join_operators(graph: Graph, ops: list[Op]) -> list[Op]:
    """The operators of a graph, those noted in place of what they are written with."""
    producers = graph.producers()
    for op in ops:
        producers.update(dict.fromkeys(op.outputs, op))
    chosen: list[Op] = []
    done: set[int] = set()
    written: set[str] = set()
    for old in graph.ops:
        written.update(old.outputs)
        for op in [producers.get(name, old) for name in old.outputs] or [old]:
            # After the last of the nodes that write outputs of the operator, all that it reads is there.
            if id(op) not in done and (op is old or written.issuperset(filter(None, op.outputs))):
                done.add(id(op))
                chosen.append(op)
    return needed_ops(chosen, graph.outputs)


def _parse_notes(text: str, most: int) -> list[Noted]:
    """The operators noted; `most` is the number of nodes, of which each takes one at least."""
    try:
        listed = json.loads(text)
        if not isinstance(listed, list) or len(listed) > most:
            raise ValueError("no list, or too long a one")
        return [read_note(item) for item in listed]
    except (OverflowError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidModelError(f"the metadata entry {DECOMPOSED} lists no operators: {error}", rule="malformed-metadata") from error


def _is_decomposition(graph: Graph, labelled: Graph, op: Op, rewritten: Callable[[Graph], Graph], producers: Mapping[str, Op]) -> bool:
    """Whether the graph computes the outputs of `op` from its inputs just as the writer decomposes it, `labelled` saying their
    quantizations."""
    names = [name for name in op.names if name]
    if not op.outputs or any(name not in graph.tensors for name in names) or any(name and name not in producers for name in op.outputs):
        return False
    inputs = tuple(dict.fromkeys(name for name in op.inputs if name and not graph[name].is_constant))
    forms = [{name: labelled[name] for name in names}]
    # integers, whatever quantization others name for one side, but for types that are moved in float with that quantization
    if kind_of(op).rule == "move":
        forms.insert(0, {name: replace(graph[name], quantization=None) for name in names})
    graphs = (Graph("", tensors, (op,), inputs, op.outputs, metadata=graph.metadata) for tensors in forms)
    return any(_is_written_as(graph, alone, rewritten, producers) for alone in graphs)


def _is_written_as(graph: Graph, alone: Graph, rewritten: Callable[[Graph], Graph], producers: Mapping[str, Op]) -> bool:
    """Whether a graph of one operator is written as the operators that a graph has for its outputs."""
    try:
        validate(alone)
        other = rewritten(alone)
    except QConvertError:
        return False
    there = other.producers()
    return all(_same(graph, producers, name, other, there, name, set(alone.inputs)) for name in alone.outputs)


def _same(a: Graph, producers: Mapping[str, Op], x: str, b: Graph, there: Mapping[str, Op], y: str, inputs: set[str]) -> bool:
    """Whether two tensors are computed alike, back to the inputs. Each pair is looked at once: a value may be read by many."""
    waiting, seen = [(x, y)], {(x, y)}
    while waiting:
        further = _inputs_of_alike(a, producers, b, there, waiting.pop(), inputs)
        if further is None:
            return False
        waiting += [pair for pair in further if pair not in seen]
        seen.update(further)
    return True


def _inputs_of_alike(
    a: Graph, producers: Mapping[str, Op], b: Graph, there: Mapping[str, Op], pair: tuple[str, str], inputs: set[str]
) -> list[tuple[str, str]] | None:
    """What two tensors are computed of, pair by pair, if it is by operators that are alike; None if it is not."""
    x, y = pair
    if not x or not y or y in inputs:
        return [] if x == y else None
    first, second = a[x], b[y]
    if first.is_constant or second.is_constant:  # the first may have a label from elsewhere
        is_labelled_alike = second.quantization in (None, first.quantization)
        return [] if first.is_constant and second.is_constant and is_labelled_alike and equal_data(first.data, second.data) else None
    one, two = producers.get(x), there.get(y)
    if one is None or two is None or one.kind != two.kind or len(one.inputs) != len(two.inputs):
        return None
    if not _same_attributes(a, one, b, two) or one.outputs.index(x) != two.outputs.index(y):
        return None
    # By itself the operator has no DequantizeLinear after it that would say the scale; its constants were made with it. The type of an
    # Opaque's result follows from its inputs, and is not always inferred for an operator by itself.
    other_quantization = second.quantization is not None and first.quantization != second.quantization
    if (first.dtype != second.dtype and one.kind != "Opaque") or other_quantization:
        return None
    return list(zip(one.inputs, two.inputs, strict=True))


def _same_attributes(a: Graph, one: Op, b: Graph, two: Op) -> bool:
    """Whether two operators of one kind state the same, functions by what they compute."""
    called = [name for name, spec in kind_of(one).attributes.items() if spec.sort == "function" and name in one.attributes]
    if {**one.attributes, **dict.fromkeys(called, "")} != {**two.attributes, **dict.fromkeys(called, "")}:
        return False
    return all(_same_function(a.functions[str(one[name])], b.functions[str(two[name])]) for name in called)


def _same_function(a: Graph, b: Graph) -> bool:
    if a.inputs != b.inputs or len(a.outputs) != len(b.outputs):
        return False
    producers, there, inputs = a.producers(), b.producers(), set(b.inputs)
    return all(_same(a, producers, x, b, there, y, inputs) for x, y in zip(a.outputs, b.outputs, strict=True))


def noted_signatures(graph: Graph) -> dict[str, str]:
    """The metadata entry for the entry points of a graph; nothing where it has none."""
    found = {s.key: {"inputs": dict(s.inputs), "outputs": dict(s.outputs)} for s in graph.signatures if not s.function}
    return dump_notes({SOURCE_SIGNATURES: found})


def with_signatures(graph: Graph) -> Graph:
    """The graph with the entry points in its metadata; a note whose values the model no longer has is left out.

    Raises:
        InvalidModelError: the metadata entry is no map.
    """

    def read(listed: Any) -> dict[str, list[dict[str, str]]]:
        return {str(key): [dict(found[side]) for side in ("inputs", "outputs")] for key, found in listed.items()}

    noted = read_entry(graph.metadata, SOURCE_SIGNATURES, read, "a map of names to inputs and outputs")
    if noted is None:
        return graph
    signatures = tuple(
        Signature(key, inputs, outputs)
        for key, (inputs, outputs) in noted.items()
        if all(name in graph.inputs for name in inputs.values()) and all(name in graph.outputs for name in outputs.values())
    )
    metadata = drop_keys(graph.metadata, SOURCE_SIGNATURES)
    return replace(graph, signatures=signatures, metadata=metadata)
