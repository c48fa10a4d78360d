"""google_scales: the scales that the "google" formulas give for the range of each quantization. Not exact.

OneFlow, TensorFlow's training and others compute them from observed ranges (arithmetic/preparation.py): symmetric
scale = largest magnitude / (2**(bits - 1) - 1) with zero point 0; affine scale = (largest - smallest) / (2**bits - 1) with zero point
-round(smallest / scale), of a range that holds zero. By default signed types get the symmetric formula and unsigned ones the affine one;
`scheme` gives all types one of them. A symmetric quantization stands for the range up to its largest integer, without the lowest one, so
a quantization that a formula gave stays as it is. Weights get the symmetric formula, those with the zero point 0 keep their integers.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import affine_range, choose_quantization
from qconvert.arithmetic.storage import bit_width
from qconvert.graph import Graph, Quantization, Tensor, integer_range
from qconvert.passes.linear import WeightUse
from qconvert.passes.quantizations.scales_and_costs import middle
from qconvert.passes.quantizations.weights_and_networks import (
    Channel,
    Rescaled,
    requantize_network,
    rescale_symmetric,
    symmetric_limits,
)
from qconvert.passes.stored_types import SIGNED
from qconvert.plugins import PassResult, Target

#: What scales may differ by, as a share, and still be the formula's: a few roundings to float32.
_SAME = 1e-6


def run(graph: Graph, target: Target | None, scheme: str = "types", granularity: str = "axis", edges: str = "keep") -> PassResult:
    """Change weights, then activations of 4, 8 and 16 bits, and biases with them."""
    return requantize_network(
        graph,
        lambda use, tensor: _weights(use, tensor, granularity),
        lambda dtype, q: _activation(dtype, q, scheme),
        suffix="google",
        words=("have the scales of the google formula", "have the scales of the google formulas"),
        edges=edges,
    )


def _activation(dtype: str, q: Quantization, scheme: str) -> tuple[str, Quantization] | None:
    """Return the formula's quantization for the range of another; None where that is the formula's, or has several scales."""
    if not q.is_per_tensor:
        return None
    (lowest,), (highest,) = affine_range(q, dtype)
    point, bits = q.point, bit_width(dtype)
    if scheme == "symmetric" or (scheme == "types" and integer_range(dtype)[0] < 0):
        if point == middle(dtype):
            return None
        found = choose_quantization("google_symmetric", lowest, highest, bits, dtype=SIGNED.get(dtype, dtype))[1]
        found = found.shift_zero_point(middle(dtype))
    else:
        found = choose_quantization("google_affine", lowest, highest, bits, dtype=dtype)[1]
    if abs(found.step / q.step - 1) < _SAME and found.point == point:
        return None
    return dtype, found


def _weights(use: WeightUse, weights: Tensor, granularity: str) -> Rescaled | None:
    """Return weights of the symmetric formula; scales with the zero point 0 stay unless several shall become one."""
    limits = symmetric_limits(weights.dtype)
    joins = granularity == "tensor" and weights.require_quantization().axis is not None

    def scaling(channel: Channel) -> float | None:
        largest = float(np.abs(channel.steps).max())
        return None if (channel.zero_point == 0 and not joins) or not largest else largest / limits[1]

    return rescale_symmetric(use, weights, limits, scaling, granularity)
