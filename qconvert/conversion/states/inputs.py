"""Layers that take their inputs in another order (act-order of GPTQ) or times factors (AWQ): their data are brought there before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qconvert.conversion.states.network import Network
from qconvert.errors import UnsupportedError
from qconvert.graph import Array, Op, Shape, Tensor

__all__ = ["adjust_inputs"]


def adjust_inputs(network: Network, layers: Mapping[str, str]) -> None:
    """Put a Gather before the layers that parameters.orders names, and a Mul before those of parameters.factors.

    Layers that read the same data in the same order, or times the same factors, share the operator.

    Args:
        network: is changed.
        layers: operator's result -> its module.

    Raises:
        UnsupportedError: such a layer is no linear one.
    """
    if not network.parameters.orders and not network.parameters.factors:
        return
    adjusted = _Adjusted(network)
    for op in network.ops:
        module = layers.get(op.outputs[0], "") if op.outputs else ""
        order, factors = network.parameters.orders.get(module), network.parameters.factors.get(module)
        if order is None and factors is None:
            adjusted.ops.append(op)
            continue
        if op.kind not in ("Gemm", "MatMul"):
            raise UnsupportedError(
                f"another order of the inputs of a {op.kind} is not covered", where=str(op), rule="act-order-not-covered"
            )
        data = op.inputs[0]
        if factors is not None:
            data = adjusted.data(data, Op("Mul", (data, f"{module}.factors"), ("",), {}, op.source), factors)
        if order is not None:
            data = adjusted.data(data, Op("Gather", (data, f"{module}.order"), ("",), {"axis": -1}, op.source), order)
        adjusted.ops.append(replace(op, inputs=(data, *op.inputs[1:])))
    network.replace_ops(adjusted.ops)


class _Adjusted:
    """The operators with those that adjust data, each made once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._made: dict[tuple[str, str, Shape | None, bytes], str] = {}
        self.ops: list[Op] = []

    def data(self, name: str, op: Op, values: Array) -> str:
        """The result of an operator on data and a constant, whose wanted name is its second input."""
        before = self._network.producers.get(name)
        source = before.inputs[0] if before is not None and before.kind == "Reshape" else name  # rows that each layer makes for itself
        key = op.kind, source, self._network[name].shape, values.tobytes()
        if key not in self._made:
            constant = self._network.add(op.inputs[1], Tensor("", str(values.dtype), values.shape, values))
            made = self._network.add(f"{name}/{op.kind.lower()}", Tensor("", self._network[name].dtype, self._network[name].shape))
            self.ops.append(replace(op, inputs=(name, constant), outputs=(made,)))
            self._made[key] = made
        return self._made[key]
