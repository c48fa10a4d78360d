"""PyTorch's operators of dynamic dimensions and three dimensions in LiteRT, which has other forms for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qconvert import convert
from qconvert.runtimes.litert import LiteRT
from tests.torchscript_models import archive, graph_of, net, values_of

pytestmark = pytest.mark.litert


@pytest.mark.parametrize("batch", [1, 3])
def test_groups_are_normalized_in_an_open_batch(batch: int, tmp_path: Path) -> None:
    source, result = tmp_path / "a.pt", tmp_path / "a.tflite"
    archive(source, net("return torch.group_norm(x, 2, None, None)"))
    x = np.random.default_rng(2).normal(2, 3, (batch, 6, 3, 2)).astype(np.float32)
    (wanted,) = values_of(graph_of(source, "batch,6,3,2"), x)
    convert(source, result, input_shape="batch,6,3,2")
    (found,) = LiteRT(result.read_bytes()).run_in_order([x])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_what_is_left_beside_an_open_batch_is_known(tmp_path: Path) -> None:
    """-1 stands for a number where the batch stays what it is, and the constant that says so copies it."""
    source = tmp_path / "a.pt"
    archive(source, net("return torch.reshape(x, [torch.size(x, 0), 2, 3, -1])"))
    graph = graph_of(source, "batch,12,2")
    assert graph[graph.outputs[0]].shape == ("batch", 2, 3, 4)
    assert [op.kind for op in graph.ops if op.kind != "Reshape"] in ([], ["Shape", "Gather", "Pack"], ["Shape", "Gather"])
    x = np.arange(72, dtype=np.float32).reshape(3, 12, 2)
    convert(source, tmp_path / "a.tflite", input_shape="batch,12,2")
    (found,) = LiteRT((tmp_path / "a.tflite").read_bytes()).run_in_order([x])
    np.testing.assert_array_equal(found, x.reshape(3, 2, 3, 4))


@pytest.mark.cross_section
@pytest.mark.parametrize("sizes", [(4, 6, 10), (3, 2, 7)])
def test_the_nearest_of_a_volume_are_copied(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    source, result = tmp_path / "a.pt", tmp_path / "a.tflite"
    archive(source, net(f"return torch.upsample_nearest3d(x, {list(sizes)}, None)"), traced=[("float32", (1, 2, 2, 3, 5))])
    x = np.random.default_rng(2).normal(size=(1, 2, 2, 3, 5)).astype(np.float32)
    places = [np.floor(np.arange(wanted) * (size / wanted)).astype(int) for wanted, size in zip(sizes, (2, 3, 5), strict=True)]
    convert(source, result)
    (found,) = LiteRT(result.read_bytes()).run_in_order([x])
    np.testing.assert_array_equal(found, x[:, :, places[0]][:, :, :, places[1]][..., places[2]])
