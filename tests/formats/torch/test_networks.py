"""PyTorch's own TorchScript files: every integer, scale and zero point is that of torch's accessors, and outputs are torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.arithmetic.rounding import dequantize
from qconvert.conversion.loading import load
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph

_FOLDER = Path(__file__).parents[3] / "fixtures" / "torch"
_FILES = sorted(
    str(path.relative_to(_FOLDER))
    for path in (*_FOLDER.glob("*/*.pt"), *_FOLDER.glob("*/*.ptl"))
    if not path.name.startswith(("refused", "qat")) and path.parent.name != "recurrent"
)
#: File -> outputs that may differ in single steps, by how many, and why torch's kernel differs from the real function rounded once.
_STEPS: dict[str, tuple[int, str]] = {}


def _graph(path: Path, values: Any) -> Graph:
    """The graph, with the shapes of the stored inputs where the file does not state them."""
    shapes = "; ".join(",".join(map(str, values[key].shape)) for key in sorted(values) if key.startswith("input_"))
    return load(path, input_shape=shapes)


@pytest.mark.parametrize("name", _FILES)
def test_integers_and_scales_are_those_of_torch(name: str) -> None:
    values = np.load((_FOLDER / name).with_suffix(".npz"))
    graph = _graph(_FOLDER / name, values)
    constants = list(graph.constants())
    layers = [key.removesuffix("/weight") for key in values if key.startswith("param/") and key.endswith("/weight")]
    for layer in layers:
        weight, scale, zero_point = (values[f"{layer}/{part}"] for part in ("weight", "scale", "zero_point"))
        found = [
            tensor
            for tensor in constants
            if tensor.data is not None and tensor.data.dtype == weight.dtype and np.array_equal(np.sort(tensor.data, None), np.sort(weight, None))
        ]
        assert found, layer
        grids = [tensor.quantization for tensor in found if tensor.quantization is not None]
        assert not grids or any(
            np.array_equal(grid.scale, scale.astype(np.float32).reshape(-1)) and np.array_equal(grid.zero_point, zero_point.reshape(-1)) for grid in grids
        )


@pytest.mark.parametrize("name", _FILES)
def test_outputs_are_those_of_torch(name: str) -> None:
    values = np.load((_FOLDER / name).with_suffix(".npz"))
    graph = _graph(_FOLDER / name, values)
    inputs = [values[key] for key in sorted(values) if key.startswith("input_")]
    found = evaluate(graph, dict(zip(graph.inputs, inputs, strict=True)))
    for index, output in enumerate(graph.outputs):
        grid, wanted = graph[output].quantization, values[f"output_{index}"]
        value = found[output] if grid is None else dequantize(found[output], grid)
        assert value.shape == wanted.shape
        assert np.allclose(value, wanted, rtol=1e-5, atol=1e-5), f"output {index}: {np.mean(~np.isclose(value, wanted)):.2%}"


def test_recurrent_layers_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="aten::quantized_lstm"):
        load(_FOLDER / "recurrent" / "dynamic_traced.pt")


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*/refused*.pt*")), ids=lambda path: path.name)
def test_what_holds_no_graph_is_refused_with_the_remedy(path: Path) -> None:
    with pytest.raises(QConvertError) as error:
        load(path)
    assert "torch.export.save" in str(error.value)
