"""fuse_dilation: what TensorFlow writes for dilated convolutions becomes one operator, or stays what it is, and is equal either way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tflite_nets import Net

from qconvert import check

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

CONV = {"strideH": 1, "strideW": 1, "padding": 1, "fusedActivationFunction": 1}
RNG = np.random.default_rng(0)


def _weights(net: Net, dtype: str, shape: tuple[int, ...], depthwise: bool = False) -> list[str]:
    """Weights and a bias."""
    count = shape[-1] if depthwise else shape[0]
    if dtype == "float32":
        return [net.const(RNG.normal(size=shape), "float32"), net.const(RNG.normal(size=count), "float32")]
    scale = np.full(count, 1 / 64, np.float32)
    kernel = net.const(RNG.integers(-90, 90, shape), "int8", scale=scale, axis=len(shape) - 1 if depthwise else 0)
    bias = "int64" if dtype == "int16" else "int32"
    return [kernel, net.const(RNG.integers(-900, 900, count), bias, scale=scale / 16)]


def _kinds(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


#: Block, pads and crops of two axes, kernel, padding (SAME is 0), and the pads of the one convolution; None if it is not one.
FITTING = {
    "as TensorFlow has it": ((2, 2), (2, 3, 2, 2), (0, 1, 0, 0), (3, 3), 1, [2, 2, 2, 2]),
    "valid": ((2, 3), (0, 1, 0, 0), (0, 1, 0, 0), (3, 3), 1, [0, 0, 0, 0]),
    "nothing cropped": ((2, 2), (2, 1, 0, 2), (0, 0, 0, 0), (3, 2), 1, [2, 0, 1, 2]),
    "padding inside": ((2, 2), (0, 1, 0, 0), (0, 1, 0, 0), (3, 3), 0, [2, 2, 2, 2]),
    "one axis": ((1, 4), (0, 0, 4, 4), (0, 0, 0, 1), (1, 3), 1, [0, 4, 0, 3]),
    "more cropped than padded": ((2, 2), (0, 1, 0, 0), (1, 1, 0, 0), (3, 3), 1, None),
    "cropped of what the convolution pads": ((2, 2), (0, 1, 0, 0), (1, 1, 2, 0), (3, 3), 0, [1, 0, 2, 2]),
}


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("name", FITTING)
def test_a_known_block(name: str, depthwise: bool, dtype: str, tmp_path: Path) -> None:
    block, pads, crops, kernel, padding, wanted = FITTING[name]
    height, width = 9, 12
    net = Net(dtype, x=(-1, height, width, 2))
    inner = [(height + pads[0] + pads[1]) // block[0], (width + pads[2] + pads[3]) // block[1]]
    split = net.op("SPACE_TO_BATCH_ND", ["x", net.ints(*block), net.const(np.reshape(pads, (2, 2)))], (-1, *inner, 2), "")
    after = inner if padding == 0 else [size - taps + 1 for size, taps in zip(inner, kernel, strict=True)]
    weights = _weights(net, dtype, (1, *kernel, 4) if depthwise else (3, *kernel, 2), depthwise)
    builtin, fields = ("DEPTHWISE_CONV_2D", {"depthMultiplier": 2}) if depthwise else ("CONV_2D", {})
    channels = 4 if depthwise else 3
    conv = net.op(builtin, [split, *weights], (-1, *after, channels), "", {**CONV, **fields, "padding": padding}, scale=1 / 4)
    size = [after[i] * block[i] - sum(crops[2 * i : 2 * i + 2]) for i in range(2)]
    rows = net.const(np.reshape(crops, (2, 2)))
    net.output("BATCH_TO_SPACE_ND", [conv, net.ints(*block), rows], (-1, *size, channels), scale=1 / 4)
    path = net.require_equal(tmp_path, {"x": (1, height, width, 2)}, {"x": (3, height, width, 2)})
    convolutions = [node for node in onnx.load(path).graph.node if node.op_type == "Conv"]
    attributes = {item.name: list(item.ints) for item in convolutions[0].attribute}
    if wanted is None:
        assert "Reshape" in _kinds(path) and attributes["dilations"] == [1, 1]
    else:
        assert attributes["pads"] == wanted and attributes["dilations"] == list(block)
        assert not {"Reshape", "Pad", "Slice"} & set(_kinds(path))


def _computed(net: Net, length: str, block: int, more: int) -> str:
    """How many elements are missing for whole blocks, as TensorFlow works it out."""
    total = net.op("ADD", [length, net.ints(more)], ())
    left = net.op("FLOOR_MOD", [total, net.ints(block)], ())
    return net.op("FLOOR_MOD", [net.op("SUB", [net.ints(block), left], ()), net.ints(block)], ())


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("same", [True, False])
def test_a_length_that_is_open(same: bool, dtype: str, tmp_path: Path) -> None:
    block, base = 3, 3 if same else 0
    net = Net(dtype, x=(-1, -1, 2))
    missing = _computed(net, net.at(net.shape("x"), 1), block, 2 * base)
    following = net.op("ADD", [missing, net.ints(base)], ())
    pads = net.op("RESHAPE", [net.pack(net.ints(base), following), net.ints(1, 2)], (1, 2))
    crops = net.op("RESHAPE", [net.pack(net.ints(0), missing), net.ints(1, 2)], (1, 2))
    split = net.op("SPACE_TO_BATCH_ND", ["x", net.const([block]), pads], (-1, -1, 2), "")
    wide = net.op("EXPAND_DIMS", [split, net.ints(-3)], (-1, 1, -1, 2), "")
    conv = net.op("CONV_2D", [wide, *_weights(net, dtype, (3, 1, 3, 2))], (-1, 1, -1, 3), "", CONV, scale=1 / 4)
    narrow = net.op("SQUEEZE", [conv], (-1, -1, 3), "", {"squeezeDims": [-3]}, scale=1 / 4)
    net.output("BATCH_TO_SPACE_ND", [narrow, net.const([block]), crops], (-1, -1, 3), scale=1 / 4)
    path = net.require_equal(tmp_path, *({"x": (n, length, 2)} for n, length in ((1, 7), (3, 8), (2, 12))))
    assert not {"Reshape", "Pad", "Slice", "Shape"} & set(_kinds(path)) and _kinds(path).count("Conv") == 1
    assert check(tmp_path / "source.tflite", path).verdict == "passed"


@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
def test_blocks_without_a_convolution_and_with_open_sizes(dtype: str, tmp_path: Path) -> None:
    net = Net(dtype, x=(-1, -1, -1, 2))
    whole = net.shape("x")
    rows = [net.pack(net.ints(i), _computed(net, net.at(whole, 1 + i), 2 + i, i)) for i in range(2)]
    pads = net.pack(*rows, shape=(2,))
    split = net.output("SPACE_TO_BATCH_ND", ["x", net.ints(2, 3), pads], (-1, -1, -1, 2))
    net.output("BATCH_TO_SPACE_ND", [split, net.ints(2, 3), pads], (-1, -1, -1, 2))
    net.require_equal(tmp_path, {"x": (1, 4, 5, 2)}, {"x": (3, 7, 8, 2)})
