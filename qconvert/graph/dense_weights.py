"""Weights of convolutions with zeros where groups and dilations have none."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.graph.schema import Tensor

__all__ = ["spread_weights"]


def spread_weights(weights: Tensor, group: int, dilations: tuple[int, ...]) -> Array:
    """Weights O,I/group,spatial as O,I,spatial without groups or holes."""
    data = weights.data
    assert data is not None
    rows, depth = data.shape[:2]
    spans = [(taps - 1) * step + 1 if taps else 0 for taps, step in zip(data.shape[2:], dilations, strict=True)]
    zero: Array = np.zeros(1, data.dtype)
    if weights.quantization is not None:
        zero = np.asarray(weights.quantization.zero_point).astype(data.dtype)
    dense = np.empty((rows, depth * group, *spans), data.dtype)
    dense[...] = zero.reshape(-1, *[1] * (data.ndim - 1))
    taps = tuple(slice(None, None, step) for step in dilations)
    for number, part in enumerate(np.split(data, group)):
        of_group = slice(number * (rows // group), (number + 1) * (rows // group))
        dense[(of_group, slice(number * depth, (number + 1) * depth), *taps)] = part
    return dense
