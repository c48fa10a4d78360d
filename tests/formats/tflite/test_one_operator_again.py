"""TFLite operators that the reader makes several canonical ones of are one operator again when they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formats.tflite.written import codes, random_stored, require_same_outputs, rewritten
from loaded import tflite_graph
from tflite_models import TensorSpec, single_op

pytestmark = pytest.mark.litert


def i32(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "int32")


def numbers(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "float32")


def quantization(name: str, *shape: int, scale: float = 0.05) -> TensorSpec:
    return TensorSpec(name, shape, "int8", scale, 3)


def wide(name: str, *shape: int, scale: float = 0.05) -> TensorSpec:
    return TensorSpec(name, shape, "int16", scale, 0)


#: Operators with indices and shapes that are computed at run time, and kernels that give the same integers another scale.
COMPUTED: dict[str, tuple[bytes, list[Any]]] = {
    "GATHER": (single_op("GATHER", {"axis": 1}, [numbers("x", 3, 5), i32("i", 4)], [numbers("y", 3, 4)]), [[4, 0, 0, 2]]),
    "GATHER_ND": (single_op("GATHER_ND", {}, [numbers("x", 3, 5), i32("i", 2, 2)], [numbers("y", 2)]), [[[2, 4], [0, 1]]]),
    "REVERSE_SEQUENCE": (single_op("REVERSE_SEQUENCE", {"seqDim": 2, "batchDim": 0}, [numbers("x", 3, 5, 4), i32("n", 3)],
                                   [numbers("y", 3, 5, 4)]), [[4, 0, 3]]),
    "ONE_HOT": (
        single_op("ONE_HOT", {"axis": 0}, [i32("i", 3), *(TensorSpec(n, (), t, data=np.array(v, t)) for n, t, v in
                  (("d", "int32", 4), ("on", "float32", 1), ("off", "float32", 0)))], [numbers("y", 4, 3)]),
        [[1, 3, 0]],
    ),
    "SLICE": (single_op("SLICE", {}, [numbers("x", 6, 5), i32("b", 2), i32("s", 2)],
                        [TensorSpec("y", (1, 1), "float32", shape_signature=(-1, -1))]), [[1, 2], [4, 3]]),
    "BROADCAST_TO": (single_op("BROADCAST_TO", {}, [numbers("x", 1, 5), i32("s", 2)],
                               [TensorSpec("y", (1, 5), "float32", shape_signature=(-1, 5))]), [[3, 5]]),
    "WHERE": (single_op("WHERE", {}, [TensorSpec("c", (2, 3), "bool")],
                        [TensorSpec("y", (1, 2), "int64", shape_signature=(-1, 2))]), [[[1, 0, 1], [0, 0, 1]]]),
    "RESHAPE": (single_op("RESHAPE", {}, [quantization("x", 4, 5), TensorSpec("s", (1,), "int32", data=np.array([20], np.int32))],
                          [quantization("y", 20, scale=0.07)]), []),
    "STRIDED_SLICE": (
        single_op("STRIDED_SLICE", {"shrinkAxisMask": 1, "newAxisMask": 4}, [quantization("x", 4, 5),
                  *(TensorSpec(n, (3,), "int32", data=np.array(v, np.int32)) for n, v in
                    (("b", [-1, 1, 0]), ("e", [0, 4, 1]), ("s", [1, 2, 1])))], [quantization("y", 2, 1, scale=0.07)]),
        [],
    ),
    "SPLIT": (single_op("SPLIT", {"numSplits": 2}, [TensorSpec("a", (), "int32", data=np.array(0, np.int32)), wide("x", 4, 5)],
                        [wide("u", 2, 5, scale=0.07), wide("v", 2, 5)]), []),
}  # fmt: skip


@pytest.mark.cross_section
@pytest.mark.parametrize("name", COMPUTED)
def test_what_the_reader_made_of_one_operator_is_one_again(name: str) -> None:
    source, values = COMPUTED[name]
    graph = tflite_graph(source, "model")
    assert len(graph.ops) > 1
    result = rewritten(source)
    assert [code for code, _ in codes(result)] == [name]
    rng = np.random.default_rng(4)
    given = iter(values)
    inputs = [
        np.array(next(given), graph[tensor].dtype) if graph[tensor].dtype in ("int32", "bool") else random_stored(graph[tensor], rng)
        for tensor in graph.inputs
    ]
    refused = {"reference": "version '6'"} if name == "STRIDED_SLICE" else None
    require_same_outputs(source, result, inputs, refused)
