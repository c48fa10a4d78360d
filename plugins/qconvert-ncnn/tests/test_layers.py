"""Layers in ncnn itself: what the reader takes them for, and what the writer makes of operators, each network run as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import written
from networks import run, save_layers
from qconvert_ncnn.container import Layer, pack_weights
from qconvert_ncnn.writing import blob_params

from qconvert.plugin import Array, Graph, InvalidModelError, Op, Quantization, Tensor, UnsupportedError, evaluate, load
from qconvert.testing import random_inputs

#: Type of a layer, its parameters, the sizes of its blobs, and of its weights how many there are of each, in the file's order.
FOREIGN: list[tuple[str, dict[int, Any], list[tuple[int, ...]], list[int]]] = [
    ("BinaryOp", {0: 1}, [(8, 3, 8), (8,)], []),  # one for each channel, though columns are as many
    ("BinaryOp", {0: 2}, [(5,), (8, 3, 5)], []),
    ("BinaryOp", {0: 0}, [(2, 3, 4, 2), (2,)], []),
    ("BinaryOp", {0: 7}, [(6, 7), (6, 7, 4)], []),
    ("BinaryOp", {0: 4}, [(4, 3, 5), (4, 3, 5, 2)], []),
    ("Deconvolution", {0: 4, 1: 2, 3: 3, 6: 48, 18: 1}, [(3, 4, 5)], [48]),  # the padding below is that at the right
    ("DeconvolutionDepthWise", {0: 8, 1: 3, 3: 2, 4: 1, 6: 72, 7: 8, 18: 1, 19: 0}, [(8, 4, 5)], [72]),
    ("LayerNorm", {0: 16, 1: 1e-3, 2: 0}, [(3, 16)], []),
    ("LayerNorm", {0: 20, 1: 1e-3, 2: 0}, [(3, 4, 5)], []),
    ("LayerNorm", {0: 5, 1: 1e-3, 2: 0}, [(3, 1, 5)], []),
    ("Reduction", {0: 4, 1: 0, 3: (0,), 4: 0, 5: 1}, [(7,)], []),
    ("Reduction", {0: 3, 1: 0, 3: (-1, 1), 4: 0, 5: 1}, [(8, 3, 5)], []),
    ("Reduction", {0: 8, 1: 1, 4: 0, 5: 1}, [(8, 3)], []),
    ("Pooling", {0: 1, 1: 3, 2: 1, 5: 3}, [(8, 3, 8)], []),  # a padding that ncnn works out counts
    ("Pooling", {0: 1, 1: 2, 2: 2, 5: 2}, [(3, 5, 7)], []),
    ("Pooling", {0: 1, 1: 3, 2: 2, 3: 1, 5: 0, 6: 1}, [(4, 6, 6)], []),  # and so do windows that hang over
    ("Pooling", {0: 0, 1: 3, 2: 2, 3: 1, 5: 0}, [(16, 6, 8)], []),
    ("Pooling", {0: 1, 7: 1, 8: 4, 18: 3}, [(16, 6, 8)], []),
    ("Pooling", {0: 0, 7: 1, 8: -233, 18: 2}, [(5, 6, 7)], []),
    ("Interp", {0: 2, 1: 2.0, 2: 0.5}, [(4, 3, 6)], []),
    ("Interp", {0: 1, 3: 7, 4: 4}, [(4, 3, 6)], []),
    ("Bias", {0: 3}, [(3, 4, 5)], [3]),
    ("GroupNorm", {0: 4, 1: 8, 2: 1e-3, 3: 1}, [(8, 4, 5)], [8, 8]),
    ("GroupNorm", {0: 2, 1: 6, 2: 1e-3, 3: 0}, [(6, 5)], []),
    ("ShuffleChannel", {0: 2, 1: 0}, [(8, 4, 5)], []),
    ("ShuffleChannel", {0: 3, 1: 1}, [(12, 4, 5)], []),
    ("ExpandDims", {3: (0, -1)}, [(8, 3)], []),
    ("Squeeze", {3: (-2,)}, [(8, 1, 3)], []),
    ("Slice", {0: (2, -233, -233), 1: -1}, [(3, 8)], []),
    ("Crop", {9: (-3, 1), 10: (-233, -1), 11: (0, 2)}, [(8, 3, 5)], []),
    ("Padding", {2: 1, 3: 2, 4: 0, 5: 1.5, 7: 1, 8: 2}, [(8, 3, 5)], []),
]  # fmt: skip


def test_layers_of_others_are_read_as_ncnn_computes_them(tmp_path: Path) -> None:
    """Each has inputs of its own in one network."""
    rng, layers, fed = np.random.default_rng(0), list[Layer](), dict[str, Array]()
    for number, (kind, params, shapes, counts) in enumerate(FOREIGN):
        names = tuple(f"x{number}_{index}" for index in range(len(shapes)))
        for name, shape in zip(names, shapes, strict=True):
            layers.append(Layer("Input", name, (), (name,), blob_params(shape)))
            fed[name] = rng.normal(0, 1, (1, *shape)).astype(np.float32)
        weights = tuple(pack_weights(rng.normal(0, 1, count).astype(np.float32), "onv" in kind) for count in counts)
        outputs = tuple(f"y{number}_{index}" for index in range(len(params[0]) if kind == "Slice" else 1))
        layers.append(Layer(kind, f"layer{number}", names, outputs, params, weights))
    path = save_layers(tmp_path / "net.param", *layers)
    found = run(path, **fed)
    expected = evaluate(load(path), fed)
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=str(FOREIGN[int(name[1:].split("_")[0])]))


@pytest.mark.parametrize(
    ("kind", "params", "shape"),
    [
        ("Bias", {0: 3}, (3, 4)),  # adds its first number to all
        ("LayerNorm", {0: 12, 2: 0}, (3, 4)),  # goes over rows of 4
        ("LayerNorm", {0: 4, 2: 0}, (2, 2, 3, 4)),
        ("Reduction", {0: 0, 1: 0, 4: 1, 5: 1}, (3, 4)),
        ("Interp", {0: 2, 1: 1.5, 2: 1.5}, (4, 3, 5)),
        ("Pooling", {0: 1, 1: 3, 2: 1, 5: 2, 3: 1}, (4, 6, 6)),
        ("Deconvolution", {0: 3, 1: 1, 4: 1, 6: 9}, (3, 2, 5)),  # all is cut off
    ],
)
def test_what_ncnn_would_compute_otherwise_is_refused(kind: str, params: dict[int, Any], shape: tuple[int, ...], tmp_path: Path) -> None:
    count = params[6] if kind == "Deconvolution" else params[0] if kind == "Bias" else 0
    weights = (pack_weights(np.ones(count, np.float32), kind != "Bias"),) if count else ()
    layer = Layer(kind, "y", ("x",), ("y",), params, weights)
    with pytest.raises((InvalidModelError, UnsupportedError)) as caught:
        load(save_layers(tmp_path / "net.param", Layer("Input", "x", (), ("x",), blob_params(shape)), layer))
    assert caught.value.where == f"{kind} y" and caught.value.rule in ("variant-not-covered", "counts-differ", "empty-result")


def _picture(channels: int) -> tuple[int, ...]:
    return (1, channels, 5, 6)


#: Kind, shape, attributes, constants.
WRITTEN: list[tuple[str, tuple[int, ...], dict[str, Any], list[Any]]] = [
    ("LayerNormalization", (1, 16, 16), {"axis": 1}, [np.full((16, 16), 1.5, np.float32)]),
    ("LayerNormalization", _picture(8), {"axis": 1}, [np.full((8, 5, 6), 1.5, np.float32)]),
    ("LayerNormalization", _picture(4), {"axis": -1}, [np.arange(6, dtype=np.float32)]),
    ("LayerNormalization", (1, 2, 3, 4, 5), {"axis": 3}, [np.ones((4, 5), np.float32)]),
    ("InstanceNormalization", (1, 8, 9), {"data_format": "channels_first"}, [np.arange(8, dtype=np.float32), np.ones(8, np.float32)]),
    ("GroupNormalization", _picture(8), {"num_groups": 4, "data_format": "channels_first"}, [np.arange(8, dtype=np.float32)] * 2),
    *(("Pow", _picture(7), {}, [np.float32(power)]) for power in (1, 2, 3, 5, 8, -1, -3)),
    ("Softplus", _picture(8), {}, []),
    ("ReduceLogSumExp", _picture(8), {"keepdims": 0}, [np.array([1, 3])]),
    ("ReduceMean", _picture(8), {"keepdims": 1}, [np.zeros(0, np.int64)]),
    *(("Resize", _picture(3), {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": f"round_prefer_{way}",
       "data_format": "channels_first"}, [np.array([10, 18])]) for way in ("floor", "ceil")),
    ("AveragePool", _picture(4), {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "ceil_mode": 1, "count_include_pad": 1,
                                  "data_format": "channels_first"}, []),
]  # fmt: skip


def test_operators_give_in_ncnn_what_they_mean(tmp_path: Path) -> None:
    """As float values, some of them beyond what ncnn's Exp holds."""
    tensors, ops = list[Tensor](), list[Op]()
    shapes = {"ReduceLogSumExp": (1, 5), "ReduceMean": (1, 1, 1, 1), "AveragePool": (1, 4, 3, 3), "Resize": (1, 3, 10, 18)}
    for number, (kind, shape, attributes, constants) in enumerate(WRITTEN):
        names = [f"c{number}_{index}" for index in range(len(constants))]
        tensors += [Tensor(name, item.dtype.name, item.shape, np.asarray(item)) for name, item in zip(names, constants, strict=True)]
        tensors += [Tensor(f"x{number}", "float32", shape), Tensor(f"y{number}", "float32", shapes.get(kind, shape))]
        ops.append(Op(kind, (f"x{number}", *names), (f"y{number}",), attributes))
    inputs = tuple(op.inputs[0] for op in ops)
    graph = Graph("operators", {item.name: item for item in tensors}, tuple(ops), inputs, tuple(op.outputs[0] for op in ops))
    fitted, again = written(graph, tmp_path / "net.param", "ncnn-real")
    given = random_inputs(fitted)
    for op in ops:
        given[op.inputs[0]] = given[op.inputs[0]] * np.float32(100 if op.kind in ("Softplus", "ReduceLogSumExp") else 1)
    found = run(tmp_path / "net.param", **given)
    for op, result in zip(ops, evaluate(fitted, given).items(), strict=True):
        name, value = result
        for other in (found[name], evaluate(again, given)[name]):
            np.testing.assert_allclose(other, value, rtol=2e-5, atol=2e-5, err_msg=f"{op.kind} {op.attributes}")


@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceMax", "ReduceLogSumExp"])
def test_a_reduction_without_axes_is_one_of_all(kind: str, tmp_path: Path) -> None:
    tensors = [Tensor("x", "float32", (1, 2, 3, 4)), Tensor("axes", "int64", (0,), np.zeros(0, np.int64)), Tensor("y", "float32", (1,) * 4)]
    op = Op(kind, ("x", "axes"), ("y",), {"keepdims": 1})
    graph = Graph("all", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    written(graph, tmp_path / "net.param", "ncnn-real")
    given = random_inputs(graph)
    np.testing.assert_allclose(run(tmp_path / "net.param", **given)["y"], evaluate(graph, given)["y"], rtol=1e-6)


def test_inputs_that_nobody_reads_or_that_are_outputs_stay_what_they_are(tmp_path: Path) -> None:
    """And parts of a Split that nobody reads are no outputs."""
    q = Quantization.per_tensor(0.5, 3)
    tensors = [Tensor("x", "uint8", (1, 6), None, q), Tensor("unread", "float32", (1, 4)), Tensor("sizes", "int64", (2,), np.array([2, 4])),
               Tensor("left", "uint8", (1, 2), None, q), Tensor("right", "uint8", (1, 4), None, q)]  # fmt: skip
    ops = (Op("Split", ("x", "sizes"), ("left", "right"), {"axis": 1}),)
    graph = Graph("ends", {item.name: item for item in tensors}, ops, ("unread", "x"), ("right", "x"))
    fitted, again = written(graph, tmp_path / "net.param")
    assert (again.inputs, again.outputs) == (graph.inputs, graph.outputs)
    assert again["x"].shares_quantization(graph["x"])
    given = random_inputs(fitted)
    found = run(tmp_path / "net.param", **given)
    assert list(found) == ["right", "x"]
    assert np.array_equal(found["x"], given["x"])
    assert np.array_equal(found["right"], given["x"][:, 2:])
