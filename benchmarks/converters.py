"""The converters under test: their environments, their command lines, and what a whole process of each costs."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Environment -> what pip installs into it. Later TensorFlow and numpy no longer fit tf2onnx 1.17; onnx2tf asks for Python 3.12 and runs
#: on 3.11.
ENVIRONMENTS = {
    "qconvert": ["--constraint", str(ROOT / "constraints.txt"), str(ROOT)],
    "tf2onnx": ["tf2onnx==1.17.0", "tensorflow-cpu==2.19.*", "numpy<2.2"],
    "tflite2onnx": ["tflite2onnx==0.4.1", "setuptools"],
    "onnx2tf": ["--ignore-requires-python", "onnx2tf==2.6.9"],
}
#: Packages whose versions belong to the result.
NAMED = ("ai-edge-litert", "numpy", "onnx", "onnx2tf", "onnxruntime", "qconvert", "tensorflow_cpu", "tf2onnx", "tflite2onnx")


@dataclass(frozen=True)
class Converter:
    """A command line.

    Attributes:
        environment: a key of ENVIRONMENTS.
        words: the program within the environment, then its arguments, with {source}, {result} and {folder}, which is empty.
        written: where the program puts its result if it cannot be told: a path with {folder} and {stem}, the source's name.
    """

    environment: str
    words: tuple[str, ...]
    written: str = "{result}"


_QCONVERT = ("bin/qconvert", "tflite2onnx", "{source}", "{result}", "--force", "--quiet")
CONVERTERS = {
    "qconvert": Converter("qconvert", _QCONVERT),
    "qconvert-vnni": Converter("qconvert", (*_QCONVERT, "--target", "ort-x86-vnni")),
    "tf2onnx": Converter(
        "tf2onnx", ("bin/python", "-m", "tf2onnx.convert", "--tflite", "{source}", "--output", "{result}", "--opset", "17")
    ),
    "tflite2onnx": Converter("tflite2onnx", ("bin/tflite2onnx", "{source}", "{result}")),
}
_ONNX2TFLITE = ("bin/qconvert", "onnx2tflite", "{source}", "{result}", "--force", "--quiet")
#: From ONNX to TFLite.
TO_TFLITE = {
    "qconvert": Converter("qconvert", _ONNX2TFLITE),
    "qconvert-uint8": Converter("qconvert", (*_ONNX2TFLITE, "--target", "tflite-uint8")),
    "onnx2tf": Converter("onnx2tf", ("bin/onnx2tf", "-i", "{source}", "-o", "{folder}"), "{folder}/{stem}_float32.tflite"),
}

#: Runs the command after its first argument, a log file; prints exit code, seconds, peak memory in kB and processor seconds. It is a
#: process of its own because Linux counts into a child's peak the memory of whoever started it (exec keeps the high-water mark).
_LAUNCHER = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
log, command = sys.argv[1], sys.argv[2:]
actions = [(os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
started = time.perf_counter()
child = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), time.perf_counter() - started, usage.ru_maxrss, usage.ru_utime + usage.ru_stime)
"""


@dataclass(frozen=True)
class ProcessCost:
    """Exit code, wall time, peak resident memory in MB (2**20 bytes), the last line with an error, or the last one at all, and the time of
    all processors in seconds."""

    code: int
    seconds: float
    megabytes: float
    message: str
    processor: float


def build_environments(folder: Path, names: set[str]) -> None:
    """Makes the environments that are not there yet; qconvert itself is always brought up to date."""
    for name in sorted(names):
        python = folder / name / "bin" / "python"
        complete = folder / name / "complete"
        if not complete.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder / name)], check=True)
            _pip(python, *ENVIRONMENTS[name])
            complete.touch()
        elif name == "qconvert":
            _pip(python, *ENVIRONMENTS[name])  # dependencies that came since
            _pip(python, "--force-reinstall", "--no-deps", str(ROOT))


def _pip(python: Path, *words: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words], check=True)


def run_process(command: list[str], log: Path) -> ProcessCost:
    """Runs a whole process, its output in a log file; programs of its own environment come first, as in an activated one."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    environment["PATH"] = os.pathsep.join([str(Path(command[0]).parent), environment.get("PATH", os.defpath)])
    launched = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(log), *command]
    done = subprocess.run(launched, capture_output=True, text=True, check=True, env=environment)
    code, seconds, kilobytes, processor = done.stdout.split()
    text = log.read_text(errors="replace")
    cause = text.split("\nThe above exception was the direct cause")[-2:][0]
    lines = _joined([line.strip() for line in cause.splitlines() if line.strip()])
    errors = [line for line in lines if "error" in line.lower()]  # a remedy may follow the error
    return ProcessCost(int(code), float(seconds), int(kilobytes) / 1024, one_line((errors or lines or [""])[-1]), float(processor))


def _joined(lines: list[str]) -> list[str]:
    """Lines that end in a colon go together with what follows them."""
    joined: list[str] = []
    for line in reversed(lines):
        joined.append(f"{line} {joined[-1]}" if line.endswith(":") and joined else line)
    return joined[::-1]


def one_line(message: str) -> str:
    """A message without line breaks, colours and the folders of paths, cut to a table's width."""
    return re.sub(r"\x1b\[[0-9;]*m|(?:/[\w.+-]+)+/", "", " ".join(message.split()))[:240]


def convert(converter: Converter, envs: Path, source: Path, result: Path) -> ProcessCost:
    """Converts a copy, since onnx2tf overwrites its source; a result from before is removed first."""
    result.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        copy = shutil.copy(source, name)
        places = {"source": copy, "result": result, "folder": Path(name) / "result", "stem": source.stem}
        words = [word.format(**places) for word in converter.words]
        cost = run_process([str(envs / converter.environment / words[0]), *words[1:]], result.with_suffix(".log"))
        written = Path(converter.written.format(**places))
        if written != result and written.exists():
            shutil.move(written, result)
    return cost


def start_up_seconds(envs: Path, option: str, times: int = 10) -> float:
    """The best time of `qconvert` with that option as a whole process; raises RuntimeError if it fails."""
    costs = [run_process([str(envs / "qconvert" / "bin" / "qconvert"), option], envs / "start_up.log") for _ in range(times)]
    if failed := next((cost for cost in costs if cost.code), None):
        raise RuntimeError(f"qconvert {option}: {failed.message}")
    return min(cost.seconds for cost in costs)


def machine() -> dict[str, str | float]:
    """Processor, cores, whether it has VNNI, operating system, Python."""
    path = Path("/proc/cpuinfo")
    cpu = path.read_text() if path.exists() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", cpu, re.M)
    return {
        "cpu": name[1].strip() if name else platform.processor(),
        "cores": os.cpu_count() or 1,
        "avx512_vnni": "avx512_vnni" in cpu,
        "avx_vnni": "avx_vnni" in cpu,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions(envs: Path, names: set[str]) -> dict[str, dict[str, str]]:
    """Environment -> package -> version; `benchmark` is the environment that runs the results."""
    pythons = {name: str(envs / name / "bin" / "python") for name in sorted(names)} | {"benchmark": sys.executable}
    found = {}
    for name, python in pythons.items():
        command = [python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        pairs = [line.split("==", 1) for line in lines if "==" in line]
        found[name] = {package: version for package, version in pairs if package.replace("_", "-") in {n.replace("_", "-") for n in NAMED}}
    return found


def parse(parser: argparse.ArgumentParser, known: Mapping[str, Converter], *, tools: str, repeat: int, samples: int) -> argparse.Namespace:
    """The options that the comparisons of converters share, added to `parser`, read and checked; the keywords are defaults.

    Args:
        parser: has the positional argument "models", paths.
        known: the converters to choose from.
    """
    parser.add_argument("--tools", default=tools, help=f"which of {', '.join(known)} (default: %(default)s)")
    parser.add_argument("--envs", type=Path, default=Path.home() / ".cache" / "qconvert-bench", help="where the environments are kept")
    parser.add_argument("--keep", type=Path, help="where the results are kept (default: results/ in --envs)")
    parser.add_argument("--repeat", type=int, default=repeat, help="conversions of each model by each tool (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=samples, help="random inputs to compare outputs on (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=60, help="timed runs of each result (default: %(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables into a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    options = parser.parse_args()
    options.tools = options.tools.split(",")
    if unknown := set(options.tools) - set(known):
        parser.error(f"unknown tools {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if missing := [path for path in options.models if not path.exists()]:
        parser.error(f"no such file or folder: {missing[0]}")
    if min(options.repeat, options.samples, options.runs) < 1:
        parser.error("--repeat, --samples and --runs are at least 1")
    options.envs = options.envs.resolve()
    options.keep = (options.keep or options.envs / "results").resolve()
    return options
