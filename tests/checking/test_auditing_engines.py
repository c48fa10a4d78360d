"""audit() with an engine of TensorRT: its layers next to what was predicted, by the command line too."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import forked
import pytest
from onnx_nodes import model_of
from refusals import refused

from qconvert import audit
from qconvert.errors import OptionError, RuntimeRefusedError, UnsupportedError
from qconvert.kernels import Kernel, Kernels

pytest.importorskip("tensorrt_rtx_bindings")

FIXTURES = Path(__file__).parents[2] / "fixtures"
RESNET = FIXTURES / "tiny_resnet_cifar10_int8.tflite"


def _ran(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return forked.run(["audit", *arguments])


@pytest.mark.tensorrt
def test_every_product_of_a_network_is_on_integers() -> None:
    report = audit(RESNET, "tensorrt", build=True)
    products = [layer for layer in report.layers if layer.type in ("correlation", "gemm")]
    assert [layer.integer for layer in products] == [True] * 10
    assert all(set(layer.operators) <= {"Conv", "Gemm", "DequantizeLinear"} for layer in products)
    average = next(layer for layer in report.layers if layer.type == "avgpool")
    assert (average.integer, average.reasons) == (False, ("its data are float",))
    assert report.otherwise == () and not report.unjudged
    assert "built the engine for compute capability 8.9" in report.notes[0] and "it was not run" in report.notes[0]


@pytest.mark.tensorrt
@pytest.mark.parametrize(
    "name",
    [
        "tiny_vww_mobilenet_int8.tflite", "tflm_mobilenet_v2_from_torch_int8.tflite", "onnx/brevitas_int4.onnx",
        "onnx/modelopt_torch_vision.onnx", "onnx/torch_fx_fbgemm_vision.onnx", "onnx/torch_fx_qat_attention.onnx",
        "onnx/torch_pt2e_xnnpack_vision.onnx",
    ],
)  # fmt: skip
def test_the_prediction_is_what_was_built(name: str) -> None:
    """Layers are engine-wide, so that what moves data is often a part of another: sums of products are all seen."""
    report = audit(FIXTURES / name, "tensorrt", build=True)
    assert report.otherwise == ()
    assert all(op.ran is not None for op in report.operators if op.kind in ("Conv", "ConvTranspose", "Gemm", "MatMul"))


@pytest.mark.tensorrt
@pytest.mark.cross_section
def test_run_builds_too() -> None:
    """For a target whose runtime only builds engines."""
    report = audit(RESNET, "tensorrt", run=True, kernels="tensorrt:sm80")
    assert [layer.integer for layer in report.layers if layer.type in ("correlation", "gemm")] == [True] * 10


@pytest.mark.tensorrt
def test_a_prediction_that_is_wrong_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    from qconvert.plugins import registry, target_named

    wrong = target_named("tensorrt").derive(name="tensorrt-wrong", kernels=Kernels((Kernel(("Conv",), ("int16",)),)))
    known = {**registry.targets(), wrong.name: wrong}
    monkeypatch.setattr(registry, "targets", lambda: known)
    monkeypatch.setattr(registry, "_unresolved_targets", lambda: known)
    report = audit(RESNET, "tensorrt-wrong", build=True)
    assert all(not op.integer for op in report.operators if op.kind == "Conv")
    assert {op.kind for op in report.otherwise} <= {"Conv", "Gemm"}
    assert {layer.otherwise for layer in report.layers if layer.type == "correlation" and layer.integer} <= {True}


def test_what_builds_no_engines() -> None:
    with refused(OptionError, "no-engines", holds=("LiteRT",)):
        audit(RESNET, "tflite", build=True)


@pytest.mark.end_to_end
def test_the_command_prints_the_layers() -> None:
    found = _ran(RESNET, "--target", "tensorrt", "--build", "--sm", "8.0")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert sum("correlation" in line and "integers" in line for line in lines) == 9
    assert any("avgpool" in line and "float" in line and "float" in line for line in lines)
    assert "TensorRT would run 10 of 10 operators as predicted" in found.stdout
    assert "compute capability 8.0" in found.stdout


@pytest.mark.end_to_end
def test_the_command_prints_json() -> None:
    found = _ran(RESNET, "--target", "tensorrt", "--build", "--json")
    layers = json.loads(found.stdout)["layers"]
    assert sum(layer["type"] == "correlation" and layer["integer"] for layer in layers) == 9


@pytest.mark.end_to_end
def test_a_capability_that_there_is_not() -> None:
    found = _ran(RESNET, "--target", "tensorrt", "--build", "--kernels", "tensorrt:sm61")
    assert found.returncode == 2 and "tensorrt:sm61" in found.stderr and "tensorrt:sm89" in found.stderr


@pytest.mark.tensorrt
@pytest.mark.end_to_end
def test_a_builder_that_refuses(tmp_path: Path) -> None:
    """NonZero, which TensorRT has and TensorRT-RTX lacks."""
    from onnx import TensorProto, helper, save

    sides = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]), helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"])]
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "g", sides[:1], sides[1:])
    path = tmp_path / "model.onnx"
    save(model_of(graph), path)
    with refused(RuntimeRefusedError, "model-refused", where="NonZero 'NonZero:y'") as caught:
        audit(path, "tensorrt", build=True)
    assert caught.value.file == str(path)
    found = _ran(path, "--target", "tensorrt", "--build")
    assert found.returncode == 4
    assert "TensorRT's" in found.stderr and "--target tensorrt writes the file that was refused" in found.stderr


@pytest.mark.end_to_end
def test_what_a_capability_lacks_is_the_model_s_error() -> None:
    """A Gemm for compute capability 7.5, by the command line."""
    found = _ran(RESNET, "--target", "tensorrt", "--build", "--kernels", "tensorrt:sm75")
    assert (
        found.returncode == 2 and "for SM75 products of matrices are float16" in found.stderr and "--kernels tensorrt:sm80" in found.stderr
    )


def _network(kind: str, dtype: str, path: Path) -> Path:
    """One product of quantized data and weights."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    eight, conv = TensorProto.DataType.Value(dtype), kind == "Conv"
    shapes = ((1, 8, 6, 6), (8, 8, 3, 3), (1, 8, 4, 4)) if conv else ((4, 8), (8, 8), (4, 8))
    rng = np.random.default_rng(0)
    weights = helper.make_tensor("w", eight, shapes[1], rng.integers(-8, 8, int(np.prod(shapes[1]))).tolist())
    constants = [weights, helper.make_tensor("z", eight, [], [0]), numpy_helper.from_array(np.float32(0.05), "s")]
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"]),
             helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"]), helper.make_node(kind, ["r", "v"], ["y"])]  # fmt: skip
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes[::2], strict=True)]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants)
    save(model_of(graph, 21), path)
    return path


@pytest.mark.tensorrt
@pytest.mark.parametrize("capability", ["sm75", "sm80", "sm86", "sm89", "sm121"])
@pytest.mark.parametrize(("kind", "dtype"), [("Conv", "INT8"), ("MatMul", "INT8"), ("Gemm", "INT8"), ("Conv", "FLOAT8E4M3FN")])
def test_a_capability_is_predicted_as_its_builder_decides(kind: str, dtype: str, capability: str, tmp_path: Path) -> None:
    """What it lacks is refused by name, and only what the builder refuses; convolutions for SM75 are predicted to be real."""
    from qconvert import convert
    from qconvert.runtimes.tensorrt import Builder

    path = _network(kind, dtype, tmp_path / "model.onnx")
    lacking = (capability == "sm75" and kind != "Conv") or (capability in ("sm75", "sm80", "sm86") and dtype != "INT8")
    if lacking:
        convert(path, tmp_path / "result.onnx", target="tensorrt")
        builder = Builder()
        assert not builder.build(tmp_path / "result.onnx", capability).built
        builder.close()
        with refused(UnsupportedError, "target-rules", holds=(capability.upper(),)) as error:
            audit(path, "tensorrt", build=True, kernels=f"tensorrt:{capability}")
        assert "newer device" in error.value.remedy
        return
    report = audit(path, "tensorrt", build=True, kernels=f"tensorrt:{capability}")
    (product,) = (op for op in report.operators if op.kind == kind)
    assert report.otherwise == () and product.integer is (capability != "sm75")
    assert dtype != "INT8" or product.ran is (capability != "sm75")
    assert "for SM75 has no integer kernel" in product.reason or capability != "sm75"
