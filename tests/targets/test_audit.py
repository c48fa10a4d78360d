"""The audit against the graph that onnxruntime saves after optimizing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from qconvert import convert
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Canonical kind -> the fused operator that onnxruntime makes of it, and the float one that is left if it does not.
FUSED = {"Conv": "QLinearConv", "Gemm": "QGemm", "Add": "QLinearAdd", "Softmax": "QLinearSoftmax", "Sigmoid": "QLinearSigmoid"}
MODELS = [
    "tiny_resnet_cifar10_int8", "tiny_kws_dscnn_int8", "tiny_ad_toycar_int8", "coral_tf2_mobilenet_v2_224_int8",
    "coral_deeplabv3_mnv2_dm05_uint8", "tflm_mobilenet_v2_from_torch_int8", "coco_ssd_mobilenet_v1_uint8", "tflm_seanet_conv_int16x8",
]  # fmt: skip


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("name", MODELS)
def test_the_audit_tells_what_onnxruntime_fuses(name: str, numerics: str, tmp_path: Path) -> None:
    report = convert(FIXTURES / f"{name}.tflite", tmp_path / "model.onnx", numerics=numerics)
    OnnxRuntime((tmp_path / "model.onnx").read_bytes(), save_optimized=tmp_path / "optimized.onnx")
    kernels = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    said = {integer: Counter() for integer in (True, False)}
    for line in report.audit:
        said[line.integer][line.kind] += line.count
    averaging = kernels["QLinearConv"] - said[True]["Conv"]  # averages whose ties matter are convolutions
    assert 0 <= averaging <= 2 * (said[True]["AveragePool"] + said[False]["AveragePool"])
    for kind, fused in FUSED.items():
        if kind != "Conv":
            assert kernels[fused] == said[True][kind], kind
    halves = 2 if "int16" in name and numerics == "exact" else 1  # an exact sum of int16 is that of two float32 convolutions
    assert kernels["Conv"] == halves * said[False]["Conv"]
    assert kernels["ReduceMean"] + kernels["ReduceSum"] == said[False]["ReduceMean"]  # exact means are sums of stored integers
    assert kernels["Resize"] == said[False]["Resize"]
