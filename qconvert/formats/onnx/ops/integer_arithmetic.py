"""Integer arithmetic of TFLite's recurrent kernels as nodes in the graph or in the body of a Scan: rescaling by fixed-point multipliers,
and layer normalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qconvert.arithmetic import IntegerGate, IntegerLstm, quantize_multiplier
from qconvert.arithmetic.fixed_point_functions import HALF_ROOT, ITERATIONS, LARGEST, ONE, THREE_HALVES
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.graph import Array, Op

__all__ = ["AWAY", "Emitter", "Rescale", "ScanBody", "normalize_gates", "zero_states"]

#: Rounds ties of a number of 32 bits away from zero, and changes no other rounding.
AWAY = 1 + 2.0**-32
#: Whole numbers up to which float64 holds all.
_EXACT = 2.0**53
#: Bits of a product of two int16, and of float64's whole numbers.
_PAIR_BITS, _EXACT_BITS = 30, 53


class Emitter(Protocol):
    """Where nodes go: the graph, or the body of a loop."""

    def node(self, op_type: str, inputs: list[str], outputs: int = 1, *, hint: str = "", **attributes: Any) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Rescale:
    """x * multiplier, rounded twice, as MultiplyByQuantizedMultiplier does: one factor, or one for each column.

    Attributes:
        multipliers: int64, with the shift to the left in them; their products are divided by 2**31.
        right: the shift to the right after that.
        in_floats: whether float64 holds every product; else int64 does.
    """

    multipliers: Array
    right: Array
    in_floats: bool

    @classmethod
    def of(cls, factors: Any, bound: Any) -> Rescale | None:
        """The steps for real multipliers of integers up to `bound`; None where a shifted integer may leave the kernel's int32."""
        found, shifts = quantize_multiplier(np.asarray(factors, np.float64))
        left, multipliers = np.maximum(shifts, 0), found.astype(np.int64)
        if (np.asarray(bound, np.float64) * 2.0**left > 2.0**31).any():
            return None
        fits = (np.asarray(bound, np.float64) * _odd_part(multipliers) < _EXACT).all()
        return cls(multipliers << left, np.maximum(-shifts, 0), bool(fits))

    @classmethod
    def of_pair(cls, factor: float) -> Rescale:
        """The steps for products of two int16, times a factor below 1: of 30 bits, next to 24 of the multiplier. Those that float64 would
        round are few, and mostly harmless."""
        multipliers, shifts = quantize_multiplier(np.float64(factor))
        return cls(multipliers.astype(np.int64), np.maximum(-shifts, 0), not _has_wrong_tie(int(multipliers)))

    def emit(self, b: Builder, to: Emitter, value: str, hint: str) -> str:
        """Adds the nodes after a float64 value; returns the result, float64 too."""
        steps = self._first(b, to, value, hint)
        if not self.right.any():
            return steps
        # After no shift the factor is 1: it would move whole numbers that are large.
        second = np.where(self.right > 0, 2.0**-self.right * AWAY, 1.0)
        return to.node("Round", to.node("Mul", [steps, b.const(second, f"{hint}/shift")], hint=hint), hint=hint)[0]

    def emit_up(self, b: Builder, to: Emitter, value: str, hint: str) -> str:
        """The same where the second rounding takes ties up, as ruy does."""
        steps = self._first(b, to, value, hint)
        if not self.right.any():
            return steps
        scaled = to.node("Mul", [steps, b.const(2.0**-self.right, f"{hint}/shift")], hint=hint)
        return to.node("Floor", to.node("Add", [*scaled, b.const(np.float64(0.5), f"{hint}/half")], hint=hint), hint=hint)[0]

    def _first(self, b: Builder, to: Emitter, value: str, hint: str) -> str:
        """The first rounding, halves up."""
        if self.in_floats:
            scaled = to.node("Mul", [value, b.const(self.multipliers * 2.0**-31, f"{hint}/multiplier")], hint=hint)
            return to.node("Floor", to.node("Add", [*scaled, b.const(np.float64(0.5), f"{hint}/half")], hint=hint), hint=hint)[0]
        wide = to.node("Cast", [value], hint=hint, to=ELEMENT_TYPES["int64"])
        product = to.node("Mul", [*wide, b.const(self.multipliers, f"{hint}/multiplier")], hint=hint)
        # Div of integers truncates: what it divides is made positive first.
        above = to.node("Add", [*product, b.const(np.int64(2**62 + 2**30), f"{hint}/above")], hint=hint)
        divided = to.node("Div", [*above, b.const(np.int64(2**31), f"{hint}/power")], hint=hint)
        back = to.node("Sub", [*divided, b.const(np.int64(2**31), f"{hint}/back")], hint=hint)
        return to.node("Cast", back, hint=hint, to=ELEMENT_TYPES["float64"])[0]


def _odd_part(multipliers: Array) -> Array:
    """The bits that count."""
    return np.asarray(multipliers // np.maximum(1, multipliers & -multipliers))


def _has_wrong_tie(multiplier: int) -> bool:
    """Whether float64 rounds a product of the multiplier and two int16, which has up to 61 bits, from below a half to it."""
    if not multiplier:  # of a factor below 2**-32
        return False
    odd = int(_odd_part(np.array(multiplier)))
    bits = 31 - (multiplier // odd).bit_length() + 1
    if odd.bit_length() + _PAIR_BITS <= _EXACT_BITS:
        return False
    just_below = (2 ** (bits - 1) - 1) * pow(odd, -1, 2**bits) % 2**bits
    values = np.arange(just_below - 2**_PAIR_BITS // 2**bits * 2**bits, 2**_PAIR_BITS, 2**bits, dtype=np.int64)
    found = np.floor(values * (multiplier * 2.0**-31) + 0.5) != (values * multiplier + 2**30) >> 31
    factors = np.arange(1, 2**15, dtype=np.int64)
    return any(bool(((abs(value) % factors == 0) & (abs(value) // factors < 2**15)).any()) for value in values[found])


class ScanBody:
    """The nodes of a Scan's body; what it names from outside are values of the graph around.

    Args:
        builder: of that graph.
        prefix: of the names inside.
        inputs: what the body takes, and the element type of each: states first, then what it takes of sequences.
    """

    def __init__(self, builder: Builder, prefix: str, inputs: dict[str, int]) -> None:
        self._builder, self._prefix = builder, prefix
        self._types = list(inputs.values())
        self.inputs = [builder.name(f"{prefix}/{what}") for what in inputs]
        self.nodes: list[Any] = []

    def node(self, op_type: str, inputs: list[str], outputs: int = 1, *, hint: str = "", **attributes: Any) -> list[str]:
        from onnx import helper

        names = [self._builder.name(f"{self._prefix}/{hint or op_type}") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names

    def scan(self, given: list[str], states: list[str], shown: str, element_type: int, hint: str, backwards: bool = False) -> list[str]:
        """Adds the Scan over one sequence.

        Args:
            given: first values of the states, and the sequence.
            states: the next value of each.
            shown: what each step gives.
            element_type: of that, in TensorProto.DataType.
            hint: for names.
            backwards: from the last step to the first.

        Returns:
            The last value of each state, and what all steps gave.
        """
        from onnx import helper

        b = self._builder
        count = len(states)
        inputs = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in zip(self.inputs, self._types, strict=True)]
        results = zip((*states, shown), (*self._types[:count], element_type), strict=True)
        outputs = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in results]
        graph = helper.make_graph(self.nodes, self._prefix, inputs, outputs)
        own = {*self.inputs, *(name for node in self.nodes for name in node.output)}
        b.hidden_reads[len(b.nodes)] = [name for node in self.nodes for name in node.input if name not in own]
        ways: dict[str, Any] = {"scan_input_directions": [1], "scan_output_directions": [1]} if backwards else {}
        return b.node("Scan", given, count + 1, hint=hint, body=graph, num_scan_inputs=1, **ways)


def zero_states(b: Builder, data: str, size: int, hint: str) -> str:
    """States of zeros, of shape (rows, size), for data of shape (steps, rows, inputs)."""
    whole = b.node("Shape", [data], hint=f"{hint}/shape")
    bounds = [b.const(np.array([value], np.int64), "constant/sizes") for value in (1, 2)]
    rows = b.node("Slice", [*whole, *bounds], hint=f"{hint}/rows")
    sizes = b.node("Concat", [*rows, b.const(np.array([size], np.int64), "constant/sizes")], hint=f"{hint}/sizes", axis=0)
    return b.node("ConstantOfShape", sizes, hint=hint)[0]


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
