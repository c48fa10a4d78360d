"""Models that their formats allow and that were faults of qconvert, or of a runtime in its process: each ends in a result, or in an error
that says what is not covered."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import check, convert, load
from qconvert.errors import RuntimeRefusedError, UnsupportedError

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"


def run(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "qconvert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **more)


def saved(path: Path, nodes: list[onnx.NodeProto], shape: list[Any], constants: dict[str, Any], dtype: int = 1, opset: int = 21) -> Path:
    """An .onnx file of one input x and one output y."""
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info("y", dtype, None)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, shape)], outputs, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11 if opset > 22 else 10)
    onnx.save(proto, path)
    return path


def quantized(source: str, result: str, zero: str = "z", scale: str = "s") -> list[onnx.NodeProto]:
    """QuantizeLinear and DequantizeLinear."""
    nodes = (("QuantizeLinear", [source, scale, zero], [f"{result}q"]), ("DequantizeLinear", [f"{result}q", scale, zero], [result]))
    return [helper.make_node(*node) for node in nodes]


@pytest.fixture(scope="module")
def aborting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """SQUARED_DIFFERENCE of a tensor with itself, as TensorFlow's converter writes it: a multiplier for which LiteRT aborts. With the .onnx
    file of it."""
    x, y = TensorSpec("x", (1, 4), "int8", 0.0078, -1), TensorSpec("y", (1, 4), "int8", 7.8e-9, -128)
    path = tmp_path_factory.mktemp("aborting") / "m.tflite"
    path.write_bytes(single_op("SQUARED_DIFFERENCE", None, [x, x], [y]))
    convert(path, path.with_suffix(".onnx"))
    return path, path.with_suffix(".onnx")


def test_what_ends_litert_ends_no_process_of_ours(aborting: tuple[Path, Path]) -> None:
    with refused(RuntimeRefusedError, "process-ended", holds=("SIGABRT",)):
        run_litert(aborting[0].read_bytes(), [np.zeros((1, 4), np.int8)])
    x = TensorSpec("x", (1, 4), "int8", 0.5)
    relu = single_op("RELU", None, [x], [TensorSpec("y", (1, 4), "int8", 0.5)])
    assert run_litert(relu, [np.array([[-2, -1, 1, 2]], np.int8)])[0].tolist() == [[0, 0, 1, 2]]


@pytest.mark.parametrize("kernels", ["litert:default", "litert:reference"])
def test_a_check_where_litert_aborts_is_inconclusive(kernels: str, aborting: tuple[Path, Path]) -> None:
    report = check(*aborting, kernels=kernels)
    assert not report.passed
    assert not report.problems
    assert "SIGABRT" in report.unjudged[0]


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (4, ["check", "m.tflite", "m.onnx"]),
        (4, ["roundtrip", "m.tflite", "onnx:qdq"]),
    ],
)
def test_commands_where_litert_aborts(code: int, arguments: list[str], aborting: tuple[Path, Path]) -> None:
    done = run(*arguments, cwd=aborting[0].parent)
    assert done.returncode == code, done.stdout + done.stderr


def test_outputs_that_name_a_tensor_twice(tmp_path: Path) -> None:
    """As a function that returns a tensor under two keys is written; another output follows."""
    x, y, z = (TensorSpec(name, (1, 4), "int8", 0.5) for name in "xyz")
    source = tmp_path / "twice.tflite"
    source.write_bytes(model([OpSpec("RELU", ["x"], ["y"]), OpSpec("RELU6", ["x"], ["z"])], [x, y, z], ["x"], ["y", "y", "z"]))
    values = run_litert(source.read_bytes(), [np.array([[-2, 1, 20, 100]], np.int8)])
    assert [value.tolist() for value in values] == [[[0, 1, 20, 100]], [[0, 1, 20, 100]], [[0, 1, 12, 12]]]
    for suffix in (".onnx", ".tflite"):
        convert(source, tmp_path / f"o{suffix}")
        report = check(source, tmp_path / f"o{suffix}")
        assert report.passed
        assert [item.largest for item in report.outputs] == [0, 0, 0]


FLOATS = {
    "float8e4m3fn": (ml_dtypes.float8_e4m3fn, 21),
    "float8e5m2": (ml_dtypes.float8_e5m2, 21),
    "float4e2m1": (ml_dtypes.float4_e2m1fn, 23),
}


@pytest.mark.parametrize("name", FLOATS)
def test_activations_of_small_floats(name: str, tmp_path: Path) -> None:
    """They stay in ONNX, and are refused by name where a format has none."""
    dtype, opset = FLOATS[name]
    nodes = [*quantized("x", "d"), helper.make_node("Relu", ["d"], ["r"]), *quantized("r", "y", "z8")]
    source = saved(tmp_path / "f.onnx", nodes, [1, 8], {"s": np.float32(0.05), "z": np.zeros((), dtype), "z8": np.int8(0)}, opset=opset)
    with refused(UnsupportedError, "target-rules", holds=(name,)):
        convert(source, tmp_path / "f.tflite")
    convert(source, tmp_path / "o.onnx")
    report = check(source, tmp_path / "o.onnx", per_op=True)
    assert not report.problems
    assert load(tmp_path / "o.onnx")["dq"].dtype == name
    if name == "float8e4m3fn":  # which onnxruntime runs
        assert report.passed


HALF = np.float16(0.05)


@pytest.mark.parametrize("suffix", [".tflite", ".onnx"])
@pytest.mark.parametrize("case", ["mul", "quantize", "gemm"])
def test_float16_beside_quantized_values(case: str, suffix: str, tmp_path: Path) -> None:
    constants: dict[str, Any] = {"s": HALF, "z": np.uint8(3)}
    if case == "mul":
        constants |= {"w": np.array([[700]], np.int16), "ws": np.float16([0.001]), "wz": np.int16([0])}
        more = [helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=-2), helper.make_node("Mul", ["d", "v"], ["y"])]
    elif case == "gemm":
        constants |= {"w": np.arange(-12, 12, dtype=np.int8).reshape(3, 8), "wz": np.int8(0), "b": np.float16([[1, 2, 3]])}
        more = [
            helper.make_node("DequantizeLinear", ["w", "s", "wz"], ["v"]),
            helper.make_node("Gemm", ["d", "v", "b"], ["y"], alpha=0.5, beta=0.25, transB=1),
        ]
    else:
        more = [helper.make_node("Relu", ["d"], ["r"]), *quantized("r", "y")]
    source = saved(tmp_path / "h.onnx", [*quantized("x", "d"), *more], [2, 8], constants, TensorProto.FLOAT16)
    result = tmp_path / f"o{suffix}"
    convert(source, result)
    assert check(source, result).passed


def test_weights_of_a_grouped_convolution_with_scales_along_its_inputs(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).integers(-127, 128, (4, 2, 3, 3)).astype(np.int8)
    constants = {"s": np.float32(0.05), "z": np.uint8(3), "w": weights, "ws": np.float32([0.01, 0.03]), "wz": np.int8([0, 0])}
    nodes = [
        *quantized("x", "d"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=1),
        helper.make_node("Conv", ["d", "v"], ["y"], group=2),
    ]
    source = saved(tmp_path / "c.onnx", nodes, [1, 4, 6, 6], constants)
    convert(source, tmp_path / "c.tflite")
    assert check(source, tmp_path / "c.tflite").passed
    convert(tmp_path / "c.tflite", tmp_path / "back.onnx")
    quantizations = [tensor.quantization for tensor in load(tmp_path / "back.onnx").tensors.values() if tensor.dtype == "int8"]
    assert [(quantization.axis, quantization.scale.tolist()) for quantization in quantizations if quantization is not None] == [
        (1, np.float32([0.01, 0.03]).tolist())
    ]


@pytest.mark.parametrize(("shape", "sizes"), [([1, "n"], [6]), ([1, 6], [6]), ([1, "n"], [3, 3])])
def test_a_split_is_read_back(shape: list[Any], sizes: list[int], tmp_path: Path) -> None:
    nodes = [helper.make_node("Split", ["x", "n"], ["y", "r"][: len(sizes)], axis=1)]
    source = saved(tmp_path / "s.onnx", nodes, shape, {"n": np.int64(sizes)})
    convert(source, tmp_path / "s.tflite")
    assert check(source, tmp_path / "s.tflite").passed


def test_a_split_in_one_part_of_an_open_size_is_read(tmp_path: Path) -> None:
    axis = TensorSpec("axis", (), "int32", data=np.int32(0))
    x, y = (TensorSpec(name, (1, 4), "float32", shape_signature=(-1, 4)) for name in "xy")
    path = tmp_path / "one.tflite"
    path.write_bytes(single_op("SPLIT", {"numSplits": 1}, [axis, x], [y]))
    convert(path, tmp_path / "one.onnx")
    assert check(path, tmp_path / "one.onnx").passed


@pytest.mark.parametrize("arguments", [["check", "r.onnx", "r.onnx"], ["roundtrip", "r.onnx", "onnx:qdq"], ["passes", "r.onnx"]])
def test_inputs_of_more_dimensions_than_arrays_have(arguments: list[str], tmp_path: Path) -> None:
    saved(tmp_path / "r.onnx", [helper.make_node("Relu", ["x"], ["y"])], [1] * 200, {})
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "200 dimensions" in done.stdout + done.stderr


def _no_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "m.tflite", "m.tflite"],
        ["roundtrip", "m.tflite", "qgraph"],
        ["audit", "m.tflite", "--target", "ort-x86", "--run"],
        ["accuracy", "m.tflite", "m.tflite", "--data", "."],
        ["calibrate", "m.tflite", "-o", "o.onnx"],
        ["view", "m.tflite"],
    ],
)
def test_no_place_for_temporary_files(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes((FIXTURES / "tiny_ad_toycar_int8.tflite").read_bytes())
    done = run(*arguments, cwd=tmp_path, preexec_fn=_no_files)
    assert done.returncode == 2, done.stdout + done.stderr


def test_ctrl_c_is_quiet_while_the_command_line_is_imported() -> None:
    """The signal comes as soon as qconvert is imported, before its command line is: no traceback, and the exit code of Ctrl-C."""
    code = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from qconvert.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, "formats"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_ends_a_command_that_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qconvert", "inspect", "-", "--from", "tflite"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        time.sleep(1.5)
        os.kill(started.pid, signal.SIGINT)
        assert started.wait(30) == 130
        assert started.stderr is not None
        assert "Traceback" not in started.stderr.read()


def test_operators_are_compared_with_fewer_inputs_where_that_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(1).integers(-127, 128, (8, 3, 3, 4)).astype(np.int8)
    x, y = TensorSpec("x", (1, 9, 9, 4), "float32"), TensorSpec("y", (1, 9, 9, 8), "float32")
    w, b = TensorSpec("w", weights.shape, "int8", 0.01, data=weights), TensorSpec("b", (8,), "float32", data=np.ones(8, np.float32))
    source = tmp_path / "dynamic.tflite"
    source.write_bytes(single_op("CONV_2D", {"strideH": 1, "strideW": 1}, [x, w, b], [y]))
    convert(source, tmp_path / "dynamic.onnx")
    reports = []
    for seconds in (60.0, 0.0):
        monkeypatch.setattr("qconvert.checking.per_operator.SECONDS", seconds)
        reports.append(check(source, tmp_path / "dynamic.onnx", samples=3, per_op=True))
    assert [report.passed for report in reports] == [True, True]
    assert [any("with 1 of 3 inputs" in note for note in report.notes) for report in reports] == [False, True]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("suffix", [".tflite", ".onnx"])
def test_custom_operators_beside_variables(suffix: str, tmp_path: Path) -> None:
    """The sum of the inputs so far goes through a Flex operator: the check is of what is around that, with the variable in it."""
    x, s, y, z = (TensorSpec(name, (1, 4), "float32") for name in "xsyz")
    first, start = TensorSpec("first", (1,), "resource"), TensorSpec("start", (1, 4), "float32", data=np.zeros((1, 4), np.float32))
    handle, read = TensorSpec("handle", (1,), "resource"), TensorSpec("read", (1, 4), "float32")
    named = {"sharedName": "v", "container": ""}
    once = [OpSpec("VAR_HANDLE", [], ["first"], named), OpSpec("ASSIGN_VARIABLE", ["first", "start"], [])]
    ops = [
        OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 1}),
        OpSpec("VAR_HANDLE", [], ["handle"], named),
        OpSpec("READ_VARIABLE", ["handle"], ["read"]),
        OpSpec("ADD", ["read", "x"], ["s"]),
        OpSpec("ASSIGN_VARIABLE", ["handle", "s"], []),
        OpSpec("FlexErfinv", ["s"], ["y"], {}, custom=True),
        OpSpec("RELU", ["y"], ["z"]),
    ]
    source = tmp_path / "flex.tflite"
    source.write_bytes(model(ops, [x, s, y, z, handle, read], ["x"], ["z"], further=[(once, [first, start], [], [])]))
    convert(source, tmp_path / f"o{suffix}")
    report = check(source, tmp_path / f"o{suffix}")
    assert not report.problems
    assert {item.name: item.largest for item in report.outputs} == {"s": 0, "z": 0}
    assert [text for text in report.unjudged if "FlexErfinv" in text] == list(report.unjudged)
