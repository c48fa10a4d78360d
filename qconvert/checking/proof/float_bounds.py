"""How far apart two runtimes may be that compute float32, whatever the order of their sums: from the number of terms alone.

A bound is about finite results of the same data. Numbers below 2^-126 may count as zero: XNNPACK has the CPU take them so.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import FEWEST_DYNAMIC_STEPS
from qconvert.checking.expected_values import count_terms, share_of_terms
from qconvert.checking.proof.correspondence import Pair
from qconvert.checking.proof.elements import Followed
from qconvert.graph import Op
from qconvert.operators import is_dynamic, kind_of
from qconvert.rewriting.parts import trace_back

#: Terms of which a bound says nothing more.
_MOST_TERMS = 2**20


def describe_bound(source: Followed, result: Followed, pair: Pair) -> str:
    """In words, how far apart the float results of an operator are at most, from the same data; "" where that is not known.

    Each side is within a share of the sum of the magnitudes of its terms of the exact value (expected_values.share_of_terms()). Data next
    to integer weights may be rounded at run time, by half a step of at least FEWEST_DYNAMIC_STEPS that cover their range: by operators of
    dynamic range, and where onnxruntime makes a MatMulNBits of a MatMul.

    Args:
        source, result: both sides, as far as they are followed.
        pair: the operators.
    """
    sides, kind = ((source, pair.source), (result, pair.result)), kind_of(pair.result)
    types = {side.graph[name].dtype for side, op in sides for name in (*kind.data(op), *op.outputs) if name}
    if any(op.attributes.get("arithmetic") and not is_dynamic(op) for _, op in sides):
        return ""
    is_inexact = kind.ranks or kind.sum_sign or kind.product_sign or kind.power
    if types <= {"float32", "bool"} and (kind.compares or kind.rounds_once) and not is_inexact:
        return "its results are equal, but that numbers below 2^-126 may count as zero"
    counts = [_count_terms(side, op) for side, op in sides]
    if any(side.graph[op.outputs[0]].dtype != "float32" for side, op in sides) or None in counts:
        return ""
    count, lost = max(filter(None, counts), default=1.0), 0.0
    biases = [side.graph[op.inputs[2]] for side, op in sides if kind.sums_products and op.has(2)]
    if len(biases) == 2 and all(bias.is_constant for bias in biases):
        lost = float(np.abs(np.subtract(*(bias.float_values() for bias in biases))).max(initial=0))
    share = 2 * share_of_terms(max((op for _, op in sides), key=is_dynamic), count, "float32")
    terms = f"{count:.0f} terms" if count > 1 else "terms"
    words = f"its results differ by at most {share:.2g} of the sum of the magnitudes of its {terms}"
    words += f", its bias by {lost:.2g}" if lost else ""
    if any(_may_round_data(side, op) for side, op in sides):
        words += f", its data, which may be rounded at run time, by 1/{FEWEST_DYNAMIC_STEPS} of their range"
    return words if count <= _MOST_TERMS else ""


def _may_round_data(side: Followed, op: Op) -> bool:
    """Whether a product has integer weights next to data that are none, or to weights of other types than those of integer kernels."""
    if not kind_of(op).sums_products:
        return False
    data, weights = (side.graph[name] for name in op.inputs[:2])
    return is_dynamic(op) or (weights.is_quantized and not (data.is_quantized and weights.dtype in ("int8", "uint8")))


def _count_terms(side: Followed, op: Op) -> float | None:
    """How many terms an operator sums in an element, with those of sums that a runtime may continue with it; None of other operators."""
    kind, graph = kind_of(op), side.graph
    if kind.product_sign or kind.power:
        return 1
    if not (kind.sum_sign or kind.averages or kind.sums_products):
        return None
    sizes = [graph[name].static_shape if name else None for name in op.inputs[:2]]
    count = count_terms(op, sizes, graph[op.outputs[0]].static_shape)
    for name in op.inputs if kind.sum_sign and count is not None else ():
        writer = side.writers.get(trace_back(side.writers, name, lambda before: kind_of(before).rule in ("move", "relabel")))
        if writer is not None and kind_of(writer).sums_products:
            further = _count_terms(side, writer)
            count = None if count is None or further is None else count + further
    return count
