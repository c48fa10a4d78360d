"""dense_weights: groups and holes of convolutions become zeros among their weights, where TFLite has neither.

Exact: a zero, or the zero point, adds nothing to a sum of finite values. TRANSPOSE_CONV knows no groups and no dilations, LiteRT's CONV_3D
no groups (conv3d.cc).
"""

from __future__ import annotations

from math import prod

from qconvert.graph import Graph, Op
from qconvert.operators import kind_of
from qconvert.operators.sizes import spread_weights
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

#: The most weights that an operator gets: beyond, the zeros would be the better part of a large file.
_MOST = 2**26
_VOLUME_RANK = 5


def run(graph: Graph, target: Target | None) -> PassResult:
    """Spread constant weights; those that are computed, and those that would grow too large, stay as they are."""
    rewriter = Rewriter(graph)
    made: dict[tuple[str, int, tuple[int, ...]], str] = {}
    for op in rewriter:
        holes = _holes(graph, op)
        if holes is None:
            continue
        key = (op.inputs[1], int(op["group"]), holes)
        if key not in made:
            weights = graph[op.inputs[1]]
            data = spread_weights(weights, int(op["group"]), holes)
            made[key] = rewriter.add(f"{weights.name}/dense", weights, shape=data.shape, data=data)
        dense = op.with_attributes(group=1, **({"dilations": (1,) * len(holes)} if kind_of(op).spreads else {}))
        rewriter.replace(op, dense.with_input(1, made[key]))
    return rewriter.finish_with("{} convolutions have zeros among their weights instead of groups and dilations".format, prune=True)


def _holes(graph: Graph, op: Op) -> tuple[int, ...] | None:
    """Return the dilations that the weights take over; None if the operator stays as it is."""
    kind = kind_of(op)
    if not kind.has_weights or kind.is_matrix_product:
        return None
    weights, group = graph[op.inputs[1]], int(op["group"])
    shape, q = weights.static_shape, weights.quantization
    if weights.data is None or shape is None or len(shape) < 3 or group < 1 or shape[0] % group:
        return None
    if q is not None and (q.block_size or q.axis not in (None, 0)):
        return None
    dilations = tuple(int(step) for step in op["dilations"])
    if not kind.spreads:
        if len(shape) != _VOLUME_RANK or group == 1:
            return None
        dilations = (1,) * len(dilations)
    elif group == 1 and all(step == 1 for step in dilations):
        return None
    spans = [(taps - 1) * step + 1 for taps, step in zip(shape[2:], dilations, strict=True)]
    return dilations if shape[0] * shape[1] * group * prod(spans) <= _MOST else None
