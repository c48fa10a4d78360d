"""Makes the files next to it with NNCF 3.4, of float models made from qconvert's fixtures: python make_nncf.py (pip install nncf)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nncf
import numpy as np
import openvino as ov

import qconvert
from qconvert.plugin import convert, load, save

HERE = Path(__file__).parent
FIXTURES = HERE.parents[3] / "fixtures"


def real_attention() -> ov.Model:
    """The float model of a quantized attention layer."""
    with tempfile.TemporaryDirectory() as folder:
        graph, _ = qconvert.extract_scales(load(FIXTURES / "onnx" / "torch_pt2e_x86_attention.onnx"))
        save(graph, Path(folder, "real.qgraph"))
        convert(Path(folder, "real.qgraph"), Path(folder, "real.onnx"))
        return ov.convert_model(Path(folder, "real.onnx"))


def data(*shape: int) -> nncf.Dataset:
    rng = np.random.default_rng(0)
    return nncf.Dataset([rng.standard_normal(shape).astype(np.float32) for _ in range(8)])


modes = nncf.CompressWeightsMode
vision = ov.convert_model(FIXTURES / "mnn" / "float.onnx")
sizes = [size.get_length() if size.is_static else 1 for size in vision.inputs[0].get_partial_shape()]
made = {
    "vision_int8": nncf.quantize(vision, data(*sizes), subset_size=8, preset=nncf.QuantizationPreset.MIXED),
    "attention_int8": nncf.quantize(real_attention(), data(1, 6, 16), subset_size=8, model_type=nncf.ModelType.TRANSFORMER),
    "attention_weights_int8": nncf.compress_weights(real_attention(), mode=modes.INT8_ASYM),
    "attention_weights_int4": nncf.compress_weights(real_attention(), mode=modes.INT4_SYM, group_size=8, all_layers=True),
}
for name, model in made.items():
    ov.save_model(model, HERE / f"{name}.xml")
