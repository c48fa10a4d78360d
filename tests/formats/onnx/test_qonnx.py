"""QONNX's dialect: Quant, BipolarQuant and Trunc read, written as QDQ with Clip, as QONNX again and to TFLite.

What the nodes and networks of fixtures/qonnx have to give was computed by the qonnx package's own executor (fixtures/make_qonnx.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import onnx_graph
from refusals import refused
from tflite_models import run_litert

import qconvert
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.onnx.qonnx.nodes import limits_of, range_of
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph, Quantization
from qconvert.runtimes.onnxruntime import OnnxRuntime

FOLDER = Path(__file__).parents[3] / "fixtures" / "qonnx"
NETWORKS = sorted(path.stem for path in FOLDER.glob("*.onnx"))
DOMAIN = "qonnx.custom_op.general"


def _nodes() -> dict[str, tuple[dict[str, Any], list[Any]]]:
    found = np.load(FOLDER / "nodes.npz")
    cases, values, start = {}, found["values"], 0
    for number, node in enumerate(json.loads(found["nodes"].tobytes())):
        arrays = []
        for shape in node.pop("shapes"):
            size = int(np.prod(shape))
            arrays.append(values[start : start + size].reshape(shape))
            start += size
        mode = node["attributes"].get("rounding_mode", "")
        cases[f"{number}-{node['op_type']}-{mode}"] = (node, arrays)
    return cases


NODES = _nodes()


def models(cases: dict[str, tuple[dict[str, Any], list[Any]]], *, constant: bool = False) -> bytes:
    """A model with a node for each case, of input NAME/0 and output NAME; the first input is a constant too if asked for."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, fed, outputs, constants = [], [], [], []
    for key, (node, inputs) in cases.items():
        names = [f"{key}/{number}" for number in range(len(inputs))]
        nodes.append(helper.make_node(node["op_type"], names, [f"{key}/y"], domain=node["domain"], **node["attributes"]))
        nodes.append(helper.make_node("Neg", [f"{key}/y"], [key]))
        outputs.append(helper.make_tensor_value_info(key, TensorProto.FLOAT, inputs[0].shape))
        if not constant:
            fed.append(helper.make_tensor_value_info(names[0], TensorProto.FLOAT, inputs[0].shape))
        for name, value in list(zip(names, inputs, strict=True))[0 if constant else 1 :]:
            constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    graph = helper.make_graph(nodes, "g", fed, outputs, constants)
    versions = {node["domain"]: node["version"] for node, _ in cases.values()}
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(*item) for item in versions.items())]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())


def model(node: dict[str, Any], inputs: list[Any]) -> bytes:
    """A model of one node."""
    return models({"z": (node, inputs)})


#: The cases by the version of their domain, of which a model has one.
GROUPS = {
    version: {name: (node, inputs[:-1]) for name, (node, inputs) in NODES.items() if node["version"] == version} for version in (1, 2)
}


def require_results(found: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        np.testing.assert_array_equal(-found[name], NODES[name][1][-1], err_msg=name)


def fed(cases: dict[str, tuple[dict[str, Any], list[Any]]]) -> dict[str, Any]:
    return {f"{name}/0": inputs[0] for name, (_, inputs) in cases.items()}


def run(graph: Graph, form: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return OnnxRuntime(build(graph, 0, {}, form=form).SerializeToString(), optimize=False).run(inputs)


def op_types(data: bytes) -> Counter[str]:
    import onnx

    return Counter(node.op_type for node in onnx.load_from_string(data).graph.node)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("version", GROUPS)
def test_nodes_give_what_qonnx_computes(version: int) -> None:
    graph = onnx_graph(models(GROUPS[version]))
    assert all(op.kind != "Opaque" for op in graph.ops)
    for form in ("qdq", "qonnx"):
        require_results(run(graph, form, fed(GROUPS[version])), GROUPS[version])


@pytest.mark.onnxruntime
@pytest.mark.parametrize("version", GROUPS)
def test_constants_give_what_qonnx_computes(version: int) -> None:
    cases = {name: case for name, case in GROUPS[version].items() if case[0]["op_type"] != "Trunc"}
    require_results(run(onnx_graph(models(cases, constant=True)), "qdq", {}), cases)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("version", GROUPS)
def test_the_runtime_spells_nodes_as_qonnx_computes_them(version: int) -> None:
    """What a check runs of a QONNX file."""
    require_results(OnnxRuntime(models(GROUPS[version]), optimize=False).run(fed(GROUPS[version])), GROUPS[version])


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_what_qonnx_computes(name: str, tmp_path: Path) -> None:
    source, known = FOLDER / f"{name}.onnx", np.load(FOLDER / f"{name}.npz")
    data, wanted = known["x"], known["y"]
    bound = 1e-6 * np.abs(wanted).max()  # sums of floats in another order
    results = {form: tmp_path / f"{form}.onnx" for form in ("qdq", "qonnx")}
    for form, path in results.items():
        qconvert.convert(source, path, form=form)
    qconvert.convert(results["qonnx"], tmp_path / "again.onnx")
    for path in (results["qdq"], tmp_path / "again.onnx"):
        runtime = OnnxRuntime(path.read_bytes(), optimize=False)
        (found,) = runtime.run({next(iter(runtime.inputs)): data}).values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)
    assert not {"Quant", "BipolarQuant"} & set(op_types(results["qdq"].read_bytes()))
    assert op_types(results["qonnx"].read_bytes())["Quant"] >= op_types(source.read_bytes())["Quant"] > 0 or name == "mlp_binary"
    same = [op_types(path.read_bytes()) for path in (results["qdq"], tmp_path / "again.onnx")]
    assert same[0] - Counter(Identity=9) == same[1] - Counter(Identity=9)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("name", "suffix"), [*((name, "tflite") for name in NETWORKS), ("mlp_2_bits", "onnx"), ("residual", "onnx")])
def test_a_check_of_a_qonnx_source_passes(name: str, suffix: str, tmp_path: Path) -> None:
    """Also where real biases are put on the coarse scale of few bits."""
    result = tmp_path / f"y.{suffix}"
    qconvert.convert(FOLDER / f"{name}.onnx", result)
    report = qconvert.check(FOLDER / f"{name}.onnx", result, per_op=True, samples=2, min_sqnr=25)  # few bits: residual keeps 29.6
    assert report.passed, report


@pytest.mark.formats
def test_bits_become_a_clip_of_integers_and_bits_again() -> None:
    node, inputs = next(
        value for value in NODES.values() if value[1][-2].size == 1 and value[1][3] == 4 and value[0]["attributes"]["signed"]
    )
    node = {**node, "attributes": {"signed": 1, "narrow": 1, "rounding_mode": "ROUND"}}
    graph = onnx_graph(model(node, [*inputs[:1], np.float32(0.5), np.float32(0), np.float32(4)]))
    import onnx
    from onnx import numpy_helper

    written = build(graph, 0, {})
    constants = {item.name: numpy_helper.to_array(item) for item in written.graph.initializer}
    (clip,) = [item for item in written.graph.node if item.op_type == "Clip"]
    assert [int(constants[name]) for name in clip.input[1:]] == [-7, 7] and constants[clip.input[1]].dtype == np.int8
    again = build(graph, 0, {}, form="qonnx")
    (quant,) = [item for item in again.graph.node if item.op_type == "Quant"]
    assert {item.name: onnx.helper.get_attribute_value(item) for item in quant.attribute} == {
        "signed": 1, "narrow": 1, "rounding_mode": b"ROUND",
    }  # fmt: skip
    constants = {item.name: numpy_helper.to_array(item) for item in again.graph.initializer}
    assert [float(constants[name]) for name in quant.input[1:]] == [0.5, 0.0, 4.0]


@pytest.mark.formats
def test_weights_say_which_integers_they_use() -> None:
    graph = onnx_graph((FOLDER / "mlp_4_bits.onnx").read_bytes())
    weights = [tensor for tensor in graph.constants() if tensor.dtype == "int8"]
    assert len(weights) == 2
    for tensor in weights:
        assert tensor.quantization is not None and tensor.data is not None
        assert (tensor.quantization.quant_min, tensor.quantization.quant_max) == (-7, 7)
        assert tensor.data.min() >= -7 and tensor.data.max() <= 7


@pytest.mark.parametrize("bits", range(1, 17))
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("offset", [0, 5])
def test_ranges_are_found_again(bits: int, signed: bool, narrow: bool, offset: int) -> None:
    low, high = limits_of(bits, signed, narrow)
    if low >= high or (signed and bits == 1):
        return
    found = range_of((low + offset, high + offset), Quantization.per_tensor(1.0, offset))
    assert found is not None and found.offset == -offset
    assert limits_of(found.bits, found.signed, found.narrow) == (low, high)


def test_a_range_that_no_bits_have_is_none() -> None:
    assert range_of((-3, 8), Quantization.per_tensor(1.0)) is None


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("name", ["tiny_resnet_cifar10_int8", "tiny_ad_toycar_int8"])
def test_tflite_goes_to_qonnx_and_back(name: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "fixtures" / f"{name}.tflite"
    qconvert.convert(source, tmp_path / "y.onnx", form="qonnx")
    types = op_types((tmp_path / "y.onnx").read_bytes())
    assert types["Quant"] > 10 and types["QuantizeLinear"] + types["DequantizeLinear"] <= 2  # at the integer inputs and outputs
    qconvert.convert(tmp_path / "y.onnx", tmp_path / "y.tflite")
    shape = qconvert.load(source)[qconvert.load(source).inputs[0]].shape or ()
    data = np.random.default_rng(0).integers(-128, 128, [size if isinstance(size, int) else 1 for size in shape]).astype(np.int8)
    before, after = (run_litert(path.read_bytes(), [data])[0] for path in (source, tmp_path / "y.tflite"))
    assert before.shape == after.shape
    assert np.mean(before != after) < 0.02


QUANT = {"op_type": "Quant", "domain": DOMAIN, "version": 1, "attributes": {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"}}
X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(1, 3, 4)


@pytest.mark.formats
@pytest.mark.parametrize("bits", [0.0, -1.0, np.nan, [4.0, 4.0]])
def test_a_bit_width_that_is_none_is_an_error(bits: Any) -> None:
    with refused(InvalidModelError, "invalid-bit-width"):
        onnx_graph(model(QUANT, [X, np.float32(0.5), np.float32(0), np.asarray(bits, np.float32)]))


@pytest.mark.formats
@pytest.mark.parametrize(
    ("bits", "attributes"), [(33.0, {}), (4.5, {}), (1e30, {}), (np.inf, {}), (4.0, {"rounding_mode": "STOCHASTIC"})], ids=str
)
def test_what_no_quantization_holds_stays_a_node(bits: float, attributes: dict[str, Any]) -> None:
    node = {**QUANT, "attributes": {**QUANT["attributes"], **attributes}}
    graph = onnx_graph(model(node, [X, np.float32(0.5), np.float32(0), np.float32(bits)]))
    assert [op.kind for op in graph.ops] == ["Opaque", "Neg"]


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("scale", "point"),
    [(np.float32(-0.5), 0), (np.full((1, 3, 4), 0.5), 0), (0.5, 0.25), (np.full((1, 3, 1), 0.5), 3e5)],
    ids=["negative", "each element", "fraction", "far"],
)
def test_quantizations_that_have_no_integers_are_spelled_out_on_real_values(scale: Any, point: float) -> None:
    """numpy states the meaning here, in float32 as qonnx computes."""
    data = model(QUANT, [X, np.asarray(scale, np.float32), np.float32(point), np.float32(4)])
    graph = onnx_graph(data)
    assert not any(tensor.is_quantized for tensor in graph.tensors.values())
    scale, point = np.asarray(scale, np.float32), np.float32(point)
    wanted = (np.rint(np.clip(X / scale + point, np.float32(-8), np.float32(7))) - point) * scale
    np.testing.assert_array_equal(-run(graph, "qdq", {"z/0": X})["z"], wanted)


@pytest.mark.formats
def test_a_scale_computed_at_run_time_stays_a_node_and_is_refused_for_tflite(tmp_path: Path) -> None:
    from onnx import helper, load_from_string

    proto = load_from_string(model(QUANT, [X, np.float32(0.5), np.float32(0), np.float32(4)]))
    proto.graph.node.insert(0, helper.make_node("ReduceMax", ["z/0"], ["largest"], keepdims=0))
    next(node for node in proto.graph.node if node.op_type == "Quant").input[1] = "largest"
    (tmp_path / "x.onnx").write_bytes(proto.SerializeToString())
    qconvert.convert(tmp_path / "x.onnx", tmp_path / "y.onnx")
    assert op_types((tmp_path / "y.onnx").read_bytes())["Quant"] == 1
    with refused(UnsupportedError, "target-rules", holds=("Quant",)):
        qconvert.convert(tmp_path / "x.onnx", tmp_path / "y.tflite")
    assert not (tmp_path / "y.tflite").exists()


@pytest.mark.formats
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_node_without_its_inputs_is_an_error(kept: int) -> None:
    with refused(InvalidModelError, "wrong-number-of-tensors"):
        onnx_graph(model(QUANT, [X, np.float32(0.5), np.float32(0)][:kept]))


@pytest.mark.formats
def test_a_narrow_bit_is_an_error() -> None:
    node = {**QUANT, "attributes": {"signed": 0, "narrow": 1, "rounding_mode": "ROUND"}}
    with refused(InvalidModelError, "invalid-bit-width"):
        onnx_graph(model(node, [X, np.float32(0.5), np.float32(0), np.float32(1)]))


@pytest.mark.formats
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("shapes", [((5,), ()), ((2, 1, 3, 4), ()), ((3, 1), (5,)), ((), (7, 1))], ids=str)
@pytest.mark.parametrize("op_type", ["Quant", "BipolarQuant", "Trunc"])
def test_scales_that_do_not_fit_their_data_are_an_error(op_type: str, shapes: tuple[tuple[int, ...], ...], constant: bool) -> None:
    scale, point = (np.full(shape, value, np.float32) for shape, value in zip(shapes, (0.5, 1), strict=True))
    if op_type == "BipolarQuant" and shapes[0] in ((), (3, 1)):
        return  # it has no zero point
    inputs = {"Quant": [X, scale, point, 4.0], "BipolarQuant": [X, scale], "Trunc": [X, scale, point, 8.0, 4.0]}[op_type]
    attributes = {"Quant": QUANT["attributes"], "BipolarQuant": {}, "Trunc": {"rounding_mode": "FLOOR"}}[op_type]
    node = {**QUANT, "op_type": op_type, "attributes": attributes}
    with refused(InvalidModelError, "shape-mismatch"):
        onnx_graph(models({"z": (node, inputs)}, constant=constant))
