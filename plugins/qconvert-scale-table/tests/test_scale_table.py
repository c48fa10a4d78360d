"""The table of a graph made by hand, there and back, and the format through qconvert's own functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qconvert_scale_table import HEAD

import qconvert
from qconvert import Graph, Op, Quantization, Tensor


@pytest.fixture
def graph() -> Graph:
    tensors = [
        Tensor("x", "int8", (1, 2), None, Quantization.per_tensor(0.5, 3)),
        Tensor("w", "int8", (3, 2), np.ones((3, 2), np.int8), Quantization.per_axis([0.25, 0.1, 2.0], 0)),
        Tensor("y", "int8", (1, 3), None, Quantization.per_tensor(2.0)),
    ]
    return Graph("hand", {t.name: t for t in tensors}, (Op("Gemm", ("x", "w"), ("y",)),), ("x",), ("y",))


def test_a_line_for_each_quantized_tensor_there_and_back(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "model.scales"
    real, found = qconvert.extract_scales(graph)
    qconvert.save_encodings(found, path)
    lines = [HEAD, "x\tint8\t\t0.5\t3", "w\tint8\t0\t0.25 0.100000001 2\t0 0 0", "y\tint8\t\t2\t0"]
    assert path.read_text().splitlines() == lines
    again = qconvert.apply(real, path)
    (op,) = (op for op in again.ops if op.kind == "Gemm")
    assert again[op.inputs[1]].quantization == graph["w"].quantization and again[op.outputs[0]].quantization == graph["y"].quantization


@pytest.mark.parametrize("line", ["x\tint8\t\t0.5", "x\tint8\t\tmany\t0", "x\tint8\t\t-1\t0"])
def test_a_damaged_table_is_one_error(line: str, tmp_path: Path) -> None:
    path = tmp_path / "model.scales"
    path.write_text(f"{HEAD}\n{line}\n")
    with pytest.raises(qconvert.QConvertError) as caught:
        qconvert.load_encodings(path)
    assert caught.value.file == str(path)
