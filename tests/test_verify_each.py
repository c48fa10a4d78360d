"""--verify-each names a pass that lies, and --print-after shows graphs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from passes.graphs import quantized_conv
from refusals import refused
from test_cli import run
from test_plugins import install
from test_plugins import run as run_with

from qconvert import Graph, Op, Pass, convert
from qconvert.conversion.verifying import Verifier
from qconvert.errors import InternalError
from qconvert.graph.summary import format_graph
from qconvert.plugins import name_changes, passes, target_named

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"

LIAR = '''
from dataclasses import replace
from qconvert import Pass, hookimpl


def run(graph, target):
    """The last convolution gets its channels the other way round."""
    name = [op.inputs[1] for op in graph.ops if op.kind == "Conv"][-1]
    return graph.evolve(tensors=[replace(graph[name], data=graph[name].data[::-1].copy())]), ("nothing to speak of",)


@hookimpl
def qconvert_passes():
    return [Pass("liar", "says that it changes nothing", run), Pass("honest", "says that it does", run, exact=False, within=0.5)]
'''


def test_a_pass_that_lies_is_named_with_exit_code_3(tmp_path: Path) -> None:
    install(tmp_path, "liar", "[qconvert]\nliar = liar\n", LIAR)
    out = tmp_path / "out.onnx"
    done = run_with(tmp_path, "convert", MODEL, out, "--pass", "remove_dead_code", "--pass", "liar", "--verify-each")
    assert done.returncode == 3 and not out.exists()
    assert "the pass liar declares that it is exact, but changes an output by" in done.stderr and "output 'Identity'" in done.stderr
    error = json.loads(run_with(tmp_path, "convert", MODEL, out, "--pass", "liar", "--verify-each", "--json").stdout)
    assert error["error"] == "internal"
    assert run_with(tmp_path, "convert", MODEL, out, "--pass", "liar").returncode == 0
    done = run_with(tmp_path, "convert", MODEL, out, "-f", "--pass", "honest", "--verify-each")
    assert done.returncode == 0 and "verified: honest changes outputs by" in done.stdout


@pytest.mark.parametrize(("name", "suffix", "target"), [
    ("tiny_kws_dscnn_int8.tflite", ".onnx", "ort-x86"), ("tiny_resnet_cifar10_int8.tflite", ".onnx", "generic"),
    ("onnx/torch_fx_qnnpack_vision.onnx", ".tflite", "tflite"), ("onnx/brevitas_int8.onnx", ".tflite", "tflite"),
])  # fmt: skip
def test_built_in_passes_keep_real_models(name: str, suffix: str, target: str, tmp_path: Path) -> None:
    report = convert(FIXTURES / name, tmp_path / f"a{suffix}", target=target, verify_each=True)
    changed = {change.by for change in report.changes}
    assert report.verified and {pass_name for pass_name, _ in report.verified} >= changed
    for pass_name, found in report.verified:
        assert found == "leaves every output equal" or passes()[pass_name].within, (pass_name, found)


def test_other_inputs_and_outputs_are_followed(tmp_path: Path) -> None:
    """Turned, real and unsigned ones: the runs after these passes get the same numbers in the new form."""
    for options in ({"io_layout": "nchw"}, {"io": "float"}, {"passes": ["signed_to_unsigned"]}):
        report = convert(MODEL, tmp_path / "a.onnx", force=True, verify_each=True, **options)
        assert len(report.verified) >= 2 and {found for _, found in report.verified} == {"leaves every output equal"}


def test_a_change_that_no_note_tells_is_a_lie() -> None:
    graph = quantized_conv()
    changed = graph.evolve(tensors=[replace(graph["w"], data=-graph["w"].data)])
    silent = Pass("silent", "", lambda graph, target: (changed, ()), exact=False)
    with refused(InternalError, "pass-not-exact", where="output 'y'"):
        Verifier(graph)(silent, graph, changed, ())
    verifier = Verifier(graph)
    verifier(silent, graph, changed, name_changes(["every weight has the other sign"], by="silent"))
    assert re.fullmatch(r"changes outputs by 0\.\d+ of their range on average", verifier.said[0][1])


def test_an_invalid_graph_is_the_fault_of_the_pass() -> None:
    graph = quantized_conv()
    broken = replace(graph, ops=(replace(graph.ops[0], inputs=("x", "w", "nothing")),))
    with refused(InternalError, "unknown-tensor", where="Conv 'y'"):
        Verifier(graph)(Pass("breaks", "", lambda graph, target: (broken, ())), graph, broken, ())


def test_what_has_no_evaluation_is_not_judged() -> None:
    op = Op("Opaque", ("x",), ("z",), {"format": "onnx", "domain": "d", "op_type": "T", "version": 1})
    graph = quantized_conv()
    opaque = graph.evolve(ops=[*graph.ops, op], tensors=[replace(graph["x"], name="z")], outputs=("y", "z"))
    verifier = Verifier(opaque)
    verifier(Pass("any", "", lambda graph, target: (graph, ())), opaque, replace(opaque, name="other"), ())
    assert [who for who, _ in verifier.said] == ["the model", "any"]
    assert "Opaque" in verifier.said[0][1] and verifier.said[0][1].startswith("not judged")


def test_a_graph_as_text() -> None:
    graph = quantized_conv(scales=(0.02, 0.01, 0.03, 0.04), activation="relu")
    lines = format_graph(graph).splitlines()
    assert lines[0] == "graph 'test': 1 operator"
    assert lines[1] == "  input x: int8[1, 3, 5, 5] 0.05 +3"
    assert lines[2].startswith(
        "  y: int8[1, 4, 5, 5] 0.4 +5 = Conv(x, w: int8[4, 3, 3, 3] 0.01..0.04 along 0, b: int32[4] 0.0005..0.002 along 0 = ["
    )
    assert "strides=(1, 1)" in lines[2] and "activation=relu" in lines[2]
    assert lines[-1] == "  output y"


def test_print_after(tmp_path: Path) -> None:
    out = tmp_path / "a.onnx"
    done = run("convert", MODEL, out, "--print-after", "assign_layout", "-q")
    assert done.returncode == 0 and done.stdout == ""
    assert re.findall(r"^--- after (\w+)$", done.stderr, re.M) == ["assign_layout"]
    assert "data_format=channels_first" in done.stderr and "channels_last" not in done.stderr
    done = run("convert", MODEL, out, "-f", "--print-after", "all", "-q")
    assert re.findall(r"^--- after (\w+)$", done.stderr, re.M) == [
        "match_rounding",
        "assign_layout",
        "store_activations",
        "guard_saturation",
    ]
    done = run("convert", MODEL, out, "-f", "--print-after", "nonsense")
    assert done.returncode == 2 and "'nonsense'" in done.stderr


def test_the_observer_sees_every_pass(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []

    def observer(item: Pass, before: Graph, after: Graph, notes: tuple[str, ...]) -> None:
        seen.append((item.name, before is after))

    convert(MODEL, tmp_path / "a.onnx", observer=observer, passes=["remove_dead_code"])
    assert seen[0] == ("remove_dead_code", True) and ("assign_layout", False) in seen
    assert [name for name, _ in seen[1:]] == [*target_named("ort-x86").passes]
