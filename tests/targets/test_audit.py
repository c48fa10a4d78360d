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
#: Canonical kind -> the fused operator that onnxruntime makes of it.
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
    said: Counter[str] = Counter()
    for line in report.audit:
        said[line.kind] += line.count if line.integer else 0
    for kind, fused in FUSED.items():
        assert kernels[fused] == said[kind], kind
    for kind in ("Conv", "ReduceMean", "ReduceSum", "Resize"):
        assert kernels[kind] == report.on_floats.get(kind, 0), kind
