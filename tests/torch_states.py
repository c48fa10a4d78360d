"""state_dicts made without PyTorch, for tests, and graphs compared with what a network's parameters are."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torchscript_models import Quantized, _Pickle

from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph


def state_file(path: Path, values: Any) -> Path:
    """What torch.save writes of a dictionary of arrays, Quantized tensors, tuples and numbers."""
    pickle = _Pickle()
    content = pickle.whole(values)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for index, storage in enumerate(pickle.storages):
            archive.writestr(f"archive/data/{index}", storage)
        archive.writestr("archive/version", "3\n")
    return path


def classifier_state(prefix: str = "", seed: int = 0) -> dict[str, Any]:
    """A state_dict of the network of fixtures/torch/classifier as eager mode quantizes it, with random numbers."""
    rng = np.random.default_rng(seed)
    state: dict[str, Any] = {"quant.scale": np.array([0.05], np.float32), "quant.zero_point": np.array([100])}
    for module, shape in (("first", (4, 3, 3, 3)), ("second", (4, 4, 3, 3)), ("output", (4, 4))):
        weight = Quantized(rng.integers(-128, 128, shape).astype(np.int8), rng.uniform(0.001, 0.01, shape[0]), 0, 0)
        bias = rng.normal(size=shape[0]).astype(np.float32)
        if module == "output":
            state[f"{prefix}{module}._packed_params._packed_params"] = (weight, bias)
        else:
            state |= {f"{prefix}{module}.weight": weight, f"{prefix}{module}.bias": bias}
    for place, module in enumerate(("first", "second", "add", "output")):
        state[f"{prefix}{module}.scale"] = np.array(0.02 + 0.01 * place, np.float32)
        state[f"{prefix}{module}.zero_point"] = np.array(0 if module == "first" else 60 + place)
    return state


def layers(graph: Graph) -> list[tuple[Any, ...]]:
    """What the layers of a graph are made of, in order: integers, their quantization, bias, and the quantizations of data and result."""
    found = []
    for op in graph.ops:
        if op.kind in ("Conv", "Gemm", "ConvTranspose"):
            weight, data, result = graph[op.inputs[1]], graph[op.inputs[0]], graph[op.outputs[0]]
            bias = graph.constant(op.inputs[2]) if len(op.inputs) > 2 else None
            found.append(
                (weight.dtype, weight.data, weight.quantization, bias, data.dtype, data.quantization, result.dtype, result.quantization)
            )
    return found


def equal_layers(a: Graph, b: Graph) -> bool:
    """Whether two graphs have the same layers."""
    pairs = list(zip(layers(a), layers(b), strict=True))
    return all(
        np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y for one, other in pairs for x, y in zip(one, other, strict=True)
    )


def computed(graph: Graph, values: Mapping[str, Array]) -> Array:
    """The first output for the inputs input_0, input_1 …"""
    return evaluate(graph, {name: values[f"input_{index}"] for index, name in enumerate(graph.inputs)})[graph.outputs[0]]
