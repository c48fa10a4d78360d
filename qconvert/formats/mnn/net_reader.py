"""A quantized .mnn -> Encodings: scales of tensors, and the integers and scales of weights."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from qconvert.encodings import Encoding, Encodings, Grid, Place
from qconvert.errors import InvalidModelError
from qconvert.formats.mnn.activations import activation_grid
from qconvert.formats.mnn.network import Network, TensorGrid, read_network, renamed
from qconvert.formats.mnn.places import MATMUL, own_name, places, plain
from qconvert.formats.mnn.weights import LayerWeights
from qconvert.graph import Array, Quantization, numpy_dtype

__all__ = ["network_encodings", "weights_encoding"]

#: By how many steps an offset may be beside a whole number of them: float32 holds it no better.
_EXACT = 1e-3
#: The scale of channels that are all 0 in a layer that is all 0.
_NO_SCALE = 2.0**-12
_SHOWN = 3
_LOST = re.compile(r"(Depthwise)?ConvInt8\d+")


def network_encodings(path: Path, named: Network | None = None) -> Encodings:
    """The encodings of a .mnn file.

    Args:
        path: the file.
        named: the network before quantization, where the quantizer took the names away.

    Raises:
        FileAccessError: it cannot be read.
        InvalidModelError: it is damaged, a scale or zero point is none, or its layers have lost their names.
        UnsupportedError: see read_network().
    """
    network = read_network(path)
    try:
        return _encodings(network if named is None else renamed(network, named))
    except InvalidModelError as error:
        error.file = error.file or str(path)
        raise


def _encodings(network: Network) -> Encodings:
    grids = {index: _grid(found, repr(network.names[index])) for index, found in network.grids.items()}
    for layer in network.layers:
        for found, indices in ((layer.data, layer.node.inputs[:1]), (layer.result, layer.node.outputs[:1])):
            if found is not None and indices:
                grids.setdefault(indices[0], _grid(found, repr(layer.node.name)))
    if lost := [layer.node.name for layer in network.layers if _LOST.fullmatch(layer.node.name)]:
        raise InvalidModelError(
            f"{len(lost)} of its {len(network.layers)} layers have names that MNN's quantizer made up, as EMA does, such as {lost[0]!r}",
            remedy="Give the .mnn file that the quantizer was given too: -O mnn=FILE.",
        )
    entries = places(network.nodes, network.names, grids, "MNN")
    offset: list[str] = []
    for layer in network.layers:
        if layer.weights is not None:
            name = network.names[layer.node.outputs[0]] if layer.node.outputs else layer.node.name
            encoding = weights_encoding(layer.weights, is_matrix=layer.node.name.endswith(MATMUL))
            if encoding.integers is None:
                offset.append(plain(name))
            entries[Place(plain(name), "input", 1)] = encoding if not own_name(name) else _optional(encoding)
    if not entries:
        raise InvalidModelError(
            "has no scales: its layers are not quantized", remedy="Give the file that mnnquant, or mnnconvert with scales, wrote."
        )
    return Encodings(entries, "MNN's network", metadata={"mnn.uuid": network.uuid} if network.uuid else {}, notes=_notes(network, offset))


def _optional(encoding: Encoding) -> Encoding:
    return Encoding(encoding.grid, integers=encoding.integers, origin=encoding.origin, required=False)


def _grid(found: TensorGrid, where: str) -> Grid:
    return activation_grid([found.scale], found.zero, where, (found.lowest, found.highest))


def _notes(network: Network, offset: list[str]) -> tuple[str, ...]:
    notes = []
    if offset:
        shown = ", ".join(map(repr, offset[:_SHOWN])) + (" …" if len(offset) > _SHOWN else "")
        notes.append(
            f"the weights of {len(offset)} layers ({shown}) have real offsets, as MNN's asymmetric weights do: no grid holds these, so they"
            " are rounded anew, at MNN's scales with the nearest zero points"
        )
    if halves := sum(layer.weights is None for layer in network.layers):
        notes.append(f"{halves} layers have real weights, in float16 or sparse")
    return tuple(notes)


def weights_encoding(weights: LayerWeights, *, is_matrix: bool = False) -> Encoding:
    """The encoding of a layer's weights, outputs first: with their integers, or, where no grid has their real values, the grid alone.

    Args:
        weights: as the file has them.
        is_matrix: whether the model has them as a matrix.
    """
    dtype = "int4" if weights.bits <= 4 else "int8"
    scales = _positive(weights.scales)
    zero_points = np.zeros(scales.shape, np.int64)
    integers: Array | None = weights.integers[:, :, 0, 0] if is_matrix and weights.integers.shape[2:] == (1, 1) else weights.integers
    if weights.offsets is not None:
        steps = weights.offsets.astype(np.float64) / scales
        zero_points = np.rint(-steps).astype(np.int64)
        if np.abs(steps + zero_points).max() > _EXACT:
            integers = None
    half = 1 << (weights.bits - 1)
    whole = 8 if dtype == "int4" else 128
    limits = (-half, half - 1) if weights.is_full and half < whole else (None, None)
    axis, block_size = None, 0
    if scales.ndim > 1:
        axis, block_size = 1, weights.integers.shape[1] // scales.shape[1]
        spread = (*scales.shape, *(1,) * (2 if not is_matrix else 0))
        shape = (*scales.shape, *(weights.integers.shape[2:] if not is_matrix else ()))
        scales, zero_points = (np.broadcast_to(found.reshape(spread), shape).copy() for found in (scales, zero_points))
    is_spelled = bool((zero_points < -whole).any() or (zero_points >= whole).any())
    grid = Grid(dtype, Quantization(scales, zero_points, axis, block_size, *limits), is_spelled)
    return Encoding(grid, integers=None if integers is None else integers.astype(numpy_dtype(dtype)), origin="MNN")


def _positive(scales: Array) -> Array:
    """Scales where channels that are all 0 have the smallest of the others."""
    if (scales > 0).all():
        return scales
    positive = scales[scales > 0]
    return np.where(scales > 0, scales, np.float32(positive.min() if positive.size else _NO_SCALE)).astype(np.float32)
