"""Networks split into files: the whole runs as the source does, the region that differs is named, and manifests that lie are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_graphs import random_graph
from refusals import refused

from qconvert import Graph, QConvertError, check, load, partition, save
from qconvert.errors import FileAccessError, InvalidModelError, OptionError
from qconvert.evaluate import evaluate
from qconvert.files import file_digest
from qconvert.graph import Array
from qconvert.partitioning.manifest import read_manifest
from qconvert.plugins import temporary_plugin
from qconvert.rules.validation import validate
from qconvert.streaming import Session
from qconvert.testing import random_inputs
from tests.partitioning import simulator
from tests.partitioning.cutting import fussy, network, t
from tests.partitioning.test_graphs import counter

FIXTURES = Path(__file__).parents[2] / "fixtures"
KEYWORDS = FIXTURES / "tiny_kws_dscnn_int8.tflite"
RESNET = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
SVDF = FIXTURES / "tflm_keyword_svdf_int8.tflite"
STREAMING = FIXTURES / "mww_okay_nabu_streaming_int8.tflite"


@pytest.fixture(autouse=True)
def plugin() -> Iterator[None]:
    with temporary_plugin(simulator, "simulator"):
        yield
    simulator.FAULTS.clear()


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_artefacts_of_a_code_generator_and_the_rest_in_onnxruntime(tmp_path: Path) -> None:
    found = partition(RESNET, "sim-npu", split=tmp_path / "parts")
    assert found.regions[0].operators == {"Conv": 3}
    manifest = read_manifest(tmp_path / "parts" / "manifest.json")
    assert found.files == (str(tmp_path / "parts" / "manifest.json"),)
    assert [(part.name, part.runtime.partition(":")[0], part.format) for part in manifest.parts][:3] == [
        ("sim-npu_0", "simulator", ""), ("rest_0", "onnxruntime", "onnx"), ("sim-npu_1", "simulator", ""),
    ]  # fmt: skip
    assert {name for part in manifest.parts for name in (part.model.file,)} <= set(names(tmp_path / "parts"))
    report = check(RESNET, tmp_path / "parts" / "manifest.json", samples=2, per_op=True)
    assert report.verdict == "passed", report.problems
    assert all(item.equal == 1 for item in report.outputs)
    assert {item.verdict for item in report.operators} <= {"equal", "one rounding", "requantized"}


@pytest.mark.litert
@pytest.mark.torch
@pytest.mark.parametrize(("target", "suffix"), [("torch-x86", ".pt2"), ("torch-modules", ".pt")])
def test_files_have_the_suffix_of_their_targets_form(target: str, suffix: str, tmp_path: Path) -> None:
    """PyTorch's programs and modules are two forms of one format, told apart by their names."""
    found = partition(FIXTURES / "tiny_ad_toycar_int8.tflite", target, split=tmp_path / "parts")
    assert [part.model.file for part in read_manifest(Path(found.files[0])).parts] == [f"00_{target}_0{suffix}"]
    report = check(FIXTURES / "tiny_ad_toycar_int8.tflite", found.files[0], samples=1)
    assert report.verdict == "passed" and report.outputs[0].equal == 1, report.problems


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_the_region_that_differs_is_named(tmp_path: Path) -> None:
    simulator.FAULTS.add("weights")
    partition(RESNET, "sim-npu", split=tmp_path / "parts")
    report = check(RESNET, tmp_path / "parts" / "manifest.json", samples=1)
    assert report.verdict == "not equal"
    wrong = [text for text in report.problems if text.endswith("computes values that differ from the source's")]
    assert "the region 'sim-npu_0' of sim-npu (00_sim-npu_0.sim) computes values that differ from the source's" in wrong
    assert not any("rest_" in text for text in wrong), "each part is fed with the source's own values"


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_a_weight_that_somebody_changed_in_a_part_is_found(tmp_path: Path) -> None:
    """With the hash of what the file is now, so that the manifest agrees with it."""
    import onnx
    from onnx import numpy_helper

    partition(RESNET, "tensorrt", split=tmp_path / "parts")
    file = tmp_path / "parts" / "00_tensorrt_0.onnx"
    before, model = file_digest(file), onnx.load(file)
    weights = next(item for item in model.graph.initializer if len(item.dims) == 4)
    data = numpy_helper.to_array(weights).copy()
    data.reshape(-1)[5] ^= 64
    weights.CopyFrom(numpy_helper.from_array(data, weights.name))
    onnx.save(model, file)
    place = tmp_path / "parts" / "manifest.json"
    place.write_text(place.read_text().replace(before, file_digest(file)))
    report = check(RESNET, place, samples=1)
    assert report.verdict == "not equal"
    assert any("the region 'tensorrt_0' of tensorrt" in text for text in report.problems), report.problems


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_parts_of_one_operator_of_the_source_are_judged_together(tmp_path: Path) -> None:
    """A recurrent layer of a .tflite file is several operators here: tensors between them are none of the file's."""
    passes = ("lift_states", "dynamic_range", "fuse_recurrence", "assign_layout", "states_to_io")
    npu = fussy("npu", ("Concat", "Reshape", "Slice"), format="onnx", layout="channels_first", passes=passes)
    model = FIXTURES / "recurrent" / "lstm_both_ways_float.tflite"
    assert partition(model, npu, split=tmp_path / "parts").regions
    report = check(model, tmp_path / "parts" / "manifest.json", samples=1)
    assert report.verdict == "passed", report.problems
    assert not [item for item in report.operators if item.verdict == "not compared"]


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_states_cross_from_part_to_part(tmp_path: Path) -> None:
    """The memories of seven SVDFs are in the rest or in regions, and the network remembers as LiteRT does."""
    found = partition(SVDF, "tensorrt", split=tmp_path / "parts")
    assert {kind for region in found.regions for kind in region.operators} == {"Gemm"}
    report = check(SVDF, tmp_path / "parts" / "manifest.json", samples=1)
    assert report.verdict == "passed" and report.outputs[0].equal == 1
    manifest = read_manifest(tmp_path / "parts" / "manifest.json")
    assert len(manifest.states) == 7 and all(state.reads and state.written for state in manifest.states)
    session = Session(tmp_path / "parts" / "manifest.json")
    source = Session(SVDF)
    for _ in range(2):
        for seed in range(6):
            value = np.random.default_rng(seed).integers(-3000, 3000, (1, 96)).astype(np.int16)
            results = [next(iter(one.run(dict.fromkeys(one.inputs, value)).values())) for one in (source, session)]
            np.testing.assert_array_equal(*results)
        session.reset()
        source.reset()


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_states_that_files_of_regions_hold(tmp_path: Path) -> None:
    """tflite-micro's files have variables; the Sigmoid, which the copy of the target lacks, is in onnxruntime."""
    from qconvert.plugins import target_named

    micro = target_named("tflite-micro")
    weak = micro.derive(name="weak-micro", kernels=micro.kernels.without("Sigmoid"), floats=False)
    found = partition(STREAMING, weak, split=tmp_path / "parts")
    assert [region.groups for region in found.regions] == [{"states": 6}]
    assert read_manifest(tmp_path / "parts" / "manifest.json").states == ()
    report = check(STREAMING, tmp_path / "parts" / "manifest.json", samples=1)
    assert report.verdict == "passed" and report.outputs[0].equal == 1


@pytest.mark.litert
def test_the_rest_for_another_target(tmp_path: Path) -> None:
    partition(KEYWORDS, "sim-npu", split=tmp_path / "parts", fallback="tflite")
    assert [part.runtime for part in read_manifest(tmp_path / "parts" / "manifest.json").parts] == ["simulator:numpy", "litert:default"]
    assert check(KEYWORDS, tmp_path / "parts" / "manifest.json", samples=1).verdict == "passed"


def evaluated(graph: Graph, seed: int) -> list[Array]:
    return list(evaluate(graph, random_inputs(graph, seed)).values())


@pytest.mark.formats
@pytest.mark.parametrize("seed", range(25))
def test_files_of_random_graphs_hold_the_network(seed: int, tmp_path: Path) -> None:
    """What is read back of all parts computes what the graph does."""
    graph = random_graph(seed)
    graph = Graph(graph.name, graph.tensors, graph.ops, graph.inputs, graph.outputs)
    rng = np.random.default_rng(seed)
    kinds = [kind for kind in sorted({op.kind for op in graph.ops}) if rng.random() < 0.5]
    partition(graph, fussy("npu", kinds), split=tmp_path / "parts", fallback="generic")
    again = load(tmp_path / "parts" / "manifest.json")
    validate(again)
    assert (again.inputs, again.outputs) == (graph.inputs, graph.outputs)
    for one, other in zip(evaluated(graph, seed), evaluated(again, seed), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other.astype(np.float64), one.astype(np.float64), rtol=1e-5, atol=1e-5 if one.dtype.kind == "f" else 0)


@pytest.mark.formats
@pytest.mark.parametrize("kinds", [("Add", "Neg"), ("Neg",), (), ("Add", "Neg", "Sin", "ReadState", "WriteState")])
def test_states_of_a_composed_graph(kinds: tuple[str, ...], tmp_path: Path) -> None:
    graph = counter()
    partition(graph, fussy("npu", kinds), split=tmp_path / "parts", fallback="generic")
    again = load(tmp_path / "parts" / "manifest.json")
    before: dict[str, Array] = {}
    after: dict[str, Array] = {}
    for seed in range(3):
        inputs = random_inputs(graph, seed)
        np.testing.assert_allclose(*(evaluate(g, inputs, s)["w"] for g, s in ((graph, before), (again, after))))


@pytest.mark.formats
def test_inputs_and_constants_that_are_outputs(tmp_path: Path) -> None:
    graph = network([], [t("x"), t("w", data=[1, 2])], ["x"], ["x", "w"])
    partition(graph, fussy("npu", ("Neg",)), split=tmp_path / "parts")
    found = Session(tmp_path / "parts" / "manifest.json").run({"x": np.array([3, 4], np.float32)})
    assert {name: value.tolist() for name, value in found.items()} == {"x": [3, 4], "w": [1, 2]}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split network of two parts, made once."""
    folder = tmp_path_factory.mktemp("split") / "parts"
    with temporary_plugin(simulator, "simulator"):
        partition(KEYWORDS, "sim-npu", split=folder)
    return folder


def first_part(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda document: change(document["parts"][0])


#: What somebody does to manifest.json, and what is said of it.
LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "another version": (lambda d: d.update(qconvert_partition=2), "unknown-version", "2"),
    "no parts": (lambda d: d.pop("parts"), "missing-member", "'parts'"),
    "more": (lambda d: d.update(surprise=1), "unknown-member", "'surprise'"),
    "parts that are none": (lambda d: d.update(parts=[1]), "wrong-type", "parts[0]"),
    "a path": (first_part(lambda p: p["model"].update(file="../00.sim")), "file-outside", "'../00.sim'"),
    "an absolute path": (first_part(lambda p: p["model"].update(file="/etc/passwd")), "file-outside", "'/etc/passwd'"),
    "a device": (first_part(lambda p: p["model"].update(file="C:x")), "file-outside", "'C:x'"),
    "itself": (first_part(lambda p: p["model"].update(file="manifest.json")), "file-outside", "'manifest.json'"),
    "a file that is not there": (first_part(lambda p: p["model"].update(file="none.sim")), "file-not-found", "'none.sim'"),
    "another hash": (first_part(lambda p: p["model"].update(sha256="0" * 64)), "file-changed", "00_sim-npu_0.sim"),
    "a part twice": (lambda d: d["parts"].append(d["parts"][0]), "duplicate-name", "00_sim-npu_0.sim"),
    "the wrong order": (lambda d: d["parts"].reverse(), "value-not-computed", "rest_0"),
    "an output that is another": (lambda d: d.update(outputs=["nobody"]), "value-missing", "'nobody'"),
    "an input that a part computes": (lambda d: d.update(inputs=[*d["inputs"], d["outputs"][0]]), "duplicate-name", "'Identity'"),
    "a file whose name is too long": (first_part(lambda p: p["model"].update(file="x" * 300)), "file-not-found", "xxx"),
    "a runtime that is not there": (first_part(lambda p: p.update(runtime="nowhere:x")), "unknown-kernels", "'nowhere:x'"),
    "a runtime of other files": (
        first_part(lambda p: p.update(runtime="onnxruntime:optimized")),
        "model-refused",
        "onnxruntime",
    ),
    "a runtime that runs code": (
        lambda d: d["parts"][1].update(runtime="torch:trusted", format="torch"),
        "runtime-runs-code",
        "torch:trusted",
    ),
    "a runtime of another format": (lambda d: d["parts"][1].update(runtime="litert:default"), "runtime-of-another-format", "onnx"),
    "a format that is none": (lambda d: d["parts"][1].update(format="nothing"), "runtime-of-another-format", "nothing"),
    "fewer values": (first_part(lambda p: p.update(inputs=[])), "part-differs", "0"),
    "neither format nor graph": (first_part(lambda p: p.update(graph=None)), "missing-member", "parts[0]"),
    "a state of no value": (lambda d: d.update(states=[{"name": "s", "reads": [], "written": ""}]), "state-without-value", "'s'"),
    "a negative number": (first_part(lambda p: p.update(macs=-1)), "number-out-of-range", "macs"),
}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(lie: str, parts: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(parts, tmp_path / "parts"))
    change, rule, named = LIES[lie]
    document = json.loads((folder / "manifest.json").read_text())
    change(document)
    (folder / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(QConvertError) as caught:
        Session(folder / "manifest.json")
        load(folder / "manifest.json")
    assert caught.value.rule == rule and named in str(caught.value)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "empty-file"),
        (b"{", "not-json"),
        (b"[]", "not-this-format"),
        (b"{}", "not-this-format"),
        (b"nothing", "not-json"),
        (b'{"qconvert_partition": 1}', "missing-member"),
        (b"\xff\xfe", "not-json"),
        (b'{"a": 1, "a": 2}', "not-json"),
        (b"[" * 10**5, "not-json"),
    ],
)
def test_a_file_that_is_no_manifest(data: bytes, rule: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with refused(InvalidModelError, rule):
        load(tmp_path / "manifest.json")


@pytest.mark.formats
def test_files_that_were_changed_are_refused(parts: Path, tmp_path: Path) -> None:
    """Each byte of a part, whatever it is, counts; a part with the hash of what it is now is read, and what is wrong is said."""
    for name in (item for item in names(parts) if item != "manifest.json"):
        folder = Path(shutil.copytree(parts, tmp_path / name))
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(bytes(data))
        with refused(InvalidModelError, "file-changed"):
            load(folder / "manifest.json")
        text = (folder / "manifest.json").read_text()
        (folder / name).write_bytes(bytes(data[: len(data) // 2]))
        (folder / "manifest.json").write_text(text.replace(file_digest(parts / name), file_digest(folder / name)))
        with pytest.raises(QConvertError):
            load(folder / "manifest.json")
            Session(folder / "manifest.json")


@pytest.mark.formats
@pytest.mark.parametrize(
    ("fault", "target", "error", "rule", "named"),
    [
        ("raises", "sim-npu", RuntimeError, None, "the toolchain is broken"),
        ("silent", "sim-npu", OptionError, "generator-without-file", "'sim-npu_0'"),
        ("", "lost-npu", OptionError, "unknown-kernels", "'nowhere'"),
    ],
)
def test_a_code_generator_that_fails_leaves_nothing(
    fault: str, target: str, error: Any, rule: str | None, named: str, tmp_path: Path
) -> None:
    simulator.FAULTS.add(fault)
    with pytest.raises(error, match=named) as caught:
        partition(KEYWORDS, target, split=tmp_path / "parts")
    assert getattr(caught.value, "rule", None) == rule
    assert list(tmp_path.iterdir()) == []


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("fault", "said"), [("types", "as float64; its part has int8"), ("outputs", "gives 0 values; its part gives 1")])
def test_an_artefact_that_gives_something_else(fault: str, said: str, parts: Path) -> None:
    simulator.FAULTS.add(fault)
    report = check(KEYWORDS, parts / "manifest.json", samples=1)
    assert report.verdict == "inconclusive"
    assert "the region 'sim-npu_0' of sim-npu (00_sim-npu_0.sim)" in report.unjudged[0] and said in report.unjudged[0]


@pytest.mark.formats
def test_folders_that_are_there(tmp_path: Path) -> None:
    graph, npu = counter(), fussy("npu", ("Add",))
    (tmp_path / "empty").mkdir()
    partition(graph, npu, split=tmp_path / "empty")
    with refused(FileAccessError, "file-exists"):
        partition(graph, npu, split=tmp_path / "empty")
    before = names(tmp_path / "empty")
    partition(graph, fussy("npu", ("Add", "Sin", "Neg", "ReadState", "WriteState")), split=tmp_path / "empty", force=True)
    assert len(names(tmp_path / "empty")) < len(before), "files of the split that was replaced are gone"
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diary.txt").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "manifest.json").write_text("{}")
    for name, rule in (("file", "not-a-folder"), ("other", "folder-not-empty"), ("foreign", "not-a-split")):
        with refused(FileAccessError, rule, holds=(name,)):
            partition(graph, npu, split=tmp_path / name, force=True)
    with refused(FileAccessError, "not-writable"):
        partition(graph, npu, split=tmp_path / "none" / "parts")
    assert names(tmp_path / "other") == ["diary.txt"]


@pytest.mark.formats
def test_a_source_in_the_folder_is_not_replaced(tmp_path: Path) -> None:
    partition(counter(), fussy("npu", ("Add",)), split=tmp_path / "parts")
    save(counter(), tmp_path / "parts" / "values.qgraph", force=True)
    with refused(OptionError, "source-overwritten"):
        partition(tmp_path / "parts" / "values.qgraph", fussy("npu", ("Add",)), split=tmp_path / "parts", force=True)


@pytest.mark.formats
def test_a_rest_that_its_target_does_not_take(tmp_path: Path) -> None:
    with refused(OptionError, "unknown-target", holds=("nowhere",)):
        partition(counter(), fussy("npu", ("Add",)), split=tmp_path / "parts", fallback="nowhere")
    with pytest.raises(QConvertError):
        partition(SVDF, fussy("npu", ("Gemm",)), split=tmp_path / "parts", fallback="tflite-micro")
    assert list(tmp_path.iterdir()) == []
