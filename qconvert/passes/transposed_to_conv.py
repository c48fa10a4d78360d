"""transposed_to_conv: a transposed convolution with strides of 1 becomes a convolution. Exact.

    ConvTranspose (weights w, pads p)        Conv (w with its taps in reverse order, pads dilation * (taps - 1) - p)

The sums have the same terms. IREE (3.13) refuses such a ConvTranspose after another one, or after a convolution ("slice along dimension 3
runs out-of-bounds"), and runtimes without an integer kernel for ConvTranspose have one for Conv.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Graph, Op, drop_keys
from qconvert.operators.sizes import explicit_pads
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Replace each ConvTranspose with strides of 1 and constant weights."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("ConvTranspose"):
        _replace(rewriter, op)
    return rewriter.finish_with(lambda count: f"{format_count(count, 'ConvTranspose operator')} with strides of 1 become Conv", prune=True)


def _replace(rewriter: Rewriter, op: Op) -> None:
    weights = rewriter.graph[op.inputs[1]]
    if weights.data is None or any(step != 1 for step in op["strides"]) or any(op["output_padding"]):
        return
    taps = weights.data.shape[2:]
    spans = [(count - 1) * step for count, step in zip(taps, op["dilations"], strict=True)]
    sides = zip(*explicit_pads(op, len(taps)), strict=True)
    pads = [span - pad for side in sides for span, pad in zip(spans, side, strict=True)]
    if min(pads) < 0:
        return
    name = rewriter.add(f"{weights.name}/reversed", weights, data=np.flip(weights.data, tuple(range(2, weights.data.ndim))))
    conv = replace(op.with_attributes(pads=tuple(pads)), kind="Conv")
    rewriter.replace(op, replace(conv, attributes=drop_keys(conv.attributes, "output_padding")).with_input(1, name))
