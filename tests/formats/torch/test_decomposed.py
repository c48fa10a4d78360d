"""Fake quantization in plain operators: every form of one function becomes the same quantization, and another function does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.graph import Graph
from tests.torch_export import node, program, read, run, write

pytestmark = pytest.mark.formats

_SCALE, _POINT = np.float32(0.05), 3.0


def _graph(path: Path, nodes: list[Any], shape: tuple[int, ...] = (200,), **weights: Any) -> Graph:
    found = {"s": np.array(_SCALE), "i": np.array(1 / _SCALE, np.float32), "z": np.array(_POINT, np.float32)}
    found |= {"h": np.array(127, np.float32), "w": np.array(-128, np.float32), "v": np.array(100, np.float32), **weights}
    found = {name: np.asarray(value) for name, value in found.items()}
    return read(write(path / "m.pt2", program(nodes, {"x": ("float32", shape)}, ["y"], found), found))


def _divide(data: str = "%x", scale: str = "%b_s") -> dict[str, Any]:
    return node("aten.div.Tensor", "a", self=data, other=scale)


def _round(data: str, result: str = "r") -> dict[str, Any]:
    return node("aten.round.default", result, self=data)


def _clamp(data: str, result: str = "q", low: int = -128, high: int = 127) -> dict[str, Any]:
    return node("aten.clamp.default", result, self=data, min=low, max=high)


def _back(data: str = "%q", scale: str = "%b_s") -> dict[str, Any]:
    return node("aten.mul.Tensor", "y", self=data, other=scale)


_SPELLINGS = {
    "symmetric": [_divide(), _round("%a"), _clamp("%r"), _back()],
    "clamped before": [_divide(), _clamp("%a", "c"), _round("%c", "q"), _back()],
    "by the reciprocal": [node("aten.mul.Tensor", "a", self="%x", other="%b_i"), _round("%a"), _clamp("%r"),
                          node("aten.div.Tensor", "y", self="%q", other="%b_i")],
    "two bounds": [_divide(), _round("%a"), node("aten.clamp_min.default", "l", self="%r", min=-128),
                   node("aten.clamp_max.default", "q", self="%l", max=127), _back()],
    "point inside": [_divide(), node("aten.add.Tensor", "p", self="%a", other="%b_z"), _round("%p"), _clamp("%r"),
                     node("aten.sub.Tensor", "d", self="%q", other="%b_z"), _back("%d")],
    "point outside": [_divide(), _round("%a"), node("aten.add.Tensor", "p", self="%r", other="%b_z"), _clamp("%p"),
                      node("aten.sub.Tensor", "d", self="%q", other="%b_z"), _back("%d")],
    "chosen": [_divide(), _round("%a"), node("aten.gt.Tensor", "g", self="%r", other="%b_h"),
               node("aten.where.self", "c", condition="%g", self="%b_h", other="%r"), node("aten.lt.Tensor", "l", self="%c", other="%b_w"),
               node("aten.where.self", "q", condition="%l", self="%b_w", other="%c"), _back()],
    "limits": [_divide(), _round("%a"), _clamp("%r", low=-7, high=7), _back()],
    "16 bits": [_divide(), _round("%a"), _clamp("%r", low=-32768, high=32767), _back()],
}  # fmt: skip


@pytest.mark.parametrize("name", _SPELLINGS)
def test_a_spelling_becomes_a_quantization(tmp_path: Path, name: str) -> None:
    graph = _graph(tmp_path, _SPELLINGS[name])
    assert {op.kind for op in graph.ops} <= {"Clip", "Quantize", "Dequantize"}
    (quantize,) = [op for op in graph.ops if op.kind == "Quantize"]
    quantization = graph[quantize.outputs[0]].quantization
    assert quantization is not None and quantization.scale[0] == _SCALE and quantization.zero_point[0] == (3 if "point" in name else 0)
    assert graph[quantize.outputs[0]].dtype == ("int16" if name == "16 bits" else "int8")
    low, high = (-7, 7) if name == "limits" else (-32768, 32767) if name == "16 bits" else (-128, 127)
    point = quantization.zero_point[0]
    x = np.random.default_rng(0).normal(size=200).astype(np.float32) * 5
    wanted = (np.clip(np.rint(x / _SCALE) + point, low, high) - point).astype(np.float32) * _SCALE
    assert np.array_equal(run(graph, x)[0], wanted)


_OTHERS = {
    "chosen by another number": [_divide(), _round("%a"), node("aten.gt.Tensor", "g", self="%r", other="%b_h"),
                                 node("aten.where.self", "c", condition="%g", self="%b_v", other="%r"), _clamp("%c"), _back()],
    "another scale": [_divide(), _round("%a"), _clamp("%r"), _back(scale="%b_t")],
    "another point": [_divide(), node("aten.add.Tensor", "p", self="%a", other="%b_z"), _round("%p"), _clamp("%r"), _back()],
    "no rounding": [_divide(), _clamp("%a"), _back()],
    "no limits": [_divide(), _round("%a", "q"), _back()],
    "limits between integers": [_divide(), _round("%a"), node("aten.clamp.default", "q", self="%r", min=-1.5, max=1.5), _back()],
    "a point outside of the type": [_divide(), node("aten.add.Tensor", "p", self="%a", other="%b_f"), _round("%p"),
                                    _clamp("%r", low=0, high=255), node("aten.sub.Tensor", "d", self="%q", other="%b_f"), _back("%d")],
    "scales along two axes": [_divide(scale="%b_m"), _round("%a"), _clamp("%r"), _back(scale="%b_m")],
}  # fmt: skip


@pytest.mark.parametrize("name", _OTHERS)
def test_another_function_stays_as_it_is(tmp_path: Path, name: str) -> None:
    quantization = np.random.default_rng(1).uniform(0.01, 0.1, (4, 5)).astype(np.float32)
    graph = _graph(tmp_path, _OTHERS[name], (4, 5), t=np.float32(0.051), f=np.float32(-20), m=quantization)
    assert not any(op.kind in ("Quantize", "Dequantize") for op in graph.ops)


@pytest.mark.parametrize("are_tensors", [False, True])
def test_weights_keep_the_integers_that_the_program_computes(tmp_path: Path, are_tensors: bool) -> None:
    """Limits are numbers, or, as ModelOpt has them, tensors."""
    weight = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)
    nodes = [
        node("aten.abs.default", "b", self="%b_w"),
        node("aten.amax.default", "m", self="%b", dim=[1], keepdim=True),
        node("aten.div.Tensor", "k", self="%m", other=127.0),
        node("aten.div.Tensor", "a", self="%b_w", other="%k"),
        _round("%a"),
        node("aten.clamp.Tensor", "q", self="%r", min="%b_n", max="%b_h") if are_tensors else _clamp("%r", low=-127),
        node("aten.mul.Tensor", "v", self="%q", other="%k"),
        node("aten.linear.default", "y", input="%x", weight="%v"),
    ]
    graph = _graph(tmp_path, nodes, (2, 6), w=weight, n=np.array(-127, np.float32))
    (tensor,) = [tensor for tensor in graph.constants() if tensor.is_quantized]
    scale = (np.abs(weight).max(1) / np.float32(127)).astype(np.float32)
    assert tensor.name == "w" and np.array_equal(tensor.data, np.clip(np.rint(weight / scale[:, None]), -127, 127))
    assert np.array_equal(tensor.quantization.scale, scale) and tensor.quantization.axis == 0
    assert [op.kind for op in graph.ops] == ["Dequantize", "Gemm"]


@pytest.mark.parametrize("shift", [-3.0, 0.0, 5.0])
def test_powers_of_two_are_whole(tmp_path: Path, shift: float) -> None:
    """cambricon's formula: a shift of floor(log2(max)) - 6, whose scale is 2 ** shift."""
    nodes = [
        node("aten.log2.default", "l", self="%b_m"),
        node("aten.floor.default", "f", self="%l"),
        node("aten.sub.Tensor", "n", self="%f", other=6),
        node("aten.exp2.default", "k", self="%n"),
        _divide(scale="%k"),
        _round("%a"),
        _clamp("%r"),
        _back(scale="%k"),
    ]
    graph = _graph(tmp_path, nodes, m=np.array([2.0**shift], np.float32))
    (quantize,) = [op for op in graph.ops if op.kind == "Quantize"]
    assert graph[quantize.outputs[0]].quantization.scale[0] == 2.0 ** (shift - 6)  # type: ignore[union-attr]


@pytest.mark.litert
@pytest.mark.cross_section
def test_weights_of_16_bits_go_to_tflite_as_real_values(tmp_path: Path) -> None:
    """No kernel of LiteRT's takes them next to any data."""
    from ai_edge_litert.interpreter import Interpreter

    from qconvert import convert

    weight = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)
    nodes: list[Any] = []
    for data, result in (("%x", "u"), ("%b_w", "v"), ("%l", "y")):
        if result == "y":
            nodes.append(node("aten.linear.default", "l", input="%u", weight="%v"))
        steps = [node("aten.div.Tensor", f"a{result}", self=data, other="%b_t"), _round(f"%a{result}", f"r{result}")]
        steps.append(_clamp(f"%r{result}", f"q{result}", -32768, 32767))
        nodes += [*steps, node("aten.mul.Tensor", result, self=f"%q{result}", other="%b_t")]
    graph = _graph(tmp_path, nodes, (2, 6), w=weight, t=np.float32(1e-3))
    x = np.random.default_rng(3).normal(size=(2, 6)).astype(np.float32)
    assert {graph[name].dtype for op in graph.ops if op.kind == "Gemm" for name in (*op.inputs, *op.outputs)} == {"int16"}
    convert(tmp_path / "m.pt2", tmp_path / "m.tflite")
    runtime = Interpreter(str(tmp_path / "m.tflite"))
    runtime.allocate_tensors()
    runtime.set_tensor(runtime.get_input_details()[0]["index"], x)
    runtime.invoke()
    found = runtime.get_tensor(runtime.get_output_details()[0]["index"])
    assert np.abs(found - run(graph, x)[0]).max() <= 1.001e-3 and np.allclose(found, x @ weight.T, atol=2e-2)
