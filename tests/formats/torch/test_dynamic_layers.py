"""Layers of dynamic range: their data become integers at each run, by the range that PyTorch takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from qconvert import convert
from qconvert.conversion.loading import load
from qconvert.operators import is_dynamic
from qconvert.runtimes.litert import LiteRT
from tests.torchscript_models import Instance, Quantized, archive, graph_of, net, packed_conv, values_of

pytestmark = pytest.mark.onnxruntime

_FOLDER = Path(__file__).parents[3] / "fixtures" / "torch" / "perceptron"


@pytest.mark.parametrize("name", ["dynamic_channel_frozen", "dynamic_fbgemm_traced"])
def test_onnx_rounds_as_torch_does_if_it_is_asked_to(tmp_path: Path, name: str) -> None:
    values = np.load(_FOLDER / f"{name}.npz")
    assert {op["arithmetic"] for op in load(_FOLDER / f"{name}.pt").ops if is_dynamic(op)} == {"dynamic_reduced"}
    for mode in ("keep", "real"):
        convert(_FOLDER / f"{name}.pt", tmp_path / f"{mode}.onnx", dynamic=mode)
        session = ort.InferenceSession(tmp_path / f"{mode}.onnx")
        (found,) = session.run(None, {session.get_inputs()[0].name: values["input_0"]})
        difference = np.abs(found - values["output_0"]).max()
        assert difference < 1e-5 if mode == "keep" else 1e-5 < difference < 0.02


def test_tflite_rounds_each_row(tmp_path: Path) -> None:
    convert(_FOLDER / "dynamic_fbgemm_traced.pt", tmp_path / "model.tflite")
    found = [op["arithmetic"] for op in load(tmp_path / "model.tflite").ops if is_dynamic(op)]
    assert found == ["dynamic"] * 3


@pytest.mark.litert
def test_convolutions_of_all_ranks_in_tflite(tmp_path: Path) -> None:
    """LiteRT has no kernel that rounds the data of three dimensions, and takes no integer weights there."""
    source = _FOLDER.parent / "operators" / "onlyfbgemm_dynamic_convolutions_fbgemm_frozen.pt"
    values = np.load(source.with_suffix(".npz"))
    report = convert(source, tmp_path / "model.tflite", input_shape="2,4,5,5")
    assert "3-D operators compute in float, because LiteRT has no kernel for them that quantizes its data: 1" in str(report.tables())
    written = load(tmp_path / "model.tflite")
    assert sum(is_dynamic(op) for op in written.ops) == 4
    data = values["input_0"].transpose(0, 2, 3, 1) if written[written.inputs[0]].shape == (2, 5, 5, 4) else values["input_0"]
    runtime = LiteRT((tmp_path / "model.tflite").read_bytes())
    found = runtime.run_in_order([np.ascontiguousarray(data)])
    for index, value in enumerate(found):
        wanted = values[f"output_{index}"]
        assert value.shape == wanted.shape
        assert np.abs(value - wanted).max() <= 0.04 * np.abs(wanted).max(), index


@pytest.mark.cross_section
def test_a_program_s_rounding_is_part_of_its_layers(tmp_path: Path) -> None:
    """PT2E of dynamic range, whose scales are computed in the program."""
    source = _FOLDER.parent / "small" / "pt2e_x86_dynamic.pt2"
    values = np.load(source.with_suffix(".npz"))
    graph = load(source)
    assert [op["arithmetic"] for op in graph.ops if is_dynamic(op)] == ["dynamic_tensor"] * 2
    assert not {"Round", "ReduceMin"} & {op.kind for op in graph.ops}
    for result in ("model.onnx", "model.tflite"):
        convert(source, tmp_path / result)
    session = ort.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: values["input_0"]})
    np.testing.assert_allclose(found, values["output_0"], atol=1e-6)
    kinds = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert kinds.count("DynamicQuantizeLinear") == 2 and "ConvInteger" in kinds and "MatMulInteger" in kinds
    assert [op["arithmetic"] for op in load(tmp_path / "model.tflite").ops if is_dynamic(op)] == ["dynamic"] * 2


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_round_their_data_and_results(tmp_path: Path, transposed: bool, reduced: bool) -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.integers(-127, 128, (2, 2, 1, 1)).astype(np.int8), np.array([0.5, -1.0], np.float32)
    packed = packed_conv(Quantized(weight, 0.02), bias)
    if transposed:
        sizes = packed.state[1][0].copy()
        sizes[-1] = 1
        packed = Instance(packed.kind.replace("Conv", "ConvTranspose"), ("2", [sizes, packed.state[1][1]], [bias]))
    name = "conv_transpose2d" if transposed else "conv2d"
    path = archive(
        tmp_path / "a.pt",
        net(f"return ops.quantized.{name}_dynamic(x, self.p, {reduced})"),
        {"p": packed},
        traced=[("float32", (2, 2, 3, 3))],
    )
    x = rng.normal(0, 2, (2, 2, 3, 3)).astype(np.float32)
    low, high, most = min(x.min(), 0), max(x.max(), 0), 127 if reduced else 255
    scale = (high - low) / most
    zero_point = np.rint(-low / scale)
    steps = np.clip(np.rint(x / scale) + zero_point, 0, most) - zero_point
    kernel = weight[:, :, 0, 0].astype(np.float64) * 0.02
    expected = np.einsum("io,nihw->nohw" if transposed else "oi,nihw->nohw", kernel, steps * scale) + bias[:, None, None]
    # as torch does, with the quantization of the data
    expected = (np.clip(np.rint(expected / scale) + zero_point, 0, 255) - zero_point) * scale
    off = np.abs(values_of(graph_of(path), x)[0] - expected)
    assert np.mean(off > 1e-4) < 0.05 and off.max() < 1.01 * scale
