"""Models of opsets 1 to 6: what their operators meant there, of which onnxruntime runs only some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_models import run
from onnx_nodes import model_of
from refusals import refused

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.onnx.reader import read_bytes
from qconvert.formats.onnx.writer import build

pytestmark = pytest.mark.onnxruntime

X = (np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5) - 50) / 16
C = np.array([0.5, -2, 3], np.float32)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
LAST = np.arange(5, dtype=np.float32) + 1


def old(
    op_type: str, opset: int, *constants: Any, outputs: int = 1, elem: int = 1, last: int = 0, inner: bool = False, **attributes: Any
) -> bytes:
    """A model of one node in an old opset, X its first input; after a Relu of unstated shape if `inner`."""
    names = [f"c{index}" for index in range(len(constants))]
    nodes = [helper.make_node("LeakyRelu", ["x"], ["h"], alpha=1.0)] if inner else []
    results = [f"y{index}" for index in range(outputs)]
    nodes.append(helper.make_node(op_type, ["h" if inner else "x", *names], results, name="it", **attributes))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info(name, (name == "y1" and last) or elem, None) for name in results],
        [numpy_helper.from_array(np.asarray(data), name) for data, name in zip(constants, names, strict=True)],
    )
    graph.input.extend(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(data.dtype), data.shape)
                       for data, name in zip(constants, names, strict=True))  # fmt: skip
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3).SerializeToString())


def written(data: bytes) -> bytes:
    return bytes(build(read_bytes(data, "m"), 0, {}).SerializeToString())


def by_channel(data: Any) -> Any:
    return data.reshape(3, 1, 1)


STATISTICS = (C + 4, C, C / 2, np.abs(C) + 1)
BN = (X - by_channel(C / 2)) / np.sqrt(by_channel(np.abs(C) + 1) + np.float32(1e-5)) * by_channel(C + 4) + by_channel(C)
NORMAL = (X - X.mean((2, 3), keepdims=True)) / np.sqrt(X.var((2, 3), keepdims=True) + 0.5) * by_channel(C) + by_channel(C)
MEANINGS: dict[str, tuple[bytes, Any]] = {
    "Add along axis 1": (old("Add", 6, C, broadcast=1, axis=1), X + by_channel(C)),
    "Add along axis -3": (old("Add", 6, C, broadcast=1, axis=-3), X + by_channel(C)),
    "Sub of rows from axis 1": (old("Sub", 1, ROWS, broadcast=1, axis=1, consumed_inputs=[0, 0]), X - ROWS[..., None]),
    "Mul after a value of unstated shape": (old("Mul", 6, C, broadcast=1, axis=1, inner=True), X * by_channel(C)),
    "Div by the last axis": (old("Div", 6, LAST, broadcast=1), X / LAST),
    "Pow": (old("Pow", 1, np.array([1, 2, 3], np.float32), broadcast=1, axis=1), X ** by_channel(np.array([1, 2, 3]))),
    "Greater": (old("Greater", 1, C, broadcast=1, axis=1, elem=9), by_channel(C) < X),
    "BatchNormalization": (old("BatchNormalization", 1, *STATISTICS, is_test=1, consumed_inputs=[0, 0, 0, 1, 1]), BN),
    "Dropout": (old("Dropout", 6, ratio=0.5), X),
    "Reshape": (old("Reshape", 1, shape=[0, -1], consumed_inputs=[0]), X.reshape(2, -1)),
    "Pad": (old("Pad", 1, paddings=[0, 0, 1, 0, 0, 0, 0, 2], mode="constant", value=7.0),
            np.pad(X, [(0, 0), (0, 0), (1, 0), (0, 2)], constant_values=7)),
    "Pad by reflection": (old("Pad", 1, paddings=[0, 0, 1, 0, 0, 0, 0, 2], mode="reflect"),
                          np.pad(X, [(0, 0), (0, 0), (1, 0), (0, 2)], mode="reflect")),
    "Concat without an axis": (old("Concat", 1, X), np.concatenate([X, X], 1)),
    "Cast to a name": (old("Cast", 1, to="INT32", elem=6), X.astype(np.int32)),
    "PRelu": (old("PRelu", 6, C), np.where(X < 0, X * by_channel(C), X)),
    "PRelu of one slope": (old("PRelu", 1, C[:1]), np.where(X < 0, X * C[0], X)),
    "Upsample": (old("Upsample", 1, height_scale=2.0, width_scale=3.0, mode="nearest"), X.repeat(2, 2).repeat(3, 3)),
    "Tile": (old("Tile", 1, np.array([3], np.float32), np.array([1], np.float32)), np.tile(X, (1, 3, 1, 1))),
    "Split by an input": (old("Split", 1, np.array([1, 3], np.float32), axis=2, outputs=2), X[:, :, :1]),
    "Selu with its old numbers": (old("Selu", 1), np.float32(1.0507) * np.where(X > 0, X, np.float32(1.6732) * np.expm1(X))),
    "Clip": (old("Clip", 1, min=-1.0, consumed_inputs=[0]), np.maximum(X, -1)),
    "LpPool of a real order": (old("GlobalLpPool", 1, p=2.0), np.sqrt((X**2).sum((2, 3), keepdims=True))),
    "Sum": (old("Sum", 1, X, consumed_inputs=[0, 0]), X + X),
    "InstanceNormalization": (old("InstanceNormalization", 1, C, C, epsilon=0.5, consumed_inputs=[0, 1, 2]), NORMAL),
}  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), MEANINGS.values(), ids=MEANINGS)
def test_an_old_operator_means_what_it_did(data: bytes, expected: Any) -> None:
    got = run(written(data), {"x": X})[0]
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


def test_a_matrix_product_adds_its_bias_to_each_row() -> None:
    data, weights, bias = X.reshape(24, 5)[:3], np.arange(20, dtype=np.float32).reshape(5, 4), np.arange(4, dtype=np.float32)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], broadcast=1, alpha=0.5)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, data.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    model = model_of(graph, 6).SerializeToString()
    np.testing.assert_allclose(run(written(model), {"x": data})[0], data @ weights / 2 + bias, rtol=1e-6)


SAME: dict[str, bytes] = {
    "LRN": old("LRN", 1, size=3),
    "Softmax over all axes from 1 on": old("Softmax", 6),
    "LogSoftmax": old("LogSoftmax", 1, axis=2),
    "Slice": old("Slice", 1, starts=[1, 0], ends=[9, -1], axes=[3, 2]),
    "Slice of the first axes": old("Slice", 6, starts=[0, 1], ends=[1, 3]),
    "TopK": old("TopK", 1, k=2, axis=3, outputs=2, last=7),
    "Unsqueeze": old("Unsqueeze", 6, axes=[0, 3]),
    "ReduceSum": old("ReduceSum", 1, axes=[1, 3], keepdims=0),
    "Split": old("Split", 6, axis=2, split=[1, 3], outputs=2),
    "Clip": old("Clip", 6, min=-1.0),
    "Concat": old("Concat", 4, X, axis=3),
    "Cast": old("Cast", 6, to=7, elem=7),
    "Pad": old("Pad", 2, pads=[0, 0, 1, 0, 0, 0, 0, 2], mode="edge"),
    "Flatten": old("Flatten", 1, axis=2),
    "MaxPool": old("MaxPool", 1, kernel_shape=[2, 2], strides=[2, 1], auto_pad="SAME_UPPER"),
    "LpPool": old("LpPool", 2, kernel_shape=[2, 2], p=3),
    "InstanceNormalization": old("InstanceNormalization", 6, C, C),
    "LeakyRelu": old("LeakyRelu", 6, alpha=0.25),
    "Selu": old("Selu", 6),
}


@pytest.mark.cross_section
@pytest.mark.parametrize("data", SAME.values(), ids=SAME)
def test_what_onnxruntime_runs_in_an_old_opset_gives_the_same_bits(data: bytes) -> None:
    for want, got in zip(run(data, {"x": X}), run(written(data), {"x": X}), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(want, got)


REFUSED: dict[str, tuple[bytes, type[QConvertError], str, tuple[object, ...]]] = {
    "for training": (old("BatchNormalization", 6, *STATISTICS), UnsupportedError, "training-form", ()),
    "a broken norm": (old("GlobalLpPool", 1, p=1.5), UnsupportedError, "attribute-not-covered", ("1.5",)),
    "no such type": (old("Cast", 1, to="FLOAT3"), InvalidModelError, "unknown-type", ("'FLOAT3'",)),
    "no shape": (old("Reshape", 1), InvalidModelError, "attribute-missing", ()),
    "axes that are not there": (old("Add", 6, ROWS, broadcast=1, axis=3), InvalidModelError, "axis-out-of-range", (2, 3, 4)),
    "an axis that is not there": (old("Tile", 1, np.array([3.0]), np.array([4.0])), InvalidModelError, "counts-differ", ("[4.0]", 4)),
    "no scales": (old("Upsample", 1), InvalidModelError, "attribute-missing", ("'height_scale'",)),
}


@pytest.mark.parametrize(("data", "error", "rule", "holds"), REFUSED.values(), ids=REFUSED)
def test_an_old_operator_that_says_nothing_later_is_refused(
    data: bytes, error: type[QConvertError], rule: str, holds: tuple[object, ...]
) -> None:
    with refused(error, rule, holds=holds) as found:
        read_bytes(data, "m")
    assert "it" in found.value.where
