"""Exit codes: one table for all commands. 0 passed or written, 1 not equal, 2 the user's or the model's error, 3 a fault of qconvert
itself, 4 inconclusive."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import flatbuffers
import onnx
import pytest
from custom_models import custom_model
from onnx import TensorProto, helper, numpy_helper

from qconvert import convert

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "tiny_ad_toycar_int8.tflite"


def run(*arguments: str | Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, after some lines of Python."""
    code = f"{before}\nfrom qconvert.__main__ import main; main()"
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sound.onnx, wrong.onnx with one weight changed, nan.onnx, whose output is no number, custom.tflite, unknown.tflite,
    and model.qgraph."""
    path = tmp_path_factory.mktemp("files")
    convert(MODEL, path / "sound.onnx")
    convert(MODEL, path / "model.qgraph")
    (path / "custom.tflite").write_bytes(custom_model())
    (path / "unknown.tflite").write_bytes(unknown_model())
    wrong = onnx.load(path / "sound.onnx")
    weights = next(item for item in wrong.graph.initializer if len(item.dims) == 2)
    data = numpy_helper.to_array(weights).copy()
    data[0, 0] ^= 0x40
    weights.CopyFrom(numpy_helper.from_array(data, weights.name))
    onnx.save(wrong, path / "wrong.onnx")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    nodes = [helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["n"]), helper.make_node("Sqrt", ["n"], ["y"])]
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:]), opset_imports=opset, ir_version=8), path / "nan.onnx")
    return path


def unknown_model() -> bytes:
    """A model with an operator that nobody reads."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(MODEL.read_bytes()))
    model.operatorCodes[0].builtinCode = model.operatorCodes[0].deprecatedBuiltinCode = schema.BuiltinOperator.SKIP_GRAM
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


OTHER_CPU = "ort-arm" if platform.machine().lower() in ("x86_64", "amd64") else "ort-x86"
CASES = {
    "check passes": (0, ["check", MODEL, "sound.onnx"], "passed"),
    "check --quick passes": (0, ["check", MODEL, "wrong.onnx", "--quick", "--max-lsb", "255"], "passed"),
    "convert writes": (0, ["convert", MODEL, "again.onnx"], "again.onnx"),
    "audit --run as predicted": (0, ["audit", MODEL, "--target", "tflite", "--run"], "as predicted"),
    "roundtrip passes": (0, ["roundtrip", MODEL, "onnx:qdq", "--samples", "1"], "passed"),
    "diff of equal graphs": (0, ["diff", MODEL, MODEL], "equal"),
    "inspect": (0, ["inspect", MODEL], "operators"),
    "check of a wrong model": (1, ["check", MODEL, "wrong.onnx"], "not equal"),
    "diff of others": (1, ["diff", MODEL, FIXTURES / "aww_int8.tflite"], "Conv"),
    "check of no file": (2, ["check", MODEL, "none.onnx"], "error: "),
    "check in two ways": (2, ["check", MODEL, "sound.onnx", "--quick", "--per-op"], "error: "),
    "convert of an unknown operator": (2, ["convert", "unknown.tflite", "lstm.onnx"], "SKIP_GRAM"),
    "convert onto a file": (2, ["convert", MODEL, "sound.onnx"], "already exists"),
    "audit of no target": (2, ["audit", MODEL, "--target", "none"], "there is no target"),
    "roundtrip via nothing": (2, ["roundtrip", MODEL, "none"], "error: "),
    "inspect of no file": (2, ["inspect", "none.tflite"], "error: "),
    "diff of no file": (2, ["diff", MODEL, "none.tflite"], "error: "),
    "no such option": (2, ["check", MODEL, "--no-such-option"], "No such option"),
    "no such command": (2, ["verify", MODEL], "No such command"),
    "check without a runtime": (4, ["check", MODEL, "model.qgraph"], "no runtime runs qgraph files"),
    "roundtrip of a custom operator": (4, ["roundtrip", "custom.tflite", "onnx:qdq"], "1 custom operator cannot be run here"),
    "roundtrip of NaN on both sides": (4, ["roundtrip", "nan.onnx", "onnx:qdq"], "NaN"),
    "check of NaN on both sides": (4, ["check", "nan.onnx", "nan.onnx"], "NaN"),
    "audit for another CPU": (4, ["audit", MODEL, "--target", OTHER_CPU, "--run"], "inconclusive"),
    "audit of a runtime that does not tell": (4, ["audit", MODEL, "--target", "tflite-micro", "--run"], "does not report what it runs"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_table(case: str, folder: Path) -> None:
    code, (command, *rest), words = CASES[case]
    named = [folder / item if isinstance(item, str) and item.endswith((".onnx", ".qgraph", ".tflite")) else item for item in rest]
    done = run(command, *named)
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["onnxruntime", "ai_edge_litert"])
def test_a_round_trip_without_a_runtime_could_not_be_judged(package: str) -> None:
    done = run("roundtrip", MODEL, "onnx:qdq", "--json", before=f"import sys; sys.modules[{package!r}] = None")
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"], document["passed"]) == (4, "inconclusive", False), done.stderr
    assert package in document["legs"][0]["unjudged"][0]


#: Lets a function of each command fail as nobody expects.
BROKEN = {
    "check": (["check", MODEL, MODEL], "import qconvert.checking.check as m; m.sides_of = lambda *a: {}['lost']"),
    "convert": (["convert", MODEL, "x.onnx"], "import qconvert.conversion.converting as m; m.load = lambda *a: {}['lost']"),
    "audit": (["audit", MODEL, "--target", "tflite"], "import qconvert.checking.auditing as m; m.load = lambda *a: {}['lost']"),
    "roundtrip": (["roundtrip", MODEL, "qgraph"], "import qconvert.checking.roundtrips as m; m.load = lambda *a: {}['lost']"),
    "inspect": (["inspect", MODEL], "import qconvert.conversion as m; m.load = lambda *a: {}['lost']"),
    "diff": (["diff", MODEL, MODEL], "import qconvert.conversion.comparing as m; m.load_pair = lambda *a: {}['lost']"),
}


@pytest.mark.parametrize("command", BROKEN)
def test_an_unexpected_exception_is_one_line_that_asks_for_a_report(command: str, tmp_path: Path) -> None:
    arguments, before = BROKEN[command]
    named = [tmp_path / item if item == "x.onnx" else item for item in arguments]
    done = run(*named, before=before)
    assert done.returncode == 3, done.stderr
    wanted = (
        f"error: {command} failed by a fault of qconvert itself (KeyError: 'lost'); please report it with the model and what --debug prints"
    )
    assert [line for line in done.stderr.splitlines() if line] == [wanted]
    shown = run(*named, "--debug", before=before)
    assert shown.returncode == 3
    assert "Traceback" in shown.stderr and "--debug prints" in shown.stderr
    document = json.loads(run(*named, "--json", before=before).stdout)
    assert document == {"schema": "qconvert/error/1", "error": "internal", "where": command, "reason": "KeyError: 'lost'"}


def test_a_machine_with_too_little_memory_is_no_fault_of_qconvert(tmp_path: Path) -> None:
    """The arrays that the model states fit no machine's addresses."""
    before = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\nimport numpy as np, qconvert.conversion as m\n"
    done = run("inspect", MODEL, "--json", before=f"{before}m.load = lambda *a: np.ones(2**40)")
    assert (done.returncode, json.loads(done.stdout)["error"]) == (2, "out-of-memory")
    assert "Traceback" not in done.stderr


def test_a_pass_that_lies_is_a_fault_of_qconvert(tmp_path: Path) -> None:
    before = (
        "import qconvert.passes.assign_layout as m\n"
        "from qconvert.errors import InternalError\n"
        "def run(*a, **b): raise InternalError('the pass assign_layout lies')\n"
        "m.assign_layout = run"
    )
    done = run("convert", MODEL, tmp_path / "x.onnx", before=before)
    assert (done.returncode, done.stderr) == (3, "error: the pass assign_layout lies\n")
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("words", [["formats"], ["convert", str(MODEL), "-", "--to", "onnx"]])
def test_a_pipe_that_closes_early_is_no_verdict(words: list[str]) -> None:
    """`qconvert formats | head -c 1` ends with the code of programs that SIGPIPE ends, not with that of "not equal"."""
    command = [sys.executable, "-m", "qconvert", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stderr is not None
        program.stdout.close()
        assert (program.wait(60), program.stderr.read()) == (141, b"")


@pytest.mark.parametrize("words", [["frobnicate"], ["convert"], ["convert", "absent.tflite", "x.onnx"]])
def test_an_error_that_nobody_reads_has_its_exit_code(words: list[str]) -> None:
    with subprocess.Popen([sys.executable, "-m", "qconvert", *words], stderr=subprocess.PIPE) as program:
        assert program.stderr is not None
        program.stderr.close()
        assert program.wait(60) == 2


@pytest.mark.parametrize("words", [["formats"], ["convert", "absent.tflite", "x.onnx"]])
@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("import atexit; atexit.register(lambda: print('registered', end=''))", "registered"),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(1), print('waited', end=''))).start()", "waited"),
        ("class Freed:\n    def __del__(self): print('freed', end='')\nkept = Freed()", ""),
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"  # as PyTorch's export leaves one
            "class Freed:\n    def __del__(self): print('freed', end='')\nkept = Freed()",
            "",
        ),
    ],
)
def test_a_process_ends_after_threads_and_handlers_without_freeing_its_objects(words: list[str], before: str, said: str) -> None:
    """What a handler prints without a line's end is written, with the exit code of the command."""
    done, plain = run(*words, before=before), run(*words)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout + said)
