"""Bias correction from data: what rounding the weights adds to the mean of each channel, taken off the bias."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.calibration.bias_correction import ChannelMeans, analytic_shifts, correct_biases
from qconvert.calibration.observing import observe
from qconvert.calibration.watching import watched, written
from qconvert.data.streams import Samples
from qconvert.encodings import Encodings, Place
from qconvert.graph import Array, Graph
from qconvert.graph.kinds import KINDS

__all__ = ["with_corrected_biases"]


class _Means:
    """The mean of each channel; shown to observe() like an Observer."""

    passes = 1

    def __init__(self, axis: int) -> None:
        self._found = ChannelMeans(axis)

    def update(self, values: Array) -> None:
        self._found.update(values)

    def next_pass(self) -> None:
        pass

    def merge(self, other: Self) -> None:
        self._found.merge(other._found)

    def means(self) -> Array:
        return self._found.means()


def with_corrected_biases(
    graph: Graph, encodings: Encodings, samples: Samples, runtime: str, folder: Path, progress: Callable[[str, int, int], None]
) -> tuple[Graph, tuple[str, ...]]:
    """The float network with corrected biases, and what was changed in words.

    The data's means are those of the float network, so that a layer's correction does not take off once more what those before it do.

    Args:
        graph: the float network.
        encodings: of its tensors; those of weights count.
        samples: the data.
        runtime: what runs the network.
        folder: an empty one, for the network's file.
        progress: told of each sample.
    """
    rounded = {}
    for name, tensor in graph.tensors.items():
        found = encodings.entries.get(Place(name))
        if tensor.data is not None and found is not None and found.grid is not None:
            q = found.grid.quantization
            rounded[name] = dequantize(quantize(tensor.data, q, found.grid.dtype), q).astype(np.float32)
    layers = [op for op in graph.ops if KINDS[op.kind].has_weights and op.inputs[1] in rounded]
    data = tuple(dict.fromkeys(op.inputs[0] for op in layers))
    network = watched(graph, data, folder, runtime)
    readers = written(graph, runtime).consumers()
    axes = [_channels(next((op for op in readers.get(name, ()) if KINDS[op.kind].has_weights), None)) for name in data]
    numbers = {name: number for number, name in enumerate(data)}
    seen, _ = observe(network, numbers, tuple(map(_Means, axes)), samples, progress=progress, what="means of channels")
    means = {name: seen[number].means() for name, number in numbers.items()}
    return correct_biases(graph, analytic_shifts(graph, rounded, means))


def _channels(reader: object) -> int:
    """The axis of the channels in what a runtime gives out: that of the layer which reads it there."""
    layout = getattr(reader, "attributes", {}).get("data_format", "")
    return 1 if layout == "channels_first" else -1
