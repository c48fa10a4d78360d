"""The work grows with the model, not with its square: function calls of a conversion are counted, which no load of a machine changes."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx_nodes import model_of
from refusals import refused

from qconvert import convert, load
from qconvert.errors import InvalidModelError
from qconvert.formats.reading.draft import Draft
from qconvert.garbage import collect_rarely

pytestmark = pytest.mark.formats


def _value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _name(index: int, count: int) -> str:
    return "x" if index == 0 else "y" if index == count else f"t{index}"


def _chain(count: int) -> list[Any]:
    return [helper.make_node("Relu" if i % 2 else "Abs", [_name(i, count)], [_name(i + 1, count)]) for i in range(count)]


def _doubling(count: int) -> list[Any]:
    return [helper.make_node("Add", [_name(i, count)] * 2, [_name(i + 1, count)]) for i in range(count)]


def _fan(count: int, kind: str = "Sum", **attributes: Any) -> list[Any]:
    rows = [helper.make_node("Relu", ["x"], [f"x{i}"]) for i in range(count)]
    return [*rows, helper.make_node(kind, [f"x{i}" for i in range(count)], ["y"], **attributes)]


def _quantized(count: int) -> list[Any]:
    found = []
    for i in range(count // 3):
        found += [
            helper.make_node("QuantizeLinear", [_name(i, count // 3), "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
            helper.make_node("Sigmoid", [f"d{i}"], [_name(i + 1, count // 3)]),
        ]
    return found


def _turned(count: int) -> list[Any]:
    perms = [0, 3, 1, 2], [0, 2, 3, 1]
    return [helper.make_node("Transpose", [_name(i, count)], [_name(i + 1, count)], perm=perms[i % 2]) for i in range(count)]


NETWORKS = {
    "chain": (_chain, [1, 8]),
    "doubling": (_doubling, [1, 8]),
    "sum of many": (_fan, [1, 8]),
    "many joined": (lambda count: _fan(count, "Concat", axis=1), [1, 8]),
    "quantized": (_quantized, [1, 8]),
    "transposes": (_turned, [1, 8, 8, 8]),
}


def _model(nodes: list[Any], shape: list[int], folder: Path) -> Path:
    """The file of a network from "x" to "y" with the scale "s" and the zero point "z"."""
    constants = [numpy_helper.from_array(np.float32(0.05), "s"), numpy_helper.from_array(np.int8(3), "z")]
    graph = helper.make_graph(nodes, "g", [_value("x", shape)], [_value("y", None)], constants)
    (folder / "m.onnx").write_bytes(model_of(graph).SerializeToString())
    return folder / "m.onnx"


def _calls(source: Path, result: Path) -> int:
    """The Python functions that a conversion calls."""
    count = 0

    def counting(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counting)
    try:
        convert(source, result, force=True)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
@pytest.mark.parametrize("case", NETWORKS)
def test_calls_grow_with_the_model(case: str, suffix: str, tmp_path: Path) -> None:
    build, shape = NETWORKS[case]
    counts = []
    for count in (60, 240, 480):  # the first imports what is imported
        counts.append(_calls(_model(build(count), shape, tmp_path), tmp_path / f"r.{suffix}"))
    assert counts[2] < 2.3 * counts[1]


def test_functions_that_nothing_calls_are_left_out(tmp_path: Path) -> None:
    """Forty of them, each of which calls the next one twice."""
    bodies = [f"n = local.f{i + 1} (a) b = local.f{i + 1} (n)" for i in range(40)] + ["b = Relu (a)"]
    header = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'
    text = f"{header} g (float[4] x) => (float[4] y) {{ y = Relu (x) }}"
    for index, body in enumerate(bodies):
        text += f' <domain: "local", opset_import: ["" : 17, "local" : 1]> f{index} (a) => (b) {{ {body} }}'
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(text).SerializeToString())
    assert [op.kind for op in load(tmp_path / "m.onnx").ops] == ["Relu"]
    called = text.replace("y = Relu (x)", "y = local.f0 (x)")
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(called).SerializeToString())
    with refused(InvalidModelError, "too-many-nodes", holds=("'f0'",)):
        load(tmp_path / "m.onnx")


def test_graphs_nested_without_end(tmp_path: Path) -> None:
    def nested(depth: int) -> Any:
        kept = _value(f"o{depth}", [4])
        if not depth:
            return helper.make_graph([helper.make_node("Relu", ["x"], ["o0"])], "g0", [], [kept])
        node = helper.make_node("If", ["c"], [f"o{depth}"], then_branch=nested(depth - 1), else_branch=nested(0))
        return helper.make_graph([node], f"g{depth}", [], [kept])

    for depth, is_read in ((20, True), (30, False)):
        node = helper.make_node("If", ["c"], ["y"], then_branch=nested(depth), else_branch=nested(0))
        graph = helper.make_graph([node], "g", [_value("x", [4]), _value("c", [], TensorProto.BOOL)], [_value("y", [4])])
        model = model_of(graph)
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        if is_read:
            found = load(tmp_path / "m.onnx")
            assert [op.kind for op in found.ops] == ["If"] and len(found.functions) > depth
        else:
            with refused(InvalidModelError, "nested-too-deeply"):
                load(tmp_path / "m.onnx")


def test_a_conversion_lets_the_garbage_collector_wait(tmp_path: Path) -> None:
    """It would walk the whole graph several times; afterwards it runs as often as before."""
    path = _model(_quantized(600), [1, 8], tmp_path)
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            collected.append(info["generation"])

    convert(path, tmp_path / "first.tflite")  # so that all is imported
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.callbacks.append(note)
    try:
        convert(path, tmp_path / "m.tflite")
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    assert len(collected) <= 2


def test_the_garbage_collector_runs_as_before_when_threads_overlap() -> None:
    """The last of two blocks ended with the thresholds of the first one, and a collector that was off ran."""
    before = gc.get_threshold()
    try:
        for own in ((700, 10, 10), (0, 10, 10)):
            gc.set_threshold(*own)
            first, second = collect_rarely(), collect_rarely()
            first.__enter__()
            second.__enter__()
            assert gc.get_threshold()[0] == (200_000 if own[0] else 0)
            first.__exit__(None, None, None)
            assert gc.get_threshold()[0] == (200_000 if own[0] else 0)
            second.__exit__(None, None, None)
            assert gc.get_threshold() == own
    finally:
        gc.set_threshold(*before)


def test_what_a_reader_held_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    path = _model(_quantized(6), [1, 8], tmp_path)
    gc.collect()
    gc.disable()
    try:
        graph = load(path)
        left = [item for item in gc.get_objects() if isinstance(item, Draft)]
    finally:
        gc.enable()
    assert graph.ops and left == []
