"""What sums of products share."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import is_accumulator_scale
from qconvert.arithmetic.dtypes import Array
from qconvert.graph.kinds.call import Call

__all__ = ["with_bias", "zero_point"]


def with_bias(call: Call, total: Array, scale: Array | float) -> Array:
    """(total + bias) * scale; the bias joins the sum as an integer where it is on the same grid, as in every integer kernel."""
    if call.has(2):
        steps, bias_scale = call.factor(2, 0)
        if call.quantization(2) is not None and is_accumulator_scale(bias_scale, scale):
            return np.asarray((total + steps) * scale)
        return np.asarray(total * scale + steps * bias_scale)
    return np.asarray(total * scale)


def zero_point(call: Call, index: int) -> Array:
    """The zero point that input `index` of an integer product holds; 0 if it is absent."""
    return call.raw(index).astype(np.int64) if call.has(index) else np.zeros((), np.int64)
