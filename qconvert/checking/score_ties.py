"""Choices that a kernel is free in: which of two boxes of equal score comes first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op

__all__ = ["is_score_tie"]


def is_score_tie(graph: Graph, op: Op, values: Mapping[str, Array], chosen: Array) -> bool:
    """Whether a SelectBoxes of `values`, by name, may give `chosen`, had it the boxes of equal score in another order.

    LiteRT takes boxes from a std::priority_queue that compares scores alone (non_max_suppression.h), so that the order of equal ones is
    the heap's; ONNX takes the first. The evaluation takes the first, too: with the chosen boxes put in front, it has to choose them.
    """
    inputs = [None if not name else graph.constant(name) if graph[name].is_constant else values.get(name) for name in op.inputs]
    boxes, scores = inputs[:2]
    if boxes is None or scores is None or len(op.outputs) < 2:
        return False
    first = dict.fromkeys(int(place) for place in chosen.reshape(-1) if 0 <= place < len(scores))
    order = np.array([*first, *(place for place in range(len(scores)) if place not in first)], np.int64)
    try:
        places, count, *_ = evaluate_op(graph, op, [boxes[order], scores[order], *inputs[2:]])
    except QConvertError:
        return False
    found, kept = np.zeros_like(places.stored), int(count.stored)
    found[:kept] = order[places.stored[:kept]]
    return np.array_equal(found, chosen)
