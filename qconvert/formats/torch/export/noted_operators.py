"""Operators that the writer decomposed into several calls. Each is written once more; if the program has these calls, they are read as one.

The notes next to the program say where to look. A false note is no harm: then the calls are read as they stand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import DTYPES, IN_BYTES, in_bytes, numpy_dtype
from qconvert.errors import QConvertError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.notes import Noted
from qconvert.formats.reading.quantizations import label_tensor, unlabel_tensor
from qconvert.formats.torch.calls import bind_operator
from qconvert.formats.torch.export.contents import Node as Call
from qconvert.formats.torch.export.contents import Program
from qconvert.formats.torch.notes import Notes
from qconvert.formats.torch.program import Node
from qconvert.formats.torch.session import Constants
from qconvert.formats.torch.stored_values import EXPORT, StoredTensor, TorchType
from qconvert.formats.torch.values import Ref
from qconvert.graph import Graph, Shape, Tensor
from qconvert.graph.metadata import NUMERICS
from qconvert.operators.sizes import UNKNOWN
from qconvert.rules.validation import validate

#: The target of a call that stands for all that an operator is written with.
DECOMPOSED = "qconvert::operator"
#: Sizes beyond which nothing is written once more.
_LARGEST_SIZE, _MOST_ELEMENTS = 2**22, 2**31


@dataclass(frozen=True, slots=True)
class _Held:
    """Constants and calls of an archive, by the names of the program."""

    program: Program
    constants: Mapping[str, StoredTensor]
    calls: Mapping[str, tuple[Call, int]]
    names: Mapping[str, str]  # of the graph that was written -> of the program
    numerics: str

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def has(self, name: str) -> bool:
        """Whether the program computes a tensor; it leaves out results that nothing reads."""
        return self.name(name) in self.calls


def restore_noted(program: Program, stored: Mapping[str, Any], notes: Notes | None) -> Program:
    """The program, with one call in the place of those that an operator is written with.

    Args:
        program: as the file has it.
        stored: the archive's tensors, by their names in the model.
        notes: those next to the program.
    """
    if notes is None or not notes.decomposed:
        return program
    held = _index_program(program, stored, notes)
    replaced: dict[int, Call] = {}
    gone: set[int] = set()
    order = {id(call): place for place, call in enumerate(program.nodes)}
    for item in notes.decomposed:
        calls = _results(held, item)
        if calls and _is_written_as_noted(held, item):
            last = max(calls, key=lambda call: order[id(call)])
            gone.update(id(call) for call in calls)
            known = {tensor.name for tensor in item.constants}
            inputs = [None if not name or name in known else Ref(held.name(name)) for name in item.op.inputs]
            outputs = [Ref(held.name(name)) if held.has(name) else None for name in item.op.outputs]
            types = [program.tensors[there.name] if there else ("", ()) for there in outputs]
            arguments = {**{str(place): value for place, value in enumerate(inputs)}, "operator": (item, types)}
            replaced[id(last)] = Call(DECOMPOSED, "", arguments, outputs, last.name)
    nodes = [replaced.get(id(call), call) for call in program.nodes if id(call) in replaced or id(call) not in gone]
    return replace(program, nodes=tuple(nodes))


def _index_program(program: Program, stored: Mapping[str, Any], notes: Notes) -> _Held:
    names = {canonical: name for name, canonical in notes.tensors.items()}
    constants = {}
    for _, argument, target in program.inputs:
        if isinstance(argument, Ref) and isinstance(stored.get(target), StoredTensor):
            constants[argument.name] = stored[target]
            names[notes.buffers.get(target, target)] = argument.name
    calls = {item.name: (call, index) for call in program.nodes for index, item in enumerate(call.results) if isinstance(item, Ref)}
    return _Held(program, constants, calls, names, notes.metadata.get(NUMERICS) or "fast")


def _results(held: _Held, item: Noted) -> list[Call]:
    """The calls that give an operator's results; none if one of them is missing that something reads."""
    found = {name: held.calls.get(held.name(name)) for name in item.op.outputs if name}
    known = all(call is not None or item.types.get(name) in DTYPES for name, call in found.items())
    return [call for call, _ in filter(None, found.values())] if known else []


def _is_written_as_noted(held: _Held, item: Noted) -> bool:
    """Whether the program computes an operator's results by the same calls as the writer."""
    from qconvert.formats.torch.writer import build

    tensors = _tensors(held, item)
    if tensors is None:
        return False
    inputs = tuple(dict.fromkeys(name for name in item.op.inputs if name and not tensors[name].is_constant))
    outputs = tuple(filter(held.has, item.op.outputs))
    alone = Graph("", tensors, (item.op,), inputs, outputs)
    try:
        validate(alone)
        builder = build(alone, held.numerics)
    except QConvertError:
        return False
    pairs = zip(builder.outputs, outputs, strict=True)
    return all(_is_same(held, Ref(held.name(name)), node, builder.names, {}) for node, name in pairs)


def _tensors(held: _Held, item: Noted) -> dict[str, Tensor] | None:
    """The tensors of an operator, as the program has them, with the quantizations that the note states."""
    found = {tensor.name: replace(tensor, quantization=item.quantizations.get(tensor.name)) for tensor in item.constants}
    absent = [name for name in item.op.outputs if name and not held.has(name)]
    found |= {name: Tensor(name, item.types[name], None, None, item.quantizations.get(name)) for name in absent}
    for name in filter(None, (*item.op.inputs, *item.op.outputs)):
        if name in found:
            continue
        there, quantization = held.name(name), item.quantizations.get(name)
        constant = held.constants.get(there)
        if constant is not None:
            dtype = _narrow_type(item, name, constant.dtype)
            found[name] = Tensor(name, dtype, constant.shape, constant.data.astype(numpy_dtype(dtype), copy=False), quantization)
        elif there in held.program.tensors:
            dtype, shape = held.program.tensors[there]
            found[name] = Tensor(name, _narrow_type(item, name, dtype), shape, None, quantization)
        else:
            return None
    sizes = [size for tensor in found.values() for size in tensor.shape or () if isinstance(size, int)]
    elements = [math.prod(size for size in tensor.shape or () if isinstance(size, int)) for tensor in found.values()]
    return found if max(sizes, default=0) <= _LARGEST_SIZE and max(elements) <= _MOST_ELEMENTS else None


def _is_same(held: _Held, value: Any, node: Any, names: Mapping[Node, str], known: dict[int, Any]) -> bool:
    """Whether a value of the program equals the result of a node.

    Args:
        held: the program.
        value: an argument of one of its calls.
        node: an argument of a node, or one.
        names: of inputs and constants among the nodes.
        known: id of a node -> the name of the value that it was found to be.
    """
    if isinstance(node, (list, tuple)) and isinstance(value, int):  # a default that stands for each axis
        return len(node) > 0 and all(item == value for item in node)
    if isinstance(node, (list, tuple)):
        pairs = list(zip(value, node, strict=False)) if isinstance(value, (list, tuple)) and len(value) == len(node) else None
        return pairs is not None and all(_is_same(held, one, other, names, known) for one, other in pairs)
    if isinstance(node, TorchType):
        return isinstance(value, int) and EXPORT.get(value) == IN_BYTES.get(node.name, node.name)
    if not isinstance(node, Node):
        is_nan = isinstance(value, float) and isinstance(node, float) and math.isnan(value) and math.isnan(node)
        return is_nan or bool(value == node)
    if not isinstance(value, Ref):
        return False
    if known.get(id(node)) == value.name:
        return True
    if node.is_input:
        found = held.name(names[node]) == value.name
    elif node.data is not None:
        found = _is_same_constant(held.constants.get(value.name), node)
    else:
        found = _is_same_call(held, value.name, node, names, known)
    if found:
        known[id(node)] = value.name
    return found


def _is_same_constant(stored: StoredTensor | None, node: Node) -> bool:
    data = node.data
    if stored is None or data is None or stored.shape != data.shape:
        return False
    own = in_bytes(data)
    return stored.data.dtype == own.dtype and np.array_equal(stored.data.reshape(own.shape), own, equal_nan=own.dtype.kind == "f")


def _is_same_call(held: _Held, name: str, node: Node, names: Mapping[Node, str], known: dict[int, Any]) -> bool:
    index = 0
    if node.operator == "operator.getitem":
        node, index = node.arguments
    call, place = held.calls.get(name, (None, -1))
    if call is None or place != index:
        return False
    space, operator, *overload = node.operator.split(".")
    target = f"prim::{operator}" if space == "operator" else f"{space}::{operator}"
    if call.target != target or (space != "operator" and call.overload != (overload[0] if overload else "default")):
        return False
    built, read = bind_operator(target, node.arguments, node.named), bind_operator(target, *call.split_arguments())
    if built is None or read is None:  # nothing reads this form of it, so nothing knows its arguments: they must all be stated
        values = [*node.arguments, *node.named.values()]
        return len(values) == len(call.arguments) and all(
            _is_same(held, one, other, names, known) for one, other in zip(call.arguments.values(), values, strict=True)
        )
    own, there = built[1], read[1]
    return own.keys() == there.keys() and all(_is_same(held, there[key], own[key], names, known) for key in own)


def emit_noted(call: Call, values: Mapping[str, Any], draft: Draft, constants: Constants) -> list[Ref]:
    """Appends the operator that a call of DECOMPOSED stands for; returns its results.

    Args:
        call: the call.
        values: of the program, by name.
        draft: the graph while it grows.
        constants: those of the file.
    """
    item: Noted
    item, types = call.arguments["operator"]
    own = {tensor.name: tensor for tensor in item.constants}
    inputs = []
    for place, name in enumerate(item.op.inputs):
        argument = call.arguments[str(place)]
        if isinstance(argument, Ref):
            name = _operand(item, name, values[argument.name], draft, constants)
        elif name:
            name = draft.add(name, own[name].dtype, own[name].shape, own[name].data, item.quantizations.get(name))
        inputs.append(name)
    outputs = [
        _result(item, name, there, dtype, shape, draft) if name else ""
        for name, there, (dtype, shape) in zip(item.op.outputs, call.outputs, types, strict=True)
    ]
    draft.append(replace(item.op, inputs=tuple(inputs), outputs=tuple(outputs)))
    return [Ref(name) for name in outputs]


def _result(item: Noted, name: str, there: Ref | None, dtype: str, shape: Shape, draft: Draft) -> str:
    """A result of the operator, called as in the program; one that the program leaves out is called as in the note."""
    quantization = item.quantizations.get(name)
    if there is None:
        return draft.add(name, item.types[name], None, None, quantization)
    # sizes that are expressions in the program are called as the operator's shape rule says
    named = tuple(UNKNOWN if isinstance(size, str) and not size.isidentifier() else size for size in shape)
    return draft.add(there.name, _narrow_type(item, name, dtype), named, None, quantization)


def _operand(item: Noted, name: str, value: Any, draft: Draft, constants: Constants) -> str:
    """The tensor of the graph that an operator reads, with the quantization that the note states."""
    tensor = draft.tensors[(constants.ref(value, name) if isinstance(value, StoredTensor) else value).name]
    dtype, quantization = _narrow_type(item, name, tensor.dtype), item.quantizations.get(name)
    if dtype != tensor.dtype and tensor.data is not None:
        tensor = draft.tensors[draft.variant(tensor.name, dtype, tensor.data.astype(numpy_dtype(dtype)), None)]
    if quantization is not None:
        return label_tensor(draft, tensor, quantization, item.op.source)
    is_plain = tensor.quantization is not None and tensor.quantization.is_per_tensor  # notes leave out other quantizations
    return unlabel_tensor(draft, tensor, item.op.source) if is_plain else tensor.name


def _narrow_type(item: Noted, name: str, stored: str) -> str:
    """The type of a tensor that is stored in eight bits and may have fewer."""
    small = item.types.get(name, "")
    return small if IN_BYTES.get(small) == stored else stored
