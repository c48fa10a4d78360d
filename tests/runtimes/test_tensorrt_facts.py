"""TensorRT-RTX's parser and builder on models of one rule each: every row that the target tensorrt rests on. No engine is run."""

from __future__ import annotations

import pytest
from refusals import refused
from tensorrt_case import Case, verdict_of
from tensorrt_cases import CASES
from tensorrt_network import Network

from qconvert.errors import RuntimeRefusedError
from qconvert.runtimes.tensorrt import Build, Builder

pytest.importorskip("tensorrt_rtx_bindings")

_DIES = [case for case in CASES if case.verdict == "dies"]


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.tensorrt
@pytest.mark.parametrize("case", [case for case in CASES if case not in _DIES], ids=lambda case: case.name)
def test_a_model_runs_as_was_measured(case: Case, builder: Builder) -> None:
    found = builder.build(case.model().SerializeToString(), case.capability, case.bounds)
    said = " | ".join((*(error.text for error in found.errors), *found.warnings))
    assert (verdict_of(found), case.says in said) == (case.verdict, True), said
    assert found.built or any(error.text for error in found.errors)


@pytest.mark.tensorrt
@pytest.mark.parametrize("case", _DIES, ids=lambda case: case.name)
def test_a_model_that_ends_the_process(case: Case) -> None:
    builder = Builder()
    with refused(RuntimeRefusedError, "process-ended", holds=("TensorRT", "SIG", "QuantizeLinear")):
        builder.build(case.model().SerializeToString())


def _built(builder: Builder, net: Network, *outputs: str) -> Build:
    found = builder.build(net.model(*outputs).SerializeToString())
    assert found.built
    return found


@pytest.mark.tensorrt
def test_a_pair_behind_a_convolution_is_part_of_its_kernel(builder: Builder) -> None:
    net = Network()
    y = net.op("Relu", net.conv(net.pair(net.input()), bias=net.constant([0.5] * 8)))
    layers = _built(builder, net, net.pair(y)).layers
    assert [layer.type for layer in layers] == ["kgen", "correlation", "kgen"]
    assert "MulAddReluMulMinMaxRounCast" in layers[-1].tactic
    assert [side.dtype for side in layers[1].inputs + layers[1].constants[:1]] == ["Int8", "Int8"]


@pytest.mark.tensorrt
def test_duplicates_cost_nothing(builder: Builder) -> None:
    """One Quantize with several Dequantize, and several equal ones, are the same engine."""
    engines = []
    for kind in ("dequantize", "quantize", "neither"):
        case = next(case for case in CASES if case.name == f"shared: {kind}")
        engines.append([(layer.type, layer.tactic) for layer in builder.build(case.model().SerializeToString()).layers])
    assert engines[0] == engines[1] == engines[2]


@pytest.mark.tensorrt
def test_movements_on_integers_and_on_real_values_are_one_engine(builder: Builder) -> None:
    for name in ("Reshape", "Transpose", "Slice", "Gather", "Concat", "Pad with 0", "MaxPool", "Tile"):
        both = [next(case for case in CASES if case.name == f"{name} {where}") for where in ("on integers", "after Dequantize")]
        first, second = ([layer.tactic for layer in builder.build(case.model().SerializeToString()).layers] for case in both)
        assert first == second, name


@pytest.mark.tensorrt
@pytest.mark.parametrize("numerator", [1.0, 2.0])
def test_a_number_divided_by_what_is_dequantized_is_lost(builder: Builder, numerator: float) -> None:
    """Of 1 / x after a Dequantize nothing is left: the division is in the kernel only if something stands between."""
    found = []
    for between in (False, True):
        net = Network()
        x = net.pair(net.input())
        x = net.op("Relu", x) if between else x
        layers = _built(builder, net, net.op("Div", net.constant(numerator), x)).layers
        found.append(any("Div" in layer.tactic for layer in layers))
    assert found == [False, True]


@pytest.mark.tensorrt
def test_opsets_make_no_difference(builder: Builder) -> None:
    cases = [case for case in CASES if case.name.startswith("opset ")]
    assert len({tuple(layer.tactic for layer in builder.build(case.model().SerializeToString()).layers) for case in cases}) == 1


@pytest.mark.tensorrt
@pytest.mark.cross_section
def test_a_build_that_fails_leaves_nothing_to_the_next(builder: Builder) -> None:
    """In one process the next engine would be for the compute capability of the one that failed, where no Conv is on integers."""
    refused, conv = (next(case for case in CASES if case.name == name) for name in ("MatMul, sm75", "Conv 1-D"))
    assert not builder.build(refused.model().SerializeToString(), refused.capability).built
    assert verdict_of(builder.build(conv.model().SerializeToString())) == "int8"
