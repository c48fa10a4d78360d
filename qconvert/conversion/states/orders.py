"""Layers whose inputs the file has in another order (act-order of GPTQ): their data are brought into that order before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qconvert.conversion.states.network import Network
from qconvert.errors import UnsupportedError
from qconvert.graph import Op, Shape, Tensor

__all__ = ["reorder_inputs"]


def reorder_inputs(network: Network, layers: Mapping[str, str]) -> None:
    """Put a Gather before the layers that parameters.orders names, one for all that read the same data in the same order.

    Args:
        network: is changed.
        layers: operator's result -> its module.

    Raises:
        UnsupportedError: such a layer is no linear one.
    """
    orders = network.parameters.orders
    if not orders:
        return
    ops: list[Op] = []
    made: dict[tuple[str, Shape | None, bytes], str] = {}
    for op in network.ops:
        order = orders.get(layers.get(op.outputs[0], "")) if op.outputs else None
        if order is None:
            ops.append(op)
            continue
        if op.kind not in ("Gemm", "MatMul"):
            raise UnsupportedError(f"the order of the inputs of a {op.kind} is not covered", where=str(op), rule="act-order-not-covered")
        data = op.inputs[0]
        before = network.producers.get(data)
        source = before.inputs[0] if before is not None and before.kind == "Reshape" else data  # rows that each layer makes for itself
        key = source, network[data].shape, order.tobytes()
        if key not in made:
            places = network.add(f"{layers[op.outputs[0]]}.order", Tensor("", "int64", order.shape, order))
            made[key] = network.add(f"{data}/ordered", Tensor("", network[data].dtype, network[data].shape))
            ops.append(Op("Gather", (data, places), (made[key],), {"axis": -1}, op.source))
        ops.append(replace(op, inputs=(made[key], *op.inputs[1:])))
    network.replace_ops(ops)
