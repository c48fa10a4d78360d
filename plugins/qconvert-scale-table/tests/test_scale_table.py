"""The table of a graph made by hand, and the format through qconvert's own functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qconvert_scale_table import qconvert_formats

import qconvert
from qconvert import Graph, Op, Quantization, Tensor


@pytest.fixture
def graph() -> Graph:
    tensors = [
        Tensor("x", "int8", (1, 2), None, Quantization.per_tensor(0.5, 3)),
        Tensor("w", "int8", (3, 2), np.ones((3, 2), np.int8), Quantization.per_axis([0.25, 0.1, 2.0], 0)),
        Tensor("real", "float32", (1, 2)),
    ]
    return Graph("hand", {t.name: t for t in tensors}, (Op("Dequantize", ("x",), ("real",)),), ("x",), ("real",))


def test_a_line_for_each_quantized_tensor(graph: Graph, tmp_path: Path) -> None:
    (table,) = qconvert_formats()
    assert table.write is not None
    table.write(graph, tmp_path / "model.scales", {})
    assert (tmp_path / "model.scales").read_text().splitlines() == [
        "name\ttype\taxis\tscale\tzero_point",
        "x\tint8\t\t0.5\t3",
        "w\tint8\t0\t0.25 0.100000001 2\t0 0 0",
    ]


def test_qconvert_finds_the_installed_plugin(graph: Graph, tmp_path: Path) -> None:
    qconvert.save(graph, tmp_path / "model.scales")
    assert (tmp_path / "model.scales").read_text().count("\n") == 3
    with pytest.raises(qconvert.QConvertError, match="the format scales cannot be read"):
        qconvert.load(tmp_path / "model.scales")
