"""Networks with memory of the zoo, run over 50 steps next to their source: qconvert and tf2onnx on the same TFLite files.

    python benchmarks/recurrent_zoo.py FOLDER [--tools qconvert,tf2onnx] [--match TEXT] [--markdown docs/measured/recurrent.md]
        [--json FILE]

FOLDER is the zoo of fixtures/zoo with its family `recurrent` (fixtures/README.md). Each tool converts every file in a process that has
imported it already; the times are those of the conversions alone. A result runs 50 times in onnxruntime next to its source in LiteRT, on
other seeded inputs each time, with states carried on both sides, by fixtures/zoo/independent.py, which uses nothing of qconvert's check.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import converters
from page import Section, machine, publish

STEPS = 50
MODES = ("float32", "dynamic", "float16", "int8", "int8_float_io", "int16x8")
#: qconvert-keep: with `-O dynamic=keep`, which rounds data as the source does.
TOOLS = ("qconvert", "qconvert-keep", "tf2onnx")
_SECONDS = 300.0
#: Real outputs that differ by less of their range differ in the order of float32 sums.
_CLOSE = 1e-5
_OWN = Path(__file__).resolve()


@dataclass
class Row:
    """What a tool made of a model.

    Attributes:
        seconds: of the conversion; 0 where it failed.
        equal: how many of the steps had the source's outputs in every value; -1 where the result did not run.
        largest: difference over all steps: in steps of an integer output's quantization, or as a share of a real output's range.
        real: whether the outputs are real.
        message: why there is no result.
    """

    model: str
    tool: str
    seconds: float = 0.0
    equal: int = -1
    largest: float = -1.0
    real: bool = True
    message: str = ""

    @property
    def converted(self) -> bool:
        return self.seconds > 0

    @property
    def is_close(self) -> bool:
        return 0 <= self.largest <= (_CLOSE if self.real else 1.0001)


class Helper:
    """This script in a process of its own, which a tool may end: lines of JSON go in, one comes out for each."""

    def __init__(self, python: Path, role: str) -> None:
        self._command = [str(python), str(_OWN), "--role", role]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, *words: str) -> dict[str, Any]:
        """The answer, or {"error": why there is none}."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_quiet()
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if waiting.select(_SECONDS) else ""
        if line:
            return dict(json.loads(line))
        self.end()
        return {"error": f"the process ended with {process.returncode}" if process.returncode != -9 else f"not done within {_SECONDS:g} s"}

    def end(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _quiet() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _qconvert(source: str, result: str, **options: str) -> dict[str, Any]:
    from qconvert import convert

    begun = time.perf_counter()
    convert(source, result, force=True, **options)
    return {"seconds": time.perf_counter() - begun}


def _tf2onnx(source: str, result: str) -> dict[str, Any]:
    import tf2onnx

    begun = time.perf_counter()
    tf2onnx.convert.from_tflite(source, opset=17, output_path=result)
    return {"seconds": time.perf_counter() - begun}


def _compare(source: str, result: str = "") -> dict[str, Any]:
    sys.path.insert(0, str(converters.ROOT / "fixtures" / "zoo"))
    import independent

    if not result:
        why = independent.runs(Path(source))
        return {"error": why} if why else {}
    found = independent.differences(Path(source), Path(result), steps=STEPS)
    real = all(port.dtype.startswith("float") for port in independent.opened(Path(source)).outputs)
    return {"equal": sum(item == 0 for item in found), "largest": max(found) / (255 if real else 1), "real": real}


def serve(role: str) -> None:
    """Answers lines until there are no more; what others print goes elsewhere."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    keep = partial(_qconvert, dynamic="keep")
    work = {"qconvert": _qconvert, "qconvert-keep": keep, "tf2onnx": _tf2onnx, "compare": _compare}[role]
    for line in sys.stdin:
        try:
            answer = work(*json.loads(line))
        except BaseException as error:  # SystemExit too: tools end themselves
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


def measure(model: Path, label: str, helpers: dict[str, Helper], tools: list[str], folder: Path) -> list[Row]:
    """A row for each tool; none if LiteRT does not run the model."""
    if "error" in helpers["compare"].ask(str(model)):
        return []
    rows = []
    for tool in tools:
        if tool == "qconvert-keep" and model.stem != "dynamic":
            continue  # the same as qconvert
        result = folder / f"{tool}.onnx"
        result.unlink(missing_ok=True)
        made = helpers[tool].ask(str(model), str(result))
        row = Row(label, tool, made.get("seconds", 0.0), message=converters.one_line(made.get("error", "")))
        if row.converted and result.exists():
            found = helpers["compare"].ask(str(model), str(result))
            row.equal, row.largest, row.real = found.get("equal", -1), found.get("largest", -1.0), found.get("real", True)
            row.message = converters.one_line(found.get("error", ""))
        rows.append(row)
    return rows


def summary(rows: list[Row], tools: list[str]) -> Section:
    """Mode × tool."""
    lines = []
    for mode in [*(mode for mode in MODES if any(Path(row.model).stem == mode for row in rows)), "all"]:
        for tool in tools:
            own = [row for row in rows if row.tool == tool and mode in (Path(row.model).stem, "all")]
            if not own or (tool == "qconvert-keep" and mode == "all"):
                continue
            ran = [row for row in own if row.equal >= 0]
            times = [row.seconds for row in own if row.converted]
            counts = [len(own), len(times), len(ran), sum(row.equal == STEPS for row in ran), sum(row.is_close for row in ran)]
            worst = [max((row.largest for row in ran if row.real is real), default=None) for real in (True, False)]
            cost = f"{statistics.median(times):.2f} s" if times else ""
            far = [f"{value:.3g} {unit}" if value is not None else "" for value, unit in zip(worst, ("× range", "LSB"), strict=True)]
            lines.append([mode, tool, *map(str, counts), *far, cost])
    header = ["mode", "tool", "files", "converted", "accepted", "all equal", "close", "worst, real", "worst, integers", "conversion"]
    note = (
        f"Accepted: onnxruntime runs the result. All equal: every value of all outputs in {STEPS} steps, with states carried. Close: real "
        f"outputs within {_CLOSE:g} of their range, which is the order of float32 sums, integers within a step. Conversion: median, "
        "without the start of the program. " + machine()
    )
    return Section("Recurrent networks", header, lines, note)


def table(rows: list[Row], tools: list[str]) -> Section:
    """Network × mode."""
    at = {(row.model, row.tool): row for row in rows}
    lines = []
    for network in dict.fromkeys(Path(row.model).parent for row in rows):
        keys = [str(network / f"{mode}.tflite") for mode in MODES]
        cells = [" / ".join(_cell(at[key, tool]) for tool in tools if (key, tool) in at) if (key, tools[0]) in at else "" for key in keys]
        lines.append([network.name, *cells])
    note = (
        f"A cell: {' / '.join(tools)} (the second for dynamic alone). `=`: equal in every value over {STEPS} steps; a number: the largest "
        "difference, as a share of the range of a real output, or in steps of an integer one (LSB); `–`: not converted; `✗`: onnxruntime "
        "does not run the result. Empty: TensorFlow's converter makes no such file, or one that LiteRT does not run. "
    )
    return Section("Recurrent networks, one by one", ["network", *MODES], lines, note)


def failures(rows: list[Row]) -> Section:
    """Why there is no result, and for how many files; names and numbers are left out of reasons."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.equal < 0:
            message = re.sub(r"[\w.]+\.tflite: |\S+ #\d+ \('[^']*'\): ", "", row.message)
            message = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "…", message)
            found.setdefault((row.tool, message[:130]), []).append(row)
    lines = [[tool, str(len(own)), own[0].model, message] for (tool, message), own in sorted(found.items(), key=lambda item: -len(item[1]))]
    return Section("Recurrent networks that fail", ["tool", "files", "one of them", "reason"], lines, "")


def _cell(row: Row) -> str:
    if row.equal < 0:
        return "✗" if row.converted else "–"
    if row.equal == STEPS:
        return "="
    return f"{row.largest:.1g}" if row.real else f"{row.largest:.3g} LSB"


def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["--role"]:
        serve(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tools", default=",".join(TOOLS), help="(default: %(default)s)")
    parser.add_argument("--match", default="", help="only models whose path holds this text")
    parser.add_argument("--envs", type=Path, default=Path.home() / ".cache" / "qconvert-bench", help="where the environments are kept")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables into a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.add_argument("--known", type=Path, metavar="FILE", help="such a file of an earlier run, for the tools that are not run now")
    options = parser.parse_args()
    tools = options.tools.split(",")
    converters.build_environments(options.envs, {*tools} - {"qconvert", "qconvert-keep"})
    pythons = {tool: options.envs / tool / "bin" / "python" for tool in tools if not tool.startswith("qconvert")}
    helpers = {role: Helper(pythons.get(role, Path(sys.executable)), role) for role in ("compare", *tools)}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in sorted((options.folder / "recurrent").glob("*/*.tflite")):
            label = str(model.relative_to(options.folder))
            if options.match in label:
                rows += measure(model, label, helpers, tools, Path(name))
    for helper in helpers.values():
        helper.end()
    if options.known:
        models = {row.model for row in rows}
        rows += [Row(**item) for item in json.loads(options.known.read_text()) if item["tool"] not in tools and item["model"] in models]
        tools = [tool for tool in TOOLS if tool in {row.tool for row in rows}]
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    command = f"python benchmarks/recurrent_zoo.py ZOO --tools {','.join(tools)}"
    for section in (summary(rows, tools), table(rows, tools), failures(rows)):
        publish(section, options.markdown, command, 250)


if __name__ == "__main__":
    main()
