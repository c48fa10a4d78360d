"""A target with an accelerator next to a CPU: what the audit says of both, and what a derived target adds to another one's fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import refused

from qconvert import audit, convert, load
from qconvert.conversion import normalize
from qconvert.errors import OptionError
from qconvert.formats.tflite.file_contents import listed_operators
from qconvert.graph import Graph, Op
from qconvert.plugin import Accelerator, Engine, Kernels, Layer, ModelFile, Runtime, Target, Violation, hookimpl
from qconvert.plugins import target_named, temporary_plugin
from qconvert.targets.audit import violations

FIXTURES = Path(__file__).parents[2] / "fixtures"
RESNET = FIXTURES / "tiny_resnet_cifar10_int8.tflite"


def lacks(graph: Graph) -> Callable[[Op], str]:
    return lambda op: f"no {op.kind}" if op.kind in ("Softmax", "Dequantize") else ""


def wide(graph: Graph) -> Callable[[Op], Iterable[Violation]]:
    """No more than 32 channels; and the CPU, which is asked where the accelerator does not compute, has no Add."""

    def rules(op: Op) -> Iterator[Violation]:
        shape = graph[op.outputs[0]].shape or ()
        if shape and isinstance(shape[-1], int) and shape[-1] > 32:
            yield Violation(f"{op.outputs[0]!r} has {shape[-1]} channels", "at most 32 channels")
        if op.kind == "Add":
            yield Violation("Add", "the CPU has a kernel", order=2)

    return rules


def build(file: ModelFile) -> Engine:
    """A compiler that takes no Conv either."""
    found = tuple(Layer(op.name, op.outputs, op.name not in ("SOFTMAX", "CONV_2D"), "NPU") for op in listed_operators(file.path))
    return Engine(found, ("it took 5 cycles",))


class Plugin:
    @hookimpl
    def qconvert_targets(self) -> Iterable[object]:
        npu = Accelerator("My-NPU", lacks)
        common = {"accelerator": npu}
        return [
            Target.derive("tflite-micro", name="my-npu", further_passes=("merge_reshapes",), **common),
            Target.derive("tflite-micro", name="narrow-npu", further_rules=wide, storage={"bias_dtypes": {"int8": ("int64",)}}, **common),
        ]

    @hookimpl
    def qconvert_runtimes(self) -> Iterable[Runtime]:
        def open_nothing(file: ModelFile) -> SimpleNamespace:
            raise AssertionError(file)

        return [Runtime("my-npu", ("tflite",), "compiles", "Compiler", open_nothing, lambda name: Kernels(), ("small",), build=build)]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def plugin() -> Iterator[None]:
    with temporary_plugin(Plugin(), "my-npu"):
        yield


def test_the_audit_says_what_runs_where(tmp_path: Path) -> None:
    report = audit(RESNET, "my-npu")
    assert report.accelerator == "My-NPU"
    assert report.sentence == "tiny_resnet_cifar10_int8.tflite for my-npu: 15 of 16 operators run on My-NPU, the others on the CPU."
    assert [(op.kind, op.reason) for op in report.operators if not op.integer] == [("Softmax", "no Softmax")]
    assert {row[2] for row in report.tables()[0].rows} == {"My-NPU", "CPU"}
    converted = convert(RESNET, tmp_path / "model.tflite", target="my-npu")
    assert "15 of 16 operators run on My-NPU" in converted.sentence


def test_operators_without_scales_count_too(tmp_path: Path) -> None:
    """Next to an accelerator the CPU's work is told, whatever its data are; Dequantize is no kernel's business elsewhere."""
    source = FIXTURES / "onnx" / "micro_kws_m_static_qdq.onnx"
    report = audit(source, "my-npu")
    assert [op.kind for op in report.operators if not op.integer] == ["Softmax", "Dequantize"]
    assert len(report.operators) > len(audit(source, "tflite-micro").operators)


def test_a_compiler_that_does_otherwise_is_seen() -> None:
    report = audit(RESNET, "my-npu", run=True)
    assert {op.kind for op in report.otherwise} == {"Conv"} and len(report.otherwise) == 9
    assert report.notes[0] == "it took 5 cycles"
    assert report.sentence.endswith("Compiler places 7 of 16 as predicted.")


def test_a_derived_target_adds_to_fields_of_another() -> None:
    micro, mine, narrow = (target_named(name) for name in ("tflite-micro", "my-npu", "narrow-npu"))
    assert mine.passes == (*micro.passes, "merge_reshapes") and narrow.passes == micro.passes
    assert narrow.storage.bias_dtypes == {"int8": ("int64",)} and narrow.storage.activations == micro.storage.activations
    graph, _ = normalize(load(RESNET), narrow)
    found = {violation.rule for violation in violations(graph, narrow)}
    assert "at most 32 channels" in found and "the CPU has a kernel" not in found
    with refused(OptionError, "unknown-field"):
        micro.derive(name="other", further_kernels=())


def test_operators_of_a_file_are_listed_as_they_stand_there() -> None:
    found = listed_operators(FIXTURES / "coco_ssd_mobilenet_v1_uint8.tflite")
    assert found[-1].name == "TFLite_Detection_PostProcess" and len(found[-1].outputs) == 4
    assert found[0].name == "CONV_2D" and found[0].inputs[0] == "normalized_input_image_tensor"
