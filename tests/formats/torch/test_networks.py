"""PyTorch's own TorchScript files: every integer, scale and zero point is that of torch's accessors, and outputs are torch's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from qconvert import convert
from qconvert.arithmetic.rounding import dequantize
from qconvert.conversion.loading import load
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.formats.torch.engines import ENGINES
from qconvert.graph import Graph

pytestmark = pytest.mark.onnxruntime

_FOLDER = Path(__file__).parents[3] / "fixtures" / "torch"
_FILES = sorted(
    str(path.relative_to(_FOLDER))
    for path in (*_FOLDER.glob("*/*.pt"), *_FOLDER.glob("*/*.ptl"))
    if not path.name.startswith(("refused", "qat"))
)
#: File -> output -> how many steps of the quantization, and of how many elements, torch's kernel differs from the real function rounded
#: once.
_DIFFERENT: dict[str, dict[int, tuple[float, float]]] = {
    # x.5 with a positive x: torch multiplies by the reciprocal of the scale
    "operators/activations_fbgemm_frozen.pt": {2: (1, 0.01)},
    "operators/activations_s8_fbgemm_frozen.pt": {2: (1, 0.02)},
    # likewise where a part is put on another part's quantization
    "operators/arithmetic_fbgemm_frozen.pt": {6: (1, 0.01), 7: (1, 0.01), 8: (1, 0.04), 10: (1, 0.04)},
    # products of bytes saturate in pairs on the machine that made the file, which has no instructions for sums of them
    "operators/convolutions_channel_fbgemm_frozen.pt": {0: (18, 0.06), 1: (18, 0.02)},
    "operators/onlyfbgemm_convolutions_zero_points_fbgemm_frozen.pt": {0: (18, 0.06), 1: (21, 0.02)},
    "operators/onlyfbgemm_convolutions_ranks_fbgemm_frozen.pt": {3: (27, 0.03)},
    # torch's PReLU multiplies what is positive too
    "operators/onlyfbgemm_fbgemm_frozen.pt": {3: (10, 0.4)},
    # means over axes that are not stored last, and of volumes, are made of float values; qnnpack leaves divisor_override away
    "operators/pools_fbgemm_frozen.pt": {14: (1, 0.35), 16: (1, 0.1)},
    "operators/pools_qnnpack_frozen.pt": {8: (19, 0.96), 14: (1, 0.35), 16: (1, 0.1)},
    # torch interpolates between stored integers by weights of its own rounding
    "operators/resizes_fbgemm_frozen.pt": {4: (1, 0.003)},
    # ties of sums that are multiples of a weight's scale
    "operators/onlyfbgemm_dynamic_convolutions_fbgemm_frozen.pt": {4: (0.07, 0.01)},
}  # fmt: skip


def _graph(path: Path, values: Any) -> Graph:
    """The graph by the engine that made it, with the shapes of the stored inputs where the file does not state them."""
    shapes = "; ".join(",".join(map(str, values[key].shape)) for key in sorted(values) if key.startswith("input_"))
    engine = json.loads(path.with_suffix(".json").read_text()).get("engine")
    return load(path, input_shape=shapes, engine=engine if engine in ENGINES else "")


@pytest.mark.parametrize("name", _FILES)
def test_integers_and_scales_are_those_of_torch(name: str) -> None:
    values = np.load((_FOLDER / name).with_suffix(".npz"))
    graph = _graph(_FOLDER / name, values)
    layers = [key.removesuffix("/weight") for key in values if key.startswith("param/") and key.endswith("/weight")]
    for layer in layers:
        weight, scale, zero_point = (values[f"{layer}/{part}"] for part in ("weight", "scale", "zero_point"))
        if "4bit" in name:  # two values a byte
            weight = np.stack([weight & 15, weight >> 4])
        found = [tensor for tensor in graph.constants() if _same(tensor.data, weight)]
        assert found, layer
        quantizations = [tensor.quantization for tensor in found if tensor.quantization is not None]
        stated = scale.astype(np.float32).reshape(-1), zero_point.reshape(-1)
        assert not quantizations or any(
            np.array_equal(g.scale, stated[0]) and np.array_equal(g.zero_point, stated[1]) for g in quantizations
        )


def _same(data: Any, weight: Any) -> bool:
    """Whether these are the same integers, perhaps with their axes in another order."""
    return data is not None and data.dtype == weight.dtype and np.array_equal(np.sort(data, None), np.sort(weight, None))


@pytest.mark.parametrize("name", _FILES)
def test_outputs_are_those_of_torch(name: str) -> None:
    values = np.load((_FOLDER / name).with_suffix(".npz"))
    graph = _graph(_FOLDER / name, values)
    inputs = [values[key] for key in sorted(values) if key.startswith("input_")]
    found = evaluate(graph, dict(zip(graph.inputs, inputs, strict=True)))
    for index, output in enumerate(graph.outputs):
        quantization, wanted = graph[output].quantization, values[f"output_{index}"]
        value = dequantize(found[output], quantization) if quantization is not None and wanted.dtype.kind == "f" else found[output]
        steps, share = _DIFFERENT.get(name, {}).get(index, (0, 0))
        off = np.abs(value.astype(np.float64) - wanted)
        assert value.shape == wanted.shape and off.max(initial=0) <= steps * _step(graph, output) + 1e-5, f"output {index}"
        assert np.mean(off > 1e-5) <= share, f"output {index}"


def _step(graph: Graph, output: str) -> float:
    """One step of the quantization from which an output was made."""
    made = graph.producers().get(output)
    quantization = graph[output].quantization or (None if made is None else graph[made.inputs[0]].quantization)
    return 1.0 if quantization is None else quantization.step


@pytest.mark.cross_section
def test_blocks_of_pixels_of_guessed_sizes_go_to_onnx(tmp_path: Path) -> None:
    """Height and width are names where the file states none; bytes are moved by ONNX's own operator."""
    source = _FOLDER / "shapes" / "fx_fbgemm_frozen.pt"
    values = np.load(source.with_suffix(".npz"))
    convert(source, tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: values["input_0"]})
    assert found.shape == values["output_0"].shape
    step = np.diff(np.unique(values["output_0"].round(5))).min()
    off = np.abs(found - values["output_0"])
    assert off.max() <= step * 1.01 and (off > 1e-5).mean() < 0.05


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*/refused*.pt*")), ids=lambda path: path.name)
def test_what_holds_no_graph_is_refused_with_the_remedy(path: Path) -> None:
    with pytest.raises(QConvertError) as error:
        load(path)
    assert "torch.export.save" in str(error.value)


def test_numbers_are_those_of_pytorchs_kernels() -> None:
    """Kernels take a slope or an epsilon in float32, as ONNX stores it."""
    numbers = {
        (op.kind, key): value
        for path in ("activations/fx_fbgemm_frozen.pt", "norms/fx_fbgemm_frozen.pt")
        for op in load(_FOLDER / path).ops
        for key, value in op.attributes.items()
        if isinstance(value, float)
    }
    assert ("LeakyRelu", "alpha") in numbers and any(key == "epsilon" for _, key in numbers)
    assert all(value == float(np.float32(value)) for value in numbers.values())
