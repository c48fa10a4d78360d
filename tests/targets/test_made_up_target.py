"""An accelerator that does not exist, as data alone: the example of docs/targets.md, given by a plugin, on real models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert import Target, convert, load
from qconvert.conversion import ConversionReport, normalize
from qconvert.errors import OptionError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op
from qconvert.kernels import KERNELS
from qconvert.plugins import registry, target_named, temporary_plugin
from qconvert.targets.audit import violations

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
RESNET = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
KEYWORDS = FIXTURES / "tiny_kws_dscnn_int8.tflite"
TORCH = FIXTURES / "onnx" / "torch_mobilenet_v2_qdq.onnx"
TOYCAR = FIXTURES / "tiny_ad_toycar_int8.tflite"


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "targets.md").read_text(), re.S)
    return str(block)


@pytest.fixture(autouse=True)
def plugin() -> Iterator[ModuleType]:
    """The example as a loaded plugin, for one test."""
    module = ModuleType("my_npu")
    exec(compile(example(), "docs/targets.md", "exec"), module.__dict__)
    with temporary_plugin(module, "my-npu"):
        yield module


def fitted(path: Path, target: str = "my-npu") -> tuple[Graph, tuple[tuple[str, str], ...]]:
    return normalize(load(path), target_named(target))


def lines(report: ConversionReport, *, integer: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in report.audit:
        if line.integer is integer:
            found[line.kind] = found.get(line.kind, 0) + line.count
    return found


def test_the_target_is_less_than_thirty_lines_of_data() -> None:
    body = example().split("NPU = ")[1].split("\n\n\n")[0]
    assert len(body.strip().splitlines()) < 30


@pytest.mark.formats
@pytest.mark.parametrize("path", [RESNET, KEYWORDS, TORCH, TOYCAR], ids=lambda path: path.stem)
def test_what_it_demands_is_true_of_the_result(path: Path, tmp_path: Path) -> None:
    """Looked up in the graph that is read back from the file, not in what the judge says."""
    convert(path, tmp_path / "model.onnx", target="my-npu")
    graph = load(tmp_path / "model.onnx")
    for op in graph.ops:
        if op.kind in ("Quantize", "Dequantize", "Requantize", "Softmax"):
            continue
        for name in filter(None, (*op.inputs, *op.outputs)):
            q = graph[name].quantization
            if q is not None and graph[name].dtype != "int32":
                assert graph[name].dtype == "int8" and q.is_symmetric and q.is_per_tensor, (op, name)
        if op.kind == "Add" and graph[op.outputs[0]].is_quantized:
            assert graph[op.inputs[0]].quantization == graph[op.inputs[1]].quantization
    normal, _ = fitted(path)
    for op in normal.ops:  # Dequantize, Softmax and Quantize are read back as one
        if op.kind == "Softmax":
            assert not normal[op.inputs[0]].is_quantized and not normal[op.outputs[0]].is_quantized


@pytest.mark.formats
def test_its_audit(tmp_path: Path) -> None:
    report = convert(RESNET, tmp_path / "resnet.onnx", target="my-npu")
    source = [op.kind for op in load(RESNET).ops]
    assert source.count("Conv") == 9
    assert lines(report, integer=True)["Conv"] == 10  # with the one of an average whose ties are rounded as in the source
    assert lines(report, integer=True)["Add"] == source.count("Add") == 3
    assert "Softmax" not in lines(report, integer=True)
    assert next(c.text for c in report.changes if c.by == "isolate_float").endswith(": 1 Softmax: my-npu has none")
    report = convert(KEYWORDS, tmp_path / "kws.onnx", target="my-npu")
    assert lines(report, integer=True)["Conv"] == 9 and "Softmax" not in lines(report, integer=True)
    report = convert(TORCH, tmp_path / "torch.onnx", target="my-npu")
    assert lines(report, integer=True)["Add"] == 10


@pytest.mark.formats
def test_lossy_steps_are_reported() -> None:
    changes = {change.by: change.text for change in fitted(RESNET)[1]}
    assert re.search(r"steps grow 1\.\d\d times on average, at most 2\.01", changes["symmetric_activations"])
    assert "operands share a scale with others of its operator" in changes["match_scales"]
    assert "SQNR" in changes["per_axis_to_per_tensor"]


@pytest.mark.formats
def test_the_network_still_says_the_same() -> None:
    """On the inputs of MLPerf Tiny: all 10 pictures are told as before, although every quantization changed."""
    source, (result, _) = load(RESNET), fitted(RESNET)
    same = 0
    for path in sorted((FIXTURES / "mlperf_tiny" / "resnet" / "input").glob("*.bin")):
        picture = np.fromfile(path, np.int8).reshape(1, 32, 32, 3)
        (before,) = evaluate(source, {source.inputs[0]: picture}).values()
        (after,) = evaluate(result, {result.inputs[0]: picture}).values()
        same += int(before.argmax() == after.argmax())
    assert same == 10


@pytest.mark.formats
def test_a_target_without_floats_refuses(tmp_path: Path) -> None:
    named = ("rule: my-npu-strict has no Softmax. Broken by 1:", "SOFTMAX #15 Softmax 'Identity_int8")
    with refused(UnsupportedError, "target-rules", holds=named):
        convert(RESNET, tmp_path / "model.onnx", target="my-npu-strict")
    assert not (tmp_path / "model.onnx").exists()
    convert(TOYCAR, tmp_path / "toycar.onnx", target="my-npu-strict")  # has none


@pytest.mark.formats
def test_the_judge_before_and_after_the_passes() -> None:
    """Before, an addition would run on integers; as it stands it is refused, with what helps."""
    graph, npu = load(RESNET), target_named("my-npu")
    add = next(op for op in graph.ops if op.kind == "Add")
    assert npu.judge(graph, add, final=False).runs == "integers"
    verdict = npu.judge(graph, add)
    assert verdict.runs == "refused"
    rules = {found.rule: found.remedy for found in verdict.violations}
    assert rules["Add has one scale and zero point on all operands"] == "pass match_scales"
    assert "symmetric_activations" in rules["int8 activations have the zero point 0"]
    conv = next(op for op in graph.ops if op.kind == "Conv")
    assert "pass per_axis_to_per_tensor" in [found.remedy for found in npu.judge(graph, conv).violations]
    assert violations(fitted(RESNET)[0], npu) == ()


def test_a_target_derived_by_name_is_the_other_with_changes() -> None:
    arm, mine, conv = target_named("ort-arm"), target_named("my-arm"), Op("Conv", (), ())
    assert (mine.passes, mine.storage.activations) == (arm.passes, "int8")
    assert mine.kernels.missing == ("Sigmoid",) and arm.kernels.missing == ()
    assert mine.kernels.types(conv) == arm.kernels.types(conv) == ("uint8", "int8")


@pytest.mark.formats
def test_rows_of_onnxruntime_do_not_saturate_unless_the_target_says_so() -> None:
    rows = KERNELS["onnxruntime:optimized"].without("Sigmoid")
    mine = target_named("ort-x86-vnni").derive(name="mine", kernels=rows)
    graph, _ = normalize(load(FIXTURES / "aww_int8.tflite"), mine)
    assert {graph[op.inputs[1]].dtype for op in graph.ops if op.kind in ("Conv", "Gemm")} == {"int8"}


def test_what_cannot_be_derived_is_said(plugin: ModuleType) -> None:
    with refused(OptionError, "unknown-field"):
        plugin.NPU.derive(name="other", granularity="per_tensor")
    with refused(OptionError, "name-missing"):
        plugin.NPU.derive(floats=False)


@pytest.mark.parametrize(
    ("changes", "rule", "named"),
    [
        ({"layout": "nchw"}, "unknown-word", "'nchw'"),
        ({"activations": "int16"}, "unknown-word", "'int16'"),
        ({"weight_granularity": "per_channel"}, "unknown-word", "'per_channel'"),
        ({"bias_dtypes": {"int8": ()}}, "empty-field", "int8"),
    ],
)
def test_words_that_mean_nothing_are_refused(plugin: ModuleType, changes: dict[str, Any], rule: str, named: str) -> None:
    with refused(OptionError, rule, holds=(*changes, named)):
        if "layout" in changes:
            plugin.NPU.derive(name="other", **changes)
        else:
            replace(plugin.NPU.storage, **changes)


def test_a_target_of_nothing_is_named() -> None:
    lost = ModuleType("lost")
    given = [Target.derive("no-such-target", name="lost"), Target.derive("hen", name="egg"), Target.derive("egg", name="hen")]
    lost.__dict__["qconvert_targets"] = __import__("qconvert").hookimpl(lambda: given)
    with temporary_plugin(lost):
        assert "lost" not in registry.targets() and "my-npu" in registry.targets()
        with refused(OptionError, "unknown-target", holds=("'lost'", "no-such-target")):
            target_named("lost")
        assert not {"hen", "egg"} & registry.targets().keys()
        with refused(OptionError, "unknown-target", holds=("'hen'",)):
            target_named("hen")
