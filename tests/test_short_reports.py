"""What a command prints stays on one screen, and an error names what helps: the package of a plugin, the convert() that fits a graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from refusals import refused

import qconvert
from qconvert import Graph, QConvertError, Tensor
from qconvert.checking.findings import CheckReport, Finding, OutputComparison, operators_table
from qconvert.checking.outputs import Border
from qconvert.cli.reports import print_check
from qconvert.errors import InvalidModelError, OptionError
from qconvert.plugins.registry import format_of, kernels_named, read_encodings, target_named

FIXTURES = Path(__file__).parents[1] / "fixtures"


def _report(count: int) -> CheckReport:
    """A check in which every operator but the last is explained."""
    output = OutputComparison("y", 0.5, 3.0, 0.1, "LSB", 40.0, None)
    classes = ["one rounding"] * (count - 1) + ["unexplained"]
    findings = tuple(
        Finding(verdict, f"reason {place}", 0.9, 1, 0.01, 0, f"CONV_2D #{place}", f"t{place}") for place, verdict in enumerate(classes)
    )
    return CheckReport("a.tflite", "b.onnx", 5, (output,), findings, tuple(f"p{place}" for place in range(count)))


def test_a_check_prints_the_eight_worst_operators_and_counts_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    print_check(_report(30))
    short = capsys.readouterr().out
    assert short.count("CONV_2D #") == 8 and "CONV_2D #29" in short and "and 22 more; --verbose" in short
    assert short.count("problem: p") == 8 and "and 21 more; --verbose" in short
    print_check(_report(30), every=True)
    assert capsys.readouterr().out.count("CONV_2D #") == 30
    assert operators_table(_report(30).operators).note.endswith("24 of other classes or reasons")


@pytest.mark.parametrize(
    ("own", "other", "fits"),
    [
        ((1, 8, 8, 3), (1, 3, 8, 8), True),
        ((1, 8, 8, 3), (4, 8, 8, 3), True),
        (("batch", 8, 8, 3), (1, 3, 8, 8), True),
        ((8, 8), (1, 8, 8, 1), True),
        (("n", "s"), (1, 5), True),
        ((1, 8, 8, 3), (1, 6, 6, 1), False),
        (("batch", 8, 8, 3), (1, 6, 6, 1), False),
    ],
)
def test_inputs_of_unrelated_models_are_refused(own: tuple[int | str, ...], other: tuple[int | str, ...], fits: bool) -> None:
    first, second = (Graph("g", {"x": Tensor("x", "float32", shape)}, (), ("x",), ("x",)) for shape in (own, other))
    if fits:
        assert Border.of(first, second).inputs == {"x": "x"}
        return
    with refused(OptionError, "different-sizes-of-inputs", holds=("1,6,6,1",)):
        Border.of(first, second)


def test_what_a_plugin_of_the_repository_adds_is_said_by_its_name() -> None:
    with refused(OptionError, "unknown-suffix", holds=("qconvert-gguf",)):
        format_of(Path("model.gguf"))
    with refused(OptionError, "unknown-target", holds=("qconvert-ethos",)):
        target_named("ethos-u55")
    with refused(OptionError, "unknown-suffix", holds=("TFLiteConverter",)):
        format_of(Path("model.keras"))
    with refused(OptionError, "unknown-suffix", holds=("--to",)):
        format_of(Path("folder"))


def test_a_saved_model_is_no_onnx_file(tmp_path: Path) -> None:
    """Both begin with a version in field 1; a version of ONNX is at least 3."""
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x05hello\x0a\x10")
    with refused(OptionError, "unknown-suffix", holds=("TFLiteConverter",)):
        qconvert.load(tmp_path / "saved_model.pb")


@pytest.mark.parametrize("convert", [False, True])
def test_scales_are_no_model(convert: bool, tmp_path: Path) -> None:
    (tmp_path / "scales.json").write_text('{"encodings": []}')
    (tmp_path / "labels.json").write_text('{"0": "cat"}')
    read = partial(qconvert.convert, result=tmp_path / "out.onnx") if convert else qconvert.load
    with refused(OptionError, "networks-not-read", holds=("qconvert apply FLOAT.onnx scales.json",)):
        read(tmp_path / "scales.json")
    with refused(InvalidModelError, "not-this-format"):
        read(tmp_path / "labels.json")


def test_the_scales_of_a_model_are_taken_out_first() -> None:
    with refused(OptionError, "unknown-suffix", holds=("qconvert extract-scales 'my model.tflite' scales.json",)):
        read_encodings(Path("my model.tflite"))


def test_kernels_that_are_misspelled_have_the_nearest_name() -> None:
    with refused(OptionError, "unknown-kernels", holds=("nearest: 'litert:reference'",)):
        kernels_named("litert:refrence")


def test_a_graph_that_no_target_fitted_is_to_be_converted(tmp_path: Path) -> None:
    with pytest.raises(QConvertError) as caught:
        qconvert.save(qconvert.load(FIXTURES / "tiny_kws_dscnn_int8.tflite"), tmp_path / "a.onnx")
    assert "convert(graph, path)" in caught.value.remedy and not list(tmp_path.iterdir())
