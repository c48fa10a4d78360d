"""Every invariant of a graph, broken once: one message each, at the operator or tensor concerned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Op, Quantization, Signature, Tensor
from qconvert.graph.validation import validate

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
    """The pool reads what the Transpose behind it writes."""
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
BROKEN: list[tuple[Callable[[Graph], Graph], str, str]] = [
    # names
    (lambda g: replace(g, tensors={**g.tensors, "z": g["x"]}), "tensor 'z'", "filed under another name than its own, 'x'"),
    (with_op(0, inputs=("nowhere",)), "Quantize 'q'", "names the tensor 'nowhere', which does not exist"),
    (lambda g: replace(g, inputs=("x", "nowhere")), "tensor 'nowhere'", "is a graph input that does not exist"),
    (lambda g: replace(g, outputs=("nowhere",)), "tensor 'nowhere'", "is a graph output that does not exist"),
    (lambda g: replace(g, inputs=("x", "x")), "tensor 'x'", "is a graph input 2 times"),
    (lambda g: replace(g, inputs=("x", "w")), "tensor 'w'", "is a graph input and a constant"),
    (lambda g: replace(g, signatures=(Signature("s", {}, {"out": "no"}),)), "signature 's'", "maps 'out' to 'no'"),
    (with_op(3, outputs=("p",)), "Transpose 'p'", "writes 'p', which MaxPool 'p' writes already"),
    (with_op(3, outputs=("w",)), "Transpose 'w'", "writes 'w', which is a constant"),
    (with_op(3, outputs=("x",)), "Transpose 'x'", "writes 'x', which is a graph input"),
    # order
    (cyclic, "MaxPool 'p'", "is part of a cycle"),
    (unordered, "Transpose 't'", "comes before MaxPool 'p', which writes its input 'p'"),
    (lambda g: replace(g, inputs=()), "Quantize 'q'", "reads 'x', which is no input, no constant and no operator's output"),
    (lambda g: replace(g, outputs=("y", "o"), tensors={**g.tensors, "o": t("o")}), "tensor 'o'", "is a graph output that nothing writes"),
    # operators
    (with_op(3, kind="Fold"), "Fold 't'", "the operator set has no kind 'Fold'"),
    (with_op(1, inputs=("q",)), "CONV_2D #1 Conv 'c'", "has 1 inputs, not 2 to 3"),
    (with_op(4, outputs=("y", "p")), "Dequantize 'y'", "writes 'p'"),
    (with_op(1, inputs=("q", "", "b")), "Conv 'c'", "lacks input 1, which is not optional"),
    (without_attribute, "Transpose 't'", "lacks the attribute 'perm'"),
    (with_attribute(3, axis=1), "Transpose 't'", "has the attribute 'axis', which its kind does not have"),
    (with_attribute(3, perm="0312"), "Transpose 't'", "has '0312' as attribute 'perm', which is a tuple of integers"),
    (with_attribute(1, group=2.0), "Conv 'c'", "has 2.0 as attribute 'group', which is an integer"),
    (with_attribute(1, data_format="NHWC"), "Conv 'c'", "'data_format', which is one of 'channels_first', 'channels_last'"),
    (with_attribute(1, activation="tanh"), "Conv 'c'", "'activation', which is one of '', 'relu'"),
    (with_attribute(1, auto_pad="SAME"), "Conv 'c'", "has 'SAME' as attribute 'auto_pad'"),
    # tensors
    (with_tensor("x", dtype="float8"), "tensor 'x'", "is of type 'float8', which does not exist"),
    (with_tensor("x", shape=(1, -4, 4, 3)), "tensor 'x'", "has a negative size"),
    (with_tensor("x", shape=(1, "", 4, 3)), "tensor 'x'", "has a size without a name"),
    (with_tensor("x", shape=(1, 4.0, 4, 3)), "tensor 'x'", "has 4.0 in its shape"),
    (with_tensor("x", shape=(2**20, 2**20, 2, 3)), "tensor 'x'", "has more than 2^40 elements"),
    (with_tensor("w", shape=(2, 3, 1, 2)), "tensor 'w'", "has data of shape (2, 3, 1, 1), but says (2, 3, 1, 2)"),
    (with_tensor("w", dtype="uint8"), "tensor 'w'", "has data of type int8, but says uint8"),
    # scales and zero points
    (with_tensor("x", quantization=HALF), "tensor 'x'", "is quantized although its type is float32"),
    (with_quantization("q", 0.0), "tensor 'q'", "has the scale 0, which is not positive and finite"),
    (with_quantization("q", -1.0), "tensor 'q'", "has the scale -1,"),
    (with_quantization("q", np.nan), "tensor 'q'", "has the scale nan,"),
    (with_quantization("q", np.inf), "tensor 'q'", "has the scale inf,"),
    (with_quantization("q", [0.5], [0, 0]), "tensor 'q'", "has 1 scales and 2 zero points"),
    (with_quantization("q", 0.5, 128), "tensor 'q'", "has the zero point 128, which is outside int8 (-128 to 127)"),
    (with_quantization("q", [0.5, 0.5]), "tensor 'q'", "has 2 scales in blocks of 0, but no axis"),
    (with_quantization("w", [0.5, 0.5], axis=4), "tensor 'w'", "is quantized along axis 4 of shape (2, 3, 1, 1)"),
    (with_quantization("w", [0.5, 0.5], axis=1), "tensor 'w'", "has 2 scales along axis 1 of shape (2, 3, 1, 1), not 3"),
    (with_quantization("w", [0.5, 0.5, 0.5], axis=1, block_size=2), "tensor 'w'", "of shape (3,) in blocks of 2 for shape (2, 3, 1, 1)"),
    (with_quantization("w", np.full((2, 3, 1, 1), 0.5), axis=1, block_size=2), "tensor 'w'", "for shape (2, 3, 1, 1), not (2, 2, 1, 1)"),
    (with_quantization("w", np.full((2, 3, 1, 1), 0.5), axis=1), "tensor 'w'", "has scales of shape (2, 3, 1, 1), not a list"),
    (with_tensor("q", quantization=Quantization(np.array([0.5]), np.array([0]))), "tensor 'q'", "scales of float64"),
    # the rules of operators
    (with_quantization("p", 0.25, 3), "MaxPool 'p'", "'c' and 'p' have different quantizations"),
    (with_tensor("p", quantization=None), "MaxPool 'p'", "'c' and 'p' have different quantizations"),
    (with_tensor("t", dtype="uint8"), "Transpose 't'", "moves int8 of 'p' into uint8 of 't'"),
    (with_tensor("q", quantization=None), "Quantize 'q'", "needs 'q' to be quantized, but it is plain int8"),
    (with_tensor("x", dtype="int32"), "Quantize 'q'", "needs 'x' to be real numbers, but it is int32"),
    (with_tensor("y", dtype="int8", quantization=HALF), "Dequantize 'y'", "needs 'y' to be real numbers"),
    (add_op(Op("Requantize", ("t",), ("z",)), t("z")), "Requantize 'z'", "needs 'z' to be quantized"),
    (add_op(Op("Reinterpret", ("t",), ("z",)), t("z", "uint8", quantization=HALF)), "Reinterpret 'z'", "needs quantized tensors of one"),
    (add_op(Op("ArgMax", ("t",), ("z",)), t("z", "int64", (1, 2, 2, 2), HALF)), "ArgMax 'z'", "gives plain numbers"),
    (with_quantization("w", [0.5, 0.5, 0.5], axis=1), "Conv 'c'", "has weights 'w' quantized along axis 1, not along"),
    (with_quantization("q", [0.5, 0.5, 0.5], 0, axis=3), "Conv 'c'", "has data 'q' quantized per axis"),
    (with_tensor("b", quantization=None), "Conv 'c'", "has the bias 'b' of plain int32, not quantized int32"),
    (with_tensor("b", dtype="int64", data=np.zeros(2, np.int64)), "Conv 'c'", "has the bias 'b' of quantized int64"),
    (with_tensor("b", dtype="float16", data=np.zeros(2, np.float16), quantization=None), "Conv 'c'", "bias 'b' of plain float16, not"),
    (with_quantization("b", [0.125, 0.0625], 1, axis=0), "Conv 'c'", "has the bias 'b' with a zero point other than 0"),
    (with_quantization("b", [0.125, 0.0626], axis=0), "Conv 'c'", "is not input scale * weight scale"),
    # what models of ONNX hold besides
    (add_op(Op("Opaque", ("t",), ("z",), {**OPAQUE, "payload": 1}), t("z", "unknown", None)), "Opaque 'z'", "'payload', which is text"),
    (add_op(Op("Opaque", ("t",), ("z",), {**OPAQUE, "captures": (1,)}), t("z", "unknown", None)), "Opaque 'z'", "which is a tuple of text"),
    (add_op(Op("Opaque", ("t",), ("z",), {**OPAQUE, "version": "1"}), t("z", "unknown", None)), "Opaque 'z'", "'version', which is an int"),
    (add_op(Op("Opaque", ("t",), ("z",)), t("z", "unknown", None)), "Opaque 'z'", "lacks the attribute 'format'"),
    (add_op(Op("Relu", ("t",), ("z",)), t("z", "unknown", quantization=HALF)), "tensor 'z'", "is quantized although its type is unknown"),
    (add_op(Op("Relu", ("t",), ("z",)), t("z", "uint2", quantization=FOUR)), "tensor 'z'", "outside uint2 (0 to 3)"),
    (add_op(Op("Relu", ("t",), ("z",)), t("z", "float8e5m2", quantization=HALF)), "tensor 'z'", "zero point 3, which float8e5m2 cannot"),
    (add_op(Op("GlobalMaxPool", ("t",), ("z",), LAST), t("z", shape=(1, 1, 1, 2))), "GlobalMaxPool 'z'", "have different quantizations"),
    (add_op(Op("ScatterElements", ("t", "i", "x"), ("z",)), t("z", quantization=HALF), Tensor("i", "int64", (1, 1, 1, 1), ONE)),
     "ScatterElements 'z'", "moves int8 of 't' into float32 of 'x'"),
    # types
    (add_op(Op("NonZero", ("t",), ("z",)), t("z", "bool", (4, 8))), "NonZero 'z'", "has 'z' of bool, not int32 or int64"),
    (add_op(Op("IsNaN", ("x",), ("z",)), t("z", "float32", None)), "IsNaN 'z'", "has 'z' of float32, not bool"),
    (add_op(Op("Cast", ("x",), ("z",), {"to": "int32"}), t("z", "int64", None)), "Cast 'z'", "has 'z' of int64, not int32"),
    (add_op(Op("And", ("i", "i"), ("z",)), AXES, t("z", "bool", (1,))), "And 'z'", "of int64, not bool"),
    (add_op(Op("ReduceAny", ("x", "i"), ("z",)), AXES, t("z", "bool", None)), "ReduceAny 'z'",
     "has 'x' of float32, not bool"),
    (add_op(Op("Equal", ("x", "i"), ("z",)), AXES, t("z", "bool", None)), "Equal 'z'",
     "has 'x' of float32 and 'i' of int64, which must have one type"),
    (add_op(Op("Less", ("t", "i"), ("z",)), Tensor("i", "int8", (1,), np.ones(1, np.int8)), t("z", "bool")), "Less 'z'",
     "has 'i' of plain int8 beside quantized values, whose real values are float32"),
    (add_op(Op("Trilu", ("t",), ("z",)), t("z", "float32")), "Trilu 'z'", "has 't' of int8 and 'z' of float32, which must have one type"),
    (add_op(Op("Tile", ("x", "i"), ("z",)), Tensor("i", "bool", (4,), np.ones(4, bool)), t("z", "float32", None)), "Tile 'z'",
     "takes 'i' as plain numbers that say which or where, but it is bool"),
    (add_op(Op("Floor", ("t",), ("z",)), t("z", "float64")), "Floor 'z'", "has 'z' of plain float64 beside quantized values"),
    (with_tensor("w", dtype="float16", data=np.ones((2, 3, 1, 1), np.float16), quantization=None), "Conv 'c'",
     "has 'w' of float16 beside quantized data"),
    (add_op(Op("Gemm", ("i", "j"), ("z",)), Tensor("i", "float32", (2, 3), np.ones((2, 3), np.float32)),
            Tensor("j", "float64", (4, 3), np.ones((4, 3))), t("z", "float32", (2, 4))), "Gemm 'z'",
     "has 'i' of float32 and 'j' of float64, which no kernel computes together"),
    (add_op(Op("IsNaN", ("t",), ("z",)), t("z", quantization=HALF)), "IsNaN 'z'", "gives plain numbers, but 'z' is quantized"),
    (add_op(Op("AveragePool", ("t",), ("z",), {**POOL, "ceil_mode": 2}), t("z")), "AveragePool 'z'", "'ceil_mode', which is one of 0, 1"),
    (add_op(Op("GroupNormalization", ("t", "w", "w"), ("z",), LAST), t("z")), "GroupNormalization 'z'", "lacks the attribute 'num_groups'"),
    # shapes
    (with_tensor("c", shape=(1, 4, 4, 5)), "Conv 'c'", "gives 'c' the shape (1, 4, 4, 2), but the graph says (1, 4, 4, 5)"),
    (with_tensor("x", shape=(1, 4, 4)), "Quantize 'q'", "gives 'q' the shape (1, 4, 4)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "message"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_broken(change: Callable[[Graph], Graph], where: str, message: str) -> None:
    with pytest.raises(InvalidGraphError) as raised:
        validate(change(sound()))
    assert message in raised.value.reason
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
    for quantization, is_sound in ((blocks.transposed((2, 0, 1)), True), (replace(blocks, axis=1), False), (HALF, False)):
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
    with pytest.raises(InvalidGraphError, match="different quantizations"):
        validate(graph)


def test_what_the_user_sees_has_an_origin_and_is_there_once() -> None:
    graph = sound()
    (name,) = graph.outputs[:1]
    for changed, reason in (
        (replace(graph, outputs=(name, name)), "is a graph output 2 times"),
        (replace(graph, signatures=(Signature("s", {"a": name}, {}),)), "which is no graph input"),
        (replace(graph.evolve(tensors=[t("u", "float32")], signatures=(Signature("s", {}, {"b": "u"}),))), "which nothing writes"),
        (replace(graph, ops=(*graph.ops[:-1], replace(graph.ops[-1], outputs=("",)))), "gives output 0, which is not optional, no name"),
    ):
        with pytest.raises(InvalidGraphError, match=reason):
            validate(changed)
    assert graph.evolve(ops=(), signatures=(Signature("s", {}, {"b": "c"}),)).tensors.keys() >= {"c", *graph.outputs}
