"""A large model with external data: memory and time of QDQ to QOperator next to copying the file.

    python benchmarks/large_models.py [--size-gb 4] [--folder DIR] [--repeat 3] [--markdown docs/measured/scale.md]

Makes the feed-forward blocks of a transformer, int8 weights with a scale for each column, as a QDQ model whose weights lie in a file
next to it; converts it in a process of its own; and copies the same file with shutil.copyfile. Each is done with the source out of
the page cache and in it. Needs three times the size on disk and runs on Linux only.
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
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from page import Section, publish

WIDTH, HIDDEN = 4096, 16384
TITLE = "Large models"
ALIGNMENT = 4096
REST = 5.0  # seconds for the disk before each run


@dataclass
class Run:
    """What one way of making the result cost: seconds for each repetition, and the largest memory of the process in bytes.

    Attributes:
        peak: resident memory, which the kernel's maximum says (ru_maxrss): own memory and pages of mapped files.
        own: memory that is no page of a file (RssAnon), the largest of samples every 10 ms.
    """

    seconds: list[float] = field(default_factory=list)
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


def convert(source: Path, result: Path, run: Run) -> None:
    """One conversion in a process of its own; adds its cost to `run`. Ends the benchmark if it fails."""
    entry = "from qconvert.cli.app import main; main()"
    options = ["--form", "qoperator", "--target", "generic", "--force", "--quiet"]
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", entry, "onnx2onnx", str(source), str(result), *options])
    own: list[int] = [0]
    watcher = threading.Thread(target=_watch, args=(child.pid, own))
    watcher.start()
    _, status, usage = os.wait4(child.pid, 0)
    run.seconds.append(time.perf_counter() - started)
    child.returncode = os.waitstatus_to_exitcode(status)
    watcher.join()
    if child.returncode:
        raise SystemExit(f"the conversion ended with exit code {child.returncode}")
    run.peak, run.own = max(run.peak, usage.ru_maxrss * 1024), max(run.own, *own)


def _watch(pid: int, own: list[int]) -> None:
    """Samples the process's own memory until it has ended."""
    while True:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")]
        if not found:  # ended, and not yet waited for
            return
        own.append(max(own.pop(), *found))
        time.sleep(0.01)


def measure(folder: Path, size: int, repeat: int) -> tuple[dict[tuple[str, str], Run], int]:
    """(what was done, state of the page cache) -> its cost, and the bytes of the model."""
    source, result, copy = folder / "qdq.onnx", folder / "qoperator.onnx", folder / "copy.data"
    make_model(source, size)
    data = source.with_name(source.name + ".data")
    runs: dict[tuple[str, str], Run] = {}
    for number in range(repeat):
        for state, prepare in (("cold", out_of_cache), ("warm", into_cache)):
            # The disk is slower for a while after much was written: each has its turn at being the first.
            for what in ("copyfile", "qconvert") if number % 2 == 0 else ("qconvert", "copyfile"):
                prepare(data)
                os.sync()
                time.sleep(REST)
                run = runs.setdefault((what, state), Run())
                if what == "qconvert":
                    convert(source, result, run)
                else:
                    started = time.perf_counter()
                    shutil.copyfile(data, copy)
                    run.seconds.append(time.perf_counter() - started)
                for made in folder.glob("qoperator.onnx*"):
                    made.unlink()
                copy.unlink(missing_ok=True)
    return runs, data.stat().st_size + source.stat().st_size


def section(runs: dict[tuple[str, str], Run], size: int, facts: str) -> Section:
    """The table."""
    lines = []
    for (what, state), run in runs.items():
        seconds = statistics.median(run.seconds)
        copying = statistics.median(runs["copyfile", state].seconds)
        memory = [f"{value / 2**20:.0f} MiB ({100 * value / size:.1f}%)" if value else "" for value in (run.peak, run.own)]
        name = "onnx2onnx --form qoperator" if what == "qconvert" else "`shutil.copyfile`"
        lines.append([name, state, f"{seconds:.2f} s", f"{size / seconds / 1e9:.2f} GB/s", f"{seconds / copying:.2f}", *memory])
    note = (
        f"QDQ to QOperator, external data, {size / 1e9:.2f} GB of int8 weights, with a scale for each column. Cold: the source is out of "
        f"the page cache. Peak memory counts pages of the mapped file too; own memory does not. Median of {len(run.seconds)} runs. {facts}"
    )
    header = ["what", "page cache", "time", "speed", "time / copying", "peak memory (of the size)", "own memory (of the size)"]
    return Section(TITLE, header, lines, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size-gb", type=float, default=4.0, help="size of the weights in GB")
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed afterwards; by default the system's")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    size = int(options.size_gb * 1e9)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        free = shutil.disk_usage(name).free
        if free < 3.2 * size:
            raise SystemExit(f"{free / 1e9:.1f} GB are free, {3.2 * size / 1e9:.1f} GB are needed")
        runs, total = measure(Path(name), size, options.repeat)
    part = section(runs, total, f"{os.cpu_count()} cores, Python {platform.python_version()}.")
    publish(part, options.markdown, "python benchmarks/large_models.py")


if __name__ == "__main__":
    main()
