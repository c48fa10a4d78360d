"""Operators with too few, too many or absent inputs and outputs, without channels, and of shapes that the kernel does not keep."""

from __future__ import annotations

import random

import numpy as np
import pytest
from differential import compare
from loaded import tflite_graph
from refusals import refused
from targets.one_operator import model_of
from tflite_models import Array, TensorSpec, single_op

from qconvert.conversion import normalize
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.onnx.writer import build as build_onnx
from qconvert.formats.tflite import schema
from qconvert.formats.tflite.ops import READERS
from qconvert.formats.tflite.verify import ARITY, wrong_arity
from qconvert.formats.tflite.writer import build
from qconvert.plugins import target_named
from qconvert.targets.audit import refuse_violations

pytestmark = pytest.mark.formats


def _row(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "int8", 0.05, 3)


def test_every_operator_that_is_read_has_its_arity() -> None:
    assert set(READERS) == set(ARITY)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "words"),
    [("ADD", "ab", "y", ""), ("ADD", "a", "y", "has 1 input, not 2"), ("ADD", "abc", "y", "has 3 inputs, not 2"),
     ("ADD", ["a", ""], "y", "input 1 is absent"), ("CONV_2D", ["x", "w", ""], "y", ""), ("CONV_2D", "x", "y", "has 1 input, not 2 to 3"),
     ("PACK", [], "y", "has 0 inputs, not at least one"), ("PACK", ["a", "", "b"], "y", "input 1 is absent"),
     ("TOPK_V2", "xk", "y", "has 1 output, not 2"), ("UNPACK", "x", "abc", ""), ("SOMETHING", "", "", "")],
)  # fmt: skip
def test_arity(name: str, inputs: str | list[str], outputs: str, words: str) -> None:
    assert wrong_arity(name, tuple(inputs), tuple(outputs)) == words


@pytest.mark.parametrize("builtin", ["MEAN", "TRANSPOSE", "PAD"])
def test_a_missing_input_is_named(builtin: str) -> None:
    with refused(InvalidModelError, "wrong-number-of-tensors", holds=(f"{builtin} #0", 1, 2)):
        tflite_graph(single_op(builtin, {}, [_row("x", 1, 4)], [_row("y", 1, 4)]))


@pytest.mark.parametrize("channels", [0, 2])
def test_weights_that_do_not_fit_the_channels(channels: int) -> None:
    weights = TensorSpec("w", (3, 1, 1, 4), "int8", 0.01, 0, data=np.ones((3, 1, 1, 4), np.int8))
    data = single_op("CONV_2D", {"strideH": 1, "strideW": 1}, [_row("x", 1, 4, 4, channels), weights, None], [_row("y", 1, 4, 4, 3)])
    with refused(InvalidModelError, "shape-mismatch", holds=(channels,)):
        tflite_graph(data)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4), (1, 6, 4)])
def test_a_fully_connected_result_has_the_shape_that_the_kernel_gives_it(keep: bool, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    weights = TensorSpec("w", (4, 5), "int8", 0.01, 0, data=rng.integers(-100, 100, (4, 5)).astype(np.int8))
    data = single_op("FULLY_CONNECTED", {"keepNumDims": keep}, [_row("x", 2, 3, 5), weights, None], [_row("y", *shape)])
    feed: Array = rng.integers(-100, 100, (2, 3, 5)).astype(np.int8)
    (item,) = compare(data, [feed])
    assert item.source.shape == ((2, 3, 4) if keep else (6, 4))
    assert item.largest == 0


OPERATORS = (
    "CONV_2D FULLY_CONNECTED SPLIT STRIDED_SLICE CONCATENATION TRANSPOSE_CONV LOGISTIC MEAN RESIZE_BILINEAR PADV2 GATHER TOPK_V2 "
    "SPACE_TO_BATCH_ND ONE_HOT AVERAGE_POOL_2D"
).split()
SOURCES = [made[0] for name in OPERATORS for dtype in ("int8", "float32") if (made := model_of(name, dtype, 4)) is not None]  # fmt: skip


def _changed(data: bytes, rng: random.Random) -> bytes:
    """A model with one thing that is not as its operator wants it."""
    model = unpack_view(schema.root(data))
    subgraph = model.subgraphs[0]
    operator, tensor = rng.choice(subgraph.operators), rng.choice(subgraph.tensors)
    inputs = operator.inputs.tolist()
    what = rng.randrange(7)
    if what == 0:
        operator.inputs = np.array(inputs[:-1], np.int32)
    elif what == 1:
        operator.inputs = np.array([*inputs, rng.randrange(-1, len(subgraph.tensors))], np.int32)
    elif what == 2:
        inputs[rng.randrange(len(inputs))] = rng.randrange(-1, len(subgraph.tensors))
        operator.inputs = np.array(inputs, np.int32)
    elif what == 3:
        operator.builtinOptions, operator.builtinOptionsType = None, 0
    elif what == 4:
        shape = [] if tensor.shape is None else tensor.shape.tolist()
        tensor.shape = np.array([*shape[:-1], rng.choice((0, 1, 3, -1, 65536))] if rng.random() < 0.7 else [*shape, 2], np.int32)
    elif what == 5:
        tensor.type = rng.randrange(21)
    elif tensor.quantization is not None and tensor.quantization.scale is not None:
        tensor.quantization.scale = np.array([rng.choice((0.0, -1.0, np.inf, np.nan, 1e-38, 1e38))] * rng.choice((1, 2, 4)), np.float32)
    return pack_model(model)


@pytest.mark.parametrize("seed", range(10))
def test_changed_models_are_converted_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(60):
        data = _changed(rng.choice(SOURCES), rng)
        for name, write in (("generic", lambda graph: build_onnx(graph, 0, {})), ("tflite-same", lambda graph: build(graph, {}))):
            try:
                graph, _ = normalize(tflite_graph(data), target_named(name))
                refuse_violations(graph, target_named(name))
                write(graph)
            except QConvertError:
                refused += 1
    assert 20 < refused < 120


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (2, 1)])
def test_one_hot_has_one_value_for_on_and_one_for_off(sizes: tuple[int, int]) -> None:
    values = [TensorSpec(name, (size,), "float32", data=np.ones(size, np.float32)) for name, size in zip(("on", "off"), sizes, strict=True)]
    depth = TensorSpec("d", (), "int32", data=np.array(4, np.int32))
    source = single_op("ONE_HOT", {"axis": -1}, [TensorSpec("i", (3,), "int32"), depth, *values], [TensorSpec("y", (3, 4), "float32")])
    with refused(InvalidModelError, "not-a-scalar", holds=(sizes[0], sizes[1])):
        tflite_graph(source, "model")
