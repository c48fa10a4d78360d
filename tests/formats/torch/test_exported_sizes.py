"""Programs of torch.export with sizes that are known only at run time, as those of language models have them: run with another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.torch.written import needs_torch

import qconvert
from qconvert.evaluate import evaluate
from qconvert.formats.torch.writer import live
from qconvert.graph import Graph, Op, Tensor

pytestmark = [pytest.mark.torch, needs_torch]


@pytest.mark.parametrize(
    "expression",
    [
        "x[i[:, None], i]",
        "x[i, :, i[:, None]]",
        "x[:, i, i[:1]]",
        "x.index_put((i[:, None], i), torch.ones([1, 4]))",
        "torch.broadcast_tensors(y[:, :1], y, y[:1])[0] * 2",
        "torch.zeros_like(y).scatter(1, y.argmax(1, keepdim=True), 1.0)",
        "torch.diff(y, 2, dim=0, prepend=y[:1] + 1)",
        "torch.diff(i, prepend=i[:1] - 1) != 1",
        "torch.diff(y > 0, append=y[:, :2] > 1)",
    ],
)
def test_a_program_of_another_size_means_what_pytorch_computes(expression: str, tmp_path: Path) -> None:
    import torch

    space: dict[str, Any] = {"torch": torch}
    exec(f"class M(torch.nn.Module):\n  def forward(self, x, i, y):\n    return {expression}\n", space)

    def inputs(size: int) -> list[Any]:
        return [torch.randn(6, 7, 4), torch.arange(size) % 4, torch.randn(size, 3)]

    torch.manual_seed(0)
    size = torch.export.Dim("size", min=3, max=9)
    program = torch.export.export(space["M"](), tuple(inputs(4)), dynamic_shapes={"x": None, "i": {0: size}, "y": {0: size}})
    torch.export.save(program, tmp_path / "m.pt2")
    graph = qconvert.load(tmp_path / "m.pt2")
    for count in (3, 7):
        values = inputs(count)
        wanted = space["M"]()(*values)
        (found,) = evaluate(graph, {name: value.numpy() for name, value in zip("xiy", values, strict=True)}).values()
        np.testing.assert_array_equal(found, wanted.numpy(), strict=True)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_ranges_and_rows_of_another_size_are_written(dtype: str) -> None:
    """Whole numbers up to a size, and elements at places whose number is known only at run time."""
    import torch

    ends = {"zero": np.int64(0), "one": np.int64(1), "at": np.int64(0)}
    tensors = [
        *(Tensor(name, "int64", (), np.asarray(value)) for name, value in ends.items()),
        *(Tensor(name, "float32", shape) for name, shape in (("x", (5, 6)), ("y", ("n",)))),
        *(Tensor(name, "int64", shape) for name, shape in (("i", ("n", 2)), ("sizes", (2,)), ("count", ()))),
        Tensor("range", dtype, ("n",)),
    ]
    ops = (
        Op("Shape", ("i",), ("sizes",)),
        Op("Gather", ("sizes", "at"), ("count",), {"axis": 0}),
        Op("Range", ("zero", "count", "one"), ("range",)),
        Op("GatherND", ("x", "i"), ("y",)),
    )
    module = live(Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x", "i"), ("range", "y")))
    x = np.arange(30, dtype=np.float32).reshape(5, 6)
    for places in ([[0, 1], [4, 5], [2, 0]], [[3, 3]]):
        counted, found = module(torch.from_numpy(x), torch.tensor(places))
        np.testing.assert_array_equal(counted.numpy(), np.arange(len(places), dtype=dtype), strict=True)
        np.testing.assert_array_equal(found.numpy(), [x[row, column] for row, column in places])


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_indices_are_zeros(mode: str, tmp_path: Path) -> None:
    import torch

    class Bags(torch.nn.Module):
        def forward(self, table: Any) -> Any:
            return torch.nn.functional.embedding_bag(torch.tensor([0, 2, 1]), table, torch.tensor([0, 2, 2]), mode=mode)

    table = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    torch.jit.trace(Bags(), torch.from_numpy(table)).save(str(tmp_path / "m.pt"))
    graph = qconvert.load(tmp_path / "m.pt", input_shape="4,3")
    found = evaluate(graph, {graph.inputs[0]: table})[graph.outputs[0]]
    np.testing.assert_allclose(found, Bags()(torch.from_numpy(table)).numpy(), rtol=1e-6)
