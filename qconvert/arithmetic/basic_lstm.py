"""TFLite's LSTM of uint8 data with an int16 cell, the kernel "basic", bit for bit (kernels/internal/reference/lstm_cell.h).

One step. Data and hidden values stand side by side, in steps of 1/128 around 128. Their sums with the weights are brought to steps of
2**-12 by a multiplier whose two roundings both take ties up, as ruy's do, and limited to int16. Sigmoid and tanh are gemmlowp's, and so are
the products between them, which round ties up too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.gemmlowp import gemmlowp_logistic, gemmlowp_tanh
from qconvert.arithmetic.requantize import (
    quantize_multiplier,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul,
    shift_half_up,
)

__all__ = ["BASIC_GATES", "BasicLstm"]

#: The gates in the order of the weights' rows.
BASIC_GATES = ("input", "cell", "forget", "output")
_INT16 = (-(2**15), 2**15 - 1)
#: What stored data and hidden values are around, and the power of two of the cell's steps.
_MIDDLE, _CELL_POWER = 128, -11


@dataclass(frozen=True, eq=False)
class BasicLstm:
    """A layer.

    Attributes:
        weights: uint8, of shape (4 * cells, inputs + cells), gates in the order of BASIC_GATES.
        zero_point: of the weights.
        bias: int32, of shape (4 * cells,).
        bias_scale: the steps of the bias and of all sums.
    """

    weights: Array
    zero_point: int
    bias: Array
    bias_scale: float

    def step(self, data: Any, hidden: Any, cell: Any) -> tuple[Array, Array]:
        """One step.

        Args:
            data: uint8, of shape (rows, inputs).
            hidden: uint8 state, of shape (rows, cells).
            cell: int16 state, of shape (rows, cells).

        Returns:
            The next hidden values, which are the outputs too, and the next cell.
        """
        values = np.concatenate([np.asarray(data, np.int64), np.asarray(hidden, np.int64)], axis=1) - _MIDDLE
        sums = values @ (self.weights.astype(np.int64) - self.zero_point).T + self.bias
        multiplier, shift = quantize_multiplier(self.factor)
        first = saturating_rounding_doubling_high_mul(sums << np.maximum(shift, 0), multiplier)
        steps = np.clip(shift_half_up(first, np.maximum(-shift, 0)), *_INT16).astype(np.int16)
        enters, update, stays, opens = np.split(steps, len(BASIC_GATES), axis=1)
        added = rounding_divide_by_pot(_product(gemmlowp_logistic(enters), gemmlowp_tanh(update)), 15 + _CELL_POWER)
        kept = _product(gemmlowp_logistic(stays), np.asarray(cell))
        new = np.clip(added + kept, *_INT16)
        seen = gemmlowp_tanh(np.clip(new << (12 + _CELL_POWER), *_INT16).astype(np.int16))
        shown = rounding_divide_by_pot(_product(gemmlowp_logistic(opens), seen), 8)
        return (_MIDDLE + np.clip(shown, -128, 127)).astype(np.uint8), new.astype(np.int16)

    @property
    def factor(self) -> float:
        """Of a sum, in steps of 2**-12."""
        return float(np.float32(4096) * np.float32(self.bias_scale))


def _product(a: Array, b: Array) -> Array:
    """Two numbers in steps of 2**-15, one of which may have steps of its own: in those steps."""
    return np.asarray(np.clip(shift_half_up(a.astype(np.int64) * b.astype(np.int64), 15), *_INT16))
