"""TFLite to ONNX next to tf2onnx and tflite2onnx: fidelity, Transposes, speed and memory of conversion, latency.

    python benchmarks/tflite2onnx.py [MODELS_OR_FOLDERS ...] [--markdown docs/measured/tflite2onnx.md] [--json FILE]

Run it from an environment that has qconvert installed. It builds a virtual environment for each converter under --envs, converts each
model with each of them as a whole process, runs the results in onnxruntime and the source in LiteRT, and measures everything side by
side in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import converters
from measures import Array, OnnxModel, SourceModel, compare, count_transposes, interleaved_latency, random_inputs
from page import LITERT, Row, sections, show, write

from qconvert.formats.tflite.probe import accepted_copy


def find_models(paths: list[Path]) -> dict[str, Path]:
    """Label -> file. A file that is there twice, by content, counts once."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("*.tflite")) if path.is_dir() else [path]
    contents: set[bytes] = set()
    found: dict[str, Path] = {}
    for file in files:
        data = file.read_bytes()
        if data not in contents:
            contents.add(data)
            found[file.stem if file.stem not in found else f"{file.resolve().parent.name}/{file.stem}"] = file
    return found


def convert_all(label: str, model: Path, options: argparse.Namespace) -> dict[str, Row]:
    """Tool -> row, after --repeat conversions by each; the tools take turns."""
    rows = {tool: Row(label, tool) for tool in options.tools}
    for _ in range(options.repeat):
        for tool, row in rows.items():
            result = result_path(options.keep, tool, label)
            cost = converters.convert(converters.CONVERTERS[tool], options.envs, model, result)
            row.seconds.append(cost.seconds)
            row.megabytes.append(cost.megabytes)
            row.converted = cost.code == 0 and result.exists()
            row.error = "" if row.converted else cost.message or f"exit code {cost.code}"
    return rows


def result_path(keep: Path, tool: str, label: str) -> Path:
    path = keep / tool / f"{label.replace('/', '_')}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def check_result(row: Row, source: SourceModel, inputs: list[list[Array]], options: argparse.Namespace) -> None:
    """Loads the result, compares its outputs and counts its Transposes; a result may fail in any way, and the row says how."""
    path = result_path(options.keep, row.tool, row.model)
    optimized = options.keep / "optimized.onnx"
    try:
        runtime = OnnxModel(path, source, optimized=optimized, exact=True)
        runtime.run_fed(runtime.feeds(inputs[0]))
        row.accepted = True
        row.transposes = (count_transposes(path), count_transposes(optimized))
        row.fidelity = compare(source, runtime, inputs)
    except Exception as error:
        row.error = converters.one_line(f"{type(error).__name__}: {error}")
    finally:
        optimized.unlink(missing_ok=True)


def measure(label: str, model: Path, options: argparse.Namespace) -> list[Row]:
    """A row for each tool, and one for LiteRT itself."""
    rows = convert_all(label, model, options)
    litert = Row(label, LITERT)
    everything = [*rows.values(), litert]
    try:
        data = accepted_copy(model.read_bytes())
        source = SourceModel(data)
    except Exception as error:  # an operator that LiteRT lacks: conversion is still measured
        litert.error = converters.one_line(f"{type(error).__name__}: {error}")
        return everything
    inputs = random_inputs(source, options.samples)
    for row in rows.values():
        if row.converted:
            check_result(row, source, inputs, options)
    for threads in (1, 0):
        litert_threads = threads or os.cpu_count() or 1
        runners: dict[str, Callable[[], object]] = {LITERT: partial(SourceModel(data, litert_threads).run, inputs[0])}
        for tool, row in rows.items():
            if row.accepted:
                session = OnnxModel(result_path(options.keep, tool, label), source, threads)
                runners[tool] = partial(session.run_fed, session.feeds(inputs[0]))
        key = "1 thread" if threads == 1 else f"default threads ({litert_threads})"
        for tool, (median, best) in interleaved_latency(runners, options.runs).items():
            row = litert if tool == LITERT else rows[tool]
            row.latency[key], row.best_latency[key] = median, best
    return everything


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="models and folders besides fixtures/")
    parser.add_argument("--no-fixtures", action="store_true", help="only the models and folders given")
    return converters.parse(parser, converters.CONVERTERS, tools=",".join(converters.CONVERTERS), repeat=3, samples=5)


def facts(machine: dict[str, str | float], versions: dict[str, dict[str, str]], start_up: dict[str, float]) -> list[str]:
    vnni = " and ".join(name for name in ("avx512_vnni", "avx_vnni") if machine[name])
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {'with ' + vnni if vnni else 'without VNNI'}; Python {machine['python']}",
        f"load average before the run {machine['load_before']:.2f}, after it {machine['load_after']:.2f}",
        *(f"environment {name}: {', '.join(f'{p} {v}' for p, v in found.items())}" for name, found in versions.items()),
    ]
    lines += [f"`qconvert {option}`, whole process, best of 10: {seconds:.3f} s" for option, seconds in start_up.items()]
    return lines


def main() -> None:
    from rich.console import Console

    options = parse()
    console, progress = Console(width=None if sys.stdout.isatty() else 200), Console(stderr=True)
    environments = {converters.CONVERTERS[tool].environment for tool in options.tools}
    options.envs.mkdir(parents=True, exist_ok=True)
    progress.print(f"environments in {options.envs}")
    converters.build_environments(options.envs, environments)
    models = find_models([*([] if options.no_fixtures else [converters.ROOT / "fixtures"]), *options.models])
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for number, (label, model) in enumerate(models.items(), 1):
        progress.print(f"[{number}/{len(models)}] {label}", markup=False)
        rows += measure(label, model, options)
    machine = converters.machine() | {"load_before": load, "load_after": os.getloadavg()[0]}
    versions = converters.versions(options.envs, environments)
    start_up = {word: converters.start_up_seconds(options.envs, word) for word in ("--help", "--version") if "qconvert" in environments}
    counts = f"{options.repeat} conversions of each model by each tool, {options.samples} random samples, {options.runs} timed runs"
    parts, lines = sections(rows), [counts, *facts(machine, versions, start_up)]
    show(console, parts, lines)
    if options.markdown:
        command = converters.one_line(" ".join(["python benchmarks/tflite2onnx.py", *sys.argv[1:]]))
        write(options.markdown, parts, command, lines)
    if options.json:
        record = {"machine": machine, "versions": versions, "start_up_seconds": start_up, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
