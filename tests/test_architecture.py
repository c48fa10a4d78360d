"""The walk of an operator in docs/architecture.md: every number that it names, followed through the code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qconvert
from qconvert.conversion import normalize
from qconvert.plugins import target_named

pytestmark = pytest.mark.formats

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "fixtures" / "tiny_resnet_cifar10_int8.tflite"


def test_the_walk_of_a_convolution(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (stated,) = set(re.findall(r"\*\*(\d+)\*\*", text))
    graph = qconvert.load(MODEL)
    conv = graph.ops[0]
    data, weights, bias = (graph[name] for name in conv.inputs)
    assert data.quantization is not None and weights.quantization is not None and bias.quantization is not None
    assert bias.data is not None and weights.data is not None
    assert (conv.source, conv.kind, weights.shape, weights.quantization.axis) == ("CONV_2D #0", "Conv", (16, 3, 3, 3), 0)
    assert (data.quantization.step, data.quantization.point) == (1.0, -128)
    assert int(bias.data[0]) == int(stated)
    scale = bias.quantization.step
    assert f"{scale:.6e}" == "8.902636e-05" and f"{int(stated) * scale:.6f}" == "0.608584"
    assert "8.902636e-05" in text and "0.608584" in text
    assert weights.data.base is not None and int(weights.data.reshape(-1)[0]) == 25

    changed, notes = normalize(graph, target_named("ort-x86"))
    assert [change.by for change in notes] == ["match_rounding", "match_rounding", "assign_layout", "store_activations", "guard_saturation"]
    conv = next(op for op in changed.ops if op.kind == "Conv")
    data, weights, bias = (changed[name] for name in conv.inputs)
    assert data.quantization is not None and weights.data is not None and bias.data is not None
    assert (data.dtype, data.quantization.point, weights.dtype, int(weights.data.reshape(-1)[0])) == ("uint8", 0, "uint8", 153)
    assert int(bias.data[0]) == int(stated)
    verdict = target_named("ort-x86").judge(changed, conv)
    assert (verdict.runs, verdict.rule) == ("integers", "integer kernel")

    qconvert.convert(MODEL, tmp_path / "walk.onnx")
    model = onnx.load(tmp_path / "walk.onnx")
    written = next(item for item in model.graph.initializer if item.name == bias.name)
    assert numpy_helper.to_array(written)[0] == np.int32(int(stated))
