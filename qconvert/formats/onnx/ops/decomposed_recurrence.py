"""What a recurrence that is decomposed step by step has in common, whatever its gates: its names, sizes, rounded products and results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.ops.rescaling import Emitter
from qconvert.formats.onnx.ops.rounded_rows import is_sum_exact, product, rounded_rows
from qconvert.graph import Op

__all__ = ["BIAS", "FLOAT32", "HIDDEN", "LENGTHS", "Recurrence", "require_plain"]

FLOAT32 = ELEMENT_TYPES["float32"]
#: Inputs of an LSTM, a GRU or an RNN after its data and weights.
BIAS, LENGTHS, HIDDEN = 3, 4, 5


def require_plain(op: Op, b: Builder, what: str) -> None:
    """Raises UnsupportedError for an attribute that no step here has; `what` says in words what is decomposed."""
    for name, value in {"clip": 0.0, "layout": 0, "activation_alpha": (), "activation_beta": ()}.items():
        if op[name] != value:
            raise b.unsupported_error(op, f"{what}, and {name}", rule="form-not-covered")


class Recurrence:
    """An operator of one direction that becomes a Scan over its steps.

    Args:
        op: the LSTM, GRU or RNN.
        b: the graph that it becomes a part of.
    """

    def __init__(self, op: Op, b: Builder) -> None:
        self._op, self._b = op, b
        self._cells = int(op["hidden_size"])
        self._hint = next(filter(None, op.outputs))

    def _rounded_product(self, to: Emitter, rows: str, index: int, hint: str) -> str:
        """Rows, rounded as the operator says, times the constant integer weights that an input is, which have a row for each column."""
        b, weights = self._b, self._b.tensor(self._op.inputs[index])
        assert weights.data is not None
        flat = to.node("Squeeze", [b.stored_value(weights.name), self._sizes([0])], hint="weights")
        turned = to.node("Transpose", flat, hint="weights", perm=[1, 0])
        steps, scale = rounded_rows(b, to, rows, str(self._op["arithmetic"]), f"{hint}/rows")
        sums = product(b, to, steps, turned[0], hint, exact=is_sum_exact(weights.data))
        return to.node("Mul", [sums, *to.node("Mul", [scale, self._scales(index)], hint=f"{hint}/scale")], hint=hint)[0]

    def _scales(self, index: int) -> str:
        """The scales of integer weights: one for each row, or one for all."""
        tensor = self._b.tensor(self._op.inputs[index])
        quantization = tensor.quantization
        assert quantization is not None
        scale = quantization.scale.reshape(()) if quantization.is_per_tensor else quantization.scale
        return self._b.make_once("scales", tensor.name, lambda: [self._b.const(scale, f"{tensor.name}/scales")])[0]

    def _finish(self, results: Sequence[tuple[str, int]]) -> None:
        """Makes values the outputs of the operator, each with its axis of directions."""
        op, b = self._op, self._b
        for index, (value, axis) in enumerate(results):
            if index < len(op.outputs) and op.outputs[index]:
                b.finish(op, b.node("Unsqueeze", [value, self._sizes([axis])], hint=f"{op.outputs[index]}/value")[0], index)

    def _sizes(self, values: list[int]) -> str:
        key = f"{values} int64"
        return self._b.make_once(key, "list", lambda: [self._b.const(np.array(values, np.int64), "constant/sizes")])[0]
