"""Random small networks that PyTorch quantizes: FX modules of an engine, and for those who have torchao PT2E programs.

A seed is a network: blocks of layers on images, each tried once with data, then layers on vectors. Those who call this import torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: A step on images: from a generator, the number of channels, to a module and the channels that it gives.
_Step = Callable[[np.random.Generator, int], tuple[Any, int]]


def random_network(seed: int, limits: bool = True) -> tuple[Any, tuple[int, ...]]:
    """A network of real numbers and the shape of its data.

    Args:
        seed: of all choices.
        limits: whether it may have ReLU6 and Hardtanh, which qnnpack's kernels give in another order where channels are stored last.
    """
    import torch

    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    channels, size = int(rng.choice([1, 2, 3, 4, 8, 16])), int(rng.integers(5, 12))
    shape = (int(rng.integers(1, 3)), channels, size, size + int(rng.integers(0, 3)))
    network, data = torch.nn.Sequential(), torch.randn(shape)
    steps, found = _steps(), data
    for _ in range(int(rng.integers(2, 7))):
        module, given = steps[int(rng.integers(len(steps)))](rng, channels)
        if not limits and any(isinstance(each, (torch.nn.ReLU6, torch.nn.Hardtanh)) for each in module.modules()):
            continue
        try:
            after = module.eval()(found)
        except (RuntimeError, ValueError):
            continue
        if after.numel() and after.dim() == 4 and after.numel() < 20000:
            network.append(module)
            found, channels = after, given
    for module in _head(rng, tuple(found.shape)):
        network.append(module)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    for name, buffer in network.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer += 0.3 * torch.rand_like(buffer)
    return network.eval(), shape


def _head(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Any]:
    import torch

    nn = torch.nn
    ends: list[list[Any]] = [
        [],
        [nn.Flatten(), nn.Linear(int(np.prod(shape[1:])), 5)],
        [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape[1], 6), nn.ReLU(), nn.Linear(6, 3)],
        [nn.Flatten(2), nn.Linear(shape[2] * shape[3], 4)],
        [nn.Flatten(), nn.Linear(int(np.prod(shape[1:])), 4, bias=False), nn.Softmax(-1)],
    ]
    return ends[int(rng.integers(len(ends)))]


def _steps() -> list[_Step]:
    import torch

    nn, functions = torch.nn, torch.nn.functional

    class Joined(nn.Module):
        """Two branches of one size, joined."""

        def __init__(self, first: Any, second: Any, how: str) -> None:
            super().__init__()
            self.first, self.second, self.how = first, second, how

        def forward(self, x: Any) -> Any:
            a, b = self.first(x), self.second(x)
            if self.how == "cat":
                return torch.cat([a, b], 1)
            found = a * b if self.how == "mul" else a + b
            return functions.relu(found) if self.how == "add_relu" else found

    class Moved(nn.Module):
        """Data that are only moved, or interpolated."""

        def __init__(self, how: str) -> None:
            super().__init__()
            self.how = how

        def forward(self, x: Any) -> Any:
            if self.how == "permute":
                return x.permute(0, 1, 3, 2)
            if self.how == "slice":
                return x[:, :, 1:, :-1]
            if self.how == "chunk":
                first, second = x.chunk(2, 1)
                return torch.cat([second, first], 1)
            if self.how == "shuffle":
                n, c, h, w = x.shape
                return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
            if self.how == "pad":
                return functions.pad(x, [1, 0, 2, 1])
            if self.how == "mean":
                return x.mean([2, 3], True)
            return functions.interpolate(x, scale_factor=2.0, mode=self.how)

    def conv(rng: np.random.Generator, channels: int) -> tuple[Any, int]:
        groups = int(rng.choice([each for each in (1, 1, 2, channels) if channels % each == 0]))
        given = groups * int(rng.integers(1, 1 + max(1, 12 // groups)))
        options = {"stride": int(rng.integers(1, 3)), "padding": int(rng.integers(0, 3)), "dilation": int(rng.choice([1, 1, 2]))}
        size = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        made = [nn.Conv2d(channels, given, size, groups=groups, bias=bool(rng.integers(2)), **options)]
        made += [nn.BatchNorm2d(given)] * int(rng.integers(2))
        made += [[], [nn.ReLU()], [nn.ReLU6()], [nn.Hardswish()], [nn.LeakyReLU(0.1)]][int(rng.integers(5))]
        return nn.Sequential(*made), given

    def transposed(rng: np.random.Generator, channels: int) -> tuple[Any, int]:
        given = int(rng.integers(1, 6))
        return nn.ConvTranspose2d(channels, given, int(rng.integers(1, 4)), stride=int(rng.integers(1, 3))), given

    def joined(rng: np.random.Generator, channels: int) -> tuple[Any, int]:
        how = str(rng.choice(["add", "add_relu", "mul", "cat"]))
        branches = [nn.Conv2d(channels, channels, 3, padding=1), nn.Identity() if rng.integers(2) else nn.Conv2d(channels, channels, 1)]
        return Joined(branches[0], branches[1], how), 2 * channels if how == "cat" else channels

    def pooled(rng: np.random.Generator, channels: int) -> tuple[Any, int]:
        size, stride, pad = int(rng.integers(2, 4)), int(rng.integers(1, 3)), int(rng.integers(2))
        kinds = [nn.MaxPool2d(size, stride, pad), nn.AvgPool2d(size, stride, pad, count_include_pad=bool(rng.integers(2))),
                 nn.AdaptiveAvgPool2d((int(rng.integers(1, 4)), 2)), nn.MaxPool2d(size, stride, ceil_mode=True)]  # fmt: skip
        return kinds[int(rng.integers(len(kinds)))], channels

    def curved(rng: np.random.Generator, channels: int) -> tuple[Any, int]:
        kinds = [nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.Hardsigmoid(), nn.ELU(), nn.ReLU6(), nn.Hardtanh(-0.5, 0.7), nn.Hardswish(),
                 nn.LeakyReLU(0.2), nn.BatchNorm2d(channels), nn.GELU(), nn.SiLU()]  # fmt: skip
        return kinds[int(rng.integers(len(kinds)))], channels

    def changed(rng: np.random.Generator, channels: int) -> tuple[Any, int]:
        return Moved(str(rng.choice(["permute", "slice", "chunk", "shuffle", "pad", "mean", "nearest", "bilinear"]))), channels

    return [conv, conv, conv, transposed, joined, joined, pooled, curved, changed]


def fx_traced(seed: int, engine: str, folder: Path) -> tuple[Path, Array, Array]:
    """A traced file of a network that FX quantized for an engine, its data and what PyTorch gives."""
    import torch
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    network, shape = random_network(seed, limits=engine != "qnnpack")
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            prepared = quantize_fx.prepare_fx(network, get_default_qconfig_mapping(engine), (torch.randn(shape),))
            for _ in range(4):
                prepared(torch.randn(shape))
            data = torch.randn(shape)
            traced = torch.jit.trace(quantize_fx.convert_fx(prepared), (data,), check_trace=False)
            torch.jit.save(traced, folder / "model.pt")
            return folder / "model.pt", data.numpy(), traced(data).numpy()
    finally:
        torch.backends.quantized.engine = before
