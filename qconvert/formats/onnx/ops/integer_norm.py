"""The layer normalization of TFLite's int8 LSTM, written in int64 and float64: equal to its kernel in every bit (arithmetic/lstm.py).

All gates that are normalized at one time are normalized together. 1 / sqrt of their variances is the kernel's Newton iteration on
fixed-point numbers of 31 bits (arithmetic/inverse_root.py). Products of two such numbers need 62 bits, so they are computed in int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic import IntegerGate, IntegerLstm
from qconvert.arithmetic.inverse_root import HALF_ROOT, ITERATIONS, LARGEST, ONE, THREE_HALVES
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.ops.rescaling import AWAY, Emitter, Rescale
from qconvert.graph import Array, Op

__all__ = ["normalize_gates"]

_FLOAT64, _INT64 = ELEMENT_TYPES["float64"], ELEMENT_TYPES["int64"]
#: Variances at which the inverse root is shifted by another power of four; index 15 is the variance 1 alone.
_THRESHOLDS = np.array([2 ** (29 - 2 * index) for index in range(15)], np.int64)
_ALONE = len(_THRESHOLDS)
#: Where the shift to the right becomes one to the left.
_SHIFT = 12
#: Rounds ties of a number of 42 bits with 10 after the point away from zero, and changes no other rounding.
_AWAY_42 = 1 + 2.0**-45
_INT16 = (-(2**15), 2**15 - 1)


def normalize_gates(
    b: Builder, to: Emitter, op: Op, layer: IntegerLstm, names: Mapping[str, str], gates: Mapping[str, str]
) -> dict[str, str]:
    """Gates, normalized over their cells.

    Args:
        b: where constants go.
        to: where the nodes go.
        op: the operator.
        layer: its arithmetic.
        names: its inputs by what they are.
        gates: the sum of each gate, float64 integers in the range of int16, of shape (rows, cells).

    Returns:
        Such integers, in steps of 2**-12.
    """
    return _Norm(b, to, op, layer, names, gates).write()


class _Norm:
    def __init__(self, b: Builder, to: Emitter, op: Op, layer: IntegerLstm, names: Mapping[str, str], gates: Mapping[str, str]) -> None:
        self._b, self._to, self._op, self._names, self._values = b, to, op, names, gates
        self._gates = {gate: layer.gates[gate] for gate in gates}
        self._cells = len(layer.gates["forget"].weights[0])
        self._hint = f"{op.outputs[0]}/norm"

    def write(self) -> dict[str, str]:
        to, shape = self._to, self._ints([-1, len(self._gates), self._cells])
        joined = to.node("Concat", list(self._values.values()), hint="norm/gates", axis=1)
        total = to.node("Reshape", [*self._cast(joined[0], _INT64), shape], hint="norm/total")[0]
        mean, variance = self._moments(total)
        multiplier, right = self._inverse_root(variance)
        centred = self._rescale_dynamic(self._do("Sub", self._do("Mul", total, 1024), mean), multiplier, right)
        scaled = self._do("Add", self._do("Mul", centred, self._weights()), self._biases())
        rounded = to.node("Round", [self._do("Mul", scaled, np.float64(2.0**-10 * _AWAY_42))], hint="norm/rounded")[0]
        steps = self._own_rescale().emit(self._b, to, rounded, f"{self._hint}/own")
        limits = [self._constant(np.float64(end)) for end in _INT16]
        limited = to.node("Clip", [steps, *limits], hint="norm/limited")[0]
        flat = to.node("Reshape", [limited, self._ints([-1, len(self._gates) * self._cells])], hint="norm/flat")[0]
        parts = to.node("Split", [flat, self._ints([self._cells] * len(self._gates))], len(self._gates), hint="norm/gate", axis=1)
        return dict(zip(self._gates, parts, strict=True))

    def _moments(self, total: str) -> tuple[str, str]:
        """Mean, with 10 bits after the point, and variance of each gate, int64 of shape (rows, gates, 1). Div truncates, as there."""
        mean = self._do("Div", self._do("Mul", self._sum(total), 1024), self._cells)
        squares = self._do("Mul", self._sum(self._do("Mul", total, total)), 2**20 // self._cells)
        variance = self._do("Div", self._do("Sub", squares, self._do("Mul", mean, mean)), 2**20)
        floors = self._constant(np.array([[max(1, int(10000 * _norm(gate)[1]))] for gate in self._gates.values()], np.int64))
        limited = self._to.node("Where", [self._do("Less", variance, 1), floors, variance], hint="norm/variance")
        return mean, limited[0]

    def _inverse_root(self, variance: str) -> tuple[str, str]:
        """Multipliers, int64, and factors of the shift to the right after them, float64."""
        to, index = self._to, np.arange(_ALONE + 1)
        place = self._sum(self._cast(self._do("Less", variance, _THRESHOLDS), _INT64)[0])
        large = to.node("Gather", [self._constant(4**index), place], hint="norm/power")[0]
        whole = self._do("Div", self._do("Div", self._do("Mul", variance, large), 4), 2)
        half = self._do("Div", self._do("Add", whole, 1), 2)
        # The iteration goes up from 1 to its end, 2 at most: cubes stay below 8, no number leaves its 31 bits, and none is negative.
        x = self._do("Sub", np.int64(_times(THREE_HALVES, ONE)), self._times(half, ONE))
        x = self._do("Mul", x, 8)
        for _ in range(ITERATIONS - 1):
            cube = self._do("Mul", self._times(self._times(x, x), x), 64)
            x = self._do("Mul", self._do("Sub", self._times(x, THREE_HALVES), self._times(half, cube)), 8)
        left = to.node("Gather", [self._constant(2 ** np.maximum(0, index - _SHIFT)), place], hint="norm/left")[0]
        found = self._do("Mul", self._times(x, HALF_ROOT), left)
        alone = self._do("Equal", variance, 1)
        multiplier = to.node("Where", [alone, self._constant(np.int64(LARGEST)), found], hint="norm/multiplier")[0]
        right = np.maximum(0, _SHIFT - index)
        factors = np.where(right > 0, 2.0**-right * AWAY, 1.0)
        return multiplier, to.node("Gather", [self._constant(factors), place], hint="norm/right")[0]

    def _rescale_dynamic(self, value: str, multiplier: str, right: str) -> str:
        """MultiplyByQuantizedMultiplier of int64 below 2**27 with what is dynamic."""
        above = self._do("Add", self._do("Mul", value, multiplier), 2**62 + 2**30)
        steps = self._cast(self._do("Sub", self._do("Div", above, 2**31), 2**31), _FLOAT64)
        return self._to.node("Round", [self._do("Mul", steps[0], right)], hint="norm/centred")[0]

    def _times(self, a: str, other: str | int) -> str:
        """The high half of a doubled product of positive numbers, rounded."""
        return self._do("Div", self._do("Add", self._do("Mul", a, other), 2**30), 2**31)

    def _weights(self) -> str:
        return self._stack_gates([self._b.stored_value(self._names[f"{gate}_norm"]) for gate in self._gates], "weights")

    def _biases(self) -> str:
        zeros = np.zeros(self._cells, np.int32)
        names = [self._names.get(f"{gate}_bias") for gate in self._gates]
        return self._stack_gates(
            [self._b.stored_value(name) if name else self._b.const(zeros, f"{self._hint}/bias") for name in names], "biases"
        )

    def _stack_gates(self, names: list[str], hint: str) -> str:
        """A row for each gate, float64."""
        to, hint = self._to, f"norm/{hint}"
        rows = to.node("Reshape", [*to.node("Concat", names, hint=hint, axis=0), self._ints([len(names), self._cells])], hint=hint)
        return to.node("Cast", rows, hint=hint, to=_FLOAT64)[0]

    def _own_rescale(self) -> Rescale:
        """From steps of the factors to those of a gate: their scale times 2**12."""
        factors, bounds = [], []
        for gate in self._gates.values():
            weights, scale = _norm(gate)
            bias = np.zeros(1) if gate.bias is None else np.abs(gate.bias.astype(np.float64))
            factors.append(float(np.float32(scale)) * 2.0**_SHIFT if scale >= 2.0**-32 else 0.0)
            bounds.append((_largest(self._cells) * float(np.abs(weights.astype(np.int64)).max()) + float(bias.max()) + 512) / 1024)
        columns = np.array(factors)[:, None]
        found = Rescale.of(columns, np.array(bounds)[:, None])
        if found is None:
            raise self._b.unsupported_error(self._op, "a layer normalization that may overflow in its kernel", rule="may-overflow")
        return found

    def _do(self, kind: str, *values: Any) -> str:
        """A node of names, or of constants: whole numbers are int64."""
        names = [value if isinstance(value, str) else self._constant(value) for value in values]
        return self._to.node(kind, names, hint=f"norm/{kind.lower()}")[0]

    def _sum(self, value: str) -> str:
        return self._to.node("ReduceSum", [value, self._ints([2])], hint="norm/sum", keepdims=1)[0]

    def _cast(self, value: str, dtype: int) -> list[str]:
        return self._to.node("Cast", [value], hint="norm/cast", to=dtype)

    def _ints(self, values: list[int]) -> str:
        return self._constant(np.array(values, np.int64))

    def _constant(self, value: Array | np.generic | int) -> str:
        data = np.asarray(value, np.int64) if isinstance(value, int) else np.asarray(value)
        return self._b.make_once(f"{data.tolist()!r} {data.dtype}", "norm", lambda: [self._b.const(data, "constant/norm")])[0]


def _norm(gate: IntegerGate) -> tuple[Array, float]:
    assert gate.norm is not None
    return gate.norm


def _times(a: int, b: int) -> int:
    return (a * b + 2**30) >> 31


def _largest(cells: int) -> float:
    """The largest magnitude of a normalized value with 10 bits after the point. The kernel takes floor(2**20 / cells) for 2**20 / cells, so
    its variance is too small and the bound exceeds the square root of cells."""
    lost = 1024.0 * (2**20 % cells)
    return float(min(2.0**26, 1024 * np.sqrt(cells * (lost + 4)) * 1.01 + 2))
