"""Bias correction from data: what rounding the weights adds to the mean of each channel, taken off the bias."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from qconvert.calibration.bias_correction import ChannelMeans, correct_biases
from qconvert.calibration.network_values import normalize_for_runtime, write_for_runtime
from qconvert.calibration.observing import Progress, observe
from qconvert.data.streams import Samples
from qconvert.encodings import Encodings, Place
from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of
from qconvert.passes.apply_encodings import insert_qdq

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
    graph: Graph, encodings: Encodings, samples: Samples, runtime: str, folder: Callable[[], Path], progress: Progress
) -> tuple[Graph, tuple[str, ...]]:
    """The float network with corrected biases, and what was changed in words.

    Layer by layer, in their order: what a layer computes is compared once those before it are corrected, or their shifts would be taken
    off again and again (arXiv 1906.04721, appendix D).

    Args:
        graph: the float network.
        encodings: of its tensors.
        samples: the data.
        runtime: what runs the networks.
        folder: gives an empty one, for the file of a network.
        progress: told of each layer.
    """
    layers = [op for op in graph.ops if kind_of(op).has_weights and Place(op.inputs[1]) in encodings.entries]
    results = [op.outputs[0] for op in layers]
    expected = _means(graph, results, samples, runtime, folder())
    changed, notes = graph, list[str]()
    for number, name in enumerate(results):
        progress("bias correction", number, len(results))
        rounded = insert_qdq(changed, encodings)
        computed = f"{name}/computed" if Place(name) in encodings.entries else name
        found = _means(rounded, [computed], samples, runtime, folder())
        changed, said = correct_biases(changed, {name: expected[name] - found[computed]})
        notes += said[1:]
    progress("bias correction", len(results), len(results))
    return changed, (f"{len(results) - len(notes)} biases are corrected", *notes)


def _means(graph: Graph, names: list[str], samples: Samples, runtime: str, folder: Path) -> dict[str, Array]:
    """The mean of each channel of what layers compute."""
    writers = normalize_for_runtime(graph, runtime).producers()
    seeing = tuple(_Means(_channels(writers.get(name))) for name in names)
    found, _ = observe(
        write_for_runtime(graph, names, folder, runtime), {name: number for number, name in enumerate(names)}, seeing, samples
    )
    return {name: one.means() for name, one in zip(names, found, strict=True)}


def _channels(layer: Op | None) -> int:
    """The axis of the channels in what a layer computes, as it is written for a runtime."""
    layout = layer.attributes.get("data_format", "") if layer is not None else ""
    return 1 if layout == "channels_first" else -1
