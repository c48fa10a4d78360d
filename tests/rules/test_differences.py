"""Differences of graphs: each kind of change is named, and renamed intermediates are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import qconvert
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, numpy_dtype
from qconvert.operators.sizes import spread_weights
from qconvert.rules.changed_values import changed_values
from qconvert.rules.differences import diff, equal

HALF = Quantization.per_tensor(0.5, 3)
WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "data_format": "channels_last"}


def graph() -> Graph:
    """x -> Conv -> Relu -> y."""
    weights = np.arange(6, dtype=np.int8).reshape(2, 3, 1, 1)
    tensors = [
        Tensor("x", "int8", (1, 4, 4, 3), None, HALF),
        Tensor("w", "int8", (2, 3, 1, 1), weights, Quantization.per_axis([0.25, 0.125], 0)),
        Tensor("c", "int8", (1, 4, 4, 2), None, HALF),
        Tensor("y", "int8", (1, 4, 4, 2), None, HALF),
    ]
    ops = (Op("Conv", ("x", "w"), ("c",), WINDOW, "CONV_2D #0"), Op("Relu", ("c",), ("y",)))
    return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",), (), {"key": "value"})


def test_equal_graphs_have_no_differences() -> None:
    assert diff(graph(), graph(), exact=True) == []
    assert equal(graph(), graph())


def test_changed_data_are_counted() -> None:
    data = np.array([0, 1, 9, 3, 4, 4], np.int8).reshape(2, 3, 1, 1)
    changed = graph().evolve(tensors=[replace(graph()["w"], data=data)])
    assert diff(graph(), changed) == ["tensor 'w': 2 of 6 elements differ, by at most 7"]


def test_a_negative_zero_and_a_nan_are_seen() -> None:
    a = Graph("g", {"k": Tensor("k", "float32", (2,), np.array([0.0, np.nan], np.float32))}, (), (), ("k",))
    b = a.evolve(tensors=[replace(a["k"], data=np.array([-0.0, np.nan], np.float32))])
    assert diff(a, a) == []
    assert [line.split(",")[0] for line in diff(a, b)] == ["tensor 'k': 1 of 2 elements differ"]


def test_changed_quantization_and_shape() -> None:
    base = graph()
    scaled = base.evolve(tensors=[replace(base["c"], quantization=Quantization.per_tensor(0.25, 4), shape=("n", 4, 4, 2))])
    assert diff(base, scaled) == [
        "tensor 'c': shape (1, 4, 4, 2) -> ('n', 4, 4, 2)",
        "tensor 'c': scale 0.5 -> 0.25",
        "tensor 'c': zero point 3 -> 4",
    ]
    rolled = base.evolve(tensors=[replace(base["w"], quantization=Quantization.per_axis([0.125, 0.25], 0))])
    assert diff(base, rolled) == ["tensor 'w': 2 of 2 scales differ, the first scale 0.25 -> 0.125"]
    plain = base.evolve(tensors=[replace(base["y"], quantization=None)])
    assert diff(base, plain) == ["tensor 'y': quantized -> not quantized"]


def test_changed_blocks_of_scales() -> None:
    base, scale = graph(), np.full((2, 2, 1, 1), 0.5, np.float32)

    def with_blocks(scale: Array, block_size: int) -> Graph:
        q = Quantization(scale, np.zeros(scale.shape, np.int64), 1, block_size)
        return base.evolve(tensors=[replace(base["w"], quantization=q)])

    changed = scale.copy()
    changed[1, 0] = 0.75
    assert diff(with_blocks(scale, 2), with_blocks(scale, 2), exact=True) == []
    assert diff(with_blocks(scale, 2), with_blocks(changed, 2)) == ["tensor 'w': 1 of 4 scales differ, the first scale 0.5 -> 0.75"]
    assert diff(with_blocks(scale, 2), with_blocks(scale[:, :1], 3)) == [
        "tensor 'w': axis 1, blocks of 2 -> axis 1, blocks of 3",
        "tensor 'w': 4 scales -> 2",
        "tensor 'w': 4 zero points -> 2",
    ]
    assert "tensor 'w': scales of shape (2, 2, 1, 1) -> (4, 1, 1, 1)" in diff(
        with_blocks(scale, 2), with_blocks(scale.reshape(4, 1, 1, 1), 2)
    )


def test_small_types_are_compared_by_value() -> None:
    def constant(dtype: str, values: list[int]) -> Graph:
        return Graph("g", {"k": Tensor("k", dtype, (2,), np.array(values).astype(numpy_dtype(dtype)))}, (), (), ("k",))

    for dtype in ("uint2", "float4e2m1", "float8e4m3fn"):
        assert diff(constant(dtype, [1, 3]), constant(dtype, [1, 3])) == []
        assert diff(constant(dtype, [1, 3]), constant(dtype, [1, 2])) == ["tensor 'k': 1 of 2 elements differ, by at most 1"]


def test_changed_attributes_and_kinds() -> None:
    base = graph()
    strided = base.evolve(ops=[base.ops[0].with_attributes(strides=(2, 2)), base.ops[1]])
    assert diff(base, strided) == ["Conv 'c': strides (1, 1) -> (2, 2)"]
    other = base.evolve(ops=[base.ops[0], replace(base.ops[1], kind="Tanh")])
    assert diff(base, other) == ["- Relu 'y'", "+ Tanh 'y'"]


def test_a_default_written_out_is_no_difference() -> None:
    base = graph()
    assert equal(base, base.evolve(ops=[base.ops[0].with_attributes(group=1), base.ops[1]]))


def test_added_operators() -> None:
    base = graph()
    tanh = Op("Tanh", ("c2",), ("y",))
    longer = base.evolve(tensors=[replace(base["c"], name="c2")], ops=[base.ops[0], replace(base.ops[1], outputs=("c2",)), tanh])
    assert diff(base, longer) == [
        "+ Tanh 'y'",
        "output 'y': the operator that computed it computes 'c2' in the second graph",
    ]


def test_renamed_intermediates_are_differences_only_if_exact() -> None:
    other = graph().with_names({"c": "conv", "w": "kernel"})
    assert equal(graph(), other)
    assert diff(graph(), other, exact=True) == ["tensor 'w' is called 'kernel'", "tensor 'c' is called 'conv'"]


def test_renamed_inputs_and_outputs_are_differences() -> None:
    base = graph()
    other = base.with_names({"y": "z"})
    assert diff(base, other)[0] == "outputs: ['y'] -> ['z']"


def test_swapped_names_are_seen_through() -> None:
    """Two branches whose tensors swap names compute the same; swapping the operators too does not."""
    x = Tensor("x", "float32", (2,))
    tensors = {name: replace(x, name=name) for name in ("x", "a", "b", "y")}
    tail = Op("Sub", ("a", "b"), ("y",))
    base = Graph("g", tensors, (Op("Abs", ("x",), ("a",)), Op("Neg", ("x",), ("b",)), tail), ("x",), ("y",))
    assert equal(base, base.with_names({"a": "b", "b": "a"}))
    crossed = base.evolve(ops=[Op("Abs", ("x",), ("b",)), Op("Neg", ("x",), ("a",)), tail])
    assert diff(base, crossed) == ["Sub 'y': inputs ['b', 'a'] -> ['a', 'b']"]


def test_independent_operators_in_another_order() -> None:
    x = Tensor("x", "float32", (2,))
    tensors = {name: replace(x, name=name) for name in ("x", "a", "b")}
    ops = (Op("Abs", ("x",), ("a",)), Op("Neg", ("x",), ("b",)))
    base = Graph("g", tensors, ops, ("x",), ("a", "b"))
    turned = replace(base, ops=ops[::-1])
    assert equal(base, turned)
    assert diff(base, turned, exact=True) == ["operators are in another order"]


def test_exact_counts_sources_signatures_and_metadata() -> None:
    base = graph()
    other = replace(base, name="h", metadata={"key": "other"}, ops=(replace(base.ops[0], source=""), base.ops[1]))
    assert equal(base, other)
    assert diff(base, other, exact=True) == [
        "name 'g' -> 'h'",
        "Conv 'c': source 'CONV_2D #0' -> ''",
        "metadata 'key': 'value' -> 'other'",
    ]


def test_diff_is_public() -> None:
    a, b = (Graph("g", {"x": Tensor("x", dtype, (2,))}, (), ("x",), ("x",)) for dtype in ("int8", "float32"))
    assert qconvert.diff(a, b) == diff(a, b) != []
    assert qconvert.diff(a, replace(a, name="h")) == [] != qconvert.diff(a, replace(a, name="h"), exact=True)


def test_bounds_of_a_clip_beyond_its_quantization_are_those_of_the_quantization() -> None:
    def clipped(highest: float) -> Graph:
        bounds = [Tensor(name, "float32", (), np.array(value, np.float32)) for name, value in (("low", 0.0), ("high", highest))]
        x, y = (Tensor(name, "uint8", (2,), None, Quantization.per_tensor(0.031, 78)) for name in "xy")
        return Graph("g", {t.name: t for t in (x, y, *bounds)}, (Op("Clip", ("x", "low", "high"), ("y",)),), ("x",), ("y",))

    assert changed_values(clipped(6.0), clipped(177 * 0.031)) == {}
    assert changed_values(clipped(6.0), clipped(176 * 0.031)) == {"high": "1 of 1 values of 'high' are not the source's"}


@pytest.mark.parametrize(("lowest", "found"), [(-3.4028235e38, {}), (-2.0, {"c": "1 of 1 values of 'c' are not the source's"})])
def test_a_choice_may_come_before_the_rounding(lowest: float, found: dict[str, str]) -> None:
    """Attention masks are filled with the lowest float value, where a runtime chooses among float values."""
    quantization = Quantization.per_tensor(0.031, 78)
    mask, x = Tensor("m", "bool", (2,)), Tensor("x", "uint8", (2,), None, quantization)
    y = replace(x, name="y")
    fill, other = (Tensor("c", "float32", (), np.array(value, np.float32)) for value in (-3.4028235e38, lowest))
    real, chosen = Tensor("x/real", "float32", (2,)), Tensor("y/real", "float32", (2,))
    before = Graph("g", {t.name: t for t in (mask, x, y, fill)}, (Op("Where", ("m", "x", "c"), ("y",)),), ("m", "x"), ("y",))
    steps = Op("Dequantize", ("x",), ("x/real",)), Op("Where", ("m", "x/real", "c"), ("y/real",)), Op("Quantize", ("y/real",), ("y",))
    after = Graph("g", {t.name: t for t in (mask, x, y, other, real, chosen)}, steps, ("m", "x"), ("y",))
    assert changed_values(before, after) == found


@pytest.mark.parametrize(("apart", "found"), [((1.0, 0.0), False), ((0.5, 0.0), True)])
def test_clips_onto_two_quantizations_share_a_bound(apart: tuple[float, float], found: bool) -> None:
    """With the second quantization it is the last value, which says nothing of the first."""
    first, second = Quantization.per_tensor(0.05, 0), Quantization.per_tensor(1 / 32, 255)

    def graph(*bounds: tuple[str, float]) -> Graph:
        tensors = [Tensor("x", "float32", (4,)), Tensor("a", "int8", (4,), None, first), Tensor("b", "uint8", (4,), None, second)]
        tensors += [Tensor("low", "float32", (), np.array(-1.0, np.float32))]
        tensors += [Tensor(name, "float32", (), np.array(value, np.float32)) for name, value in dict(bounds).items()]
        ops = [Op("Clip", ("x", "low", name), (result,)) for result, (name, _) in zip("ab", bounds, strict=True)]
        return Graph("g", {tensor.name: tensor for tensor in tensors}, tuple(ops), ("x",), ("a", "b"))

    shared, own = graph(("high", 1.0), ("high", 1.0)), graph(("a/high", apart[0]), ("b/high", apart[1]))
    assert bool(changed_values(shared, own)) is found


def test_a_constant_is_compared_where_its_operator_has_another_name_for_a_layout() -> None:
    """The result's operator is found by the name of what the source makes of its own result."""

    def graph(scale: float, *, turned: bool) -> Graph:
        constant = Tensor("c/turned" if turned else "c", "int8", (3,), np.arange(3, dtype=np.int8), Quantization.per_tensor(scale, 0))
        names = ("x", "y") if turned else ("x", "s", "y")
        tensors = [constant, *(Tensor(name, "int8", (3, 3), None, HALF) for name in names)]
        ops = [Op("Add", ("x", constant.name), ("y" if turned else "s",))]
        ops += [] if turned else [Op("Transpose", ("s",), ("y",), {"perm": (1, 0)})]
        return Graph("g", {tensor.name: tensor for tensor in tensors}, tuple(ops), ("x",), ("y",))

    assert changed_values(graph(0.25, turned=False), graph(0.25, turned=True)) == {}
    assert changed_values(graph(0.25, turned=False), graph(0.2525, turned=True)) == {"c": "a scale of 'c' is off by 1%"}


def test_a_clip_that_is_spelled_out_is_not_the_clip_before_it() -> None:
    def real(name: str, value: float | None = None) -> Tensor:
        return Tensor(name, "float32", (2,) if value is None else (), None if value is None else np.array(value, np.float32))

    tensors = [real(name) for name in "xmny"] + [real(name, value) for name, value in (("a", 0.0), ("b", 1.0), ("c", 0.25), ("d", 0.5))]
    first = Op("Clip", ("x", "a", "b"), ("m",))
    before = Graph("g", {t.name: t for t in tensors if t.name != "n"}, (first, Op("Clip", ("m", "c", "d"), ("y",))), ("x",), ("y",))
    renamed = {t.name: t for t in tensors if t.name not in "cd"} | {"n/c": real("n/c", 0.25), "n/d": real("n/d", 0.5)}
    decomposed = (first, Op("Max", ("m", "n/c"), ("n",)), Op("Min", ("n", "n/d"), ("y",)))
    assert changed_values(before, Graph("g", renamed, decomposed, ("x",), ("y",))) == {}


@pytest.mark.parametrize(("kind", "group", "dilations"), [("Conv", 2, (1, 1)), ("ConvTranspose", 2, (1, 1)), ("ConvTranspose", 1, (2, 3))])
def test_weights_that_are_spread_over_groups_and_holes_are_the_same(kind: str, group: int, dilations: tuple[int, int]) -> None:
    def convolved(name: str, data: Array, group: int, dilations: tuple[int, int]) -> Graph:
        shapes = {"x": (1, 4, 9, 9), "y": None}
        tensors = {key: Tensor(key, "float32", shape) for key, shape in shapes.items()} | {name: Tensor(name, "float32", data.shape, data)}
        attributes = {"group": group, "dilations": dilations, "strides": (1, 1), "pads": (0,) * 4, "data_format": "channels_first"}
        return Graph("g", tensors, (Op(kind, ("x", name), ("y",), attributes),), ("x",), ("y",))

    weights = np.random.default_rng(0).normal(size=(6, 4 // group, 2, 2)).astype(np.float32)
    dense = spread_weights(Tensor("w", "float32", weights.shape, weights), group, dilations)
    before = convolved("w", weights, group, dilations)
    assert changed_values(before, convolved("w/dense", dense, 1, (1, 1))) == {}
    wrong = dense.copy()
    wrong[0, 0, 0, 0] += 1
    assert list(changed_values(before, convolved("w/dense", wrong, 1, (1, 1)))) == ["w"]
