"""What a kernel gives for all codes of its operands, found by running it where no reference says it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.checking.checked_file import Side
from qconvert.conversion.saving import save
from qconvert.errors import QConvertError
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.kernels.proofs import all_codes

__all__ = ["integers_by_running"]

#: How far the codes are moved in a second run, so that vectors and what is left over compute the same ones.
_MOVED = 7


def integers_by_running(side: Side, graph: Graph, op: Op) -> Array | None:
    """The stored results for all_codes() of an operator, each computed twice at different places; None where it is not run alone, or where
    the two are not equal.

    Args:
        side: whose format and runtime are taken.
        graph, op: the operator.
    """
    codes = all_codes(graph, op)
    if codes is None:
        return None
    given = [np.ascontiguousarray(item) for item in np.broadcast_arrays(*codes)]
    names = [name for name in (*op.inputs, *op.outputs) if name]
    tensors = {name: Tensor(name, graph[name].dtype, (given[0].size + _MOVED,), None, graph[name].quantization) for name in names}
    alone = Graph(op.kind, tensors, (replace(op, source=""),), tuple(names[:-1]), (names[-1],))
    try:
        with temporary_folder() as folder:
            path = Path(folder) / f"one{side.format.suffixes[0]}"
            save(alone, path, side.format.name)
            model = side.runtime.open(replace(side.file, path=path, options={}))
            runs = [
                next(iter(model.run(dict(zip(model.inputs, [_placed(item, first) for item in given], strict=True))).values())).reshape(-1)
                for first in (0, _MOVED)
            ]
    except (QConvertError, ValueError):
        return None
    found = runs[0][: given[0].size], runs[1][_MOVED:]
    if found[0].dtype.name != graph[op.outputs[0]].dtype or not np.array_equal(*found):
        return None
    return found[0].reshape(given[0].shape)


def _placed(codes: Array, first: int) -> Array:
    """The codes from a place on, and some of them again where there is room."""
    flat = codes.reshape(-1)
    return np.concatenate([flat[:first], flat, flat[: _MOVED - first]])
