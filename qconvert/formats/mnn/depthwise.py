"""Biases of depthwise layers, so that MNN's int8 kernel rounds where the network does.

The kernel adds the zero point of the result to the integer sum, in units of data scale * weight scale, and cuts off what is no whole unit:
trunc(zero point / M), M being data scale * weight scale / result scale. Every element is then off by up to a unit, all of a channel in one
direction (measured with MNN 3.6.1: the offsets of all channels of a network are these). A bias that is lower by one unit, wherever more
than half a unit is cut off, leaves an error of at most half a unit in either direction. The bias itself is cut off likewise, by a whole
unit where float32 puts it below a whole number; a quarter of a unit more keeps it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.formats.mnn.layers import Layer
from qconvert.graph import Array, Graph, Op, Tensor

__all__ = ["compensate_biases"]

#: Of a unit, by which biases are farther from zero than the whole numbers that they stand for.
_ABOVE = 0.25


def compensate_biases(network: Graph, layers: Sequence[Layer]) -> tuple[Graph, int]:
    """The float network with such biases, and the number of changed values.

    Args:
        network: of float values.
        layers: those of it that are to run on integers.
    """
    by_weights = {layer.weights: layer for layer in layers}
    tensors: dict[str, Tensor] = {}
    names = network.names(tensors)
    ops: list[Op] = []
    count = 0
    for op in network.ops:
        layer = by_weights.get(op.inputs[1]) if _is_depthwise(network, op) else None
        units = None if layer is None else _missing_units(layer)
        if layer is None or units is None:
            ops.append(op)
            continue
        step = np.float64(layer.data.scale) * layer.scales.astype(np.float64)
        bias = network[op.inputs[2]].data if op.has(2) else np.zeros(len(step), np.float32)
        if bias is None or bias.shape != step.shape:
            ops.append(op)
            continue
        name = names.fresh(f"{op.inputs[2] if op.has(2) else op.outputs[0]}/compensated")
        whole = np.rint(bias / step) + units
        tensors[name] = Tensor(name, "float32", step.shape, ((whole + _ABOVE * np.sign(whole)) * step).astype(np.float32))
        ops.append(replace(op, inputs=(*op.inputs[:2], name)))
        count += int(np.count_nonzero(units))
    return (network.evolve(tensors=tensors.values(), ops=ops), count) if tensors else (network, 0)


def _is_depthwise(network: Graph, op: Op) -> bool:
    if op.kind != "Conv" or op["group"] == 1:
        return False
    shape = network[op.inputs[1]].shape or (0, 0)
    return bool(shape[0] == op["group"] and shape[1] == 1)


def _missing_units(layer: Layer) -> Array:
    """Whole units for each channel by which what MNN adds is farther from the zero point than it need be."""
    unit = layer.data.scale * layer.scales.astype(np.float64) / layer.result.scale
    wanted = layer.result.zero_point / unit
    return np.asarray(np.rint(wanted) - np.trunc(wanted))
