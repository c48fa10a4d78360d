"""Results of a kernel for all codes of its operands, found by running it where it has no reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.checking.checked_file import Side
from qconvert.checking.proof.constants import has_byte_codes
from qconvert.conversion.saving import save
from qconvert.errors import QConvertError
from qconvert.evaluate.curves import codes_of
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.kernels.proofs import all_codes
from qconvert.operators import kind_of
from qconvert.operators.layout import ALONG_AXIS

__all__ = ["run_all_codes"]

#: How far the codes are moved in a second run, so that vectors and what is left over compute the same ones.
_MOVED = 7


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
    count = len(given) if _is_concat(graph, op) else 1
    names, size = [f"x{place}" for place in range(len(given))], len(given[0])
    sides = [(name, graph[other], size + _MOVED) for name, other in zip(names, op.inputs, strict=True)]
    sides.append(("y", graph[op.outputs[0]], count * (size + _MOVED)))
    tensors = {name: Tensor(name, like.dtype, (length, *given[0].shape[1:]), None, like.quantization) for name, like, length in sides}
    attributes = {**op.attributes, "axis": axis} if axis is not None else op.attributes
    alone = Graph(op.kind, tensors, (Op(op.kind, tuple(names), ("y",), attributes),), tuple(names), ("y",))
    try:
        with temporary_folder() as folder:
            path = Path(folder) / f"one{side.format.suffixes[0]}"
            save(alone, path, side.format.name)
            model = side.runtime.open(replace(side.file, path=path, options={}))
            runs = [
                next(iter(model.run(dict(zip(model.inputs, [_place_codes(item, first) for item in given], strict=True))).values()))
                for first in (0, _MOVED)
            ]
    except (QConvertError, ValueError):
        return None
    found = [run.reshape(count, size + _MOVED, -1)[:, first : first + size] for run, first in zip(runs, (0, _MOVED), strict=True)]
    if found[0].dtype.name != graph[op.outputs[0]].dtype or not np.array_equal(found[0], found[1]):
        return None
    return found[0].reshape(shape)


def _codes_to_try(graph: Graph, op: Op) -> tuple[list[Array], int | None, tuple[int, ...]] | None:
    """The stored operands of which the results are all that an operator can give, its axis there, and the shape of the results; None where
    these are too many.

    Those are all_codes(); where each element of the result is made of one operand (Concat), the codes of each; and of an operator along an
    axis of two elements (Softmax of two classes) all pairs.
    """
    if _is_concat(graph, op):
        return [codes_of(graph[name].dtype) for name in op.inputs], 0, (-1,)
    if _is_pairwise(graph, op):
        each = codes_of(graph[op.inputs[0]].dtype)
        return [np.stack(np.meshgrid(each, each, indexing="ij"), axis=-1).reshape(-1, 2)], 1, (-1, 2)
    codes = all_codes(graph, op)
    if codes is None:
        return None
    spread = np.broadcast_arrays(*codes)
    return [np.ascontiguousarray(item).reshape(-1) for item in spread], None, spread[0].shape


def _is_concat(graph: Graph, op: Op) -> bool:
    """Whether an operator puts bytes of several operands, each with one scale, one after the other, without doing more."""
    return kind_of(op).chooses and "axis" in op.attributes and not op.attributes.get("activation", "") and _is_of_bytes(graph, op)


def _is_pairwise(graph: Graph, op: Op) -> bool:
    """Whether an operator of one tensor of bytes computes along an axis of two elements."""
    if len(op.inputs) != 1 or len(op.outputs) != 1 or "axis" not in op.attributes or kind_of(op).layout is not ALONG_AXIS:
        return False
    before, after = graph[op.inputs[0]].shape, graph[op.outputs[0]].shape
    return before is not None and before == after and before[int(op["axis"])] == 2 and _is_of_bytes(graph, op)


def _is_of_bytes(graph: Graph, op: Op) -> bool:
    return all(has_byte_codes(graph[name]) for name in (*op.inputs, *op.outputs))


def _place_codes(codes: Array, first: int) -> Array:
    """The codes from a place on, and some of them again where there is room."""
    return np.concatenate([codes[:first], codes, codes[: _MOVED - first]])
