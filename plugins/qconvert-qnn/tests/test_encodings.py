"""AIMET's encodings next to a float model leave HTP nothing to calibrate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import qconvert_aimet
import qconvert_qnn
from qconvert_qnn import CHIPS, running

import qconvert
from qconvert.plugin import Child, ModelFile, load, save, temporary_plugin

#: QNN's words: a tensor whose scales are stated, and scales for the whole tensor (QnnTypes.h).
DEFINED, PER_TENSOR = 1, 0
#: QNN's number of uint8 with a scale and an offset.
UINT8 = 0x408


def dump_tensors(path: Path, folder: Path) -> dict[str, dict]:
    """Return the tensors of the graph that onnxruntime-qnn gives to HTP."""
    folder.mkdir()
    child = Child(Path(qconvert_qnn.__file__).parent / "child.py", "HTP", 600.0)
    dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(folder)}
    child.request({"load": [str(path), {**CHIPS["sm8650"], **dump}, 1]})
    child.close()
    (graph,) = (file for file in folder.glob("*.json") if not file.name.endswith("_tensor_log.json"))
    return json.loads(graph.read_text())["graph"]["tensors"]


def run_on_htp(path: Path, bytes_of_data: np.ndarray) -> np.ndarray:
    """Return the only output as uint8, of the only input as uint8: int8 files have other integers for the same values."""
    model = running.HtpModel(ModelFile(path, "sm8650"))
    ((name, (dtype, shape)),) = model.inputs.items()
    (found,) = model.run({name: (bytes_of_data.reshape(shape) ^ (128 * (dtype == "int8"))).astype(np.uint8).view(dtype)}).values()
    return found.view(np.uint8) ^ np.uint8(128 * (found.dtype == np.int8))


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0", "2.0.0"])
@pytest.mark.parametrize("name", ["tiny_kws_dscnn_int8", "tiny_ad_toycar_int8"])
def test_htp_computes_the_same_with_encodings_in_a_file(name: str, version: str, fixtures: Path, tmp_path: Path) -> None:
    """The outputs of a float model with encodings are those of the integer model, and HTP's scales are those of the file."""
    source = fixtures / f"{name}.tflite"
    qconvert.convert(source, tmp_path / "integers.onnx", target="qnn-htp", batch=1)
    qconvert.convert(source, tmp_path / "portable.onnx", target="portable", batch=1)
    floats, found = qconvert.extract_scales(tmp_path / "portable.onnx")
    real, encodings, result = tmp_path / "float.onnx", tmp_path / "model.encodings", tmp_path / "again.onnx"
    save(floats, real)
    with temporary_plugin(qconvert_aimet):
        qconvert.save_encodings(found, encodings, graph=load(real), aimet_version=version)
        qconvert.convert(real, result, encodings=str(encodings), target="qnn-htp", io="integer")

    (zero_point,) = load(tmp_path / "integers.onnx")[floats.inputs[0]].quantization.zero_point
    rng, shape = np.random.default_rng(1), floats[floats.inputs[0]].shape
    codes = set()
    for spread in (3, 12, 50):
        data = np.clip(np.rint(rng.normal(zero_point + 128, spread, shape)), 0, 255).astype(np.uint8)
        given = run_on_htp(tmp_path / "integers.onnx", data)
        np.testing.assert_array_equal(run_on_htp(result, data), given)
        codes.update(given.ravel().tolist())
    assert len(codes) > 5

    tensors = dump_tensors(result, tmp_path / "dump")
    assert [key for key, tensor in tensors.items() if tensor["quant_params"]["definition"] != DEFINED] == []
    quantizations = [entry.qparams.quantization for entry in found.entries.values() if entry.qparams.dtype == "int8"]
    stated = {(q.scale.item(), -128 - q.zero_point.item()) for q in quantizations if q.scale.size == 1}
    data = [tensor["quant_params"] for tensor in tensors.values() if tensor["data_type"] == UINT8]
    assert len(data) > 10 and all(item["encoding"] == PER_TENSOR for item in data)
    used = {(np.float32(item["scale_offset"]["scale"]).item(), item["scale_offset"]["offset"]) for item in data}
    assert used <= stated and len(used) > 10
