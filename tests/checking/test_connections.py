"""Operators that read another tensor than in the source, results of the source that nothing stands for, and limits of one channel alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qconvert.checking.comparison_forms import to_comparison_form
from qconvert.checking.connections import find_missing_results, find_rewired_tensors
from qconvert.checking.same_codes import shift_codes, stored_offset
from qconvert.checking.value_limits import compare_limits, limits_of
from qconvert.evaluate import evaluate_op
from qconvert.graph import Graph, Op, Quantization, Tensor

GRID, OTHER = Quantization.per_tensor(0.05, 3), Quantization.per_tensor(0.1, 3)


def graph(*ops: Op, **quantizations: Quantization) -> Graph:
    names = {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors = {name: Tensor(name, "int8", (1, 4), None, quantizations.get(name, GRID)) for name in sorted(names)}
    return Graph("g", tensors, ops, ("x",), ("y",))


SIGMOID, MUL = Op("Sigmoid", ("x",), ("s",)), Op("Mul", ("x", "s"), ("y",))


def test_equal_graphs_have_neither() -> None:
    assert (
        find_rewired_tensors(graph(SIGMOID, MUL), graph(SIGMOID, MUL))
        == find_missing_results(graph(SIGMOID, MUL), graph(SIGMOID, MUL))
        == {}
    )


def test_an_operator_that_reads_another_tensor() -> None:
    found = find_rewired_tensors(graph(SIGMOID, MUL), graph(SIGMOID, Op("Mul", ("x", "x"), ("y",))))
    assert found == {"y": "is computed from 'x' instead of 's', 'x'"}


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


def test_a_state_that_was_written_before_is_the_value_that_was_written() -> None:
    write, read = Op("WriteState", ("s",), (), {"state": "v"}), Op("ReadState", (), ("r",), {"state": "v"})
    round_again, direct = (Op("Requantize", (name,), ("y",)) for name in ("r", "s"))
    result = graph(SIGMOID, direct, write)
    assert find_rewired_tensors(graph(SIGMOID, write, read, round_again), result) == {}
    assert find_rewired_tensors(graph(SIGMOID, read, round_again, write), result) == {"y": "is computed from 's' instead of constants"}


def test_values_that_are_there_under_another_name_do_not_count() -> None:
    back = graph(SIGMOID, Op("Requantize", ("s",), ("t",)), Op("Mul", ("x", "t"), ("y",)))
    direct = graph(SIGMOID, Op("Requantize", ("s",), ("t",)), MUL)
    assert find_rewired_tensors(back, direct) == {}
    clip = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("x", "r"), ("y",)))
    assert find_missing_results(clip, graph(SIGMOID, MUL)) == {}


def test_a_requantize_that_clips_has_other_values() -> None:
    narrow = replace(GRID, quant_max=40)
    clipped = graph(Op("Requantize", ("x",), ("t",)), Op("Sigmoid", ("t",), ("y",)), t=narrow)
    direct = graph(Op("Requantize", ("x",), ("t",)), Op("Sigmoid", ("x",), ("y",)), t=narrow)
    assert find_rewired_tensors(clipped, direct) == {"y": "is computed from 'x' instead of 't'"}
    assert find_rewired_tensors(replace(clipped, tensors=direct.tensors | {"t": replace(direct["t"], quantization=GRID)}), direct) == {}


def test_a_message_names_a_few_tensors_and_counts_the_others() -> None:
    names = tuple(f"x{place}" for place in range(9))
    ops = [Op("LeakyRelu", ("x",), (name,), {"alpha": 0.1 * place}) for place, name in enumerate(names)]
    joined, alone = (graph(*ops, Op("Concat", given, ("y",), {"axis": 0})) for given in (names, ("x",)))
    assert find_rewired_tensors(joined, alone) == {"y": "is computed from 'x' instead of 'x0', 'x1', 'x2', 'x3' and 5 more"}


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


def test_integers_without_a_label_are_those_that_get_one() -> None:
    """ONNX moves integers between two operators before they get their label."""
    chain = Op("Where", ("c", "x", "x"), ("s",)), Op("Where", ("c", "s", "x"), ("t",)), Op("Mul", ("x", "t"), ("y",))

    def made(read: str) -> Graph:
        plain = replace(chain[0], outputs=("s/plain",)), Op("Reinterpret", ("s/plain",), ("s",)), replace(chain[1], inputs=("c", read, "x"))
        found = graph(*plain, chain[2])
        return found.evolve(tensors=[replace(found["s/plain"], quantization=None)])

    assert find_rewired_tensors(graph(*chain), made("s/plain")) == {}
    assert list(find_rewired_tensors(graph(*chain), made("x"))) == ["t"]


def test_equal_operators_count_once() -> None:
    """A source that computes a tensor twice, and a result that has one of the two."""
    twice = graph(SIGMOID, Op("Sigmoid", ("x",), ("t",)), Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "t"), ("y",)))
    once = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "s"), ("y",)))
    assert find_rewired_tensors(twice, once) == find_missing_results(twice, once) == {}
    coarser = graph(SIGMOID, Op("Sigmoid", ("x",), ("t",)), Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "t"), ("y",)), t=OTHER)
    assert list(find_rewired_tensors(coarser, once)) == ["y"]
    assert list(find_missing_results(coarser, once)) == ["t"]


def test_operators_whose_results_are_equal_once_they_are_stored_alike_count_once() -> None:
    """Two Quantize of one value, to int8 and to uint8, are one where all bytes are uint8."""
    source = graph(SIGMOID, Op("Sigmoid", ("x",), ("t",)), Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "t"), ("y",)))
    once = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "s"), ("y",)))
    for zero_point, expected in ((131, []), (130, ["t"])):
        stored = Tensor("t", "uint8", (1, 4), None, Quantization.per_tensor(0.05, zero_point))
        other = replace(source, tensors={**source.tensors, "t": stored})
        assert list(find_missing_results(other, once)) == expected
        assert list(find_rewired_tensors(other, once)) == (["y"] if expected else [])


def test_a_fused_activation_may_be_a_clip_of_an_equal_operator() -> None:
    def doubled(**attributes: str) -> Op:
        return Op("Add", ("x", "x"), ("a" if attributes["activation"] else "s",), attributes)

    sums = Op("Mul", ("s", "a"), ("y",))
    fused = graph(doubled(activation="relu"), doubled(activation=""), sums)
    clipped = graph(doubled(activation=""), Op("Relu", ("s",), ("a",)), sums)
    assert find_rewired_tensors(fused, clipped) == find_rewired_tensors(clipped, fused) == {}
    other = graph(doubled(activation=""), Op("Relu", ("x",), ("a",)), sums)
    assert list(find_rewired_tensors(fused, other)) == ["a"]


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


def test_an_output_in_the_middle_that_gets_its_type_back_is_what_its_readers_read() -> None:
    """x -> s/uint8 -> y, and s/uint8 -> s for the output alone."""
    stored = graph(
        replace(SIGMOID, outputs=("s/uint8",)), Op("Requantize", ("s/uint8",), ("s",)), Op("Relu", ("s/uint8",), ("y",)),
        **{"s/uint8": Quantization.per_tensor(0.05, 131)},
    )  # fmt: skip
    stored = stored.evolve(tensors=[replace(stored["s/uint8"], dtype="uint8")])
    direct = graph(SIGMOID, Op("Relu", ("s",), ("y",)))
    assert find_rewired_tensors(direct, stored) == find_rewired_tensors(stored, direct) == {}
    skipped = stored.evolve(ops=[*stored.ops[:2], Op("Relu", ("x",), ("y",))])
    assert find_rewired_tensors(direct, skipped) == {"y": "is computed from 'x' instead of 's'"}


def test_an_output_in_the_middle_that_gets_its_layout_back_is_what_its_readers_read() -> None:
    """x -> s/channels_last -> s/source_layout -> s, and s/channels_last -> y; the float values of it, r, are shared too."""
    ops = (replace(SIGMOID, outputs=("s/channels_last",)), Op("Transpose", ("s/channels_last",), ("s/source_layout",)),
           Op("Dequantize", ("s/source_layout",), ("r",)), Op("Reshape", ("s/source_layout",), ("s",)),
           Op("Relu", ("s/channels_last",), ("y",)))  # fmt: skip
    direct = graph(SIGMOID, Op("Dequantize", ("s",), ("r",)), Op("Relu", ("s",), ("y",)))
    assert find_rewired_tensors(direct, graph(*ops)) == find_rewired_tensors(graph(*ops), direct) == {}


def test_a_row_that_is_widened_is_what_the_next_operator_reads() -> None:
    """x -> s/wide -> s/wide/source_layout -> s, as a convolution of one dimension has it, and s/wide -> y."""
    ops = (replace(SIGMOID, outputs=("s/wide",)), Op("Transpose", ("s/wide",), ("s/wide/source_layout",)),
           Op("Squeeze", ("s/wide/source_layout",), ("s",)), Op("Relu", ("s/wide",), ("y",)))  # fmt: skip
    direct = graph(SIGMOID, Op("Relu", ("s",), ("y",)))
    assert find_rewired_tensors(direct, graph(*ops)) == find_rewired_tensors(graph(*ops), direct) == {}


def test_an_operator_that_is_spelled_out_beside_one_of_its_parts() -> None:
    """The source computes Rsqrt and Sqrt of one tensor; the result divides by a root, of which it has two."""
    source = graph(Op("Sqrt", ("x",), ("s",)), Op("Rsqrt", ("x",), ("r",)), Op("Mul", ("r", "s"), ("y",)))
    decomposed = (Op("Sqrt", ("x",), ("s",)), Op("Sqrt", ("x",), ("r/root",)), Op("Reciprocal", ("r/root",), ("r",)))
    assert find_rewired_tensors(source, graph(*decomposed, Op("Mul", ("r", "s"), ("y",)))) == {}
    assert list(find_rewired_tensors(source, graph(*decomposed, Op("Mul", ("s", "s"), ("y",))))) == ["y"]


def test_the_same_values_in_another_shape_or_as_real_numbers() -> None:
    move, real = Op("Reshape", ("s", "shape"), ("t",)), Op("Dequantize", ("s",), ("t",))
    for keeps in (move, real, Op("Transpose", ("s",), ("t",), {"perm": (0, 1)})):
        following = graph(SIGMOID, keeps, Op("Mul", ("x", "t"), ("y",)))
        assert find_rewired_tensors(following, graph(SIGMOID, keeps, MUL)) == {}
        assert list(find_rewired_tensors(following, graph(SIGMOID, keeps, Op("Mul", ("x", "x"), ("y",))))) == ["y"]
    stored = graph(Op("Requantize", ("x",), ("x/stored",)), Op("Dequantize", ("x/stored",), ("t",)), Op("Mul", ("t", "t"), ("y",)))
    assert find_rewired_tensors(stored, graph(Op("Dequantize", ("x",), ("t",)), Op("Mul", ("x", "x"), ("y",)))) == {}


def test_a_rounding_relu_stands_for_its_result_in_another_layout() -> None:
    before = Op("Relu", ("s",), ("r/turned",)), Op("Transpose", ("r/turned",), ("r",), {"perm": (0, 1)}), Op("Mul", ("x", "r"), ("y",))
    other = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("x", "r"), ("y",)), s=OTHER)
    assert find_missing_results(graph(SIGMOID, *before, s=OTHER), other) == {}
    assert list(find_missing_results(graph(SIGMOID, *before, s=OTHER), graph(SIGMOID, Op("Mul", ("x", "s"), ("y",)), s=OTHER))) == [
        "r/turned"
    ]


def test_a_table_may_hold_operators_whose_results_others_read_too() -> None:
    """y = s * s is looked up by the codes of x, and s is computed next to it."""
    source = graph(SIGMOID, Op("Mul", ("s", "s"), ("y",)))
    codes = np.arange(-128, 128)
    for wrong in (0, 1):
        values = evaluate_op(source, source.ops[1], [evaluate_op(source, SIGMOID, [codes.astype(np.int8)])[0].stored] * 2)[0].stored
        values[:3] += np.int8(wrong)
        lookup = [
            Op("Cast", ("x",), ("i",), {"to": "int32"}),
            Op("Add", ("i", "low"), ("j",)),
            Op("Gather", ("table", "j"), ("y",), {"axis": 0}),
        ]
        made = graph(SIGMOID, *lookup)
        plain = [Tensor(name, "int32", (1, 4)) for name in "ij"] + [Tensor("low", "int32", (), np.int32(128))]
        other = made.evolve(tensors=[*plain, replace(made["table"], shape=(256,), data=values)])
        assert list(find_rewired_tensors(source, other)) == ["y"] * wrong


def test_a_result_and_its_other_form_in_either_order() -> None:
    """The source stores its result otherwise after the operator, the result before it."""
    source = graph(SIGMOID, Op("Mul", ("s", "s"), ("y/stored",)), Op("Requantize", ("y/stored",), ("y",)))
    other = graph(SIGMOID, Op("Mul", ("s", "s"), ("y",)), Op("Requantize", ("y",), ("y/stored",)))
    assert find_rewired_tensors(source, other) == {}
    wrong = graph(SIGMOID, Op("Mul", ("x", "x"), ("y",)), Op("Requantize", ("y",), ("y/stored",)))
    assert set(find_rewired_tensors(source, wrong)) == {"y", "y/stored"}


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
    assert find_missing_results(limited(-7, 6.2), square) == find_rewired_tensors(limited(-7, 6.2), square) == {}
    assert list(find_missing_results(limited(-7, 5), square)) == ["q"]
    clip = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "x"), ("y",)), s=Quantization.per_tensor(0.05, -128))
    clip = clip.evolve(tensors=[replace(clip["r"], quantization=clip["s"].quantization)])
    assert find_rewired_tensors(clip, clip.evolve(ops=[*clip.ops[:2], Op("Mul", ("s", "x"), ("y",))])) == {}
    reached = graph(SIGMOID, Op("Relu", ("s",), ("r",)), Op("Mul", ("r", "x"), ("y",)))
    assert list(find_rewired_tensors(reached, reached.evolve(ops=[*reached.ops[:2], Op("Mul", ("s", "x"), ("y",))]))) == ["y"]


def test_integers_that_the_result_has_in_another_type_alone() -> None:
    """What else reads them has to be computed of these: the sum that is not rounded to their quantization is named."""
    stored = [replace(SIGMOID, outputs=("s/uint8",)), Op("Requantize", ("s/uint8",), ("s",)), Op("Mul", ("x", "s/uint8"), ("y",))]
    source = graph(*stored, **{"s/uint8": Quantization.per_tensor(0.05, 131)})
    source = replace(source.evolve(tensors=[replace(source["s/uint8"], dtype="uint8")]), outputs=("y", "s"))
    assert find_missing_results(source, graph(SIGMOID, MUL)) == find_rewired_tensors(source, graph(SIGMOID, MUL)) == {}
    beside = graph(SIGMOID, replace(SIGMOID, outputs=("t",)), Op("Mul", ("x", "t"), ("y",)), t=OTHER)
    assert list(find_rewired_tensors(source, beside)) == ["y"]


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


def test_a_constant_that_the_result_stores_in_another_type_is_no_other_tensor() -> None:
    """A dequantized constant is no source of what reads its integers: the result may have a copy of these in another type."""

    def made(name: str) -> Graph:
        found = graph(Op("Dequantize", ("c",), ("r",)), Op("Add", ("c" if name == "c" else name, "x"), ("y",)))
        stored = {item: Tensor(item, "int8", (1, 4), np.zeros((1, 4), np.int8), GRID) for item in {"c", name}}
        return replace(found, tensors=found.tensors | stored | {"r": Tensor("r", "float32", (1, 4))}, outputs=("y", "r"))

    assert find_rewired_tensors(made("c"), made("c/uint8")) == {}


def test_an_output_that_is_an_input_keeps_its_name_in_the_form_of_comparisons() -> None:
    """Two Identities one after the other between them become one, which still gives the output."""
    found = to_comparison_form(graph(Op("Identity", ("x",), ("a",)), Op("Identity", ("a",), ("y",))))
    assert [(op.kind, op.inputs, op.outputs) for op in found.ops] == [("Identity", ("x",), ("y",))]
