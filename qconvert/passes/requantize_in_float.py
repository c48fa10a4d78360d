"""requantize_in_float: a Requantize that the target's integer kernel would round otherwise becomes a Dequantize and a Quantize.

XNNPACK's QUANTIZE from 8 to 8 bits multiplies by 8 fractional bits, so that 4% of its integers are off by one, and deep networks that bring
the data of each Concat to one scale end in other results. By float32 the exact value is rounded once, in twice the time (20 and 10 µs for
200,000 elements; 0.7% of a ShuffleNet's). What a .tflite file has as QUANTIZE stays. With numerics "fast" nothing is done.
"""

from __future__ import annotations

import numpy as np

from qconvert.graph import Graph, Op
from qconvert.kernels.proofs import integers_for_all
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None, *, numerics: str = "exact") -> PassResult:
    """Replace each Requantize of 8 bits that the target rounds otherwise for one code at least."""
    if target is None or numerics == "fast" or graph.is_from("tflite"):
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter:
        if kind_of(op).requantizes and rounds_otherwise(graph, op, target):
            real = rewriter.dequantize(op.inputs[0], f"{op.name}/real", op.source)
            rewriter.replace(op, op.derive("Quantize", (real,), op.outputs))
    return rewriter.finish_with(lambda count: f"requantizations by float values, because {target.name}'s integer kernel is coarse: {count}")


def rounds_otherwise(graph: Graph, op: Op, target: Target) -> bool:
    """Whether the target's integer kernel gives another integer than the exact value, rounded once, for a code of 8 bits."""
    own, exact = (integers_for_all(graph, op, row) for row in (target.kernels.of(graph, op), None))
    return own is not None and exact is not None and not np.array_equal(own, exact)
