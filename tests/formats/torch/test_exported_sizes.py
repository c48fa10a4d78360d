"""Programs of torch.export with sizes that are known only at run time, as those of language models have them: run with another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.torch.written import needs_torch

import qconvert
from qconvert.evaluate import evaluate

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
