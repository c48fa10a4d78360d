"""Every exact pass on whole models: valid graphs, and the same real outputs in the exact evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from passes.graphs import applied, random_integers

from qconvert import Graph, load
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.passes import BUILTIN

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
MODELS = ["aww_int8", "tiny_ad_toycar_int8", "tiny_kws_dscnn_int8", "tiny_resnet_cifar10_int8", "coral_mobilenet_v1_025_128_uint8"]
OF_TARGETS = {"fuse_pad", "assign_layout", "match_rounding", "store_activations", "guard_saturation", "float_io", "absorb_quantization"}
EXACT = sorted(name for name, item in BUILTIN.items() if item.exact and name not in OF_TARGETS)


def steps(graph: Graph, values: dict[str, Array]) -> list[Array]:
    """Stored values without their zero points, which storage types share."""
    found = []
    for name, value in values.items():
        quantization = graph[name].quantization
        found.append(value if quantization is None else value.astype(np.int64) - quantization.zero_point)
    return found


@pytest.fixture(scope="module", params=MODELS)
def source(request: pytest.FixtureRequest) -> tuple[Graph, dict[str, Array], list[Array]]:
    graph = load(FIXTURES / f"{request.param}.tflite")
    feeds = {}
    for name in graph.inputs:
        shape = tuple(1 if isinstance(size, str) else size for size in graph[name].shape or ())
        feeds[name] = random_integers(shape, graph[name].dtype)
    return graph, feeds, steps(graph, evaluate(graph, feeds))


@pytest.mark.parametrize("name", EXACT)
def test_outputs_stay(source: tuple[Graph, dict[str, Array], list[Array]], name: str) -> None:
    graph, feeds, expected = source
    changed, _ = applied(graph, name)
    moved = {}
    for key, value in feeds.items():
        old, new = graph[key].quantization, changed[key].quantization
        offset = 0 if old is None or new is None else int(new.zero_point[0] - old.zero_point[0])
        moved[key] = (value.astype(np.int64) + offset).astype(changed[key].dtype)
    for a, b in zip(expected, steps(changed, evaluate(changed, moved)), strict=True):
        assert np.array_equal(a, b)
