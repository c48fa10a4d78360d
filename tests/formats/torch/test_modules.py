"""TorchScript of quantized modules: what PyTorch computes with the files, what our reader finds in them, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.torch.test_module_kernels import engine
from formats.torch.written import inputs_of, needs_torch, run
from refusals import refused

import qconvert
from qconvert.conversion.normalizing import normalize
from qconvert.errors import OptionError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.plugins import target_named
from qconvert.runtimes.onnx_rewrites import has_vnni

pytestmark = pytest.mark.torch

FIXTURES = Path(__file__).parents[3] / "fixtures"
#: Models of TFLite and ONNX, and how many outputs of two runs may be off by a step in fbgemm and qnnpack.
MODELS = {
    "tiny_kws_dscnn_int8.tflite": 0, "tiny_resnet_cifar10_int8.tflite": 2,
    "tiny_wakeword_int8.tflite": 0, "aww_int8.tflite": 0, "keras/keras_transposed_int8.tflite": 0,
    "onnx/micro_kws_m_static_qoperator.onnx": 0,
    "onnx/brevitas_int8.onnx": 0, "onnx/torch_fx_fbgemm_vision.onnx": 0, "onnx/torch_fx_qnnpack_attention.onnx": 0,
    "onnx/ort_test_conv_follow_convtrans_s8.onnx": 0, "onnx/ort_conv_qdq_s8s8_perchannel.onnx": 0,
}  # fmt: skip
#: Loads a file and runs it where nothing of qconvert is at hand.
_ALONE = """
import sys
import torch, numpy
torch.backends.quantized.engine = sys.argv[3]
inputs = numpy.load(sys.argv[2])
found = torch.jit.load(sys.argv[1])(*[torch.from_numpy(inputs[name]) for name in inputs.files])
assert not any(name.startswith("qconvert") for name in sys.modules)
numpy.savez(sys.argv[4], *[value.numpy() for value in found])
"""


def loaded(path: Path, lite: bool = False) -> Any:
    """The module of a .pt or .ptl file."""
    from qconvert.formats.torch.program import torch_package

    torch = torch_package()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not lite:
            return torch.jit.load(str(path))
        from torch.jit.mobile import _load_for_lite_interpreter

        return _load_for_lite_interpreter(str(path))


#: An engine whose kernels are exact on this CPU: those of fbgemm saturate without VNNI.
EXACT = "fbgemm" if has_vnni() else "qnnpack"


def _normalized(path: Path) -> Graph:
    return normalize(qconvert.load(path), target_named("torch-modules"))[0]


@needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_every_engine_computes_what_the_graph_means(name: str, tmp_path: Path) -> None:
    """The file holds the integers, scales and zero points of the graph, and runs in the engines of servers and of phones."""
    result = tmp_path / "model.pt"
    qconvert.convert(FIXTURES / name, result)
    graph = qconvert.load(result)
    feed = inputs_of(graph)
    expected = evaluate(graph, feed)
    for each in ("fbgemm", "qnnpack") if has_vnni() else ("qnnpack",):
        with engine(each):
            found = run(loaded(result), graph, feed)
        for output, values in expected.items():
            assert found[output].dtype == values.dtype and found[output].shape == values.shape
            if "int" in str(values.dtype):
                off = np.abs(found[output].astype(int) - values.astype(int))
                assert off.max() <= 1 and (off > 0).sum() <= MODELS[name], f"{each}: {(off > 0).sum()} differ by up to {off.max()}"
            else:
                assert np.abs(found[output] - values).max() <= 1e-6 * max(np.abs(values).max(), 1)


@needs_torch
@pytest.mark.parametrize("name", ["tiny_ad_toycar_int8", "tflm_person_detect_int8"])
def test_the_file_holds_the_graph(name: str, tmp_path: Path) -> None:
    """Names, integers, scales, zero points, layers: all as the graph had them when it was written."""
    qconvert.convert(FIXTURES / f"{name}.tflite", tmp_path / "model.pt")
    found = qconvert.diff(_normalized(FIXTURES / f"{name}.tflite"), qconvert.load(tmp_path / "model.pt"))
    assert [line for line in found if not line.endswith("axis -1 -> 1")] == []


@needs_torch
@pytest.mark.parametrize("name", ["tiny_kws_dscnn_int8", "tiny_resnet_cifar10_int8", "tiny_wakeword_int8", "aww_int8"])
def test_tflite_to_modules_and_back(name: str, tmp_path: Path) -> None:
    source = FIXTURES / f"{name}.tflite"
    qconvert.convert(source, tmp_path / "model.pt")
    qconvert.convert(tmp_path / "model.pt", tmp_path / "back.tflite")
    assert qconvert.diff(qconvert.load(source), qconvert.load(tmp_path / "back.tflite")) == []


@pytest.mark.litert
@needs_torch
def test_a_round_trip_names_the_form() -> None:
    report = qconvert.roundtrip(FIXTURES / "tiny_wakeword_int8.tflite", via="torch:modules", samples=1)
    assert report.via == "torch:modules"
    assert [line for line in report.legs[0].differences if not line.endswith("axis -1 -> 1")] == []
    with refused(OptionError, "unknown-form", holds=("qdq",)):
        qconvert.roundtrip(FIXTURES / "tiny_wakeword_int8.tflite", via="torch:qdq")


@needs_torch
def test_onnx_to_modules_and_back(tmp_path: Path) -> None:
    """What differs is what the report of the conversion says: bytes moved by 128, and real biases."""
    source = FIXTURES / "onnx/ort_conv_qdq_s8s8_perchannel.onnx"
    qconvert.convert(source, tmp_path / "model.pt")
    qconvert.convert(tmp_path / "model.pt", tmp_path / "back.onnx", target="ort-arm", passes=["float_bias_to_int32"])
    assert qconvert.diff(qconvert.load(source), qconvert.load(tmp_path / "back.onnx")) == []


@pytest.mark.end_to_end
@needs_torch
@pytest.mark.parametrize("each", ["fbgemm", "qnnpack"])
def test_the_file_needs_nothing_but_pytorch(each: str, tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / "tiny_resnet_cifar10_int8.tflite", tmp_path / "model.pt")
    graph = qconvert.load(tmp_path / "model.pt")
    feed = inputs_of(graph)
    np.savez(tmp_path / "inputs.npz", **feed)
    files = [str(tmp_path / name) for name in ("model.pt", "inputs.npz")]
    command = [sys.executable, "-I", "-W", "ignore", "-c", _ALONE, *files, each, str(tmp_path / "outputs.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with engine(each):
        (expected,) = run(loaded(tmp_path / "model.pt"), graph, feed).values()
    assert np.array_equal(np.load(tmp_path / "outputs.npz")["arr_0"], expected)


@pytest.mark.cross_section
@needs_torch
def test_layers_are_modules_that_bear_the_names_of_the_source(tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / "tiny_kws_dscnn_int8.tflite", tmp_path / "model.pt")
    module = loaded(tmp_path / "model.pt")
    layers = {name: layer.original_name for name, layer in module.named_children()}
    assert list(layers.values()) == ["Conv2d"] * 9 + ["Linear", "Softmax"]
    assert all(name.startswith(("functional_1_", "identity")) for name in layers)


@needs_torch
@pytest.mark.parametrize(("suffix", "freeze"), [(".pt", True), (".ptl", False), (".ptl", True)])
def test_frozen_and_lite_files_hold_the_same(suffix: str, freeze: bool, tmp_path: Path) -> None:
    source = FIXTURES / "onnx/torch_fx_fbgemm_vision.onnx"
    qconvert.convert(source, tmp_path / "model.pt")
    qconvert.convert(source, tmp_path / f"other{suffix}", freeze=freeze)
    graph, other = qconvert.load(tmp_path / "model.pt"), qconvert.load(tmp_path / f"other{suffix}")
    assert qconvert.diff(graph, other) == []
    feed = inputs_of(graph)
    expected = run(loaded(tmp_path / "model.pt"), graph, feed)
    assert _equal(run(loaded(tmp_path / f"other{suffix}"), graph, feed), expected)
    if suffix == ".ptl":
        assert _equal(run(loaded(tmp_path / f"other{suffix}", lite=True), graph, feed), expected)
    modules = any("/conv" in name for name in _entries(tmp_path / f"other{suffix}"))
    assert modules == (not freeze)


def _equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


@needs_torch
@pytest.mark.parametrize("name", ["model.pt", "model.ptl"])
def test_nothing_of_the_machine_is_in_the_archive(name: str, tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / "tiny_wakeword_int8.tflite", tmp_path / name)
    entries = _entries(tmp_path / name)
    assert [entry for entry in entries if entry.endswith(".debug_pkl")] == []
    paths = [str(Path(qconvert.__file__).parent), str(tmp_path), "site-packages", "eval_with_key", "Traceback", ".py:", "/usr/"]
    assert [text for text in paths if any(text.encode() in content for content in entries.values())] == []


@needs_torch
def test_an_open_batch_stays_open(tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / "tiny_ad_toycar_int8.tflite", tmp_path / "model.pt")
    graph = qconvert.load(tmp_path / "model.pt")
    assert graph[graph.inputs[0]].shape == ("batch", 640)
    with engine(EXACT):
        module = loaded(tmp_path / "model.pt")
        for batch in (1, 5):
            feed = inputs_of(graph, batch=batch)
            assert np.array_equal(run(module, graph, feed)["Identity"], evaluate(graph, feed)["Identity"])


@needs_torch
def test_float_inputs_and_outputs(tmp_path: Path) -> None:
    """As old programs expect them: torch.quantize_per_tensor at the front, and dequantize at the end."""
    qconvert.convert(FIXTURES / "tiny_kws_dscnn_int8.tflite", tmp_path / "model.pt", io="float")
    graph = qconvert.load(tmp_path / "model.pt")
    feed = inputs_of(graph)
    assert [values.dtype for values in feed.values()] == [np.float32]
    with engine(EXACT):
        found, expected = run(loaded(tmp_path / "model.pt"), graph, feed)["Identity"], evaluate(graph, feed)["Identity"]
    assert found.dtype == np.float32 and np.abs(found - expected).max() <= 2 / 256


@needs_torch
def test_a_module_in_memory() -> None:
    graph = qconvert.load(FIXTURES / "tiny_kws_dscnn_int8.tflite")
    with engine(EXACT):
        module = qconvert.to_torch(graph, form="modules")
        feed = inputs_of(graph)
        assert np.array_equal(run(module, graph, feed)["Identity"], evaluate(graph, feed)["Identity"])
    kinds = [type(layer).__module__ for layer in module.children()]
    assert kinds and all(kind.startswith("torch.ao.nn.") for kind in kinds)
    with refused(OptionError, "target-of-other-form", holds=("program", "modules")):
        qconvert.to_torch(graph, form="modules", target="torch-x86")
    with refused(OptionError, "unknown-form", holds=("pickle",)):
        qconvert.to_torch(graph, form="pickle")


@needs_torch
def test_names_of_tensors_become_no_code(tmp_path: Path) -> None:
    name = 'w");import os;os.system("touch /tmp/ran");("'
    quantization = Quantization.per_tensor(0.5, 128)
    tensors = [
        Tensor('x"]\n', "uint8", (1, 2), None, quantization),
        Tensor(name, "int8", (3, 2), np.ones((3, 2), np.int8), Quantization.per_tensor(0.5, 0)),
        Tensor("self", "uint8", (1, 3), None, quantization),
        Tensor("def", "uint8", (1, 3), None, quantization),
    ]
    ops = (Op("Gemm", ('x"]\n', name), ("self",)), Op("Add", ("self", "self"), ("def",)))
    graph = Graph("g", {t.name: t for t in tensors}, ops, ('x"]\n',), ("self", "def"))
    qconvert.save(graph, tmp_path / "model.pt")
    found = run(loaded(tmp_path / "model.pt"), graph, {'x"]\n': np.array([[131, 124]], np.uint8)})
    assert found["self"].tolist() == [[128, 128, 128]] and found["def"].tolist() == [[128, 128, 128]]
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.pt")) == []


@needs_torch
def test_inputs_that_are_outputs_and_outputs_of_constants(tmp_path: Path) -> None:
    quantization = Quantization.per_tensor(0.5, 128)
    tensors = [Tensor(name, "uint8", (2, 3), None, quantization) for name in ("x", "y", "z")]
    ops = (Op("Identity", ("x",), ("y",)), Op("Reinterpret", ("x",), ("z",)))
    tensors[2] = replace(tensors[2], quantization=Quantization.per_tensor(0.25, 3))
    graph = Graph("g", {t.name: t for t in tensors}, ops, ("x",), ("y", "z"))
    qconvert.save(graph, tmp_path / "model.pt")
    feed = {"x": np.arange(6, dtype=np.uint8).reshape(2, 3)}
    found = run(loaded(tmp_path / "model.pt"), graph, feed)
    assert all(np.array_equal(found[name], feed["x"]) for name in "yz")
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.pt")) == []


@needs_torch
def test_types_that_have_no_quantized_tensors_are_refused(tmp_path: Path) -> None:
    with refused(UnsupportedError, "target-rules", holds=("Transpose", "int16", "torch.export")):
        qconvert.convert(FIXTURES / "tflm_seanet_conv_int16x8.tflite", tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []


def test_names_and_forms_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    source = FIXTURES / "tiny_ad_toycar_int8.tflite"
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("model.pt2", {"form": "modules"}, ("contradicting-form", "torch.export", "TorchScript")),
        ("model.pt", {"form": "program"}, ("contradicting-form", "TorchScript", "torch.export")),
        ("model.pth", {}, ("wrong-suffix",)),
        ("model.pt", {"target": "torch-x86"}, ("contradicting-form", "TorchScript", "torch.export")),
        ("model.pt2", {"target": "torch-modules"}, ("contradicting-form", "torch.export", "TorchScript")),
        ("model.pt", {"form": "qdq"}, ("unknown-value", "qdq")),
    )
    for name, options, broken in cases:
        with refused(OptionError, broken[0], holds=broken[1:]):
            qconvert.convert(source, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


@needs_torch
def test_false_notes_change_names_alone(tmp_path: Path) -> None:
    """Notes of shapes are what the option --input-shape is, which rules over them."""
    qconvert.convert(FIXTURES / "tiny_ad_toycar_int8.tflite", tmp_path / "model.pt")
    entries = _entries(tmp_path / "model.pt")
    notes = json.loads(entries["extra/qconvert.json"])
    notes["tensors"] = {name: f"false_{index}" for index, name in enumerate(notes["tensors"])}
    entries["extra/qconvert.json"] = json.dumps(notes).encode()
    with zipfile.ZipFile(tmp_path / "false.pt", "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"archive/{name}", content)
    graph, other = qconvert.load(tmp_path / "model.pt"), qconvert.load(tmp_path / "false.pt")
    feed = inputs_of(graph)
    assert np.array_equal(evaluate(graph, feed)["Identity"], next(iter(evaluate(other, feed).values())))
    given = qconvert.load(tmp_path / "model.pt", input_shape="7,640:int8")
    assert given[given.inputs[0]].shape == (7, 640)
