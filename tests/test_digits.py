"""A network trained with quantization, from PyTorch to ONNX, TFLite and back: the same answers on 600 images it was not trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qconvert import convert
from qconvert.plugins import ModelFile
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.runtimes.torch import open_model

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

DIGITS = Path(__file__).parent.parent / "fixtures" / "digits"
INTEGER = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "MAX_POOL_2D", "AVERAGE_POOL_2D", "MEAN"}


def operators(path: Path) -> dict[str, set[str]]:
    """The types of the data of each operator in a .tflite file, by the operator's name."""
    from ai_edge_litert import schema_py_generated as schema

    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
    types = {number: name for name, number in vars(schema.TensorType).items() if isinstance(number, int)}
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes())
    found: dict[str, set[str]] = {}
    graph = model.subgraphs[0]
    for op in graph.operators:
        name = names[model.operatorCodes[op.opcodeIndex].builtinCode]
        found.setdefault(name, set()).update(types[graph.tensors[index].type] for index in (op.inputs[0], op.outputs[0]))
    return found


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("name", ["fx", "pt2e", "brevitas"])
def test_accuracy_stays_the_same(name: str, tmp_path: Path) -> None:
    data, known = np.load(DIGITS / "test.npz"), np.load(DIGITS / "predictions.npz")
    images, labels = data["images"], data["labels"]
    result = tmp_path / f"{name}.tflite"
    convert(DIGITS / f"{name}.onnx", result, no_float=name != "pt2e")
    found = operators(result)
    assert {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD"} <= set(found)
    assert all(found[kind] == {"INT8"} for kind in INTEGER & set(found))
    onnx, lite = OnnxRuntime((DIGITS / f"{name}.onnx").read_bytes()), LiteRT(result.read_bytes())
    source = np.concatenate([next(iter(onnx.run({next(iter(onnx.inputs)): image[None]}).values())) for image in images])
    converted = np.concatenate([lite.run_in_order([image[None]])[0] for image in images])
    torch = known[name]
    scores = [float((logits.argmax(1) == labels).mean()) for logits in (torch, source, converted)]
    assert min(scores) > 0.98 and max(scores) - min(scores) < 0.002
    assert float((source.argmax(1) == converted.argmax(1)).mean()) >= 0.998


@pytest.mark.torch
@pytest.mark.parametrize(
    ("file", "prediction"),
    [("fx.pt", "fx_converted"), ("fx_qat.pt", "fx"), ("pt2e.pt2", "pt2e")],
    ids=["converted", "before_convert", "pt2e"],
)
def test_accuracy_of_pytorchs_own_files_stays_the_same(file: str, prediction: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the way back to PyTorch needs torch")
    data = np.load(DIGITS / "test.npz")
    images, labels = data["images"], data["labels"]
    options = {} if file.endswith("2") else {"input_shape": "batch,1,8,8"}
    onnx, lite = tmp_path / "network.onnx", tmp_path / "network.tflite"
    for result in (onnx, lite):
        convert(DIGITS / file, result, **options)
        convert(result, result.with_suffix(f"{result.suffix}.pt2"))
    session, interpreter = OnnxRuntime(onnx.read_bytes()), LiteRT(lite.read_bytes())
    logits = {
        "torch": np.load(DIGITS / "predictions.npz")[prediction],
        "onnx": next(iter(session.run({"x": images}).values())),
        "tflite": np.concatenate([interpreter.run_in_order([image[None]])[0] for image in images]),
        "onnx in torch": in_torch(tmp_path / "network.onnx.pt2", images),
        "tflite in torch": in_torch(tmp_path / "network.tflite.pt2", images),
    }
    scores = {way: float((found.argmax(1) == labels).mean()) for way, found in logits.items()}
    assert min(scores.values()) > 0.98 and max(scores.values()) - min(scores.values()) < 0.002, scores
    for way, found in logits.items():
        assert float((found.argmax(1) == logits["torch"].argmax(1)).mean()) >= 0.998, way


def in_torch(path: Path, images: np.ndarray) -> np.ndarray:
    model = open_model(ModelFile(path, "rebuilt"))
    return next(iter(model.run({next(iter(model.inputs)): images}).values()))
