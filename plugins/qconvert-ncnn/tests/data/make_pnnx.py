"""Makes the files of pnnx that the tests read: two small networks of PyTorch, as .param and .bin, and what PyTorch computes.

    pip install torch pnnx numpy
    python make_pnnx.py

Made with pnnx 20261020 and torch 2.13.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).parent


class Vision(nn.Module):
    """Convolutions, pools, resizing and what stands between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16)
        self.depthwise, self.pointwise, self.swish = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 24, 1), nn.Hardswish()
        self.up, self.slope, self.head = nn.ConvTranspose2d(24, 8, 2, 2), nn.PReLU(8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.relu6(self.norm(self.stem(x)))
        y = self.swish(self.pointwise(functional.leaky_relu(self.depthwise(x), 0.1)))
        y = self.slope(self.up(functional.max_pool2d(y, 3, 2, 1, ceil_mode=True)))
        y = functional.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        y = functional.avg_pool2d(torch.cat([y, functional.gelu(y)], 1)[:, 4:12], 2)
        return torch.softmax(self.head(y.mean((2, 3))), -1), torch.sigmoid(y) * 2 + 1


class Attention(nn.Module):
    """One head of attention over six positions, and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / 4, -1)
        return self.head(self.norm(weights @ self.value(x) + x))


def make(name: str, network: nn.Module, x: torch.Tensor) -> None:
    network.eval()
    torch.jit.trace(network, x).save(str(HERE / f"{name}.pt"))
    shape = "[" + ",".join(map(str, x.shape)) + "]"
    subprocess.run(["pnnx", f"{name}.pt", f"inputshape={shape}", "fp16=0"], cwd=HERE, check=True)
    for suffix in ("param", "bin"):
        (HERE / f"{name}.ncnn.{suffix}").rename(HERE / f"pnnx_{name}.{suffix}")
    results = network(x)
    results = results if isinstance(results, tuple) else (results,)
    np.savez_compressed(
        HERE / f"pnnx_{name}.npz", x=x.numpy(), **{f"out{index}": item.detach().numpy() for index, item in enumerate(results)}
    )
    for left in (*HERE.glob(f"{name}.*"), *HERE.glob(f"{name}_*.py")):
        left.unlink()


if __name__ == "__main__":
    torch.manual_seed(0)
    vision, picture, attention, rows = Vision(), torch.randn(1, 3, 32, 32), Attention(), torch.randn(1, 6, 16)
    make("vision", vision, picture)
    make("attention", attention, rows)
