"""Conversions of a large model: seconds, processor time and memory, next to copying the file.

    python benchmarks/large_models.py [--size-gb 4] [--ways onnx2onnx,onnx2tflite,tflite2onnx] [--folder DIR] [--repeat 3]
        [--markdown docs/measured/scale.md]

Makes the feed-forward blocks of a transformer, int8 weights with a scale for each column, as a QDQ model whose weights lie in a file
next to it, and a .tflite file of that; converts each in a process of its own; and copies the source with shutil.copyfile. What was made is
written to the disk (fsync) within the time of both. Each is done with the source out of the page cache and in it. Needs twice the
size on disk, three times with tflite2onnx, and runs on Linux only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from page import Section, machine, publish

WIDTH, HIDDEN = 4096, 16384
TITLE = "Large models"
ALIGNMENT = 4096
REST = 5.0  # seconds for the disk before each run

#: What is measured: the command, with suffixes of the source and the result, and its options.
WAYS = {
    "onnx2onnx": (".onnx", ".onnx", ["--form", "qoperator", "--target", "generic"]),
    "onnx2tflite": (".onnx", ".tflite", []),
    "tflite2onnx": (".tflite", ".onnx", ["--target", "ort-x86-vnni"]),
}


@dataclass
class Run:
    """What one way of making the result cost: seconds for each repetition, and the largest memory of the process in bytes.

    Attributes:
        seconds: by the clock, until the result is on the disk.
        processor: of the process.
        peak: the largest resident memory (VmHWM): own memory and pages of mapped files.
        own: memory that is no page of a file (RssAnon), the largest of samples every 10 ms.
    """

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peak: int = 0
    own: int = 0


def make_model(path: Path, size: int) -> None:
    """Writes the QDQ model with about `size` bytes of weights: x + MatMul(Relu(MatMul(x, up)), down), quantized after each operator."""
    from onnx import TensorProto, helper, numpy_helper

    blocks = max(1, size // (2 * WIDTH * HIDDEN))
    nodes: list[Any] = []
    constants = [numpy_helper.from_array(np.array(2**-5, np.float32), "scale"), numpy_helper.from_array(np.array(0, np.int8), "zero")]
    generator = np.random.default_rng(0)

    def requantize(value: str, name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [value, "scale", "zero"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [name]))
        return name

    def matmul(value: str, name: str, rows: int, columns: int, stream: Any) -> str:
        weight = TensorProto(name=f"{name}_weight", data_type=TensorProto.INT8, dims=[rows, columns])
        offset = stream.seek(-(-stream.tell() // ALIGNMENT) * ALIGNMENT)
        stream.write(generator.integers(-127, 128, (rows, columns), np.int8).data)
        weight.data_location = TensorProto.EXTERNAL
        for key, entry in (("location", Path(stream.name).name), ("offset", str(offset)), ("length", str(rows * columns))):
            weight.external_data.add(key=key, value=entry)
        scale = generator.uniform(2e-4, 4e-4, columns).astype(np.float32)
        constants.extend(
            [
                weight,
                numpy_helper.from_array(scale, f"{name}_scale"),
                numpy_helper.from_array(np.zeros(columns, np.int8), f"{name}_zero"),
            ]
        )
        inputs = [f"{name}_weight", f"{name}_scale", f"{name}_zero"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_real"], axis=1))
        nodes.append(helper.make_node("MatMul", [value, f"{name}_real"], [f"{name}_product"]))
        return f"{name}_product"

    value = requantize("x", "x_in")
    with path.with_name(path.name + ".data").open("wb") as stream:
        for block in range(blocks):
            up = requantize(matmul(value, f"up{block}", WIDTH, HIDDEN, stream), f"hidden{block}")
            nodes.append(helper.make_node("Relu", [up], [f"relu{block}"]))
            down = requantize(matmul(requantize(f"relu{block}", f"active{block}"), f"down{block}", HIDDEN, WIDTH, stream), f"out{block}")
            nodes.append(helper.make_node("Add", [value, down], [f"sum{block}"]))
            value = requantize(f"sum{block}", f"block{block}")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, WIDTH]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "feed_forward", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def out_of_cache(path: Path) -> None:
    """Writes the file to the disk and takes it out of the page cache."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def into_cache(path: Path) -> None:
    with path.open("rb") as stream:
        while stream.read(2**24):
            pass


def run_process(arguments: list[str], made: Path, run: Run) -> None:
    """Run Python with the arguments in a process of its own, write what it made to the disk, and add the cost to `run`.

    Args:
        arguments: of Python.
        made: the folder of the files that it makes.
        run: gets the cost.
    """
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, *arguments])
    found = [0, 0]
    watcher = threading.Thread(target=_watch, args=(child.pid, found))
    watcher.start()
    _, status, usage = os.wait4(child.pid, 0)
    for path in made.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    run.seconds.append(time.perf_counter() - started)
    run.processor.append(usage.ru_utime + usage.ru_stime)
    child.returncode = os.waitstatus_to_exitcode(status)
    watcher.join()
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with exit code {child.returncode}")
    run.peak, run.own = max(run.peak, found[0]), max(run.own, found[1])


def _watch(pid: int, found: list[int]) -> None:
    """Keep the largest of the process's resident memory (VmHWM) and own memory (RssAnon) in `found` until it has ended."""
    while True:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmHWM", "RssAnon"))}
        if not sizes:  # ended, and not yet waited for
            return
        found[:] = [max(known, sizes[key]) for known, key in zip(found, ("VmHWM", "RssAnon"), strict=True)]
        time.sleep(0.01)


def measure(folder: Path, size: int, ways: list[str], repeat: int) -> tuple[dict[tuple[str, str, str], Run], int]:
    """(way, what was done, state of the page cache) -> its cost, and the bytes of the model."""
    onnx, made = folder / "source.onnx", folder / "made"
    make_model(onnx, size)
    data = onnx.with_name(onnx.name + ".data")
    total = data.stat().st_size + onnx.stat().st_size
    made.mkdir()
    runs: dict[tuple[str, str, str], Run] = {}
    entry = ["-c", "from qconvert.cli.app import main; main()"]
    copy = ["-c", "import shutil, sys; shutil.copyfile(*sys.argv[1:])"]
    for way in ways:
        before, after, options = WAYS[way]
        source = onnx.with_suffix(before)
        if not source.exists():
            run_process([*entry, "onnx2tflite", str(onnx), str(source), "--quiet"], folder / "made", Run())
        large = data if before == ".onnx" else source
        commands = {
            "copyfile": [*copy, str(large), str(made / "copy.data")],
            "qconvert": [*entry, way, str(source), str(made / f"result{after}"), *options, "--quiet"],
        }
        for number in range(repeat):
            for state, prepare in (("cold", out_of_cache), ("warm", into_cache)):
                # The disk is slower for a while after much was written: each has its turn at being the first.
                for what in ("copyfile", "qconvert") if number % 2 == 0 else ("qconvert", "copyfile"):
                    prepare(large)
                    os.sync()
                    time.sleep(REST)
                    run_process(commands[what], made, runs.setdefault((way, what, state), Run()))
                    for path in made.iterdir():
                        path.unlink()
    return runs, total


def section(runs: dict[tuple[str, str, str], Run], size: int, facts: str) -> Section:
    """The table."""
    lines = []
    for (way, what, state), run in runs.items():
        seconds, processor = statistics.median(run.seconds), statistics.median(run.processor)
        copying = statistics.median(runs[way, "copyfile", state].seconds)
        name = " ".join([way, *WAYS[way][2]]) if what == "qconvert" else "`shutil.copyfile`"
        memory = [f"{value / 2**20:.0f} MiB" for value in (run.peak, run.own)]
        lines.append([name, state, f"{seconds:.2f} s", f"{seconds / copying:.2f}", f"{processor:.2f} s", *memory])
    note = (
        f"QDQ with external data, {size / 1e9:.2f} GB of int8 weights, with a scale for each column, or the TFLite file of it; "
        "each until the result is on the disk (fsync). Cold: the source is out of the page cache. Peak memory counts pages of the mapped "
        f"file too; own memory does not. Median of {max(len(run.seconds) for run in runs.values())} runs. {facts}"
    )
    header = ["what", "page cache", "time", "time / copying", "processor time", "peak memory", "own memory"]
    return Section(TITLE, header, lines, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size-gb", type=float, default=4.0, help="size of the weights in GB")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed afterwards; by default the system's")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    size, ways = int(options.size_gb * 1e9), options.ways.split(",")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        free, needed = shutil.disk_usage(name).free, (3.2 if "tflite2onnx" in ways else 2.2) * size
        if free < needed:
            raise SystemExit(f"{free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are needed")
        runs, total = measure(Path(name), size, ways, options.repeat)
    part = section(runs, total, machine())
    publish(part, options.markdown, "python benchmarks/large_models.py")


if __name__ == "__main__":
    main()
