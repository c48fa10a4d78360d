"""Sparse constants are read with their zeros: any order of dimensions, blocks, dense and CSR levels; contradictions are one error."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded import tflite_graph
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, run_litert

import qconvert
from qconvert.conversion.report import remarks
from qconvert.errors import InvalidModelError, UnsupportedError

pytestmark = pytest.mark.litert

_VECTORS = {"Int32Vector": np.int32, "Uint16Vector": np.uint16, "Uint8Vector": np.uint8}


def packed(dense: Any, order: list[int], blocks: dict[int, int], formats: list[str], vector: str = "Int32Vector") -> tuple[Any, Any]:
    """The values that a format stores of an array, and its SparsityParametersT.

    Args:
        dense: the array.
        order: of its dimensions, and after them of the blocks.
        blocks: dimension -> elements of a block.
        formats: "dense" or "sparse" for each level.
        vector: of segments and indices.
    """
    rank, axes = dense.ndim, list(blocks)
    sizes = [size // blocks.get(axis, 1) for axis, size in enumerate(dense.shape)] + [blocks[axis] for axis in axes]
    shape = [part for axis in range(rank) for part in ((sizes[axis], blocks[axis]) if axis in blocks else (sizes[axis],))]
    places = {axis: axis + sum(other < axis for other in axes) for axis in range(rank)}
    parts = [*places.values(), *(places[axis] + 1 for axis in axes)]
    tree = dense.reshape(shape).transpose([parts[dimension] for dimension in order])
    nodes, levels = [tree], []
    for dimension, form in zip(order, formats, strict=True):
        size = sizes[dimension]
        if form == "dense":
            levels.append(schema.DimensionMetadataT(format=schema.DimensionType.DENSE, denseSize=size))
            nodes = [node[index] for node in nodes for index in range(size)]
            continue
        kept = [[index for index in range(size) if np.any(node[index])] for node in nodes]
        segments, indices = np.cumsum([0, *map(len, kept)]), list(itertools.chain(*kept))
        number, table = getattr(schema.SparseIndexVector, vector), getattr(schema, f"{vector}T")
        made = [table(values=np.asarray(values, _VECTORS[vector])) for values in (segments, indices)]
        level = schema.DimensionMetadataT(format=schema.DimensionType.SPARSE_CSR, arraySegmentsType=number, arrayIndicesType=number)
        level.arraySegments, level.arrayIndices = made
        levels.append(level)
        nodes = [node[index] for node, found in zip(nodes, kept, strict=True) for index in found]
    sparsity = schema.SparsityParametersT(traversalOrder=np.array(order, np.int32), dimMetadata=levels)
    if axes:
        sparsity.blockMap = np.array(axes, np.int32)
    return np.array([node[()] for node in nodes], dense.dtype), sparsity


@st.composite
def formats(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """An array, and how a format stores it."""
    blocks = {}
    shape = []
    for axis in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 4))
        if draw(st.booleans()):
            blocks[axis] = draw(st.integers(1, 3))
            size *= blocks[axis]
        shape.append(size)
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    dtype = draw(st.sampled_from(["int8", "float32", "float16"]))
    dense = (rng.integers(-9, 9, shape) * (rng.random(shape) < draw(st.sampled_from([0.1, 0.5, 1.0])))).astype(dtype)
    dense.flat[0] = 1  # a constant without any bytes is none
    rank = len(shape)
    order = [*draw(st.permutations(range(rank))), *draw(st.permutations(range(rank, rank + len(blocks))))]
    levels = ["dense" if dimension >= rank else draw(st.sampled_from(["dense", "sparse"])) for dimension in order]
    values, sparsity = packed(dense, order, blocks, levels, draw(st.sampled_from(list(_VECTORS))))
    return dense, values, sparsity


def constant_model(dense: Any, values: Any, sparsity: Any) -> bytes:
    """DENSIFY of a constant, which a RESHAPE hands on as the output: all types have one."""
    w = TensorSpec("w", dense.shape, dense.dtype.name, data=values, sparsity=sparsity)
    tensors = [w, TensorSpec("d", dense.shape, dense.dtype.name), TensorSpec("y", dense.shape, dense.dtype.name)]
    tensors.append(TensorSpec("shape", (dense.ndim,), "int32", data=np.array(dense.shape, np.int32)))
    return model([OpSpec("DENSIFY", ["w"], ["d"], {}), OpSpec("RESHAPE", ["d", "shape"], ["y"], {})], tensors, [], ["y"])


@pytest.mark.property
@settings(max_examples=60)
@given(formats())
def test_every_format_gives_the_array(case: tuple[Any, Any, Any]) -> None:
    graph = tflite_graph(constant_model(*case))
    (op,) = graph.ops
    found = graph.constant(op.inputs[0])
    assert found is not None
    np.testing.assert_array_equal(found, case[0])
    assert found.dtype == case[0].dtype


@pytest.mark.cross_section
def test_litert_takes_them_for_the_same_numbers() -> None:
    """Of float32 and int8, which its DENSIFY has."""
    rng = np.random.default_rng(5)
    for dtype, blocks in itertools.product(("float32", "int8"), ({}, {1: 4}, {0: 2, 1: 4})):
        dense = (rng.integers(1, 9, (8, 16)) * (rng.random((8, 16)) < 0.3)).astype(dtype)
        order = list(range(2 + len(blocks)))
        values, sparsity = packed(dense, order, blocks, ["dense", "sparse"] + ["dense"] * len(blocks))
        np.testing.assert_array_equal(run_litert(constant_model(dense, values, sparsity), [])[0], dense)


def sparse_layer() -> bytes:
    """FULLY_CONNECTED of float32 by sparse weights, which LiteRT multiplies as they are."""
    rng = np.random.default_rng(6)
    dense = (rng.normal(0, 1, (8, 16)) * (rng.random((8, 16)) < 0.3)).astype(np.float32)
    values, sparsity = packed(dense, [0, 1], {}, ["dense", "sparse"])
    w = TensorSpec("w", dense.shape, "float32", data=values, sparsity=sparsity)
    tensors = [TensorSpec("x", (2, 16), "float32"), w, TensorSpec("b", (8,), "float32", data=np.arange(8, dtype=np.float32))]
    return model([OpSpec("FULLY_CONNECTED", ["x", "w", "b"], ["y"], {})], [*tensors, TensorSpec("y", (2, 8), "float32")], ["x"], ["y"])


@pytest.mark.onnxruntime
def test_a_model_with_sparse_weights_goes_to_onnx(tmp_path: Any) -> None:
    (tmp_path / "x.tflite").write_bytes(sparse_layer())
    report = qconvert.convert(tmp_path / "x.tflite", tmp_path / "y.onnx")
    assert any("1 sparse constant has all zeros now ('w')" in str(change) for change in report.changes)
    assert qconvert.check(tmp_path / "x.tflite", tmp_path / "y.onnx", kernels="litert:reference").passed
    assert remarks(qconvert.load(tmp_path / "y.onnx")) == ()


DENSE = np.diag(np.arange(1, 9, dtype=np.float32))
VALUES, SPARSITY = packed(DENSE, [0, 1, 2], {1: 4}, ["dense", "sparse", "dense"])
CSR = SPARSITY.dimMetadata[1]


def changed(**fields: Any) -> Any:
    """The format with other fields of its own, or of its sparse level."""
    made = schema.SparsityParametersT(traversalOrder=SPARSITY.traversalOrder, blockMap=SPARSITY.blockMap, dimMetadata=SPARSITY.dimMetadata)
    level = schema.DimensionMetadataT(**vars(CSR))
    for name, value in fields.items():
        setattr(made if hasattr(made, name) else level, name, value)
    if "dimMetadata" not in fields:
        made.dimMetadata = [SPARSITY.dimMetadata[0], level, SPARSITY.dimMetadata[2]]
    return made


def vector(*values: int) -> Any:
    return schema.Int32VectorT(values=np.array(values, np.int32))


@pytest.mark.parametrize(
    "sparsity",
    [
        changed(traversalOrder=None),
        changed(traversalOrder=np.array([0, 0, 2], np.int32)),
        changed(traversalOrder=np.array([0, 1, 3], np.int32)),
        changed(blockMap=np.array([5], np.int32)),
        changed(blockMap=np.array([-1], np.int32)),
        changed(blockMap=np.array([1, 1], np.int32)),
        changed(blockMap=None),
        changed(dimMetadata=[]),
        changed(dimMetadata=[SPARSITY.dimMetadata[0], CSR, schema.DimensionMetadataT(denseSize=0)]),
        changed(dimMetadata=[SPARSITY.dimMetadata[0], CSR, schema.DimensionMetadataT(denseSize=3)]),
        changed(dimMetadata=[SPARSITY.dimMetadata[0], CSR, schema.DimensionMetadataT(denseSize=-4)]),
        changed(dimMetadata=[schema.DimensionMetadataT(denseSize=2**31 - 1), CSR, SPARSITY.dimMetadata[2]]),
        changed(format=7),
        changed(arraySegments=None, arraySegmentsType=0),
        changed(arraySegments=vector(0, 1)),
        changed(arraySegments=vector(0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1)),
        changed(arraySegments=vector(0, 1, 2, 3, 2, 5, 6, 7, 8)),
        changed(arraySegments=vector(-1, 1, 2, 3, 4, 5, 6, 7, 8)),
        changed(arrayIndices=vector(0, 0, 0, 0, 1, 1, 1, 2)),
        changed(arrayIndices=vector(0, 0, 0, 0, 1, 1, 1, -1)),
        changed(arraySegments=vector(0, 2, 2, 3, 4, 5, 6, 7, 8)),
    ],
)
def test_a_format_that_contradicts_itself_is_one_error(sparsity: Any) -> None:
    with refused(InvalidModelError, "invalid-sparsity"):
        tflite_graph(constant_model(DENSE, VALUES, sparsity))


@pytest.mark.parametrize("values", [VALUES[:-1], np.append(VALUES, np.float32(1)), VALUES[:0]])
def test_too_few_or_too_many_values_are_one_error(values: Any) -> None:
    with pytest.raises(qconvert.QConvertError):
        tflite_graph(constant_model(DENSE, values, SPARSITY))


def test_a_small_file_does_not_become_gigabytes() -> None:
    dense = np.zeros((4, 4), np.float32)
    values, sparsity = packed(dense + np.eye(4, dtype=np.float32), [0, 1], {}, ["dense", "sparse"])
    w = TensorSpec("w", (2**15, 2**15), "float32", data=values, sparsity=sparsity)
    y = replace(w, name="y", data=None, sparsity=None)
    with refused(InvalidModelError, "invalid-sparsity", holds=(4,)):
        tflite_graph(model([OpSpec("DENSIFY", ["w"], ["y"], {})], [w, y], [], ["y"]))


def test_a_densify_of_data_is_refused() -> None:
    x, y = TensorSpec("x", (4,), "float32"), TensorSpec("y", (4,), "float32")
    with refused(UnsupportedError, "not-constant"):
        tflite_graph(model([OpSpec("DENSIFY", ["x"], ["y"], {})], [x, y], ["x"], ["y"]))
