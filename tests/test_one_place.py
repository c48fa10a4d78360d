"""An operator from outside: its object and its formula, in a plugin, are all that qconvert knows of it, and all that it needs.

Copies of Softmax, HardSwish and LSTM under other names, and a move along an axis that no format has: whatever is done with a network that
has them is what is done with the original's. No file of qconvert names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qconvert
from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.graph.schema import DEFAULTS
from qconvert.kernels.litert.references_of_functions import hard_swish as hard_swish_of_litert
from qconvert.operators import KINDS, _known
from qconvert.operators.formulas import formula as formulas
from qconvert.operators.formulas.recurrent import unrolled_lstm
from qconvert.operators.properties import unless_along
from qconvert.passes.quantizations.activations import infer_intervals
from qconvert.plugin import (
    ALONG_AXIS,
    KERNELS,
    UNLESS_ALONG,
    Formula,
    Integers,
    Kernel,
    Kind,
    Target,
    Value,
    apply,
    has,
    hookimpl,
    integer,
    lowers,
    temporary_plugin,
)
from qconvert.plugins import operators
from qconvert.testing import assert_kernels_hold

_COPIES = ("Softmax", "HardSwish", "LSTM")
_FLIP = "OutsideFlip"


@lowers("OutsideHardSwish")
def hard_swish(x: Value) -> Value:
    """x * relu6(x + 3) / 6"""
    return x * apply("Clip", x + 3.0, 0.0, 6.0) * (1 / 6)


@lowers("OutsideSoftmax")
def softmax(x: Value, *, axis: int, beta: float) -> Value:
    """exp(beta * x) over its sum along the axis"""
    axes = np.array([axis])
    raised = apply("Exp", (x - apply("ReduceMax", x, axes)) * beta)
    return raised / apply("ReduceSum", raised, axes)


@lowers(_FLIP)
def flip(x: Value, *, axis: int) -> Value:
    """The elements along the axis in the opposite order"""
    return apply("Slice", x, *(np.array([number]) for number in (-1, -(2**31), axis, -1)))


class Plugin:
    @hookimpl
    def qconvert_kinds(self) -> list[Kind]:
        moved = Kind(
            _FLIP,
            shape=lambda op, s: [s.shape(0)],
            rule="move",
            evaluate=lambda call: np.flip(call.raw(), call["axis"]),
            layout=ALONG_AXIS,
            keeps_axis=unless_along,
            samples=UNLESS_ALONG,
            attributes=has(axis=integer()),
        )
        return [*(replace(KINDS[name], name=f"Outside{name}") for name in _COPIES), moved]

    @hookimpl
    def qconvert_formulas(self) -> list[Formula]:
        return [softmax, hard_swish, flip, replace(unrolled_lstm, kind="OutsideLSTM")]


@pytest.fixture
def outside() -> Iterator[None]:
    with temporary_plugin(Plugin(), "outside"):
        yield
    for name in (*(f"Outside{name}" for name in _COPIES), _FLIP):
        for known in (_known, DEFAULTS, formulas._known):
            known.pop(name, None)


_CONV = {"data_format": "channels_first", "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
_SHAPE = (1, 4, 6, 6)
#: Attributes of the operator between two convolutions, and the quantization of its result.
_BETWEEN: dict[str, tuple[dict[str, Any], Quantization]] = {
    "Softmax": ({"axis": 1}, Quantization.per_tensor(1 / 256, -128)),
    "HardSwish": ({}, Quantization.per_tensor(0.05, -60)),
    "Flip": ({"axis": 1}, Quantization.per_tensor(0.05, 3)),
}


def _network(name: str, *, quantized: bool = False) -> Graph:
    """Two convolutions with the operator between them; or a recurrence, the rows first, and a matrix product."""
    rng, base = np.random.default_rng(0), name.removeprefix("Outside")
    if base == "LSTM":
        shapes = {"w": (1, 20, 3), "r": (1, 20, 5), "b": (1, 40), "m": (5, 2)}
        constants = [Tensor(item, "float32", shape, rng.normal(0, 0.5, shape).astype(np.float32)) for item, shape in shapes.items()]
        tensors = [
            *constants,
            *(Tensor(*item) for item in (("x", "float32", (1, 4, 3)), ("h", "float32", (1, 4, 1, 5)), ("y", "float32", (1, 4, 1, 2)))),
        ]
        ops = (
            Op(name, ("x", "w", "r", "b"), ("h",), {"hidden_size": 5, "layout": 1}, "cell"),
            Op("MatMul", ("h", "m"), ("y",), {}, "last"),
        )
        return Graph("network", {item.name: item for item in tensors}, ops, ("x",), ("y",))
    attributes, result = _BETWEEN[base]
    quantizations = {"x": (0.04, -5), "a": (0.05, 3), "y": (0.06, 1)}
    tensors = []
    for item in "xaby":
        q = result if item == "b" else Quantization.per_tensor(*quantizations[item])
        tensors.append(Tensor(item, "int8", _SHAPE, None, q) if quantized else Tensor(item, "float32", _SHAPE))
    for item in ("first", "last"):
        data = rng.integers(-90, 90, (4, 4, 1, 1)).astype(np.int8)
        scale = Quantization.per_tensor(0.01, 0)
        tensors.append(
            Tensor(item, "int8", data.shape, data, scale) if quantized else Tensor(item, "float32", data.shape, data * np.float32(0.01))
        )
    ops = (
        Op("Conv", ("x", "first"), ("a",), _CONV, "one"),
        Op(name, ("a",), ("b",), attributes, "two"),
        Op("Conv", ("b", "last"), ("y",), _CONV, "three"),
    )
    return Graph("network", {item.name: item for item in tensors}, ops, ("x",), ("y",))


def _original(name: str, *, quantized: bool = False) -> Graph:
    """The network that the one with the copy is compared with; of the move the one with what its formula says."""
    graph = _network(name.replace("Outside", "") if name != _FLIP else _FLIP, quantized=quantized)
    if name != _FLIP:
        return graph
    numbers = [Tensor(f"number_{place}", "int64", (1,), np.array([value])) for place, value in enumerate((-1, -(2**31), 1, -1))]
    move = Op("Slice", ("a", *(item.name for item in numbers)), ("b",), {}, "two")
    return graph.evolve(tensors=[*graph.tensors.values(), *numbers], ops=(graph.ops[0], move, graph.ops[2]))


def _feed(graph: Graph) -> dict[str, Array]:
    x = graph["x"]
    rng = np.random.default_rng(3)
    shape = x.static_shape
    assert shape is not None
    return {"x": rng.integers(-128, 128, shape).astype(np.int8) if x.is_quantized else rng.normal(0, 2, shape).astype(np.float32)}


_CASES = [(f"Outside{name}", quantized) for name in (*_COPIES, "Flip") for quantized in (False, True) if name != "LSTM" or not quantized]
cases = pytest.mark.parametrize(("name", "quantized"), _CASES)


@cases
def test_it_is_evaluated_and_bounded_like_the_original(outside: None, name: str, quantized: bool) -> None:
    graph, original = _network(name, quantized=quantized), _original(name, quantized=quantized)
    np.testing.assert_array_equal(evaluate(graph, _feed(graph))["y"], evaluate(original, _feed(graph))["y"])
    assert infer_intervals(graph) == {item: ends for item, ends in infer_intervals(original).items() if item in graph.tensors}
    if name == "OutsideSoftmax":
        assert infer_intervals(graph)["b"][0] == 0.0 and infer_intervals(graph)["b"][1] <= 1.0


@cases
def test_samples_of_a_batch_stay_apart(outside: None, name: str, quantized: bool, tmp_path: Path) -> None:
    graph = _network(name, quantized=quantized)
    qconvert.save(graph, tmp_path / "one.qgraph")
    three = qconvert.load(tmp_path / "one.qgraph", batch=3)
    assert [three[item].shape for item in ("x", "y")] == [(3, *(graph[item].shape or ())[1:]) for item in ("x", "y")]
    alone = [_feed(graph)["x"] // divisor if quantized else _feed(graph)["x"] / np.float32(divisor) for divisor in (1, 2, 3)]
    together = evaluate(three, {"x": np.concatenate(alone)})["y"]
    np.testing.assert_array_equal(together, np.concatenate([evaluate(graph, {"x": item})["y"] for item in alone]))


def test_a_batch_along_its_axis_is_refused(outside: None, tmp_path: Path) -> None:
    x, y = Tensor("x", "float32", (2, 3)), Tensor("y", "float32", (2, 3))
    qconvert.save(Graph("g", {"x": x, "y": y}, (Op(_FLIP, ("x",), ("y",), {"axis": 0}),), ("x",), ("y",)), tmp_path / "one.qgraph")
    with pytest.raises(qconvert.QConvertError, match="computes along axis 0 of 'x', the batch axis"):
        qconvert.load(tmp_path / "one.qgraph", batch=4)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.torch
@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".pt2"])
@cases
def test_every_format_writes_it_as_it_writes_the_original(outside: None, name: str, quantized: bool, suffix: str, tmp_path: Path) -> None:
    """Its runtime gives what the operator means; there are no more Transposes, and the reader knows it again where it stands by itself."""
    graph, original = (made(name, quantized=quantized) for made in (_network, _original))
    qconvert.convert(graph, tmp_path / f"copy{suffix}")
    qconvert.convert(original, tmp_path / f"own{suffix}")
    wanted, found = evaluate(graph, _feed(graph))["y"], qconvert.run(tmp_path / f"copy{suffix}", _feed(graph))["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), atol=1 if quantized else 1e-6)
    read = [qconvert.load(tmp_path / f"{item}{suffix}") for item in ("copy", "own")]
    turned = [sum(op.kind == "Transpose" for op in item.ops) for item in read]
    if name == "OutsideLSTM":  # whose steps stand in the file one by one
        return
    assert turned[0] == turned[1]
    if suffix == ".onnx":
        assert name in [op.kind for op in read[0].ops]


@pytest.mark.onnxruntime
@pytest.mark.litert
@cases
def test_a_check_judges_it_like_the_original(outside: None, name: str, quantized: bool, tmp_path: Path) -> None:
    for item, made in (("copy", _network), ("own", _original)):
        qconvert.convert(made(name, quantized=quantized), tmp_path / f"{item}.onnx")
        qconvert.convert(tmp_path / f"{item}.onnx", tmp_path / f"{item}.tflite")
    copy, own = (qconvert.check(tmp_path / f"{item}.onnx", tmp_path / f"{item}.tflite", per_op=True) for item in ("copy", "own"))
    assert copy.passed and copy.verdict == own.verdict == "passed"
    if quantized and name != "OutsideHardSwish":  # of which the original's kernels round in their own ways, the formula's do not
        assert [item.largest for item in copy.outputs] == [item.largest for item in own.outputs] == [0.0]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in _CASES))
def test_calibration_gives_the_same_scales(outside: None, name: str) -> None:
    found = [qconvert.calibrate(graph, [_feed(graph)]) for graph in (_network(name), _original(name))]
    for place in ("x", "b", "y") if name != "OutsideLSTM" else ("h", "y"):
        copy, own = (item[place].qparams.quantization for item in found)
        # The last bits of the formula's values, and the scale of 1/256 that TFLite's Softmax kernel has, are the difference.
        np.testing.assert_allclose(copy.scale, own.scale, rtol=5e-3, err_msg=place)
        np.testing.assert_array_equal(copy.zero_point, own.zero_point, err_msg=place)


@cases
def test_a_partition_takes_it_where_it_takes_the_original(outside: None, name: str, quantized: bool) -> None:
    for target in ("tflite", "ort-x86"):
        parts = [qconvert.partition(made(name, quantized=quantized), target) for made in (_network, _original)]
        regions = [[(region.target, region.macs) for region in item.regions] for item in parts]
        assert regions[0] == regions[1] and len(regions[0]) == 1


@pytest.mark.onnxruntime
def test_a_line_of_a_plugin_says_which_node_a_format_has(outside: None, tmp_path: Path) -> None:
    """One line a format: the writer that a plugin names comes before the formula."""

    class Line:
        @hookimpl
        def qconvert_operators(self, format: str, direction: str) -> dict[str, Any]:
            def write(op: Op, b: Any) -> None:
                b.compute(op, op_type="Softmax", **op.attributes)

            return {"OutsideSoftmax": write} if (format, direction) == ("onnx", "write") else {}

    graph = _network("OutsideSoftmax")
    with temporary_plugin(Line(), "line"):
        qconvert.convert(graph, tmp_path / "model.onnx")
    assert [op.kind for op in qconvert.load(tmp_path / "model.onnx").ops] == ["Conv", "Softmax", "Conv"]
    np.testing.assert_allclose(qconvert.run(tmp_path / "model.onnx", _feed(graph))["y"], evaluate(graph, _feed(graph))["y"], atol=1e-6)


@pytest.mark.litert
@pytest.mark.parametrize("off", [0, 1])
def test_a_row_of_its_target_is_tried_in_the_runtime(outside: None, off: int) -> None:
    """The runtime's own rows know nothing of its kernel; a reference that gives other integers is found."""

    def reference(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
        found = hard_swish_of_litert(graph, op, stored)
        return None if found is None else Integers((found.ways[0] + np.int8(off),))

    rows = KERNELS["litert:default"].with_rows(Kernel(("OutsideHardSwish",), ("int8",), reference=reference))

    class Npu:
        @hookimpl
        def qconvert_operators(self, format: str, direction: str) -> dict[str, Any]:
            return {"OutsideHardSwish": operators("tflite", "write")["HardSwish"]} if (format, direction) == ("tflite", "write") else {}

        @hookimpl
        def qconvert_targets(self) -> list[Any]:
            return [Target.derive("tflite", name="npu", kernels=rows)]

    with temporary_plugin(Npu(), "npu"):
        if off:
            with pytest.raises(AssertionError, match="OutsideHardSwish of int8"):
                assert_kernels_hold("litert:default", "npu", kinds=("OutsideHardSwish",), types=("int8",))
        else:
            (tried,) = assert_kernels_hold("litert:default", "npu", kinds=("OutsideHardSwish",), types=("int8",))
            assert tried.row.reference is reference and tried.elements > 1000


def test_without_the_formula_it_is_refused_by_name(tmp_path: Path) -> None:
    class Alone:
        @hookimpl
        def qconvert_kinds(self) -> list[Kind]:
            return [replace(KINDS["HardSwish"], name="OutsideHardSwish")]

    try:
        with temporary_plugin(Alone(), "alone"), pytest.raises(qconvert.QConvertError, match="OutsideHardSwish"):
            qconvert.convert(_network("OutsideHardSwish"), tmp_path / "model.onnx")
    finally:
        for known in (_known, DEFAULTS):
            known.pop("OutsideHardSwish", None)
    assert not list(tmp_path.iterdir())
