"""Shapes, bounds and pads that a file computes from the sizes of its inputs, at several of these sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tflite_nets import Net

from qconvert.runtimes.litert import LiteRT

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

RUNS = ({"x": (1, 4, 6, 3)}, {"x": (3, 7, 5, 3)})


def _deconvolved(net: Net, kernel: int, stride: int, same: bool) -> None:
    """Conv2DTranspose as Keras exports it: its result's size computed from the data's."""
    whole = net.shape("x")
    sizes = []
    for axis in (1, 2):
        size = net.op("MUL", [net.at(whole, axis), net.ints(stride)], ())
        sizes.append(size if same or kernel <= stride else net.op("ADD", [size, net.ints(kernel - stride)], ()))
    weights = net.const(np.random.default_rng(1).normal(size=(4, kernel, kernel, 3)), "float32")
    options = {"padding": int(not same), "strideH": stride, "strideW": stride, "fusedActivationFunction": 1}
    net.output("TRANSPOSE_CONV", [net.pack(net.at(whole, 0), *sizes, net.ints(4)), weights, "x"], (-1, -1, -1, 4), options=options)


def _padded(net: Net) -> None:
    half = net.op("FLOOR_DIV", [net.at(net.shape("x"), 1), net.ints(2)], ())
    none = net.const([0, 0])
    rows = net.pack(none, net.pack(net.ints(1), half), net.pack(half, half), none, shape=(2,))
    net.output("PAD", ["x", rows], (-1, -1, -1, -1))
    net.output("PADV2", ["x", rows, net.const(2.5, "float32")], (-1, -1, -1, -1))


def _sliced(net: Net) -> None:
    whole = net.shape("x")
    half = net.op("FLOOR_DIV", [net.at(whole, 2), net.ints(2)], ())
    begin = net.pack(net.ints(0), net.ints(1), half, net.ints(0))
    net.output("SLICE", ["x", begin, net.ints(-1, 2, -1, 3)], (-1, 2, -1, 3))
    net.output("SLICE", ["x", net.ints(0, 1, 1, 0), net.pack(net.ints(-1), net.ints(2), half, net.ints(-1))], (-1, 2, -1, 3))


def _strided(net: Net) -> None:
    whole = net.shape("x")
    last = net.op("SUB", [net.at(whole, 1), net.ints(1)], ())
    half = net.op("FLOOR_DIV", [net.at(whole, 2), net.ints(2)], ())
    ends = net.pack(net.ints(0), last, half)
    net.output("STRIDED_SLICE", ["x", net.ints(0, 1, 0), ends, net.ints(1, 2, 1)], (-1, -1, -1, 3), options={"beginMask": 1, "endMask": 1})
    index = net.pack(net.ints(0), last)
    after = net.op("ADD", [index, net.ints(1, 1)], (2,))
    options = {"beginMask": 1, "endMask": 1, "shrinkAxisMask": 2}
    net.output("STRIDED_SLICE", ["x", index, after, net.ints(1, 1)], (-1, -1, 3), options=options)
    back = net.op("SUB", [half, half], ())
    index = net.pack(back, net.op("SUB", [back, net.ints(1)], ()))
    net.output("STRIDED_SLICE", ["x", index, net.ints(1, 1), net.ints(1, 1)], (-1, 3), options={"shrinkAxisMask": 3})


def _reshaped(net: Net) -> None:
    whole = net.shape("x")
    batch, height, width = (net.at(whole, axis) for axis in range(3))
    product = net.op("REDUCE_PROD", [net.pack(height, width), net.const([0])], (), options={})
    net.output("RESHAPE", ["x", net.pack(batch, product, net.ints(3))], (-1, -1, 3))
    net.output("RESHAPE", ["x", net.pack(batch, height, net.op("MUL", [width, net.ints(3)], ()))], (-1, -1, -1))
    net.output("RESHAPE", ["x", net.pack(product, batch, net.ints(3))], (-1, -1, 3))
    net.output("RESHAPE", ["x", net.const([[-1, 3]])], (-1, 3), options={"newShape": [-1, 3]})


def _created(net: Net) -> None:
    whole = net.shape("x")
    net.output("FILL", [whole, net.const(1.5, "float32")], (-1, -1, -1, 3))
    net.output("TILE", ["x", net.pack(net.ints(1), net.at(whole, 2), net.ints(1), net.ints(2))], (-1, -1, -1, 6))
    net.output(
        "BROADCAST_TO", [net.const([[1.0], [2.0]], "float32"), net.pack(net.at(whole, 0), net.ints(2), net.at(whole, 1))], (-1, 2, -1)
    )
    double = net.op("MUL", [net.pack(net.at(whole, 1), net.at(whole, 2)), net.ints(2, 3)], (2,))
    net.output("RESIZE_BILINEAR", ["x", double], (-1, -1, -1, 3), options={"halfPixelCenters": True})
    net.output("RESIZE_NEAREST_NEIGHBOR", ["x", double], (-1, -1, -1, 3), options={})


def _transformed(net: Net) -> None:
    """Spectra as tf.signal.stft makes them, with a new axis that goes again, and their parts; and of rows of an open length."""
    lines = net.op("EXPAND_DIMS", ["x", net.ints(3)], (-1, -1, -1, 1, 3), "")
    rows = net.op("RFFT2D", [lines, net.ints(1, 4)], (-1, -1, -1, 1, 3), "complex64", options={})
    flat = net.op("SQUEEZE", [rows], (-1, -1, -1, 3), "complex64", options={"squeezeDims": [-2]})
    net.output("CAST", [flat], (-1, -1, -1, 3), options={"inDataType": 8, "outDataType": 0})
    whole = net.shape("x")
    folded = net.pack(net.op("MUL", [net.at(whole, 0), net.at(whole, 1)], ()), net.at(whole, 2), net.ints(3))
    net.output("IMAG", [net.op("RESHAPE", [rows, folded], (-1, -1, 3), "complex64")], (-1, -1, 3))
    net.output("COMPLEX_ABS", [net.op("EXPAND_DIMS", [flat, net.ints(-1)], (-1, -1, -1, 3, 1), "complex64")], (-1, -1, -1, 3, 1))
    net.output("REAL", [net.op("RFFT2D", ["x", net.ints(4, 4)], (-1, -1, 4, 3), "complex64", options={})], (-1, -1, 4, 3))


FORMS: dict[str, Callable[[Net], None]] = {
    "transforms": _transformed,
    "pads": _padded,
    "slices": _sliced,
    "strided slices": _strided,
    "shapes": _reshaped,
    "sizes": _created,
    **{
        f"kernel {kernel} stride {stride} {'same' if same else 'valid'}": lambda net, a=kernel, b=stride, c=same: _deconvolved(net, a, b, c)
        for kernel, stride in ((3, 2), (4, 2), (2, 3))
        for same in (True, False)
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_sizes_that_are_open(form: str, tmp_path: Path) -> None:
    net = Net(x=(-1, -1, -1, 3))
    FORMS[form](net)
    net.require_equal(tmp_path, *RUNS)


def test_a_shape_with_one_open_size_is_a_constant(tmp_path: Path) -> None:
    net = Net(x=(-1, 4, 6))
    whole = net.shape("x")
    area = net.op("MUL", [net.at(whole, 1), net.at(whole, 2)], ())
    flat = net.op("RESHAPE", ["x", net.pack(net.at(whole, 0), area)], (-1, -1), "")
    net.output("RESHAPE", [flat, net.op("CONCATENATION", [net.const([-1]), net.const([2, 12])], (3,), options={})], (-1, -1, -1))
    path = net.require_equal(tmp_path, {"x": (1, 4, 6)}, {"x": (3, 4, 6)})
    proto = onnx.load(path)
    assert [node.op_type for node in proto.graph.node] == ["Reshape", "Reshape"]
    sizes = [onnx.numpy_helper.to_array(item).tolist() for item in proto.graph.initializer]
    assert sorted(sizes) == [[-1, 2, 12], [-1, 24]]


@pytest.mark.cross_section
def test_sizes_that_are_not_equal_have_no_equal_names(tmp_path: Path) -> None:
    """The file says of both results that their first size is open: the one has half as many rows."""
    net = Net(x=(-1, 4))
    pairs = net.op("RESHAPE", ["x", net.ints(-1, 8)], (-1, 8), "")
    net.output("RELU", [pairs], (-1, 8))
    net.output("RESHAPE", ["x", net.pack(net.at(net.shape(pairs), 0), net.ints(8))], (-1, 8))
    path = net.require_equal(tmp_path, {"x": (2, 4)}, {"x": (6, 4)})
    rows = [value.type.tensor_type.shape.dim[0].dim_param for value in onnx.load(path).graph.output]
    assert "batch" not in rows


#: Shapes of data and indices, batch dimensions, axis, and the shape of the result.
GATHERED = [
    ((-1, 6, 4), (-1, 3), 1, 1, (-1, 3, 4)),
    ((-1, 2, 6, 4), (-1, 5, 2), 1, 2, (-1, 2, 5, 2, 4)),
    ((-1, 2, 5), (-1, 2), 2, 2, (-1, 2)),
]


@pytest.mark.parametrize(("shape", "index", "batch", "axis", "result"), GATHERED)
def test_gather_with_batch_dimensions(
    shape: tuple[int, ...], index: tuple[int, ...], batch: int, axis: int, result: tuple[int, ...], tmp_path: Path
) -> None:
    net = Net(x=shape)
    places = np.random.default_rng(0).integers(0, shape[axis], [3, *index[1:]])
    rows = net.pack(net.at(net.shape("x"), 0), *(net.ints(size) for size in index[1:]))
    chosen = net.op("SLICE", [net.const(places), net.const([0] * len(index)), rows], index)
    net.output("GATHER", ["x", chosen], result, options={"batchDims": batch, "axis": axis})
    net.require_equal(tmp_path, {"x": (1, *shape[1:])}, {"x": (3, *shape[1:])})


def test_results_without_elements() -> None:
    """LiteRT itself gives no tensor for some of them."""
    net = Net(x=(-1, -1, 3))
    half = net.op("FLOOR_DIV", [net.at(net.shape("x"), 1), net.ints(2)], ())
    net.output("STRIDED_SLICE", ["x", net.ints(0, 0), net.pack(net.ints(1), half), net.ints(1, 1)], (-1, -1, 3), options={"beginMask": 3})
    for length, wanted in ((1, 0), (5, 2)):
        (found,) = LiteRT(net.data).run({"x": np.ones((1, length, 3), np.float32)}).values()
        assert found.shape == (1, wanted, 3)
