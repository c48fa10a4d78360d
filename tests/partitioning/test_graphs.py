"""Networks made by hand: states, choices and loops, several outputs, shared constants, outputs within, and regions of nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert import Graph, Op, Partition, Quantization, Tensor, diff, load, partition, save
from qconvert.errors import FileAccessError, OptionError
from qconvert.partitioning.splitting import Staged, stage_graph
from qconvert.plugin import Pattern
from qconvert.rewriting.control_flow import without_calls
from qconvert.rules.validation import validate
from tests.partitioning.cutting import fussy, network, same_runs, t

GRID = Quantization.per_tensor(0.5, 3)


def cut(graph: Graph, *kinds: str, runs: int = 3, name: str = "npu", format: str = "qgraph", **options: Any) -> tuple[Partition, Staged]:
    """What a target that takes some kinds gets; everything that is computed stays the same."""
    validate(graph)
    found = partition(graph, [fussy(name, kinds, format=format)], **options)
    validate(found.graph)
    parts = stage_graph(found.graph)
    for part in parts.parts:
        validate(part.graph)
    same_runs(graph, found, parts, runs)
    return found, parts


def sizes(found: Partition) -> list[int]:
    return [region.size for region in found.regions]


def chain(*kinds: str, outputs: tuple[str, ...] = ()) -> Graph:
    """Operators of one input, one after the other: x -> t0 -> t1 …"""
    names = ["x", *(f"t{number}" for number in range(len(kinds)))]
    ops = [Op(kind, (a,), (b,), {}, f"{kind} #{n}") for n, (kind, a, b) in enumerate(zip(kinds, names[:-1], names[1:], strict=True))]
    return network(ops, [t("x")], ["x"], outputs or (names[-1],))


def test_a_chain_is_cut_where_the_target_ends() -> None:
    found, parts = cut(chain("Neg", "Relu", "Sin", "Neg", "Neg"), "Neg", "Relu")
    assert sizes(found) == [2, 2]
    assert [region.inputs + region.outputs for region in found.regions] == [("x", "t1"), ("t2", "t4")]
    assert [region.bytes_in for region in found.regions] == [8, 8]
    assert [item.to_dict() for item in found.outside] == [
        {"kind": "Sin", "name": "t2", "source": "Sin #2", "reasons": {"npu": "npu has no Sin"}}
    ]
    assert [part.name for part in parts.parts] == ["npu_0", "rest_0", "npu_1"]


def test_outputs_within_a_region_are_its_outputs() -> None:
    found, _ = cut(chain("Neg", "Relu", "Neg", outputs=("t2", "t0", "x")), "Neg", "Relu")
    assert sizes(found) == [3]
    assert found.regions[0].outputs == ("t0", "t2")
    assert found.graph.outputs == ("t2", "t0", "x")


def test_a_constant_that_regions_and_the_rest_share_is_in_each() -> None:
    ops = [Op("Add", ("x", "w"), ("a",)), Op("Sin", ("a",), ("s",)), Op("Mul", ("s", "w"), ("b",)), Op("Pow", ("b", "w"), ("y",))]
    graph = network(ops, [t("w", data=[1, 2])], ["x"], ["y"])
    found, _ = cut(graph, "Add", "Mul")
    assert sizes(found) == [1, 1]
    assert all("w" in function.tensors for function in found.graph.functions.values()) and "w" in found.graph
    assert diff(graph, without_calls(found.graph)) == []


def test_operators_of_several_outputs() -> None:
    """One output of the Split is read inside, one outside and one by nobody; so are those of the TopK."""
    tensors = [t("x", (6,)), t("p", (2,), "int64", [2, 2]), *(t(name, (2,)) for name in "abcmy"), t("i", (2,), "int64"),
               t("k", (1,), "int64", [2]), t("sizes", (3,), "int64", [2, 2, 2])]  # fmt: skip
    ops = [
        Op("Split", ("x", "sizes"), ("a", "b", "c"), {"axis": 0}),
        Op("TopK", ("a", "k"), ("m", "i"), {"axis": 0}),
        Op("Sin", ("b",), ("s",)),
        Op("Add", ("m", "s"), ("y",)),
    ]
    found, _ = cut(network(ops, tensors[:1] + tensors[2:], ["x"], ["y"]), "Split", "TopK", "Add")
    assert sizes(found) == [2, 1]
    assert found.regions[0].outputs == ("b", "m")


def test_all_and_nothing() -> None:
    graph = chain("Neg", "Relu")
    found, parts = cut(graph, "Neg", "Relu")
    assert sizes(found) == [2] and found.outside == () and len(parts.parts) == 1
    found, parts = cut(graph)
    assert found.regions == () and [part.name for part in parts.parts] == ["rest_0"]
    assert found.reasons() == {("npu", "Neg", "npu has no Neg"): 1, ("npu", "Relu", "npu has no Relu"): 1}


def test_a_network_of_no_operators() -> None:
    """An input that is an output, and a constant that is one."""
    graph = network([], [t("x"), t("w", data=[1, 2])], ["x"], ["x", "w"])
    found, parts = cut(graph, "Neg")
    assert found.regions == () and parts.parts == () and found.operators == 0


def test_what_nobody_needs_is_left_out() -> None:
    ops = [Op("Neg", ("x",), ("y",)), Op("Sin", ("x",), ("unread",))]
    found, _ = cut(network(ops, [], ["x"], ["y"]), "Neg")
    assert found.outside == () and "unread" not in found.graph


def test_a_dequantize_goes_where_its_value_is_used() -> None:
    """Both regions and the rest read it: integers cross, not floats."""
    tensors = [Tensor("q", "int8", (4,), None, GRID), *(t(name, (4,)) for name in "xabcsy")]
    ops = [Op("Dequantize", ("q",), ("x",)), Op("Neg", ("x",), ("a",)), Op("Sin", ("x",), ("s",)), Op("Add", ("s", "a"), ("b",)),
           Op("Mul", ("b", "x"), ("y",))]  # fmt: skip
    found, parts = cut(network(ops, tensors, ["q"], ["y"]), "Neg", "Mul", "Dequantize")
    assert [(region.operators, region.inputs) for region in found.regions] == [
        ({"Dequantize": 1, "Neg": 1}, ("q",)),
        ({"Dequantize": 1, "Mul": 1}, ("q", "b")),
    ]
    assert [part.graph.inputs for part in parts.parts if not part.target] == [("q", "a")]
    both, _ = cut(network(ops, tensors, ["q"], ["y"]), "Neg", "Mul", "Sin", "Add", "Dequantize")
    assert both.regions[0].operators == {"Dequantize": 1, "Neg": 1, "Sin": 1, "Add": 1, "Mul": 1}


def test_a_dequantize_of_weights_is_copied_with_its_reader() -> None:
    weights = Tensor("w", "int8", (2,), np.array([3, 9], np.int8), GRID)
    ops = [Op("Dequantize", ("w",), ("r",)), Op("Mul", ("x", "r"), ("a",)), Op("Sin", ("a",), ("s",)), Op("Mul", ("s", "r"), ("y",))]
    found, _ = cut(network(ops, [weights], ["x"], ["y"]), "Mul", "Dequantize")
    assert [region.operators for region in found.regions] == [{"Dequantize": 1, "Mul": 1}] * 2
    assert not [op for op in found.graph.ops if op.kind == "Dequantize"]


def test_a_dequantize_that_is_an_output_stays_for_that_too() -> None:
    tensors = [Tensor("q", "int8", (4,), None, GRID), t("x", (4,)), t("y", (4,))]
    ops = [Op("Dequantize", ("q",), ("x",)), Op("Neg", ("x",), ("y",))]
    found, _ = cut(network(ops, tensors, ["q"], ["x", "y"]), "Neg", "Dequantize")
    assert found.regions[0].inputs == ("q",) and found.regions[0].outputs == ("y",)
    found, _ = cut(network(ops, tensors, ["q"], ["x", "y"]), "Neg", "Dequantize", min_ops=0)
    assert sizes(found) == [1, 2]


def test_a_quantize_goes_with_what_it_rounds() -> None:
    tensors = [Tensor("q", "int8", (2,), None, GRID), Tensor("p", "int8", (2,), None, GRID)]
    ops = [Op("Sin", ("x",), ("a",)), Op("Quantize", ("a",), ("q",)), Op("Relu", ("q",), ("p",))]
    graph = network(ops, tensors, ["x"], ["p"])
    found, _ = cut(graph, "Sin", "Quantize")
    assert [region.operators for region in found.regions] == [{"Sin": 1, "Quantize": 1}]
    found, _ = cut(graph, "Relu", "Quantize")
    assert [region.inputs for region in found.regions] == [("a",)]


def test_groups_are_taken_together_or_not_at_all() -> None:
    groups = {"scaled": Pattern("Add", Pattern("Mul")), "flipped": Pattern("Relu", Pattern("Neg"))}
    target = fussy("npu", ("Mul", "Add", "Neg", "Relu"), groups=groups, only_in_groups=("Add", "Relu"))
    ops = [Op("Mul", ("x", "w"), ("a",)), Op("Add", ("a", "w"), ("b",)), Op("Sin", ("b",), ("s",)), Op("Add", ("s", "w"), ("c",)),
           Op("Neg", ("c",), ("d",)), Op("Relu", ("d",), ("e",)), Op("Relu", ("e",), ("y",))]  # fmt: skip
    graph = network(ops, [t("w", data=[1, 2])], ["x"], ["y"])
    found = partition(graph, target)
    assert [(dict(region.groups), region.operators) for region in found.regions] == [
        ({"scaled": 1}, {"Mul": 1, "Add": 1}),
        ({"flipped": 1}, {"Neg": 1, "Relu": 1}),
    ]
    assert {item.name: item.reasons["npu"] for item in found.outside} == {
        "s": "npu has no Sin",
        "c": "npu takes Add only in scaled",
        "y": "npu takes Relu only in flipped",
    }
    same_runs(graph, found, stage_graph(found.graph), 1)


def test_what_a_group_computes_inside_must_not_be_read_elsewhere() -> None:
    target = fussy("npu", ("Mul", "Add"), groups={"scaled": Pattern("Add", Pattern("Mul"))}, only_in_groups=("Add", "Mul"))
    ops = [Op("Mul", ("x", "x"), ("a",)), Op("Add", ("a", "x"), ("b",)), Op("Sin", ("a",), ("s",))]
    assert partition(network(ops, [], ["x"], ["b", "s"]), target).regions == ()


def test_several_targets_by_priority() -> None:
    graph = chain("Neg", "Relu", "Sin", "Relu", "Neg")
    first, second = fussy("first", ("Neg",)), fussy("second", ("Neg", "Relu"))
    found = partition(graph, [first, second])
    assert [(region.target, region.operators) for region in found.regions] == [
        ("first", {"Neg": 1}), ("second", {"Relu": 1}), ("second", {"Relu": 1}), ("first", {"Neg": 1}),
    ]  # fmt: skip
    assert found.outside[0].reasons == {"first": "first has no Sin", "second": "second has no Sin"}
    found = partition(graph, [second, first])
    assert [(region.target, region.size) for region in found.regions] == [("second", 2), ("second", 2)]
    found = partition(graph, [first, second], min_ops=2)
    assert [(region.target, region.size) for region in found.regions] == [("second", 2), ("second", 2)]
    same_runs(graph, found, stage_graph(found.graph), 1)


def test_regions_too_small_are_given_back() -> None:
    tensors = [t("x", (2, 3)), t("w", (4, 3), data=np.ones((4, 3))), t("a", (2, 4)), t("s", (2, 4)), t("y", (2, 4))]
    ops = [Op("Gemm", ("x", "w", ""), ("a",)), Op("Sin", ("a",), ("s",)), Op("Neg", ("s",), ("y",))]
    graph = network(ops, tensors, ["x"], ["y"])
    found, _ = cut(graph, "Gemm", "Neg", min_macs=24)
    assert [(region.operators, region.macs) for region in found.regions] == [({"Gemm": 1}, 24)] and found.macs == 24
    assert [item.reasons["npu"] for item in found.outside] == ["npu has no Sin", "its region would have 0 MACs, fewer than 24"]
    found, _ = cut(graph, "Gemm", "Neg", min_macs=25)
    assert found.regions == ()
    found, _ = cut(graph, "Gemm", "Neg", "Sin", min_ops=4)
    assert {item.reasons["npu"] for item in found.outside} == {"its region would have 3 operators without conversions, fewer than 4"}


def counter(**changes: Any) -> Graph:
    """y = x + s, s = y, and what else goes on with y."""
    ops = [Op("ReadState", (), ("old",), {"state": "s"}), Op("Add", ("x", "old"), ("y",)), Op("WriteState", ("y",), (), {"state": "s"}),
           Op("Sin", ("y",), ("z",)), Op("Neg", ("z",), ("w",))]  # fmt: skip
    return network(changes.pop("ops", ops), [], ["x"], ["w"], states={"s": t("s", data=[5, -1])})


def test_states_go_into_a_region_with_all_that_carries_them_on() -> None:
    found = partition(counter(), fussy("npu", ("Add", "ReadState", "WriteState")))
    assert [(region.operators, dict(region.groups)) for region in found.regions] == [
        ({"ReadState": 1, "Add": 1, "WriteState": 1}, {"states": 1})
    ]
    parts = stage_graph(found.graph)
    assert parts.states == () and list(parts.parts[0].graph.states) == ["s"]
    same_runs(counter(), found, parts)


def test_states_that_no_region_holds_cross_as_values() -> None:
    found, parts = cut(counter(), "Add", "Neg", "ReadState", "WriteState", format="onnx")
    assert [region.operators for region in found.regions] == [{"Add": 1}, {"Neg": 1}]
    assert [(state.name, state.reads, state.written) for state in parts.states] == [("s", ("old",), "y")]


def test_a_target_without_states() -> None:
    found = partition(counter(), fussy("npu", ("Add", "ReadState", "WriteState"), format="onnx"))
    assert {item.kind: item.reasons["npu"] for item in found.outside} == {
        "ReadState": "npu holds no states", "WriteState": "npu holds no states", "Sin": "npu has no Sin", "Neg": "npu has no Neg",
    }  # fmt: skip


def test_a_state_that_is_read_behind_its_write_and_one_that_never_changes() -> None:
    ops = [Op("ReadState", (), ("old",), {"state": "s"}), Op("Add", ("x", "old"), ("y",)), Op("WriteState", ("y",), (), {"state": "s"}),
           Op("Sin", ("y",), ("z",)), Op("ReadState", (), ("new",), {"state": "s"}), Op("Mul", ("z", "new"), ("a",)),
           Op("ReadState", (), ("k",), {"state": "fixed"}), Op("Add", ("a", "k"), ("w",))]  # fmt: skip
    graph = network(ops, [], ["x"], ["w"], states={"s": t("s", data=[5, -1]), "fixed": t("fixed", data=[2, 7])})
    _, parts = cut(graph, "Add", "Mul")
    assert [(state.name, state.reads, state.written) for state in parts.states] == [("s", ("old",), "y"), ("fixed", ("k",), "")]
    found = partition(graph, fussy("npu", ("Add", "Mul", "Sin", "ReadState", "WriteState")))
    assert sizes(found) == [8]
    same_runs(graph, found, stage_graph(found.graph))


def test_two_states_that_share_operators_are_in_one_region() -> None:
    ops = [Op("ReadState", (), ("a",), {"state": "s"}), Op("ReadState", (), ("b",), {"state": "r"}), Op("Add", ("x", "a"), ("c",)),
           Op("Mul", ("c", "b"), ("d",)), Op("WriteState", ("d",), (), {"state": "s"}), Op("WriteState", ("c",), (), {"state": "r"}),
           Op("Sin", ("d",), ("y",))]  # fmt: skip
    graph = network(ops, [], ["x"], ["y"], states={"s": t("s", data=[1, 2]), "r": t("r", data=[3, 4])})
    found = partition(graph, fussy("npu", ("Add", "Mul", "ReadState", "WriteState")))
    assert [region.operators for region in found.regions] == [{"ReadState": 2, "WriteState": 2, "Add": 1, "Mul": 1}]
    same_runs(graph, found, stage_graph(found.graph))


def test_a_dequantize_that_only_a_state_wants() -> None:
    ops = [Op("ReadState", (), ("old",), {"state": "s"}), Op("Add", ("x", "old"), ("y",)), Op("Quantize", ("y",), ("q",)),
           Op("Dequantize", ("q",), ("r",)), Op("WriteState", ("r",), (), {"state": "s"})]  # fmt: skip
    graph = network(ops, [Tensor("q", "int8", (2,), None, GRID)], ["x"], ["y"], states={"s": t("s", data=[5, -1])})
    for kinds in (("Add",), ("Add", "Quantize"), ()):
        _, parts = cut(graph, *kinds, format="onnx")
        assert [state.written for state in parts.states] == ["r"]


def test_a_delay_is_no_region() -> None:
    """y is the input of the run before: nothing goes from where the state is written to where it is read."""
    ops = [Op("ReadState", (), ("old",), {"state": "s"}), Op("Neg", ("old",), ("y",)), Op("Neg", ("x",), ("n",)),
           Op("WriteState", ("n",), (), {"state": "s"})]  # fmt: skip
    graph = network(ops, [], ["x"], ["y"], states={"s": t("s", data=[5, -1])})
    found, parts = cut(graph, "Neg", "ReadState", "WriteState")
    assert sizes(found) == [1, 1] and [state.written for state in parts.states] == ["n"]


def test_states_whose_ways_cross_go_apart() -> None:
    """Each state's operators wait for those of the other, so that both cannot be units of their own."""
    ops = [Op("ReadState", (), ("a",), {"state": "s"}), Op("ReadState", (), ("b",), {"state": "r"}), Op("Neg", ("a",), ("e",)),
           Op("Neg", ("b",), ("f",)), Op("Sin", ("e",), ("g",)), Op("Sin", ("f",), ("h",)), Op("Add", ("f", "g"), ("i",)),
           Op("Add", ("e", "h"), ("j",)), Op("WriteState", ("j",), (), {"state": "s"}), Op("WriteState", ("i",), (), {"state": "r"}),
           Op("Add", ("i", "j"), ("y",)), Op("Add", ("x", "y"), ("z",))]  # fmt: skip
    graph = network(ops, [], ["x"], ["z"], states={"s": t("s", data=[1, 2]), "r": t("r", data=[3, 4])})
    for kinds in (("Neg", "Add", "ReadState", "WriteState"), ("Neg", "Add", "Sin", "ReadState", "WriteState"), ("Add",)):
        found = partition(graph, fussy("npu", kinds))
        same_runs(graph, found, stage_graph(found.graph))


def choosing() -> Graph:
    """A choice whose branches compute; what is chosen goes on."""
    then = network([Op("Neg", ("a",), ("b",))], [], ["a"], ["b"])
    other = network([Op("Sin", ("a",), ("b",))], [], ["a"], ["b"])
    ops = [
        Op("Relu", ("x",), ("r",)),
        Op("If", ("c", "r"), ("y",), {"then_branch": "then", "else_branch": "other"}),
        Op("Neg", ("y",), ("z",)),
    ]
    return network(ops, [t("c", (), "bool")], ["x", "c"], ["z"], functions={"then": then, "other": other})


def looping() -> Graph:
    """x doubled three times by a loop, between other operators."""
    inner = [t("i", (), "int64"), t("c", (), "bool"), t("d", (), "bool")]
    body = network([Op("Add", ("v", "v"), ("w",)), Op("Identity", ("c",), ("d",))], inner, ["i", "c", "v"], ["d", "w"])
    ops = [Op("Neg", ("x",), ("a",)), Op("Loop", ("n", "go", "a"), ("y",), {"body": "body", "carried": 1}), Op("Neg", ("y",), ("z",))]
    constants = [t("n", (), "int64", 3), t("go", (), "bool", True)]
    return network(ops, constants, ["x"], ["z"], functions={"body": body})


def test_a_choice_is_taken_with_its_branches_or_not_at_all() -> None:
    found, _ = cut(choosing(), "Relu", "If", "Neg")
    assert sizes(found) == [1, 1], "the target has no Sin, which a branch runs"
    assert [item.reasons["npu"] for item in found.outside] == ["npu has no Sin"]
    found, parts = cut(choosing(), "Relu", "If", "Neg", "Sin")
    assert sizes(found) == [3] and set(parts.parts[0].graph.functions) == {"then", "other"}


def test_a_loop_is_taken_with_its_body_or_not_at_all() -> None:
    found, _ = cut(looping(), "Neg", "Loop", "Identity")
    assert sizes(found) == [1, 1]
    found, _ = cut(looping(), "Neg", "Loop", "Identity", "Add")
    assert sizes(found) == [3] and set(found.graph.functions) == {"body", "npu_0"}


def test_states_of_functions_are_the_networks() -> None:
    from tests.passes.test_states_in_functions import choosing as with_states

    found, parts = cut(with_states(), "ReduceSum", "Greater", "Add", "Mul", "Neg")
    assert found.regions and {state.name for state in parts.states} == {"s", "unused"}
    cut(with_states(), "ReduceSum", "Greater", "Add", "Mul", "Neg", "If", "ReadState", "WriteState", "Identity")


def test_calls_of_the_source_are_inlined() -> None:
    """A partition of a partition is one of the network."""
    graph = chain("Neg", "Relu", "Sin", "Neg")
    first, _ = cut(graph, "Neg")
    again, _ = cut(first.graph, "Neg", "Relu")
    assert again.to_dict() == partition(graph, fussy("npu", ("Neg", "Relu"))).to_dict()


def test_sizes_that_are_open() -> None:
    tensors = [t("x", ("n", 3)), t("w", (4, 3), data=np.ones((4, 3))), t("a", ("n", 4)), t("s", ("n", 4)), t("y", ("n", 4))]
    graph = network([Op("Gemm", ("x", "w", ""), ("a",)), Op("Sin", ("a",), ("s",)), Op("Neg", ("s",), ("y",))], tensors, ["x"], ["y"])
    found, _ = cut(graph, "Gemm", "Neg")
    assert [(region.macs, region.bytes_in, region.bytes_out) for region in found.regions] == [(12, 12, 16), (0, 16, 16)]


def test_a_target_that_refuses_a_region_gives_back_what_it_names() -> None:
    """It takes each operator, but no two Mul in one file."""
    from qconvert import Target
    from qconvert.plugins import Violation

    def rules(graph: Graph) -> Any:
        second = [op for op in graph.ops if op.kind == "Mul"][1:]
        return lambda op: (Violation(f"{op.source} {op}", "one Mul is enough"),) if op in second else ()

    ops = [Op("Mul", ("x", "x"), ("a",), {}, "Mul #0"), Op("Neg", ("a",), ("b",)), Op("Mul", ("b", "b"), ("c",), {}, "Mul #2"),
           Op("Neg", ("c",), ("y",))]  # fmt: skip
    graph = network(ops, [], ["x"], ["y"])
    found = partition(graph, Target("npu", "qgraph", "", own_rules=rules))
    assert sizes(found) == [2, 1] and [item.reasons for item in found.outside] == [{"npu": "one Mul is enough"}]


def test_names_of_functions_that_are_taken() -> None:
    graph = choosing()
    functions = {"npu_0": graph.functions["then"], "other": graph.functions["other"]}
    ops = [op if op.kind != "If" else op.with_attributes(then_branch="npu_0") for op in graph.ops]
    taken = Graph("g", graph.tensors, tuple(ops), graph.inputs, graph.outputs, functions=functions)
    found, _ = cut(taken, "Relu", "Neg")
    assert set(found.graph.functions) == {"npu_0", "npu_0_1", "npu_1", "other"}


@pytest.mark.formats
def test_a_partition_survives_a_qgraph_file(tmp_path: Path) -> None:
    graph = chain("Neg", "Relu", "Sin", "Neg")
    found = partition(graph, fussy("npu", ("Neg", "Relu")), tmp_path / "cut.qgraph")
    assert found.files == (str(tmp_path / "cut.qgraph"),)
    again = load(tmp_path / "cut.qgraph")
    assert diff(found.graph, again) == []
    assert [str(op["target"]) for op in again.ops if op.kind == "Call"] == ["npu", "npu"]
    assert diff(graph, again) != []


@pytest.mark.parametrize(
    ("targets", "options", "rule", "named"),
    [
        ([], {}, "no-target", ()),
        (["nowhere"], {}, "unknown-target", ("'nowhere'",)),
        (["generic"], {}, "target-without-rules", ("generic",)),
        (["tensorrt", "tensorrt"], {}, "target-twice", ("tensorrt",)),
        (["tensorrt"], {"min_ops": -1}, "number-negative", ("min_ops", -1)),
        (["tensorrt"], {"min_macs": -5}, "number-negative", ("min_macs", -5)),
        (["tensorrt"], {"nonsense": 1}, "unknown-option", ("'nonsense'",)),
    ],
)
def test_wrong_options(targets: list[str], options: dict[str, Any], rule: str, named: tuple[object, ...]) -> None:
    with refused(OptionError, rule, holds=named):
        partition(chain("Neg"), targets, **options)


@pytest.mark.formats
def test_a_result_that_is_there_stays(tmp_path: Path) -> None:
    place = tmp_path / "model.qgraph"
    save(chain("Neg"), place)
    before = place.read_bytes()
    with refused(FileAccessError, "file-exists"):
        partition(chain("Neg"), fussy("npu", ("Neg",)), place)
    with refused(OptionError, "source-overwritten"):
        partition(place, fussy("npu", ("Neg",)), place, force=True)
    assert place.read_bytes() == before
