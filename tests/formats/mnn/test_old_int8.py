"""Files of MNN 1: int8 operators with conversions between float and int8 tensors. MNN itself writes and runs them here."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused

from qconvert import apply, convert, load
from qconvert.encodings import Place
from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.mnn.network import NET
from qconvert.formats.mnn.reader import network_encodings
from qconvert.formats.mnn.writer import run_converter
from qconvert.graph import Array
from qconvert.runtimes.mnn import MNNModel

pytestmark = [pytest.mark.onnxruntime, pytest.mark.mnn, pytest.mark.skipif(find_spec("MNN") is None, reason="MNN is not installed")]

FIXTURES = Path(__file__).parents[3] / "fixtures" / "mnn"
DATA, RESULT = 0.05, 0.1
SCALES = np.array([0.01, 0.02, 0.015, 0.005], np.float32)
RNG = np.random.default_rng(4711)
INTEGERS = RNG.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8)
BIAS = RNG.integers(-500, 500, 4)


def operator(name: str, kind: str, parameter: str, main: dict[str, Any], inputs: list[int], output: int) -> dict[str, Any]:
    shared = {"name": name, "type": kind, "outputIndexes": [output], "defaultDimentionFormat": "NCHW"}
    return shared | ({"main_type": parameter, "main": main} if parameter else {}) | ({"inputIndexes": inputs} if inputs else {})


def network(depthwise: bool = False, relu: bool = False) -> dict[str, Any]:
    """One layer as calibration.cpp of MNN 1.0 writes it: tensors 0 and 1 are int8, and tensors 2 and 3 have the float model's names."""
    weights = INTEGERS[:, :1] if depthwise else INTEGERS
    common = {"padX": 1, "padY": 1, "kernelX": 3, "kernelY": 3, "outputCount": 4, "inputCount": 4, "group": 4 if depthwise else 1}
    common["relu"] = relu
    product = np.float32(DATA) * SCALES / np.float32(RESULT)
    stated = {"weight": weights.reshape(-1).tolist(), "bias": BIAS.tolist(), "scale": product.tolist()}
    inverse = float(np.float32(1) / np.float32(DATA))
    kind = "DepthwiseConvInt8" if depthwise else "ConvInt8"
    operators = [
        operator("x", "Input", "Input", {"dims": [1, 4, 6, 6]}, [], 2),
        operator("x___FloatToInt8___0", "FloatToInt8", "QuantizedFloatParam", {"tensorScale": [inverse] * 4}, [2], 0),
        operator("c", kind, "Convolution2D", {"common": common, "symmetricQuan": stated}, [0], 1),
        operator("___Int8ToFloat___For_1", "Int8ToFloat", "QuantizedFloatParam", {"tensorScale": [RESULT] * 4}, [1], 3),
    ]
    names = ["x___FloatToInt8___0", "___Int8ToFloat___For_1", "x", "y"]
    return {"oplists": operators, "tensorName": names, "outputName": ["y"], "bizCode": "x", "tensorNumber": 4}


def written(net: dict[str, Any], folder: Path) -> Path:
    (folder / "old.json").write_text(json.dumps(net))
    run_converter(["-f", "JSON", "--modelFile", "old.json", "--MNNModel", "old.mnn", "--bizCode", "x"], folder, "old.mnn")
    return folder / "old.mnn"


def float_model(path: Path, depthwise: bool, relu: bool) -> Path:
    weights = (INTEGERS[:, :1] if depthwise else INTEGERS) * SCALES.reshape(-1, 1, 1, 1)
    bias = (BIAS * DATA * SCALES.astype(np.float64)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c" if relu else "y"], pads=[1] * 4, group=4 if depthwise else 1)]
    nodes += [helper.make_node("Relu", ["c"], ["y"])] if relu else []
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 6, 6]) for name in ("x", "y")]
    constants = [numpy_helper.from_array(array, name) for name, array in (("w", weights.astype(np.float32)), ("b", bias))]
    model = model_of(helper.make_graph(nodes, "g", values[:1], values[1:], constants))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("depthwise", "relu"), [(False, False), (True, False), (False, True)])
def test_the_integers_of_mnn(depthwise: bool, relu: bool, tmp_path: Path) -> None:
    """The file's scales and weights, applied to the float model and converted to ONNX, give the integers that MNN computes."""
    path = written(network(depthwise, relu), tmp_path)
    encodings = network_encodings(path)
    weights = encodings[Place("y", "input", 1)]
    assert weights.integers is not None and np.array_equal(weights.integers, INTEGERS[:, :1] if depthwise else INTEGERS)
    assert weights.qparams is not None and np.allclose(weights.qparams.quantization.scale, SCALES, rtol=3e-7, atol=0)
    quantized = apply(load(float_model(tmp_path / "float.onnx", depthwise, relu)), encodings)
    convert(quantized, tmp_path / "int8.onnx", target="ort-x86")  # exact on CPUs without VNNI too
    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    model = MNNModel(path)
    off: list[Array] = []
    for seed in range(5):
        x = np.random.default_rng(seed).normal(0, 2, (1, 4, 6, 6)).astype(np.float32)
        theirs, ours = model.run({"x": x})["y"], session.run(None, {session.get_inputs()[0].name: x})[0]
        off.append(np.abs(np.rint(ours / RESULT) - np.rint(theirs / RESULT)))
    model.close()
    assert not np.any(off)


def test_trained_layers_state_all_their_scales(tmp_path: Path) -> None:
    """MNN's quantization-aware training writes alpha, scaleIn and scaleOut: these need no conversions around the layer."""
    net = network()
    layer = net["oplists"][2]["main"]
    layer["quanParameter"] = {"alpha": SCALES.tolist(), "scaleIn": DATA, "scaleOut": RESULT, "aMin": -127}
    layer["symmetricQuan"] |= {"zeroPoint": 3, "outputZeroPoint": -5}
    net["oplists"][1]["main"]["zeroPoint"], net["oplists"][3]["main"]["zeroPoint"] = 3, -5
    found = network_encodings(written(net, tmp_path))
    quantizations = [found[place].qparams for place in (Place("x"), Place("y"), Place("y", "input", 1))]
    assert all(quantization is not None for quantization in quantizations)
    data, result, weights = (quantization.quantization for quantization in quantizations if quantization is not None)
    assert (data.point, result.point) == (3, -5)
    assert weights.scale.tobytes() == SCALES.tobytes()


def test_layers_of_the_old_type_with_new_parameters(tmp_path: Path) -> None:
    """MNN 1.1 and later write ConvInt8 with an IDSTQuan, which states everything."""
    net = unpack_view(NET.root((FIXTURES / "KL.mnn").read_bytes()))
    net.oplists[2].type = 513
    (tmp_path / "old.mnn").write_bytes(pack_model(net))
    found, same = network_encodings(tmp_path / "old.mnn"), network_encodings(FIXTURES / "KL.mnn")
    assert set(found.entries) == set(same.entries)
    assert all(found[place].qparams == item.qparams for place, item in same.entries.items())


def parameter(net: dict[str, Any], index: int) -> Any:
    return net["oplists"][index]["main"]


def without_result(net: dict[str, Any]) -> None:
    """Two layers in a row: the scale between them is only in the products of both."""
    inner = json.loads(json.dumps(net["oplists"][2])) | {"name": "c2", "inputIndexes": [1], "outputIndexes": [4]}
    net["oplists"].insert(3, inner)
    net["oplists"][4]["inputIndexes"] = [4]
    net["tensorName"][1:] = ["c", "x", "y", "___Int8ToFloat___For_1"]


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], type[QConvertError], str]] = {
    "a chain": (without_result, UnsupportedError, ("scale-missing",)),
    "channels": (lambda net: parameter(net, 1).update(tensorScale=[20, 21, 20, 20]), UnsupportedError, ("not-per-tensor",)),
    "no scale": (lambda net: parameter(net, 3).pop("tensorScale"), InvalidModelError, ("malformed-operator", "Int8ToFloat")),
    "zero": (lambda net: parameter(net, 1).update(tensorScale=[0.0]), InvalidModelError, ("scale-not-positive",)),
    "fewer scales": (lambda net: parameter(net, 2)["symmetricQuan"].update(scale=[0.1]), InvalidModelError, ("counts-differ", 1, 4)),
    "fewer weights": (lambda net: parameter(net, 2)["symmetricQuan"].update(weight=[1] * 35), InvalidModelError, ("counts-differ", 35, 4)),
    "cycle": (lambda net: net["oplists"][3].update(outputIndexes=[1]), InvalidModelError, ("cycle",)),
    "other alpha": (
        lambda net: parameter(net, 2).update(quanParameter={"alpha": [1.0] * 4, "scaleIn": DATA, "scaleOut": RESULT}),
        UnsupportedError,
        ("contradicting-scales",),
    ),
}  # fmt: skip


@pytest.mark.cross_section
@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    alter, error, broken = WRONG[case]
    net = network()
    alter(net)
    with refused(error, broken[0], holds=broken[1:]):
        network_encodings(written(net, tmp_path))
