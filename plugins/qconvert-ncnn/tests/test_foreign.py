"""Networks that others made: pnnx's of PyTorch (tests/data/make_pnnx.py), and what becomes of them with a table of scales."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from qconvert_ncnn.container import read_param
from qconvert_ncnn.running import NcnnModel

import qconvert
from qconvert.plugin import Array, ModelFile, OptionError, UnsupportedError, convert, evaluate, load, save

PRODUCTS = ("Convolution", "ConvolutionDepthWise", "InnerProduct")
DATA = Path(__file__).parent / "data"
SHAPES = {"vision": "1,3,32,32", "attention": "in0=1,6,16"}


@pytest.mark.parametrize("name", SHAPES)
def test_pnnx_s_files_compute_what_pytorch_does(name: str, tmp_path: Path) -> None:
    """Read, run in ncnn, and written again."""
    path, stored = DATA / f"pnnx_{name}.param", np.load(DATA / f"pnnx_{name}.npz")
    graph = load(path, input_shape=SHAPES[name])
    given = {"in0": stored["x"]}
    found = NcnnModel(ModelFile(path, "cpu", {"input_shape": SHAPES[name]})).run(given)
    save(graph, tmp_path / "again.param")
    again = NcnnModel(ModelFile(tmp_path / "again.param", "cpu")).run(given)
    for output, value in evaluate(graph, given).items():
        for other in (value, found[output], again[output]):
            np.testing.assert_allclose(other, stored[output], atol=2e-6)


def test_sizes_are_asked_for_where_the_file_has_none() -> None:
    with pytest.raises(UnsupportedError) as caught:
        load(DATA / "pnnx_vision.param")
    assert caught.value.rule == "shape-not-stated" and "input_shape" in str(caught.value)
    wrong = {
        "x=1,3,32,32": "unknown-input",
        "2,3,32,32": "several-samples",
        "1,3,zebra,32": "malformed-shape",
        "1,3,32,32;1,2": "too-many-shapes",
    }
    for shape, rule in wrong.items():
        with pytest.raises(OptionError) as refused:
            load(DATA / "pnnx_vision.param", input_shape=shape)
        assert refused.value.rule == rule and "--input-shape" in refused.value.reason


def test_a_network_of_pnnx_goes_to_onnx(tmp_path: Path) -> None:
    convert(DATA / "pnnx_vision.param", tmp_path / "vision.onnx", input_shape=SHAPES["vision"])
    report = qconvert.check(DATA / "pnnx_vision.param", tmp_path / "vision.onnx", input_shape=SHAPES["vision"])
    assert report.passed, report.problems


def test_a_table_makes_int8_layers_of_a_float_network(fixtures: Path, tmp_path: Path) -> None:
    """What ncnn2table and ncnn2int8 do, with scales from data; the digits that a network knows in float32 it knows in int8."""
    stored = np.load(fixtures / "digits" / "test.npz")
    images, labels = stored["images"].astype(np.float32)[:, None], stored["labels"]
    (tmp_path / "images").mkdir()
    for index, image in enumerate(images[:64]):
        np.save(tmp_path / "images" / f"{index}.npy", image)
    convert(fixtures / "digits" / "float.onnx", tmp_path / "net.param")
    for words in ("calibrate net.param --data images --symmetric -o net.table", "apply net.param net.table -o int8.param"):
        subprocess.run([sys.executable, "-m", "qconvert", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    products = [layer for layer in read_param(tmp_path / "int8.param") if layer.kind in PRODUCTS]
    lines = dict(line.split(" ", 1) for line in (tmp_path / "net.table").read_text().splitlines())
    assert len(products) == 8
    for layer in products:
        assert layer.integer(8)
        assert layer.name in lines
        assert f"{layer.name}_param_0" in lines
    correct = [int((_classes(tmp_path / f"{name}.param", images) == labels).sum()) for name in ("net", "int8")]
    assert correct[0] > 560
    assert correct[1] >= correct[0] - 6


def _classes(path: Path, images: Array) -> Array:
    model = NcnnModel(ModelFile(path, "cpu"))
    (name,) = model.inputs
    return np.array([next(iter(model.run({name: image}).values())).argmax() for image in images])
