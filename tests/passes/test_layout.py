"""assign_layout: the fewest Transposes, and the same numbers afterwards."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nodes import model_of

from qconvert import Graph, Op, Quantization, Tensor, convert, load
from qconvert import run as run_model
from qconvert.evaluate import evaluate
from qconvert.graph.metadata import TRANSPOSED
from qconvert.passes.assign_layout import INFINITE, FlowGraph, assign_layout
from qconvert.plugins import target_named
from qconvert.rules.validation import validate

TARGET = target_named("ort-x86")
RNG = np.random.default_rng(2)
POOL = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 1, 1), "data_format": "channels_last"}


def tensor(name: str, *shape: int | str, data: Any = None) -> Tensor:
    if data is not None:
        data = np.asarray(data)
        return Tensor(name, data.dtype.name, data.shape, data)
    return Tensor(name, "float32", shape)


def graph(tensors: list[Tensor], ops: list[Op], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
    made = Graph("test", {t.name: t for t in tensors}, tuple(ops), inputs, outputs)
    validate(made)
    return made


def transposes(found: Graph) -> int:
    return sum(op.kind == "Transpose" for op in found.ops)


def rewritten(source: Graph, **options: str) -> Graph:
    """The graph in the target's layout, valid, and giving the same numbers."""
    result, _ = assign_layout(source, TARGET, **options)
    validate(result)
    assert all(op["data_format"] == "channels_first" for op in result.ops if "data_format" in op.attributes)
    if not options:
        feeds = {
            name: RNG.normal(size=[2 if isinstance(s, str) else s for s in source[name].shape or ()]).astype(np.float32)
            for name in source.inputs
        }
        before, after = evaluate(source, feeds), evaluate(result, feeds)
        for name in source.outputs:
            assert np.allclose(before[name], after[name], rtol=0, atol=1e-6)
    return result


def pooled(names: str) -> list[Op]:
    """A chain of pools through the tensors named by letters."""
    return [Op("MaxPool", (a,), (b,), POOL) for a, b in pairwise(names)]


def test_one_transpose_at_each_end() -> None:
    tensors = [tensor(n, "batch", 5, 6, 3) for n in "abcd"]
    assert transposes(rewritten(graph(tensors, pooled("abcd"), ("a",), ("d",)))) == 2


def test_io_layout_leaves_none() -> None:
    tensors = [tensor(n, 1, 5, 6, 3) for n in "abc"]
    result = rewritten(graph(tensors, pooled("abc"), ("a",), ("c",)), io_layout="nchw")
    assert transposes(result) == 0
    assert result["a"].shape == (1, 3, 5, 6)


@pytest.mark.parametrize(
    ("op", "constants", "shape"),
    [
        (Op("Softmax", ("b",), ("c",), {"axis": -1}), [], (1, 5, 6, 3)),
        (Op("Concat", ("b", "b"), ("c",), {"axis": 3}), [], (1, 5, 6, 6)),
        (Op("Add", ("b", "k"), ("c",)), [tensor("k", data=np.float32([1, 2, 3]))], (1, 5, 6, 3)),
        (Op("Mul", ("b", "k"), ("c",)), [tensor("k", data=RNG.normal(size=(5, 1, 3)).astype(np.float32))], (1, 5, 6, 3)),
        (Op("Pad", ("b", "k"), ("c",)), [tensor("k", data=np.int64([0, 1, 0, 2, 0, 0, 3, 0]))], (1, 6, 9, 5)),
        (
            Op("Slice", ("b", "s", "e", "k"), ("c",)),
            [tensor("s", data=np.int64([1, 0])), tensor("e", data=np.int64([4, 2])), tensor("k", data=np.int64([1, 3]))],
            (1, 3, 6, 2),
        ),
        (Op("ReduceMean", ("b", "k"), ("c",), {"keepdims": 1}), [tensor("k", data=np.int64([3]))], (1, 5, 6, 1)),
        (Op("CumSum", ("b",), ("c",), {"axis": 3}), [], (1, 5, 6, 3)),
        (Op("Tile", ("b", "k"), ("c",)), [tensor("k", data=np.int64([1, 1, 1, 2]))], (1, 5, 6, 6)),
        (Op("Gather", ("b", "k"), ("c",), {"axis": 3}), [tensor("k", data=np.int64([2, 0]))], (1, 5, 6, 2)),
        (Op("Relu", ("b",), ("c",)), [], (1, 5, 6, 3)),
        (Op("HardSigmoid", ("b",), ("c",)), [], (1, 5, 6, 3)),
        (Op("Softplus", ("b",), ("c",)), [], (1, 5, 6, 3)),
        (Op("ReduceL2", ("b", "k"), ("c",), {"keepdims": 1}), [tensor("k", data=np.int64([3]))], (1, 5, 6, 1)),
    ],
    ids=lambda value: value.kind if isinstance(value, Op) else "",
)  # fmt: skip
def test_an_operator_between_pools_needs_no_transpose(op: Op, constants: list[Tensor], shape: tuple[int, ...]) -> None:
    tensors = [tensor("a", 1, 5, 6, 3), tensor("b", 1, 5, 6, 3), *constants, tensor("c", *shape), tensor("d", *shape)]
    ops = [Op("MaxPool", ("a",), ("b",), POOL), op, Op("MaxPool", ("c",), ("d",), POOL)]
    ends = 1 if shape[3] == 1 else 2  # data of one channel need not move
    assert transposes(rewritten(graph(tensors, ops, ("a",), ("d",)))) == ends


@pytest.mark.parametrize("shape", [(1, 5, 6, 3), (1, 4, 4, 4)], ids=["that shows the layout", "that hides it"])
def test_the_condition_of_where_has_the_layout_of_its_data(shape: tuple[int, ...]) -> None:
    tensors = [*(tensor(n, *shape) for n in "abde"), Tensor("c", "bool", shape), tensor("k", data=np.float32([0.3]))]
    ops = [*pooled("ab"), Op("Greater", ("b", "k"), ("c",)), Op("Where", ("c", "b", "k"), ("d",)), *pooled("de")]
    assert transposes(rewritten(graph(tensors, ops, ("a",), ("e",)))) == 2


def test_a_diamond_follows_the_cheaper_side() -> None:
    """Two inputs are added before a Reshape and a pool: the sum is transposed once, for the pool, not both inputs."""
    tensors = [tensor(n, 1, 5, 6, 3) for n in "abcd"] + [tensor("r", 90), tensor("k", data=np.int64([90]))]
    ops = [Op("Add", ("a", "b"), ("c",)), Op("MaxPool", ("c",), ("d",), POOL), Op("Reshape", ("c", "k"), ("r",))]
    assert transposes(rewritten(graph(tensors, ops, ("a", "b"), ("d", "r")))) == 2


def test_data_that_do_not_move_are_reshaped() -> None:
    tensors = [tensor(n, 1, 5, 6, 1) for n in "ab"]
    result = rewritten(graph(tensors, pooled("ab"), ("a",), ("b",)))
    assert [op.kind for op in result.ops] == ["Reshape", "MaxPool", "Reshape"]


def test_a_transpose_of_the_source_that_makes_the_layout_disappears() -> None:
    tensors = [tensor("n", 1, 3, 5, 6), tensor("a", 1, 5, 6, 3), tensor("b", 1, 5, 6, 3), tensor("m", 1, 3, 5, 6)]
    ops = [Op("Transpose", ("n",), ("a",), {"perm": (0, 2, 3, 1)}), *pooled("ab"), Op("Transpose", ("b",), ("m",), {"perm": (0, 3, 1, 2)})]
    assert transposes(rewritten(graph(tensors, ops, ("n",), ("m",)))) == 0


def test_a_shape_that_does_not_show_the_layout_is_noted() -> None:
    tensors = [tensor(n, 1, 4, 4, 4) for n in "abc"]
    result = rewritten(graph(tensors, pooled("abc"), ("a",), ("c",)))
    assert json.loads(result.metadata[TRANSPOSED]) == ["b"]


def test_per_axis_scales_move_with_their_axis() -> None:
    data = RNG.integers(-9, 9, (1, 1, 1, 3)).astype(np.int8)
    k = Tensor("k", "int8", (1, 1, 1, 3), data, Quantization.per_axis([0.1, 0.2, 0.3], 3))
    tensors = [
        tensor("a", 1, 5, 6, 3),
        tensor("b", 1, 5, 6, 3),
        k,
        tensor("q", 1, 1, 1, 3),
        tensor("c", 1, 5, 6, 3),
        tensor("d", 1, 5, 6, 3),
    ]
    ops = [*pooled("ab"), Op("Dequantize", ("k",), ("q",)), Op("Mul", ("b", "q"), ("c",)), *pooled("cd")]
    assert transposes(rewritten(graph(tensors, ops, ("a",), ("d",)))) == 2


CHANNELS = [tensor(name, data=np.float32([0.5, 1.5, 2.5])) for name in "stuv"]
SPATIAL = [
    Op("BatchNormalization", ("b", "s", "t", "u", "v"), ("c",), {"data_format": "channels_last"}),
    Op("InstanceNormalization", ("b", "s", "t"), ("c",), {"data_format": "channels_last"}),
    Op("GroupNormalization", ("b", "s", "t"), ("c",), {"data_format": "channels_last", "num_groups": 3}),
    Op("GlobalAveragePool", ("b",), ("c",), {"data_format": "channels_last"}),
    Op("GlobalMaxPool", ("b",), ("c",), {"data_format": "channels_last"}),
    Op("MaxPool", ("b",), ("c",), {**POOL, "dilations": (2, 1), "ceil_mode": 1, "strides": (2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize("op", SPATIAL, ids=lambda op: op.kind)
def test_spatial_operators_change_their_data_format(op: Op) -> None:
    shape = {"GlobalAveragePool": (1, 1, 1, 3), "GlobalMaxPool": (1, 1, 1, 3), "MaxPool": (1, 3, 2, 3)}.get(op.kind, (1, 5, 6, 3))
    constants = [constant for constant in CHANNELS if constant.name in op.inputs]
    tensors = [tensor("a", 1, 5, 6, 3), tensor("b", 1, 5, 6, 3), tensor("c", *shape), *constants]
    result = rewritten(graph(tensors, [*pooled("ab"), op], ("a",), ("c",)))
    assert transposes(result) == (1 if shape[1:3] == (1, 1) else 2)


@pytest.mark.parametrize("shape", [(1, 5, 6, 3), (5, 1, 3), (3,)])
@pytest.mark.parametrize("axis", [-1, 0])
def test_blocks_of_scales_move_with_their_axis(shape: tuple[int, ...], axis: int) -> None:
    axis %= len(shape)
    blocks = tuple(-(-size // 2) if i == axis else size for i, size in enumerate(shape))
    scale = RNG.uniform(0.1, 1, blocks).astype(np.float32)
    points = RNG.integers(-3, 3, blocks)
    k = Tensor("k", "int8", shape, RNG.integers(-9, 9, shape).astype(np.int8), Quantization(scale, points, axis, 2))
    tensors = [*(tensor(n, 1, 5, 6, 3) for n in "abcd"), k]
    ops = [*pooled("ab"), Op("Mul", ("b", "k"), ("c",)), *pooled("cd")]
    assert transposes(rewritten(graph(tensors, ops, ("a",), ("d",)))) == 2


def test_minimum_cut_against_all_labellings() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        flow, edges = FlowGraph(), []
        nodes = [0, 1, *(flow.node() for _ in range(6))]
        for _ in range(16):
            tail, head = (int(n) for n in rng.choice(nodes, 2, replace=False))
            edges.append((tail, head, int(rng.integers(1, 20)) if rng.random() < 0.9 else INFINITE))
            flow.edge(*edges[-1])

        def cost(labels: list[int]) -> int:
            return sum(c for tail, head, c in edges if labels[tail] == 0 and labels[head] == 1)  # noqa: B023

        best = min(cost([0, 1, *(number >> i & 1 for i in range(6))]) for number in range(64))
        assert cost(flow.labels()) == best


def resized(op: str, sizes: tuple[int, int], mode: str = "linear", last: tuple[Op, ...] = ()) -> Graph:
    """A pool, a Resize of its result to `sizes`, and more operators, channels last as in .tflite files."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners", "data_format": "channels_last"}
    tensors = [tensor("a", 1, 6, 6, 3), tensor("b", 1, 6, 6, 3), tensor("s", data=np.int64(sizes)), tensor("c", 1, *sizes, 3)]
    tensors += [tensor(item.outputs[0], 1, *sizes, 3) for item in last]
    ops = [*pooled("ab"), Op(op, ("b", "s"), ("c",), attributes), *last]
    return graph(tensors, ops, ("a",), (ops[-1].outputs[0],))


@pytest.mark.parametrize(
    ("sizes", "mode", "layout"),
    [((12, 12), "linear", "channels_last"), ((11, 11), "linear", "channels_first"), ((12, 12), "nearest", "channels_first")],
)
def test_large_interpolated_data_stay_channels_last(sizes: tuple[int, int], mode: str, layout: str) -> None:
    """The Transpose then stands before the Resize, where data are a quarter; both have one at the start."""
    source = resized("Resize", sizes, mode)
    result, _ = assign_layout(source, TARGET)
    validate(result)
    assert [op["data_format"] for op in result.ops if op.kind == "Resize"] == [layout]
    assert transposes(result) == 2
    values = {"a": RNG.normal(size=(1, 6, 6, 3)).astype(np.float32)}
    assert np.allclose(evaluate(source, values)["c"], evaluate(result, values)["c"], rtol=0, atol=1e-6)


def test_interpolated_data_between_layers_are_not_transposed_for_it() -> None:
    source = resized("Resize", (12, 12), last=(Op("MaxPool", ("c",), ("d",), POOL),))
    result, _ = assign_layout(source, TARGET)
    assert [op["data_format"] for op in result.ops if op.kind == "Resize"] == ["channels_first"]
    assert transposes(result) == 2


@pytest.mark.onnxruntime
def test_a_resize_with_channels_last_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "resized.onnx"
    source = resized("Resize", (13, 24))
    values = {"a": RNG.normal(size=(1, 6, 6, 3)).astype(np.float32)}
    convert(source, path, target="ort-x86")
    assert [op["data_format"] for op in load(path).ops if op.kind == "Resize"] == ["channels_last"]
    expected = evaluate(source, values)["c"]
    assert np.allclose(evaluate(load(path), values)["c"], expected, rtol=0, atol=1e-5)
    assert np.allclose(run_model(path, values)["c"], expected, rtol=0, atol=1e-5)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("batch", [1, "batch"])
def test_a_resize_of_an_onnx_file_keeps_its_layout(mode: str, batch: int | str, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    sizes = helper.make_tensor("sizes", TensorProto.INT64, [4], [2, 7, 8, 3])
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, coordinate_transformation_mode="asymmetric"),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2 if batch == 1 else batch, 3, 4, 3])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    network = helper.make_graph(nodes, "resize", [x], [z], [sizes])
    save(model_of(network), first)
    convert(first, second)
    assert [op["data_format"] for op in load(second).ops if op.kind == "Resize"] == ["channels_last"]
    values = {"x": RNG.normal(size=(2, 3, 4, 3)).astype(np.float32)}
    assert np.allclose(run_model(second, values)["z"], run_model(first, values)["z"], rtol=0, atol=1e-6)
