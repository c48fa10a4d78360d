"""Compare the .mnn file that MNN's converter made with the requested integers and scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from qconvert.errors import UnsupportedError
from qconvert.formats.mnn.layers import Activation, Layer
from qconvert.formats.mnn.network import Layer as MadeLayer
from qconvert.formats.mnn.network import Network, TensorQuantization, read_network
from qconvert.formats.mnn.places import MATMUL
from qconvert.graph import Array

__all__ = ["compare_layers"]

#: Layers that a line names.
_NAMED = 5


def compare_layers(path: Path, layers: Sequence[Layer]) -> Iterator[str]:
    """Lines on the layers of a .mnn: how many are int8 with the requested integers and scales, and which stayed float.

    Raises:
        UnsupportedError: weights, scales or zero points differ from the requested ones, or there is no such file.
    """
    try:
        network = read_network(path)
    except UnsupportedError as error:
        yield f"{path.name} is made, and not compared with what was asked for: it {error.reason}"
        return
    made = _layers_by_result(network)
    missing = list(dict.fromkeys(layer.result.name for layer in layers if not _is_integer(made.get(layer.name))))
    same = values = 0
    wrong: list[str] = []
    for layer in layers:
        found = made.get(layer.name)
        if found is None or not _is_integer(found):
            continue
        differences = list(_differences(layer, found))
        wrong += [f"{layer.result.name!r}: {text}" for text in differences]
        same += not differences
        values += found.weights.integers.size if found.weights is not None else 0
    if wrong:
        raise UnsupportedError(
            f"MNN's converter changed the quantization in {len(wrong)} place{'' if len(wrong) == 1 else 's'}: {'; '.join(wrong[:_NAMED])}",
            rule="converter-changed-model",
        )
    equal = f"{values} equal integers of weights, equal scales and zero points"
    yield f"{path.name}, read back: {same} of {len(layers)} layers are int8, with {equal}"
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        yield f"MNN left {len(missing)} layers float that have scales: {', '.join(map(repr, missing[:_NAMED]))}{more}"


def _layers_by_result(network: Network) -> Mapping[str, MadeLayer]:
    """The layers by the names of their results; a matrix product that became a convolution has its own."""
    found = {}
    for layer in network.layers:
        for index in layer.node.outputs[:1]:
            found[network.names[index].removesuffix(MATMUL)] = layer
    return found


def _is_integer(layer: MadeLayer | None) -> bool:
    """Whether MNN runs a layer on integers: it has the scales of both sides, and weights."""
    return layer is not None and layer.weights is not None and layer.data is not None and layer.result is not None


def _differences(layer: Layer, made: MadeLayer) -> Iterator[str]:
    """Differences between a layer and the requested one, in words."""
    assert made.weights is not None
    if layer.integers is not None and not _equal(layer.integers, made.weights.integers):
        yield "other integers of weights"
    if made.weights.offsets is not None or not np.array_equal(layer.scales, made.weights.scales.reshape(-1)):
        yield "other scales of weights"
    for what, wanted, found in (("data", layer.data, made.data), ("result", layer.result, made.result)):
        if found is None or not _same_quantization(wanted, found):
            yield f"another scale or zero point of its {what}"


def _equal(wanted: Array, found: Array) -> bool:
    return wanted.size == found.size and bool(np.array_equal(wanted.reshape(-1), found.reshape(-1)))


def _same_quantization(wanted: Activation, found: TensorQuantization) -> bool:
    return bool(np.float32(wanted.scale) == np.float32(found.scale)) and wanted.zero_point == found.zero
