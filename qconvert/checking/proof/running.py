"""What a kernel gives for all codes of its operands, found by running it where no reference says it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.checking.checked_file import Side
from qconvert.conversion.saving import save
from qconvert.errors import QConvertError
from qconvert.evaluate.curves import codes_of
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.kernels.proofs import all_codes
from qconvert.operators import kind_of

__all__ = ["integers_by_running"]

#: How far the codes are moved in a second run, so that vectors and what is left over compute the same ones.
_MOVED = 7


def integers_by_running(side: Side, graph: Graph, op: Op) -> Array | None:
    """The stored results for all codes of an operator's operands; None where it is not run alone.

    Each is computed twice, at different places of vectors, and None is given where the two are not equal. Codes are all_codes(), or,
    where each element of the result is made of one operand (Concat), the codes of each after those of the other.

    Args:
        side: whose format and runtime are taken.
        graph, op: the operator.
    """
    joins = _joins(graph, op)
    codes = [codes_of(graph[name].dtype) for name in op.inputs] if joins else all_codes(graph, op)
    if codes is None:
        return None
    given = [np.ascontiguousarray(item) for item in (codes if joins else np.broadcast_arrays(*codes))]
    size, count = given[0].size, len(given) if joins else 1
    names = [f"x{place}" for place in range(len(given))]
    sides = [(name, graph[other], size + _MOVED) for name, other in zip(names, op.inputs, strict=True)]
    sides.append(("y", graph[op.outputs[0]], count * (size + _MOVED)))
    tensors = {name: Tensor(name, tensor.dtype, (length,), None, tensor.quantization) for name, tensor, length in sides}
    attributes = {**op.attributes, "axis": 0} if joins else op.attributes
    alone = Graph(op.kind, tensors, (Op(op.kind, tuple(names), ("y",), attributes),), tuple(names), ("y",))
    try:
        with temporary_folder() as folder:
            path = Path(folder) / f"one{side.format.suffixes[0]}"
            save(alone, path, side.format.name)
            model = side.runtime.open(replace(side.file, path=path, options={}))
            runs = [
                next(iter(model.run(dict(zip(model.inputs, [_placed(item, first) for item in given], strict=True))).values()))
                for first in (0, _MOVED)
            ]
    except (QConvertError, ValueError):
        return None
    found = [run.reshape(count, -1)[:, first : first + size] for run, first in zip(runs, (0, _MOVED), strict=True)]
    if found[0].dtype.name != graph[op.outputs[0]].dtype or not np.array_equal(found[0], found[1]):
        return None
    return found[0].reshape(-1 if joins else given[0].shape)


def _joins(graph: Graph, op: Op) -> bool:
    """Whether an operator puts bytes of several operands, each with one scale, one after the other, without doing more."""
    if not kind_of(op).chooses or "axis" not in op.attributes or op.attributes.get("activation", ""):
        return False
    tensors = [graph[name] for name in (*op.inputs, *op.outputs)]
    return all(t.dtype in ("int8", "uint8") and t.quantization is not None and t.quantization.is_per_tensor for t in tensors)


def _placed(codes: Array, first: int) -> Array:
    """The codes from a place on, and some of them again where there is room."""
    flat = codes.reshape(-1)
    return np.concatenate([flat[:first], flat, flat[: _MOVED - first]])
