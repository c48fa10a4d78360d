"""Results of passes that the user named and that are not exact: what they make is right, and its cost is told; whatever else is altered
is not equal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qconvert import Graph, Op, Tensor, check, convert, load, save
from qconvert.checking.findings import Finding
from qconvert.checking.requantized_operators import Requantized
from qconvert.checking.verdicts import list_costly_operators
from qconvert.conversion.judging import Declared
from qconvert.errors import LossError
from qconvert.graph import Quantization
from qconvert.graph.metadata import CHANGED, OPTIONS
from qconvert.plugins import Change, Pass
from qconvert.rules.changed_values import declared_changes, declared_names

KWS = Path(__file__).parents[2] / "fixtures" / "tiny_kws_dscnn_int8.tflite"


@pytest.fixture(scope="module", params=["onnx", "tflite"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Powers of two as scales, some of which clip; the output is 14 dB from the source's."""
    path = tmp_path_factory.mktemp("passes") / f"kws.{request.param}"
    with refused(LossError, "sqnr-below-limit", holds=(30,)):
        convert(KWS, path, passes=["power_of_two"], rounding="nearest")
    convert(KWS, path, passes=["power_of_two"], rounding="nearest", min_tensor_sqnr=0)
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.end_to_end
def test_a_pass_that_was_named_costs_no_more_than_the_outputs_may_lose(result: Path) -> None:
    far = check(KWS, result, samples=2)
    assert far.verdict == "not equal" and [("'Identity': SQNR 1" in text, "below 30" in text) for text in far.problems] == [(True, True)]
    report = check(KWS, result, samples=2, min_sqnr=10)
    assert (report.verdict, report.passed, report.problems, report.unjudged) == ("as declared", True, (), ())
    assert len(report.costs) == 1 and "'Identity': SQNR 1" in report.costs[0]
    assert any("power_of_two" in text for text in report.notes)
    changed = [op for op in report.operators if op.verdict == "requantized"]
    assert min(op.sqnr_db for op in changed if op.sqnr_db is not None) > 10
    command = [sys.executable, "-m", "qconvert", "check", str(KWS), str(result), "--samples", "2"]
    assert subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).returncode == 1
    shown = subprocess.run([*command, "--min-sqnr", "10"], capture_output=True, text=True, check=True, timeout=120).stdout
    assert shown.startswith("as declared: ") and "SQNR 1" in shown.splitlines()[0] and "ran: LiteRT" in shown.splitlines()[1]
    assert "cost: output 'Identity'" in shown and shown.startswith("as declared: ")


def _weights(graph: Graph) -> Tensor:
    return max((item for item in graph.constants() if item.dtype in ("int8", "uint8")), key=lambda item: item.data.size)


def _bias(graph: Graph) -> Tensor:
    return next(graph[op.inputs[2]] for op in graph.ops if op.kind == "Conv" and len(op.inputs) > 2)


def _activation(graph: Graph) -> Tensor:
    return next(graph[op.outputs[0]] for op in graph.ops if op.kind == "Conv")


def _moved(tensor: Tensor, by: int) -> Tensor:
    """One element is another."""
    assert tensor.data is not None
    data = tensor.data.astype(np.int64)
    data.reshape(-1)[7] += by if data.reshape(-1)[7] < 100 else -by
    return replace(tensor, data=data.astype(tensor.data.dtype))


def _doubled(tensor: Tensor) -> Tensor:
    assert tensor.quantization is not None
    return replace(tensor, quantization=replace(tensor.quantization, scale=tensor.quantization.scale * 2))


def _valid(graph: Graph) -> Graph:
    """Scales of biases are those of the products."""
    for op in graph.ops:
        if op.kind in ("Conv", "Gemm"):
            data, weights, bias = (graph[name] for name in op.inputs)
            assert data.quantization and weights.quantization and bias.quantization
            scale = np.broadcast_to(data.quantization.scale * weights.quantization.scale, bias.quantization.scale.shape)
            graph = graph.evolve(tensors=[replace(bias, quantization=replace(bias.quantization, scale=scale))])
    return graph


ALTERED: dict[str, Callable[[Graph], Tensor]] = {
    "weights": lambda graph: _moved(_weights(graph), 1),
    "scales of weights": lambda graph: _doubled(_weights(graph)),
    "bias": lambda graph: _moved(_bias(graph), 64),
    "scale": lambda graph: _doubled(_activation(graph)),
}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("what", ALTERED)
def test_what_the_pass_did_not_make_is_not_equal(result: Path, what: str, declared: bool, tmp_path: Path) -> None:
    """Also where the file says that the conversion declared it."""
    graph, wrong = load(result), tmp_path / f"wrong{result.suffix}"
    altered = _valid(graph.evolve(tensors=[ALTERED[what](graph)]))
    digests = {CHANGED: json.dumps(declared_changes(altered, declared_names(graph)))}
    save(altered, wrong, provenance=digests if declared else None)
    report = check(KWS, wrong, samples=2)
    assert report.verdict == "not equal"
    assert any(not text.startswith("output ") for text in report.problems), report.problems


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_result_that_does_not_say_which_passes_made_it_has_to_be_near(result: Path, tmp_path: Path) -> None:
    graph, other = load(result), tmp_path / f"other{result.suffix}"
    save(graph, other, provenance={OPTIONS: "", CHANGED: json.dumps(declared_changes(graph, declared_names(graph)))})
    report = check(KWS, other, samples=2)
    assert report.verdict == "not equal" and any("below 30" in text for text in report.problems)


def test_an_operator_that_loses_more_than_a_pass_may_cost_is_named() -> None:
    """A wrong quantization: nearly everything saturates."""
    found = [
        Finding("requantized", "as declared", 0.1, largest, 0.0, 0, "CONV_2D #0", "y", cost) for largest, cost in ((90.0, 1.0), (2.0, 1.0))
    ]
    assert [text[:11] for text in list_costly_operators(found)] == ["CONV_2D #0 "]
    assert not list_costly_operators([replace(found[0], sqnr_db=6.0)])


def _relu(*more: Op, **tensors: Tensor) -> Graph:
    q = Quantization.per_tensor(0.1)
    own = {name: Tensor(name, "int8", (1, 4), None, q) for name in "xy"} | tensors
    return Graph("relu", own, (*more, Op("Relu", ("a" if more else "x",), ("y",))), ("x",), ("y",))


def test_limits_of_a_quantization_are_declared_where_they_alone_are_others() -> None:
    """A pass that gives a tensor narrower limits declares these, and no others."""
    before, narrow = _relu(), Quantization(np.array([0.1], np.float32), np.zeros(1, np.int64), None, 0, -127, 127)
    after = before.evolve(tensors=[replace(before["y"], quantization=narrow)])
    declared = Declared(before)
    declared(Pass("narrow", "", lambda graph, target: (graph, ()), exact=False), before, after, (Change("narrower"),))
    after = replace(after, metadata=declared.provenance(after))
    assert declared_names(after, before) == {"y"}
    assert declared_names(after) == {"y"}
    wider = after.evolve(tensors=[replace(after["y"], quantization=replace(narrow, quant_max=100))])
    assert declared_names(wider, before) == frozenset()
    assert declared_names(after, replace(after, metadata={})) == frozenset()


def test_what_reads_a_tensor_that_is_rounded_once_more_for_it_alone_is_judged_by_that() -> None:
    """A Relu that reads a tensor after a declared Requantize; another one reads the tensor as it is."""
    again = Tensor("a", "int8", (1, 4), None, Quantization.per_tensor(0.2))
    other = Tensor("z", "int8", (1, 4), None, Quantization.per_tensor(0.1))
    aside = Op("Relu", ("x",), ("z",))
    source = _relu(z=other).evolve(ops=[*_relu().ops, aside], outputs=("y", "z"))
    graph = _relu(Op("Requantize", ("x",), ("a",)), a=again, z=other)
    result = graph.evolve(ops=[*graph.ops, aside], outputs=("y", "z"))
    restated = Requantized.of(source, result, {"a"})
    assert {name: tensor.name for name, tensor in restated.entering.items()} == {"x": "a"}
    assert restated.find_affected({"x"}) == {"y": True}


def test_a_result_that_is_moved_back_before_it_has_the_source_s_name_is_of_the_rounded_tensor_too() -> None:
    """As after a layout's Transpose: the Relu itself gives a name that the source has not."""
    tensors = {name: Tensor(name, "int8", (1, 4), None, Quantization.per_tensor(0.1)) for name in ("x", "y", "inner")}
    tensors["a"] = Tensor("a", "int8", (1, 4), None, Quantization.per_tensor(0.2))
    ops = (Op("Requantize", ("x",), ("a",)), Op("Relu", ("a",), ("inner",)), Op("Transpose", ("inner",), ("y",), {"perm": (0, 1)}))
    restated = Requantized.of(_relu(), Graph("moved", tensors, ops, ("x",), ("y",)), {"a"})
    assert restated.find_affected({"x"}) == {"y": True}
