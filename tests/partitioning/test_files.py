"""Partitioned networks as files: local functions in ONNX, composites in TFLite. What is read back is the network, and it runs as before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from random_graphs import random_graph
from refusals import refused

from qconvert import Graph, Target, check, convert, diff, load, partition, save
from qconvert.conversion import normalize
from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.local_functions import REGIONS, inline_regions, make_region_functions
from qconvert.formats.tflite.reader import read_bytes
from qconvert.graph.metadata import origin
from qconvert.kernels import Kernel, Kernels
from qconvert.plugins import target_named
from qconvert.rewriting.control_flow import without_calls
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.testing import random_inputs
from tests.partitioning.cutting import fussy

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures"
KEYWORDS = FIXTURES / "tiny_kws_dscnn_int8.tflite"
RESNET = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
TORCH = FIXTURES / "onnx" / "torch_fx_qnnpack_vision.onnx"
STREAMING = FIXTURES / "mww_okay_nabu_streaming_int8.tflite"
NPU = Target("npu", "qgraph", "", floats=False, kernels=Kernels((Kernel(("Conv", "Gemm", "AveragePool", "Concat"), ("int8", "uint8")),)))


def functions(path: Path) -> dict[str, int]:
    """The functions of an ONNX file and how many nodes each has."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert Counter(node.op_type for node in model.graph.node if node.domain == REGIONS) == Counter(item.name for item in model.functions)
    return {item.name: len(item.node) for item in model.functions}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("model", [RESNET, TORCH], ids=lambda path: path.stem)
def test_regions_are_local_functions_in_onnx(model: Path, tmp_path: Path) -> None:
    found = partition(model, NPU, tmp_path / "cut.onnx")
    assert len(found.regions) > 1
    assert list(functions(tmp_path / "cut.onnx")) == [region.name for region in found.regions]
    report = check(model, tmp_path / "cut.onnx", samples=2)
    assert report.verdict == "passed" and all(item.equal == 1 for item in report.outputs), report.problems
    assert check(model, tmp_path / "cut.onnx", samples=1, per_op=True).verdict == "passed"
    if model is TORCH:
        convert(model, tmp_path / "plain.onnx")
        assert diff(load(tmp_path / "cut.onnx"), load(tmp_path / "plain.onnx")) == []


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("model", [RESNET, KEYWORDS, STREAMING], ids=lambda path: path.stem)
def test_regions_are_composites_in_tflite(model: Path, tmp_path: Path) -> None:
    """LiteRT runs them by their subgraphs; regions with variables stay as they are."""
    found = partition(model, target_named("tflite").derive(name="npu", floats=False), tmp_path / "cut.tflite")
    assert found.regions
    assert model is STREAMING or b"qconvert.npu" in (tmp_path / "cut.tflite").read_bytes()
    report = check(model, tmp_path / "cut.tflite", samples=1)
    assert report.verdict == "passed" and all(item.equal == 1 for item in report.outputs), report.problems
    if model is not STREAMING:
        assert diff(load(model), load(tmp_path / "cut.tflite")) == []


def test_formats_without_functions_have_the_operators(tmp_path: Path) -> None:
    """A partitioned graph goes to any format: where that has no functions, the operators stand in the place of calls."""
    from qconvert.plugins import Format, hookimpl, temporary_plugin

    seen: list[Graph] = []

    class Plugin:
        @hookimpl
        def qconvert_formats(self) -> list[Format]:
            return [Format("flat", (".flat",), "no functions", write=lambda graph, path, options: seen.append(graph) or path.touch())]

    found = partition(RESNET, NPU)
    with temporary_plugin(Plugin(), "flat"):
        save(found.graph, tmp_path / "cut.flat")
        partition(RESNET, NPU, tmp_path / "again.flat")
    assert all(diff(load(RESNET), graph) == [] for graph in seen) and len(seen) == 2


def test_what_files_say_of_their_regions(tmp_path: Path) -> None:
    for suffix in (".onnx", ".tflite"):
        found = partition(RESNET, NPU, tmp_path / f"cut{suffix}")
        said = origin(load(tmp_path / f"cut{suffix}").metadata)
        assert str(said["qconvert.regions"]).count('"npu"') == len(found.regions)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_in_onnx(seed: int, tmp_path: Path) -> None:
    """With functions and without, onnxruntime gives the same, and the same graph is read."""
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    kinds = [kind for kind in sorted({op.kind for op in graph.ops}) if rng.random() < 0.6]
    found = partition(graph, fussy("npu", kinds), tmp_path / "cut.onnx")
    flat, _ = normalize(without_calls(found.graph), target_named("generic"))
    save(flat, tmp_path / "flat.onnx")
    models = [OnnxRuntime(tmp_path / f"{name}.onnx", optimize=False) for name in ("cut", "flat")]
    values = random_inputs(graph, seed)
    one, other = (model.run(dict(zip(model.inputs, values.values(), strict=True))) for model in models)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    again = load(tmp_path / "cut.onnx")
    assert not again.functions and Counter(op.kind for op in again.ops)["Opaque"] == 0


def cut_model() -> Any:
    """x -> Relu -> [Neg -> Abs] -> Relu -> y, the middle a region."""
    nodes = [helper.make_node(kind, [a], [b], name=kind + b) for kind, a, b in
             (("Relu", "x", "a"), ("Neg", "a", "b"), ("Abs", "b", "c"), ("Relu", "c", "y"))]  # fmt: skip
    sides = [[helper.make_tensor_value_info(name, 1, [2])] for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", *sides), opset_imports=[helper.make_opsetid("", 17)])
    assert make_region_functions(model, ["", "npu 0", "npu 0", ""], {"npu 0": "npu"})
    return model


def test_functions_of_regions_and_back() -> None:
    model = cut_model()
    assert [node.op_type for node in model.graph.node] == ["Relu", "npu_0", "Relu"]
    assert model.functions[0].doc_string == "a region for npu"
    onnx.checker.check_model(model)
    inline_regions(model)
    assert [node.output[0] for node in model.graph.node] == ["a", "b", "c", "y"]
    assert not model.functions and [item.domain for item in model.opset_import] == [""]


def test_nodes_that_would_wait_for_each_other_stay() -> None:
    """What one region computes goes through the rest into it again."""
    nodes = [helper.make_node(kind, [a], [b]) for kind, a, b in (("Neg", "x", "a"), ("Relu", "a", "b"), ("Abs", "b", "y"))]
    sides = [[helper.make_tensor_value_info(name, 1, [2])] for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", *sides))
    before = model.SerializeToString()
    assert not make_region_functions(model, ["npu", "", "npu"], {"npu": "npu"})
    assert model.SerializeToString() == before


def _twice(model: Any) -> None:
    model.graph.node[2].CopyFrom(helper.make_node("npu_0", ["c"], ["y"], domain=REGIONS))


def _clash(model: Any) -> None:
    model.graph.node[0].output[0] = "b"
    model.graph.node[1].input[0] = "b"


#: What somebody does to a file with regions: the functions mean what ONNX says they mean, whatever they are called.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "called twice": _twice,
    "an inner name outside": _clash,
    "formal names": lambda m: m.functions[0].input.__setitem__(0, "b2") or m.functions[0].node[0].input.__setitem__(0, "b2"),
    "an attribute": lambda m: m.functions[0].attribute.append("alpha"),
    "another opset": lambda m: m.functions[0].opset_import[0].__setattr__("version", 13),
    "nobody calls it": lambda m: m.functions.append(type(m.functions[0])(domain=REGIONS, name="idle", input=["q"], output=["q"])),
    "nodes in another order": lambda m: m.functions[0].node.extend([*reversed([type(n).FromString(n.SerializeToString())
                                                                              for n in m.functions[0].node])]) or
                                        m.functions[0].node.__delitem__(slice(0, 2)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_functions_in_the_domain_of_regions_that_somebody_else_wrote(change: str, tmp_path: Path) -> None:
    model: ModelProto = cut_model()
    CHANGES[change](model)
    onnx.save(model, tmp_path / "model.onnx")
    graph = load(tmp_path / "model.onnx")
    twice = {"Relu": 1, "Neg": 2, "Abs": 2}
    assert Counter(op.kind for op in graph.ops) == (twice if change == "called twice" else {"Relu": 2, "Neg": 1, "Abs": 1})


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:

    model = cut_model()
    model.functions[0].node[0].CopyFrom(helper.make_node("npu_0", ["a"], ["b"], domain=REGIONS))
    model.functions[0].opset_import.add(domain=REGIONS, version=1)
    onnx.save(model, tmp_path / "model.onnx")
    with refused(InvalidModelError, "recursive-function", where="function 'npu_0'"):
        load(tmp_path / "model.onnx")


def test_a_composite_of_a_file_cut_to_pieces_is_an_error(tmp_path: Path) -> None:
    from qconvert import QConvertError

    partition(KEYWORDS, NPU, tmp_path / "cut.tflite")
    data = bytearray((tmp_path / "cut.tflite").read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            damaged[place] ^= int(rng.integers(1, 256))
        try:
            assert isinstance(read_bytes(bytes(damaged), ""), Graph)
        except QConvertError:
            continue
