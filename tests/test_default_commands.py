"""TFLite to ONNX and to TFLite again, by the two default commands: the source's types, integers, quantizations and outputs come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qconvert import Graph, Op, Quantization, Tensor, convert, load, save
from qconvert.errors import UnsupportedError
from qconvert.formats.tflite.probe import accepted_copy
from qconvert.graph import Array
from qconvert.runtimes.litert import LiteRT

pytestmark = [pytest.mark.end_to_end, pytest.mark.repository]

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODELS = sorted(FIXTURES.glob("*.tflite"))
MOBILENET = FIXTURES / "coral_mobilenet_v2_224_uint8.tflite"


def there_and_back(model: Path, folder: Path, target: str = "") -> Path:
    between, result = folder / "model.onnx", folder / "model.tflite"
    convert(model, between)
    convert(between, result, target=target)
    return result


def outputs(model: Path, inputs: list[Array]) -> list[Array]:
    return LiteRT(accepted_copy(model.read_bytes()), "default").run_in_order(inputs)


def random_inputs(graph: Graph, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    found = []
    for name in graph.inputs:
        tensor = graph[name]
        shape = tuple(size if isinstance(size, int) else 1 for size in tensor.shape or ())
        if tensor.dtype == "float32":
            found.append(rng.normal(size=shape).astype(np.float32))
        else:
            limits = np.iinfo(tensor.dtype)
            found.append(rng.integers(limits.min, limits.max + 1, shape).astype(tensor.dtype))
    return found


def quantizations(graph: Graph) -> dict[str, tuple[str, Quantization | None]]:
    return {name: (graph[name].dtype, graph[name].quantization) for op in graph.ops for name in op.outputs}


@pytest.mark.litert
@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem)
def test_everything_comes_back(model: Path, tmp_path: Path) -> None:
    try:
        source = load(model)
    except UnsupportedError:
        pytest.skip("has operators outside the set")
    back = load(there_and_back(model, tmp_path))
    assert [source[name].dtype for name in (*source.inputs, *source.outputs)] == [back[n].dtype for n in (*back.inputs, *back.outputs)]
    old, new = quantizations(source), quantizations(back)
    # 16 bits get symmetric quantizations; a SOFTMAX of 8 bits alone may give others, in tflite-micro
    if model.stem == "tflm_keyword_svdf_int8":
        del old["tensor_51"]
    assert {name: new[name] for name in old.keys() & new.keys()} == {name: old[name] for name in old.keys() & new.keys()}
    linear = [[op for op in graph.ops if op.kind in ("Conv", "ConvTranspose", "Gemm")] for graph in (source, back)]
    assert len(linear[0]) == len(linear[1])
    for a, b in zip(*linear, strict=True):
        for one, other in zip(a.inputs[1:], b.inputs[1:], strict=True):
            assert (source[one].dtype, source[one].quantization) == (back[other].dtype, back[other].quantization)
            assert np.array_equal(source[one].data, back[other].data)  # type: ignore[arg-type]
    for seed in range(2):
        inputs = random_inputs(source, seed)
        for one, other in zip(outputs(model, inputs), outputs(tmp_path / "model.tflite", inputs), strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.litert
def test_pictures_give_the_same_classes_and_for_int8_nearly_always(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    same, eight = there_and_back(MOBILENET, tmp_path), tmp_path / "int8.tflite"
    convert(tmp_path / "model.onnx", eight, target="tflite")
    models = [LiteRT(path.read_bytes(), "default") for path in (MOBILENET, same, eight)]
    agree, errors = [], []
    for name in ("cat", "grace"):
        picture = pillow.open(FIXTURES / "images" / f"{name}.bmp").convert("RGB")
        for crop in (0.7, 1.0):
            side = int(min(picture.size) * crop)
            pixels = np.asarray(picture.resize((224, 224), box=(0, 0, side, side)), np.float32)
            for flip, light in ((1, 1.0), (-1, 0.8), (-1, 1.2)):
                values = np.clip(pixels[:, ::flip] * light, 0, 255).astype(np.uint8)[None]
                first, second, third = (model.run_in_order([values])[0].astype(int).reshape(-1) for model in models)
                assert np.array_equal(first, second)
                agree.append(third[first.argmax()] >= third.max() - 1)
                errors.append(np.abs(first - third).mean())
    assert sum(agree) == len(agree) == 12
    assert max(errors) < 0.2  # of 255; without the channels' own scales it is half of the largest class


def quantized(dtype: str, weights: str, per_axis: bool, kind: str = "Conv", largest: int = 0) -> Graph:
    """A convolution of `dtype` data and `weights`, one of them `largest` if that is given, and after it an operator."""
    zero, middle = (0, 0) if dtype == "int8" else (120, 128)
    w_zero = 0 if weights == "int8" else 117
    scale = np.float32([0.01, 0.02, 0.03, 0.04]) if per_axis else np.float32([0.01])
    q = Quantization.per_axis(scale, 0, w_zero) if per_axis else Quantization.per_tensor(0.01, w_zero)
    data = (np.random.default_rng(0).integers(-100, 100, (4, 3, 3, 3)) + w_zero).clip(*((0, 255) if weights == "uint8" else (-127, 127)))
    data[0, 0, 0, 0] = largest or data[0, 0, 0, 0]
    quantization = Quantization.per_tensor(0.05, zero)
    tensors = [
        Tensor("x", dtype, (1, 8, 8, 3), None, quantization),
        Tensor("w", weights, data.shape, data.astype(weights), q),
        Tensor("c", dtype, (1, 6, 6, 4), None, Quantization.per_tensor(0.3, middle)),
        Tensor("y", dtype, (1, 6, 6, 4), None, Quantization.per_tensor(0.3, middle)),
    ]
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1, "data_format": "channels_last"}
    ops = (Op("Conv", ("x", "w"), ("c",), window), Op(kind, ("c",), ("y",)))
    return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))


@pytest.mark.cross_section
@pytest.mark.parametrize("target", ["", "tflite-same"])
@pytest.mark.parametrize(
    ("graph", "same", "default"),
    [
        (quantized("uint8", "uint8", False, "LeakyRelu"), "uint8", "int8"),  # the integers less their zero point are int8
        (quantized("uint8", "uint8", False, "LeakyRelu", 255), "uint8", "uint8"),  # one of them is not
        (quantized("uint8", "int8", False, "LeakyRelu"), "uint8", "int8"),  # nothing is lost, and products are faster
        (quantized("uint8", "int8", True, "LeakyRelu"), "int8", "int8"),  # no uint8 kernel takes scales for channels
        (quantized("uint8", "int8", False, "Exp"), "int8", "int8"),  # Exp has an int8 kernel alone, and nothing is lost
        (quantized("uint8", "uint8", False, "Exp", 255), "uint8", "uint8"),  # a weight would change
        (quantized("int8", "int8", True, "LeakyRelu"), "int8", "int8"),
    ],
)
def test_what_the_targets_of_litert_store(graph: Graph, same: str, default: str, target: str, tmp_path: Path) -> None:
    save(graph, tmp_path / "m.qgraph")
    report = convert(tmp_path / "m.qgraph", tmp_path / "m.tflite", target=target)
    assert report.target == (target or "tflite") and not any(change.costs for change in report.changes)
    inner = weights = same if target else default
    found = load(tmp_path / "m.tflite")
    conv = next(op for op in found.ops if op.kind == "Conv")
    assert (found[conv.outputs[0]].dtype, found[conv.inputs[1]].dtype) == (inner, weights)
    assert [found[name].dtype for name in ("x", "y")] == [graph["x"].dtype] * 2
