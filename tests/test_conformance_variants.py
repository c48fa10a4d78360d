"""Further examples of operators: axes, ranks, paddings, modes and broadcasts, in every target and its runtime. `make slow` runs them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qconvert.conformance import examples
from qconvert.conformance.examples import Example, Fed
from qconvert.conformance.matrix import TARGETS, conformance
from qconvert.operators import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.onnxruntime, pytest.mark.litert, pytest.mark.tflite_micro, pytest.mark.torch]

FIRST = {"data_format": "channels_first"}
PLACES = {**FIRST, "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
WINDOW = {**FIRST, "kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}
IMAGE, ROWS = (1, 4, 8, 8), (2, 8, 24)
#: What a target may not reach: uint8 data of tflite-micro, which has no such kernels, are requantized around an average of int8.
FURTHER = {("tflite-micro", "AveragePool", "uint8")}


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def floats(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(1, 0.3, shape).astype(np.float32)


def variants() -> Iterator[tuple[str, Example]]:
    for kind in ("Softmax", "LogSoftmax", "LpNormalization", "Hardmax"):
        for shape, axis in ((ROWS, 1), ((2, 3, 4, 5), -2), ((3, 7), 0), ((6,), 0)):
            yield kind, Example((shape,), {"axis": axis})
    for kind in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceProd", "ReduceSumSquare"):
        for axes, keepdims in (((2, 3), 0), ((-1,), 1), ((0, 2), 0)):
            yield kind, Example(((2, 3, 4, 5), ints(*axes)), {"keepdims": keepdims})
    for kind in ("ArgMax", "ArgMin"):
        for axis, more in ((1, {"keepdims": 1}), (-1, {"keepdims": 0}), (0, {"keepdims": 0, "select_last_index": 1})):
            yield kind, Example((ROWS,), {"axis": axis, **more})
    for kind in ("Add", "Sub", "Mul", "Max", "Min", "SquaredDifference", "Equal", "Less", "GreaterOrEqual"):
        for a, b in ((ROWS, (24,)), ((2, 1, 24), (8, 1)), (IMAGE, (4, 1, 1)), (ROWS, ()), ((), (5,)), ((2, 3, 1, 4, 5), (3, 2, 1, 5))):
            yield kind, Example((a, b))
    yield "Div", Example((ROWS, (24,)), is_positive=True)
    for kind, activation in itertools.product(("Add", "Sub", "Mul"), ("relu", "relu6")):
        yield kind, Example((ROWS, ROWS), {"activation": activation})
    yield from _products()
    yield from _windows()
    yield from _movement()
    for slopes in ((1,), (8,), IMAGE):
        yield "PRelu", Example((IMAGE, slopes))
    for low, high in ((0, 6), (0, None), (None, 1)):
        yield "Clip", Example((ROWS, *(None if bound is None else np.array(bound, np.float32) for bound in (low, high))))
    for alpha in (-0.3, 1.5):
        yield "LeakyRelu", Example((ROWS,), {"alpha": alpha})
    for kind in ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Identity", "Requantize", "HardSwish"):
        yield from ((kind, Example((shape,))) for shape in ((), (2, 3, 1, 2, 3, 2)))
    yield "LayerNormalization", Example((ROWS, floats(8, 24), None), {"axis": 1})
    yield "InstanceNormalization", Example(((2, 4, 9), floats(4), floats(4)), FIRST)
    for kind, more in (("LSTM", {"direction": "reverse"}), ("RNN", {"direction": "reverse"}), ("GRU", {"linear_before_reset": 1})):
        (given,) = examples.examples_of(KINDS[kind])
        yield kind, Example(given.operands, {**given.attributes, **more})
    for data, to in ((floats(3, 4), "bool"), (np.array([-3, 7], np.int32), "float32"), (ints(5, 9), "uint8")):
        yield "Cast", Example((Fed(data),), {"to": to})


def _products() -> Iterator[tuple[str, Example]]:
    for more in (
        {"strides": (2, 1)}, {"dilations": (2, 2), "pads": (2, 2, 2, 2)}, {"pads": (0, 0, 0, 0)}, {"pads": (1, 0, 0, 2)},
        {"activation": "relu6"}, {"activation": "relu"}, {"group": 2},
    ):  # fmt: skip
        attributes = {**PLACES, **more}
        yield "Conv", Example((IMAGE, (6, 4 // attributes["group"], 3, 3), (6,)), attributes)
    yield "Conv", Example((IMAGE, (8, 1, 3, 3), (8,)), {**PLACES, "group": 4})
    yield "Conv", Example(((2, 4, 8, 8), (6, 4, 1, 1), (6,)), {**PLACES, "pads": (0, 0, 0, 0)})
    yield "Conv", Example((IMAGE, (6, 4, 3, 3)), PLACES)
    for more in ({"strides": (2, 2), "output_padding": (1, 1)}, {"strides": (2, 2), "pads": (0, 0, 0, 0)}, {"pads": (1, 0, 0, 1)}):
        yield "ConvTranspose", Example((IMAGE, (6, 4, 3, 3), (6,)), {**PLACES, **more})
    yield "Gemm", Example(((4, 24), (8, 24)))
    yield "Gemm", Example(((4, 24), (8, 24), (8,)), {"activation": "relu"})
    for a, b, more in (
        ((2, 3, 4, 5), (2, 3, 5, 6), {}), ((3, 4), (4, 5), {}), (ROWS, (2, 6, 24), {"trans_b": 1}),
        ((2, 24, 8), (2, 24, 6), {"trans_a": 1}), ((4, 5), (2, 5, 3), {}),
    ):  # fmt: skip
        yield "MatMul", Example((a, b), more)
    for shapes, equation in ((((2, 3, 4), (4, 5)), "bij,jk->bik"), (((2, 3),), "ij->ji"), (((2, 3), (2, 3)), "ij,ij->i")):
        yield "Einsum", Example(shapes, {"equation": equation})


def _windows() -> Iterator[tuple[str, Example]]:
    for kind in ("AveragePool", "MaxPool", "L2Pool"):
        for more in (
            {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3), "strides": (1, 1)}, {"kernel_shape": (3, 2), "strides": (2, 1)},
            {"kernel_shape": (8, 8), "strides": (1, 1)}, {"pads": (0, 1, 1, 0), "kernel_shape": (2, 3), "strides": (1, 2)},
            {"auto_pad": "SAME_UPPER", "kernel_shape": (3, 3)},
        ):  # fmt: skip
            yield kind, Example((IMAGE,), {**WINDOW, **more})
    yield "AveragePool", Example((IMAGE,), {**WINDOW, "pads": (1, 1, 1, 1), "kernel_shape": (3, 3), "count_include_pad": 1})
    yield "MaxPool", Example((IMAGE,), {**WINDOW, "dilations": (2, 1)})
    for mode, places, size in itertools.product(
        ("nearest", "linear"), ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"), ((16, 12), (4, 4), (5, 3))
    ):
        for rounding in ("floor", "round_prefer_floor") if mode == "nearest" else ("floor",):
            attributes = {"mode": mode, "coordinate_transformation_mode": places, "nearest_mode": rounding}
            yield "Resize", Example((IMAGE, ints(*size)), {**FIRST, **attributes})
    for kind in ("SpaceToDepth", "DepthToSpace"):
        yield kind, Example(((1, 18, 6, 6),), {**FIRST, "blocksize": 3})


def _movement() -> Iterator[tuple[str, Example]]:
    yield "Where", Example((np.arange(24) % 2 == 0, ROWS, (24,)))
    yield "Concat", Example((ROWS, (2, 8, 3), (2, 8, 5)), {"axis": 2})
    yield "Concat", Example((IMAGE, IMAGE, IMAGE), {"axis": 1})
    yield "Split", Example((IMAGE, ints(1, 3)), {"axis": 1}, outputs=2)
    yield "Pack", Example((ROWS, ROWS), {"axis": -1})
    yield "Unpack", Example(((3, 4, 5),), {"axis": 1}, outputs=4)
    for shape, sizes in ((IMAGE, (1, -1)), (ROWS, (0, -1)), ((), (1, 1))):
        yield "Reshape", Example((shape, ints(*sizes)))
    yield "Squeeze", Example(((1, 2, 1, 3), ints(-2)))
    yield "Unsqueeze", Example((ROWS, ints(0, 3)))
    yield "Transpose", Example(((2, 3, 4, 5, 6),), {"perm": (4, 1, 3, 0, 2)})
    yield "Tile", Example(((1, 2, 3, 4), ints(2, 1, 2, 1)))
    yield "Expand", Example(((), ints(3, 4)))
    for bounds in (((-1, 5), (-9, 0), (1, 2), (-1, -2)), ((1,), (100,), (-1,), (2,)), ((0,), (-2,), (1,))):
        yield "Slice", Example((ROWS, *(ints(*values) for values in bounds)))
    for mode in ("reflect", "edge", "symmetric", "wrap"):
        yield "Pad", Example((ROWS, ints(0, 1, 2, 0, 3, 1), None), {"mode": mode})
    yield "Pad", Example((ROWS, ints(0, -1, 2, 0, 0, -3), ()))
    yield "Gather", Example((ROWS, np.array(1)), {"axis": 1})
    yield "Gather", Example((ROWS, ints(0, 1, 2, 3, 4, 5).reshape(2, 3)), {"axis": 1, "batch_dims": 1})
    yield "GatherND", Example(((2, 4, 5), ints(1, 3).reshape(2, 1)), {"batch_dims": 1})
    yield "GatherElements", Example(((3, 4), ints(-1, 2, 1, 0).reshape(1, 4)), {"axis": 0})
    yield "ScatterND", Example(((4, 3), ints(1, 1).reshape(2, 1), (2, 3)), {"reduction": "add"})
    yield "ScatterElements", Example(((3, 3), ints(0, 1, 2).reshape(1, 3), (1, 3)), {"axis": 1, "reduction": "add"})
    yield "TopK", Example((ROWS, ints(3)), {"axis": 2, "largest": 0}, outputs=2)
    yield "CumSum", Example(((2, 5),), {"axis": 0, "exclusive": 1})
    yield "CumSum", Example(((2, 5),), {"axis": 1, "reverse": 1})


@pytest.mark.parametrize("target", [name for name, kernels in TARGETS.items() if kernels])
def test_no_result_is_another_one(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, count = [], 0
    for kind, example in variants():
        monkeypatch.setitem(examples._EXAMPLES, kind, (example,))  # type: ignore[arg-type]
        for cell in conformance(target, TARGETS[target], [kind]):
            count += 1
            is_wrong = cell.runs == "fails" or (cell.result == "different" and (target, kind, cell.dtype) not in FURTHER)
            wrong += [(cell, dict(example.attributes))] if is_wrong else []
    assert not wrong
    assert count > 900
