"""Results of the source that nothing stands for, and limits of one channel alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qconvert.checking.comparison_forms import to_comparison_form
from qconvert.checking.missing_results import find_missing_results
from qconvert.checking.same_codes import shift_codes, stored_offset
from qconvert.checking.value_limits import compare_limits, limits_of
from qconvert.graph import Graph, Op, Quantization, Tensor

GRID, OTHER = Quantization.per_tensor(0.05, 3), Quantization.per_tensor(0.1, 3)


def graph(*ops: Op, **quantizations: Quantization) -> Graph:
    names = {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors = {name: Tensor(name, "int8", (1, 4), None, quantizations.get(name, GRID)) for name in sorted(names)}
    return Graph("g", tensors, ops, ("x",), ("y",))


SIGMOID, MUL = Op("Sigmoid", ("x",), ("s",)), Op("Mul", ("x", "s"), ("y",))


def test_equal_graphs_miss_nothing() -> None:
    assert find_missing_results(graph(SIGMOID, MUL), graph(SIGMOID, MUL)) == {}


def test_a_result_that_is_left_out_or_not_rounded() -> None:
    unrounded = graph(
        replace(SIGMOID, outputs=("s/kernel_scale",)), replace(MUL, inputs=("x", "s/kernel_scale")), **{"s/kernel_scale": OTHER}
    )
    for other in (graph(Op("Mul", ("x", "x"), ("y",))), unrounded):
        assert find_missing_results(graph(SIGMOID, MUL), other) == {
            "s": "no tensor of the result corresponds to it, and 'y' is computed without it"
        }
    stored = graph(replace(SIGMOID, outputs=("s/uint8",)), replace(MUL, inputs=("x", "s/uint8")))
    assert find_missing_results(graph(SIGMOID, MUL), stored) == {}


def test_values_that_are_there_under_another_name_do_not_count() -> None:
    clip = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("x", "r"), ("y",)))
    assert find_missing_results(clip, graph(SIGMOID, MUL)) == {}


@pytest.mark.parametrize(("have", "want", "by"), [("int4", "uint4", 8), ("uint2", "int2", -2), ("int8", "uint8", 128)])
def test_codes_of_one_width_are_shifted(have: str, want: str, by: int) -> None:
    given, moved = (Tensor("x", dtype, (3,), None, Quantization.per_tensor(0.5, 1 + extra)) for dtype, extra in ((have, 0), (want, by)))
    assert np.array_equal(shift_codes(np.array([0, 1]), have, want), [by, 1 + by])
    assert stored_offset(given, moved) == by


def test_a_result_that_is_clipped_at_once_on_its_quantization_is_not_missed() -> None:
    clipped = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("x", "r"), ("y",)))
    fused = graph(replace(SIGMOID, outputs=("r",)), Op("Mul", ("x", "r"), ("y",)))
    assert find_missing_results(clipped, fused) == {}
    elsewhere = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("x", "r"), ("y",)), r=OTHER)
    assert list(find_missing_results(elsewhere, fused)) == ["s"]


def test_a_requantization_of_data_that_are_stored_otherwise_stands_for_itself() -> None:
    """x int8 -> the same codes as uint8 -> rounded -> the same codes as int8: the result rounds x at once."""
    steps = [("x", "x/uint8"), ("x/uint8", "y/uint8"), ("y/uint8", "y")]
    ops = [Op("Requantize", (a,), (b,)) for a, b in steps]
    coarse, unsigned = Quantization.per_tensor(0.1, 131), Quantization.per_tensor(0.05, 131)

    def made(chain: list[Op], *quantizations: Quantization) -> Graph:
        found = graph(*chain, y=OTHER, **{"x/uint8": quantizations[0], "y/uint8": coarse})
        return found.evolve(tensors=[replace(t, dtype="uint8") for t in found.tensors.values() if t.name.endswith("uint8")])

    direct = graph(Op("Requantize", ("x",), ("y",)), y=OTHER)
    assert find_missing_results(made(ops, unsigned), direct) == {}
    assert list(find_missing_results(made(ops, Quantization.per_tensor(0.07, 131)), direct)) == ["y/uint8"]


def test_equal_operators_count_once() -> None:
    """A source that computes a tensor twice, and a result that has one of the two; also as int8 and as uint8."""
    twice = (SIGMOID, Op("Sigmoid", ("x",), ("t",)), Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "t"), ("y",)))
    once = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "s"), ("y",)))
    source = graph(*twice)
    assert find_missing_results(source, once) == {}
    assert list(find_missing_results(graph(*twice, t=OTHER), once)) == ["t"]
    for zero_point, expected in ((131, []), (130, ["t"])):
        stored = Tensor("t", "uint8", (1, 4), None, Quantization.per_tensor(0.05, zero_point))
        other = replace(source, tensors={**source.tensors, "t": stored})
        assert list(find_missing_results(other, once)) == expected


def test_a_result_that_is_only_stored_otherwise_is_not_missed() -> None:
    def stored(quantization: Quantization) -> Graph:
        given = graph(SIGMOID, Op("Requantize", ("s",), ("y",)))
        return replace(given, tensors={**given.tensors, "s": Tensor("s", "uint8", (1, 4), None, quantization)})

    at_once = graph(replace(SIGMOID, outputs=("y",)))
    assert find_missing_results(stored(Quantization.per_tensor(0.05, 131)), at_once) == {}
    assert list(find_missing_results(stored(Quantization.per_tensor(0.05, 130)), at_once)) == ["s"]


def test_a_result_that_is_gone_with_its_operator_is_missed() -> None:
    """Also where what clips it is there: that clips something else then."""
    clipped = graph(SIGMOID, Op("Relu", ("s",), ("y",)))
    assert find_missing_results(clipped, graph(replace(SIGMOID, outputs=("y",)))) == {}
    assert list(find_missing_results(clipped, graph(Op("Relu", ("x",), ("y",))))) == ["s"]


def test_a_result_that_is_moved_at_once_is_not_missed() -> None:
    moved = graph(SIGMOID, Op("Transpose", ("s",), ("t",), {"perm": (0, 1)}), Op("Mul", ("x", "t"), ("y",)))
    assert find_missing_results(moved, graph(replace(SIGMOID, outputs=("t",)), Op("Mul", ("x", "t"), ("y",)))) == {}


def test_a_rounding_relu_stands_for_its_result_in_another_layout() -> None:
    before = Op("Relu", ("s",), ("r/turned",)), Op("Transpose", ("r/turned",), ("r",), {"perm": (0, 1)}), Op("Mul", ("x", "r"), ("y",))
    other = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("x", "r"), ("y",)), s=OTHER)
    assert find_missing_results(graph(SIGMOID, *before, s=OTHER), other) == {}
    assert list(find_missing_results(graph(SIGMOID, *before, s=OTHER), graph(SIGMOID, Op("Mul", ("x", "s"), ("y",)), s=OTHER))) == [
        "r/turned"
    ]


def test_a_constant_is_no_result_that_stands_for_another() -> None:
    """Tables and limits of what an operator is written with have its name, and may have its quantization."""
    other = graph(Op("Mul", ("x", "s/limit"), ("y",)))
    limit = replace(other["s/limit"], data=np.zeros((1, 4), np.int8))
    other = replace(other, tensors={**other.tensors, "s/limit": limit})
    for declared in ((), ("s/limit",)):
        assert list(find_missing_results(graph(SIGMOID, MUL), other, declared)) == ["s"]


def test_limits_that_a_quantization_does_not_reach_keep_its_values() -> None:
    """GRID holds -6.55 to 6.2: the float values of s, limited, are rounded onto it again."""
    real = [Op("Dequantize", ("s",), ("d",)), Op("Clip", ("d", "low", "high"), ("c",)), Op("Quantize", ("c",), ("q",))]

    def limited(low: float, high: float) -> Graph:
        found = graph(SIGMOID, *real, Op("Mul", ("q", "s"), ("y",)))
        bounds = [Tensor(name, "float32", (), np.float32(value)) for name, value in (("low", low), ("high", high))]
        return found.evolve(tensors=[*bounds, *(Tensor(name, "float32", (1, 4)) for name in "dc")])

    square = graph(SIGMOID, Op("Mul", ("s", "s"), ("y",)))
    assert find_missing_results(limited(-7, 6.2), square) == {}
    assert list(find_missing_results(limited(-7, 5), square)) == ["q"]


def test_integers_that_the_result_has_in_another_type_alone() -> None:
    stored = [replace(SIGMOID, outputs=("s/uint8",)), Op("Requantize", ("s/uint8",), ("s",)), Op("Mul", ("x", "s/uint8"), ("y",))]
    source = graph(*stored, **{"s/uint8": Quantization.per_tensor(0.05, 131)})
    source = replace(source.evolve(tensors=[replace(source["s/uint8"], dtype="uint8")]), outputs=("y", "s"))
    assert find_missing_results(source, graph(SIGMOID, MUL)) == {}


def test_a_limit_of_one_channel_alone() -> None:
    """A tensor may hold what the other channels leave, so that values over its range are not limited by it."""
    ends = Tensor("ends", "int8", (4,), np.array([127, 127, 100, 127], np.int8), GRID)
    one = graph(SIGMOID, Op("Mul", ("x", "s"), ("m",)), Op("Min", ("m", "ends"), ("y",))).evolve(tensors=[ends])
    whole = graph(SIGMOID, MUL)
    assert compare_limits(whole, one, ()) == {"y": "its values lie between -6.55 and 4.85 instead of between -6.55 and 6.2"}
    assert limits_of(one, one.producers(), "y") == limits_of(whole, whole.producers(), "y")
    assert compare_limits(one, one, ()) == {}


def test_a_limit_of_floats_between_two_operators() -> None:
    ends = [Tensor("low", "float32", (), np.float32(-2)), Tensor("high", "float32", (), np.float32(2))]
    inner = [Tensor(name, "float32", (1, 4)) for name in ("s", "c")]
    whole = graph(SIGMOID, MUL).evolve(tensors=inner[:1])
    clipped = graph(SIGMOID, Op("Clip", ("s", "low", "high"), ("c",)), Op("Mul", ("x", "c"), ("y",))).evolve(tensors=[*ends, *inner])
    assert compare_limits(whole, clipped, ()) == {}  # a Sigmoid does not reach them
    ends[0] = Tensor("low", "float32", (), np.float32(0.5))
    assert compare_limits(whole, clipped.evolve(tensors=ends), ()) == {"y": "its data 's' lie between 0.5 and 1 instead of between 0 and 1"}


def test_an_output_that_is_an_input_keeps_its_name_in_the_form_of_comparisons() -> None:
    """Two Identities one after the other between them become one, which still gives the output."""
    found = to_comparison_form(graph(Op("Identity", ("x",), ("a",)), Op("Identity", ("a",), ("y",))))
    assert [(op.kind, op.inputs, op.outputs) for op in found.ops] == [("Identity", ("x",), ("y",))]
