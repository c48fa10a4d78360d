"""What calibration makes of the choices: the encodings, quantizations of activations as they were chosen and of weights so that biases fit
integers; and the biases corrected from data, layer by layer, by what rounding the weights adds to the mean of each channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.arguments import Progress
from qconvert.calibration.layer_changes import ChannelMeans, correct_biases
from qconvert.calibration.observing import normalize_for_runtime, observe, write_for_runtime
from qconvert.calibration.places import Plan, Weights
from qconvert.calibration.report import TensorReport
from qconvert.calibration.settings import Settings
from qconvert.calibration.weights import weight_quantization
from qconvert.data.samples import Samples
from qconvert.encodings import BATCH_NORM, FOLDED, Encoding, Encodings, Place, QParams
from qconvert.errors import QConvertError, format_count
from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of
from qconvert.passes.apply_encodings import insert_qdq

#: Below this a scale is none: the product of two is no normal number of float32 any more, and kernels take it for zero.
_SMALLEST = 2.0**-63
#: About as many steps as 8 bits have on one side of zero.
_CODES = 128
#: The largest integer of a bias, half of int32, so that corrected ones fit too.
_LARGEST_BIAS = 2.0**30


def drop_tiny_scales(found: Plan, reports: tuple[TensorReport, ...]) -> tuple[Plan, tuple[TensorReport, ...], list[str]]:
    """Plan and reports without activations whose scales would be too small, and what is said of them."""
    gone = {report.names: None for report in reports if 0 < max(-report.lowest, report.highest) < _SMALLEST * _CODES}
    notes = [_stays_float_note(names[0], "the values that were seen") for names in gone]
    if not gone:
        return found, reports, notes
    groups = tuple(group for group in found.groups if group.names not in gone)
    return replace(found, groups=groups), tuple(report for report in reports if report.names not in gone), notes


def _stays_float_note(name: str, what: str) -> str:
    return f"{name!r} stays float: {what} are so small that its scale times another would not be a normal float32"


def encodings_of(
    graph: Graph, found: Plan, reports: tuple[TensorReport, ...], chosen: Settings, origin: str
) -> tuple[Encodings, list[str]]:
    """The encodings of a network, and what is said of weights that stay float.

    Args:
        graph: the float network.
        found: its places.
        reports: the quantizations of activations.
        chosen: how quantizations of weights are chosen.
        origin: of all.

    Raises:
        QConvertError: weights are NaN or infinite.
    """
    entries = {Place(name): Encoding(report.qparams, origin=report.origin) for report in reports for name in report.names}
    steps = {place.name: one.qparams.quantization.step for place, one in entries.items() if one.qparams is not None}
    notes = []
    for item in found.weights:
        data = graph[item.name].data
        assert data is not None
        try:
            quantization = weight_quantization(data, chosen.weights_method, item.axis if chosen.per_channel else None, chosen.weights)
        except QConvertError as error:
            error.where = error.where or repr(item.name)
            raise
        if float(quantization.quantization.scale.max()) < _SMALLEST:
            notes.append(_stays_float_note(item.name, "its values"))
            continue
        entries[Place(item.name)] = Encoding(
            _widen_for_bias(graph, item, quantization, steps), origin=f"{chosen.weights_method} of the weights"
        )
    return Encodings(entries, origin, metadata={BATCH_NORM: FOLDED}), notes


def _widen_for_bias(graph: Graph, item: Weights, quantization: QParams, steps: dict[str, float]) -> QParams:
    """The quantization, with larger scales where a bias at input scale * weight scale would leave int32: channels of nearly nothing but a
    bias."""
    q = quantization.quantization
    least = np.full(q.scale.shape, _SMALLEST)
    for data, bias in item.layers:
        values = graph.constant(bias) if bias else None
        if values is None or data not in steps or not np.isfinite(values).all():
            continue
        largest = np.abs(values.reshape(-1).astype(np.float64))
        if q.scale.size == 1:
            largest = largest.max(initial=0, keepdims=True)
        if largest.size in (1, q.scale.size):
            least = np.maximum(least, largest / (steps[data] * _LARGEST_BIAS))
    scale = np.maximum(q.scale, least.astype(np.float32))
    if np.array_equal(scale, q.scale):
        return quantization
    return replace(quantization, quantization=replace(q, scale=np.where(np.isfinite(scale), scale, q.scale).astype(np.float32)))


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
    results = [op.name for op in layers]
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
    return changed, (f"{format_count(len(results) - len(notes), 'bias', 'are')} corrected", *notes)


def _means(graph: Graph, names: list[str], samples: Samples, runtime: str, folder: Path) -> dict[str, Array]:
    """The mean of each channel of what layers compute."""
    writers = normalize_for_runtime(graph, runtime).producers()
    seeing = tuple(ChannelMeans(_channels(writers.get(name))) for name in names)
    found, _ = observe(
        write_for_runtime(graph, names, folder, runtime), {name: number for number, name in enumerate(names)}, seeing, samples
    )
    return {name: one.means() for name, one in zip(names, found, strict=True)}


def _channels(layer: Op | None) -> int:
    """The axis of the channels in what a layer computes, as it is written for a runtime."""
    layout = layer.attributes.get("data_format", "") if layer is not None else ""
    return 1 if layout == "channels_first" else -1
