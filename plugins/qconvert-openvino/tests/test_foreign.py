"""Files that NNCF made (data/make_nncf.py), and files that are damaged."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qconvert_openvino.running import OpenVinoModel

import qconvert
from qconvert.plugin import InvalidModelError, ModelFile, UnsupportedError, convert, evaluate, load
from qconvert.testing import random_inputs

DATA = Path(__file__).parent / "data"
NNCF = {
    "vision_int8": ("int8", 4),
    "attention_int8": ("int8", 5),
    "attention_weights_int8": ("uint8", 5),
    "attention_weights_int4": ("int8", 5),
}


@pytest.mark.parametrize("name", NNCF)
def test_files_of_nncf_compute_what_openvino_computes(name: str) -> None:
    graph = load(DATA / f"{name}.xml")
    dtype, count = NNCF[name]
    assert [tensor.dtype for tensor in graph.constants() if tensor.is_quantized] == [dtype] * count
    given = random_inputs(graph)
    exact, found = evaluate(graph, given), OpenVinoModel(ModelFile(DATA / f"{name}.xml", "real")).run(given)
    for output in graph.outputs:
        np.testing.assert_allclose(found[output], exact[output], atol=2e-6)


def test_weights_in_blocks_are_read(tmp_path: Path) -> None:
    """NNCF gives symmetric int4 scales below zero, whose integers are turned; 8 then needs int8."""
    graph = load(DATA / "attention_weights_int4.xml")
    quantizations = [tensor.quantization for tensor in graph.constants() if tensor.is_quantized]
    assert {(quantization.axis, quantization.block_size) for quantization in quantizations if quantization is not None} == {(1, 8)}
    assert all(quantization is not None and (quantization.scale > 0).all() for quantization in quantizations)


@pytest.mark.parametrize("name", ["vision_int8", "attention_int8"])
def test_files_of_nncf_become_onnx_of_the_same_outputs(name: str, tmp_path: Path) -> None:
    convert(DATA / f"{name}.xml", tmp_path / "model.onnx")
    report = qconvert.check(DATA / f"{name}.xml", tmp_path / "model.onnx", kernels="openvino:real")
    assert report.passed or (name == "attention_int8" and report.outputs[0].largest < 1e-6)  # float values, added in another order


@pytest.mark.parametrize(("factor", "is_read"), [(1.5, False), (2.0, True)])
def test_factors_of_an_interpolation_are_those_of_its_sizes(factor: float, is_read: bool, tmp_path: Path) -> None:
    """OpenVINO samples by the factors: 1.5 of 5 elements are 7, whose own factor is 1.4."""
    from openvino import Model, opset11, save_model

    data, factors = opset11.parameter([1, 1, 5, 5], np.float32), opset11.constant(np.full(2, factor, np.float32))
    found = opset11.interpolate(data, factors, "linear_onnx", "scales", axes=opset11.constant(np.array([2, 3])))
    save_model(Model([found], [data]), tmp_path / "m.xml", compress_to_fp16=False)
    if is_read:
        assert [op.kind for op in load(tmp_path / "m.xml")] == ["Resize"]
    else:
        with pytest.raises(UnsupportedError) as caught:
            load(tmp_path / "m.xml")
        assert caught.value.rule == "variant-not-covered"


def test_a_reduction_over_no_axes_copies(tmp_path: Path) -> None:
    from openvino import Model, Tensor, op, opset11, save_model

    data, axes = opset11.parameter([1, 3], np.float32), op.Constant(Tensor(np.zeros(0, np.int64)))
    save_model(Model([opset11.reduce_sum(data, axes)], [data]), tmp_path / "m.xml")
    assert [op.kind for op in load(tmp_path / "m.xml")] == ["Identity"]


def damaged(rng: random.Random, text: str, data: bytearray) -> str:
    """One change of the XML or of the constants."""
    words = ["0", "-1", "65536", "99999999999", "nan", "1e400", "", "opset9", "u4", "i64", "Const", "Result", "FakeQuantize", "a,b"]
    what = rng.randrange(5)
    if what < 2:
        place = rng.choice([*re.finditer(r'"([^"]*)"', text)])
        return text[: place.start(1)] + rng.choice(words) + text[place.end(1) :]
    if what == 2:
        place = rng.choice([*re.finditer(r"<dim>([^<]*)</dim>", text)])
        return text[: place.start(1)] + rng.choice(words) + text[place.end(1) :]
    if what == 3:
        lines = text.split("\n")
        lines.pop(rng.randrange(len(lines)))
        return "\n".join(lines)
    data[rng.randrange(len(data))] = rng.randrange(256)
    return text


@pytest.mark.parametrize("name", NNCF)
def test_damaged_files_are_errors_of_qconvert(name: str, tmp_path: Path) -> None:
    rng, refused = random.Random(7), 0
    for _ in range(150):
        text, data = (DATA / f"{name}.xml").read_text(), bytearray((DATA / f"{name}.bin").read_bytes())
        (tmp_path / "model.xml").write_text(damaged(rng, text, data))
        (tmp_path / "model.bin").write_bytes(bytes(data))
        try:
            load(tmp_path / "model.xml")
        except qconvert.QConvertError as error:
            assert error.exit_code == 2 and str(tmp_path) in error.file
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("shape", ["0, 1099511627776, 1099511627776", ", ".join(["1"] * 70), "4294967296, 4294967296", "-4"])
def test_shapes_that_no_array_has_are_errors(shape: str, tmp_path: Path) -> None:
    text = (DATA / "vision_int8.xml").read_text()
    (tmp_path / "model.xml").write_text(
        re.sub(r'shape="[^"]*" offset="\d+" size="\d+"', f'shape="{shape}" offset="0" size="0"', text, count=1)
    )
    (tmp_path / "model.bin").write_bytes((DATA / "vision_int8.bin").read_bytes())
    with pytest.raises(qconvert.QConvertError) as caught:
        load(tmp_path / "model.xml")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("<net", ("malformed-xml",)),
        ("<other/>", ("not-this-format",)),
        ('<net version="7"/>', ("not-this-format",)),
        ('<net version="11"/>', ("too-many-layers", 0)),
        ('<!DOCTYPE a [<!ENTITY b "c">]><net version="11">&b;</net>', ("malformed-xml",)),
    ],
)
def test_what_is_no_model_is_said(text: str, broken: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_text(text)
    with pytest.raises(InvalidModelError) as caught:
        load(tmp_path / "model.xml")
    assert caught.value.rule == broken[0] and all(str(part) in str(caught.value) for part in broken[1:])


def test_layers_that_are_not_covered_are_named_all_at_once(tmp_path: Path) -> None:
    text = (DATA / "vision_int8.xml").read_text().replace('type="SoftMax"', 'type="Wonder"').replace('type="ReLU"', 'type="Odd"')
    (tmp_path / "model.xml").write_text(text)
    (tmp_path / "model.bin").write_bytes((DATA / "vision_int8.bin").read_bytes())
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path / "model.xml")
    assert caught.value.rule == "operators-not-covered" and "2 Odd, 1 Wonder" in caught.value.reason


def one_layer(kind: str, shapes: list[tuple[int, ...]], attributes: str = "", results: int = 1) -> str:
    """A layer that reads a Parameter of each shape, and a Result of it."""

    def dims(shape: tuple[int, ...]) -> str:
        return "".join(f"<dim>{size}</dim>" for size in shape)

    outputs = "".join(f'<port id="{9 + place}" precision="FP32">{dims(shapes[0])}</port>' for place in range(results))
    inputs = "".join(f'<port id="{place}"/>' for place in range(len(shapes)))
    layers = [
        f'<layer id="{place}" name="x{place}" type="Parameter" version="opset1"><data element_type="f32"/>'
        f'<output><port id="0" precision="FP32">{dims(shape)}</port></output></layer>'
        for place, shape in enumerate(shapes)
    ]
    layers.append(
        f'<layer id="50" name="y" type="{kind}" version="opset13"><data {attributes}/>'
        f"<input>{inputs}</input><output>{outputs}</output></layer>"
    )
    layers.append('<layer id="51" name="r" type="Result" version="opset1"><input><port id="0"/></input></layer>')
    edges = "".join(f'<edge from-layer="{place}" from-port="0" to-layer="50" to-port="{place}"/>' for place in range(len(shapes)))
    edges += f'<edge from-layer="{50 if results else 0}" from-port="{9 if results else 0}" to-layer="51" to-port="0"/>'
    return f'<net name="n" version="11"><layers>{"".join(layers)}</layers><edges>{edges}</edges></net>'


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (one_layer("ReLU", [(1, 4)], results=0), "no-inputs-or-outputs"),
        (one_layer("ScaledDotProductAttention", [(4,), (4,), (4,)]), "variant-not-covered"),
        (one_layer("Concat", [(1, 4), (1, 4)], 'axis=""'), "counts-differ"),
        (one_layer("Concat", [(1, 4), (1, 4)], 'axis="0,1"'), "counts-differ"),
        (one_layer("Convolution", [(4,), (4,)], 'strides="" dilations="" pads_begin="" pads_end=""'), "variant-not-covered"),
    ],
)
def test_layers_that_lack_what_they_need_are_errors(text: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_text(text)
    with pytest.raises(qconvert.QConvertError) as caught:
        load(tmp_path / "model.xml")
    assert caught.value.rule == rule and str(tmp_path) in caught.value.file


def test_a_circle_is_an_error(tmp_path: Path) -> None:
    ports = '<input><port id="0"/></input><output><port id="1" precision="FP32"/></output>'
    layers = "".join(f'<layer id="{place}" name="n{place}" type="ReLU" version="opset1">{ports}</layer>' for place in (0, 1))
    edges = '<edge from-layer="0" from-port="1" to-layer="1" to-port="0"/><edge from-layer="1" from-port="1" to-layer="0" to-port="0"/>'
    (tmp_path / "model.xml").write_text(f'<net version="11"><layers>{layers}</layers><edges>{edges}</edges></net>')
    with pytest.raises(InvalidModelError) as caught:
        load(tmp_path / "model.xml")
    assert caught.value.rule == "cycle"
