"""Every invariant of a graph, broken once: one message each, at the operator or tensor concerned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Op, Quantization, Signature, Tensor
from qconvert.rules.validation import validate

HALF = Quantization.per_tensor(0.5, 3)
WEIGHTS = Quantization.per_axis([0.25, 0.125], 0)
BIAS = Quantization.per_axis([0.125, 0.0625], 0)
WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "data_format": "channels_last"}


def sound() -> Graph:
    """x (float) -> Quantize -> Conv with bias -> MaxPool -> Transpose -> Dequantize -> y."""
    tensors = [
        Tensor("x", "float32", (1, 4, 4, 3)),
        Tensor("q", "int8", (1, 4, 4, 3), None, HALF),
        Tensor("w", "int8", (2, 3, 1, 1), np.ones((2, 3, 1, 1), np.int8), WEIGHTS),
        Tensor("b", "int32", (2,), np.zeros(2, np.int32), BIAS),
        Tensor("c", "int8", (1, 4, 4, 2), None, HALF),
        Tensor("p", "int8", (1, 2, 2, 2), None, HALF),
        Tensor("t", "int8", (1, 2, 2, 2), None, HALF),
        Tensor("y", "float32", (1, 2, 2, 2)),
    ]
    pool = {**{k: v for k, v in WINDOW.items() if k != "dilations"}, "strides": (2, 2), "kernel_shape": (2, 2)}
    ops = (
        Op("Quantize", ("x",), ("q",)),
        Op("Conv", ("q", "w", "b"), ("c",), WINDOW, "CONV_2D #1"),
        Op("MaxPool", ("c",), ("p",), pool),
        Op("Transpose", ("p",), ("t",), {"perm": (0, 3, 1, 2)}),
        Op("Dequantize", ("t",), ("y",)),
    )
    return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",), (Signature("s", {"in": "x"}, {}),))


def with_tensor(name: str, **changes: Any) -> Callable[[Graph], Graph]:
    return lambda graph: replace(graph, tensors={**graph.tensors, name: replace(graph[name], **changes)})


def with_op(index: int, **changes: Any) -> Callable[[Graph], Graph]:
    def change(graph: Graph) -> Graph:
        ops = list(graph.ops)
        ops[index] = replace(ops[index], **changes)
        return replace(graph, ops=tuple(ops))

    return change


def with_attribute(index: int, **changes: Any) -> Callable[[Graph], Graph]:
    return lambda graph: with_op(index, attributes={**graph.ops[index].attributes, **changes})(graph)


def with_quantization(name: str, scale: Any, point: Any = 0, **more: Any) -> Callable[[Graph], Graph]:
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    points = np.asarray(point, np.int64) if np.ndim(point) else np.full(scales.shape, point, np.int64)
    return with_tensor(name, quantization=Quantization(scales, points, **more))


def without_attribute(graph: Graph) -> Graph:
    return with_op(3, attributes={})(graph)


def cyclic(graph: Graph) -> Graph:
    """The pool reads what the Transpose after it writes."""
    return with_tensor("t", shape=(1, 4, 4, 2))(with_op(2, inputs=("t",))(graph))


def unordered(graph: Graph) -> Graph:
    return replace(graph, ops=(*graph.ops[:2], graph.ops[3], graph.ops[2], graph.ops[4]))


def add_op(op: Op, *tensors: Tensor) -> Callable[[Graph], Graph]:
    def change(graph: Graph) -> Graph:
        return replace(graph, ops=(*graph.ops, op), tensors={**graph.tensors, **{t.name: t for t in tensors}})

    return change


def t(name: str, dtype: str = "int8", shape: Any = (1, 2, 2, 2), quantization: Any = None) -> Tensor:
    return Tensor(name, dtype, shape, None, quantization)


OPAQUE = {"format": "onnx", "domain": "com.example", "op_type": "Odd", "version": 1, "payload": "", "captures": ("t",)}
LAST = {"data_format": "channels_last"}
POOL = {**LAST, "strides": (1, 1), "pads": (0, 0, 0, 0), "kernel_shape": (1, 1)}
FOUR = Quantization.per_tensor(1, 4)
ONE = np.zeros((1, 1, 1, 1), np.int64)
AXES = Tensor("i", "int64", (1,), ONE[0, 0, 0])
BROKEN: list[tuple[Callable[[Graph], Graph], str, str, tuple[object, ...]]] = [
    # names
    (lambda g: replace(g, tensors={**g.tensors, "z": g["x"]}), "tensor 'z'", "wrong-key", ("'x'",)),
    (with_op(0, inputs=("nowhere",)), "Quantize 'q'", "unknown-tensor", ("'nowhere'",)),
    (lambda g: replace(g, inputs=("x", "nowhere")), "tensor 'nowhere'", "unknown-tensor", ()),
    (lambda g: replace(g, outputs=("nowhere",)), "tensor 'nowhere'", "unknown-tensor", ()),
    (lambda g: replace(g, inputs=("x", "x")), "tensor 'x'", "duplicate-name", (2,)),
    (lambda g: replace(g, inputs=("x", "w")), "tensor 'w'", "constant-input", ()),
    (lambda g: replace(g, signatures=(Signature("s", {}, {"out": "no"}),)), "signature 's'", "unknown-tensor", ("'out'", "'no'")),
    (with_op(3, outputs=("p",)), "Transpose 'p'", "two-producers", ("'p'", "MaxPool")),
    (with_op(3, outputs=("w",)), "Transpose 'w'", "two-producers", ("'w'",)),
    (with_op(3, outputs=("x",)), "Transpose 'x'", "two-producers", ("'x'",)),
    # order
    (cyclic, "MaxPool 'p'", "cycle", ()),
    (unordered, "Transpose 't'", "wrong-order", ("'p'", "MaxPool")),
    (lambda g: replace(g, inputs=()), "Quantize 'q'", "not-computed", ("'x'",)),
    (lambda g: replace(g, outputs=("y", "o"), tensors={**g.tensors, "o": t("o")}), "tensor 'o'", "not-computed", ()),
    # operators
    (with_op(3, kind="Fold"), "Fold 't'", "unknown-kind", ("'Fold'",)),
    (with_op(1, inputs=("q",)), "CONV_2D #1 Conv 'c'", "wrong-number-of-tensors", (1, 2, 3)),
    (with_op(4, outputs=("y", "p")), "Dequantize 'y'", "two-producers", ("'p'",)),
    (with_op(1, inputs=("q", "", "b")), "Conv 'c'", "input-missing", (1,)),
    (without_attribute, "Transpose 't'", "attribute-missing", ("'perm'",)),
    (with_attribute(3, axis=1), "Transpose 't'", "unknown-attribute", ("'axis'",)),
    (with_attribute(3, perm="0312"), "Transpose 't'", "attribute-value", ("'0312'", "'perm'")),
    (with_attribute(1, group=2.0), "Conv 'c'", "attribute-value", ("'group'", "2.0")),
    (with_attribute(1, data_format="NHWC"), "Conv 'c'", "attribute-value", ("'data_format'", "'channels_first'", "'channels_last'")),
    (with_attribute(1, activation="tanh"), "Conv 'c'", "attribute-value", ("'activation'", "'relu'")),
    (with_attribute(1, auto_pad="SAME"), "Conv 'c'", "attribute-value", ("'SAME'", "'auto_pad'")),
    # tensors
    (with_tensor("x", dtype="float8"), "tensor 'x'", "unknown-type", ("'float8'",)),
    (with_tensor("x", shape=(1, -4, 4, 3)), "tensor 'x'", "negative-size", ()),
    (with_tensor("x", shape=(1, "", 4, 3)), "tensor 'x'", "invalid-size", ()),
    (with_tensor("x", shape=(1, 4.0, 4, 3)), "tensor 'x'", "invalid-size", ("4.0",)),
    (with_tensor("x", shape=(2**20, 2**20, 2, 3)), "tensor 'x'", "too-many-elements", ("2^40",)),
    (with_tensor("w", shape=(2, 3, 1, 2)), "tensor 'w'", "shape-mismatch", ("(2, 3, 1, 1)", "(2, 3, 1, 2)")),
    (with_tensor("w", dtype="uint8"), "tensor 'w'", "type-mismatch", ("int8", "uint8")),
    # scales and zero points
    (with_tensor("x", quantization=HALF), "tensor 'x'", "not-quantizable", ("float32",)),
    (with_quantization("q", 0.0), "tensor 'q'", "scale-not-positive", (0,)),
    (with_quantization("q", -1.0), "tensor 'q'", "scale-not-positive", ("-1",)),
    (with_quantization("q", np.nan), "tensor 'q'", "scale-not-positive", ()),
    (with_quantization("q", np.inf), "tensor 'q'", "scale-not-positive", ()),
    (with_quantization("q", [0.5], [0, 0]), "tensor 'q'", "counts-differ", (1, 2)),
    (with_quantization("q", 0.5, 128), "tensor 'q'", "zero-point-outside-type", ("int8", 128, "-128", 127)),
    (with_quantization("q", [0.5, 0.5]), "tensor 'q'", "scales-without-axis", (2, 0)),
    (with_quantization("w", [0.5, 0.5], axis=4), "tensor 'w'", "axis-out-of-range", ("(2, 3, 1, 1)", 4)),
    (with_quantization("w", [0.5, 0.5], axis=1), "tensor 'w'", "counts-differ", ("(2, 3, 1, 1)", 2, 1, 3)),
    (with_quantization("w", [0.5, 0.5, 0.5], axis=1, block_size=2), "tensor 'w'", "counts-differ", ("(3,)", "(2, 3, 1, 1)", 2)),
    (with_quantization("w", np.full((2, 3, 1, 1), 0.5), axis=1, block_size=2), "tensor 'w'",
     "counts-differ", ("(2, 3, 1, 1)", "(2, 2, 1, 1)")),
    (with_quantization("w", np.full((2, 3, 1, 1), 0.5), axis=1), "tensor 'w'", "counts-differ", ("(2, 3, 1, 1)",)),
    (with_tensor("q", quantization=Quantization(np.array([0.5]), np.array([0]))), "tensor 'q'", "parameter-types", ("float64",)),
    # the rules of operators
    (with_quantization("p", 0.25, 3), "MaxPool 'p'", "quantization-mismatch", ("'c'", "'p'")),
    (with_tensor("p", quantization=None), "MaxPool 'p'", "quantization-mismatch", ("'c'", "'p'")),
    (with_tensor("t", dtype="uint8"), "Transpose 't'", "type-mismatch", ("'p'", "'t'", "int8", "uint8")),
    (with_tensor("q", quantization=None), "Quantize 'q'", "not-quantized", ("'q'", "int8")),
    (with_tensor("x", dtype="int32"), "Quantize 'q'", "not-float", ("'x'", "int32")),
    (with_tensor("y", dtype="int8", quantization=HALF), "Dequantize 'y'", "not-float", ("'y'",)),
    (add_op(Op("Requantize", ("t",), ("z",)), t("z")), "Requantize 'z'", "not-quantized", ("'z'",)),
    (add_op(Op("Reinterpret", ("t",), ("z",)), t("z", "uint8", quantization=HALF)), "Reinterpret 'z'", "type-mismatch", ()),
    (add_op(Op("ArgMax", ("t",), ("z",)), t("z", "int64", (1, 2, 2, 2), HALF)), "ArgMax 'z'", "index-quantized", ()),
    (with_quantization("w", [0.5, 0.5, 0.5], axis=1), "Conv 'c'", "weight-axis", ("'w'", 1)),
    (with_quantization("q", [0.5, 0.5, 0.5], 0, axis=3), "Conv 'c'", "not-per-tensor", ("'q'",)),
    (with_tensor("b", quantization=None), "Conv 'c'", "bias-type", ("'b'", "int32")),
    (with_tensor("b", dtype="int64", data=np.zeros(2, np.int64)), "Conv 'c'", "bias-type", ("'b'", "int64")),
    (with_tensor("b", dtype="float16", data=np.zeros(2, np.float16), quantization=None), "Conv 'c'", "bias-type", ("'b'", "float16")),
    (with_quantization("b", [0.125, 0.0625], 1, axis=0), "Conv 'c'", "bias-zero-point", ("'b'", 0)),
    (with_quantization("b", [0.125, 0.0626], axis=0), "Conv 'c'", "bias-scale", ("'b'", "0.0626")),
    # what models of ONNX hold besides
    (add_op(Op("Opaque", ("t",), ("z",), {**OPAQUE, "payload": 1}), t("z", "unknown", None)), "Opaque 'z'",
     "attribute-value", ("'payload'",)),
    (add_op(Op("Opaque", ("t",), ("z",), {**OPAQUE, "captures": (1,)}), t("z", "unknown", None)), "Opaque 'z'", "attribute-value", ()),
    (add_op(Op("Opaque", ("t",), ("z",), {**OPAQUE, "version": "1"}), t("z", "unknown", None)), "Opaque 'z'",
     "attribute-value", ("'version'",)),
    (add_op(Op("Opaque", ("t",), ("z",)), t("z", "unknown", None)), "Opaque 'z'", "attribute-missing", ("'format'",)),
    (add_op(Op("Relu", ("t",), ("z",)), t("z", "unknown", quantization=HALF)), "tensor 'z'", "not-quantizable", ()),
    (add_op(Op("Relu", ("t",), ("z",)), t("z", "uint2", quantization=FOUR)), "tensor 'z'", "zero-point-outside-type", ("uint2", 0, 3)),
    (add_op(Op("Relu", ("t",), ("z",)), t("z", "float8e5m2", quantization=HALF)), "tensor 'z'",
     "zero-point-outside-type", ("float8e5m2", 3)),
    (add_op(Op("GlobalMaxPool", ("t",), ("z",), LAST), t("z", shape=(1, 1, 1, 2))), "GlobalMaxPool 'z'", "quantization-mismatch", ()),
    (add_op(Op("ScatterElements", ("t", "i", "x"), ("z",)), t("z", quantization=HALF), Tensor("i", "int64", (1, 1, 1, 1), ONE)),
     "ScatterElements 'z'", "type-mismatch", ("'t'", "'x'", "int8", "float32")),
    # types
    (add_op(Op("NonZero", ("t",), ("z",)), t("z", "bool", (4, 8))), "NonZero 'z'", "type-mismatch", ("'z'", "bool", "int32", "int64")),
    (add_op(Op("IsNaN", ("x",), ("z",)), t("z", "float32", None)), "IsNaN 'z'", "type-mismatch", ("'z'", "float32", "bool")),
    (add_op(Op("Cast", ("x",), ("z",), {"to": "int32"}), t("z", "int64", None)), "Cast 'z'", "type-mismatch", ("'z'", "int64", "int32")),
    (add_op(Op("And", ("i", "i"), ("z",)), AXES, t("z", "bool", (1,))), "And 'z'", "type-mismatch", ("int64", "bool")),
    (add_op(Op("ReduceAny", ("x", "i"), ("z",)), AXES, t("z", "bool", None)), "ReduceAny 'z'",
     "type-mismatch", ("'x'", "float32", "bool")),
    (add_op(Op("Equal", ("x", "i"), ("z",)), AXES, t("z", "bool", None)), "Equal 'z'",
     "type-mismatch", ("'x'", "'i'", "float32", "int64")),
    (add_op(Op("Less", ("t", "i"), ("z",)), Tensor("i", "int8", (1,), np.ones(1, np.int8)), t("z", "bool")), "Less 'z'",
     "float-type", ("'i'", "int8", "float32")),
    (add_op(Op("Trilu", ("t",), ("z",)), t("z", "float32")), "Trilu 'z'", "type-mismatch", ("'t'", "'z'", "int8", "float32")),
    (add_op(Op("Tile", ("x", "i"), ("z",)), Tensor("i", "bool", (4,), np.ones(4, bool)), t("z", "float32", None)), "Tile 'z'",
     "not-plain-integers", ("'i'", "bool")),
    (add_op(Op("Floor", ("t",), ("z",)), t("z", "float64")), "Floor 'z'", "float-type", ("'z'", "float64")),
    (with_tensor("w", dtype="float16", data=np.ones((2, 3, 1, 1), np.float16), quantization=None), "Conv 'c'",
     "float-type", ("'w'", "float16")),
    (add_op(Op("Gemm", ("i", "j"), ("z",)), Tensor("i", "float32", (2, 3), np.ones((2, 3), np.float32)),
            Tensor("j", "float64", (4, 3), np.ones((4, 3))), t("z", "float32", (2, 4))), "Gemm 'z'",
     "type-mismatch", ("'i'", "'j'", "float32", "float64")),
    (add_op(Op("IsNaN", ("t",), ("z",)), t("z", quantization=HALF)), "IsNaN 'z'", "index-quantized", ("'z'",)),
    (add_op(Op("AveragePool", ("t",), ("z",), {**POOL, "ceil_mode": 2}), t("z")), "AveragePool 'z'",
     "attribute-value", ("'ceil_mode'", 0, 1)),
    (add_op(Op("GroupNormalization", ("t", "w", "w"), ("z",), LAST), t("z")), "GroupNormalization 'z'",
     "attribute-missing", ("'num_groups'",)),
    # shapes
    (with_tensor("c", shape=(1, 4, 4, 5)), "Conv 'c'", "shape-mismatch", ("'c'", "(1, 4, 4, 2)", "(1, 4, 4, 5)")),
    (with_tensor("x", shape=(1, 4, 4)), "Quantize 'q'", "shape-mismatch", ("'q'", "(1, 4, 4)")),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "rule", "holds"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_broken(change: Callable[[Graph], Graph], where: str, rule: str, holds: tuple[object, ...]) -> None:
    with refused(InvalidGraphError, rule, holds=holds) as raised:
        validate(change(sound()))
    assert raised.value.where.endswith(where)


def test_the_sound_graph_passes() -> None:
    validate(sound())


def test_int16_data_take_an_int64_bias() -> None:
    graph = sound()
    for name in ("q", "c", "p", "t"):
        graph = with_tensor(name, dtype="int16")(graph)
    validate(with_tensor("b", dtype="int64", data=np.zeros(2, np.int64))(graph))


def test_blocks_a_float_bias_and_opaque_operators_are_sound() -> None:
    blocks = Quantization(np.full((2, 2, 1, 1), 0.5, np.float32), np.ones((2, 2, 1, 1), np.int64), 1, 2)
    graph = with_tensor("w", quantization=blocks)(sound())
    graph = with_tensor("b", dtype="float32", data=np.zeros(2, np.float32), quantization=None)(graph)
    opaque = Op("Opaque", ("t", "", "y"), ("", "z"), OPAQUE)
    validate(add_op(opaque, t("z", "unknown", None), t("y", "float32"))(graph))
    validate(add_op(Op("Opaque", (), ("z",), OPAQUE), t("z", "float8e4m3fn", None, Quantization.per_tensor(2.0)))(graph))


def test_a_transpose_moves_blocks() -> None:
    scale = np.arange(1, 5, dtype=np.float32).reshape(1, 2, 2)
    blocks = Quantization(scale, np.zeros(scale.shape, np.int64), 0, 3)
    op = Op("Transpose", ("x",), ("y",), {"perm": (2, 0, 1)})
    for quantization, is_sound in ((blocks.transpose((2, 0, 1)), True), (replace(blocks, axis=1), False), (HALF, False)):
        tensors = [t("x", shape=(3, 2, 2), quantization=blocks), t("y", shape=(2, 3, 2), quantization=quantization)]
        graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
        if is_sound:
            validate(graph)
        else:
            with pytest.raises(InvalidGraphError):
                validate(graph)


def moved(kind: str, before: Any, after: Any, a: int, b: int, constants: tuple[Any, ...] = (), **attributes: Any) -> Graph:
    """One operator on a tensor with a scale for each index of axis `a`, and on its output of axis `b`."""
    scales = [0.5 + i for i in range(before[a])]
    tensors = [
        t("x", "int8", before, Quantization.per_axis(scales, a)),
        t("y", "int8", after, Quantization.per_axis(scales, b)),
        *(Tensor(f"k{i}", "int64", np.shape(value), np.array(value, np.int64)) for i, value in enumerate(constants)),
    ]
    op = Op(kind, ("x", *(f"k{i}" for i in range(len(constants)))), ("y",), attributes)
    return Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))


SPATIAL = {"strides": (1, 1), "pads": (0, 0, 0, 0), "kernel_shape": (1, 1), "data_format": "channels_last"}
KEPT = [
    moved("Identity", (2, 3), (2, 3), 1, 1),
    moved("Transpose", (2, 3, 4), (4, 2, 3), 1, 2, perm=(2, 0, 1)),
    moved("Reshape", (2, 3, 4), (2, 3, 2, 2), 1, 1, ((2, 3, 2, 2),)),
    moved("Squeeze", (1, 3, 4), (3, 4), 1, 0, ((0,),)),
    moved("Unsqueeze", (3, 4), (3, 1, 4), 1, 2, ((1,),)),
    moved("Expand", (3, 1), (2, 3, 5), 0, 1, ((2, 3, 5),)),
    moved("Slice", (3, 4), (3, 2), 0, 0, ((0,), (2,), (1,))),
    moved("Pad", (3, 4), (3, 6), 0, 0, ((0, 1, 0, 1),)),
    moved("Tile", (3, 4), (3, 8), 0, 0, ((1, 2),)),
    moved("Gather", (3, 4), (3, 5, 2), 0, 0, (np.zeros((5, 2)),), axis=1),
    moved("Gather", (3, 4), (5, 2, 4), 1, 2, (np.zeros((5, 2)),), axis=0),
    moved("ReduceMax", (3, 4), (4,), 1, 0, ((0,),), keepdims=0),
    moved("MaxPool", (1, 2, 2, 3), (1, 2, 2, 3), 3, 3, **SPATIAL),
    moved("GlobalMaxPool", (1, 2, 2, 3), (1, 1, 1, 3), 3, 3, data_format="channels_last"),
    moved("Unpack", (1, 4), (4,), 1, 0, axis=0),
    moved("Pack", (3, 4), (1, 3, 4), 1, 2, axis=0),
]  # fmt: skip
LOST = [
    moved("Transpose", (2, 2), (2, 2), 0, 0, perm=(1, 0)),
    moved("Reshape", (2, 3, 2), (3, 2, 2), 0, 1, ((3, 2, 2),)),
    moved("Slice", (3, 4), (3, 4), 0, 0, ((-1,), (-(2**63),), (0,), (-1,))),
    moved("Gather", (3, 3), (3, 3), 0, 0, ((2, 1, 0),), axis=0),
    moved("Pad", (3, 4), (3, 4), 0, 0, ((1, 0, -1, 0),)),
    moved("MaxPool", (1, 2, 2, 3), (1, 2, 2, 3), 2, 2, **SPATIAL),
    moved("SpaceToDepth", (1, 2, 2, 3), (1, 2, 2, 3), 3, 3, blocksize=1, data_format="channels_last"),
]  # fmt: skip


@pytest.mark.parametrize("graph", KEPT, ids=lambda graph: graph.ops[0].kind)
def test_scales_follow_their_axis(graph: Graph) -> None:
    validate(graph)


@pytest.mark.parametrize("graph", LOST, ids=lambda graph: graph.ops[0].kind)
def test_scales_that_lose_their_axis(graph: Graph) -> None:
    with refused(InvalidGraphError, "quantization-mismatch"):
        validate(graph)


def test_what_the_user_sees_has_an_origin_and_is_there_once() -> None:
    graph = sound()
    (name,) = graph.outputs[:1]
    for changed, rule, holds in (
        (replace(graph, outputs=(name, name)), "duplicate-name", (2,)),
        (replace(graph, signatures=(Signature("s", {"a": name}, {}),)), "not-an-input", ()),
        (replace(graph.evolve(tensors=[t("u", "float32")], signatures=(Signature("s", {}, {"b": "u"}),))), "not-computed", ()),
        (replace(graph, ops=(*graph.ops[:-1], replace(graph.ops[-1], outputs=("",)))), "output-missing", (0,)),
    ):
        with refused(InvalidGraphError, rule, holds=holds):
            validate(changed)
    assert graph.evolve(ops=(), signatures=(Signature("s", {}, {"b": "c"}),)).tensors.keys() >= {"c", *graph.outputs}
