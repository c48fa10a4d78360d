"""What a core install takes on disk, and how long whole commands take from the start of the process, for one or two trees side by side.

    python benchmarks/startup.py [--base ../other-checkout] [--repeat 15] [--markdown docs/measured/scale.md]

Each tree is installed with `pip install .` and its own constraints.txt into a fresh virtual environment. The
commands of both take turns in each round; the first round, which writes bytecode, does not count.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from page import Section, cells, update

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures"
TITLE = "Start-up and size of the core install"
#: Tools of every virtual environment.
NOT_OURS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
ENVIRONMENT = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}


@dataclass
class Cost:
    """What a command cost: wall and processor seconds of each run."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{statistics.median(self.wall):.3f} s ({min(self.wall):.3f}; {statistics.median(self.processor):.3f})"


def install(tree: Path, folder: Path) -> Path:
    """Installs a copy of a tree, which is left as it is, into a new virtual environment; returns its folder."""
    copy, place = folder / "source", folder / "venv"
    shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(".git", ".venv", "build", "fixtures", "tests", "__pycache__", ".*_cache"))
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", "."],
    ):
        subprocess.run(command, cwd=copy, env=ENVIRONMENT, check=True)
    return place


def megabytes(venv: Path) -> float:
    """Size of all files in site-packages, apart from pip and setuptools."""
    packages = next(venv.glob("lib/python*/site-packages"))
    kept = [item for item in packages.iterdir() if not item.name.startswith(NOT_OURS)]
    files = [file for item in kept for file in ([item] if item.is_file() else item.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def commands(folder: Path) -> dict[str, list[str]]:
    """What is measured -> the arguments after the interpreter's or the program's name; results go to `folder`."""
    first, second = FIXTURES / "coral_mobilenet_v2_224_uint8.tflite", FIXTURES / "coral_tf2_mobilenet_v2_224_int8.tflite"
    written = folder / "first.onnx"
    options = ["--force", "--quiet"]
    return {
        "python -c pass": ["-c", "pass"],
        "import numpy": ["-c", "import numpy"],
        "import onnx": ["-c", "import onnx"],
        "qconvert --help": ["--help"],
        "qconvert --version": ["--version"],
        "tflite2onnx MobileNet v2 uint8": ["tflite2onnx", str(first), str(written), *options],
        "tflite2onnx MobileNet v2 int8": ["tflite2onnx", str(second), str(folder / "second.onnx"), *options],
        "onnx2tflite MobileNet v2 uint8": ["onnx2tflite", str(written), str(folder / "first.tflite"), *options],
    }


def run(venv: Path, arguments: list[str], cost: Cost) -> None:
    """Runs one command in a process of its own; ends the benchmark if it fails."""
    program = venv / "bin" / ("python" if arguments[0] == "-c" else "qconvert")
    started = time.perf_counter()
    child = subprocess.Popen([str(program), *arguments], env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    cost.wall.append(time.perf_counter() - started)
    cost.processor.append(usage.ru_utime + usage.ru_stime)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{program.name} {' '.join(arguments)} ended with exit code {child.returncode}")


def measure(venvs: dict[str, Path], folder: Path, repeat: int) -> dict[tuple[str, str], Cost]:
    """(what, tree) -> its cost."""
    found = {(what, tree): Cost() for what in commands(folder) for tree in venvs}
    for number in range(repeat + 1):
        for what, arguments in commands(folder).items():
            for tree, venv in venvs.items() if number % 2 else reversed(venvs.items()):
                run(venv, arguments, found[what, tree] if number else Cost())
    return found


def section(venvs: dict[str, Path], found: dict[tuple[str, str], Cost]) -> Section:
    """The table."""
    lines = [["site-packages", *(f"{megabytes(venv):.0f} MB" for venv in venvs.values())]]
    lines += [[what, *(str(found[what, tree]) for tree in venvs)] for what in dict.fromkeys(what for what, _ in found)]
    count = len(next(iter(found.values())).wall)
    note = (
        f"Whole processes, median of {count} runs; in brackets the best, and the median of the processor time. Bytecode is there, files "
        f"are in the page cache. {os.cpu_count()} cores, Python {platform.python_version()}."
    )
    return Section(TITLE, ["what", *venvs], lines, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", type=Path, help="another checkout, measured next to this one")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    trees = {"before": options.base, "now": ROOT} if options.base else {"now": ROOT}
    with tempfile.TemporaryDirectory() as name:
        venvs = {}
        for tree, path in trees.items():
            (Path(name) / tree).mkdir()
            venvs[tree] = install(path.resolve(), Path(name) / tree)
        part = section(venvs, measure(venvs, Path(name), options.repeat))
    print("\n".join([f"{TITLE}\n", cells(part.header), "|" + "---|" * len(part.header), *map(cells, part.lines), "", part.note]))
    if options.markdown:
        update(options.markdown, part, "python benchmarks/startup.py")


if __name__ == "__main__":
    main()
