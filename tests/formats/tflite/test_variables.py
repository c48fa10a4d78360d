"""VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE and CALL_ONCE: states in the graph, and variables again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.notes import restore_operators
from qconvert.formats.tflite import schema
from qconvert.formats.tflite.probe import with_outputs
from qconvert.formats.tflite.reader import read_bytes
from qconvert.formats.tflite.reading import Reading
from qconvert.graph import Graph, Quantization
from qconvert.graph.metadata import DECOMPOSED
from qconvert.rules.validation import validate
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.tflite_micro import TFLiteMicro
from tests.tflite_models import OpSpec, TensorSpec, model

pytestmark = pytest.mark.litert

STREAMING = Path(__file__).parents[3] / "fixtures" / "mww_okay_nabu_streaming_int8.tflite"
Array = np.ndarray[Any, np.dtype[Any]]
F = (2,)


def handle(name: str, shared: str = "sum", container: str = "") -> OpSpec:
    return OpSpec("VAR_HANDLE", [], [name], {"sharedName": shared, "container": container})


def first(value: Any = (5.0, -1.0), shared: str = "sum", container: str = "", **other: Any) -> Any:
    """The subgraph that assigns a first value."""
    data = np.asarray(value, other.pop("dtype", "float32"))
    tensors = [TensorSpec("v", (), "resource"), TensorSpec("c", data.shape, data.dtype.name, data=data, **other)]
    return [handle("v", shared, container), OpSpec("ASSIGN_VARIABLE", ["v", "c"], [])], tensors, [], []


ONCE = OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 1})
READ = OpSpec("READ_VARIABLE", ["h"], ["old"])
ADD = OpSpec("ADD", ["x", "old"], ["y"])
ASSIGN = OpSpec("ASSIGN_VARIABLE", ["h", "y"], [])


def counter(
    ops: Sequence[OpSpec] = (ONCE, handle("h"), READ, ADD, ASSIGN), further: Any = None, changed: Sequence[TensorSpec] = (), **other: Any
) -> bytes:
    """y = x + s; s = y."""
    tensors = {name: TensorSpec(name, F, "float32") for name in ("x", "old", "y", "z")}
    tensors |= {name: TensorSpec(name, (), "resource") for name in ("h", "g")} | {tensor.name: tensor for tensor in changed}
    return model(
        list(ops), list(tensors.values()), ["x"], other.pop("outputs", ["y"]), further=[first()] if further is None else further, **other
    )


def steps(data: bytes, feeds: Sequence[Array], kernels: str = "default") -> list[list[float]]:
    loaded = LiteRT(data, kernels)
    return [loaded.run_in_order([feed])[0].tolist() for feed in feeds]


def evaluated(graph: Any, feeds: Sequence[Array]) -> list[list[float]]:
    states: dict[str, Array] = {}
    return [evaluate(graph, {graph.inputs[0]: feed}, states)[graph.outputs[0]].tolist() for feed in feeds]


def there_and_back(data: bytes, folder: Path) -> bytes:
    (folder / "in.tflite").write_bytes(data)
    qconvert.convert(folder / "in.tflite", folder / "out.tflite")
    return (folder / "out.tflite").read_bytes()


FEEDS = [np.array([1, 2], np.float32), np.array([0.5, 0], np.float32), np.array([-3, 4], np.float32)]
MEANT = [[6.0, 1.0], [6.5, 1.0], [3.5, 5.0]]


@pytest.mark.cross_section
def test_a_variable_is_a_state_and_a_variable_again(tmp_path: Path) -> None:
    graph = read_bytes(counter(), "counter")
    assert [op.kind for op in graph.ops] == ["ReadState", "Add", "WriteState"]
    assert graph.states["sum"].data is not None and graph.states["sum"].data.tolist() == [5, -1]
    assert evaluated(graph, FEEDS) == steps(counter(), FEEDS) == MEANT
    again = there_and_back(counter(), tmp_path)
    assert steps(again, FEEDS) == MEANT
    differences = qconvert.diff(graph, read_bytes(again, "counter"), exact=True)
    assert all(line.startswith("metadata") for line in differences), differences


def test_a_real_streaming_network_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    """Its output is nearly always 0, so all that it computes is compared."""
    again = there_and_back(STREAMING.read_bytes(), tmp_path)
    graph, random = qconvert.load(STREAMING), np.random.default_rng(4)
    whole = replace(graph, outputs=tuple(name for op in graph.ops for name in op.outputs))
    sides = [(LiteRT(model), names) for model, names in map(with_outputs, (STREAMING.read_bytes(), again))]
    states: dict[str, Array] = {}
    for _ in range(50):
        feed = np.clip(random.normal(-90, 40, (1, 3, 40)), -128, 127).astype(np.int8)
        one, two = (dict(zip(names, side.run_in_order([feed]), strict=True)) for side, names in sides)
        meant = evaluate(whole, {graph.inputs[0]: feed}, states)
        assert one.keys() == two.keys() and len(one) == 44
        assert all(np.array_equal(one[name], two[name]) and np.array_equal(one[name], meant[name]) for name in one)
    assert all(state.data is not None and set(state.data.reshape(-1).tolist()) == {-128} for state in graph.states.values())
    assert len(graph.states) == 6 and not qconvert.diff(graph, read_bytes(again, "main"))


def test_what_a_variable_holds_has_the_scales_of_what_is_read(tmp_path: Path) -> None:
    """Kernels copy bytes, whatever scales the sides state; XNNPACK takes no such model."""
    quantizations = {"x": (0.5, 0), "old": (0.5, 3), "y": (0.25, -4)}
    tensors = [TensorSpec(name, F, "int8", scale=scale, zero_point=point) for name, (scale, point) in quantizations.items()]
    data = counter(changed=tensors, further=[first([7, -7], dtype="int8", scale=9.0, zero_point=1)])
    graph = read_bytes(data, "counter")
    assert graph.states["sum"].quantization == Quantization.per_tensor(0.5, 3)
    assert [op.kind for op in graph.ops] == ["ReadState", "Add", "Reinterpret", "WriteState"]
    feeds = [np.array([4, -9], np.int8), np.array([100, -100], np.int8), np.array([1, 2], np.int8)]
    assert evaluated(graph, feeds) == steps(data, feeds, "reference") == steps(there_and_back(data, tmp_path), feeds, "reference")


def test_reads_and_writes_keep_their_order(tmp_path: Path) -> None:
    """What is read after a write is the new value, and what is read before it stays the old one."""
    ops = [ONCE, handle("h"), READ, ADD, ASSIGN, OpSpec("READ_VARIABLE", ["h"], ["z"])]
    data = counter(ops, outputs=["z", "old"])
    loaded, states = LiteRT(data), dict[str, Array]()
    graph = read_bytes(data, "counter")
    for feed in FEEDS:
        found, meant = evaluate(graph, {"x": feed}, states), loaded.run_in_order([feed])
        assert [found[name].tolist() for name in ("z", "old")] == [value.tolist() for value in meant]
    assert steps(there_and_back(data, tmp_path), FEEDS) == MEANT


def test_variables_are_told_apart_by_container_and_name(tmp_path: Path) -> None:
    ops = [
        ONCE, OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 2}), handle("h"), handle("g", container="other"), READ,
        OpSpec("READ_VARIABLE", ["g"], ["z"]), ADD, OpSpec("ASSIGN_VARIABLE", ["g", "old"], []), ASSIGN,
    ]  # fmt: skip
    data = counter(ops, [first(), first((9.0, 9.0), container="other")], outputs=["z"])
    graph = read_bytes(data, "counter")
    assert sorted(graph.states) == ["other/sum", "sum"]
    meant = [[9.0, 9.0], [5.0, -1.0], [6.0, 1.0]]
    assert steps(data, FEEDS) == evaluated(graph, FEEDS) == steps(there_and_back(data, tmp_path), FEEDS) == meant


def test_scalars_have_the_rank_of_their_variable() -> None:
    """The file states no rank of what is read, as TFLite's converter leaves it."""
    tensors = [TensorSpec(name, None, "float32") for name in ("old", "y")] + [TensorSpec("x", (), "float32")]
    data = counter(changed=tensors, further=[first(5.0)])
    graph = read_bytes(data, "counter")
    validate(graph)
    assert graph["old"].shape == ()


def test_a_variable_that_nothing_changes_is_a_constant() -> None:
    data = counter([ONCE, handle("h"), READ, ADD])
    graph = read_bytes(data, "counter")
    assert not graph.states and [op.kind for op in graph.ops] == ["Add"] and graph["old"].is_constant
    assert evaluated(graph, FEEDS) == steps(data, FEEDS) == [[6.0, 1.0], [5.5, -1.0], [2.0, 3.0]]


def test_a_variable_that_is_written_first_needs_no_first_value() -> None:
    ops = [handle("h"), OpSpec("ASSIGN_VARIABLE", ["h", "x"], []), READ, ADD]
    graph = read_bytes(counter(ops, ()), "counter")
    assert evaluated(graph, FEEDS) == steps(counter(ops, ()), FEEDS) == [[2.0, 4.0], [1.0, 0.0], [-6.0, 8.0]]


def test_a_tensor_that_an_operator_keeps_is_a_state() -> None:
    """What operators such as SVDF have: LiteRT resets it to 0, an int8 one to its zero point."""
    for dtype, value in (("int8", 3), ("int16", 0)):
        draft = Draft()
        for name in ("x", "s", "y"):
            draft.add(name, dtype, F, None, Quantization.per_tensor(0.5, value))
        draft.variables.add("s")
        model: Any = None  # whose variables and functions no SVDF asks for
        r = Reading(draft, "SVDF", 0, ("x", "s"), ("y",), None, 1, b"", model, model, ())
        state = r.variable(1)
        r.emit("Add", ["x", r.read_state(state, r.tensor(1))], ["y"])
        r.write_state(state, "y")
        graph = Graph("kept", draft.tensors, (), ("x",), ("y",), states=draft.states).evolve(ops=draft.ops)
        validate(graph)
        assert graph.states["s"].data is not None and graph.states["s"].data.tolist() == [value, value]
        with refused(UnsupportedError, "no-variable", holds=("'x'",)):
            r.variable(0)


@pytest.mark.tflite_micro
@pytest.mark.skipif(find_spec("tflite_micro") is None, reason="tflite_micro is not installed (extra micro)")
def test_tflite_micro_runs_variables_that_were_written(tmp_path: Path) -> None:
    qconvert.convert(STREAMING, tmp_path / "out.tflite", target="tflite-micro")
    sides = LiteRT(STREAMING.read_bytes()), TFLiteMicro((tmp_path / "out.tflite").read_bytes())
    random = np.random.default_rng(2)
    feeds = [np.clip(random.normal(-90, 40, (1, 3, 40)), -128, 127).astype(np.int8) for _ in range(50)]
    found = [[int(side.run_in_order([feed])[0][0, 0]) for feed in feeds] for side in sides]
    assert found[0] == found[1] and len(set(found[0])) > 3


COMPUTED = (
    [handle("v"), OpSpec("ADD", ["c", "c"], ["d"]), OpSpec("ASSIGN_VARIABLE", ["v", "d"], [])],
    [TensorSpec("v", (), "resource"), TensorSpec("c", F, "float32", data=np.ones(2, "float32")), TensorSpec("d", F, "float32")],
    [], [],
)  # fmt: skip
TWICE = (first()[0] + first()[0][1:], first()[1], [], [])
INT8 = TensorSpec("y", F, "int8", scale=1.0)
FAULTS = {
    "never given a value": (counter([handle("h"), READ, ADD, ASSIGN], ()), "not-computed", ("'sum'", "READ_VARIABLE #1")),
    "read too early": (counter([handle("h"), READ, ONCE, ADD, ASSIGN]), "not-computed", ("READ_VARIABLE #1",)),
    "another variable": (counter(further=[first(shared="other")]), "not-computed", ()),
    "written twice": (counter([ONCE, handle("h"), READ, ADD, ASSIGN, ASSIGN]), "two-writes", ("'sum'", "ASSIGN_VARIABLE #5")),
    "other type": (counter(further=[first(dtype="int32")]), "initial-value-mismatch", ("'sum'", "(2,)", "float32", "int32")),
    "other shape": (counter(further=[first((1.0, 2.0, 3.0))]), "initial-value-mismatch", ("'sum'", "(3,)", "float32")),
    "changes its type": (
        counter([ONCE, handle("h"), READ, OpSpec("QUANTIZE", ["x"], ["y"]), ASSIGN], changed=[INT8]),
        "state-mismatch", ("'y/stored'",)),
    "computed": (counter(further=[COMPUTED]), "initial-value-not-constant", ()),
    "two first values": (counter(further=[TWICE]), "two-initial-values", ("'sum'",)),
    "no subgraph": (counter(further=()), "unknown-subgraph", (1,)),
    "itself": (counter([OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 0}), handle("h"), READ, ADD, ASSIGN]),
        "unknown-subgraph", (0, 2)),
    "no variable": (counter([ONCE, handle("h"), READ, OpSpec("ADD", ["x", "h"], ["y"])]), "variable-operand", ("'h'",)),
    "no handle": (counter([ONCE, OpSpec("READ_VARIABLE", ["x"], ["old"]), ADD]), "variable-operand", ("VAR_HANDLE",)),
    "an input": (
        model([READ, ADD], [TensorSpec("h", (), "resource"), *(TensorSpec(n, F, "float32") for n in ("x", "old", "y"))], ["h", "x"], ["y"]),
        "variable-operand", ("'h'",)),
    "too few": (counter([ONCE, handle("h"), READ, ADD, OpSpec("ASSIGN_VARIABLE", ["h"], [])]), "wrong-number-of-tensors", (1, 2)),
    "a result": (counter([ONCE, handle("h"), READ, ADD, replace(ASSIGN, outputs=["z"])]), "wrong-number-of-tensors", (1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_variables_are_named(name: str, tmp_path: Path) -> None:
    data, rule, holds = FAULTS[name]
    (tmp_path / "model.tflite").write_bytes(data)
    with refused(QConvertError, rule, holds=holds) as caught:
        qconvert.load(tmp_path / "model.tflite")
    assert caught.value.file == str(tmp_path / "model.tflite") and caught.value.exit_code == 2


def handles(data: bytes) -> set[tuple[bytes, bytes]]:
    """Container and shared name of all handles of a file."""
    from qconvert.formats.tflite.schema import root

    found = [operator.builtinOptions for subgraph in root(data).subgraphs for operator in subgraph.operators]
    return {
        (options.container or b"", options.sharedName) for options in found if options is not None and options.table == "VarHandleOptions"
    }


def test_container_and_shared_name_come_back(tmp_path: Path) -> None:
    """Also where the names that states have of them are names of others, and on the way through ONNX."""
    keys = [("room", "sum"), ("", "room/sum"), ("", "plain")]
    ops, further = [ONCE], first(container="room")
    for number, (container, shared) in enumerate(keys):
        ops += [handle(f"h{number}", shared, container), OpSpec("READ_VARIABLE", [f"h{number}"], [f"r{number}"])]
        ops += [OpSpec("ADD", ["x", f"r{number}"], [f"y{number}"]), OpSpec("ASSIGN_VARIABLE", [f"h{number}", f"y{number}"], [])]
    for shared in ("room/sum", "plain"):
        tensors = [
            TensorSpec(f"v{shared}", (), "resource"),
            TensorSpec(f"c{shared}", F, "float32", data=np.array([1, len(shared)], np.float32)),
        ]
        further[0].extend([handle(f"v{shared}", shared), OpSpec("ASSIGN_VARIABLE", [f"v{shared}", f"c{shared}"], [])])
        further[1].extend(tensors)
    made = [TensorSpec(f"{word}{number}", F, "float32") for word in "ry" for number in range(3)]
    made += [TensorSpec(f"h{number}", (), "resource") for number in range(3)]
    data = counter(ops, [further], made, outputs=["y0", "y1", "y2"])
    wanted = {(container.encode(), shared.encode()) for container, shared in keys}
    assert handles(data) == wanted
    assert handles(there_and_back(data, tmp_path)) == wanted
    qconvert.convert(tmp_path / "in.tflite", tmp_path / "m.onnx")
    qconvert.convert(tmp_path / "m.onnx", tmp_path / "again.tflite")
    again = (tmp_path / "again.tflite").read_bytes()
    assert handles(again) == wanted and steps(again, FEEDS) == steps(data, FEEDS)


def test_a_note_of_names_that_two_states_share_is_left_alone() -> None:
    from qconvert.formats.tflite.variables import variable_keys
    from qconvert.graph.metadata import VARIABLES

    graph = read_bytes(counter(), "counter")
    for note in ('{"sum": ["a", "b"], "other": ["a", "b"]}', '{"sum": 1}', "[", '{"sum": ["a"]}', '{"other": ["", "sum"]}'):
        states = {**graph.states, "other": replace(graph.states["sum"], name="other")}
        assert variable_keys(replace(graph, states=states, metadata={VARIABLES: note})) == {"sum": ("", "sum"), "other": ("", "other")}


def test_states_are_written_in_a_file_that_notes_decomposed_operators() -> None:
    graph = read_bytes(counter(), "counter")
    restored = restore_operators(replace(graph, metadata={**graph.metadata, DECOMPOSED: "[]"}), lambda graph: graph)
    assert [op.kind for op in restored.ops] == [op.kind for op in graph.ops]
    assert "WriteState" in {op.kind for op in restored.ops}


def test_every_entry_point_gives_the_variables_their_first_values(tmp_path: Path) -> None:
    """TensorFlow's converter puts a CALL_ONCE into each signature's subgraph; LiteRT may enter any of them first."""
    from ai_edge_litert.interpreter import Interpreter

    reset = (
        [ONCE, handle("k"), OpSpec("READ_VARIABLE", ["k"], ["before"]), OpSpec("ASSIGN_VARIABLE", ["k", "r"], [])],
        [TensorSpec("k", (), "resource"), TensorSpec("before", F, "float32"), TensorSpec("r", F, "float32")],
        ["r"],
        ["before"],
    )
    made = unpack_view(schema.root(counter(further=[first(), reset], signatures={"step": ({"x": "x"}, {"y": "y"}), "reset": ({}, {})})))
    names = schema.TensorMapT(name=b"r", tensorIndex=2), schema.TensorMapT(name=b"before", tensorIndex=1)
    made.signatureDefs[1].inputs, made.signatureDefs[1].outputs, made.signatureDefs[1].subgraphIndex = [names[0]], [names[1]], 2
    data = pack_model(made)

    def outcomes(model_bytes: bytes) -> list[list[float]]:
        loaded = Interpreter(model_content=model_bytes)
        step, other = (loaded.get_signature_runner(key) for key in ("step", "reset"))
        found = [other(r=FEEDS[0])["before"], step(x=FEEDS[1])["y"], other(r=FEEDS[2])["before"], step(x=FEEDS[1])["y"]]
        return [value.tolist() for value in found]

    meant = [[5.0, -1.0], [1.5, 2.0], [1.5, 2.0], [-2.5, 4.0]]
    assert outcomes(data) == outcomes(there_and_back(data, tmp_path)) == meant
    with refused(UnsupportedError, "several-entry-points"):
        qconvert.convert(tmp_path / "in.tflite", tmp_path / "out.onnx")
