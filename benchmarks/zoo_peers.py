"""A share of the zoo converted by qconvert and by its peers: what is converted, accepted by the other runtime, equal, and at what cost.

    python benchmarks/zoo_peers.py FOLDER [--every 10] [--family tensorflow] [--jobs 2] [--markdown docs/measured/zoo.md] [--json FILE]

FOLDER is the zoo of fixtures/zoo (fixtures/README.md). Every n-th model by path is converted by each tool as a whole process: TFLite files
by qconvert and tf2onnx, ONNX files by qconvert and onnx2tf. The result is run next to its source on the same seeded inputs by
fixtures/zoo/independent.py, which uses nothing of qconvert's check, in a process of its own, since a runtime may abort. Models that their
own runtime does not run are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import converters
from page import Section, publish

ZOO = converters.ROOT / "fixtures" / "zoo"
TOOLS = {
    ".tflite": {name: converters.CONVERTERS[name] for name in ("qconvert", "tf2onnx")},
    ".onnx": {name: converters.TO_TFLITE[name] for name in ("qconvert", "onnx2tf")},
}
_TITLES = {".tflite": "The zoo next to tf2onnx", ".onnx": "The zoo next to onnx2tf"}
_SECONDS = 300
_HEADER = ["mode", "tool", "models", "converted", "accepted", "equal", "within a step", "processor time", "peak memory"]
_NOTE = (
    "Accepted: the other runtime loads and runs the result. Equal: every output element of one seeded input; within a step: differs by at "
    "most one step of the output, or a 255th of its range. Processor time (seconds) and peak memory (MB) of the whole process: "
    "median over all models given to the tool. "
)


@dataclass
class Row:
    """What a tool made of a model; `difference` in steps (see independent.largest_difference), None if the result did not run."""

    model: str
    tool: str
    converted: bool
    difference: float | None
    processor: float
    seconds: float
    megabytes: float
    message: str


def _child(words: list[str]) -> tuple[str, str]:
    """What this script prints as another process, and why it failed."""
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"not run within {_SECONDS} s"
    lines = done.stderr.strip().splitlines()
    return (done.stdout.strip(), "") if done.returncode == 0 else ("", lines[-1] if lines else f"ended with code {done.returncode}")


def _compare(words: list[str]) -> None:
    """Prints the difference of a source and a result, or nothing for a source alone that runs."""
    import numpy as np

    sys.path.insert(0, str(ZOO))
    import independent

    source = Path(words[0])
    inputs = source.with_suffix(".npz")
    given = dict(np.load(inputs)) if inputs.exists() else None
    if len(words) > 1:
        print(independent.largest_difference(source, Path(words[1]), given))
    elif why := independent.runs(source, given):
        sys.exit(why)


def measure(model: Path, folder: Path, options: argparse.Namespace) -> list[Row]:
    """A row for each tool; none if the model's own runtime does not run it."""
    if _child(["--compare", str(model)])[1]:
        return []
    rows = []
    label = str(model.relative_to(folder))
    for tool, converter in TOOLS[model.suffix].items():
        suffix = ".onnx" if model.suffix == ".tflite" else ".tflite"
        result = Path(options.keep) / tool / (label.replace("/", "_") + suffix)
        result.parent.mkdir(parents=True, exist_ok=True)
        cost = converters.convert(converter, options.envs, model, result)
        converted = cost.code == 0 and result.exists()
        said, why = _child(["--compare", str(model), str(result)]) if converted else ("", cost.message)
        found = float(said) if said else None
        rows.append(Row(label, tool, converted, found, cost.processor, cost.seconds, cost.megabytes, converters.one_line(why)))
        result.unlink(missing_ok=True)
    return rows


def table(rows: list[Row], suffix: str) -> Section:
    """Mode × tool, and all modes together."""
    chosen = [row for row in rows if Path(row.model).suffix == suffix]
    lines = []
    modes = sorted({Path(row.model).stem for row in chosen})
    for mode in [*modes, "all"]:
        for tool in TOOLS[suffix]:
            part = [row for row in chosen if row.tool == tool and mode in (Path(row.model).stem, "all")]
            lines.append([mode, tool, *_cells(part)])
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return Section(_TITLES[suffix], _HEADER, lines, _NOTE + f"Load average at the end: {load}.")


def _cells(rows: list[Row]) -> Iterable[str]:
    ran = [row.difference for row in rows if row.difference is not None]
    counts = [len(rows), sum(row.converted for row in rows), len(ran), sum(x == 0 for x in ran), sum(x <= 1.0001 for x in ran)]
    yield from map(str, counts)
    if rows:
        yield f"{statistics.median(row.processor for row in rows):.2f} s"
        yield f"{statistics.median(row.megabytes for row in rows):.0f} MB"


def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["--compare"]:
        _compare(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=10, help="take every n-th model (default: %(default)s)")
    parser.add_argument("--family", default="", help="only this folder of the zoo")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: %(default)s)")
    parser.add_argument("--envs", type=Path, default=Path.home() / ".cache" / "qconvert-bench", help="where the environments are kept")
    parser.add_argument("--keep", type=Path, help="where logs are kept (default: zoo/ in --envs)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables into a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    options = parser.parse_args()
    options.keep = options.keep or options.envs / "zoo"
    found = sorted(path for suffix in TOOLS for path in (options.folder / options.family).glob(f"**/*{suffix}"))
    models = found[:: options.every]
    suffixes = [suffix for suffix in TOOLS if any(path.suffix == suffix for path in models)]
    converters.build_environments(options.envs, {TOOLS[suffix][tool].environment for suffix in suffixes for tool in TOOLS[suffix]})
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for part in pool.map(lambda model: measure(model, options.folder, options), models) for row in part]
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    family = f" --family {options.family}" if options.family else ""
    command = f"python benchmarks/zoo_peers.py ZOO --every {options.every}{family} --jobs {options.jobs}"
    for suffix in suffixes:
        publish(table(rows, suffix), options.markdown, command)


if __name__ == "__main__":
    main()
