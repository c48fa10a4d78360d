"""onnx's own node tests, read and written again: every model that onnxruntime runs gives the same bits afterwards.

Each case goes through as it is, where axes, shapes and scales are inputs of the model, and with all inputs but the first as constants,
which is how exporters write them.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import onnx_graph
from onnx_nodes import equal, session

from qconvert import convert, prove
from qconvert.errors import QConvertError
from qconvert.formats.onnx.proto import HIGHEST_OPSET
from qconvert.formats.onnx.writer import build

#: Cases that qconvert refuses, by a pattern of their names, and why. Any other case must come back equal.
REFUSED = {
    r"sequence|optional_|identity_opt|if_(seq|opt)|loop1[36]_seq": "values that are sequences or optional, which no graph takes or gives",
    r"cast_e8m0": "values of type float8e8m0",
    r"scan_sum$": "Scan of opset 8, whose batch axis later opsets lack",
}
_QUANTIZED = re.compile(r"quantizelinear|qlinear|convinteger|matmulinteger")
#: First letters of the operators that one test takes.
GROUPS = ("AB", "C", "DEFGH", "IJKLMN", "OPQ", "R", "S", "TUVWXYZ")


@cache
def cases() -> tuple[Any, ...]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # numpy's, of overflows and divisions by zero in the expected values
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def group(letters: str) -> list[Any]:
    return [case for case in cases() if case.model.graph.node[0].op_type[0].upper() in letters]


def prepared(case: Any, constants: bool) -> tuple[Any, list[Any]] | None:
    """The model and its inputs; with all inputs but the first as constants, None if there are none that could be.

    Opsets that onnxruntime takes for unreleased are lowered to the highest one that is written: most cases mean the same there.
    """
    from onnx import ModelProto, TensorProto, numpy_helper

    model, inputs = ModelProto(), list(case.data_sets[0][0])
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, 13)
    for entry in model.opset_import:
        if entry.domain == "" and entry.version > HIGHEST_OPSET:
            entry.version = HIGHEST_OPSET
    if not constants:
        return model, inputs
    if len(inputs) < 2 or any(isinstance(value, list) or value is None for value in inputs):
        return None
    for value, entry in zip(inputs[1:], model.graph.input[1:], strict=True):
        tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value))
        model.graph.initializer.add().CopyFrom(tensor)
        model.graph.initializer[-1].name = entry.name
    del model.graph.input[1:]
    return model, inputs[:1]


def run(model: Any, inputs: list[Any]) -> list[Any]:
    """The outputs, without optimizations. Types that numpy lacks come as (type, shape, bytes)."""
    import onnxruntime
    from onnx import TensorProto

    made = session(model.SerializeToString())
    named = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
    given = {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in named.items()}
    if all(_is_plain(value.type) for value in made.get_outputs()) and not any(isinstance(value, TensorProto) for value in given.values()):
        return list(made.run(None, given))
    values = {name: _ort_value(onnxruntime.OrtValue, value) for name, value in given.items()}
    return [_content(value) for value in made.run_with_ort_values([value.name for value in made.get_outputs()], values)]


def _is_plain(kind: str) -> bool:
    return not re.search(r"float8|float4|bfloat16|tensor\(u?int[24]\)", kind)


def _ort_value(make: Any, value: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    if not isinstance(value, TensorProto):
        return make.ortvalue_from_numpy(value)
    data = np.ascontiguousarray(numpy_helper.to_array(value))
    if re.search(r"int[24]$", data.dtype.name):  # the buffer is read as packed, two or four elements a byte
        packed = np.frombuffer(numpy_helper.from_array(data).raw_data, np.uint8)
        data = np.concatenate([packed, np.zeros(data.size - packed.size, np.uint8)]).reshape(data.shape)
    return make.ortvalue_from_numpy_with_onnx_type(data, value.data_type)


def _content(value: Any) -> Any:
    if _is_plain(value.data_type()):
        return value.numpy()
    return value.data_type(), tuple(value.shape()), ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())


def refusal(name: str) -> str:
    return next((reason for pattern, reason in REFUSED.items() if re.search(pattern, name)), "")


def through(model: Any, name: str) -> Any:
    """The model read, and written at its own opset."""
    return build(onnx_graph(model.SerializeToString(), name), 0, {})


def check(case: Any, constants: bool, seen: Counter[str]) -> str:
    """What is wrong with a case after reading and writing, or ""; counts in `seen` what became of it."""
    found = prepared(case, constants)
    if found is None:
        return ""
    model, inputs = found
    try:
        wanted = run(model, inputs)
    except Exception as error:  # onnxruntime's errors share no class but Exception
        seen[f"onnxruntime does not run it: {type(error).__name__}"] += 1
        return ""
    try:
        written = through(model, case.name)
    except QConvertError as error:
        reason = refusal(case.name)
        seen[f"refused: {reason}"] += 1
        return "" if reason else f"{case.name}: {error}"
    got = run(written, inputs)
    if not equal(wanted, got):
        return f"{case.name}: other outputs"
    seen["equal"] += 1
    return _expected(case, got) if _QUANTIZED.search(case.name) else ""


def _expected(case: Any, got: list[Any]) -> str:
    """Whether quantized operators give what the data set says, integers exactly."""
    for value, wanted in zip(got, case.data_sets[0][1], strict=True):
        if not isinstance(value, np.ndarray) or not isinstance(wanted, np.ndarray):
            continue
        exact = value.dtype.kind in "iu"
        if not np.allclose(value, wanted, 0 if exact else case.rtol, 0 if exact else case.atol):
            return f"{case.name}: not the outputs of the data set"
    return ""


@pytest.mark.onnxruntime
@pytest.mark.parametrize("constants", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("letters", GROUPS)
def test_nodes_come_back_equal(letters: str, constants: bool) -> None:
    seen: Counter[str] = Counter()
    wrong = [reason for case in group(letters) if (reason := check(case, constants, seen))]
    for reason, count in seen.most_common():
        print(f"{count:5} {reason}")
    assert not wrong, "\n".join(wrong)
    assert seen["equal"] >= 10


@pytest.mark.onnxruntime
def test_every_case_belongs_to_one_group() -> None:
    assert sum(len(group(letters)) for letters in GROUPS) == len(cases()) > 1500
    letters = "".join(GROUPS)
    assert sorted(letters) == [chr(code) for code in range(ord("A"), ord("Z") + 1)]


@pytest.mark.formats
@pytest.mark.parametrize("pattern", REFUSED)
def test_refused_cases_are_refused(pattern: str) -> None:
    """A case that has become possible must leave the table."""
    matching = [case for case in cases() if re.search(pattern, case.name)]
    assert matching
    refused = 0
    for case in matching:
        found = prepared(case, False)
        assert found is not None
        try:
            through(found[0], case.name)
        except QConvertError:
            refused += 1
    assert refused, REFUSED[pattern]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_proofs_end_for_every_sort_of_node(suffix: str, tmp_path: Path) -> None:
    """Every seventh case, and one whose inner tensors have no known rank: a proof decides something of each of its operators."""
    source, result, count = tmp_path / "a.onnx", tmp_path / f"b{suffix}", 0
    for place, case in enumerate(cases()):
        found = prepared(case, bool(place % 2)) if place % 7 == 0 or case.name == "test_affine_grid_2d_expanded" else None
        if found is None:
            continue
        source.write_bytes(found[0].SerializeToString())
        try:
            convert(source, result, force=True)
        except QConvertError:
            continue
        proof = prove(source, result)
        assert proof.operators or proof.claim or proof.problems, case.name
        count += 1
    assert count > 80


#: Nodes with memory or a body, which TFLite has as operators of several kinds.
_WITH_BODIES = re.compile(r"^test_(gru|lstm|rnn|simple_rnn|if$|loop11|scan9|range)")


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("constants", [False, True], ids=["inputs", "constants"])
def test_nodes_with_memory_are_equal_in_tflite(constants: bool, tmp_path: Path) -> None:
    """In LiteRT, with states, sequence lengths, peepholes and open numbers of turns as inputs and as constants."""
    equal_ones = 0
    for case in cases():
        found = prepared(case, constants) if _WITH_BODIES.search(case.name) else None
        if found is None:
            continue
        model, inputs = found
        try:
            wanted = run(model, inputs)
        except Exception:  # onnxruntime's errors share no class but Exception
            continue
        (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
        convert(tmp_path / "a.onnx", tmp_path / "a.tflite", force=True)
        for got, value in zip(_litert(tmp_path / "a.tflite", model, inputs), wanted, strict=True):
            assert got.shape == value.shape, case.name
            np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=case.name)
        equal_ones += 1
    assert equal_ones >= 20, equal_ones


def _litert(path: Path, model: Any, inputs: list[Any]) -> list[np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    given = {value.name: np.asarray(data) for value, data in zip(model.graph.input, inputs, strict=True)}
    details = interpreter.get_input_details()
    for item in details:
        interpreter.resize_tensor_input(item["index"], given[item["name"]].shape)
    interpreter.allocate_tensors()
    for item in details:
        interpreter.set_tensor(item["index"], given[item["name"]])
    interpreter.invoke()
    return [interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()]
