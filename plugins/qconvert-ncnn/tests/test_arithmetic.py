"""ncnn's own arithmetic, as README.md states it: what the reach of the runtime and the form of the files rest on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from networks import Convolution, run, save_layers
from qconvert_ncnn.container import Layer, pack_weights
from qconvert_ncnn.quantizations import inverse, nearest_invertible_scale


@pytest.mark.parametrize(
    "conv",
    [
        Convolution(3, 8, stride=2),
        Convolution(16, 16),
        Convolution(5, 7, relu=True),
        Convolution(8, 16, group=4),
        Convolution(7, 7, group=7),
    ],
)
def test_int8_convolutions_are_exact_to_float32(conv: Convolution, tmp_path: Path) -> None:
    layers, data, exact = conv.made(1)
    found = run(save_layers(tmp_path / "net.param", *layers), x=data)["y"][0]
    assert np.abs(found - exact).max() < 4e-7 * np.abs(exact).max()


@pytest.mark.parametrize("conv", [Convolution(3, 8, rounds=True), Convolution(16, 16, stride=2, relu=True, rounds=True)])
def test_what_a_convolution_gives_as_integers_is_rounded_once(conv: Convolution, tmp_path: Path) -> None:
    (start, layer), data, exact = conv.made(2)
    cast = Layer("Cast", "cast", ("y",), ("z",), {0: 3, 1: 1})
    path = save_layers(tmp_path / "net.param", start, layer, cast)
    from qconvert_ncnn.running import load_in_child  # the reader has no Cast

    found = load_in_child(path, 1).extract_blobs({"x": data[0]}, ["z"])[0]
    away = np.abs(exact - np.rint(exact)) < 0.4999  # from ties
    assert np.array_equal(found[away], np.rint(exact)[away])


def test_kernels_of_eight_channels_multiply_by_an_approximate_reciprocal(tmp_path: Path) -> None:
    """Off by up to 1.5 * 2^-12 of the sums with AVX; other machines may be exact."""
    layers, data, exact = Convolution(16, 16, group=16).made(3)
    off = np.abs(run(save_layers(tmp_path / "net.param", *layers), x=data)["y"][0] - exact).max()
    assert off < 1.5 * 2.0**-12 * (np.abs(exact).max() + 4)


def test_roundings_in_layers_of_their_own_are_those_of_onnx(tmp_path: Path) -> None:
    """Halves to even, up to the bounds."""
    scale = np.float32(0.25)
    layers = [
        Layer("Input", "x", (), ("x",), {0: 6}),
        Layer("BinaryOp", "a", ("x",), ("a",), {0: 2, 1: 1, 2: float(inverse(scale))}),
        Layer("UnaryOp", "b", ("a",), ("b",), {0: 18}),
        Layer("Clip", "c", ("b",), ("c",), {0: -4.0, 1: 3.0}),
        Layer("BinaryOp", "y", ("c",), ("y",), {0: 2, 1: 1, 2: float(scale)}),
    ]
    data = np.array([[0.125, 0.375, -0.125, -0.375, 9.0, -9.0]], np.float32)
    assert run(save_layers(tmp_path / "net.param", *layers), x=data)["y"].tolist() == [[0.0, 0.5, 0.0, -0.5, 0.75, -1.0]]


def test_scales_that_files_can_say_come_back() -> None:
    """1 / scale is rounded to float32: of most scales it brings the scale back, and a neighbour's does else."""
    scales = np.exp(np.random.default_rng(4).uniform(-12, 6, 20_000)).astype(np.float32)
    shown = nearest_invertible_scale(scales)
    assert np.array_equal(inverse(inverse(shown)), shown)
    assert np.abs(shown / scales.astype(np.float64) - 1).max() < 2.5e-7
    assert 0.5 < (shown == scales).mean() < 1


def test_weights_of_every_stored_type_are_read(tmp_path: Path) -> None:
    """float32, float16 and int8, each after its mark and filled up to four bytes."""
    from qconvert.plugin import load

    weights = np.array([[1, 2, -3], [0.5, 0, 4]], np.float32)
    start, params = Layer("Input", "x", (), ("x",), {0: 3}), {0: 2, 2: 6}
    half = (0x01306B47).to_bytes(4, "little") + weights.astype("<f2").tobytes()
    scales = pack_weights(np.array([2, 4], np.float32), False) + pack_weights(np.array([8], np.float32), False)
    stored = [pack_weights(weights, True), half, pack_weights(weights.round().astype(np.int8), True) + scales]
    for number, data in enumerate(stored):
        layer = Layer("InnerProduct", "fc", ("x",), ("y",), params | ({8: 1} if number == 2 else {}), (data,))
        graph = load(save_layers(tmp_path / f"{number}.param", start, layer))
        op = next(op for op in graph if op.kind == "Gemm")
        expected = weights if number < 2 else weights.round() / [[2], [4]]
        assert np.array_equal(graph[op.inputs[1]].float_values(), expected)
