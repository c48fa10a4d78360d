"""Models as exporters write them (fixtures/onnx) and as onnxruntime's quantizer makes them (onnx_models): read, validated, written.

Whatever way the reader takes a model in, what is written must give outputs equal to the source's in onnxruntime without optimizations.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest

import qconvert
from qconvert.graph import Graph, Op

pytestmark = pytest.mark.onnxruntime

FIXTURES = sorted((Path(__file__).parents[3] / "fixtures/onnx").glob("*.onnx"))
SOURCES: dict[str, Any] = {**{path.stem: path.read_bytes for path in FIXTURES}, **onnx_models.CASES}
Array = np.ndarray[Any, np.dtype[Any]]


def loaded(data: bytes, folder: Path) -> Graph:
    """The graph of a model; the validity of what the reader gives is checked by load()."""
    path = folder / "source.onnx"
    path.write_bytes(data)
    return qconvert.load(path)


def written(graph: Graph, folder: Path, **options: Any) -> bytes:
    path = folder / "written.onnx"
    qconvert.save(graph, path, force=True, **options)
    return path.read_bytes()


def assert_equal_outputs(source: bytes, result: bytes, seeds: int = 2) -> None:
    for seed in range(seeds):
        inputs = onnx_models.random_inputs(source, seed)
        expected, actual = onnx_models.run(source, inputs), onnx_models.run(result, inputs)
        assert len(actual) == len(expected)
        for wanted, found in zip(expected, actual, strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(found, wanted)


def form_of(name: str) -> str:
    """The form of a source: quantize_dynamic and the weight-only quantizer make operators on integers too."""
    return "qoperator" if name.endswith("-qoperator") or "-dynamic-" in name else "qdq"


@pytest.mark.parametrize("name", SOURCES)
def test_outputs_stay_equal(name: str, tmp_path: Path) -> None:
    """Into the source's own form, and that model again: the second time changes nothing either."""
    source = SOURCES[name]()
    first = written(loaded(source, tmp_path), tmp_path, form=form_of(name))
    assert_equal_outputs(source, first)
    again = written(loaded(first, tmp_path), tmp_path, form=form_of(name))
    assert_equal_outputs(first, again, seeds=1)


def integer_operators(data: bytes) -> Counter[str]:
    """The operators of a model that compute on integers, without the conversions."""
    model = onnx.load_from_string(data)
    words = ("QLinear", "QGemm", "Integer", "NBits", "QAttention", "QEmbed", "DynamicQuantizeLSTM")
    return Counter(node.op_type for node in model.graph.node if any(word in node.op_type for word in words))


@pytest.mark.parametrize("name", [name for name in SOURCES if form_of(name) == "qoperator"])
def test_operators_on_integers_come_back(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]()
    result = written(loaded(source, tmp_path), tmp_path, form="qoperator")
    assert integer_operators(result) == integer_operators(source)


def alone(op: Op, graph: Graph) -> Graph:
    """A graph of one operator; its inputs that are not constant become the graph's."""
    inputs = tuple(dict.fromkeys(name for name in op.inputs if name and not graph[name].is_constant))
    names = {name for name in (*op.inputs, *op.outputs) if name}
    outputs = tuple(name for name in op.outputs if name)
    tensors = {name: graph[name] for name in graph.tensors if name in names}
    return Graph(name="alone", inputs=inputs, outputs=outputs, tensors=tensors, ops=(op,))


@pytest.mark.parametrize("name", [name for name in SOURCES if form_of(name) == "qdq" and name not in onnx_models.WIDE])
def test_forms_differ_by_one_step_at_most(name: str, tmp_path: Path) -> None:
    """Each operator by itself, as QDQ and as QOperator: the kernels on integers may round the other way, no more."""
    graph = loaded(SOURCES[name](), tmp_path)
    for op in graph.ops:
        if op.kind == "Opaque" or not all(graph[output].is_quantized for output in op.outputs if output):
            continue
        single = alone(op, graph)
        integers, floats = (written(single, tmp_path, form=form) for form in ("qoperator", "qdq"))
        if integers == floats:
            continue
        inputs = onnx_models.random_inputs(floats, seed=1)
        for found, wanted in zip(onnx_models.run(integers, inputs), onnx_models.run(floats, inputs), strict=True):
            assert found.dtype == wanted.dtype
            assert np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max(initial=0) <= 1, str(op)


WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: The input that holds the weights.
INTEGER_WEIGHTS = {"QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3}
#: What stands between a constant and its use.
PASSED = ("DequantizeLinear", "QuantizeLinear", "Clip", "Identity", "Transpose", "Cast")


def weights_in_source(data: bytes) -> Counter[str]:
    """How many operators of each type have constant quantized weights, found by following names in the ONNX model."""
    model = onnx.load_from_string(data)
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {value.name for value in model.graph.initializer}

    def passed(name: str) -> list[str]:
        """The operators between a constant and `name`; without a constant there, none."""
        chain = []
        while name in producers and producers[name].op_type in PASSED:
            chain.append(producers[name].op_type)
            name = producers[name].input[0]
        is_constant = name in constants or (name in producers and producers[name].op_type == "Constant")
        return [*chain, "constant"] if is_constant else []

    found: Counter[str] = Counter()
    for node in model.graph.node:
        if node.op_type in WEIGHTED and "DequantizeLinear" in passed(node.input[1]):
            found[node.op_type] += 1
        elif node.op_type in INTEGER_WEIGHTS and passed(node.input[INTEGER_WEIGHTS[node.op_type]]):
            found[node.op_type.removeprefix("QLinear").removeprefix("Q")] += 1
    return found


def weights_in_graph(graph: Graph) -> Counter[str]:
    producers = graph.producers()

    def is_weight(name: str) -> bool:
        while name in producers and producers[name].kind in ("Transpose", "Dequantize"):  # scales along inputs stay after a Dequantize
            name = producers[name].inputs[0]
        return graph[name].is_constant and graph[name].is_quantized

    return Counter(op.kind for op in graph.ops if op.kind in WEIGHTED and is_weight(op.inputs[1]))


#: Networks with operators that the canonical set has no form for. Their nodes are carried through, quantized weights and all.
CARRIED = {"matmul_vector": "a product with a vector"}


def carried_operators(graph: Graph) -> list[str]:
    return [str(op.attributes["op_type"]) for op in graph.ops if op.kind == "Opaque"]


@pytest.mark.parametrize("name", [name for name in SOURCES if "-dynamic-" not in name and "-int" not in name])
def test_weights_stay_quantized(name: str, tmp_path: Path) -> None:
    """Equal outputs alone would be had by carrying everything through as float operators or opaquely.

    Not for weights without quantized activations: those of a float MatMul stay after their Dequantize.
    """
    source = SOURCES[name]()
    graph = loaded(source, tmp_path)
    found = weights_in_graph(graph)
    if name.split("-")[0] in CARRIED:
        names = Counter(kind.removeprefix("QLinear").removeprefix("Q") for kind in carried_operators(graph))
        assert set(names) <= set(WEIGHTED)
        found += names
    assert found == weights_in_source(source)


@pytest.mark.parametrize("name", [path.stem for path in FIXTURES])
def test_fixtures_hold_known_operators_only(name: str, tmp_path: Path) -> None:
    expected = ["ConvTranspose"] if name in CARRIED else []
    assert carried_operators(loaded(SOURCES[name](), tmp_path)) == expected
