"""evaluate_constant: the bits that onnxruntime gives, and nothing where that is not sure or too large."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from evaluate.evaluation import runtime
from hypothesis import given, settings
from hypothesis import strategies as st

from qconvert.evaluate.folding import LARGEST, evaluate_constant
from qconvert.graph import Array, Op, Quantization, Tensor, canonical_dtype
from qconvert.operators import KINDS

F = np.float32
RNG = np.random.default_rng(3)


def fold(kind: str, *values: Array | None, tensors: tuple[Tensor, ...] = (), outputs: int = 1, **attributes: Any) -> list[Array] | None:
    names = tuple("" if value is None else f"x{i}" for i, value in enumerate(values))
    known = {f"x{i}": Tensor(f"x{i}", canonical_dtype(v.dtype), v.shape) for i, v in enumerate(values) if v is not None}
    known.update({tensor.name: tensor for tensor in tensors})
    return evaluate_constant(Op(kind, names, tuple(f"y{i}" for i in range(outputs)), attributes), known, values)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


BIG = np.concatenate([RNG.normal(0, 3, 500), [1e-40, 3e38, -3e38, np.inf]]).astype(F)
OTHER = np.concatenate([RNG.normal(0, 3, 500), [1e-3, 7.0, 1.5, 2.0]]).astype(F)
CUBE = RNG.normal(0, 1, (2, 3, 4)).astype(F)

SAME = [
    *[(kind, (BIG, OTHER), {}) for kind in "Add Sub Mul Div Max Min Equal Greater GreaterOrEqual Less LessOrEqual".split()],
    *[(kind, (ints(7, -7, 6, -8), ints(2, 2, -3, 3)), {}) for kind in "Add Sub Mul Div Max Min Equal Greater Less".split()],
    *[(kind, (BIG,), {}) for kind in "Neg Abs".split()],
    ("Sqrt", (np.abs(BIG),), {}),
    ("Where", (OTHER > 0, BIG, OTHER), {}),
    ("And", (OTHER > 0, BIG > 0), {}),
    ("Not", (OTHER > 0,), {}),
    ("Reshape", (CUBE, ints(4, -1)), {}),
    ("Reshape", (CUBE, ints(0, 12)), {}),
    ("Squeeze", (CUBE[:1], ints(0)), {}),
    ("Unsqueeze", (CUBE, ints(0, -1)), {}),
    ("Transpose", (CUBE,), {"perm": (2, 0, 1)}),
    ("Slice", (CUBE, ints(2, -1), ints(0, -(2**63)), ints(1, 2), ints(-1, -2)), {}),
    ("Concat", (CUBE, CUBE[:1]), {"axis": 0}),
    ("Gather", (CUBE, np.array([[1, -1], [0, 1]])), {"axis": 1}),
    ("Expand", (F(3).reshape(1), ints(5, 1)), {}),
    ("Tile", (CUBE, ints(1, 2, 3)), {}),
    ("Pad", (CUBE, ints(1, 0, 0, 0, 2, 1), np.array(F(2.5))), {}),
    ("Shape", (CUBE,), {}),
    ("Range", (np.array(3), np.array(-9), np.array(-4)), {}),
    ("Range", (np.array(F(2)), np.array(F(11.5)), np.array(F(3))), {}),
    ("Identity", (CUBE,), {}),
    ("Clip", (OTHER, np.array(F(-1)), np.array(F(2))), {}),
    ("ReduceSum", (np.arange(24).reshape(2, 3, 4), ints(0, 2)), {"keepdims": 0}),
    ("ReduceProd", (ints(3, 4, 5),), {}),
]


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("kind", "values", "attributes"), SAME, ids=[f"{kind}-{i}" for i, (kind, _, _) in enumerate(SAME)])
def test_the_bits_of_onnxruntime(kind: str, values: tuple[Array, ...], attributes: dict[str, Any]) -> None:
    expected = runtime(kind, values, **attributes)
    if kind == "ReduceProd":
        values = (*values, ints(0))
        expected = runtime(kind, values, **attributes)
    found = fold(kind, *values, **attributes)
    assert found is not None
    assert found[0].dtype == expected[0].dtype and found[0].shape == expected[0].shape
    assert found[0].tobytes() == expected[0].tobytes()


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("data", "to", "code"),
    [(BIG[:-4], "float16", 10), (BIG[:-4], "int32", 6), (ints(2**53 + 1, 2**24 + 1), "float32", 1), (ints(0, 3, -1), "bool", 9),
     (BIG[:-4] > 0, "float32", 1), (OTHER.astype(np.float64) / 3, "float32", 1), (np.uint8([0, 255]), "int64", 7)],
)  # fmt: skip
def test_casts(data: Array, to: str, code: int) -> None:
    (expected,) = runtime("Cast", [data], to=code)
    found = fold("Cast", data, to=to)
    assert found is not None and found[0].tobytes() == expected.tobytes()


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("dtype", "points"), [("int8", (-3, 4)), ("uint8", (128, 0)), ("int16", (0, 77))])
def test_quantize_and_dequantize(dtype: str, points: tuple[int, int]) -> None:
    scales, zeros = F([0.037, 0.5]), np.array(points, dtype)
    x = np.stack([BIG, np.round(OTHER * 8) / 8])  # the second row has ties
    x[~np.isfinite(x)] = 5
    y = Tensor("y0", dtype, None, None, Quantization.per_axis(scales, 0, zeros))
    found = fold("Quantize", x, tensors=(y,))
    (expected,) = runtime("QuantizeLinear", [x, scales, zeros], axis=0)
    assert found is not None and np.array_equal(found[0], expected)
    back = fold("Dequantize", expected, tensors=(Tensor("x0", dtype, None, None, y.quantization), Tensor("y0", "float32", None)))
    (wanted,) = runtime("DequantizeLinear", [expected, scales, zeros], axis=0)
    assert back is not None and back[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("low", "high", "wanted"), [(-10, 5, (-7, 8)), (None, 5, (-128, 8)), (-1.2, 5, None)])
def test_integers_are_clipped_between_numbers_of_their_quantization(low: float | None, high: float, wanted: tuple[int, int] | None) -> None:
    quantization = Quantization.per_tensor(0.05, 3)
    values = np.arange(-128, 128).astype(np.int8)
    limits = [None if steps is None else np.array(F(steps) * quantization.scale[0]) for steps in (low, high)]
    tensors = tuple(Tensor(name, "int8", (256,), None, quantization) for name in ("x0", "y0"))
    found = fold("Clip", values, *limits, tensors=tensors)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert np.array_equal(found[0], np.clip(values, *wanted))


@pytest.mark.onnxruntime
def test_an_int32_bias_is_dequantized_in_float32() -> None:
    data, scale = np.array([2**24 + 1, -(2**31), 12345679], np.int32), np.array(F(0.00123))
    found = fold("Dequantize", data, tensors=(Tensor("x0", "int32", None, None, Quantization.per_tensor(float(scale))),))
    (wanted,) = runtime("DequantizeLinear", [data, scale])
    assert found is not None and found[0].tobytes() == wanted.tobytes()


HUGE = [
    ("Expand", (np.zeros(1, F), ints(2**20, 2**20)), {}),
    ("Expand", (np.zeros(1, F), ints(2**62, 2**62)), {}),
    ("Tile", (np.zeros(8, np.int8), ints(2**40)), {}),
    ("Range", (np.array(0), np.array(2**62), np.array(1)), {}),
    ("Range", (np.array(0.0), np.array(1e308), np.array(1e-308)), {}),
    ("Pad", (np.zeros(8, F), ints(2**40, 2**40)), {}),
    ("Gather", (np.zeros((1, 2**20), F), np.zeros(2**10, np.int64)), {"axis": 0}),
    ("Reshape", (np.zeros(0, F), ints(2**62, 2**62, 0)), {}),
    ("Unsqueeze", (np.zeros(1, F), ints(*range(2**16))), {}),
    ("Add", (np.zeros((2**14, 1), F), np.zeros((1, 2**14), F)), {}),
]


@pytest.mark.parametrize(("kind", "values", "attributes"), HUGE, ids=[f"{kind}-{i}" for i, (kind, _, _) in enumerate(HUGE)])
def test_what_would_be_huge_is_refused_at_once(kind: str, values: tuple[Array, ...], attributes: dict[str, Any]) -> None:
    started = time.perf_counter()
    assert fold(kind, *values, **attributes) is None
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("kind", "values", "attributes"),
    [
        ("Add", (np.zeros(3, F), np.zeros(4, F)), {}),
        ("Add", (np.zeros(3, F), np.zeros(3, np.int32)), {}),
        ("Div", (ints(1), ints(0)), {}),
        ("Div", (ints(-(2**63)), ints(-1)), {}),
        ("Max", (F([np.nan]), F([1])), {}),
        ("Max", (F([-0.0]), F([0.0])), {}),
        ("Cast", (F([300]),), {"to": "uint8"}),
        ("Cast", (F([np.nan]),), {"to": "int32"}),
        ("Cast", (F([1]),), {"to": "nonsense"}),
        ("Cast", (F([1]),), {}),
        ("Gather", (np.zeros(3, F), ints(3)), {}),
        ("Reshape", (np.zeros(3, F), ints(4)), {}),
        ("Concat", (np.zeros(3, F), np.zeros(3, np.int8)), {"axis": 0}),
        ("Concat", (np.zeros(3, F),), {"axis": 7}),
        ("Transpose", (np.zeros((3, 4), F),), {"perm": (0, 0)}),
        ("Range", (np.array(F(0)), np.array(F(1)), np.array(F(0.1))), {}),
        ("Pad", (np.zeros(3, F), ints(1, 1)), {"mode": "reflect"}),
        ("Exp", (np.zeros(3, F),), {}),
        ("Quantize", (np.zeros(3, F),), {}),
        ("Add", (np.zeros(3, F), None), {}),
        ("Concat", (None, None), {"axis": 0}),
    ],
)  # fmt: skip
def test_what_is_not_sure_is_not_folded(kind: str, values: tuple[Array | None, ...], attributes: dict[str, Any]) -> None:
    assert fold(kind, *values, **attributes) is None


def test_a_shape_needs_no_value() -> None:
    op = Op("Shape", ("x",), ("y",))
    found = evaluate_constant(op, {"x": Tensor("x", "float32", (1, 3, 8)), "y": Tensor("y", "int64", (3,))}, [None])
    assert found is not None and found[0].tolist() == [1, 3, 8]
    assert evaluate_constant(op, {"x": Tensor("x", "float32", ("n", 3))}, [None]) is None


def test_small_results_may_grow_more() -> None:
    found = fold("Expand", np.array([F(0.5)]), ints(4096))
    assert found is not None and found[0].shape == (4096,)
    assert fold("Expand", np.zeros(2**20, F), ints(20, 2**20)) is None
    assert LARGEST == 64 * 2**20


DTYPES = ["float32", "float16", "float64", "int8", "uint8", "int32", "int64", "uint64", "bool"]
FOLDED = sorted(name for name, kind in KINDS.items() if kind.fold is not None)


@pytest.mark.property
@settings(max_examples=600)
@given(data=st.data())
def test_operators_on_anything_give_arrays_of_their_type_or_nothing(data: st.DataObject) -> None:
    """Attributes and inputs that need not fit together: never an error, never more than LARGEST."""
    kind = data.draw(st.sampled_from(FOLDED))
    numbers = st.integers(-3, 5) | st.sampled_from([2**31, 2**62, -(2**63)])
    values: list[Array | None] = []
    for _ in range(data.draw(st.integers(0, 5))):
        dtype = data.draw(st.sampled_from(DTYPES))
        shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
        drawn = [data.draw(numbers) for _ in range(int(np.prod(shape)) % 5 or 1)]
        with np.errstate(over="ignore"):
            values.append(np.resize(np.array(drawn), shape).astype(dtype))
    attributes = {name: data.draw(numbers) for name in KINDS[kind].attributes if name not in ("perm", "to", "mode", "activation")}
    if "perm" in KINDS[kind].attributes:
        attributes["perm"] = tuple(data.draw(st.lists(numbers, max_size=4)))
    if "to" in KINDS[kind].attributes:
        attributes["to"] = data.draw(st.sampled_from([*DTYPES, "int4", "bfloat16", "string", "unknown", "?"]))
    quantization = Quantization.per_tensor(0.5, 1) if data.draw(st.booleans()) else None
    known = tuple(Tensor(f"x{i}", canonical_dtype(v.dtype), v.shape, None, quantization) for i, v in enumerate(values) if v is not None)
    found = fold(kind, *values, tensors=known, outputs=data.draw(st.integers(1, 3)), **attributes)
    assert found is None or sum(array.nbytes for array in found) <= LARGEST
