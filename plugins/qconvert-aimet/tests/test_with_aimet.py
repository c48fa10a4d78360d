"""Next to aimet-onnx itself: its simulation and onnxruntime on what qconvert made of the encodings; and encodings of qconvert's in
AIMET."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from networks import attention, convolutions, dense, model
from onnx import helper, numpy_helper

from qconvert import Encodings, apply, convert, extract_scales, load, load_encodings, save, save_encodings

aimet = pytest.importorskip("aimet_onnx.quantsim", reason="aimet-onnx, whose wheels are for Linux on x86-64, is not installed")

VERSIONS = ("0.6.1", "1.0.0", "2.0.0")
NETWORKS = {"convolutions": convolutions, "dense": dense, "attention": attention}
pytestmark = pytest.mark.filterwarnings("ignore")
Sim = Any


def data(network: onnx.ModelProto, seed: int, count: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    shapes = {item.name: [d.dim_value for d in item.type.tensor_type.shape.dim] for item in network.graph.input}
    return [{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)]


def simulation(network: onnx.ModelProto, prepare: Callable[[Sim], None] = lambda sim: None, **types: Any) -> Sim:
    sim = aimet.QuantizationSimModel(onnx.ModelProto.FromString(network.SerializeToString()), **types)
    prepare(sim)
    sim.compute_encodings(data(network, 1))
    return sim


def symmetric(sim: Sim) -> None:
    for name in sim.activation_names:
        sim.qc_quantize_op_dict[name].use_symmetric_encodings = True


def unsigned_symmetric(sim: Sim) -> None:
    symmetric(sim)
    for name in sim.activation_names:
        sim.qc_quantize_op_dict[name].use_unsigned_symmetric = True


def affine_weights(sim: Sim) -> None:
    for name in sim.param_names:
        sim.qc_quantize_op_dict[name].use_symmetric_encodings = False


def strict_weights(sim: Sim) -> None:
    for name in sim.param_names:
        sim.qc_quantize_op_dict[name].use_strict_symmetric = True


def blocks(bits: int, size: int, *, is_symmetric: bool = True) -> Callable[[Sim], None]:
    return lambda sim: aimet.set_blockwise_quantization_for_weights(sim, ("Conv", "Gemm", "MatMul"), bits, is_symmetric, size)


def lpbq(sim: Sim) -> None:
    aimet.set_grouped_blockwise_quantization_for_weights(sim, ("Conv", "Gemm", "MatMul"), 4, 8, 4)


CASES: dict[str, tuple[Callable[[Sim], None], dict[str, str]]] = {
    "int8": (lambda sim: None, {}),
    "int16": (lambda sim: None, {"activation_type": "int16"}),
    "int4": (lambda sim: None, {"param_type": "int4"}),
    "symmetric": (symmetric, {}),
    "symmetric int16": (symmetric, {"activation_type": "int16"}),
    "unsigned symmetric": (unsigned_symmetric, {}),
    "affine weights": (affine_weights, {}),
    "strict weights": (strict_weights, {}),
}
BLOCKS = {"int4": blocks(4, 4), "int8": blocks(8, 8), "affine": blocks(4, 8, is_symmetric=False), "lpbq": lpbq}


def stated(encodings: Encodings, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Scales in float32 and zero points of unsigned integers, as a list."""
    quantization = encodings[name].qparams
    assert quantization is not None
    q = quantization.quantization
    low, _ = q.limits(quantization.dtype)
    return q.scale.reshape(-1), (q.zero_point - (low if quantization.dtype.startswith("int") else 0)).reshape(-1)


def assert_same_quantizations(sim: Sim, found: Encodings, least: int) -> None:
    """Every scale and offset that AIMET simulates with is that which qconvert read."""
    compared = 0
    for name, quantizer in sim.qc_quantize_op_dict.items():
        if not quantizer.enabled or quantizer.bitwidth == 32:
            continue
        scale, points = stated(found, name)
        given = quantizer.get_encodings()
        np.testing.assert_array_equal(scale, np.array([e.delta for e in given], np.float32), name)
        np.testing.assert_array_equal(points, [-int(e.offset) for e in given], name)
        compared += 1
    assert compared >= least, compared


def unfused(path: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options)


def away(ours: Any, theirs: Any, network: onnx.ModelProto, step: float) -> tuple[float, float]:
    """How many codes of the output two sessions are apart, at most, and which share of them is."""
    pairs = [(ours.run(None, feed)[0], theirs.run(None, feed)[0]) for feed in data(network, 2, 8)]
    codes = np.abs(np.rint([a / step for a, _ in pairs]) - np.rint([b / step for _, b in pairs]))
    return float(codes.max()), float((codes > 0).mean())


def assert_same_codes(sim: Sim, path: Path, network: onnx.ModelProto, found: Encodings) -> None:
    """onnxruntime on qconvert's integers, on AIMET's own QDQ model, and AIMET's simulation.

    Biases are int32 here and real there, which moves few codes by one; with 16 bits AIMET's simulation is two steps from its own QDQ model.
    """
    scale, points = stated(found, network.graph.output[0].name)
    qdq = unfused(sim.to_onnx_qdq(prequantize_constants=True).SerializeToString())
    ours, step = unfused(path), float(scale[0])
    assert away(ours, qdq, network, step) <= (1, 0.05)
    largest, share = away(ours, sim.session, network, step)
    assert largest <= 1 + (points.max() > 255) and share <= (0.08 if points.max() < 256 else 0.15), (largest, share)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_what_aimet_exports(name: str, case: str, tmp_path: Path) -> None:
    network, (prepare, types) = NETWORKS[name](), CASES[case]
    sim = simulation(network, prepare, **types)
    for version in VERSIONS:
        sim.export(str(tmp_path), "model", encoding_version=version)
        found = load_encodings(tmp_path / "model.encodings")
        assert found.metadata["aimet.version"] == version
        assert_same_quantizations(sim, found, 7)
    onnx.save(network, tmp_path / "float.onnx")
    convert(tmp_path / "float.onnx", tmp_path / "q.onnx", encodings=str(tmp_path / "model.encodings"))
    assert_same_codes(sim, tmp_path / "q.onnx", network, found)


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
@pytest.mark.parametrize("case", BLOCKS)
@pytest.mark.parametrize("name", ["dense", "convolutions"])
def test_blocks_that_aimet_exports(name: str, case: str, version: str, tmp_path: Path) -> None:
    """Weights in blocks have AIMET's values, bit for bit; data stay real, since no runtime has layers of integers with them."""
    network = NETWORKS[name]()
    sim = simulation(network, BLOCKS[case])
    sim.export(str(tmp_path), "model", encoding_version=version)
    onnx.save(network, tmp_path / "float.onnx")
    graph = apply(tmp_path / "float.onnx", tmp_path / "model.encodings")
    blocked = 0
    for constant in network.graph.initializer:
        quantizer, tensor = sim.qc_quantize_op_dict[constant.name], graph[constant.name]
        if not quantizer.enabled or not quantizer.quant_info.blockSize:
            continue
        blocked += 1
        assert tensor.quantization is not None and tensor.quantization.block_size == quantizer.quant_info.blockSize
        theirs = quantizer.quantize_dequantize(numpy_helper.to_array(constant))
        theirs = theirs if theirs.shape == tensor.shape else theirs.T  # Gemm has outputs first here
        np.testing.assert_allclose(tensor.float_values(), theirs, rtol=3e-7, err_msg=constant.name)
    assert blocked == {"dense": 3, "convolutions": 1}[name]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", ["int8", "int16", "int4", "affine weights"])
def test_what_aimet_loads(case: str, version: str, tmp_path: Path) -> None:
    """Encodings of an integer model, extracted, are what AIMET's simulation of the real one then has: scales, offsets and outputs."""
    network, (prepare, types) = convolutions(), CASES[case]
    simulation(network, prepare, **types).export(str(tmp_path), "first", encoding_version="1.0.0")
    onnx.save(network, tmp_path / "float.onnx")
    integers = apply(tmp_path / "float.onnx", tmp_path / "first.encodings")
    real, found = extract_scales(integers)
    save(real, tmp_path / "real.onnx")
    save_encodings(found, tmp_path / "second.encodings", graph=real, aimet_version=version)
    save(integers, tmp_path / "q.onnx")
    sim = aimet.QuantizationSimModel(onnx.load(tmp_path / "real.onnx"))
    aimet.load_encodings_to_sim(sim, str(tmp_path / "second.encodings"), strict=False)
    again = load_encodings(tmp_path / "second.encodings")
    assert_same_quantizations(sim, again, 10)
    for place, entry in load_encodings(tmp_path / "first.encodings").entries.items():
        if place in again.entries:
            np.testing.assert_array_equal(stated(again, place.name)[0], stated(found, place.name)[0])
            assert entry.qparams is not None
    scale, points = stated(again, "y")
    largest, share = away(unfused(tmp_path / "q.onnx"), sim.session, network, float(scale[0]))
    assert largest <= 1 + (points.max() > 255) and share <= 0.05, (largest, share)


def test_blocks_that_aimet_loads(tmp_path: Path) -> None:
    network = dense()
    sim = simulation(network, blocks(4, 8))
    sim.export(str(tmp_path), "first", encoding_version="2.0.0")
    onnx.save(network, tmp_path / "float.onnx")
    real, found = extract_scales(apply(tmp_path / "float.onnx", tmp_path / "first.encodings"))
    save(real, tmp_path / "real.onnx")
    again = {constant.name: numpy_helper.to_array(constant) for constant in onnx.load(tmp_path / "real.onnx").graph.initializer}
    first = {constant.name: numpy_helper.to_array(constant) for constant in network.graph.initializer}
    for version in ("1.0.0", "2.0.0"):
        save_encodings(found, tmp_path / "second.encodings", graph=real, aimet_version=version, force=True)
        other = aimet.QuantizationSimModel(onnx.load(tmp_path / "real.onnx"))
        aimet.set_blockwise_quantization_for_weights(other, ("Gemm", "MatMul"), 4, True, 8)
        aimet.load_encodings_to_sim(other, str(tmp_path / "second.encodings"), strict=False)
        for name in ("a.weight", "b.weight", "c.weight"):
            one = sim.qc_quantize_op_dict[name].quantize_dequantize(first[name])
            two = other.qc_quantize_op_dict[name].quantize_dequantize(again[name])
            np.testing.assert_allclose(two if two.shape == one.shape else two.T, one, rtol=3e-7, err_msg=f"{name} {version}")


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_left_to_calibrate(version: str, tmp_path: Path) -> None:
    """Each quantizer of AIMET's simulation has an encoding: ends of a Clip, results before it, what is moved; and floats are floats."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], "/conv"),
        helper.make_node("Clip", ["conv", "low", "high"], ["clip"], "/clip"),
        helper.make_node("Transpose", ["clip"], ["t"], "/t", perm=[0, 2, 3, 1]),
        helper.make_node("Add", ["t", "t"], ["sum"], "/sum"),
        helper.make_node("Softmax", ["sum"], ["y"], "/softmax"),
    ]
    rng = np.random.default_rng(1)
    values = {"w": rng.normal(size=(4, 3, 3, 3)), "low": np.array(0), "high": np.array(6)}
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()]
    network = model(nodes, constants, {"x": [1, 3, 8, 8]}, {"y": [1, 6, 6, 4]})
    first = simulation(network, lambda sim: sim.qc_quantize_op_dict["y"].__setattr__("enabled", False))
    first.export(str(tmp_path), "first", encoding_version="1.0.0")
    onnx.save(network, tmp_path / "float.onnx")
    convert(tmp_path / "float.onnx", tmp_path / "q.onnx", encodings=str(tmp_path / "first.encodings"))
    floats, found = extract_scales(tmp_path / "q.onnx")
    save(floats, tmp_path / "real.onnx")
    save_encodings(found, tmp_path / "second.encodings", graph=load(tmp_path / "real.onnx"), aimet_version=version)
    sim = aimet.QuantizationSimModel(onnx.load(tmp_path / "real.onnx"))
    floats_have_no_entry = version == "2.0.0"
    aimet.load_encodings_to_sim(sim, str(tmp_path / "second.encodings"), strict=False, disable_missing_quantizers=floats_have_no_entry)
    left = [name for name, quantizer in sim.qc_quantize_op_dict.items() if quantizer.enabled and not quantizer.is_initialized()]
    assert left == []
    apart = away(unfused(tmp_path / "q.onnx"), sim.session, network, 2.0**-10)
    assert apart[0] <= 1, apart
