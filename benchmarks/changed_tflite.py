"""One change of a .tflite file: a number, an option, an input, or an operator that is lost or one too many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
from changed_numbers import Change, change_number, change_scale, pick

from qconvert.formats.tflite import schema
from qconvert.formats.tflite.schema import numbers_of

_FLOAT, _INT32, _INT64, _INT16 = 0, 2, 4, 7
#: uint8 and int8.
_BYTES = (3, 9)
_TYPES = {_FLOAT: np.float32, _INT32: np.int32, 3: np.uint8, _INT64: np.int64, _INT16: np.int16, 9: np.int8}


def _builtin(model: Any, op: Any) -> str:
    code = model.operatorCodes[op.opcodeIndex]
    return schema.BUILTIN_OPERATOR_NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)]


def _list_operators(model: Any) -> list[tuple[Any, Any]]:
    return [(graph, op) for graph in model.subgraphs for op in graph.operators]


def _is_constant(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer or 0].data
    return data is not None and len(data) > 0


def _list_quantized(model: Any) -> list[Any]:
    tensors = (tensor for graph in model.subgraphs for tensor in graph.tensors)
    return [tensor for tensor in tensors if tensor.quantization is not None and len(numbers_of(tensor.quantization.zeroPoint))]


def _scale(model: Any, rng: np.random.Generator) -> str:
    tensor = pick(_list_quantized(model), rng)
    if tensor is None:
        return ""
    scale = np.array(tensor.quantization.scale, np.float32)
    place = int(rng.integers(scale.size))
    scale[place], words = change_scale(scale[place], rng)
    tensor.quantization.scale = scale
    return f"scale {place} of {tensor.name!r} by {words}"


def _point(model: Any, rng: np.random.Generator) -> str:
    tensor = pick([tensor for tensor in _list_quantized(model) if tensor.type in _BYTES], rng)
    if tensor is None:
        return ""
    points = np.array(tensor.quantization.zeroPoint, np.int64)
    points[int(rng.integers(points.size))] += int(rng.choice([-1, 1]))
    tensor.quantization.zeroPoint = points
    return f"a zero point of {tensor.name!r}"


def _element(types: Sequence[int], read_by: Sequence[str] = (), index: int = -1) -> Change:
    """An element of a constant of these types, which such operators read at an index."""

    def change(model: Any, rng: np.random.Generator) -> str:
        read = [(graph, numbers_of(op.inputs)) for graph, op in _list_operators(model) if not read_by or _builtin(model, op) in read_by]
        tensors = [
            graph.tensors[place] for graph, inputs in read for place in (inputs if index < 0 else inputs[index : index + 1]) if place >= 0
        ]
        tensor = pick([tensor for tensor in tensors if tensor.type in types and _is_constant(model, tensor)], rng)
        if tensor is None:
            return ""
        buffer = model.buffers[tensor.buffer]
        data = np.frombuffer(bytes(np.asarray(buffer.data, np.uint8)), _TYPES[tensor.type]).copy()
        words = change_number(data, rng, int(rng.integers(data.size)))
        buffer.data = np.frombuffer(data.tobytes(), np.uint8)
        return words and f"{tensor.name!r}: {words}"

    return change


def _option(wanted: str = "") -> Change:
    """A number or a choice of an operator's options: the fused activation, or any other."""

    def change(model: Any, rng: np.random.Generator) -> str:
        found = []
        for _, op in _list_operators(model):
            options = op.builtinOptions
            for name, value in vars(options).items() if options is not None else ():
                is_wanted = name == wanted if wanted else name != "fusedActivationFunction"
                if is_wanted and isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
                    found.append((op, options, name, value))
        picked = pick(found, rng)
        if picked is None:
            return ""
        op, options, name, value = picked
        if isinstance(value, (bool, np.bool_)):
            new: Any = not value
        elif wanted:
            new = int(pick([item for item in (0, 1, 2, 3) if item != value], rng))
        elif isinstance(value, (float, np.floating)):
            new = float(change_scale(np.float32(value), rng)[0]) if value else 0.5
        else:
            new = int(value) + int(rng.choice([-1, 1]))
        setattr(options, name, new)
        return f"{_builtin(model, op)}: {name} {value} -> {new}"

    return change


def _exchange(model: Any, rng: np.random.Generator) -> str:
    picked = pick([(graph, op) for graph, op in _list_operators(model) if len(numbers_of(op.inputs)) > 1], rng)
    if picked is None:
        return ""
    inputs = numbers_of(picked[1].inputs)
    if inputs[0] == inputs[1]:
        return ""
    picked[1].inputs = np.array([inputs[1], inputs[0], *inputs[2:]], np.int32)
    return f"{_builtin(model, picked[1])}: inputs exchanged"


def _edge(model: Any, rng: np.random.Generator) -> str:
    picked = pick(_list_operators(model), rng)
    if picked is None or not numbers_of(picked[1].inputs):
        return ""
    graph, op = picked
    inputs = numbers_of(op.inputs)
    place = int(rng.integers(len(inputs)))
    if inputs[place] < 0:
        return ""
    old = graph.tensors[inputs[place]]
    own = graph.operators.index(op)
    known = {*numbers_of(graph.inputs), *(name for item in graph.operators[:own] for name in numbers_of(item.outputs))}
    constant = _is_constant(model, old)
    alike = [
        index for index, item in enumerate(graph.tensors)
        if index != inputs[place] and item.type == old.type and np.array_equal(item.shape, old.shape)
        and (_is_constant(model, item) if constant else index in known)
    ]  # fmt: skip
    new = pick(alike, rng)
    if new is None:
        return ""
    words = f"{_builtin(model, op)} reads {graph.tensors[new].name!r}, not {old.name!r}"
    inputs[place] = new
    op.inputs = np.array(inputs, np.int32)
    return words


def _lost(model: Any, rng: np.random.Generator) -> str:
    fits = []
    for graph, op in _list_operators(model):
        inputs, outputs = numbers_of(op.inputs), numbers_of(op.outputs)
        if not inputs or len(outputs) != 1 or outputs[0] in numbers_of(graph.outputs) or inputs[0] < 0:
            continue
        a, b = graph.tensors[inputs[0]], graph.tensors[outputs[0]]
        if a.type == b.type and np.array_equal(a.shape, b.shape):
            fits.append((graph, op, inputs[0], outputs[0]))
    picked = pick(fits, rng)
    if picked is None:
        return ""
    graph, op, stays, gone = picked
    words = f"{_builtin(model, op)} is left out"
    for other in graph.operators:
        other.inputs = np.array([stays if index == gone else index for index in numbers_of(other.inputs)], np.int32)
    graph.operators.remove(op)
    return words


def _insert(builtin: str) -> Change:
    """An operator of one input after a computed tensor, with the same quantization."""

    def change(model: Any, rng: np.random.Generator) -> str:
        fits = [
            (graph, place, output)
            for graph in model.subgraphs for place, op in enumerate(graph.operators) for output in numbers_of(op.outputs)
            if output >= 0 and graph.tensors[output].type in (_FLOAT, *_BYTES) and output not in numbers_of(graph.outputs)
        ]  # fmt: skip
        picked = pick(fits, rng)
        if picked is None:
            return ""
        graph, place, output = picked
        old = graph.tensors[output]
        new = copy(old)
        new.name = b"planted"
        graph.tensors.append(new)
        for op in graph.operators[place + 1 :]:
            op.inputs = np.array([len(graph.tensors) - 1 if index == output else index for index in numbers_of(op.inputs)], np.int32)
        number = getattr(schema.BuiltinOperator, builtin)
        model.operatorCodes.append(schema.OperatorCodeT(builtinCode=number, deprecatedBuiltinCode=min(number, 127), version=2))
        graph.operators.insert(
            place + 1,
            schema.OperatorT(
                opcodeIndex=len(model.operatorCodes) - 1, inputs=np.array([output], np.int32),
                outputs=np.array([len(graph.tensors) - 1], np.int32),
            ),
        )  # fmt: skip
        return f"{builtin} after {old.name!r}"

    return change


def _outputs(model: Any, rng: np.random.Generator) -> str:
    graph = model.subgraphs[0]
    outputs = numbers_of(graph.outputs)
    if len(outputs) < 2:
        return ""
    graph.outputs = np.array([outputs[1], outputs[0], *outputs[2:]], np.int32)
    for signature in model.signatureDefs or ():
        named = {item.tensorIndex: item for item in signature.outputs or ()}
        if outputs[0] in named and outputs[1] in named:
            one, other = named[outputs[0]], named[outputs[1]]
            one.tensorIndex, other.tensorIndex = other.tensorIndex, one.tensorIndex
    return "outputs exchanged"


_PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
#: Kind of change -> what makes it.
CHANGES: Mapping[str, Change] = {
    "scale": _scale,
    "zero point": _point,
    "weight": _element((*_BYTES, _INT16)),
    "bias": _element((_INT32, _INT64, _FLOAT), _PRODUCTS, 2),
    "table": _element((*_BYTES, _INT16), ("GATHER",), 0),
    "shape": _element((_INT32,), ("RESHAPE", "BROADCAST_TO"), 1),
    "perm": _element((_INT32,), ("TRANSPOSE",), 1),
    "padding": _element((_INT32,), ("PAD", "PADV2", "MIRROR_PAD"), 1),
    "axes": _element((_INT32,), ("MEAN", "SUM", "REDUCE_MAX", "STRIDED_SLICE", "SLICE", "ARG_MAX"), 1),
    "other constant": _element((_FLOAT, _INT32, _INT64)),
    "attribute": _option(),
    "activation": _option("fusedActivationFunction"),
    "inputs exchanged": _exchange,
    "other input": _edge,
    "lost operator": _lost,
    "a Relu": _insert("RELU"),
    "a Relu6": _insert("RELU6"),
    "a Floor": _insert("FLOOR"),
    "outputs exchanged": _outputs,
}
