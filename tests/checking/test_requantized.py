"""Results whose weights and activations the conversion declared to be on other grids: what was declared is what has to be computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qconvert import Graph, Op, Tensor, check, convert, load, save
from qconvert.arithmetic import dequantize, quantize
from qconvert.checking.requantized import costly_constants
from qconvert.graph import Quantization


def network(path: Path, spatial: bool) -> Path:
    """Products of uint16 by uint8 weights of which one channel does not fit int8, in a row: names of what stands between are lost."""
    rng = np.random.default_rng(0)
    shape, size = ((1, 8, 6), (8, 8, 1)) if spatial else ((1, 6, 8), (8, 8))

    def weights(name: str, zero_point: int) -> Tensor:
        data = rng.integers(zero_point - 60, zero_point + 60, size).astype(np.uint8)
        data[(3, 0, 0) if spatial else (0, 3)] = 255
        return Tensor(name, "uint8", size, data, Quantization.per_tensor(0.01, zero_point))

    def act(name: str, sizes: tuple[int, ...], scale: float, zero_point: int) -> Tensor:
        return Tensor(name, "uint16", sizes, None, Quantization.per_tensor(scale, zero_point))

    conv = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1, "data_format": "channels_first"} if spatial else {}
    kind = "Conv" if spatial else "MatMul"
    tensors = [act("x", shape, 1e-4, 30000), act("a", shape, 1.1e-4, 0), act("b", shape, 1.5e-4, 35000), act("y", (6, 8), 1.5e-4, 35000)]
    tensors += [weights("v", 120), weights("w", 110), Tensor("sizes", "int64", (2,), np.array([6, 8]))]
    tensors += [Tensor("given", "float32", shape), Tensor("read", "float32", (6, 8))]
    ops = [Op(kind, ("x", "v"), ("a",), conv), Op(kind, ("a", "w"), ("b",), conv), Op("Reshape", ("b", "sizes"), ("y",))]
    ops = [Op("Quantize", ("given",), ("x",)), *ops, Op("Dequantize", ("y",), ("read",))]
    save(Graph("network", {tensor.name: tensor for tensor in tensors}, tuple(ops), ("given",), ("read",)), path)
    return path


@pytest.mark.parametrize("spatial", [False, True])
def test_what_was_declared_is_judged(spatial: bool, tmp_path: Path) -> None:
    source, result = network(tmp_path / "m.onnx", spatial), tmp_path / "m.tflite"
    convert(source, result)
    report = check(source, result, per_op=True)
    assert report.passed, (report.problems, report.unjudged)
    assert {item.verdict for item in report.operators} <= {"requantized", "equal"}


@pytest.mark.parametrize("spatial", [False, True])
@pytest.mark.parametrize("off", [2, 40])
def test_what_was_not_declared_is_found(spatial: bool, off: int, tmp_path: Path) -> None:
    """Half of the weights of an operator are off by some steps, in a file that declares others."""
    source, result, wrong = network(tmp_path / "m.onnx", spatial), tmp_path / "m.tflite", tmp_path / "wrong.tflite"
    convert(source, result)
    graph = load(result)
    weights = next(t for t in graph.constants() if t.dtype == "int8" and t.data is not None and t.data.size == 64)
    assert weights.data is not None
    data = np.where(np.arange(64).reshape(weights.data.shape) % 2, weights.data, np.clip(weights.data.astype(int) + off, -127, 127))
    save(graph.evolve(tensors=[replace(weights, data=data.astype(np.int8))]), wrong)
    assert not check(source, wrong, per_op=True).passed


@pytest.mark.parametrize("spatial", [False, True])
@pytest.mark.parametrize("which", ["a", "b"])
def test_a_single_step_of_a_weight_is_found_at_its_operator(spatial: bool, which: str, tmp_path: Path) -> None:
    """Between the two products stands a tensor in another shape, under another name: both sides are cut there."""
    source, result, wrong = network(tmp_path / "m.onnx", spatial), tmp_path / "m.tflite", tmp_path / "wrong.tflite"
    convert(source, result)
    graph = load(result)
    assert not {"a", "b"} & graph.tensors.keys()
    op = [op for op in graph.ops if op.kind in ("Conv", "Gemm")][which == "b"]
    weights = graph[op.inputs[1]]
    assert weights.data is not None
    data = np.array(weights.data)
    data.reshape(-1)[5] += 1
    changed = graph.evolve(tensors=[replace(weights, data=data)])
    save(changed, wrong)
    for path, expected in ((result, set[str]()), (wrong, {which})):
        report = check(source, path, per_op=True)
        assert {item.output for item in report.operators} >= {"a", "b"}
        assert {item.output for item in report.operators if item.verdict == "unexplained"} == expected


@pytest.mark.parametrize(("off", "found"), [(0, False), (1, False), (3, True)])
@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_a_joined_constant_has_the_values_that_the_source_s_operator_rounds_it_to(spread: float, off: int, found: bool) -> None:
    """On a grid that is as coarse as this one, where a signal of its values against the difference says nothing, and on a fine one."""
    own, joint = Quantization.per_tensor(0.01, 3), Quantization.per_tensor(0.01 * spread, -5)
    data = np.array([[-90, -20, 4, 100]], np.int8)
    tensors = [Tensor("x", "int8", (1, 4), None, joint), Tensor("c", "int8", (1, 4), data, own), Tensor("y", "int8", (1, 8), None, joint)]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Concat", ("x", "c"), ("y",), {"axis": 1}),), ("x",), ("y",))
    rounded = quantize(dequantize(data, own), joint, "int8")
    changed = replace(graph["c"], data=(rounded + np.int8(off)).astype(np.int8), quantization=joint)
    other = graph.evolve(tensors=[changed])
    assert bool(costly_constants(graph, other, {"c"})) is found
