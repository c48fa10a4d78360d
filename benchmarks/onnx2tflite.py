"""ONNX to TFLite next to onnx2tf: integer operators, fidelity, size, latency, speed and memory of conversion.

    python benchmarks/onnx2tflite.py [MODELS.onnx ...] [--markdown docs/measured/onnx2tflite.md] [--json FILE]

Run it from an environment that has qconvert installed. It builds a virtual environment for each converter under --envs and converts
quantized ONNX models with each of them as a whole process: fixtures/onnx, fixtures/digits, and the QDQ models that qconvert makes of
fixtures/*.tflite. The results run in LiteRT and the models in onnxruntime, everything side by side in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import converters
import numpy as np
from measures import Array, SourceModel, interleaved_latency
from page import Section, show, update
from tflite_measures import OnnxReference, TfliteResult, census, compare
from tflite_page import ORIGINAL, RUNTIME, TORCH, TfliteRow, sections

from qconvert import QConvertError, convert
from qconvert.formats.tflite.probe import accepted_copy

FIXTURES = converters.ROOT / "fixtures"
DIGITS = FIXTURES / "digits"
#: Three MobileNets v2, of three converters: the time of onnx2tflite next to that of tflite2onnx.
MOBILENETS = ("coral_mobilenet_v2_224_uint8", "coral_tf2_mobilenet_v2_224_int8", "tflm_mobilenet_v2_from_torch_int8")


@dataclass(frozen=True)
class Model:
    """A quantized ONNX model, and the .tflite file that it was made from, if it was."""

    label: str
    path: Path
    original: Path | None = None


def find_models(options: argparse.Namespace) -> list[Model]:
    """The models given, or those of the fixtures; .tflite files that qconvert does not read are left out.

    numerics="fast" gives plain QDQ models, without the forms that imitate the rounding of LiteRT's kernels.
    """
    if options.models:
        return [Model(path.stem, path) for path in options.models]
    found = [Model(path.stem, path) for path in sorted((FIXTURES / "onnx").glob("*.onnx"))]
    # the quantized ones; drawn.onnx and float.onnx are float networks
    found += [Model(f"digits_{name}", DIGITS / f"{name}.onnx") for name in ("brevitas", "fx", "pt2e")]
    folder = options.keep / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    for original in sorted(FIXTURES.glob("*.tflite")):
        path = folder / f"{original.stem}.onnx"
        try:
            convert(original, path, target="generic", numerics="fast", force=True)
        except QConvertError:
            continue
        found.append(Model(original.stem, path, original))
    return found


def result_path(options: argparse.Namespace, tool: str, label: str) -> Path:
    path: Path = options.keep / f"{tool}-tflite" / f"{label}.tflite"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def convert_all(model: Model, options: argparse.Namespace) -> dict[str, TfliteRow]:
    """Tool -> row, after --repeat conversions by each; the tools take turns."""
    rows = {tool: TfliteRow(model.label, tool) for tool in options.tools}
    for _ in range(options.repeat):
        for tool, row in rows.items():
            result = result_path(options, tool, model.label)
            cost = converters.convert(converters.TO_TFLITE[tool], options.envs, model.path, result)
            row.seconds.append(cost.seconds)
            row.megabytes.append(cost.megabytes)
            row.converted = cost.code == 0 and result.exists()
            row.error = "" if row.converted else cost.message or f"exit code {cost.code}"
    return rows


def check_result(row: TfliteRow, reference: OnnxReference, inputs: list[list[Array]], options: argparse.Namespace) -> TfliteResult | None:
    """Counts the result's operators, loads it and compares its outputs; it may fail in any way, and the row says how."""
    path = result_path(options, row.tool, row.model)
    row.size = path.stat().st_size
    try:
        row.census = census(path)
        result = TfliteResult(path.read_bytes(), reference)
        result.run_like(inputs[0])
        row.accepted = True
        row.fidelity = compare(reference, result, inputs)
        row.plain_fidelity = compare(reference, result, inputs, optimize=False)
    except Exception as error:
        row.error = converters.one_line(f"{type(error).__name__}: {error}")
        return None
    return result


def measure(model: Model, options: argparse.Namespace) -> list[TfliteRow]:
    """A row for each tool, one for onnxruntime, and one for the original."""
    rows = convert_all(model, options)
    runtime, original = TfliteRow(model.label, RUNTIME), TfliteRow(model.label, ORIGINAL)
    everything = [*rows.values(), runtime, original]
    try:
        reference = OnnxReference(model.path)
    except QConvertError as error:
        runtime.error = converters.one_line(str(error))
        return everything
    inputs = reference.random_inputs(options.samples)
    results = {tool: check_result(row, reference, inputs, options) for tool, row in rows.items() if row.converted}
    runners: dict[str, Callable[[], object]] = {RUNTIME: partial(reference.run, inputs[0])}
    runners |= {tool: partial(result.run, result.feeds(inputs[0])) for tool, result in results.items() if result is not None}
    if model.original is not None:
        source = SourceModel(accepted_copy(model.original.read_bytes()))
        original.census, original.size = census(model.original), model.original.stat().st_size
        runners[ORIGINAL] = partial(source.run, [np.ones([size or 1 for size in port.shape], port.dtype) for port in source.inputs])
    for name, found in interleaved_latency(runners, options.runs).items():
        row = next(row for row in everything if row.tool == name)
        row.latency, row.best_latency = found
    if model.path.parent == DIGITS:
        everything += accuracy(model, reference, results, rows, runtime)
    return everything


def accuracy(
    model: Model, reference: OnnxReference, results: dict[str, TfliteResult | None], rows: dict[str, TfliteRow], runtime: TfliteRow
) -> list[TfliteRow]:
    """Writes the accuracy on the held-out digits into the rows; returns rows for PyTorch, whose answers are kept next to the model."""
    with np.load(DIGITS / "test.npz") as test, np.load(DIGITS / "predictions.npz") as predictions:
        images, labels = test["images"][:, None], test["labels"]
        keys = {name: key.format(model.path.stem) for name, key in TORCH.items()}
        answers = {name: predictions[key] for name, key in keys.items() if key in predictions}
    runtime.accuracy = float(np.mean([reference.run([x])[0].argmax() for x in images] == labels))
    for tool, result in results.items():
        if result is not None:
            rows[tool].accuracy = float(np.mean([result.run_like([x])[0][0].argmax() for x in images] == labels))
    return [TfliteRow(model.label, name, accuracy=float((logits.argmax(1) == labels).mean())) for name, logits in answers.items()]


def beside_tflite2onnx(options: argparse.Namespace) -> Section:
    """The time of onnx2tflite next to that of the way back, in this process and as a whole one; the two take turns."""
    lines = []
    program = str(options.envs / "qconvert" / "bin" / "qconvert")
    log = options.keep / "speed.log"
    for name in MOBILENETS:
        source, onnx, tflite = FIXTURES / f"{name}.tflite", options.keep / f"{name}.speed.onnx", options.keep / f"{name}.speed.tflite"
        seconds: dict[str, list[float]] = {"there": [], "back": [], "process there": [], "process back": []}
        try:
            for _ in range(max(5, options.repeat)):
                for way, a, b in (("there", source, onnx), ("back", onnx, tflite)):
                    started = time.perf_counter()
                    convert(a, b, force=True, numerics="fast")
                    seconds[way].append(time.perf_counter() - started)
                    cost = converters.run_process([program, "convert", str(a), str(b), "--force", "--quiet", "--numerics", "fast"], log)
                    if cost.code:
                        raise RuntimeError(cost.message)
                    seconds[f"process {way}"].append(cost.seconds)
        except (QConvertError, RuntimeError) as error:
            lines.append([name, *[""] * 5, converters.one_line(str(error))])
            continue
        best = {way: min(values) for way, values in seconds.items()}
        ratios = [best["back"] / best["there"], best["process back"] / best["process there"]]
        times = [*(f"{best[way] * 1000:.0f} ms" for way in seconds), *(f"{ratio:.2f}" for ratio in ratios)]
        lines.append([name, *times])
    header = [
        "model",
        "tflite2onnx",
        "onnx2tflite",
        "tflite2onnx, whole process",
        "onnx2tflite, whole process",
        "ratio",
        "ratio, whole process",
    ]
    return Section(
        "ONNX to TFLite: time next to tflite2onnx", header, lines, "Best of 5 or more conversions that take turns, --numerics fast."
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="ONNX models in place of those of fixtures/")
    return converters.parse(parser, converters.TO_TFLITE, tools="qconvert,onnx2tf", repeat=1, samples=10)


def main() -> None:
    from rich.console import Console

    options = parse()
    console, progress = Console(width=None if sys.stdout.isatty() else 200), Console(stderr=True)
    environments = {converters.TO_TFLITE[tool].environment for tool in options.tools} | {"qconvert"}
    options.envs.mkdir(parents=True, exist_ok=True)
    progress.print(f"environments in {options.envs}")
    converters.build_environments(options.envs, environments)
    models, rows, load = find_models(options), [], os.getloadavg()[0]
    for number, model in enumerate(models, 1):
        progress.print(f"[{number}/{len(models)}] {model.label}", markup=False)
        rows += measure(model, options)
    parts = sections(rows, options.tools)
    if not options.models and "qconvert" in options.tools:
        parts.append(beside_tflite2onnx(options))
    machine, versions = converters.machine(), converters.versions(options.envs, environments)
    facts = [
        f"{options.repeat} conversions of each model by each tool, {options.samples} random samples, {options.runs} timed runs",
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}",
        f"load average before {load:.2f}, after {os.getloadavg()[0]:.2f}",
        *(f"environment {name}: {', '.join(f'{p} {v}' for p, v in found.items())}" for name, found in versions.items()),
    ]
    show(console, parts, facts)
    if options.markdown:
        parts[0] = Section(parts[0].title, parts[0].header, parts[0].lines, f"{parts[0].note} {'; '.join(facts)}.")
        for part in parts:
            update(options.markdown, part, converters.one_line(" ".join(["python benchmarks/onnx2tflite.py", *sys.argv[1:]])))
    if options.json:
        record = {"machine": machine, "versions": versions, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
