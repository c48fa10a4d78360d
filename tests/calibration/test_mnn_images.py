"""Images under a configuration of MNN's quantizer: its tool and calibrate() give the network's input the same scale, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from PIL import Image

from qconvert.calibration.driver import run_calibration
from qconvert.calibration.mnn_config import read_mnn_config

pytestmark = [pytest.mark.onnxruntime, pytest.mark.mnn, pytest.mark.skipif(find_spec("MNN") is None, reason="MNN is not installed")]
TOOLS = (
    "import _tools; _tools.mnnconvert(['mnnconvert', '-f', 'ONNX', '--modelFile', 'model.onnx', '--MNNModel', 'a.mnn', '--bizCode', 'x']);"
    "_tools.mnnquant(['mnnquant', 'a.mnn', 'q.mnn', 'config.json'])"
)


def write_model(path: Path) -> None:
    """A convolution of an input (1, 3, 32, 32)."""
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])],
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 30, 30])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(model_of(graph), path)


@pytest.mark.parametrize(("size", "changes"), [
    ((32, 32), {}),
    ((48, 40), {"mean": [103.9, 116.8, 123.7], "normal": [0.017, 0.0175, 0.0171]}),
    ((51, 70), {"center_crop_h": 0.873, "center_crop_w": 0.875, "format": "BGR"}),
])  # fmt: skip
def test_the_input_has_the_scale_of_mnns_tool(size: tuple[int, int], changes: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    (tmp_path / "images").mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / f"{number}.png")
    config = {"path": "images/", "format": "RGB", "mean": [127.5] * 3, "normal": [0.00784314] * 3, "width": 32, "height": 32,
              "used_image_num": 2, "feature_quantize_method": "KL", "weight_quantize_method": "MAX_ABS", **changes}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-P", "-c", TOOLS], cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    dump = json.loads((tmp_path / "q.mnn.json").read_text())
    expected = next(op["outputs"][0]["scales"][0] for op in dump if op["name"] == "x")
    asked = read_mnn_config(tmp_path / "config.json")
    found = run_calibration(tmp_path / "model.onnx", asked.data, **asked.options).encodings["x"]
    assert found.qparams is not None and found.qparams.quantization.scale[0] == np.float32(expected)
