"""Models with one operator for every TFLite operator, type and rank, and what the runtimes make of them.

`table(runtime)` is how fixtures/make_kernel_table.py finds qconvert/targets/kernel_table_tflite.py; a test repeats it. Each model runs in a
child process, since the micro interpreter ends the process on some of them, and its outputs are compared with the exact ones.

    python tests/targets/one_operator.py default            # prints the table as JSON
    python tests/targets/one_operator.py micro ADD PAD      # says what became of each model
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from tflite_models import TensorSpec, single_op

from qconvert.graph import numpy_dtype

QUANTIZED = ("int8", "uint8", "int16")
#: Types as the tables name them; "plain" ones have no scale.
TYPES = (*QUANTIZED, "float32", "int32", "int64", "bool", *(f"plain_{name}" for name in QUANTIZED), "uint16", "uint32", "uint64",
         "float16", "bfloat16", "float64")  # fmt: skip
RANKS = range(1, 8)
#: The ranks that are tried of the types that few kernels have.
FEW_RANKS = (1, 2, 4, 5, 7)
_ZERO = {"int8": 3, "uint8": 131, "int16": 0}
_SIZES = (2, 3, 4, 4, 3, 2, 2)

Spec = TensorSpec
Made = tuple[Any, list[TensorSpec | None], list[TensorSpec]]


def act(name: str, shape: tuple[int, ...], dtype: str, scale: float = 0.05, zero: int | None = None) -> TensorSpec:
    """An activation, quantized if its type is one of QUANTIZED."""
    if dtype not in QUANTIZED:
        return TensorSpec(name, shape, stored(dtype))
    if dtype == "int16":
        scale /= 256
    return TensorSpec(name, shape, dtype, scale, _ZERO[dtype] if zero is None else zero)


def stored(dtype: str) -> str:
    """The canonical name of a type of the tables."""
    return dtype.removeprefix("plain_")


def ranks_of(dtype: str) -> Sequence[int]:
    return RANKS if dtype in TYPES[:7] else FEW_RANKS


def const(name: str, values: Any, dtype: str = "int32", **more: Any) -> TensorSpec:
    data = np.array(values).astype(numpy_dtype(stored(dtype)))
    return TensorSpec(name, data.shape, stored(dtype), data=data, **more)


def _shape(rank: int) -> tuple[int, ...]:
    return _SIZES[:rank]


def _same(options: Any = None, scale: float = 0.05, fixed: dict[str, tuple[float, int]] | None = None) -> Callable[[str, int], Made]:
    """One input, and an output of its shape."""

    def make(dtype: str, rank: int) -> Made:
        x, y = act("x", _shape(rank), dtype), act("y", _shape(rank), dtype, scale)
        if fixed and dtype in fixed:
            y = replace(y, scale=fixed[dtype][0], zero_point=fixed[dtype][1])
        return options, [x], [y]

    return make


_UNIT = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}
_SIGNED = {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)}
_LOGS = {"int8": (16 / 256, 127), "uint8": (16 / 256, 255)}


def _pair(
    options: Any = None, scale: float = 0.09, out: str = "", broadcast: bool = True, other: float = 0.031
) -> Callable[[str, int], Made]:
    """Two inputs, the second of one row that is repeated."""

    def make(dtype: str, rank: int) -> Made:
        b = (*(1 for _ in range(rank - 1)), _shape(rank)[-1]) if broadcast else _shape(rank)
        return options, [act("a", _shape(rank), dtype), act("b", b, dtype, other)], [act("y", _shape(rank), out or dtype, scale)]

    return make


def _quotient(dtype: str, rank: int) -> Made:
    """One scale of quotients for all types, so that few steps by many are less than a step."""
    options, inputs, (y,) = _pair({})(dtype, rank)
    return options, inputs, [replace(y, scale=0.2) if dtype in QUANTIZED else y]


def _comparison(dtype: str, rank: int) -> Made:
    """Both of one scale, which has to be at least 1/256 for neighbours to stay apart, in int16 too."""
    shape = _shape(rank) if rank > 1 else (24,)
    a, b = act("a", shape, dtype), act("b", (*(1 for _ in range(rank - 1)), shape[-1]), dtype)
    if dtype in QUANTIZED:
        a, b = replace(a, scale=0.05), replace(b, scale=0.05)
    return None, [a, b], [Spec("y", shape, "bool")]


def _reduced(dtype: str, rank: int, options: Any, scale: float = 0.05) -> Made:
    keep = options["keepDims"]
    shape = _shape(rank)
    result = (*shape[:-1], 1) if keep else shape[:-1]
    return options, [act("x", shape, dtype), const("axes", [rank - 1])], [act("y", result, dtype, scale)]


def _reduction(scale: float = 0.05) -> Callable[[str, int], Made]:
    return lambda dtype, rank: _reduced(dtype, rank, {"keepDims": True}, scale)


def _search(dtype: str, rank: int) -> Made:
    return {"outputType": 2}, [act("x", _shape(rank), dtype), const("axis", rank - 1)], [Spec("y", _shape(rank)[:-1], "int32")]


def reverse_sequence(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    if rank < 2:
        raise LookupError("no axis is left for the sequences")
    lengths = const("n", [1, *[2] * (shape[0] - 1)])
    return {"seqDim": rank - 1, "batchDim": 0}, [act("x", shape, dtype), lengths], [act("y", shape, dtype)]


def _moved(make: Callable[[tuple[int, ...]], tuple[Any, list[Any], tuple[int, ...]]]) -> Callable[[str, int], Made]:
    """Data movement: make(shape) -> (options, constants after the data, result's shape)."""

    def made(dtype: str, rank: int) -> Made:
        options, constants, result = make(_shape(rank))
        return options, [act("x", _shape(rank), dtype), *constants], [act("y", result, dtype)]

    return made


def _spatial(made: Callable[[str, int], Made]) -> Callable[[str, int], Made]:
    """An operator of images: rank 4 alone is tried."""

    def make(dtype: str, rank: int) -> Made:
        if rank != 4:
            raise LookupError
        return made(dtype, rank)

    return make


def _weights(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    values = np.random.default_rng(3).integers(-127, 128, shape)
    if dtype == "float32":
        return const("w", values / 64, "float32")
    if dtype == "uint8":
        return const("w", values + 128, "uint8", scale=0.01, zero_point=128)
    return const("w", values, "int8", scale=0.01, zero_point=0)


def _bias(dtype: str, count: int, x: TensorSpec) -> TensorSpec:
    values = np.arange(count) * 3 - 5
    if dtype == "float32":
        return const("bias", values, "float32")
    return const("bias", values, "int64" if dtype == "int16" else "int32", scale=np.float32(x.scale) * np.float32(0.01), zero_point=0)


def _linear(dtype: str) -> None:
    if dtype not in ("int8", "uint8", "int16", "float32"):
        raise LookupError


def conv(dtype: str, rank: int) -> Made:
    _linear(dtype)
    x = act("x", (1, 6, 6, 3), dtype)
    return ({"padding": 0, "strideH": 1, "strideW": 1},
            [x, _weights(dtype, (4, 3, 3, 3)), _bias(dtype, 4, x)], [act("y", (1, 6, 6, 4), dtype, 0.2)])  # fmt: skip


def grouped(dtype: str, rank: int) -> Made:
    _linear(dtype)
    x = act("x", (1, 6, 6, 4), dtype)
    return ({"padding": 0, "strideH": 1, "strideW": 1},
            [x, _weights(dtype, (4, 3, 3, 2)), _bias(dtype, 4, x)], [act("y", (1, 6, 6, 4), dtype, 0.2)])  # fmt: skip


def depthwise(dtype: str, rank: int) -> Made:
    _linear(dtype)
    x = act("x", (1, 6, 6, 3), dtype)
    return ({"padding": 0, "strideH": 1, "strideW": 1, "depthMultiplier": 1},
            [x, replace(_weights(dtype, (1, 3, 3, 3)), axis=3), _bias(dtype, 3, x)], [act("y", (1, 6, 6, 3), dtype, 0.2)])  # fmt: skip


def transpose_conv(dtype: str, rank: int) -> Made:
    _linear(dtype)
    x = act("x", (1, 3, 3, 3), dtype)
    inputs = [const("size", [1, 6, 6, 4]), _weights(dtype, (4, 3, 3, 3)), x, _bias(dtype, 4, x)]
    return {"padding": 0, "strideH": 2, "strideW": 2}, [*inputs], [act("y", (1, 6, 6, 4), dtype, 0.2)]


def fully_connected(dtype: str, rank: int) -> Made:
    _linear(dtype)
    shape = _shape(rank)
    x = act("x", shape, dtype)
    return ({"keepNumDims": True}, [x, _weights(dtype, (5, shape[-1])), _bias(dtype, 5, x)],
            [act("y", (*shape[:-1], 5), dtype, 0.1)])  # fmt: skip


def batch_matmul(dtype: str, rank: int) -> Made:
    if rank < 2:
        raise LookupError
    shape = _shape(rank)
    return {}, [act("x", shape, dtype), act("w", (*shape[:-2], shape[-1], 5), dtype)], [act("y", (*shape[:-1], 5), dtype, 0.1)]


def pool(dtype: str, rank: int) -> Made:
    options = {"padding": 0, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2}
    return options, [act("x", (1, 6, 6, 3), dtype)], [act("y", (1, 3, 3, 3), dtype)]


def resize(options: Any) -> Callable[[str, int], Made]:
    return _spatial(lambda dtype, rank: (options, [act("x", (1, 4, 4, 3), dtype), const("size", [8, 8])], [act("y", (1, 8, 8, 3), dtype)]))


def _space(before: tuple[int, ...], after: tuple[int, ...], *constants: TensorSpec, options: Any = None) -> Callable[[str, int], Made]:
    return _spatial(lambda dtype, rank: (options, [act("x", before, dtype), *constants], [act("y", after, dtype)]))


def concat(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    return {"axis": rank - 1}, [act("a", shape, dtype), act("b", shape, dtype)], [act("y", (*shape[:-1], 2 * shape[-1]), dtype)]


def pack(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    return {"axis": 0, "valuesCount": 2}, [act("a", shape, dtype), act("b", shape, dtype)], [act("y", (2, *shape), dtype)]


def unpack(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    return {"axis": 0, "num": shape[0]}, [act("x", shape, dtype)], [act(f"y{i}", shape[1:], dtype) for i in range(shape[0])]


def split(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    return {"numSplits": 2}, [const("axis", 0), act("x", shape, dtype)], [act(f"y{i}", (1, *shape[1:]), dtype) for i in range(2)]


def split_v(dtype: str, rank: int) -> Made:
    shape = (5, *_shape(rank)[1:])
    parts = [act(f"y{i}", (size, *shape[1:]), dtype) for i, size in enumerate((2, 3))]
    return {"numSplits": 2}, [act("x", shape, dtype), const("sizes", [2, 3]), const("axis", 0)], parts


def prelu(dtype: str, rank: int) -> Made:
    factors = "int8" if dtype == "int16" else dtype
    alpha = act("alpha", (*(1 for _ in range(rank - 1)), _shape(rank)[-1]), factors, 0.01)
    data = np.arange(1, _shape(rank)[-1] + 1).astype(numpy_dtype(stored(factors)))
    return None, [act("x", _shape(rank), dtype), replace(alpha, data=data.reshape(alpha.shape))], [act("y", _shape(rank), dtype)]


def quantize(dtype: str, rank: int) -> Made:
    return None, [Spec("x", _shape(rank), "float32")], [act("y", _shape(rank), _only(dtype))]


def requantize(dtype: str, rank: int) -> Made:
    return None, [act("x", _shape(rank), _only(dtype))], [act("y", _shape(rank), dtype, 0.07)]


def dequantize(dtype: str, rank: int) -> Made:
    return None, [act("x", _shape(rank), _only(dtype))], [Spec("y", _shape(rank), "float32")]


def _only(dtype: str) -> str:
    if dtype not in QUANTIZED:
        raise LookupError
    return dtype


def scatter(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    rows = act("updates", (2, *shape[1:]), dtype)
    return (
        None,
        [const("indices", [[1], [0]]), rows, const("shape", [shape[0] + 1, *shape[1:]])],
        [act("y", (shape[0] + 1, *shape[1:]), dtype)],
    )


def select(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    return None, [Spec("c", (*shape[:-1], 1), "bool"), act("a", shape, dtype), act("b", shape, dtype)], [act("y", shape, dtype)]


def topk(dtype: str, rank: int) -> Made:
    shape = _shape(rank)
    return None, [act("x", shape, dtype), const("k", 2)], [act("y", (*shape[:-1], 2), dtype), Spec("i", (*shape[:-1], 2), "int32")]


def one_hot(dtype: str, rank: int) -> Made:
    values = [const(name, value, dtype) for name, value in (("on", 1), ("off", 0))]
    return {"axis": -1}, [Spec("x", _shape(rank), "int32"), const("depth", 3), *values], [Spec("y", (*_shape(rank), 3), stored(dtype))]


def cast(dtype: str, rank: int) -> Made:
    return {}, [Spec("x", _shape(rank), stored(dtype))], [Spec("y", _shape(rank), "int32" if dtype == "float32" else "float32")]


def cast_between(source: str, result: str) -> Callable[[str, int], Made]:
    def make(dtype: str, rank: int) -> Made:
        return {}, [Spec("x", (2, 3), source)], [Spec("y", (2, 3), result)]

    return make


def span(dtype: str, rank: int) -> Made:
    """RANGE from 1 to 7 in steps of 2."""
    if rank != 1:
        raise LookupError
    return None, [const(name, value, dtype) for name, value in zip("abc", (1, 7, 2), strict=True)], [act("y", (3,), dtype)]


def places(dtype: str, rank: int) -> Made:
    """WHERE with one input, of whose result the size is not known before."""
    return None, [act("x", _shape(rank), dtype)], [Spec("y", (1, rank), "int64", shape_signature=(-1, rank))]


def rows(dtype: str, rank: int) -> Made:
    """SELECT by a condition of the shape of the data."""
    options, inputs, outputs = select(dtype, rank)
    return options, [Spec("c", _shape(rank), "bool"), *inputs[1:]], outputs


def fill(dtype: str, rank: int) -> Made:
    return None, [const("sizes", _shape(rank)), act("x", (), dtype)], [act("y", _shape(rank), dtype)]


def strided(shape: tuple[int, ...]) -> tuple[Any, list[Any], tuple[int, ...]]:
    rank = len(shape)
    bounds = [const("begin", [0] * rank), const("end", shape), const("strides", [*[1] * (rank - 1), 2])]
    return {}, bounds, (*shape[:-1], -(-shape[-1] // 2))


def _padded(shape: tuple[int, ...]) -> tuple[Any, list[Any], tuple[int, ...]]:
    return None, [const("p", [[1, 0]] * len(shape))], tuple(size + 1 for size in shape)


def padv2(dtype: str, rank: int) -> Made:
    options, (pads,), result = _padded(_shape(rank))
    value = replace(act("v", (), dtype), data=np.array(1).astype(numpy_dtype(stored(dtype))))
    return options, [act("x", _shape(rank), dtype), pads, value], [act("y", result, dtype)]


def bools(count: int) -> Callable[[str, int], Made]:
    def make(dtype: str, rank: int) -> Made:
        if dtype != "bool":
            raise LookupError
        return None, [Spec(name, _shape(rank), "bool") for name in "ab"[:count]], [Spec("y", _shape(rank), "bool")]

    return make


CASES: dict[str, Callable[[str, int], Made]] = {
    **{name: _same() for name in "ABS NEG EXP LOG SQRT SQUARE SIN COS ROUND FLOOR CEIL SIGN RELU6 ELU HARD_SWISH".split()},
    "RSQRT": _same(),
    "GELU": _same({"approximate": False}),
    "RELU": _same(), "RELU_N1_TO_1": _same(), "RELU_0_TO_1": _same(),
    "LEAKY_RELU": _same({"alpha": 0.2}), "PRELU": prelu,
    "LOGISTIC": _same(fixed=_UNIT), "TANH": _same(fixed=_SIGNED), "SOFTMAX": _same({"beta": 1.0}, fixed=_UNIT),
    "LOG_SOFTMAX": _same(fixed=_LOGS), "L2_NORMALIZATION": _same({}, fixed=_SIGNED),
    "QUANTIZE": quantize, "REQUANTIZE": requantize, "DEQUANTIZE": dequantize, "CAST": cast,
    **{name: _pair({}) for name in ("ADD", "SUB", "MUL")},
    "DIV": _quotient,
    **{name: _pair(scale=0.05, other=0.05) for name in ("MAXIMUM", "MINIMUM")},
    **{name: _pair() for name in ("POW", "FLOOR_DIV", "FLOOR_MOD")},
    "SQUARED_DIFFERENCE": _pair(scale=0.3),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"), _comparison),
    "LOGICAL_AND": bools(2), "LOGICAL_OR": bools(2), "LOGICAL_NOT": bools(1),
    "MEAN": _reduction(0.04), "SUM": _reduction(0.1), "REDUCE_PROD": _reduction(), "REDUCE_MAX": _reduction(), "REDUCE_MIN": _reduction(),
    "REDUCE_ANY": _reduction(), "REDUCE_ALL": _reduction(),
    "ARG_MAX": _search, "ARG_MIN": _search,
    "CUMSUM": _moved(lambda s: ({}, [const("axis", len(s) - 1)], s)),
    "CONV_2D": _spatial(conv), "GROUPED_CONV": _spatial(grouped), "DEPTHWISE_CONV_2D": _spatial(depthwise),
    "TRANSPOSE_CONV": _spatial(transpose_conv),
    "FULLY_CONNECTED": fully_connected, "BATCH_MATMUL": batch_matmul,
    "AVERAGE_POOL_2D": _spatial(pool), "MAX_POOL_2D": _spatial(pool),
    "RESIZE_BILINEAR": resize({"halfPixelCenters": True}), "RESIZE_NEAREST_NEIGHBOR": resize({}),
    "SPACE_TO_DEPTH": _space((1, 4, 4, 3), (1, 2, 2, 12), options={"blockSize": 2}),
    "DEPTH_TO_SPACE": _space((1, 2, 2, 12), (1, 4, 4, 3), options={"blockSize": 2}),
    "SPACE_TO_BATCH_ND": _space((1, 4, 4, 3), (4, 2, 2, 3), const("b", [2, 2]), const("p", [[0, 0], [0, 0]])),
    "BATCH_TO_SPACE_ND": _space((4, 2, 2, 3), (1, 4, 4, 3), const("b", [2, 2]), const("p", [[0, 0], [0, 0]])),
    "CONCATENATION": concat, "PACK": pack, "UNPACK": unpack, "SPLIT": split, "SPLIT_V": split_v,
    "RESHAPE": _moved(lambda s: ({"newShape": [-1, s[-1]]}, [const("shape", [-1, s[-1]])], (int(np.prod(s[:-1])), s[-1]))),
    "EXPAND_DIMS": _moved(lambda s: (None, [const("axis", 0)], (1, *s))),
    "TRANSPOSE": _moved(lambda s: (None, [const("perm", list(range(len(s)))[::-1])], s[::-1])),
    "SLICE": _moved(lambda s: (None, [const("begin", [1, *[0] * (len(s) - 1)]), const("size", [1, *s[1:]])], (1, *s[1:]))),
    "STRIDED_SLICE": _moved(strided),
    "PAD": _moved(_padded), "PADV2": padv2,
    "MIRROR_PAD": _moved(lambda s: ({"mode": 0}, *_padded(s)[1:])),
    "TILE": _moved(lambda s: (None, [const("m", [2, *[1] * (len(s) - 1)])], (2 * s[0], *s[1:]))),
    "BROADCAST_TO": lambda dtype, rank: (None, [act("x", (1, *_shape(rank)[1:]), dtype), const("s", _shape(rank))],
                                         [act("y", _shape(rank), dtype)]),
    "FILL": fill,
    "GATHER": _moved(lambda s: ({"axis": 0}, [const("i", [1, 0, 1])], (3, *s[1:]))),
    "GATHER_ND": _moved(lambda s: (None, [const("i", [[1], [0], [1]])], (3, *s[1:]))),
    "REVERSE_SEQUENCE": reverse_sequence,
    "REVERSE_V2": _moved(lambda s: (None, [const("axis", [len(s) - 1])], s)),
    "RANGE": span, "WHERE": places, "SELECT": rows,
    "SCATTER_ND": scatter, "SELECT_V2": select, "TOPK_V2": topk, "ONE_HOT": one_hot,
    "SHAPE": lambda dtype, rank: ({"outType": 2}, [act("x", _shape(rank), dtype)], [Spec("y", (rank,), "int32")]),
}  # fmt: skip

#: Names here that are no operators of their own.
BUILTINS = {"REQUANTIZE": "QUANTIZE", "GROUPED_CONV": "CONV_2D"}
_SQUEEZE = "SQUEEZE"
CASES[_SQUEEZE] = lambda dtype, rank: ({"squeezeDims": [0]}, [act("x", (1, *_shape(rank)[1:]), dtype)], [act("y", _shape(rank)[1:], dtype)])


#: Functions of real numbers, which mean nothing on integers without a scale.
_REAL = frozenset(
    "EXP LOG SQRT RSQRT SIN COS ROUND FLOOR CEIL ELU GELU HARD_SWISH LEAKY_RELU PRELU LOGISTIC TANH SOFTMAX LOG_SOFTMAX L2_NORMALIZATION "
    "MEAN AVERAGE_POOL_2D DIV RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 BATCH_MATMUL".split()
)


def model_of(name: str, dtype: str, rank: int) -> tuple[bytes, list[np.ndarray]] | None:
    """The one-operator model and its inputs; None where the combination has no meaning."""
    if name in _REAL and (dtype.startswith("plain_") or dtype in ("uint16", "uint32", "uint64")):
        return None
    try:
        options, inputs, outputs = CASES[name](dtype, rank)
    except LookupError:
        return None
    data = single_op(BUILTINS.get(name, name), options, inputs, outputs)
    rng = np.random.default_rng(rank)
    feeds = [random_feed(tensor, name, rng) for tensor in inputs if tensor is not None and tensor.data is None]
    if name == "WHERE":
        feeds[0].flat[0] = 1  # LiteRT's Python interface cannot be asked for a result without elements
    if name == "DIV" and dtype in QUANTIZED:  # one step by many: the shift of the quotient is beyond 31 bits
        for feed, steps in zip(feeds, (1, 99), strict=True):
            feed.flat[0] = _ZERO[dtype] + steps
    return data, feeds


def random_feed(tensor: TensorSpec, name: str, rng: np.random.Generator) -> np.ndarray:
    """Values in the operator's domain: positive for roots, logarithms and powers."""
    positive = name in ("LOG", "SQRT", "RSQRT", "POW", "FLOOR_DIV", "FLOOR_MOD") or (name == "DIV" and tensor.name == "b")
    if "float" in tensor.dtype:
        return np.asarray(rng.uniform(0.5 if positive else -3, 3, tensor.shape)).astype(numpy_dtype(tensor.dtype))
    if tensor.dtype == "bool":
        return np.asarray(rng.integers(0, 2, tensor.shape)).astype(bool)
    if tensor.scale is None:
        low = 1 if positive else 0 if name == "ONE_HOT" or tensor.dtype.startswith("u") else -2
        high = 10 if tensor.dtype not in ("int32", "int64") else 3
        return np.asarray(rng.integers(low if high == 3 or low >= 0 else -9, high, tensor.shape)).astype(tensor.dtype)
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int16": (-20000, 20001)}[tensor.dtype]
    return np.asarray(rng.integers((tensor.zero_point or 0) + 9 if positive else low, high, tensor.shape)).astype(tensor.dtype)


def _run(runtime: str, data: bytes, feeds: list[np.ndarray]) -> list[np.ndarray]:
    if runtime == "micro":
        from qconvert.runtimes.tflite_micro import TFLiteMicro

        return TFLiteMicro(data).run_in_order(feeds)
    from qconvert.runtimes.litert import LiteRT

    return LiteRT(data, runtime).run_in_order(feeds)


def judge(runtime: str, name: str, dtype: str, rank: int) -> str:
    """ "" if the runtime runs the operator right, else what went wrong."""
    from loaded import tflite_graph

    from qconvert.errors import QConvertError
    from qconvert.evaluate import evaluate

    made = model_of(name, dtype, rank)
    if made is None:
        return "no case"
    try:
        found = _run(runtime, *made)
    except QConvertError as error:
        return f"refused: {error}"
    try:
        graph = tflite_graph(made[0], name)
        exact = evaluate(graph, dict(zip(graph.inputs, made[1], strict=True)))
    except QConvertError as error:
        return f"not read: {error}"
    for a, b in zip(exact.values(), found, strict=True):
        if a.shape != b.shape:
            return f"wrong shape: {b.shape}, not {a.shape}"
        allowed = 1e-3 if "float" in a.dtype.name else {"int8": 2, "uint8": 2, "int16": 40}.get(a.dtype.name, 0)
        if name in ("EXP", "LOG", "RSQRT") and dtype == "int16":
            allowed = 3000  # a table of 513 values, which is coarse where the function is steep
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)
        if difference > allowed:
            return f"wrong values: by {difference:g}"
    return ""


def isolated(jobs: list[tuple[str, str, str, int]]) -> Iterator[tuple[tuple[str, str, str, int], str]]:
    """judge() for each job in a child process, which starts again after a job that ends it."""
    judge(jobs[0][0], "RELU", "float32", 1)  # what it imports is imported here, once
    position = 0
    with tempfile.TemporaryDirectory() as folder:
        while position < len(jobs):
            record = Path(folder) / "found"
            record.write_bytes(b"")
            child = os.fork()
            if child == 0:
                sink = os.open(os.devnull, os.O_WRONLY)
                os.dup2(sink, 2)
                with record.open("ab", buffering=0) as stream:
                    for job in jobs[position:]:
                        try:
                            verdict = judge(*job)
                        except BaseException as error:
                            verdict = f"refused: {type(error).__name__}: {error}"
                        pickle.dump(verdict, stream)
                os._exit(0)
            os.waitpid(child, 0)
            done = 0
            with record.open("rb") as stream:
                while True:
                    try:
                        verdict = pickle.load(stream)
                    except EOFError:
                        break
                    yield jobs[position + done], verdict
                    done += 1
            position += done
            if position < len(jobs):
                yield jobs[position], "refused: ends the process"
                position += 1


def table(runtime: str) -> dict[str, dict[str, int]]:
    """Operator -> type -> the largest rank up to which the runtime is right: the tables of targets/rules_tflite.py, found again."""
    jobs = [(runtime, name, dtype, rank) for name in CASES for dtype in TYPES for rank in ranks_of(dtype)]
    right: dict[tuple[str, str], dict[int, bool]] = {}
    for (_, name, dtype, rank), verdict in isolated(jobs):
        if verdict != "no case":
            right.setdefault((name, dtype), {})[rank] = not verdict
    found: dict[str, dict[str, int]] = {}
    for (name, dtype), ranks in right.items():
        wrong = min((rank for rank, good in ranks.items() if not good), default=max(ranks) + 1)
        right_ranks = [rank for rank in ranks if rank < wrong]
        plain = name in ("NEG", "FLOOR_DIV", "FLOOR_MOD", "WHERE") and dtype in QUANTIZED  # they take integers for plain numbers
        if right_ranks and name != "REQUANTIZE" and not plain:
            found.setdefault(name, {})[dtype] = max(right_ranks)
    return found


def casts(runtime: str) -> list[tuple[str, str]]:
    """The pairs of types between which CAST is right."""
    names = list(dict.fromkeys(map(stored, TYPES)))
    pairs = [(a, b) for a in names for b in names if a != b]
    for a, b in pairs:
        CASES[f"CAST {a} {b}"], BUILTINS[f"CAST {a} {b}"] = cast_between(a, b), "CAST"
    jobs = [(runtime, f"CAST {a} {b}", a, 2) for a, b in pairs]
    return [pair for pair, (_, verdict) in zip(pairs, isolated(jobs), strict=True) if not verdict]


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps({"table": table(sys.argv[1]), "casts": casts(sys.argv[1])}))
    else:
        for (_, name, dtype, rank), verdict in isolated([(sys.argv[1], n, t, r) for n in sys.argv[2:] for t in TYPES for r in ranks_of(t)]):
            print(name, dtype, rank, verdict.replace("\n", " ") or "right", sep="\t")
