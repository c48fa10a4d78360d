"""SVDF of real data: a layer of filters over data and time, as TFLite has it (kernels/internal/reference/svdf.h).

Each filter multiplies the data by weights, keeps its last products, and multiplies these by weights of its own; `rank` filters that follow
each other make one unit. The memory is an input and an output here, which ReadState and WriteState carry from run to run. With integer
weights the kernel rounds each row of data to 8 bits when it runs, as `arithmetic` says; weights over the memory only stand for float
values.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Shape
from qconvert.operators.attributes import ACTIVATION, has, integer
from qconvert.operators.call import Call, apply_activation
from qconvert.operators.kind import Kind
from qconvert.operators.products import DYNAMIC_ROWS, products_of_rows, rounded_rows
from qconvert.operators.properties import any_value, in_rows
from qconvert.operators.sizes import ShapeContext, Shapes, Size, failure, is_compatible

#: Inputs.
_DATA, _MEMORY, _FEATURE, _TIME, _BIAS = range(5)
_WORDS = {_DATA: "data", _MEMORY: "a memory", _FEATURE: "weights over the data", _TIME: "weights over the memory", _BIAS: "a bias"}


def _shape(op: Op, s: ShapeContext) -> Shapes:
    data, memory, feature, time = (s.shape(index) for index in (_DATA, _MEMORY, _FEATURE, _TIME))
    if feature is None or time is None:
        return [None, memory]
    if len(feature) != 2 or len(time) != 2:
        raise failure(op, f"has weights of shape {feature} and {time}, which are not matrices", rule="wrong-rank")
    (filters, inputs), places, rank = feature, time[1], int(op["rank"])
    if not isinstance(filters, int) or not isinstance(places, int) or rank < 1 or filters % rank:
        raise failure(op, f"has {filters} filters of {places} places, which rank {rank} does not divide", rule="shape-mismatch")
    rows = data[0] if data else "rows"
    wanted: dict[int, tuple[Size, ...]] = {
        _DATA: (rows, inputs), _MEMORY: (rows, filters * places), _TIME: (filters, places), _BIAS: (filters // rank,),
    }  # fmt: skip
    for index, shape in wanted.items():
        _require(op, index, s.shape(index) if s.has(index) else None, shape)
    return [None if data is None else (data[0], filters // rank), memory]


def _require(op: Op, index: int, shape: Shape | None, wanted: tuple[Size, ...]) -> None:
    if not is_compatible(shape, wanted):
        raise failure(op, f"has {_WORDS[index]} of shape {shape}, not {wanted}", rule="shape-mismatch")


def _run(call: Call) -> list[Array]:
    """One step."""
    time = call.values(_TIME)
    newest = rounded_rows(call.op, call.values(_DATA)) @ call.values(_FEATURE).T
    memory = call.values(_MEMORY)
    kept = np.concatenate([memory.reshape(-1, *time.shape)[..., 1:], newest[..., None]], axis=-1)
    total = (kept * time).sum(axis=-1).reshape(len(kept), -1, int(call["rank"])).sum(axis=-1)
    total = total + call.values(_BIAS) if call.has(_BIAS) else total
    return [apply_activation(total, str(call["activation"])), kept.reshape(memory.shape)]


KINDS = (
    Kind(
        "SVDF",
        "data data parameter parameter parameter?",
        "data data",
        samples=in_rows(lambda op: {0: 0, 1: 0}),
        bounds=any_value,
        products=products_of_rows(2, 3),
        weights=(2, 3),
        recurs=True,
        shape=_shape,
        evaluate=_run,
        types="any any any any any -> any",
        attributes=has(ACTIVATION, DYNAMIC_ROWS, rank=integer(1)),
    ),
)
