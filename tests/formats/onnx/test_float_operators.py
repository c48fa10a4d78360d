"""Float operators of every opset: read as canonical operators, written again, and the same bits from onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loaded import onnx_graph
from onnx_models import random_inputs
from onnx_networks import NETWORKS
from onnx_networks import build as build_network
from onnx_nodes import equal, feeds, node_model, session
from refusals import refused

from qconvert.errors import UnsupportedError
from qconvert.formats.onnx.ops import READERS, WRITERS, same_named
from qconvert.formats.onnx.proto import HIGHEST_OPSET, defs
from qconvert.formats.onnx.writer import build
from qconvert.operators import KINDS
from qconvert.operators.formulas import FORMULAS

pytestmark = pytest.mark.onnxruntime

RNG = np.random.default_rng(20)
SHAPE = (2, 5, 7, 33)
#: Next to the first one of an operator.
OPSETS = (7, 10, 11, 12, 13, 17, 18, 22, 25)
Case = tuple[list[Any], tuple[int, ...], int, dict[str, Any]]


def data(*shape: int, dtype: str = "float32") -> Any:
    return RNG.normal(0, 3, shape).astype(dtype)


def positive(*shape: int, dtype: str = "float32") -> Any:
    return (np.abs(data(*shape)) + 0.5).astype(dtype)


def case(*inputs: Any, constants: tuple[int, ...] = (), outputs: int = 1, **attributes: Any) -> Case:
    return list(inputs), constants, outputs, attributes


def unary(op_type: str, opset: int) -> Iterator[Case]:
    for dtype in ("float32", "float16", "float64") if opset >= 13 else ("float32",):
        yield case(data(*SHAPE, dtype=dtype))


def parametric(op_type: str, opset: int) -> Iterator[Case]:
    yield case(data(*SHAPE))
    yield case(data(*SHAPE), alpha=0.3)


def binary(op_type: str, opset: int) -> Iterator[Case]:
    for dtype in ("float32", "int32", "int64", "float64") + (("uint8", "int8", "float16") if opset >= 14 else ()):
        yield case(data(3, 37, 41, dtype=dtype), positive(37, 1, dtype=dtype))


def variadic(op_type: str, opset: int) -> Iterator[Case]:
    for count in (1, 2, 3, 5):
        yield case(*(data(3, 37, 41) for _ in range(count)))
    yield case(data(41), data(1, 37, 1), data(3, 37, 41), constants=(0, 2))


def comparison(op_type: str, opset: int) -> Iterator[Case]:
    for dtype in ("float32",) if opset < 11 else ("float32", "int32", "int64"):
        yield case(RNG.integers(0, 2, (3, 4)).astype(dtype), RNG.integers(0, 2, (4,)).astype(dtype))


def logic(op_type: str, opset: int) -> Iterator[Case]:
    yield case(data(3, 4) > 0, *([data(4) > 0] if op_type != "Not" else []))


def clip(op_type: str, opset: int) -> Iterator[Case]:
    if opset < 11:
        for bounds in ({"min": -1.0, "max": 2.0}, {"min": 0.3}, {"max": 0.3}, {}):
            yield case(data(3, 37), **bounds)
        return
    for dtype in ("float32", "float16", "int8", "int32") if opset >= 12 else ("float32",):
        low, high = np.array(-1, dtype), np.array(2, dtype)
        for limits in ((low, high), (None, high), (low, None), (None, None)):
            yield case(data(3, 37, dtype=dtype), *limits, constants=(1, 2))


def softmax(op_type: str, opset: int) -> Iterator[Case]:
    for axis in (0, 1, 2, 3) + ((-1, -2) if opset >= 11 else ()):
        yield case(data(*SHAPE), axis=axis)
    yield case(data(4, 9))
    yield case(data(4, 9), free=True)
    yield case(data(2, 3, 4, 5), axis=1, free=True)


def reduction(op_type: str, opset: int) -> Iterator[Case]:
    has_input = opset >= (13 if op_type == "ReduceSum" else 18)
    for axes in (None, [0], [1, 3], [-1], [0, 1, 2, 3]):
        if axes and axes[0] < 0 and opset < 11:
            continue
        for keepdims in (0, 1):
            for dtype in ("float32", "int32"):
                x = positive(*SHAPE, dtype=dtype)
                if has_input:
                    yield case(x, *([np.array(axes)] if axes else []), constants=(1,), keepdims=keepdims, free=axes == [0])
                else:
                    yield case(x, keepdims=keepdims, **({"axes": axes} if axes else {}))
    if has_input and op_type in ("ReduceSum", "ReduceMean", "ReduceMax"):
        yield case(positive(*SHAPE), np.array([], np.int64), constants=(1,), noop_with_empty_axes=1)


def search(op_type: str, opset: int) -> Iterator[Case]:
    for axis in (0, 1, 2):
        for dtype in ("float32", "int32") + (("int8", "uint8") if opset >= 13 else ()):
            yield case(RNG.integers(0, 9, (3, 7, 5)).astype(dtype), axis=axis, keepdims=axis % 2)


def top_k(op_type: str, opset: int) -> Iterator[Case]:
    if opset < 10:
        yield case(data(3, 17), k=4, outputs=2)
        return
    for dtype in ("float32", "float64", "int64", "int32") if opset >= 11 else ("float32",):
        yield case(data(3, 17, dtype=dtype), np.array([4]), constants=(1,), outputs=2)
    yield case(data(3, 17), np.array([4]), outputs=2)


def batch_norm(op_type: str, opset: int) -> Iterator[Case]:
    for shape in ((2, 5, 7, 3), (4, 5), (2, 5, 9)):
        yield case(data(*shape), data(5), data(5), data(5), positive(5), constants=(1, 2, 3, 4), epsilon=0.01)


def layer_norm(op_type: str, opset: int) -> Iterator[Case]:
    for axis in (-1, 1, 2, 0):
        sizes = (2, 5, 7)[axis:]
        yield case(data(2, 5, 7), data(*sizes), axis=axis)
        if op_type == "LayerNormalization":
            yield case(data(2, 5, 7), data(*sizes), data(*sizes), axis=axis, epsilon=0.01)


def single(*cases: Case) -> Any:
    return lambda op_type, opset: iter(cases)


_UNARY = (
    "Abs Neg Exp Log Sqrt Reciprocal Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Round Floor Ceil Sign Relu HardSwish Sigmoid Tanh "
    "Softplus Softsign Mish Gelu IsNaN IsInf Identity Dropout LpNormalization Selu"
)
FAMILIES: dict[str, Any] = {
    **dict.fromkeys(_UNARY.split(), unary),
    **dict.fromkeys("LeakyRelu Elu Celu ThresholdedRelu HardSigmoid".split(), parametric),
    **dict.fromkeys("Add Sub Mul Div Pow".split(), binary),
    **dict.fromkeys("Sum Max Min Mean".split(), variadic),
    **dict.fromkeys("Equal Greater GreaterOrEqual Less LessOrEqual".split(), comparison),
    **dict.fromkeys("And Or Xor Not".split(), logic),
    **dict.fromkeys(("Softmax", "LogSoftmax"), softmax),
    **dict.fromkeys([f"Reduce{n}" for n in "Mean Sum Prod Max Min L1 L2 SumSquare LogSum LogSumExp".split()], reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), search),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), layer_norm),
    "Clip": clip,
    "TopK": top_k,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": single(case(data(2, 5, 7, 3), data(5), data(5), epsilon=0.01)),
    "GroupNormalization": single(case(data(2, 6, 7, 3), data(6), data(6), num_groups=3)),
    "PRelu": single(case(data(2, 3, 4), data(3, 1)), case(data(2, 3, 4), data(1), constants=(1,))),
    "Where": single(*(case(data(3, 4) > 0, data(3, 4, dtype=t), data(4, dtype=t)) for t in ("float32", "uint8", "int64"))),
    "Mod": single(
        case(data(3, 4, dtype="int32"), positive(4, dtype="int32") + 1),
        case(data(5, dtype="int8"), np.int8([3, -3, 2, 5, -7])),
        case(data(3), np.float32([0.5, -0.3, 2]), fmod=1),
        case(data(5, dtype="int64"), np.int64([3, -3, 2, 5, -7]), fmod=1),
    ),
    "Cast": single(*(case(data(3, 4), to=to) for to in (6, 7, 9, 10, 11, 3))),
    "CastLike": single(case(data(3, 4), np.array([1], np.int32))),
    "CumSum": single(*(case(data(3, 7), np.array(axis), constants=(1,), exclusive=axis % 2, reverse=axis > 0) for axis in (0, 1, -1))),
    "CumProd": single(
        *(case(np.round(2 * data(3, 7)), np.array(axis), constants=(1,), exclusive=axis % 2, reverse=axis > 0) for axis in (0, 1, -1))
    ),
    "Hardmax": single(*(case(data(3, 4, 5), axis=axis) for axis in (0, 1, -1))),
    "BitwiseNot": single(*(case(data(3, 4, dtype=t)) for t in ("int8", "int32", "uint8"))),
    "TensorScatter": single(
        *(case(data(2, 3, 6, 4), data(2, 3, 2, 4), np.array([1, start]), mode=mode) for mode, start in (("linear", 4), ("circular", 5))),
        case(data(1, 6, 4), data(1, 2, 4), np.array([3]), axis=1),
        case(data(2, 6, 4), data(2, 2, 4), axis=-2),
        case(np.arange(256).reshape(2, 8, 16).astype(np.int8), -np.arange(64).reshape(2, 2, 16).astype(np.int8), np.array([6, 0])),
    ),
    "Einsum": single(
        case(data(2, 3, 4), data(2, 4, 5), equation="bij,bjk->bik"),
        case(data(3, 3), equation="ii->i"),
        case(data(2, 3, 4), data(4, 5), equation="...j,jk"),
    ),
}
#: Nodes that no canonical operator expresses: they go through unchanged.
CARRIED: list[tuple[str, int, Case]] = [
    ("Clip", 13, case(data(3, 4), np.array(-1, np.float32), np.array(1, np.float32))),
    ("IsInf", 20, case(data(3), detect_negative=0)),
    ("ArgMax", 13, case(data(3, 4), select_last_index=1)),
    ("ReduceL1", 18, case(data(3, 4), noop_with_empty_axes=1)),
    ("CumSum", 14, case(data(3, 4), np.array(1))),
    ("Dropout", 13, case(data(3, 4), outputs=2)),
    ("LayerNormalization", 17, case(data(3, 4), data(4), data(4), outputs=3)),
    ("BatchNormalization", 15, case(data(3, 4), data(4), data(4), data(4), positive(4), outputs=3, training_mode=1)),
]


def first_opset(op_type: str) -> int:
    from onnx import defs

    versions = [s.since_version for s in defs.get_all_schemas_with_history() if s.name == op_type and s.domain == ""]
    return 21 if op_type == "GroupNormalization" else min(versions)


def both(op_type: str, opset: int, given: Case, target: int = 0) -> tuple[list[Any], list[Any], set[str]] | None:
    """Outputs before and after, and the kinds in between; None if onnxruntime does not have the node."""
    inputs, constants, outputs, attributes = given
    model = node_model(op_type, opset, inputs, constants, outputs, **attributes)
    values = feeds(inputs, constants)
    try:
        before = session(model.SerializeToString()).run(None, values)
    except Exception:  # onnxruntime's errors share no class but Exception
        return None
    graph = onnx_graph(model.SerializeToString(), op_type)
    written = build(graph, target, {})
    return before, session(written.SerializeToString()).run(None, values), {op.kind for op in graph.ops}


@pytest.mark.parametrize("op_type", FAMILIES)
def test_every_opset_comes_back_equal(op_type: str) -> None:
    ran = 0
    first = first_opset(op_type)
    for opset in sorted({opset for opset in (first, *OPSETS) if opset >= max(first, 7)}):
        for given in FAMILIES[op_type](op_type, opset):
            found = both(op_type, opset, given)
            if found is None:
                continue
            before, after, kinds = found
            shapes = [getattr(value, "shape", None) for value in given[0]]
            assert "Opaque" not in kinds, (op_type, opset, shapes, given[3])
            assert equal(before, after), (op_type, opset, shapes, given[3])
            ran += 1
    assert ran


@pytest.mark.parametrize(
    "op_type", [op_type for op_type in FAMILIES if op_type not in ("CastLike", "GroupNormalization", "RMSNormalization")]
)
def test_other_opsets_mean_the_same(op_type: str) -> None:
    """Written at the newest opset, and at opset 13 where the operator is that old: inputs become attributes and the reverse."""
    first = first_opset(op_type)
    ran = 0
    for opset, target in ((max(first, 13), 25), (25, max(first, 13))):
        for given in FAMILIES[op_type](op_type, opset):
            if given[0][0].dtype.name not in ("float32", "int32", "int64", "bool"):  # opsets differ in the other types, onnxruntime too
                continue
            found = both(op_type, opset, given, target)
            if found is not None:
                assert equal(found[0], found[1]), (op_type, opset, target, given[3])
                ran += 1
    assert ran


@pytest.mark.parametrize("name", NETWORKS)
def test_float_networks_come_back_equal(name: str) -> None:
    data = build_network(name, NETWORKS[name]).SerializeToString()
    inputs = random_inputs(data, 1)
    written = build(onnx_graph(data, name), 0, {})
    assert equal(session(data).run(None, inputs), session(written.SerializeToString()).run(None, inputs))


@pytest.mark.cross_section
@pytest.mark.parametrize(("op_type", "opset", "given"), CARRIED, ids=[f"{op_type}-{opset}" for op_type, opset, _ in CARRIED])
def test_what_no_kind_expresses_is_carried(op_type: str, opset: int, given: Case) -> None:
    found = both(op_type, opset, given)
    assert found is not None
    before, after, kinds = found
    assert kinds == {"Opaque"}
    assert equal(before, after)


@pytest.mark.parametrize(
    ("op_type", "opset", "given"),
    [
        ("Mish", 18, case(data(2, 50))),
        ("Gelu", 20, case(data(2, 50))),
        ("Gelu", 20, case(data(2, 50), approximate="tanh")),
        ("HardSwish", 14, case(data(2, 50))),
        ("LayerNormalization", 17, case(data(2, 5, 7), data(5, 7), data(5, 7), axis=1)),
        ("RMSNormalization", 23, case(data(2, 5, 7), data(7))),
        ("GroupNormalization", 21, case(data(2, 6, 7, 3), data(6), data(6), num_groups=3)),
        ("TensorScatter", 24, case(data(2, 6, 4), data(2, 2, 4), np.array([1, 5]), mode="circular")),
        ("TensorScatter", 24, case(data(1, 6, 4), data(1, 2, 4), np.array([4]), axis=1)),
    ],
)
def test_older_opsets_get_the_definition(op_type: str, opset: int, given: Case) -> None:
    for target in (13, opset - 1):
        found = both(op_type, opset, given, target)
        assert found is not None
        for before, after in zip(found[0], found[1], strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_per_group_scales_of_opset_18_are_no_canonical_group_normalization() -> None:
    given = case(data(2, 6, 7), data(3), data(3), num_groups=3)
    found = both("GroupNormalization", 18, given)
    assert found is not None
    assert found[2] == {"Opaque"}
    assert equal(found[0], found[1])
    with refused(UnsupportedError, "opset-differs", holds=("GroupNormalization", 18)):
        both("GroupNormalization", 18, given, 21)


def test_every_kind_is_written() -> None:
    """By a writer, or by a formula; Calls and Whiles become others in the writer, states inputs and outputs."""
    unwritten = set(KINDS) - set(WRITERS) - set(FORMULAS)
    assert unwritten == {"ReadState", "WriteState", "Call", "While"}, "a kind has a writer in formats/onnx/ops, or a formula"
    assert set(WRITERS) <= set(KINDS)
    assert set(FAMILIES) <= set(READERS)


def test_what_is_written_and_read_by_the_name_of_a_kind_has_its_operands_and_attributes() -> None:
    """But for activations and layouts, which ONNX writes with other nodes."""
    for name, write in same_named.WRITERS.items():
        schema, kind = defs.get_schema(name, HIGHEST_OPSET, ""), KINDS[name]
        if READERS[name] is same_named.read_same_named:
            assert schema.attributes.keys() <= kind.attributes.keys(), name
        if WRITERS[name] is write:
            assert kind.attributes.keys() - schema.attributes.keys() <= {"activation", "data_format"}, name
            assert (schema.min_input, min(schema.max_input, 99)) == (kind.inputs[0], kind.inputs[1] % 100), name
