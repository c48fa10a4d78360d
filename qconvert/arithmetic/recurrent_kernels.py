"""TFLite's recurrent kernels of integers, bit for bit: UNIDIRECTIONAL_SEQUENCE_LSTM of int8 data with an int16 cell, the LSTM "basic" of
uint8 data (kernels/internal/reference/lstm_cell.h), and SVDF of int8 data (kernels/internal/reference/svdf.h, EvalIntegerSVDF).

LSTM: data and hidden values are int8, the cell int16 in steps of a power of two. A gate is a sum in steps of 2**-12 (with a layer
normalization, of its own scale) that is rounded once for the data's part and once for the hidden values', and limited to int16 after each.
Sigmoid and tanh are gemmlowp's. Sources: TFLite, kernels/lstm_eval.cc, kernels/unidirectional_sequence_lstm.cc and
kernels/internal/reference/portable_tensor_utils.cc. Two readings of the kernel that no text states are kept: the quantization of the hidden
values is that of the fifth intermediate tensor, and with a projection its zero point is subtracted, not added.

Basic LSTM, one step: data and hidden values stand side by side, in steps of 1/128 around 128. Their sums with the weights are brought to
steps of 2**-12 by a multiplier whose two roundings both take ties up, as ruy's do, and limited to int16. The products between sigmoid and
tanh round ties up too.

SVDF: a layer of filters, each with weights over the data (rank 1 of a matrix) and weights over the last values of that product. Each run
shifts the memory by one place. The kernel demands a Relu as activation and does not apply it: it limits to int8 alone. With a memory and
weights over it of int8 it is tflite-micro's (kernels/svdf_common.cc), which LiteRT takes for int16, and computes wrongly. Such a memory may
have a zero point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.fixed_point_functions import gemmlowp_logistic, gemmlowp_tanh, inverse_root
from qconvert.arithmetic.requantize import (
    REQUANTIZERS,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rescale_twice,
    rounding_divide_by_pot,
    shift_half_up,
)
from qconvert.arithmetic.storage import Array

#: The gates in the order of TFLite's inputs.
GATES = ("input", "forget", "cell", "output")
#: Steps of a gate without a layer normalization: 3 integer bits.
GATE_SCALE = 2.0**-12
_INT16 = (-(2**15), 2**15 - 1)
_INT8 = (-128, 127)


class IntegerGate(NamedTuple):
    """One gate.

    Attributes:
        weights: int8, of shape (cells, inputs), and their scale.
        recurrent: int8, of shape (cells, outputs), and their scale.
        bias: int32, of shape (cells,), in steps of data scale * weight scale; of a layer normalization in steps of its scale / 1024. None
            for zeros.
        peephole: int16, of shape (cells,), and its scale; None without.
        norm: int16 factors of a layer normalization, of shape (cells,), and their scale; None without.
        scale: steps of the sum.
    """

    weights: tuple[Array, float]
    recurrent: tuple[Array, float]
    bias: Array | None = None
    peephole: tuple[Array, float] | None = None
    norm: tuple[Array, float] | None = None
    scale: float = GATE_SCALE


class IntegerProjection(NamedTuple):
    """What hidden values are multiplied by.

    Attributes:
        weights: int8, of shape (outputs, cells), and their scale.
        bias: int32, of shape (outputs,), or None.
        clip: the largest real magnitude of stored outputs, their zero point not regarded; 0 for none.
        clip_scale: the steps in which that is counted: those of the output's tensor, whatever the state's are.
    """

    weights: tuple[Array, float]
    bias: Array | None = None
    clip: float = 0.0
    clip_scale: float = 1.0


@dataclass(frozen=True, eq=False)
class IntegerLstm:
    """A whole layer. Quantizations are (scale, zero point).

    Attributes:
        gates: by the names in GATES; without "input" the input gate is 1 less the forget gate.
        data: the quantization of the data.
        state: of the hidden values that are kept from one step to the next.
        hidden: of the hidden values before a projection; without one these bytes are output and state, whatever their own quantizations
            say.
        cell_power: the cell's steps are 2**cell_power.
        cell_clip: largest magnitude of the cell's float values; 0 for none.
        projection: None without.
        time_major: whether the file has time before rows, which the kernel then takes together.
    """

    gates: dict[str, IntegerGate]
    data: tuple[float, int]
    state: tuple[float, int]
    hidden: tuple[float, int]
    cell_power: int
    cell_clip: float = 0.0
    projection: IntegerProjection | None = None
    time_major: bool = False

    def run(self, data: Any, hidden: Any, cell: Any) -> tuple[Array, Array, Array]:
        """The layer over a sequence.

        Args:
            data: int8, of shape (steps, rows, inputs).
            hidden: int8 state, of shape (rows, outputs).
            cell: int16 state, of shape (rows, cells).

        Returns:
            Outputs, int8, of shape (steps, rows, outputs), and both states afterwards.
        """
        h, c = np.asarray(hidden, np.int64), np.asarray(cell, np.int64)
        outputs = []
        for x in np.asarray(data, np.int64):
            h, c = self.step(x, h, c)
            outputs.append(h)
        shape = (0, *h.shape)
        found = np.stack(outputs) if outputs else np.zeros(shape, np.int64)
        return found.astype(np.int8), h.astype(np.int8), c.astype(np.int16)

    def step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """One step of int64 arrays of shape (rows, inputs), (rows, outputs) and (rows, cells): the next h and c."""
        forget = _sigmoid(self.sum_gate("forget", x, h, c))
        update = _tanh(self.sum_gate("cell", x, h, c), 3)
        new = _INT16[1] - forget if "input" not in self.gates else _sigmoid(self.sum_gate("input", x, h, c))
        kept = rounding_divide_by_pot(forget * c, 15)
        c = np.clip(kept + rounding_divide_by_pot(new * update, 30 + self.cell_power), *_INT16)
        if self.stored_cell_clip:
            c = np.clip(c, -self.stored_cell_clip, self.stored_cell_clip)
        shown = _sigmoid(self.sum_gate("output", x, h, c)) * _tanh(c, 15 + self.cell_power)
        return self._hidden(shown), c

    def sum_gate(self, name: str, x: Array, h: Array, c: Array) -> Array:
        """A gate before its sigmoid or tanh, int64 in the range of int16. The output gate sees the new cell through its peephole."""
        gate, scale = self.gates[name], np.float32(self.gates[name].scale)
        bias = None if gate.norm is not None else gate.bias
        total = _part(x, gate.weights, self.data, bias, scale)
        total = np.clip(_part(h, gate.recurrent, self.state, None, scale) + np.clip(total, *_INT16), *_INT16)
        if gate.peephole is not None:
            total = self._through_peephole(gate.peephole, c, total, gate.scale)
        return total if gate.norm is None else _normalize_layer(total, gate.norm, gate.bias)

    def _through_peephole(self, peephole: tuple[Array, float], c: Array, total: Array, scale: float) -> Array:
        """The kernel assumes that rows have as many cells as outputs. With a projection it covers only that part of each call's
        rows: all rows in one call where time comes first, else one row a call."""
        weights, weights_scale = peephole
        factor = quantize_multiplier(np.float32(2.0**self.cell_power * weights_scale / scale))
        width = total.shape[-1] if self.projection is None else len(self.projection.weights[0])
        found, cells = (item.reshape((1, -1) if self.time_major else total.shape) for item in (total.copy(), c))
        for first in range(0, width * (len(total) if self.time_major else 1), width):
            place = np.s_[:, first : first + width]
            added = multiply_by_quantized_multiplier(weights[:width].astype(np.int64) * cells[place], *factor)
            found[place] = np.clip(found[place] + added, *_INT16)
        return found.reshape(total.shape)

    def _hidden(self, shown: Array) -> Array:
        scale, zero_point = self.hidden
        steps = rescale_twice(shown, np.float32(2.0**-15 / scale * 2.0**-15))
        if self.projection is None:
            return np.asarray(np.clip(steps + zero_point, *_INT8))
        stored = np.clip(steps - zero_point, *_INT8)
        weights, weights_scale = self.projection.weights
        acc = stored @ weights.T.astype(np.int64) + zero_point * weights.astype(np.int64).sum(axis=1)
        acc = acc if self.projection.bias is None else acc + self.projection.bias
        factor = np.float32(np.float32(weights_scale) * np.float32(scale)) / np.float32(self.state[0])
        found = np.clip(rescale_twice(acc, factor) + self.state[1], *_INT8)
        limit = self.stored_projection_clip
        return np.asarray(np.clip(found, -limit, limit) if limit > 0 else found)

    @property
    def stored_projection_clip(self) -> int:
        """The largest stored magnitude after a projection; 0 for any."""
        return 0 if self.projection is None else _quantize_limit(self.projection.clip, self.projection.clip_scale, _INT8)

    @cached_property
    def stored_cell_clip(self) -> int:
        """The cell's largest stored magnitude; 0 for any."""
        return _quantize_limit(self.cell_clip, 2.0**self.cell_power, _INT16)


def _quantize_limit(limit: float, scale: float, ends: tuple[int, int]) -> int:
    """A real limit in whole steps, towards zero."""
    return int(np.clip(float(np.float32(limit) / np.float32(scale)), *ends))


def _part(values: Array, weights: tuple[Array, float], quantization: tuple[float, int], bias: Array | None, scale: np.float32) -> Array:
    """The part of a gate that one product gives, in the gate's steps, not limited."""
    integers, weights_scale = weights
    acc = (values - quantization[1]) @ integers.T.astype(np.int64)
    factor = np.float32(np.float32(weights_scale) * np.float32(quantization[0])) / scale
    return rescale_twice(acc if bias is None else acc + bias, factor)


def _normalize_layer(total: Array, norm: tuple[Array, float], bias: Array | None) -> Array:
    """A layer normalization of int16, in 10 bits after the point."""
    weights, scale = norm
    size = total.shape[-1]
    mean = _divide_truncating(total.sum(axis=-1) * 1024, size)
    variance = _divide_truncating((total**2).sum(axis=-1) * (2**20 // size) - mean**2, 2**20)
    variance = np.where(variance < 1, max(1, int(10000 * scale)), variance)
    multiplier, shift = inverse_root(variance)
    centred = multiply_by_quantized_multiplier(1024 * total - mean[..., None], multiplier[..., None], shift[..., None])
    scaled = centred * weights + (0 if bias is None else bias)
    rounded = _divide_truncating(scaled + np.where(scaled > 0, 512, -512), 1024)
    factor, power = quantize_multiplier(np.float32(scale))
    return np.asarray(np.clip(multiply_by_quantized_multiplier(rounded, factor, power + 12), *_INT16))


def _divide_truncating(values: Array, by: int) -> Array:
    """Integer division towards zero."""
    return np.asarray(np.sign(values) * (np.abs(values) // by))


def _sigmoid(values: Array) -> Array:
    return np.asarray(_table("logistic", 3)[values + 2**15])


def _tanh(values: Array, bits: int) -> Array:
    return np.asarray(_table("tanh", bits)[values + 2**15])


@lru_cache
def _table(function: str, bits: int) -> Array:
    """All 65,536 results, int64."""
    every = np.arange(-(2**15), 2**15).astype(np.int16)
    return (gemmlowp_logistic(every) if function == "logistic" else gemmlowp_tanh(every, bits)).astype(np.int64)


#: The gates in the order of the weights' rows.
BASIC_GATES = ("input", "cell", "forget", "output")
#: What stored data and hidden values are around, and the power of two of the cell's steps.
_MIDDLE, _CELL_POWER = 128, -11


class BasicLstm(NamedTuple):
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
        steps = np.clip(REQUANTIZERS["tflite_ruy"](sums, np.asarray(self.factor)), *_INT16).astype(np.int16)
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


class IntegerSvdf(NamedTuple):
    """A layer. Quantizations are (scale, zero point).

    Attributes:
        feature: weights over the data, int8, of shape (filters, inputs), and their scale.
        time: weights over the memory, int16 (int8 in tflite-micro), of shape (filters, places), and their scale.
        bias: int32, of shape (units,), in steps of memory scale * time scale; None for zeros.
        data, output: quantizations.
        memory_scale: the scale of the memory; its type is that of the weights over it.
        rank: how many filters make one unit.
        memory_zero_point: 0 for int16.
    """

    feature: tuple[Array, float]
    time: tuple[Array, float]
    bias: Array | None
    data: tuple[float, int]
    output: tuple[float, int]
    memory_scale: float
    rank: int = 1
    memory_zero_point: int = 0

    def run(self, data: Any, memory: Any) -> tuple[Array, Array]:
        """One step.

        Args:
            data: int8, of shape (rows, inputs).
            memory: int16, or int8 as `time`, of shape (rows, filters, places), the newest value last.

        Returns:
            Outputs, int8, of shape (rows, units), and the memory afterwards.
        """
        weights, places = self.feature[0].astype(np.int64), self.time[0].astype(np.int64)
        newest = rescale_twice((np.asarray(data, np.int64) - self.data[1]) @ weights.T, self.newest_factor) + self.memory_zero_point
        ends = np.iinfo(self.time[0].dtype)
        kept = np.concatenate([np.asarray(memory, np.int64)[..., 1:], np.clip(newest, ends.min, ends.max)[..., None]], axis=-1)
        sums = ((kept - self.memory_zero_point) * places).sum(axis=-1).reshape(len(kept), -1, self.rank).sum(axis=-1)
        total = (sums if self.bias is None else sums + self.bias).astype(np.int32)  # the kernel's sum wraps around too
        steps = rescale_twice(total, self.result_factor) + self.output[1]
        return np.clip(steps, -128, 127).astype(np.int8), kept.astype(ends.dtype)

    @property
    def newest_factor(self) -> float:
        """Of a product with the data, in steps of the memory."""
        return _factor(self.data[0], self.feature[1], self.memory_scale)

    @property
    def result_factor(self) -> float:
        """Of a sum over the memory, in steps of the result."""
        return _factor(self.memory_scale, self.time[1], self.output[0])


def _factor(first: float, second: float, result: float) -> float:
    """The scales are multiplied and divided in float32."""
    return float(np.float32(np.float32(first) * np.float32(second)) / np.float32(result))
