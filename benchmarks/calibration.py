"""Calibration next to onnxruntime's quantize_static: accuracy, time and memory. Writes a part of docs/measured/calibration.md.

    python benchmarks/calibration.py [--inputs N] [--skip-mobilenet] [--markdown docs/measured/calibration.md]

Accuracy: the two float networks of fixtures/digits, calibrated with the first 100 of the held-out images, judged by the other 500, both as
QDQ in onnxruntime with int8 weights per channel. Time and memory: MobileNet v2 at 224 x 224, made of the float form of
fixtures/coral_tf2_mobilenet_v2_224_int8.tflite, on random inputs, each tool in a process of its own; peak memory is that of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from page import Section, publish

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "fixtures" / "digits"
SIZE = (1, 3, 224, 224)
CALIBRATED = 100
#: Methods of onnxruntime -> ours that do the same.
PEERS = {"MinMax": "min-max", "Entropy": "entropy", "Percentile": "percentile"}


def images() -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """The held-out images as each network takes them, and their labels."""
    sys.path.insert(0, str(ROOT / "fixtures"))
    from make_float import draw

    found = np.load(DIGITS / "test.npz")
    return {"float": (found["images"], found["labels"]), "drawn": (draw(found["images"], 0), found["labels"])}


def accuracy(path: Path, data: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    from qconvert.runtimes.onnxruntime import OnnxRuntime

    session = OnnxRuntime(path)
    (logits,) = session.run({"x": data}).values()
    return float((logits.argmax(1) == labels).mean())


def theirs(model: Path, result: Path, feeds: Any, method: str) -> None:
    """onnxruntime's quantize_static: QDQ, int8 weights per channel, otherwise as it is."""
    import logging

    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._waiting = iter(feeds)

        def get_next(self) -> Any:
            return next(self._waiting, None)

    logging.disable(logging.WARNING)
    chosen = getattr(CalibrationMethod, method)
    quantize_static(model, result, Reader(), per_channel=True, weight_type=QuantType.QInt8, calibrate_method=chosen)


def accuracies() -> Section:
    from qconvert.calibration import METHODS
    from qconvert.calibration.files import calibrate_file

    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = images()
        judged = {network: (x[CALIBRATED:], y[CALIBRATED:]) for network, (x, y) in data.items()}
        row = ["float", "", *(f"{100 * accuracy(DIGITS / f'{network}.onnx', *judged[network]):.1f}%" for network in data)]
        lines.append(row)
        for method in PEERS:
            row = ["onnxruntime", method]
            for network, (x, _) in data.items():
                theirs(DIGITS / f"{network}.onnx", folder / "theirs.onnx", [{"x": one[None]} for one in x[:CALIBRATED]], method)
                row.append(f"{100 * accuracy(folder / 'theirs.onnx', *judged[network]):.1f}%")
            lines.append(row)
        for method in METHODS:
            row = ["qconvert", method]
            for network, (x, _) in data.items():
                calibrate_file(DIGITS / f"{network}.onnx", x[:CALIBRATED], folder / "ours.onnx", method=method, force=True)
                row.append(f"{100 * accuracy(folder / 'ours.onnx', *judged[network]):.1f}%")
            lines.append(row)
    note = "500 images; one is 0.2%. Both tools get the same 100 images to calibrate with."
    return Section("Accuracy after calibration", ["tool", "method", "digits, 8 x 8", "digits drawn at 32 x 32 x 3"], lines, note)


def mobilenet(path: Path) -> None:
    """The float form of MobileNet v2, channels first."""
    from qconvert import convert, extract_scales, save

    real, _ = extract_scales(ROOT / "fixtures" / "coral_tf2_mobilenet_v2_224_int8.tflite")
    plain = path.with_suffix(".qgraph")
    save(real, plain)
    convert(plain, path, target="generic", io_layout="nchw")


def feeds(count: int, name: str) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    return ({name: np.random.default_rng(seed).random(SIZE, np.float32)} for seed in range(count))


def one(tool: str, method: str, model: Path, result: Path, count: int) -> dict[str, float]:
    """Runs one tool here; seconds and megabytes."""
    import onnx

    name = onnx.load(model, load_external_data=False).graph.input[0].name
    started, used = time.perf_counter(), time.process_time()
    if tool == "onnxruntime":
        theirs(model, result, feeds(count, name), method)
    else:
        from qconvert.calibration.files import calibrate_file

        calibrate_file(model, lambda: feeds(count, name), result, method=method, force=True)
    spent = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - used}
    return {**spent, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def costs(count: int) -> Section:
    lines = []
    with tempfile.TemporaryDirectory() as name:
        model = Path(name, "mobilenet.onnx")
        mobilenet(model)
        found: dict[tuple[str, str], dict[str, float] | str] = {}
        for method, own in PEERS.items():
            for tool, chosen in (("onnxruntime", method), ("qconvert", own)):
                found[tool, method] = _measured(tool, chosen, model, Path(name, "q.onnx"), count)
        for method, own in PEERS.items():
            a, b = found["onnxruntime", method], found["qconvert", method]
            cells = [
                f"{item['seconds']:.1f} s ({item['cpu']:.1f} s of CPU), {item['megabytes']:.0f} MB" if isinstance(item, dict) else item
                for item in (a, b)
            ]
            ratios = [
                f"{a[key] / b[key]:.1f}" if isinstance(a, dict) and isinstance(b, dict) else "" for key in ("seconds", "cpu", "megabytes")
            ]
            lines.append([f"{method}, {own}", *cells, *ratios])
    note = f"{count} inputs; from the float file to the quantized one; the last columns are onnxruntime's figure / qconvert's. "
    note += f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f}."
    header = ["method", "onnxruntime", "qconvert", "times as fast", "CPU time", "memory"]
    return Section("Calibrating MobileNet v2", header, lines, note)


def _measured(tool: str, method: str, model: Path, result: Path, count: int) -> dict[str, float] | str:
    command = [sys.executable, __file__, "--one", tool, method, str(model), str(result), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return "killed: out of memory" if done.returncode == -9 else done.stderr.strip().rpartition("\n")[2]
    return dict(json.loads(done.stdout.strip().rpartition("\n")[2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--skip-mobilenet", action="store_true")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    if options.one:
        tool, method, model, result, count = options.one
        print(json.dumps(one(tool, method, Path(model), Path(result), int(count))))
        return
    parts = [accuracies(), *([] if options.skip_mobilenet else [costs(options.inputs)])]
    for part in parts:
        publish(part, options.markdown, "python benchmarks/calibration.py", 160)


if __name__ == "__main__":
    main()
