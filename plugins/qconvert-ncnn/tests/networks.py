"""Networks of one layer, as ncnn's files have them, with what they compute in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from qconvert_ncnn.container import Layer, format_param, pack_weights
from qconvert_ncnn.running import NcnnModel

from qconvert.plugin import Array, ModelFile


def save_layers(path: Path, *layers: Layer) -> Path:
    path.write_text(format_param(layers), encoding="utf-8")
    path.with_suffix(".bin").write_bytes(b"".join(part for layer in layers for part in layer.weights))
    return path


def run(path: Path, **inputs: Array) -> dict[str, Array]:
    return NcnnModel(ModelFile(path, "cpu")).run(inputs)


@dataclass(frozen=True)
class Convolution:
    """An int8 convolution of 3 x 3, padded by 1, with random weights."""

    channels: int
    outputs: int
    group: int = 1
    stride: int = 1
    relu: bool = False
    rounds: bool = False

    def made(self, seed: int) -> tuple[list[Layer], Array, Array]:
        """The layers, an input of 12 x 12, and the exact result: float values, or with `rounds` what is rounded to integers."""
        rng = np.random.default_rng(seed)
        data = rng.normal(0, 1, (self.channels, 12, 12)).astype(np.float32)
        weights = rng.integers(-127, 128, (self.outputs, self.channels // self.group, 3, 3)).astype(np.int8)
        scales = (1 / rng.uniform(0.005, 0.02, self.group if self.group > 1 else self.outputs)).astype(np.float32)
        bias = rng.normal(0, 1, self.outputs).astype(np.float32)
        bottom = np.float32(127 / np.abs(data).max())
        each = np.repeat(scales, self.outputs // scales.size).astype(np.float64)
        exact = self._sums(np.clip(np.rint(data.astype(np.float64) * bottom), -127, 127), weights)
        exact = exact / (np.float64(bottom) * each[:, None, None]) + bias[:, None, None]
        exact = np.maximum(exact, 0) if self.relu else exact
        top = np.float32(100 / np.abs(exact).max())
        params = {0: self.outputs, 1: 3, 3: self.stride, 4: 1, 5: 1, 6: weights.size, 8: 101 if self.rounds else 1}
        params |= {7: self.group} if self.group > 1 else {}
        params |= {9: 1} if self.relu else {}
        parts = [
            pack_weights(weights, True),
            pack_weights(bias, False),
            pack_weights(scales, False),
            pack_weights(bottom.reshape(1), False),
        ]
        parts += [pack_weights(top.reshape(1), False)] if self.rounds else []
        kind = "Convolution" if self.group == 1 else "ConvolutionDepthWise"
        sizes = {0: 12, 1: 12, 2: self.channels}
        layers = [Layer("Input", "x", (), ("x",), sizes), Layer(kind, "conv", ("x",), ("y",), params, tuple(parts))]
        return layers, data[None], exact * float(top) if self.rounds else exact

    def _sums(self, data: Array, weights: Array) -> Array:
        padded = np.pad(data, ((0, 0), (1, 1), (1, 1)))
        windows = sliding_window_view(padded, (3, 3), axis=(1, 2))[:, :: self.stride, :: self.stride]
        size, count = self.channels // self.group, self.outputs // self.group
        sums = [
            np.einsum("chwij,cij->hw", windows[place // count * size :][:size], item.astype(np.float64))
            for place, item in enumerate(weights)
        ]
        return np.stack(sums)
