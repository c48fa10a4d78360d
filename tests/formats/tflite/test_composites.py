"""STABLEHLO_COMPOSITE: a name for the operators of another subgraph, which are read in its place."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from differential import compare
from flatbuffers import flexbuffers
from loaded import tflite_graph
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, single_op

from qconvert.errors import InvalidModelError

pytestmark = pytest.mark.litert

F = TensorSpec("x", (2, 3), "float32")


def with_parts(main: bytes, *parts: bytes) -> bytes:
    """A model whose further subgraphs are the main ones of other models."""
    whole = schema.ModelT.InitFromObj(schema.Model.GetRootAs(main))
    for data in parts:
        other: Any = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
        (subgraph,) = other.subgraphs
        for tensor in subgraph.tensors:
            tensor.buffer += len(whole.buffers) if tensor.buffer else 0
        for operator in subgraph.operators:
            operator.opcodeIndex += len(whole.operatorCodes)
        whole.buffers += other.buffers
        whole.operatorCodes += other.operatorCodes
        whole.subgraphs.append(subgraph)
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def options(part: int) -> Any:
    with (builder := flexbuffers.Builder()).Map():
        builder.Key("version")
        builder.Add(1)
    attributes = np.frombuffer(builder.Finish(), np.uint8)
    return schema.StableHLOCompositeOptionsT(name="odml.test", decompositionSubgraphIndex=part, compositeAttributes=attributes)


def composite(part: int, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> bytes:
    return single_op("STABLEHLO_COMPOSITE", options(part), inputs, outputs)


def doubled() -> bytes:
    """a + a, then times 3."""
    three = TensorSpec("c", (), "float32", data=np.float32(3))
    names = [TensorSpec("a", (2, 3), "float32"), TensorSpec("s", (2, 3), "float32"), TensorSpec("r", (2, 3), "float32"), three]
    return model([OpSpec("ADD", ["a", "a"], ["s"], {}), OpSpec("MUL", ["s", "c"], ["r"], {})], names, ["a"], ["r"])


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_a_composite_is_what_it_stands_for() -> None:
    data = with_parts(composite(1, [F], [TensorSpec("y", (2, 3), "float32")]), doubled())
    graph = tflite_graph(data)
    assert [op.kind for op in graph.ops] == ["Add", "Mul"]
    assert (graph.inputs, graph.outputs) == (("x",), ("y",))
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = compare(data, [values])
    assert found.largest == 0
    assert (found.result == values * 6).all()


@pytest.mark.onnxruntime
def test_composites_stand_in_composites_and_twice() -> None:
    outer = composite(1, [F], [TensorSpec("y", (2, 3), "float32")])
    middle = model(
        [OpSpec("STABLEHLO_COMPOSITE", ["x"], ["h"], options(2)),
         OpSpec("STABLEHLO_COMPOSITE", ["h"], ["y"], options(2))],
        [F, TensorSpec("h", (2, 3), "float32"), TensorSpec("y", (2, 3), "float32")], ["x"], ["y"],
    )  # fmt: skip
    data = with_parts(outer, middle, doubled())
    assert [op.kind for op in tflite_graph(data).ops] == ["Add", "Mul"] * 2
    (found,) = compare(data, [np.ones((2, 3), np.float32)])
    assert (found.result == 36).all()


@pytest.mark.parametrize(("part", "rule", "holds"), [(0, "unknown-subgraph", (0, 2)), (7, "unknown-subgraph", (7, 2))])
def test_a_composite_of_no_subgraph_is_refused(part: int, rule: str, holds: tuple[object, ...]) -> None:
    with refused(InvalidModelError, rule, holds=holds):
        tflite_graph(with_parts(composite(part, [F], [TensorSpec("y", (2, 3), "float32")]), doubled()))


def test_a_composite_of_itself_is_refused() -> None:
    inner = composite(1, [F], [TensorSpec("y", (2, 3), "float32")])
    with refused(InvalidModelError, "nested-too-deeply", holds=(16,)):
        tflite_graph(with_parts(composite(1, [F], [TensorSpec("y", (2, 3), "float32")]), inner))


def test_other_inputs_than_the_subgraph_has_are_refused() -> None:
    two = composite(1, [F, TensorSpec("z", (2, 3), "float32")], [TensorSpec("y", (2, 3), "float32")])
    with refused(InvalidModelError, "counts-differ", holds=(2, 1)):
        tflite_graph(with_parts(two, doubled()))
