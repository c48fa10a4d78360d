"""What works without the packages that run models, and what is said where one is missing."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qconvert import convert
from qconvert.errors import MissingPackageError, RuntimeRefusedError
from qconvert.runtimes.packages import Child, runtime_package

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"
BLOCKED = ("ai_edge_litert", "onnx_ir", "onnxruntime", "PIL", "sympy", "tflite_micro", "torch")
START = """
import sys

blocked = sys.argv.pop(1).split(",")

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from qconvert.cli.app import main
main()
"""


def without(packages: tuple[str, ...], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process in which these packages cannot be imported."""
    command = [sys.executable, "-c", START, ",".join(packages), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("chain", ["onnx tflite", "onnx onnx", "tflite", "qgraph onnx"])
def test_conversions_need_no_runtime(chain: str, tmp_path: Path) -> None:
    """Each file is the one that the same conversion gives with everything installed."""
    source = MODEL
    for number, suffix in enumerate(chain.split()):
        result = tmp_path / f"{number}.{suffix}"
        done = without(BLOCKED, "convert", source, result, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["operators"]["Conv"] == 9
        expected = tmp_path / "expected" / result.name
        expected.parent.mkdir(exist_ok=True)
        convert(source, expected)
        assert hashlib.sha256(result.read_bytes()).digest() == hashlib.sha256(expected.read_bytes()).digest()
        source = result


@pytest.mark.parametrize("command", [("inspect", "--json"), ("diff", MODEL)])
def test_graphs_are_shown_without_runtimes(command: tuple[str | Path, ...]) -> None:
    name, *rest = command
    done = without(BLOCKED, name, MODEL, *rest)
    assert done.returncode == 0, done.stderr
    assert "Conv" in done.stdout or done.stdout == "equal: nothing differs\n"


@pytest.mark.parametrize(
    ("package", "words"),
    [("ai_edge_litert", "runs .tflite models"), ("onnxruntime", "runs .onnx models"), ("tflite_micro", "microcontrollers")],
)
def test_a_check_names_the_extra_that_it_needs(package: str, words: str, tmp_path: Path) -> None:
    result = tmp_path / "model.onnx"
    convert(MODEL, result)
    kernels, extra = ("tflite-micro", "micro") if package == "tflite_micro" else ("litert", "check")
    done = without((package,), "check", MODEL, result, "--samples", "1", "--kernels", kernels)
    assert done.returncode == 4
    assert f"the package {package}, which" in done.stdout
    assert words in done.stdout
    assert f"pip install 'qconvert[{extra}]'" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.cross_section
def test_a_package_that_is_there_and_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_runtime.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused(MissingPackageError, "package-missing", holds=("libfoo.so.1",)):
        runtime_package("broken_runtime", "qconvert[check]", "runs models")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os\nwhile True: os.write(2, b'line\\n' * 2**16)", "printed more than"),
        ("import os\nos.write(2, b'y' * 10**6); os._exit(7)", "exit code 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("print('no json')", "invalid answer"),
        ("import time\ntime.sleep(100)", "did not answer within 2 s"),
    ],
)
def test_a_process_that_crashes_hangs_or_prints_without_end(program: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(program)
    child = Child(tmp_path / "child.py", "The tool", 600.0 if "printed" in words else 2.0)
    with pytest.raises(RuntimeRefusedError, match=words) as caught:
        child.request({"other": []})
    assert len(caught.value.reason) < 2500
    with refused(RuntimeRefusedError, "process-ended"):  # further inputs are refused like the first
        child.request({"other": []})


_UNSTARTED = "^The tool cannot be started: its process"


@pytest.mark.parametrize(
    ("program", "rule", "words"),
    [
        (
            "import os\nwhile True: os.write(2, b'line\\n' * 2**16)",
            "no-answer",
            "^The tool printed more than 67,108,864 bytes; it printed: line ",
        ),
        (
            "raise ImportError('libfoo.so.1')",
            "not-started",
            f"{_UNSTARTED} ended with exit code 1; it printed: .*ImportError: libfoo.so.1$",
        ),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
            "not-started",
            f"{_UNSTARTED} was ended by SIGSEGV$",
        ),
        ("import time\ntime.sleep(100)", "no-answer", "^The tool did not answer within 2 s$"),
    ],
)
def test_a_fork_server_that_crashes_hangs_or_prints_without_end(program: str, rule: str, words: str, tmp_path: Path) -> None:
    """As it starts; a second process is refused with the same words, by a server of its own."""
    (tmp_path / "child.py").write_text(program)
    for _ in range(2):
        with pytest.raises(RuntimeRefusedError, match=words) as caught:
            Child(tmp_path / "child.py", "The tool", 60.0 if "printed" in words else 2.0, forks=True)
        assert caught.value.rule == rule and len(caught.value.reason) < 2500


@pytest.mark.parametrize(("end", "rule"), [("SIGABRT", "process-ended"), ("SIGKILL", "process-killed")])
def test_a_fork_that_ends_before_it_has_read_the_question(end: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(
        "import os, signal\n"
        "def start():\n"
        "    def answer(question, read):\n"
        "        print('read nothing', flush=True)\n"
        f"        os.kill(os.getpid(), signal.{end})\n"
        "    return answer\n"
    )
    child = Child(tmp_path / "child.py", "The tool", 60.0, forks=True)
    with refused(RuntimeRefusedError, rule, holds=(f"The tool's process was ended by {end}", "it printed: read nothing")):
        child.request({"run": 1}, [np.zeros(100_000, np.int8)])


def test_a_program_answers_with_arrays_and_its_errors_are_told(tmp_path: Path) -> None:
    """What it prints is no answer, and one error does not end it."""
    (tmp_path / "child.py").write_text(
        "def start(factor):\n"
        "    def answer(question, read):\n"
        "        print('no answer')\n"
        "        values = [read(*item) for item in question['values']]\n"
        "        return {'arrays': [[v.dtype.name, list(v.shape)] for v in values]}, [v * int(factor) for v in values]\n"
        "    return answer\n"
    )
    child = Child(tmp_path / "child.py", "The tool", 60.0, ["3"])
    given = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7, np.int64)]
    described = [[value.dtype.name, list(value.shape)] for value in given]
    with pytest.raises(RuntimeRefusedError, match="The tool refuses the model: KeyError: 'values'"):
        child.request({"other": []})
    found = child.arrays(child.request({"values": described}, given)["arrays"])
    assert [value.tolist() for value in found] == [[[0, 3, 6], [9, 12, 15]], 21]


@pytest.mark.parametrize(
    ("results", "wrong"),
    [("np.int8([3])", ""), ("np.float32([np.nan])", "float32"), ("", "\\[\\]"), ("np.int8([3]), np.int8([3])", "int8")],
)
def test_results_of_other_types_or_another_number_are_invalid(results: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(
        "import numpy as np\n"
        "def start():\n"
        "    def answer(question, read):\n"
        "        given = [read(*item) for item in question['run']]\n"
        f"        results = [{results}]\n"
        "        return {'arrays': [[item.dtype.name, list(item.shape)] for item in results]}, results\n"
        "    return answer\n"
    )
    child, outputs = Child(tmp_path / "child.py", "The tool", 60.0), {"y": ("int8", (1,))}
    if results == "np.int8([3])":
        assert child.run([np.zeros((2, 3), np.float32)], outputs)["y"].tolist() == [3]
        return
    with refused(RuntimeRefusedError, "invalid-answer"):
        child.run([np.zeros((2, 3), np.float32)], outputs)


@pytest.mark.parametrize("said", ["print('[' * 200_000)", "while True: sys.stdout.write('x' * 2**20)"])
def test_nested_or_endless_answers_are_invalid(said: str, tmp_path: Path) -> None:
    """Brackets deeper than Python's stack, and a line without an end, of which 64 MiB are read within the time limit."""
    (tmp_path / "other.py").write_text(f"import sys\n{said}\nsys.stdout.flush()\nsys.stdin.read()\n")
    with refused(RuntimeRefusedError, "invalid-answer"):
        Child(tmp_path / "other.py", "other", 30.0).request({})
