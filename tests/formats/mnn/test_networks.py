"""Quantized .mnn files: what is read of them, next to what MNN itself computes with and writes elsewhere (fixtures/make_mnn.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from refusals import refused

from qconvert.encodings import Encodings, Place
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.mnn.network import copy_names, read_network
from qconvert.formats.mnn.reader import network_encodings, weights_encoding
from qconvert.formats.mnn.weights import LayerWeights, concatenate_groups
from qconvert.graph import Array

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[3] / "fixtures" / "mnn"
SHARED = Path(__file__).parents[4] / "shared" / "models" / "mnn"
WEIGHTS = sorted(path.stem for path in FIXTURES.glob("weights_*.mnn"))
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the samples of ../shared/models/mnn are not here")


def constants(path: Path) -> dict[str, Array]:
    return {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}


def scale(encodings: Encodings, place: Place | str) -> float:
    quantization = encodings[place].qparams
    assert quantization is not None and quantization.dtype == "int8" and quantization.quantization.is_per_tensor
    return quantization.quantization.step


def zero_point(encodings: Encodings, place: Place | str) -> int:
    quantization = encodings[place].qparams
    assert quantization is not None
    return quantization.quantization.point


def diagonal(measured: Array, channels: int) -> Array:
    """The weights of a depthwise layer among the responses of all outputs to all inputs."""
    blocks = measured.reshape(channels, channels, -1)
    off = blocks.copy()
    off[np.arange(channels), np.arange(channels)] = 0
    assert not off.any()
    return blocks[np.arange(channels), np.arange(channels)]


@pytest.mark.parametrize("name", WEIGHTS)
def test_real_weights_are_those_that_mnn_computes_with(name: str) -> None:
    """Each weight measured with an input that is 1 in its place: equal in every bit, with any number of bits, offsets or blocks."""
    network = read_network(FIXTURES / f"{name}.mnn")
    assert len(network.layers) == 5
    with np.load(FIXTURES / "values.npz") as measured:
        for layer in network.layers:
            result = network.names[layer.node.outputs[0]]
            theirs = measured[f"{name}/w{result[1]}"]
            assert layer.weights is not None
            ours = layer.weights.values
            if layer.node.type == "ConvolutionDepthwise":
                theirs = diagonal(theirs, len(ours))
            assert np.array_equal(ours.reshape(theirs.shape), theirs), result
            assert ours.any()


def test_the_fixtures_hold_all_kinds_of_weights() -> None:
    found = set()
    for name in WEIGHTS:
        for layer in read_network(FIXTURES / f"{name}.mnn").layers:
            assert layer.weights is not None
            found.add((layer.weights.bits, layer.weights.offsets is not None, layer.weights.scales.ndim))
    assert {(8, True, 1), (8, False, 1), (4, True, 2), (4, False, 2), (3, True, 1), (5, False, 1)} <= found


@pytest.mark.parametrize("name", ["weights_8_symmetric", "weights_4_symmetric", "weights_5_symmetric", "weights_4_blocks_symmetric"])
def test_symmetric_weights_keep_their_integers(name: str) -> None:
    """q = round(w / s), and s (q - 0) is what MNN computes with."""
    encodings, weights = network_encodings(FIXTURES / f"{name}.mnn"), constants(FIXTURES / "layers.onnx")
    assert len(encodings) == 5 and not encodings.notes
    for number in range(1, 6):
        found, real = encodings[Place(f"y{number}", "input", 1)], weights[f"w{number}"]
        assert found.qparams is not None and found.integers is not None
        q = found.qparams.quantization
        assert found.integers.shape == real.shape
        assert found.qparams.dtype == ("int4" if "_4_" in name else "int8") and not q.zero_point.any()
        scales = np.repeat(q.scale, q.block_size, 1) if q.block_size else q.scale.reshape(-1, *(1,) * (real.ndim - 1))
        assert np.abs(found.integers.astype(np.float32) - real / scales).max() <= 0.5 + 1e-5
        assert q.axis == (1 if q.block_size else None)
        assert (q.quant_min, q.quant_max) == ((-16, 15) if "_5_" in name else (None, None))


@pytest.mark.parametrize("name", ["weights_8", "weights_4", "weights_8_halves"])
def test_offsets_that_no_quantization_holds_leave_the_quantization_alone(name: str) -> None:
    """MNN's asymmetric weights are s q + b, where b is no multiple of s: integers would stand for other float values."""
    encodings = network_encodings(FIXTURES / f"{name}.mnn")
    assert len(encodings.notes) == 1 and "have float offsets" in encodings.notes[0]
    for layer in read_network(FIXTURES / f"{name}.mnn").layers:
        assert layer.weights is not None and layer.weights.offsets is not None
        found = encodings[Place(f"y{layer.node.name[1]}", "input", 1)]
        if layer.node.name[1] == "5":  # whose smallest weights are 0: whole steps
            assert found.integers is not None
            continue
        assert found.qparams is not None and found.integers is None
        q = found.qparams.quantization
        lowest = layer.weights.values.reshape(len(q.scale), -1).min(1)
        reached = q.scale * (-(8 if "_4" in name else 128) - q.zero_point)
        assert np.abs(reached - lowest).max() <= q.scale.max() * 0.51


def test_offsets_of_whole_steps_are_zero_points() -> None:
    integers = np.arange(-8, 8, dtype=np.int8).reshape(2, 2, 2, 2)
    scales = np.array([0.5, 0.25], np.float32)
    found = weights_encoding(LayerWeights(integers, 4, scales, np.array([1.5, -0.25], np.float32), True))
    assert found.qparams is not None and found.integers is not None
    assert found.qparams.quantization.zero_point.tolist() == [-3, 1]
    real = scales.reshape(2, 1, 1, 1) * (found.integers.astype(np.float32) - np.array([-3, 1]).reshape(2, 1, 1, 1))
    assert np.array_equal(real, scales.reshape(2, 1, 1, 1) * integers + np.array([1.5, -0.25]).reshape(2, 1, 1, 1))


def test_offsets_beyond_the_type_take_the_range_of_the_channel() -> None:
    """A zero point of -100 is beyond int4: the quantization goes from 0 to the largest weight, as no other holds 0 and both ends."""
    integers = np.arange(-8, 8, dtype=np.int8).reshape(2, 2, 2, 2)
    found = weights_encoding(LayerWeights(integers, 4, np.array([0.5, 0.25], np.float32), np.array([50.0, 0], np.float32), True))
    assert found.qparams is not None and found.integers is None
    q = found.qparams.quantization
    assert q.zero_point.tolist() == [-8, 0] and q.scale.tolist() == [np.float32(53.5 / 15), 0.25]
    huge = weights_encoding(LayerWeights(integers, 8, np.array([1e-30, 1], np.float32), np.array([1e30, 0], np.float32), True))
    assert huge.qparams is not None and huge.qparams.quantization.zero_point.tolist() == [-128, 0]


@pytest.mark.parametrize("offsets", [None, np.zeros(3, np.float32), np.array([1.5, 0, 0], np.float32)])
def test_channels_of_one_number_have_scale_0_in_mnn(offsets: Array | None) -> None:
    """Whatever their integers are: their weights are all 0, or all the offset."""
    integers = np.full((3, 1, 1, 2), -128, np.int8)
    integers[1:] = [[[[3, -4]]], [[[5, 6]]]]
    weights = LayerWeights(integers, 8, np.array([0, 0.5, 0.25], np.float32), offsets, True)
    found = weights_encoding(weights)
    assert found.qparams is not None and found.integers is not None
    q = found.qparams.quantization
    assert q.scale.tolist() == [0.25, 0.5, 0.25]
    real = q.scale.reshape(3, 1, 1, 1) * (found.integers - q.zero_point.reshape(3, 1, 1, 1))
    assert np.array_equal(real, weights.values)
    alone = weights_encoding(LayerWeights(integers[:1], 8, np.zeros(1, np.float32), None, True))
    assert alone.qparams is not None and alone.qparams.quantization.scale[0] > 0
    assert alone.integers is not None and not alone.integers.any()


@pytest.mark.parametrize("method", ["KL", "ADMM"])
def test_scales_of_tensors_are_those_of_the_dump(method: str) -> None:
    """MNN writes them twice, into the network as float32 and next to it as text."""
    encodings = network_encodings(FIXTURES / f"{method}.mnn")
    network = read_network(FIXTURES / f"{method}.mnn")
    stated: dict[str, float] = {}
    for operator in json.loads((FIXTURES / f"{method}_dump.json").read_text()):
        for item in operator["outputs"]:
            stated[network.names[item["tensorIndex"]]] = item["scales"][0]
    for name in ("x", "a1", "a2", "c3", "a3", "p", "y"):
        assert scale(encodings, name) == stated[name] > 0
        assert zero_point(encodings, name) == 0
        quantization = encodings[name].qparams
        assert quantization is not None and (quantization.quantization.quant_min, quantization.quantization.quant_max) == (-127, None)
    assert scale(encodings, "g") == stated["g__matmul_converted"]
    assert scale(encodings, Place("g", "input")) == stated["Reshape16"]
    own = Place("a1", "input")  # the layout of x is changed before; with ADMM the two have different scales
    assert (scale(encodings, own) == stated["x___tr4c1"] != stated["x"]) if method == "ADMM" else own not in encodings.entries


def test_the_converter_keeps_what_the_pipeline_says() -> None:
    encodings = network_encodings(FIXTURES / "pipeline.mnn")
    weights = constants(FIXTURES / "float.onnx")
    for layer in json.loads((FIXTURES / "pipeline.json").read_text())["algo"][0]["quantParams"]["layer"]:
        name = layer["output"][0]["name"]
        assert scale(encodings, name) == np.float32(layer["output"][0]["scales"][0])
        assert zero_point(encodings, name) == layer["output"][0]["zeroPoint"]
        found = encodings[Place(name, "input", 1)]
        assert found.qparams is not None and found.integers is not None
        scales = found.qparams.quantization.scale
        assert scales.tolist() == layer["weight"][0]["scales"]
        real = weights[layer["weight"][0]["name"]]
        assert np.array_equal(found.integers, np.rint(real / scales.reshape(-1, *(1,) * (real.ndim - 1))))
    assert (scale(encodings, Place("a1", "input")), zero_point(encodings, Place("a1", "input"))) == (0.03125, 3)


def test_ema_keeps_its_zero_points_once_its_layers_have_their_names_again() -> None:
    with refused(InvalidModelError, "names-lost", holds=(2, 4)) as caught:
        network_encodings(FIXTURES / "EMA.mnn")
    assert "--mnn" in caught.value.remedy
    encodings = network_encodings(FIXTURES / "EMA.mnn", read_network(FIXTURES / "float.mnn"))
    assert {str(place) for place in encodings.entries} >= {"'a1'", "'a2'", "'c3'", "'g'", "input 1 of 'a2'", "input 0 of 'a1'"}
    assert [zero_point(encodings, name) for name in ("a1", "a2", "c3", "g")] == [-127, -127, 9, 31]
    with refused(InvalidModelError, "files-do-not-match"):
        copy_names(read_network(FIXTURES / "EMA.mnn"), read_network(FIXTURES / "weights_8.mnn"))


@pytest.mark.parametrize(
    ("name", "error", "rule"),
    [
        ("float", InvalidModelError, "no-scales"),
        ("halves", InvalidModelError, "no-scales"),
        ("sparse", InvalidModelError, "no-scales"),
        ("outside", UnsupportedError, "external-data"),
    ],
)
def test_networks_without_scales_that_are_read(name: str, error: type[Exception], rule: str) -> None:
    with refused(error, rule) as caught:
        network_encodings(FIXTURES / f"{name}.mnn")
    assert f"{name}.mnn" in str(caught.value)


def test_real_layers_beside_quantized_ones_are_named() -> None:
    """Of a network with weights in float16 the scales of other layers are read; here the weights of one are left out."""
    from qconvert.formats.mnn import reader

    network = read_network(FIXTURES / "KL.mnn")
    part = replace(network, layers=(replace(network.layers[0], weights=None), *network.layers[1:]))
    found = reader._encodings(part)
    assert Place("a1", "input", 1) not in found.entries and "1 layers have float weights" in found.notes[0]


def test_groups_of_a_convolution_are_together_again() -> None:
    """MNN makes one layer of each, between a Slice and a Concat; what these give are no operands of the model's convolution."""
    encodings, weights = network_encodings(FIXTURES / "groups.mnn"), constants(FIXTURES / "groups.onnx")
    assert [node.name for node in read_network(FIXTURES / "groups.mnn").nodes if "group" in node.name] == ["c2__group__0", "c2__group__1"]
    assert {str(place) for place in encodings.entries} == {
        *(repr(name) for name in ("x", "a1", "a2", "a3", "y")),
        *(f"input 1 of {name!r}" for name in ("a1", "c2", "a3")),
    }
    found = encodings[Place("c2", "input", 1)]
    assert found.qparams is not None and found.integers is not None
    q = found.qparams.quantization
    assert np.array_equal(q.scale, np.abs(weights["w2"]).max((1, 2, 3)) / np.float32(127))
    assert np.array_equal(found.integers, np.rint(weights["w2"] / q.scale.reshape(8, 1, 1, 1)))


def test_groups_of_several_forms() -> None:
    parts = [LayerWeights(np.zeros((2, size, 1, 1), np.int8), 8, np.ones(2, np.float32), None, True) for size in (3, 4)]
    with refused(InvalidModelError, "contradicting-forms"):
        concatenate_groups(parts, "y")


@needs_samples
def test_the_sample_networks() -> None:
    for name in ("resnet8_from_pipeline", "resnet8_mnnquant_KL"):
        encodings = network_encodings(SHARED / f"{name}.mnn")
        integers = [found.integers for found in encodings.entries.values() if found.integers is not None]
        assert len(integers) == 10 and sum(item.size for item in integers) == 77_360
    pipeline = json.loads((SHARED / "pipeline_resnet8_affine.json").read_text())["algo"][0]["quantParams"]["layer"]
    encodings = network_encodings(SHARED / "resnet8_from_pipeline.mnn")
    real = constants(SHARED / "resnet8_float.onnx")
    nodes = {name: node for node in onnx.load(SHARED / "resnet8_float.onnx").graph.node for name in node.output}
    for layer in pipeline:
        stated = layer["output"][0]
        assert scale(encodings, stated["name"]) == np.float32(stated["scales"][0])
        assert zero_point(encodings, stated["name"]) == stated["zeroPoint"]
        found = encodings[Place(stated["name"], "input", 1)]
        assert found.qparams is not None and found.integers is not None
        assert found.qparams.quantization.scale.tolist() == np.float32(layer["weight"][0]["scales"]).tolist()
        node = nodes[stated["name"]]
        node = nodes[node.input[0]] if node.op_type == "Relu" else node
        expected = real[node.input[1]].reshape(found.integers.shape)
        scales = found.qparams.quantization.scale.reshape(-1, *(1,) * (expected.ndim - 1))
        assert np.array_equal(found.integers, np.rint(expected / scales))
