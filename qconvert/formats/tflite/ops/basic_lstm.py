"""LSTM of uint8 data with an int16 cell, the basic kernel, which float_recurrent.py reads by its options."""

from __future__ import annotations

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op, Quantization

__all__ = ["READERS", "WRITERS", "read_integer_basic_lstm"]

_HIDDEN, _WEIGHTS, _BIAS, _CELL = 1, 2, 3, 4
_TANH, _BASIC_KERNEL = 4, 1
#: The quantization of a gate's sum.
_SUMS = Quantization.per_tensor(2.0**-12, 0)


def read_integer_basic_lstm(r: Reading) -> None:
    """Its other outputs, the cell and what the kernel computes in between, are left to it."""
    types = tuple(r.tensor(index).dtype for index in range(len(r.inputs)))
    if types != ("uint8", "uint8", "uint8", "int32", "int16") or r.result().dtype != "uint8":
        what = f"the basic kernel and tensors of {', '.join(types)} for {r.result().dtype}"
        raise r.unsupported_error(f"{what}, neither all float32 nor uint8, uint8, uint8, int32 and int16 for uint8,", rule="operand-types")
    places = {"hidden": _HIDDEN, "cell": _CELL}
    states = [r.variable(place) for place in places.values()]
    before = [r.read_state(state, r.tensor(place)) for state, place in zip(states, places.values(), strict=True)]
    after = [r.like(f"{word}_after", r.tensor(place), r.tensor(place).shape) for word, place in places.items()]
    r.emit("BasicLSTM", [r.input(0), *before, r.input(_WEIGHTS), r.input(_BIAS)], [r.outputs[0], *after])
    for state, value in zip(states, after, strict=True):
        r.write_state(state, value)


def write_basic_lstm(op: Op, w: Writing) -> None:
    data, hidden, cell, weights, bias = op.inputs
    inputs = [data, w.variable(op, hidden), weights, bias, w.variable(op, cell)]
    rows, values = w.shape(data, op)
    cells = w.shape(cell, op)[1]
    between = [
        w.like(f"{op.outputs[0]}/cell", cell, (rows, cells)),
        w.like(f"{op.outputs[0]}/joined", data, (rows, values + cells)),
        w.add(f"{op.outputs[0]}/sums", "int16", (rows, 4 * cells), None, _SUMS),
    ]
    w.emit("LSTM", inputs, [op.outputs[0], *between], "LSTMOptions", fusedActivationFunction=_TANH, kernelType=_BASIC_KERNEL)


#: LSTM is read by float_recurrent.py, which calls read_integer_basic_lstm().
READERS: dict[str, ReadFunction] = {}

WRITERS: dict[str, WriteFunction] = {"BasicLSTM": write_basic_lstm}
