"""Bias correction by means of channels."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.calibration import (
    ChannelMeans,
    correct_biases,
    weight_quantization,
)
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Tensor

CONV = {"data_format": "channels_first", "group": 2, "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}


def network(**attributes: str) -> Graph:
    """x -> batch normalization -> Relu -> Conv in two groups."""
    rng = np.random.default_rng(0)
    constants = {
        "scale": rng.uniform(0.5, 2, 4), "offset": rng.normal(size=4), "mean": np.zeros(4), "variance": np.ones(4),
        "w": rng.normal(size=(6, 2, 1, 1)), "b": rng.normal(size=6),
    }  # fmt: skip
    tensors = {name: Tensor(name, "float32", data.shape, data.astype(np.float32)) for name, data in constants.items()}
    tensors |= {name: Tensor(name, "float32", (1, channels, 64, 64)) for name, channels in (("x", 4), ("n", 4), ("r", 4), ("y", 6))}
    ops = (
        Op("BatchNormalization", ("x", "scale", "offset", "mean", "variance"), ("n",), {"data_format": "channels_first", "epsilon": 1e-9}),
        Op("Relu", ("n",), ("r",)),
        Op("Conv", ("r", "w", "b"), ("y",), {**CONV, **attributes}),
    )
    return Graph("net", tensors, ops, ("x",), ("y",))


def rounded(graph: Graph) -> Graph:
    """Weights of 3 bits, so that rounding is felt."""
    data = graph["w"].data
    assert data is not None
    quantization = weight_quantization(data, axis=None, dtype="int4").quantization
    return graph.evolve(
        tensors=[Tensor("w", "float32", data.shape, dequantize(quantize(data, quantization, "int4"), quantization).astype(np.float32))]
    )


def means(graph: Graph, name: str, samples: Array) -> Array:
    found = ChannelMeans()
    for x in samples:
        found.update(np.asarray(evaluate(graph.evolve(outputs=(name,)), {"x": x})[name]))
    return found.means()


SAMPLES = np.random.default_rng(1).normal(size=(6, 1, 4, 64, 64)).astype(np.float32)


def test_empirical_correction_takes_the_shift_away() -> None:
    graph = network()
    expected, observed = means(graph, "y", SAMPLES), means(rounded(graph), "y", SAMPLES)
    assert np.abs(expected - observed).max() > 0.05
    found, (note,) = correct_biases(rounded(graph), {"y": expected - observed})
    assert note == "1 bias is corrected"
    np.testing.assert_allclose(means(found, "y", SAMPLES), expected, atol=1e-5)


def test_means_are_merged() -> None:
    whole, parts = ChannelMeans(axis=-1), [ChannelMeans(axis=-1) for _ in range(3)]
    for i, values in enumerate(np.random.default_rng(2).normal(size=(9, 5, 7)).astype(np.float32)):
        whole.update(values)
        parts[i % 2].update(values)
    parts[2].merge(parts[0])
    parts[2].merge(parts[1])
    assert parts[2].count == whole.count == 45
    np.testing.assert_allclose(parts[2].means(), whole.means(), rtol=1e-12)


def test_layers_without_a_bias_get_one() -> None:
    graph = network()
    bare = graph.evolve(ops=[*graph.ops[:2], Op("Conv", ("r", "w"), ("y",), graph.ops[2].attributes)])
    found, _ = correct_biases(bare, {"y": np.arange(6)})
    np.testing.assert_array_equal(found[found.ops[2].inputs[2]].data, np.arange(6, dtype=np.float32))


def test_what_cannot_be_corrected_is_named() -> None:
    found, notes = correct_biases(network(activation="relu"), {"y": np.ones(6), "r": np.ones(4), "gone": np.ones(1)})
    assert found == network(activation="relu")
    assert [note.partition(": ")[2] for note in notes[1:]] == [
        "it is not a layer with a bias",
        "an activation is fused into the operator, after the bias",
    ]
