"""Every operator of the TFLite reader, as a model of its own, in LiteRT and, converted, in onnxruntime.

A case is (operator, options, inputs, outputs, allowed difference, kernels). Inputs without data get random values. The allowed
difference is in steps of stored integers, or relative for floats; where facts about the kernels promise equality, it is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from differential import compare
from tflite_models import TensorSpec, single_op

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

FLOAT = 2e-6


class Case(NamedTuple):
    builtin: str
    options: Mapping[str, Any] | None
    inputs: list[TensorSpec | None]
    outputs: list[TensorSpec]
    allowed: float = 0.0
    kernels: str = "default"
    note: str = ""
    custom: bool = False


def q(name: str, *shape: int, dtype: str = "int8", scale: float = 0.05, zero: int = 3) -> TensorSpec:
    """A quantized activation."""
    return TensorSpec(name, shape, dtype, scale, zero + 128 if dtype == "uint8" else 0 if dtype == "int16" else zero)


def f(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    """Plain numbers."""
    return TensorSpec(name, shape, dtype)


def c(name: str, values: Any, dtype: str = "int32", **more: Any) -> TensorSpec:
    """A constant."""
    data = np.array(values, None if dtype in ("int4", "bfloat16") else dtype)
    return TensorSpec(name, data.shape, dtype, data=data, **more)


def unary() -> Iterator[Case]:
    float_only = "EXP LOG SQRT RSQRT SQUARE SIN COS ROUND FLOOR CEIL SIGN ABS NEG ELU GELU HARD_SWISH LOGISTIC TANH".split()
    for name in float_only:
        yield Case(
            name, {"approximate": True} if name == "GELU" else None, [f("x", 2, 3, 4)], [f("y", 2, 3, 4)], 2e-5 if name == "GELU" else 4e-6
        )
    yield Case("GELU", {"approximate": False}, [f("x", 5)], [f("y", 5)], 2e-5, note="erf")
    for name in ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"):
        yield Case(name, None, [f("x", 7, 5)], [f("y", 7, 5)])
        yield Case(name, None, [q("x", 7, 50, zero=-5)], [q("y", 7, 50, zero=-5)], note="same scale")
    for name in ("RELU", "RELU6", "RELU_N1_TO_1"):
        yield Case(name, None, [q("x", 7, 50)], [q("y", 7, 50, scale=0.03, zero=-100)], 1, note="other scale")
    for dtype in ("int8", "uint8"):
        yield Case("TANH", None, [q("x", 256, dtype=dtype)], [q("y", 256, dtype=dtype, scale=1 / 128, zero=0)], note=dtype)
        low = TensorSpec("y", (256,), dtype, 1 / 256, -128 if dtype == "int8" else 0)
        yield Case("LOGISTIC", None, [q("x", 256, dtype=dtype)], [low], note=dtype)
        yield Case("HARD_SWISH", None, [q("x", 500, dtype=dtype)], [q("y", 500, dtype=dtype, scale=0.04)], 1, note=dtype)
        yield Case("LEAKY_RELU", {"alpha": 0.2}, [q("x", 500, dtype=dtype)], [q("y", 500, dtype=dtype, scale=0.04)], 1, note=dtype)
        yield Case(
            "SOFTMAX",
            {"beta": 1.0},
            [q("x", 4, 30, dtype=dtype)],
            [TensorSpec("y", (4, 30), dtype, 1 / 256, low.zero_point)],
            1,
            note=dtype,
        )
        yield Case(
            "QUANTIZE", None, [q("x", 500, dtype=dtype)], [q("y", 500, dtype=dtype, scale=0.07, zero=9)], 1, note=f"requantize {dtype}"
        )
        yield Case("QUANTIZE", None, [f("x", 40, 50)], [q("y", 40, 50, dtype=dtype)], 1, note=dtype)
        yield Case("DEQUANTIZE", None, [q("x", 500, dtype=dtype)], [f("y", 500)], FLOAT, note=dtype)
    yield Case("QUANTIZE", None, [q("x", 256, dtype="uint8")], [q("y", 256)], note="uint8 to int8")
    yield Case("LEAKY_RELU", {"alpha": 0.2}, [f("x", 500)], [f("y", 500)], FLOAT)
    yield Case("PRELU", None, [f("x", 1, 4, 5, 3), c("a", [[[0.1, 0.2, 0.3]]], "float32")], [f("y", 1, 4, 5, 3)], FLOAT)
    yield Case("SOFTMAX", {"beta": 0.5}, [f("x", 4, 30)], [f("y", 4, 30)], 4e-6, note="beta")
    yield Case("LOG_SOFTMAX", None, [f("x", 4, 30)], [f("y", 4, 30)], 4e-6)
    yield Case("LOG_SOFTMAX", None, [q("x", 4, 30)], [TensorSpec("y", (4, 30), "int8", 16 / 256, 127)], 1, note="int8")
    yield Case("L2_NORMALIZATION", {}, [f("x", 4, 30)], [f("y", 4, 30)], 4e-6)
    yield Case("L2_NORMALIZATION", {}, [q("x", 4, 30, zero=0)], [TensorSpec("y", (4, 30), "int8", 1 / 128, 0)], 1, note="int8")
    yield Case("LOGICAL_NOT", None, [f("x", 9, dtype="bool")], [f("y", 9, dtype="bool")])
    yield Case("CAST", {}, [f("x", 9)], [f("y", 9, dtype="int32")])


def binary() -> Iterator[Case]:
    for name in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD"):
        options: Any = {} if name in ("ADD", "SUB", "MUL", "DIV") else None
        yield Case(name, options, [f("a", 2, 3, 4), f("b", 3, 1)], [f("y", 2, 3, 4)], FLOAT, note="broadcast")
        if name != "SQUARED_DIFFERENCE":
            yield Case(name, options, [f("a", 40, dtype="int32"), c("b", [3, -4, 5, 7] * 10)], [f("y", 40, dtype="int32")], note="int32")
    for dtype in ("int8", "uint8"):
        for name in ("ADD", "SUB", "MUL"):
            for act in (0, 1, 3):
                out = q("y", 2, 30, 40, dtype=dtype, scale=0.09, zero=-7)
                allowed = 0 if name == "ADD" else 1
                a, b = q("a", 2, 30, 40, dtype=dtype), q("b", 1, 40, dtype=dtype, scale=0.031, zero=-11)
                yield Case(name, {"fusedActivationFunction": act}, [a, b], [out], allowed, note=f"{dtype} activation {act}")
        for name in ("MAXIMUM", "MINIMUM"):
            yield Case(name, None, [q("a", 50, dtype=dtype), q("b", 50, dtype=dtype)], [q("y", 50, dtype=dtype)], note=dtype)
    yield Case("SQUARED_DIFFERENCE", None, [q("a", 50), q("b", 50, scale=0.02)], [q("y", 50, scale=0.3, zero=-128)], 1, note="int8")
    yield Case("ADD", {}, [f("a", 1, 2, 2, 3, 4), f("b", 4)], [f("y", 1, 2, 2, 3, 4)], FLOAT, note="rank 5")
    yield Case("POW", None, [c("a", [[1.5, 2.0, 0.5]], "float32"), f("b", 4, 3)], [f("y", 4, 3)], 4e-6)
    for name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
        yield Case(name, None, [f("a", 40, dtype="int32"), f("b", 40, dtype="int32")], [f("y", 40, dtype="bool")], note="int32")
        yield Case(name, None, [f("a", 3, 4), f("b", 4)], [f("y", 3, 4, dtype="bool")], note="float")
        yield Case(name, None, [q("a", 90), q("b", 90)], [f("y", 90, dtype="bool")], note="int8")
        small = TensorSpec("b", (), "int8", 4e-9, 0, data=np.int8(0))
        yield Case(name, None, [q("a", 90, scale=0.002, zero=-16), small], [f("y", 90, dtype="bool")], note="int8 and a small number")
    for name in ("LOGICAL_AND", "LOGICAL_OR"):
        yield Case(name, None, [f("a", 30, dtype="bool"), f("b", 30, dtype="bool")], [f("y", 30, dtype="bool")])
    yield Case("SELECT", None, [f("c", 4, dtype="bool"), f("a", 4, 3), f("b", 4, 3)], [f("y", 4, 3)], note="rows")
    for tensor in (f, q):
        yield Case(
            "SELECT_V2", None, [f("c", 4, 1, dtype="bool"), tensor("a", 4, 3), tensor("b", 4, 3)], [tensor("y", 4, 3)], note=tensor.__name__
        )


def reductions() -> Iterator[Case]:
    for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        for keep, shape in ((True, (2, 1, 1, 3)), (False, (2, 3))):
            yield Case(name, {"keepDims": keep}, [f("x", 2, 4, 5, 3), c("axes", [1, -2])], [f("y", *shape)], 1e-5, note=f"keep {keep}")
    for dtype in ("int8", "uint8"):
        yield Case(
            "MEAN",
            {"keepDims": True},
            [q("x", 1, 7, 7, 20, dtype=dtype), c("axes", [1, 2])],
            [q("y", 1, 1, 1, 20, dtype=dtype, scale=0.02)],
            1,
            note=dtype,
        )
        for name in ("REDUCE_MAX", "REDUCE_MIN"):
            yield Case(name, {"keepDims": False}, [q("x", 3, 50, dtype=dtype), c("axes", [1])], [q("y", 3, dtype=dtype)], note=dtype)
    yield Case("SUM", {"keepDims": False}, [q("x", 3, 20), c("axes", [1])], [q("y", 3, scale=0.4)], 1, note="int8")
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        yield Case(name, {"keepDims": False}, [f("x", 9, 3, dtype="bool"), c("axes", [1])], [f("y", 9, dtype="bool")])
    for exclusive in (False, True):
        yield Case(
            "CUMSUM",
            {"exclusive": exclusive, "reverse": exclusive},
            [f("x", 3, 5), c("axis", 1)],
            [f("y", 3, 5)],
            FLOAT,
            note=f"exclusive {exclusive}",
        )
    for name in ("ARG_MAX", "ARG_MIN"):
        options = {"outputType": 2}
        yield Case(name, options, [f("x", 4, 9), c("axis", 1)], [f("y", 4, dtype="int32")], note="float")
        yield Case(name, options, [q("x", 4, 900), c("axis", -1)], [f("y", 4, dtype="int32")], note="int8")
        yield Case(name, {"outputType": 4}, [q("x", 4, 9, dtype="uint8"), c("axis", 0)], [f("y", 9, dtype="int64")], note="uint8")
    yield Case("TOPK_V2", None, [f("x", 4, 9), c("k", 3)], [f("v", 4, 3), f("i", 4, 3, dtype="int32")])
    yield Case("TOPK_V2", None, [q("x", 4, 9), c("k", 3)], [q("v", 4, 3), f("i", 4, 3, dtype="int32")], note="int8")
    yield Case(
        "ONE_HOT", {"axis": -1}, [c("i", [0, 2, -1, 3, 7]), c("d", 4), c("on", 5.0, "float32"), c("off", 1.0, "float32")], [f("y", 5, 4)]
    )


def movement() -> Iterator[Case]:
    for tensor, note in ((f, "float"), (q, "int8"), (lambda *a: q(*a, dtype="uint8"), "uint8"), (lambda *a: q(*a, dtype="int16"), "int16")):
        x = tensor("x", 2, 3, 4, 5)
        yield Case("RESHAPE", {"newShape": np.array([6, 20], np.int32)}, [x, c("s", [6, -1])], [tensor("y", 6, 20)], note=note)
        yield Case("TRANSPOSE", {}, [x, c("p", [3, 1, 0, 2])], [tensor("y", 5, 3, 2, 4)], note=note)
        yield Case("EXPAND_DIMS", {}, [x, c("a", -1)], [tensor("y", 2, 3, 4, 5, 1)], note=note)
        yield Case("SQUEEZE", {"squeezeDims": np.array([-1, 0], np.int32)}, [tensor("x", 1, 4, 1)], [tensor("y", 4)], note=note)
        yield Case("CONCATENATION", {"axis": -1}, [tensor("a", 2, 3), tensor("b", 2, 4)], [tensor("y", 2, 7)], note=note)
        if note != "int16":
            yield Case("PACK", {"axis": 1, "valuesCount": 2}, [tensor("a", 2, 3), tensor("b", 2, 3)], [tensor("y", 2, 2, 3)], note=note)
            yield Case("UNPACK", {"axis": -1, "num": 2}, [tensor("x", 3, 2)], [tensor("a", 3), tensor("b", 3)], note=note)
        yield Case("SPLIT", {"numSplits": 2}, [c("a", 2), x], [tensor("u", 2, 3, 2, 5), tensor("v", 2, 3, 2, 5)], note=note)
        yield Case(
            "SPLIT_V", {"numSplits": 2}, [x, c("s", [1, -1]), c("a", 1)], [tensor("u", 2, 1, 4, 5), tensor("v", 2, 2, 4, 5)], note=note
        )
        yield Case("PAD", {}, [x, c("p", [[0, 0], [1, 2], [0, 0], [3, 0]])], [tensor("y", 2, 6, 4, 8)], note=note)
        for mode in (0, 1):
            yield Case(
                "MIRROR_PAD", {"mode": mode}, [tensor("x", 4, 5), c("p", [[1, 2], [0, 3]])], [tensor("y", 7, 8)], note=f"{note} {mode}"
            )
        if note in ("float", "int8"):
            yield Case("TILE", {}, [tensor("x", 2, 3), c("m", [2, 3])], [tensor("y", 4, 9)], note=note)
            yield Case("BROADCAST_TO", {}, [tensor("x", 3, 1), c("s", [2, 3, 4])], [tensor("y", 2, 3, 4)], note=note)
            yield Case("REVERSE_V2", {}, [tensor("x", 2, 3, 4), c("a", [2])], [tensor("y", 2, 3, 4)], note=note)
            yield Case("GATHER_ND", {}, [tensor("x", 4, 5), c("i", [[0, 1], [3, 4], [2, 2]])], [tensor("y", 3)], note=note)
            yield Case("SCATTER_ND", {}, [c("i", [[4], [1]]), tensor("u", 2, 3), c("s", [6, 3])], [tensor("y", 6, 3)], note=note)
        yield Case("SLICE", {}, [x, c("b", [0, 1, 2, 0]), c("s", [2, -1, 1, 4])], [tensor("y", 2, 2, 1, 4)], note=note)
        yield Case("GATHER", {"axis": 1}, [x, c("i", [2, 0])], [tensor("y", 2, 2, 4, 5)], note=note)
        yield Case("GATHER", {"axis": -1}, [x, c("i", [[2, 0], [1, 1]])], [tensor("y", 2, 3, 4, 2, 2)], note=f"{note} matrix")
    for note, tensor in (("float", f), ("uint8", partial(q, dtype="uint8")), ("int16", partial(q, dtype="int16"))):
        for time, batch, lengths in ((0, 1, [3, 1, 0]), (1, 0, [2, 3, 1, 0]), (2, 1, [4, 0, 2]), (3, 0, [5, 2, 1, 0])):
            x, n = tensor("x", 4, 3, 5, 5), c("n", lengths)
            axes = {"seqDim": time, "batchDim": batch}
            yield Case("REVERSE_SEQUENCE", axes, [x, n], [tensor("y", 4, 3, 5, 5)], note=f"{note} {time} {batch}")
    padding = TensorSpec("v", (1,), "int8", 0.05, 3, data=np.array([77], np.int8))
    yield Case("SCATTER_ND", {}, [c("i", [[4], [4]]), f("u", 2, 3), c("s", [6, 3])], [f("y", 6, 3)], FLOAT, note="repeated")
    yield Case("PADV2", {}, [q("x", 4, 5), c("p", [[1, 2], [0, 3]]), padding], [q("y", 7, 8)], note="int8")
    yield Case("PADV2", {}, [f("x", 4, 5), c("p", [[1, 2], [0, 3]]), c("v", [2.5], "float32")], [f("y", 7, 8)], note="float")
    yield Case("GATHER", {"axis": 1, "batchDims": 1}, [f("x", 2, 5, 3), c("i", [[4, 0], [1, 1]])], [f("y", 2, 2, 3)], note="batch")
    yield Case("SHAPE", {"outType": 2}, [f("x", 2, 3)], [f("y", 2, dtype="int32")])
    yield Case("FILL", {}, [c("d", [2, 3]), f("v")], [f("y", 2, 3)])
    yield Case(
        "CONCATENATION",
        {"axis": 1},
        [q("a", 2, 300, dtype="uint8"), q("b", 2, 40, dtype="uint8", scale=0.02)],
        [q("y", 2, 340, dtype="uint8", scale=0.06)],
        1,
        note="other scales",
    )
    nowhere = [1, 0, 0], [3, 0, 4], [1, 1, 2]
    for note, options, shape in (
        ("masks", {"beginMask": 1, "endMask": 2}, (3, 4, 2)),
        ("shrink", {"shrinkAxisMask": 2}, (2, 2)),
        ("new axis", {"newAxisMask": 2}, (2, 1, 2, 5)),
    ):
        yield Case(
            "STRIDED_SLICE",
            options,
            [q("x", 4, 4, 5), *(c(n, v) for n, v in zip(("b", "e", "s"), nowhere, strict=True))],
            [q("y", *shape)],
            note=note,
        )
    yield Case(
        "STRIDED_SLICE",
        {"ellipsisMask": 1},
        [f("x", 2, 3, 4), c("b", [0, 1]), c("e", [0, 3]), c("s", [1, 1])],
        [f("y", 2, 3, 2)],
        note="ellipsis",
    )
    yield Case("STRIDED_SLICE", {"endMask": 1}, [f("x", 7), c("b", [-1]), c("e", [0]), c("s", [-2])], [f("y", 4)], note="backwards")


def spatial() -> Iterator[Case]:
    for tensor, note in ((f, "float"), (q, "int8"), (lambda *a: q(*a, dtype="uint8"), "uint8")):
        yield Case("SPACE_TO_DEPTH", {"blockSize": 2}, [tensor("x", 1, 4, 6, 3)], [tensor("y", 1, 2, 3, 12)], note=note)
        yield Case("DEPTH_TO_SPACE", {"blockSize": 2}, [tensor("x", 1, 2, 3, 12)], [tensor("y", 1, 4, 6, 3)], note=note)
        yield Case(
            "SPACE_TO_BATCH_ND",
            {},
            [tensor("x", 1, 4, 5, 3), c("b", [2, 3]), c("p", [[0, 0], [1, 0]])],
            [tensor("y", 6, 2, 2, 3)],
            note=note,
        )
        yield Case(
            "BATCH_TO_SPACE_ND",
            {},
            [tensor("x", 6, 2, 2, 3), c("b", [2, 3]), c("p", [[0, 0], [1, 0]])],
            [tensor("y", 1, 4, 5, 3)],
            note=note,
        )
        for coordinates in ({}, {"alignCorners": True}, {"halfPixelCenters": True}):
            sizes = c("s", [7, 9])
            kinds = "".join(coordinates) or "asymmetric"
            yield Case(
                "RESIZE_NEAREST_NEIGHBOR", coordinates, [tensor("x", 1, 4, 5, 3), sizes], [tensor("y", 1, 7, 9, 3)], note=f"{note} {kinds}"
            )
            allowed = 3e-6 if note == "float" else 1
            yield Case(
                "RESIZE_BILINEAR", coordinates, [tensor("x", 1, 4, 5, 3), sizes], [tensor("y", 1, 7, 9, 3)], allowed, note=f"{note} {kinds}"
            )
        for padding in (0, 1):
            for kernel, stride in ((2, 2), (3, 1), (3, 2)):
                size = -(-8 // stride) if padding == 0 else (8 - kernel) // stride + 1
                options = {"padding": padding, "strideH": stride, "strideW": stride, "filterHeight": kernel, "filterWidth": kernel}
                x, y = [tensor("x", 1, 8, 8, 5)], [tensor("y", 1, size, size, 5)]
                kind = f"{note} {kernel}/{stride} padding {padding}"
                yield Case("MAX_POOL_2D", options, x, y, note=kind)
                exact = note != "float" and padding == 1
                yield Case("AVERAGE_POOL_2D", options, x, y, 0 if exact else 1 if note != "float" else FLOAT, note=kind)


CASES = [*unary(), *binary(), *reductions(), *movement(), *spatial()]


def random_value(tensor: TensorSpec, rng: np.random.Generator) -> Any:
    if tensor.dtype == "bool":
        return rng.integers(0, 2, tensor.shape).astype(bool)
    if tensor.dtype == "float32":
        return rng.uniform(0.05, 3, tensor.shape).astype(np.float32) * rng.choice(np.float32([1, 1, -1]), tensor.shape)
    if tensor.scale is None:
        return rng.integers(-9, 10, tensor.shape).astype(tensor.dtype)
    info = np.iinfo(tensor.dtype)
    return rng.integers(info.min, info.max + 1, tensor.shape).astype(tensor.dtype)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.builtin} {case.note}".strip() for case in CASES])
def test_operator(case: Case) -> None:
    rng = np.random.default_rng(7)
    data = single_op(case.builtin, case.options, case.inputs, case.outputs, custom=case.custom)
    free = [tensor for tensor in case.inputs if tensor is not None and tensor.data is None]
    positive = case.builtin in ("LOG", "SQRT", "RSQRT", "POW")
    for _ in range(3):
        inputs = [random_value(tensor, rng) for tensor in free]
        inputs = [np.abs(value) if positive else value for value in inputs]
        for item in compare(data, inputs, case.kernels):
            assert item.largest <= case.allowed
