"""The integer arithmetic of recurrent operators next to LiteRT's kernels: outputs over several runs, the states going on."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lstm_files import Lstm, svdf_file

from qconvert.arithmetic import GATES, IntegerGate, IntegerLstm, IntegerProjection, IntegerSvdf
from qconvert.arithmetic.fixed_point_functions import inverse_root

pytestmark = pytest.mark.litert

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUNS = 5


def interpreter(content: bytes) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    found = Interpreter(model_content=content)
    found.allocate_tensors()
    return found


def as_integers(layer: Lstm) -> IntegerLstm:
    """The layer of a file in numpy."""
    made = layer.made

    def quantization(pair: tuple[float, int]) -> tuple[float, int]:
        return float(np.float32(pair[0])), pair[1]

    gates = {
        gate: IntegerGate(
            made[f"{gate}/weights"], made[f"{gate}/recurrent"], made[f"{gate}/bias"][0], made.get(f"{gate}/peephole"),
            made.get(f"{gate}/norm"), made[f"{gate}/scale"] if layer.norm else 2.0**-12,
        )
        for gate in GATES
        if f"{gate}/weights" in made
    }  # fmt: skip
    projection = None
    if layer.projection:
        projection = IntegerProjection(
            made["projection/weights"], made["projection/bias"][0], layer.proj_clip, float(np.float32(layer.output[0]))
        )
    quantizations = quantization(layer.data), quantization(layer.state), quantization(layer.hidden)
    return IntegerLstm(gates, *quantizations, layer.cell_power, layer.cell_clip, projection, layer.time_major)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"rows": 3},
    {"rows": 3, "time_major": True},
    {"has_input_gate": False},
    {"cell_clip": 0.5},
    {"peephole": True},
    {"peephole": True, "rows": 3},
    {"peephole": True, "rows": 3, "time_major": True},
    {"projection": True, "outputs": 4},
    {"projection": True, "outputs": 4, "proj_clip": 0.3, "rows": 2},
    {"projection": True, "outputs": 4, "proj_clip": 0.3, "output": (0.009, 2)},
    {"peephole": True, "projection": True, "outputs": 3, "rows": 3},
    {"peephole": True, "projection": True, "outputs": 3, "rows": 3, "time_major": True},
    {"norm": True},
    {"norm": True, "rows": 3, "cells": 12, "outputs": 12},
    {"norm": True, "peephole": True, "has_input_gate": False, "projection": True, "outputs": 5},
    {"hidden": (0.009, -7), "output": (0.01, 3)},
    *({"cell_power": power} for power in range(-15, -8)),
]


@pytest.mark.litert
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_lstm_gives_the_kernels_bytes(variant: dict[str, Any]) -> None:
    for seed in range(3):
        layer = Lstm(seed=seed, **variant)
        model = interpreter(layer.file())
        own = as_integers(layer)
        data, result = model.get_input_details()[0], model.get_output_details()[0]
        hidden = np.full((layer.rows, layer.outputs if layer.projection else layer.cells), layer.state[1], np.int8)
        cell = np.zeros((layer.rows, layer.cells), np.int16)
        rng = np.random.default_rng(seed + 100)
        for _ in range(RUNS):
            fed = rng.integers(-128, 128, data["shape"]).astype(np.int8)
            model.set_tensor(data["index"], fed)
            model.invoke()
            found, hidden, cell = own.run(fed if layer.time_major else fed.transpose(1, 0, 2), hidden, cell)
            expected = model.get_tensor(result["index"])
            assert len(np.unique(expected)) > 5
            np.testing.assert_array_equal(found if layer.time_major else found.transpose(1, 0, 2), expected)


@pytest.mark.litert
@pytest.mark.parametrize(
    "variant", [{}, {"rank": 2}, {"rank": 4, "rows": 3}, {"memory": 1}, {"bias": False}, {"output": (0.01, 0)}], ids=str
)
def test_an_svdf_gives_the_kernels_bytes(variant: dict[str, Any]) -> None:
    for seed in range(3):
        content, made = svdf_file(seed, **variant)
        model = interpreter(content)
        data_scale, feature, time, memory = (float(np.float32(scale)) for scale in made["scales"])
        output = float(np.float32(made["output"][0])), made["output"][1]
        own = IntegerSvdf(
            (made["feature"], feature), (made["time"], time), made["bias"], (data_scale, 4), output, memory, variant.get("rank", 1)
        )
        data, result = model.get_input_details()[0], model.get_output_details()[0]
        kept = np.zeros((data["shape"][0], *made["time"].shape), np.int16)
        rng = np.random.default_rng(seed + 100)
        seen: set[int] = set()
        for _ in range(8):
            fed = rng.integers(-128, 128, data["shape"]).astype(np.int8)
            model.set_tensor(data["index"], fed)
            model.invoke()
            found, kept = own.run(fed, kept)
            expected = model.get_tensor(result["index"])
            seen.update(expected.reshape(-1).tolist())
            np.testing.assert_array_equal(found, expected)
        assert len(seen) > 10


@pytest.mark.tflite_micro
@pytest.mark.litert
@pytest.mark.skipif(find_spec("tflite_micro") is None, reason="tflite_micro is not installed (extra micro)")
@pytest.mark.parametrize("variant", [{}, {"rank": 2}, {"rows": 3}, {"memory": 1}], ids=str)
def test_an_svdf_with_an_int8_memory_gives_the_bytes_of_tflite_micro(variant: dict[str, Any]) -> None:
    from qconvert.runtimes.tflite_micro import TFLiteMicro

    content, made = svdf_file(3, output=(0.05, 0), state="int8", **variant)
    micro = TFLiteMicro(content)
    scales = [float(np.float32(scale)) for scale in made["scales"]]
    parts = (made["feature"], scales[1]), (made["time"], scales[2]), made["bias"], (scales[0], 4), (float(np.float32(0.05)), 0), scales[3]
    own, kept = IntegerSvdf(*parts, variant.get("rank", 1)), np.zeros((variant.get("rows", 1), *made["time"].shape), np.int8)
    ((_, shape),) = micro.inputs.values()
    rng, seen = np.random.default_rng(0), set()
    for _ in range(12):
        fed = rng.integers(-128, 128, shape).astype(np.int8)
        found, kept = own.run(fed, kept)
        np.testing.assert_array_equal(found, micro.run_in_order([fed])[0])
        seen.update(found.reshape(-1).tolist())
    assert len(seen) > 10


def test_the_inverse_of_roots() -> None:
    values = np.array([1, 2, 3, 1000, 123456789, 2**31 - 1], np.int64)
    multiplier, shift = inverse_root(values)
    np.testing.assert_allclose(multiplier * 2.0 ** (shift - 31.0), 1 / np.sqrt(values), rtol=2e-6)
