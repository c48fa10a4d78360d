"""Programs written for torch.export: what PyTorch computes with them, what they hold, and what is refused."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from formats.torch.written import inputs_of, loaded, needs_torch, run
from refusals import refused

import qconvert
from qconvert.conversion.normalizing import normalize
from qconvert.errors import MissingPackageError, OptionError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.torch.notes import Notes, with_notes
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.plugins import target_named
from qconvert.targets.audit import audit

pytestmark = pytest.mark.torch

FIXTURES = Path(__file__).parents[3] / "fixtures"
#: Models that use each kind of layer of the spine.
MODELS = [
    "tiny_ad_toycar_int8.tflite", "tiny_kws_dscnn_int8.tflite", "tiny_resnet_cifar10_int8.tflite", "tiny_wakeword_int8.tflite",
    "aww_int8.tflite", "tflm_seanet_conv_int16x8.tflite", "keras/keras_causal_int8.tflite", "keras/keras_transposed_int8.tflite",
    "onnx/micro_kws_m_static_qdq.onnx", "onnx/micro_kws_m_static_qoperator.onnx", "onnx/brevitas_int8.onnx",
    "onnx/torch_fx_fbgemm_attention.onnx", "onnx/ort_test_conv_follow_convtrans_s8.onnx",
]  # fmt: skip


def _normalized(path: Path, target: str = "torch") -> Graph:
    """The graph as the file has it."""
    from qconvert.conversion.converting import Given
    from qconvert.plugins import format_named, format_of

    chosen = target_named(target)
    return normalize(qconvert.load(path), chosen, **Given.of({}, format_of(path), format_named("torch"), (), chosen).passes)[0]


@needs_torch
@pytest.mark.parametrize("name", MODELS)
def test_the_program_computes_what_the_graph_means(name: str, tmp_path: Path) -> None:
    result = tmp_path / "model.pt2"
    qconvert.convert(FIXTURES / name, result)
    graph = _normalized(FIXTURES / name)
    feed = inputs_of(graph)
    expected, found = evaluate(graph, feed), run(loaded(result), graph, feed)
    for output, values in expected.items():
        assert found[output].dtype == values.dtype and found[output].shape == values.shape
        assert np.array_equal(found[output], values), f"{(found[output] != values).sum()} of {values.size} differ"


@needs_torch
@pytest.mark.parametrize(("name", "model"), [("vww", "tiny_vww_mobilenet_int8"), ("toycar", "tiny_ad_toycar_int8"), ("aww", "aww_int8")])
def test_litert_golden_outputs_are_reproduced(name: str, model: str) -> None:
    """Real inputs of MLPerf Tiny, and what LiteRT made of them."""
    from qconvert.data import load_inputs

    graph = qconvert.load(FIXTURES / f"{model}.tflite")
    module, quantization = qconvert.to_torch(graph), graph[graph.outputs[0]].quantization
    assert quantization is not None
    feeds, _ = load_inputs(graph, [FIXTURES / "mlperf_tiny" / name / "input"], 10)
    assert len(feeds) == 10
    for number, feed in enumerate(feeds):
        stored = run(module, graph, feed)[graph.outputs[0]].astype(np.float32)
        golden = np.fromfile(FIXTURES / "mlperf_tiny" / name / "output_tflite" / f"{number}.bin", np.float32)
        assert np.array_equal(((stored - np.float32(quantization.zero_point[0])) * quantization.scale[0]).reshape(-1), golden)


@needs_torch
def test_an_open_batch_stays_open(tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / "tiny_ad_toycar_int8.tflite", tmp_path / "model.pt2")
    graph = _normalized(FIXTURES / "tiny_ad_toycar_int8.tflite")
    module = loaded(tmp_path / "model.pt2")
    for batch in (1, 5):
        feed = inputs_of(graph, batch=batch)
        assert np.array_equal(run(module, graph, feed)["Identity"], evaluate(graph, feed)["Identity"])


@needs_torch
def test_sizes_that_an_export_tries_and_leaves_are_not_logged(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qconvert", "convert", FIXTURES / "digits/fx.pt", tmp_path / "model.pt2"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "with --input-shape: batch, height, width" in refused.stderr and "Traceback" not in refused.stderr
    subprocess.run([*command, "--input-shape", "1,1,8,8"], check=True)


def test_fast_numerics_are_pytorchs_own_form(tmp_path: Path) -> None:
    """Sums of whole numbers are nothing that a compiler recognizes; the targets for compilers have none."""
    calls = {}
    for name, options in {
        "exact": {},
        "fast": {"numerics": "fast"},
        "x86": {"target": "torch-x86"},
        "xnnpack": {"target": "torch-xnnpack"},
    }.items():
        qconvert.convert(FIXTURES / "tiny_wakeword_int8.tflite", tmp_path / f"{name}.pt2", **options)
        with zipfile.ZipFile(tmp_path / f"{name}.pt2") as archive:
            nodes = json.loads(archive.read("archive/models/model.json"))["graph_module"]["graph"]["nodes"]
            notes = json.loads(archive.read("archive/extra/qconvert.json"))
        calls[name] = {node["target"] for node in nodes}
        decomposed = {item["kind"] for item in notes["decomposed"]} & {"Conv", "Gemm"}
        assert decomposed == ({"Conv", "Gemm"} if name == "exact" else set())
        assert notes["metadata"].get("torch.numerics") == ("exact" if name == "exact" else None)
    dequantize = "torch.ops.quantized_decomposed.dequantize_per_channel.default"
    assert [name for name, found in calls.items() if dequantize in found] == ["fast", "x86", "xnnpack"]
    assert [name for name, found in calls.items() if "torch.ops.aten.round.default" in found] == ["exact"]


@needs_torch
def test_a_false_note_is_not_believed(tmp_path: Path) -> None:
    """The program rules: what it computes is what the graph means, whatever the note says of its operators."""
    qconvert.convert(FIXTURES / "tiny_ad_toycar_int8.tflite", tmp_path / "model.pt2")
    for name in ("scale", "kind", "inputs"):
        _tamper(tmp_path / "model.pt2", tmp_path / f"{name}.pt2", name)
        graph = qconvert.load(tmp_path / f"{name}.pt2")
        feed = inputs_of(graph)
        found = run(loaded(tmp_path / "model.pt2"), graph, feed)
        assert all(np.array_equal(found[key], values) for key, values in evaluate(graph, feed).items())
        assert sum(op.kind == "Gemm" and graph[op.inputs[0]].is_quantized for op in graph.ops) == 9


def _tamper(source: Path, result: Path, what: str) -> None:
    """A file whose notes say something else of the third operator."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(result, "w") as other:
        for entry in archive.namelist():
            data = archive.read(entry)
            if entry.endswith("extra/qconvert.json"):
                notes = json.loads(data)
                op = notes["decomposed"][2]
                if what == "scale":
                    op["quantizations"] = {
                        name: [quantization[0], quantization[1]] if len(quantization) == 3 else [quantization[0] * 2, quantization[1]]
                        for name, quantization in op["quantizations"].items()
                    }
                elif what == "kind":
                    op["kind"], op["attributes"] = "MatMul", {"trans_b": 1}
                else:
                    op["inputs"][1] = notes["decomposed"][3]["inputs"][1]
                data = json.dumps(notes).encode()
            other.writestr(entry, data)


@pytest.mark.end_to_end
@needs_torch
def test_a_file_loads_where_qconvert_is_not(tmp_path: Path) -> None:
    """Plain PyTorch and the import that registers quantized_decomposed are all that is needed."""
    qconvert.convert(FIXTURES / "tiny_wakeword_int8.tflite", tmp_path / "model.pt2")
    graph = qconvert.load(tmp_path / "model.pt2")
    feed = inputs_of(graph)
    np.savez(tmp_path / "feed.npz", *feed.values())
    code = """
import sys, numpy as np, torch
import torch.ao.quantization.fx._decomposed
module = torch.export.load("model.pt2").module()
feed = np.load("feed.npz")
found = module(*[torch.from_numpy(feed[name]) for name in feed.files])
assert not [name for name in sys.modules if name.startswith("qconvert")]
np.savez("found.npz", *[value.numpy() for value in found])
"""
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True, capture_output=True)
    found = np.load(tmp_path / "found.npz")
    for name, values in zip(found.files, evaluate(graph, feed).values(), strict=True):
        assert np.array_equal(found[name], values) and found[name].dtype == values.dtype


@needs_torch
def test_nothing_of_the_machine_is_in_the_archive(tmp_path: Path) -> None:
    qconvert.convert(FIXTURES / "tiny_ad_toycar_int8.tflite", tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
        program = next(name for name in archive.namelist() if name.endswith(("models/model.json", "exported_program.json")))
        nodes = json.loads(archive.read(program))["graph_module"]["graph"]["nodes"]
    paths = [str(Path(qconvert.__file__).parent), str(tmp_path), "site-packages", "Traceback", 'File \\"', "stack_trace"]
    assert [text for text in paths if text.encode() in content] == []
    assert all(not node["metadata"] for node in nodes)


@needs_torch
def test_two_conversions_give_the_same_program(tmp_path: Path) -> None:
    for name in ("a.pt2", "b.pt2"):
        qconvert.convert(FIXTURES / "tiny_wakeword_int8.tflite", tmp_path / name)
    files = []
    for name in ("a.pt2", "b.pt2"):
        with zipfile.ZipFile(tmp_path / name) as archive:
            files.append({entry: archive.read(entry) for entry in archive.namelist()})
    assert files[0] == files[1]


@needs_torch
def test_names_of_tensors_become_no_code(tmp_path: Path) -> None:
    name = 'w");import os;os.system("touch /tmp/ran");("'
    quantization = Quantization.per_tensor(0.5, 0)
    tensors = [
        Tensor('x"]\n', "int8", (1, 2), None, quantization),
        Tensor(name, "int8", (3, 2), np.ones((3, 2), np.int8), quantization),
        Tensor("y.y", "int8", (1, 3), None, quantization),
    ]
    graph = Graph("g", {t.name: t for t in tensors}, (Op("Gemm", ('x"]\n', name), ("y.y",)),), ('x"]\n',), ("y.y",))
    qconvert.save(graph, tmp_path / "model.pt2")
    found = run(loaded(tmp_path / "model.pt2"), graph, {'x"]\n': np.array([[3, -1]], np.int8)})
    assert found["y.y"].tolist() == [[1, 1, 1]]
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.pt2")) == []


@needs_torch
def test_all_kinds_without_a_form_are_named_at_once(tmp_path: Path) -> None:
    plain = Tensor("x", "float32", (6,))
    ops = [Op("Unique", (name,), (result, f"{result}/places"), {"order": "first"}) for name, result in (("x", "a"), ("a", "b"))]
    ops.append(Op("NonMaxSuppression", ("b", "b"), ("c",)))
    tensors = {name: replace(plain, name=name) for name in ("x", "a", "b", "c", "a/places", "b/places")}
    with refused(UnsupportedError, "operators-not-writable", holds=("NonMaxSuppression (1)", "Unique (2)")):
        from qconvert.formats.torch.writer import build

        build(Graph("g", tensors, tuple(ops), ("x",), ("c",)))


def test_without_pytorch_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with refused(MissingPackageError, "package-missing") as error:
        qconvert.convert(FIXTURES / "tiny_wakeword_int8.tflite", tmp_path / "model.pt2")
    assert "pip install 'qconvert[torch]'" in str(error.value) and "whl/cpu" in str(error.value)
    assert not (tmp_path / "model.pt2").exists()


@needs_torch
def test_a_graph_is_a_module_in_memory() -> None:
    graph = qconvert.load(FIXTURES / "tiny_ad_toycar_int8.tflite")
    module = qconvert.to_torch(graph)
    feed = inputs_of(graph)
    assert np.array_equal(run(module, graph, feed)["Identity"], evaluate(graph, feed)["Identity"])
    weights = graph[next(op for op in graph.ops if op.kind == "Gemm").inputs[1]]
    assert any(np.array_equal(buffer.numpy(), weights.data) for buffer in module.buffers() if buffer.shape == weights.shape)
    with refused(OptionError, "target-of-other-format", holds=("onnx", "torch")):
        qconvert.to_torch(graph, target="generic")


@needs_torch
@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")) or platform.machine() != "x86_64", reason="inductor needs a compiler"
)
def test_inductor_lowers_the_x86_form(tmp_path: Path) -> None:
    """Every convolution and linear layer becomes one of oneDNN's integer kernels."""
    from formats.torch.lowered import lowered_calls

    qconvert.convert(FIXTURES / "tiny_resnet_cifar10_int8.tflite", tmp_path / "model.pt2", target="torch-x86")
    graph = qconvert.load(tmp_path / "model.pt2")
    feed = inputs_of(graph)
    module = loaded(tmp_path / "model.pt2")
    calls, found = lowered_calls(module, [feed[name] for name in graph.inputs])
    assert calls["qconv_pointwise"] + calls["qconv2d_pointwise"] == 9 and calls["qlinear_pointwise"] == 1
    eager = run(module, graph, feed)[graph.outputs[0]].astype(int)  # sums in float32, which inductor's kernels form of integers
    assert (found[0].argmax(-1) == eager.argmax(-1)).all() and np.abs(found[0].astype(int) - eager).max() <= 4


@needs_torch
def test_each_turned_weight_has_its_own_scales(tmp_path: Path) -> None:
    """Quantizations of turned weights live no longer than the operator that is written; their places in memory are used again."""
    source = qconvert.load(FIXTURES / "keras/keras_transposed_int8.tflite")
    qconvert.convert(FIXTURES / "keras/keras_transposed_int8.tflite", tmp_path / "model.pt2")
    found = qconvert.load(tmp_path / "model.pt2")

    def scales(graph: Graph) -> list[list[float]]:
        quantizations = [graph[op.inputs[1]].quantization for op in graph.ops if op.kind == "ConvTranspose"]
        return [quantization.scale.tolist() for quantization in quantizations if quantization is not None]

    assert len(scales(source)) == 3 and scales(found) == scales(source)


@needs_torch
@pytest.mark.parametrize("names", [("X", "x"), ("x", "X"), ("input", "input_1"), ("aB", "a_b"), ("1", "input_1")])
def test_inputs_of_like_names_stay_apart(names: tuple[str, str], tmp_path: Path) -> None:
    """torch.fx writes an input X as `x = X`, after which an input x would be X."""
    first, second = names
    tensors = {name: Tensor(name, "float32", (2,)) for name in (*names, "y")}
    graph = Graph("apart", tensors, (Op("Sub", (first, second), ("y",)),), names, ("y",))
    feed = {first: np.array([5, 7], np.float32), second: np.array([1, 2], np.float32)}
    module = qconvert.to_torch(graph)
    assert run(module, graph, feed)["y"].tolist() == [4, 5]
    qconvert.save(graph, tmp_path / "model.pt2")
    assert run(loaded(tmp_path / "model.pt2"), graph, feed)["y"].tolist() == [4, 5]
    again = qconvert.load(tmp_path / "model.pt2")
    assert again.inputs == names and evaluate(again, feed)["y"].tolist() == [4, 5]


@needs_torch
def test_names_are_found_again_where_pytorch_asks_for_sizes_first(tmp_path: Path) -> None:
    constants = [Tensor(name, "int64", np.shape(data), np.array(data, np.int64)) for name, data in (("zero", 0), ("one", 1), ("four", 4))]
    tensors = {item.name: item for item in (Tensor("x", "float32", ("batch", 1, 4)), *constants)}
    tensors["start"] = Tensor("start", "float32", ("batch", 1, 4))
    ops, before = [Op("Relu", ("x",), ("start",))], "start"
    for name in ("first", "second", "third"):
        made = [Op("Shape", ("x",), (f"{name}/shape",)), Op("Gather", (f"{name}/shape", "zero"), (f"{name}/size",), {"axis": 0})]
        made += [Op("Pack", (f"{name}/size", "one", "four"), (f"{name}/sizes",), {"axis": 0})]
        made += [Op("Expand", (before, f"{name}/sizes"), (f"{name}/wide",)), Op("Relu", (f"{name}/wide",), (name,))]
        ops, before = [*ops, *made], name
        shapes = {f"{name}/shape": ("int64", (3,)), f"{name}/size": ("int64", ()), f"{name}/sizes": ("int64", (3,))}
        shapes |= dict.fromkeys((f"{name}/wide", name), ("float32", ("batch", 1, 4)))
        tensors |= {key: Tensor(key, dtype, shape) for key, (dtype, shape) in shapes.items()}
    graph = Graph("sizes", tensors, tuple(ops), ("x",), ("third",))
    qconvert.save(graph, tmp_path / "model.pt2")
    again = qconvert.load(tmp_path / "model.pt2")
    assert [op.outputs[0] for op in again.ops if op.kind in ("Expand", "Relu")] == [
        name for op in graph.ops if op.kind in ("Expand", "Relu") for name in op.outputs
    ]
    assert again.outputs == ("third",)


def test_xnnpack_gets_no_weight_of_minus_128() -> None:
    """A channel that has one gets another scale, at a cost that is said; where a common divisor leaves all values as they are, at none."""
    rng = np.random.default_rng(4)
    data = rng.integers(-127, 128, (3, 8)).astype(np.int8)
    data[1, 0] = -128
    data[2] = np.array([-128, 64, 32, 2, 4, -6, 0, 126], np.int8)
    quantization = Quantization(np.array([0.1, 0.2, 0.3], np.float32), np.zeros(3, np.int64), 0)
    tensors = [
        Tensor("x", "int8", (1, 8), None, Quantization.per_tensor(0.5, 3)), Tensor("w", "int8", (3, 8), data, quantization),
        Tensor("y", "int8", (1, 3), None, Quantization.per_tensor(0.5, 3)),
    ]  # fmt: skip
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Gemm", ("x", "w"), ("y",)),), ("x",), ("y",))
    found, changes = normalize(graph, target_named("torch-xnnpack"))
    weights = found[found.ops[0].inputs[1]]
    assert weights.data is not None and weights.quantization is not None and weights.data.min() >= -127
    before, after = data * quantization.scale[:, None], weights.data * weights.quantization.scale[:, None]
    assert np.array_equal(before[0], after[0]) and np.allclose(before[2], after[2], rtol=1e-6) and not np.allclose(before[1], after[1])
    assert any("1 of 3 scales" in change.text and change.costs for change in changes)


@pytest.mark.cross_section
@pytest.mark.parametrize(("name", "lowered"), [("tiny_resnet_cifar10_int8.tflite", 10), ("onnx/torch_fx_fbgemm_attention.onnx", 5)])
def test_the_audit_says_what_inductor_lowers(name: str, lowered: int) -> None:
    """As counted in its code (docs/pytorch.md)."""
    chosen = target_named("torch-x86")
    graph, _ = normalize(qconvert.load(FIXTURES / name), chosen)
    found = [line for line in audit(graph, chosen) if line.kind in ("Conv", "Gemm", "MatMul", "ConvTranspose")]
    assert sum(line.count for line in found if line.integer) == lowered


def test_a_noted_name_wins_over_that_of_a_tensor_without_a_note() -> None:
    tensors = {name: Tensor(name, "float32", (4,)) for name in ("x", "relu", "relu_1")}
    graph = Graph("names", tensors, (Op("Relu", ("x",), ("relu",)), Op("Relu", ("relu",), ("relu_1",))), ("x",), ("relu_1",))
    notes = Notes(None, {}, {}, {"relu_1": "relu", "x": "relu"}, {}, [], {}, [])
    named = with_notes(graph, notes)
    assert named.outputs == ("relu",) and named.inputs == ("x",)
    assert [op.outputs for op in named.ops] == [("relu_2",), ("relu",)] and named.ops[1].inputs == ("relu_2",)
