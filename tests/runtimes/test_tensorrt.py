"""TensorRT in its process: what it is given, what is read from what it says, and what becomes of a process that ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from refusals import refused
from tensorrt_network import Network

from qconvert import check
from qconvert.data.input_limits import stated_bounds
from qconvert.errors import InvalidModelError, MissingPackageError, OptionError, RuntimeRefusedError
from qconvert.plugins import ModelFile
from qconvert.runtimes import tensorrt
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.runtimes.tensorrt import CAPABILITIES, Builder, build_engine, open_model
from qconvert.runtimes.tensorrt_layers import layers_inspected, layers_listed, named_model

pytest.importorskip("tensorrt_rtx_bindings")


def _small(shape: tuple[int | str, ...] = (1, 8, 8, 8)) -> Any:
    net = Network()
    return net.model(net.pair(net.op("Relu", net.conv(net.pair(net.input("x", shape)), bias=net.constant([0.5] * 8)))))


def _saved(model: Any, path: Path, kernels: str = "sm89", **fields: Any) -> ModelFile:
    onnx.save(model, path)
    return ModelFile(path, kernels, **fields)


@pytest.mark.tensorrt
def test_an_engine_for_every_compute_capability(builder: Builder) -> None:
    for name in CAPABILITIES:
        found = builder.build(_small().SerializeToString(), name)
        assert (found.built, found.capability, found.errors) == (True, name.upper(), ())
        assert found.size > 1000 and found.package.startswith("tensorrt_rtx_bindings 1.")
        assert [layer.integer for layer in found.layers if layer.type == "correlation"] == [name != "sm75"]


@pytest.mark.tensorrt
@pytest.mark.parametrize(
    "names", [[""], ["same"], ["qconvert.0."], ["a], Metadata: [ONNX Layer: b", "c\nName: d", "e { Name: f, Datatype: Int8"]]
)
def test_names_of_nodes_do_no_harm(names: list[str], builder: Builder) -> None:
    """Nodes without names, with the same name, and with names that look like a part of a list of layers."""
    model = _small()
    for index, node in enumerate(model.graph.node):
        node.name = names[index % len(names)]
    found = builder.build(model.SerializeToString())
    assert [layer.type for layer in found.layers] == ["kgen", "correlation", "kgen"]
    conv = next(node for node in found.layers[1].nodes if node.operator == "Conv")
    assert conv.name == (names[3 % len(names)] or conv.outputs[0])
    assert {node.operator for node in found.layers[1].nodes} == {"Conv", "DequantizeLinear"}


@pytest.mark.formats
def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff\xff\xff")
    with refused(InvalidModelError, "not-this-format"):
        build_engine(ModelFile(tmp_path / "m.onnx", "sm89"))


@pytest.mark.tensorrt
def test_external_data_are_found(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    onnx.save(_small(), tmp_path / "there" / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=64)
    assert (tmp_path / "there" / "m.data").stat().st_size > 500
    assert len(build_engine(ModelFile(tmp_path / "there" / "m.onnx", "sm89")).layers) > 3


@pytest.mark.tensorrt
def test_sizes_that_the_model_leaves_open(tmp_path: Path) -> None:
    """They are taken from what the model demands, or from the user."""
    file = _saved(_small(("batch", 8, "height", 8)), tmp_path / "m.onnx")
    assert " with x:1x8x224x8,4x8x224x8,16x8x224x8 (--shape states others)" in build_engine(file).notes[0]
    stated = _saved(_small(("batch", 8, "height", 8)), tmp_path / "m.onnx", bounds=stated_bounds(["x:1x8x8x8,2x8x8x8,4x8x16x8"]))
    assert "--shape" not in build_engine(stated).notes[0]


@pytest.mark.tensorrt
@pytest.mark.parametrize(
    ("text", "rule", "holds"),
    [
        ("x:1x8x8", "counts-differ", ("'x'", 4, 3)),
        ("y:1x8x8x8", "unknown-input", ("'y'",)),
        ("1x8x8x8", "malformed-shape", ()),
        ("x:1x8xhx8", "malformed-shape", ()),
        ("x:1x8x8x8,2x8x8x8", "malformed-shape", ()),
        ("x:2x8x8x8,1x8x8x8,4x8x8x8", "sizes-not-increasing", ()),
    ],
)
def test_sizes_that_are_stated_wrongly(text: str, rule: str, holds: tuple[object, ...], tmp_path: Path) -> None:
    with refused(OptionError, rule, holds=holds):
        build_engine(_saved(_small(("n", 8, 8, 8)), tmp_path / "m.onnx", bounds=stated_bounds([text])))


@pytest.mark.formats
def test_names_of_inputs_may_have_colons() -> None:
    assert stated_bounds(["serving:0:1x3"]) == {"serving:0": ((1, 3),) * 3}


@pytest.mark.tensorrt
def test_a_refusal_names_the_node_and_the_file(tmp_path: Path) -> None:
    net = Network()
    net.model(net.conv(net.pair(net.input(), zero=np.array(3, np.int8))))
    file = _saved(net.model(net.nodes[-1].output[0]), tmp_path / "m.onnx")
    with pytest.raises(RuntimeRefusedError) as caught:
        build_engine(file)
    assert caught.value.exit_code == 4
    assert (caught.value.file, caught.value.where) == (str(file.path), "QuantizeLinear 'QuantizeLinear_0'")
    assert "TensorRT's parser (tensorrt_rtx_bindings 1." in caught.value.reason and "Non-zero zero point" in caught.value.reason


@pytest.mark.tensorrt
def test_a_process_that_ends_says_at_which_node(tmp_path: Path) -> None:
    net = Network()
    scale = net.input("scale", ())
    file = _saved(net.model(net.conv(net.pair(net.input(), scale))), tmp_path / "m.onnx")
    with refused(RuntimeRefusedError, "process-ended", holds=("SIG", "QuantizeLinear_0 [QuantizeLinear]")) as caught:
        build_engine(file)
    assert (caught.value.exit_code, caught.value.file) == (4, str(file.path))


@pytest.mark.end_to_end
def test_a_process_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "child.py"
    program.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(tensorrt, "_CHILD", program)
    monkeypatch.setattr(tensorrt, "_PATIENCE", 0.3)
    with refused(RuntimeRefusedError, "no-answer", holds=("TensorRT",)):
        Builder().build(_small().SerializeToString())


@pytest.mark.tensorrt
def test_a_process_may_not_take_all_memory() -> None:
    from qconvert.runtimes import tensorrt_child

    program = f"import runpy; runpy.run_path({tensorrt_child.__file__!r})['limit_memory'](2**28); bytearray(2**30)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "MemoryError" in done.stderr


@pytest.mark.formats
def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "PACKAGES", ("no_such_package_at_all",))
    with refused(MissingPackageError, "package-missing", holds=("TensorRT",)) as caught:
        Builder()
    assert caught.value.remedy == "Install it with: pip install 'qconvert[tensorrt]'"


@pytest.mark.end_to_end
def test_a_package_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "child.py"
    program.write_text(
        'import sys\nsys.stdin.buffer.readline()\nprint(\'{"missing": "tensorrt: libnvinfer.so is not there"}\', flush=True)\n'
    )
    monkeypatch.setattr(tensorrt, "_CHILD", program)
    with refused(MissingPackageError, "package-missing", holds=("libnvinfer",)):
        Builder().build(_small().SerializeToString())


@pytest.mark.onnxruntime
@pytest.mark.tensorrt
@pytest.mark.cross_section
def test_without_a_gpu_a_run_is_one_in_onnxruntime(tmp_path: Path) -> None:
    file = _saved(_small(), tmp_path / "m.onnx")
    loaded = open_model(file)
    feed: Mapping[str, Any] = {"x": np.random.default_rng(1).normal(0, 3, (1, 8, 8, 8)).astype(np.float32)}
    expected = OnnxRuntime(file.path, optimize=False).run(feed)
    assert loaded.outputs.keys() == expected.keys()
    for name, value in loaded.run(feed).items():
        np.testing.assert_array_equal(value, expected[name])
    if "no GPU" in loaded.note:
        assert "which was not run (no GPU): everything ran in onnxruntime, node by node" in loaded.note


@pytest.mark.onnxruntime
@pytest.mark.tensorrt
def test_a_check_says_that_the_engine_was_built_and_not_run(tmp_path: Path) -> None:
    path = _saved(_small(), tmp_path / "m.onnx").path
    report = check(path, path, kernels="tensorrt:sm80")
    assert report.passed and report.kernels == ("tensorrt:sm80", "tensorrt:sm80")
    assert any("built the engine for compute capability 8.0" in text for text in report.machine)


@pytest.mark.formats
def test_layers_of_an_inspector() -> None:
    """In the form that TensorRT documents; nobody ran it here."""
    model = named_model(_small().SerializeToString())
    text = {
        "Layers": [
            {
                "Name": "qconvert.3. + qconvert.4.",
                "LayerType": "CaskConvolution",
                "Inputs": [{"Name": "a", "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}],
                "Constants": [{"Name": "w", "Format/Datatype": "Int8"}],
                "Outputs": [{"Name": "b", "Format/Datatype": "Row major linear FP32"}],
                "TacticName": "sm80_xmma",
                "Metadata": "[ONNX Layer: qconvert.3.]\u001e[ONNX Layer: qconvert.4.]",
            },
            "Reformat",
        ]
    }
    (layer,) = layers_inspected(json.dumps(text), model)
    assert (layer.type, layer.integer, layer.name) == ("correlation", True, "target + Relu_4")
    assert [node.operator for node in layer.nodes] == ["Conv", "Relu"]
    assert layers_inspected("no JSON", model) == layers_inspected("[]", model) == layers_listed("Layers:\nName: x", model) == ()
