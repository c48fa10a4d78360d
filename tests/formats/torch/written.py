"""Helpers of the tests that need PyTorch itself: programs written, loaded and run."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.graph import Array, Graph

#: For tests that cannot run without PyTorch.
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def loaded(path: Path) -> Any:
    """The module of a .pt2 file."""
    from qconvert.formats.torch.program import torch_package

    return torch_package().export.load(io.BytesIO(path.read_bytes())).module()


def run(module: Any, graph: Graph, feed: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a module that was written from `graph`, by name."""
    from qconvert.formats.torch.program import torch_package

    torch = torch_package()
    with torch.no_grad():
        found = module(*[torch.from_numpy(np.array(feed[name])) for name in graph.inputs])
    return {name: value.numpy() for name, value in zip(graph.outputs, found, strict=True)}


def inputs_of(graph: Graph, seed: int = 0, batch: int = 2) -> dict[str, Array]:
    """Random inputs; sizes of the run time are `batch`."""
    rng = np.random.default_rng(seed)
    feed = {}
    for name in graph.inputs:
        tensor = graph[name]
        shape = [size if isinstance(size, int) else batch for size in tensor.shape or ()]
        if "int" in tensor.dtype:
            limits = np.iinfo(tensor.dtype)
            feed[name] = rng.integers(max(limits.min, -32768), min(limits.max, 32767) + 1, shape).astype(tensor.dtype)
        else:
            feed[name] = rng.normal(size=shape).astype(tensor.dtype)
    return feed
