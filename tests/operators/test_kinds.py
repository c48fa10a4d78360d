"""The operator set: roles, attributes, and what is read off a kind."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.arithmetic.storage import DTYPES
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import KINDS, REQUIRED, RULES, Kind, choice, flag, integer, integers, number, register, text, texts
from qconvert.operators.properties import ELEMENTWISE, WHEREVER, AxisMove, Suits, any_value, within_data


def test_roles_say_how_many_inputs_there_are() -> None:
    spans = {name: (KINDS[name].inputs, KINDS[name].outputs) for name in ("Conv", "Concat", "Split", "Pad", "TopK", "Opaque", "Where")}
    assert spans == {
        "Conv": ((2, 3), (1, 1)), "Concat": ((1, -1), (1, 1)), "Split": ((2, 2), (1, -1)), "Pad": ((2, 3), (1, 1)),
        "TopK": ((2, 2), (2, 2)), "Opaque": ((0, -1), (0, -1)), "Where": ((3, 3), (1, 1)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "count", "data", "moved"),
    [("Conv", 3, ["0"], ["0"]), ("Where", 3, ["1", "2"], ["1", "2"]), ("Pad", 3, ["0"], ["0", "2"]),
     ("Concat", 4, list("0123"), list("0123")),
     ("MatMul", 2, ["0", "1"], ["0", "1"]), ("ScatterND", 3, ["0", "2"], ["0", "2"]), ("Slice", 5, ["0"], ["0"]),
     ("BatchNormalization", 5, ["0"], ["0"])],
)  # fmt: skip
def test_roles_tell_data_from_the_rest(name: str, count: int, data: list[str], moved: list[str]) -> None:
    op = Op(name, tuple(map(str, range(count))), ("y",))
    assert KINDS[name].data(op) == data
    assert KINDS[name].moved_inputs(op) == moved


def test_absent_inputs_have_no_name() -> None:
    assert KINDS["Clip"].inputs_with_role(Op("Clip", ("x", "", "high"), ("y",)), "data", "parameter") == ["x", "high"]


def test_what_is_read_off_the_roles() -> None:
    assert {name for name, item in KINDS.items() if item.has_weights} == {"Conv", "ConvTranspose", "Gemm"}
    assert {name for name, item in KINDS.items() if item.sums_products} == {"Conv", "ConvTranspose", "Gemm", "MatMul"}
    assert {name for name, item in KINDS.items() if item.is_matrix_product} == {"Gemm", "MatMul"}
    assert {name for name, item in KINDS.items() if item.reads_state} == {"ReadState"}
    assert {name for name, item in KINDS.items() if item.chooses} == {"Concat", "Max", "Min", "Where"}
    assert {name for name, item in KINDS.items() if item.results == 1} == {"TopK", "Unique"}
    assert {name for name, item in KINDS.items() if item.sums_all_weights} == {"Conv", "Gemm", "MatMul"}
    assert {name for name, item in KINDS.items() if item.copies} == {"Identity"}
    assert {name for name, item in KINDS.items() if item.transposes} == {"Transpose"}


def test_a_conversion_does_one_thing() -> None:
    for item in KINDS.values():
        assert (item.quantizes, item.dequantizes, item.requantizes).count(True) == (item.rule == "convert"), item.name


@pytest.mark.parametrize("name", [name for name, item in KINDS.items() if item.affine is not None])
@pytest.mark.parametrize("place", [0, 1])
def test_an_operator_with_a_constant_is_its_factor_and_its_addend(name: str, place: int) -> None:
    affine = KINDS[name].affine
    assert affine is not None
    data, constant = np.array([-3.0, 0.5, 7.0], np.float32), np.array([2.0, -0.25, 8.0], np.float32)
    found = affine(place, constant)
    if found is None:
        assert (name, place) == ("Div", 0)
        return
    tensors = {"x": Tensor("x", "float32", (3,)), "c": Tensor("c", "float32", (3,), constant), "y": Tensor("y", "float32", (3,))}
    inputs = ("c", "x") if place == 0 else ("x", "c")
    result = evaluate(Graph("net", tensors, (Op(name, inputs, ("y",)),), ("x",), ("y",)), {"x": data})["y"]
    assert np.array_equal(result, found[0] * data + found[1])


def test_words_of_types_fit_the_roles() -> None:
    known = {*DTYPES, "any", "index"}
    for name, item in KINDS.items():
        for words, most in zip(item.types.split("->"), (item.inputs[1], item.outputs[1]), strict=False):
            listed = words.split()
            assert 1 <= len(listed) <= abs(most) or not item.types, name
            assert {word for word in listed if len(word) > 1 and not word.startswith("@")} <= known, name
            assert {word[1:] for word in listed if word.startswith("@")} <= {*item.attributes}, name
    assert {name for name, item in KINDS.items() if item.rule in ("index", "plain") and not item.types} == {"DetectionPostProcess"}


def test_every_kind_that_decides_the_layout_says_it_in_an_attribute() -> None:
    assert {n for n, k in KINDS.items() if k.layout.suits is Suits.DECIDES} == {
        n for n, k in KINDS.items() if "data_format" in k.attributes
    }


def test_a_move_keeps_scales_along_an_axis_only_where_a_rule_says_so() -> None:
    silent = {name for name, item in KINDS.items() if item.rule == "move" and item.keeps_axis is None}
    assert silent == {
        "DepthToSpace", "SpaceToDepth", "SpaceToBatch", "BatchToSpace", "GatherND", "GatherElements", "ScatterND", "ScatterElements",
        "DynamicUpdateSlice", "InteriorPad", "MatrixSetDiag", "SparseToDense", "StartGather",
    }, "data movement says keeps_axis, which scales along an axis survive, or is listed here as one of which none do"  # fmt: skip
    assert not {name for name, item in KINDS.items() if item.rule != "move" and item.keeps_axis}


@pytest.mark.parametrize(
    ("spec", "right", "wrong", "reason"),
    [(integer(), 3, 1.5, "an integer"), (flag(0), 1, 2, "one of 0, 1"), (flag(0), 0, True, "an integer"), (number(), 2, "2", "a number"),
     (number(), 0.5, float("inf"), "a number"), (integers(), (1, 2), [1, 2], "a tuple of integers"),
     (integers(), (), (0.5,), "a tuple of integers"),
     (text(), "a", 1, "text"), (texts(), ("a",), ("a", 1), "a tuple of text"), (choice(("a", "b")), "b", "c", "one of 'a', 'b'")],
)  # fmt: skip
def test_attributes_know_their_values(spec: object, right: object, wrong: object, reason: str) -> None:
    assert spec.problem(right) == ""  # type: ignore[attr-defined]
    assert spec.problem(wrong) == reason  # type: ignore[attr-defined]


def test_defaults() -> None:
    assert KINDS["Softmax"].defaults == {"axis": -1, "beta": 1.0, "arithmetic": ""}
    assert KINDS["Transpose"].defaults == {} and KINDS["Transpose"].attributes["perm"].default is REQUIRED
    assert Op("Softmax", ("x",), ("y",))["beta"] == 1.0
    with pytest.raises(KeyError, match="perm"):
        Op("Transpose", ("x",), ("y",))["perm"]


def test_a_kind_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match="'Conv' already"):
        register([Kind("Conv", shape=KINDS["Relu"].shape, layout=ELEMENTWISE, bounds=any_value)])
    assert KINDS["Conv"].has_weights


def test_roles_and_rules_are_known_ones() -> None:
    for words in ({"takes": "dta"}, {"rule": "moves"}):
        with pytest.raises(ValueError, match=r"no such role or rule: (dta|moves)"):
            Kind("Odd", shape=KINDS["Relu"].shape, **words)  # type: ignore[arg-type]
    assert {item.rule for item in KINDS.values()} == set(RULES)


def test_what_a_kind_must_say_is_asked_for_by_name() -> None:
    shape = KINDS["Relu"].shape
    with pytest.raises(ValueError, match=r"acme\.Odd: lacks samples, what it does with the samples of a batch"):
        Kind("acme.Odd", shape=shape, rule="plain")
    with pytest.raises(ValueError, match=r"acme\.Odd: lacks bounds, between which values its results lie"):
        Kind("acme.Odd", shape=shape, layout=ELEMENTWISE)
    with pytest.raises(ValueError, match=r"acme\.Odd: has weights or factors and lacks products"):
        Kind("acme.Odd", "data factor", shape=shape, layout=ELEMENTWISE, bounds=any_value)
    moved = Kind("acme.Odd", shape=shape, rule="move", layout=ELEMENTWISE)
    assert moved.samples is WHEREVER and moved.bounds is within_data and moved.keeps_range and not moved.clips


def test_of_kinds_that_cannot_all_be_added_none_is() -> None:
    twin, fresh, other = (
        Kind(name, shape=lambda op, s: [s.shape(0)], layout=ELEMENTWISE, bounds=any_value) for name in ("Conv", "acme.Fresh", "acme.Fresh")
    )
    with pytest.raises(ValueError, match="there is a kind 'Conv' already"):
        register((fresh, twin))
    assert "acme.Fresh" not in KINDS and KINDS["Conv"] is not twin
    with pytest.raises(ValueError, match=r"there is a kind 'acme\.Fresh' already"):
        register((fresh, other))
    assert "acme.Fresh" not in KINDS


@pytest.mark.parametrize(("axes", "expected"), [([1], True), ([-1], True), ([0], False), ([], False)])
def test_scales_survive_a_reduction_along_other_axes(axes: list[int], expected: bool) -> None:
    keeps, op = KINDS["ReduceMax"].keeps_axis, Op("ReduceMax", ("x", "axes"), ("y",))
    assert keeps is not None
    assert keeps(AxisMove(op, lambda index: np.array(axes, np.int64), (1, 3), (1, 1), 0, 0)) == expected
