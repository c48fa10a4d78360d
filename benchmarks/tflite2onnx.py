"""TFLite to ONNX beside tf2onnx and tflite2onnx: fidelity, Transposes, speed and memory of conversion, latency.

    python benchmarks/tflite2onnx.py [MODELS_OR_FOLDERS ...] [--markdown docs/benchmarks.md] [--json FILE]

Run it from an environment that has qconvert installed. It builds a virtual environment for each converter under --envs, converts each
model with each of them as a whole process, and measures everything side by side in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.formats.tflite.probe import accepted_copy
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime

ROOT = Path(__file__).parent.parent
#: Environment -> what pip installs into it.
ENVIRONMENTS = {
    "qconvert": [str(ROOT)],
    "tf2onnx": ["tf2onnx==1.17.0", "tensorflow-cpu<2.20", "numpy<2.2"],
    "tflite2onnx": ["tflite2onnx==0.4.1", "setuptools"],
}
#: Converter -> (environment, program, arguments before or around source and result).
CONVERTERS: dict[str, tuple[str, list[str]]] = {
    "qconvert": ("qconvert", ["bin/qconvert", "tflite2onnx", "{source}", "{result}", "--force", "--quiet"]),
    "qconvert vnni": ("qconvert", ["bin/qconvert", "tflite2onnx", "{source}", "{result}", "-f", "-q", "--target", "ort-x86-vnni"]),
    "tf2onnx": ("tf2onnx", ["bin/python", "-m", "tf2onnx.convert", "--tflite", "{source}", "--output", "{result}", "--opset", "17"]),
    "tflite2onnx": ("tflite2onnx", ["bin/tflite2onnx", "{source}", "{result}"]),
}
#: Runs the command in its arguments; prints exit code, seconds and peak memory in kB.
LAUNCHER = """
import os, sys, time
sink = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
started = time.perf_counter()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, file_actions=sink)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), time.perf_counter() - started, usage.ru_maxrss)
"""


def build_environments(folder: Path) -> None:
    """Makes the environments that are not there yet; qconvert's is always brought up to date."""
    for name, packages in ENVIRONMENTS.items():
        if not (folder / name).exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        elif name != "qconvert":
            continue
        upgrade = ["--upgrade", "--force-reinstall", "--no-deps"] if (folder / name / "bin/qconvert").exists() else []
        subprocess.run([str(folder / name / "bin/python"), "-m", "pip", "install", "--quiet", *upgrade, *packages], check=True)


def run_process(command: list[str]) -> tuple[bool, float, float]:
    """(success, seconds, peak MB) of a whole process, started by a small one: a child's peak counts the memory of who forks it."""
    done = subprocess.run([sys.executable, "-S", "-c", LAUNCHER, *command], capture_output=True, text=True, check=True)
    code, seconds, kilobytes = done.stdout.split()
    return code == "0", float(seconds), int(kilobytes) / 1024


def median_ms(function: Any, runs: int) -> float:
    for _ in range(5):
        function()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def matched_feeds(runtime: OnnxRuntime, values: list[Any]) -> dict[str, Any]:
    """Inputs by position; channels first where only that fits."""
    feeds = {}
    for (name, (_, shape)), value in zip(runtime.inputs.items(), values, strict=True):
        wanted = [size if isinstance(size, int) else None for size in shape]
        fits = all(w in (None, own) for w, own in zip(wanted, value.shape, strict=True))
        feeds[name] = value if fits or value.ndim != 4 else value.transpose(0, 3, 1, 2)
    return feeds


def difference(source: Any, result: Any) -> tuple[int, int, float]:
    """(equal elements, all elements, largest difference); steps for integers, share of the range for floats."""
    if result.shape != source.shape and result.ndim == 4 and result.transpose(0, 2, 3, 1).shape == source.shape:
        result = result.transpose(0, 2, 3, 1)
    a, b = source.astype(np.float64).reshape(-1), result.astype(np.float64).reshape(-1)
    if a.size != b.size:
        return 0, a.size, float("inf")
    scale = (float(np.ptp(a)) or 1.0) if source.dtype.kind == "f" else 1.0
    return int((a == b).sum()), a.size, float(np.abs(a - b).max(initial=0)) / scale


def transposes(path: Path) -> int:
    import onnx

    return sum(node.op_type == "Transpose" for node in onnx.load(path).graph.node)


def measure_fidelity(row: dict[str, Any], path: Path, source: LiteRT, inputs: list[list[Any]], folder: Path) -> None:
    """Loads the result, compares its outputs, counts Transposes."""
    optimized = folder / "optimized.onnx"
    try:
        runtime = OnnxRuntime(path.read_bytes(), save_optimized=optimized)
        equal = total = 0
        worst = 0.0
        for values in inputs:
            expected = source.run_in_order(values)
            actual = list(runtime.run(matched_feeds(runtime, values)).values())
            for a, b in zip(expected, actual, strict=True):
                same, count, largest = difference(a, b)
                equal, total, worst = equal + same, total + count, max(worst, largest)
        row.update(accepted=True, equal=equal / total, worst=worst, transposes=transposes(path), transposes_run=transposes(optimized))
    except Exception as error:  # a peer's result may fail in any way; the table says that it did
        row.update(accepted=False, error=f"{type(error).__name__}: {str(error)[:120]}")


def measure(model: Path, folder: Path, envs: Path, repeat: int, runs: int) -> list[dict[str, Any]]:
    """One row for each converter, and one for LiteRT."""
    data = accepted_copy(model.read_bytes())
    source = LiteRT(data)
    rng = np.random.default_rng(0)
    inputs = [[random_input(dtype, shape, rng) for dtype, shape in source.inputs.values()] for _ in range(5)]
    rows: dict[str, dict[str, Any]] = {name: {"model": model.stem, "tool": name, "seconds": [], "memory": []} for name in CONVERTERS}
    for _ in range(repeat):  # interleaved, so that noise hits all alike
        for name, (environment, words) in CONVERTERS.items():
            result = folder / f"{name.replace(' ', '_')}.onnx"
            command = [word.format(source=model, result=result) for word in words]
            command[0] = str(envs / environment / command[0])
            done, seconds, memory = run_process(command)
            rows[name].update(converted=done and result.exists())
            rows[name]["seconds"].append(seconds)
            rows[name]["memory"].append(memory)
    for name, row in rows.items():
        row.update(seconds=statistics.median(row["seconds"]), memory=max(row["memory"]))
        if row["converted"]:
            measure_fidelity(row, folder / f"{name.replace(' ', '_')}.onnx", source, inputs, folder)
    litert = {"model": model.stem, "tool": "LiteRT"}
    for threads in (1, os.cpu_count() or 1):
        runtime = LiteRT(data, threads=threads)
        litert[f"latency_{threads}"] = median_ms(lambda r=runtime: r.run_in_order(inputs[0]), runs)
        for name, row in rows.items():
            if row.get("accepted"):
                session = OnnxRuntime((folder / f"{name.replace(' ', '_')}.onnx").read_bytes(), threads=threads)
                feeds = matched_feeds(session, inputs[0])
                row[f"latency_{threads}"] = median_ms(lambda s=session, f=feeds: s.run(f), runs)
    return [*rows.values(), litert]


def random_input(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if dtype == "float32":
        return rng.uniform(-1, 1, shape).astype(np.float32)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def machine(envs: Path) -> list[str]:
    """The processor and the versions, as lines."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.split(":")[1].strip() for line in cpu.splitlines() if line.startswith("model name")), platform.processor())
    vnni = "with" if "avx512_vnni" in cpu or "avx_vnni" in cpu else "without"
    lines = [f"{name}, {os.cpu_count()} cores, {vnni} VNNI; Python {platform.python_version()}"]
    for environment in ENVIRONMENTS:
        done = subprocess.run([str(envs / environment / "bin/pip"), "list", "--format=freeze"], capture_output=True, text=True, check=False)
        wanted = ("onnx", "onnxruntime", "numpy", "tf2onnx", "tflite2onnx", "tensorflow_cpu", "ai-edge-litert", "qconvert")
        found = [line for line in done.stdout.splitlines() if line.split("==")[0] in wanted]
        lines.append(f"environment {environment}: {', '.join(found)}")
    starts = [run_process([str(envs / "qconvert/bin/qconvert"), "--help"])[1] for _ in range(10)]
    return [*lines, f"`qconvert --help`: {min(starts):.3f} s"]


def page(rows: list[dict[str, Any]], facts: list[str]) -> str:
    """The Markdown page."""
    tools, threads = [*CONVERTERS], (1, os.cpu_count() or 1)
    models = list(dict.fromkeys(row["model"] for row in rows))
    at = {(row["model"], row["tool"]): row for row in rows}

    def table(title: str, columns: list[str], cell: Any) -> list[str]:
        lines = [f"## {title}", "", "| model | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
        return [*lines, *(f"| {m} | " + " | ".join(cell(at[m, c]) for c in columns) + " |" for m in models), ""]

    def fidelity(row: dict[str, Any]) -> str:
        if not row.get("converted"):
            return "not converted"
        if not row.get("accepted"):
            return "not accepted"
        share = "all" if row["equal"] == 1 else f"{min(100 * row['equal'], 99.99):.2f}%"
        return share if row["worst"] == 0 else f"{share}, worst {row['worst']:.3g}"

    def moved(row: dict[str, Any]) -> str:
        return f"{row['transposes']} / {row['transposes_run']}" if row.get("accepted") else ""

    def latency(row: dict[str, Any]) -> str:
        return " / ".join(f"{row[f'latency_{n}']:.2f}" for n in threads) if f"latency_{threads[0]}" in row else ""

    def cost(row: dict[str, Any]) -> str:
        return f"{row['seconds']:.2f} s, {row['memory']:.0f} MB" if row.get("converted") else ""

    lines = [
        "# Benchmarks",
        "",
        "Made by `python benchmarks/tflite2onnx.py --markdown docs/benchmarks.md`, everything side by side in one run.",
    ]
    lines += [
        "The column qconvert is the default target ort-x86, qconvert vnni the target ort-x86-vnni.",
        "",
        *(f"- {fact}" for fact in facts),
        "",
    ]
    lines += table("Outputs equal to LiteRT's default kernels", tools, fidelity)
    lines += ["Random inputs; the worst difference is in steps of the output's scale, or of the range for float outputs.", ""]
    lines += table("Transposes in the file / in the graph that onnxruntime runs", tools, moved)
    lines += table("Conversion: time and peak memory of the whole process", tools, cost)
    lines += table(f"Latency in milliseconds, {threads[0]} thread / {threads[1]} threads", [*tools, "LiteRT"], latency)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="models and folders besides fixtures/")
    parser.add_argument("--envs", type=Path, default=Path.home() / ".cache" / "qconvert-bench")
    parser.add_argument("--repeat", type=int, default=3, help="conversions of each model")
    parser.add_argument("--runs", type=int, default=60, help="timed runs of each model")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    build_environments(arguments.envs)
    found: list[Path] = []
    for path in [ROOT / "fixtures", *arguments.models]:
        found += sorted(path.glob("*.tflite")) if path.is_dir() else [path]
    folder = arguments.envs / "results"
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for model in found:
        for old in folder.glob("*.onnx"):
            old.unlink()
        try:
            rows += measure(model, folder, arguments.envs, arguments.repeat, arguments.runs)
        except Exception as error:  # LiteRT itself lacks an operator or refuses the model
            print(f"{model.name}: {error}", file=sys.stderr)
            continue
        for row in rows[-len(CONVERTERS) - 1 :]:
            print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    text = page(rows, machine(arguments.envs))
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
