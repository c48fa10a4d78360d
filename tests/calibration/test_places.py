"""Which tensors get a quantization, which share one, and what is observed for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from refusals import refused

from qconvert import Graph, Op, Tensor
from qconvert.calibration.places import plan
from qconvert.errors import UnsupportedError


def network(*ops: Op, outputs: tuple[str, ...], constants: dict[str, Any] | None = None, **shapes: tuple[int | str, ...]) -> Graph:
    """A float graph with the input x."""
    given = {name: Tensor(name, "float32", shape) for name, shape in shapes.items()}
    for name, data in (constants or {}).items():
        given[name] = Tensor(name, str(np.asarray(data).dtype), np.asarray(data).shape, np.asarray(data))
    return Graph("made", given, ops, ("x",), outputs)


W = np.ones((4, 4, 1, 1), np.float32)
CONV = {"kernel_shape": (1, 1), "data_format": "channels_first"}
SHAPE = (1, 4, 8, 8)


def conv(name: str, data: str = "x") -> Op:
    return Op("Conv", (data, "w"), (name,), CONV)


def groups(graph: Graph, **options: Any) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(group.names, group.seen) for group in plan(graph, **options).groups]


def test_what_a_relu_reads_alone_gets_no_quantization() -> None:
    graph = network(
        conv("a"), Op("Relu", ("a",), ("b",)), conv("c", "b"), outputs=("c",), constants={"w": W}, x=SHAPE, a=SHAPE, b=SHAPE, c=SHAPE
    )
    assert groups(graph) == [(("x",), ("x",)), (("b",), ("b",)), (("c",), ("c",))]
    assert [(item.name, item.axis) for item in plan(graph).weights] == [("w", 0)]
    shared = network(
        conv("a"), Op("Relu", ("a",), ("b",)), Op("Add", ("a", "b"), ("c",)), outputs=("c",), constants={"w": W},
        x=SHAPE, a=SHAPE, b=SHAPE, c=SHAPE,
    )  # fmt: skip
    assert (("a",), ("a",)) in groups(shared)


def test_movements_pools_and_concat_share_what_flows_into_them() -> None:
    pool = {"kernel_shape": (1, 1), "data_format": "channels_first"}
    wide = (1, 8, 8, 8)
    graph = network(
        conv("a"), conv("b"), Op("MaxPool", ("a",), ("c",), pool), Op("Concat", ("c", "b"), ("d",), {"axis": 1}),
        Op("Transpose", ("d",), ("e",), {"perm": (0, 2, 3, 1)}), outputs=("e",), constants={"w": W},
        x=SHAPE, a=SHAPE, b=SHAPE, c=SHAPE, d=wide, e=(1, 8, 8, 8),
    )  # fmt: skip
    assert groups(graph) == [(("x",), ("x",)), (("a", "b", "c", "d", "e"), ("a", "b"))]


def test_a_quantization_that_a_target_demands_is_not_observed() -> None:
    graph = network(conv("a"), Op("Sigmoid", ("a",), ("b",)), outputs=("b",), constants={"w": W}, x=SHAPE, a=SHAPE, b=SHAPE)
    found = plan(graph)
    assert found.groups[-1].fixed is not None and found.groups[-1].fixed.quantization.step == 1 / 256
    assert [*found.observed_tensors] == ["x", "a"]
    assert plan(graph, target="ort-x86").groups[-1].fixed is None


def test_constants_that_take_part_have_quantizations_and_infinite_ones_keep_all_float() -> None:
    graph = network(Op("Add", ("x", "k"), ("a",)), outputs=("a",), constants={"k": np.array([-3, 2], np.float32)}, x=(1, 2), a=(1, 2))
    assert {group.names: group.constants for group in plan(graph).groups} == {("k",): ("k",), ("x",): (), ("a",): ()}
    masked = network(Op("Add", ("x", "k"), ("a",)), outputs=("a",), constants={"k": np.array([-np.inf, 0], np.float32)}, x=(1, 2), a=(1, 2))
    assert ("k",) not in dict(groups(masked)) and "stands for infinity" in plan(masked).notes[0]


def test_weights_of_matrix_products_and_weights_that_are_computed() -> None:
    k = np.ones((4, 3), np.float32)
    graph = network(Op("MatMul", ("x", "k"), ("a",)), outputs=("a",), constants={"k": k}, x=(2, 4), a=(2, 3))
    found = plan(graph)
    assert [(item.name, item.axis) for item in found.weights] == [("k", 1)] and [group.names for group in found.groups] == [("x",), ("a",)]
    product = network(Op("MatMul", ("x", "k"), ("a",)), outputs=("a",), constants={"k": k}, x=("B", "L", 4), a=("B", "L", 3))
    assert plan(product).weights[0].axis is None and plan(product, target="ort-x86").weights[0].axis == 1
    dynamic = network(
        Op("Conv", ("x", "v"), ("a",), CONV), conv("b", "a"), outputs=("b",), constants={"w": W}, x=SHAPE, v=W.shape, a=SHAPE, b=SHAPE
    )
    assert [group.names for group in plan(dynamic).groups] == [("a",), ("b",)] and "weights are computed" in plan(dynamic).notes[0]


def test_weights_of_groups_have_one_scale_where_onnx_turns_them() -> None:
    turned = Op("ConvTranspose", ("x", "w"), ("a",), {**CONV, "group": 2})
    graph = network(turned, outputs=("a",), constants={"w": np.ones((6, 2, 1, 1), np.float32)}, x=SHAPE, a=(1, 6, 8, 8))
    assert [(item.name, item.axis) for item in plan(graph).weights] == [("w", None)]


def test_a_network_without_integer_kernels_is_refused() -> None:
    with refused(UnsupportedError, "no-integer-kernels"):
        plan(network(Op("Cos", ("x",), ("a",)), outputs=("a",), x=(2,), a=(2,)))
