"""What operators of a side give when they are run alone with all codes of their operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.checking.file_in_runtime import Side
from qconvert.checking.same_codes import has_byte_codes
from qconvert.conversion.saving import save
from qconvert.errors import QConvertError
from qconvert.evaluate.curves import codes_of
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.graph.metadata import NUMERICS, SOURCE_FORMAT, SOURCE_PRODUCER
from qconvert.kernels.proofs import all_codes, codes_along_axis
from qconvert.operators import kind_of
from qconvert.operators.properties import ELEMENTWISE

#: How far the codes are moved in a second run, so that vectors and what is left over compute the same ones.
_MOVED = 7
#: Metadata by which a format's writer, or its runtime, computes otherwise, as PyTorch's programs do in float32.
_KEPT_METADATA = (SOURCE_FORMAT, SOURCE_PRODUCER, NUMERICS)


def run_all_codes(side: Side, graph: Graph, op: Op) -> Array | None:
    """The stored results for all codes of an operator's operands; None where it is not run alone.

    Each is computed twice, at different places of vectors, and None is given where the two are not equal.

    Args:
        side: whose format and runtime are taken.
        graph, op: the operator.
    """
    tried = _codes_to_try(graph, op)
    if tried is None:
        return None
    given, axis, shape = tried
    codes = {f"x{place}": item for place, item in enumerate(given) if item is not None}
    names = [name if item is None else f"x{place}" for place, (name, item) in enumerate(zip(op.inputs, given, strict=True))]
    count, (size, *rest) = len(given) if _is_concat(graph, op) else 1, next(iter(codes.values())).shape
    tensors = {name: graph[name] for name in names if name and name not in codes}
    computed = [(name, old, 1) for name, old in zip(names, op.inputs, strict=True) if name in codes]
    for name, old, times in [*computed, ("y", op.outputs[0], count)]:
        tensors[name] = Tensor(name, graph[old].dtype, (times * (size + _MOVED), *rest), None, graph[old].quantization)
    attributes = {**op.attributes, "axis": axis} if axis is not None else op.attributes
    alone = Graph("alone", tensors, (replace(op, inputs=tuple(names), outputs=("y",), attributes=attributes),), tuple(codes), ("y",))
    found = _run_twice(side, alone, list(codes.values()), count)
    return None if found is None else found.reshape(shape)


def run_group(side: Side, graph: Graph, ops: Sequence[Op], inputs: Sequence[str], output: str) -> Array | None:
    """The stored results of operators for all codes of the one or two tensors of bytes that they read: 256, or a row for each code of the
    first; of operators that put several tensors one after the other those of each. None where they do something else, or are not run alone.

    Args:
        side: whose format and runtime are taken.
        graph, ops: the operators, in order.
        inputs, output: what they read, without constants, and compute.
    """
    *before, last = ops
    joins = _is_concat(graph, last)
    if joins and [_find_read_tensor(graph, before, name, inputs) for name in last.inputs] != list(inputs):
        return None
    if (not joins and len(inputs) > 2) or not all(has_byte_codes(graph[name]) for name in inputs):
        return None
    if graph[output].dtype != "bool" and not has_byte_codes(graph[output]):
        return None
    named = {name: graph[name] for op in ops for name in op.names if name}
    tables = {op.inputs[0] for op in ops if _reads_table(graph, op)}
    if any(tensor.data is not None and tensor.data.size > 1 for name, tensor in named.items() if name not in tables):
        return None
    elementwise = before if joins else ops
    if any(len(op.outputs) != 1 or not (kind_of(op).layout is ELEMENTWISE or _reads_table(graph, op)) for op in elementwise):
        return None
    if any(tensor.quantization is not None and not tensor.quantization.is_per_tensor for tensor in named.values()):
        return None
    each = [codes_of(graph[name].dtype) for name in inputs]
    codes = each if joins else [item.reshape(-1) for item in np.meshgrid(*each, indexing="ij")]
    room = (codes[0].size + _MOVED,)
    tensors = {name: tensor for name, tensor in named.items() if name in tables}
    for name in named.keys() - tables:
        tensor = named[name]
        tensors[name] = replace(tensor, shape=room) if tensor.data is None else replace(tensor, shape=(), data=tensor.data.reshape(()))
    count = len(inputs) if joins else 1
    tensors[output] = replace(tensors[output], shape=(count * room[0],))
    last = last.with_attributes(axis=0) if joins else last
    found = _run_twice(side, Graph("group", tensors, (*before, last), tuple(inputs), (output,)), codes, count)
    return None if found is None else found.reshape(-1 if joins else tuple(map(len, each)))


def _find_read_tensor(graph: Graph, ops: Sequence[Op], name: str, inputs: Sequence[str]) -> str:
    """Which of the tensors that operators read one of theirs is computed from; "" if from several or none."""
    writers = {op.outputs[0]: op for op in ops}
    while name not in inputs:
        if name not in writers:  # a constant
            return ""
        given = [item for item in writers[name].inputs if item and graph[item].data is None]
        if len(given) != 1:
            return ""
        name = given[0]
    return name


def _run_twice(side: Side, alone: Graph, codes: Sequence[Array], count: int) -> Array | None:
    """The result of a graph for codes of its inputs, computed twice, at different places of vectors; None where the two differ, or nothing
    runs it.

    Args:
        side: whose format and runtime are taken.
        alone: a graph whose tensors have room for further codes along their first axis.
        codes: of each input.
        count: how many results of so many codes the graph puts one after the other.
    """
    size = len(codes[0])
    try:
        with temporary_folder() as folder:
            path = Path(folder) / f"one{side.path.suffix}"
            kept = {key: value for key, value in side.graph.metadata.items() if key in _KEPT_METADATA}
            save(alone.evolve(metadata=kept), path, side.format.name)
            model = side.runtime.open(replace(side.file, path=path, options={}))
            runs = [
                next(iter(model.run(dict(zip(model.inputs, [_place_codes(item, first) for item in codes], strict=True))).values()))
                for first in (0, _MOVED)
            ]
    except (QConvertError, ValueError):
        return None
    found = [run.reshape(count, size + _MOVED, -1)[:, first : first + size] for run, first in zip(runs, (0, _MOVED), strict=True)]
    if found[0].dtype.name != alone[alone.outputs[0]].dtype or not np.array_equal(found[0], found[1]):
        return None
    return found[0]


def _codes_to_try(graph: Graph, op: Op) -> tuple[list[Array | None], int | None, tuple[int, ...]] | None:
    """The stored operands of which the results are all that an operator can give, None for those that stay as they are; its axis there, and
    the shape of the results. None where these are too many.

    Those are all_codes(); where each element of the result is made of one operand (Concat), the codes of each; and of an operator along an
    axis of two elements (Softmax of two classes) all pairs.
    """
    if _is_concat(graph, op):
        return [codes_of(graph[name].dtype) for name in op.inputs], 0, (-1,)
    if (pairs := codes_along_axis(graph, op)) is not None:
        return [pairs], 1, (-1, 2)
    codes = all_codes(graph, op, ("int8", "uint8", "bool"))
    if codes is None:
        return None
    tensors = [graph[name] if name else None for name in op.inputs]
    stays = [tensor is None or (tensor.data is not None and tensor.data.size == 1) for tensor in tensors]
    if any(tensor is not None and not tensor.is_quantized and not stay for tensor, stay in zip(tensors, stays, strict=True)):
        return None
    shape = np.broadcast_shapes(*(item.shape for item in codes if item is not None))
    spread = (None if item is None or stay else np.broadcast_to(item, shape).reshape(-1) for item, stay in zip(codes, stays, strict=True))
    return list(spread), None, shape


def _reads_table(graph: Graph, op: Op) -> bool:
    """Whether each element of an operator's result is the element of a constant list that its one computed input names, as of a Gather."""
    kind = kind_of(op)
    data = graph[op.inputs[0]].data if kind.rule == "move" and len(op.inputs) == 2 and kind.role(1) == "index" else None
    return data is not None and data.ndim == 1 and graph[op.inputs[1]].data is None


def _is_concat(graph: Graph, op: Op) -> bool:
    """Whether an operator puts bytes of several operands, each with one scale, one after the other, without doing more."""
    is_plain = kind_of(op).chooses and "axis" in op.attributes and not op.attributes.get("activation", "")
    return is_plain and all(has_byte_codes(graph[name]) for name in op.names)


def _place_codes(codes: Array, first: int) -> Array:
    """The codes from a place on, and some of them again where there is room."""
    return np.concatenate([codes[:first], codes, codes[: _MOVED - first]])
