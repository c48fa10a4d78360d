"""An operator from outside: one object and one formula, and every format writes it, by no edit elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qconvert
from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate
from qconvert.graph.schema import DEFAULTS
from qconvert.operators import KINDS, _known
from qconvert.operators.formulas import formula as formulas
from qconvert.plugin import Formula, Kind, Value, apply, hookimpl, lowers, registered

KIND = "OutsideHardSwish"


@lowers(KIND)
def outside_hard_swish(x: Value) -> Value:
    """x * relu6(x + 3) / 6, by kinds that all formats have."""
    return x * apply("Clip", x + 3.0, 0.0, 6.0) * (1 / 6)


class Plugin:
    """A renamed copy of HardSwish."""

    @hookimpl
    def qconvert_kinds(self) -> list[Kind]:
        return [replace(KINDS["HardSwish"], name=KIND)]

    @hookimpl
    def qconvert_formulas(self) -> list[Formula]:
        return [outside_hard_swish]


@pytest.fixture
def outside() -> Iterator[None]:
    with registered(Plugin(), "outside"):
        yield
    for known in (_known, DEFAULTS, formulas._known):
        known.pop(KIND, None)


def _network(kind: str, *, quantized: bool) -> Graph:
    """One operator on float or int8 data."""
    if quantized:
        tensors = [Tensor("x", "int8", (1, 256), None, Quantization.per_tensor(0.05, -10)),
                   Tensor("y", "int8", (1, 256), None, Quantization.per_tensor(0.04, -118))]  # fmt: skip
    else:
        tensors = [Tensor(name, "float32", (1, 256)) for name in "xy"]
    return Graph("outside", {item.name: item for item in tensors}, (Op(kind, ("x",), ("y",)),), ("x",), ("y",))


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.torch
@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".pt2"])
@pytest.mark.parametrize("quantized", [False, True])
def test_every_format_writes_it_and_its_runtime_gives_what_it_means(outside: None, tmp_path: Path, suffix: str, quantized: bool) -> None:
    graph, path = _network(KIND, quantized=quantized), tmp_path / f"model{suffix}"
    qconvert.convert(graph, path)
    x = np.arange(-128, 128, dtype=np.int8)[None] if quantized else np.linspace(-8, 8, 256, dtype=np.float32)[None]
    wanted = evaluate(_network("HardSwish", quantized=quantized), {"x": x})["y"]
    found = qconvert.run(path, {"x": x})["y"]
    if quantized:
        assert found.dtype == np.int8 and np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.onnxruntime
def test_a_file_of_ones_own_has_the_operator_again(outside: None, tmp_path: Path) -> None:
    """The formula that decomposed it is run again and compared: the note in the file only says where to look."""
    qconvert.convert(_network(KIND, quantized=True), tmp_path / "model.onnx")
    ops = qconvert.load(tmp_path / "model.onnx").ops
    assert [op.kind for op in ops if KINDS[op.kind].rule != "convert"] == [KIND]


def test_without_the_formula_it_is_refused_by_name(tmp_path: Path) -> None:
    class Alone:
        @hookimpl
        def qconvert_kinds(self) -> list[Kind]:
            return [replace(KINDS["HardSwish"], name=KIND)]

    try:
        with registered(Alone(), "alone"), pytest.raises(qconvert.QConvertError, match=KIND):
            qconvert.convert(_network(KIND, quantized=False), tmp_path / "model.onnx")
    finally:
        for known in (_known, DEFAULTS):
            known.pop(KIND, None)
    assert not list(tmp_path.iterdir())
