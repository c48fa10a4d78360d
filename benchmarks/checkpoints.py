"""Checkpoints with weights in blocks as checkpoints of other tools: which pairs are exact, what others cost, and how long large ones take.

    python benchmarks/checkpoints.py [--folder fixtures/blocks] [--gigabytes 1] [--place /dev/shm] [--markdown docs/measured/checkpoints.md]

Of each pair: "exact", or the share of blocks (of all layers, the least and the most; of bitsandbytes int8, of weights) that have no place,
and the SQNR of the worst layer with --requantize; "weights exact" where data alone are no longer rounded, and "no" where the result rounds
data in a way that is not the source's. With --gigabytes a random GPTQ checkpoint of that size, and what is made of it, are converted in a
process of their own, in turns with copies of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import qconvert
from qconvert.checkpoints.safetensors import written_file
from qconvert.formats.checkpoints import SUMMARIES

ROOT = Path(__file__).parents[1]
_SIZES, _BLOCK, _BITS = (("q_proj", 4096, 4096), ("gate_proj", 11008, 4096), ("down_proj", 4096, 11008)), 128, 4
_TURNS, _FILES = 3, 4
#: Source and result of what is timed.
_PAIRS = (
    *(("gptq", name) for name in ("gptq-v2", "compressed-tensors", "mlx", "awq")),
    *(("awq", name) for name in ("gptq-v2", "compressed-tensors")),
    ("compressed-tensors", "awq"),
)


def pair(source: Path, result: str) -> str:
    """A cell of the table."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            qconvert.convert(source, Path(folder) / "out", result_format=result)
        except qconvert.QConvertError as error:
            if error.rule != "not-lossless":
                return f"no: {error.rule}"
            shares = re.findall(r"\(([\d.]+%) to ([\d.]+%) of the (?:blocks|weights)\)", error.reason)
            share = f"{shares[0][0]}–{shares[0][1]}" if shares else "all"
        else:
            return "exact"
        try:
            report = qconvert.convert(source, Path(folder) / "out", result_format=result, requantize=True)
        except qconvert.QConvertError:
            return "no"
    worst = min((cost.sqnr_db for change in report.changes for cost in change.costs if cost.sqnr_db is not None), default=None)
    return f"{share}; {worst:.0f} dB" if worst is not None else "weights exact"


def pairs(folder: Path) -> list[tuple[str, ...]]:
    """Rows of the table, the head first."""
    sources = sorted(item for item in folder.iterdir() if item.is_dir() and (item / "config.json").is_file() and "base" not in item.name)
    rows: list[tuple[str, ...]] = [("checkpoint", *SUMMARIES)]
    return rows + [(source.name, *(pair(source, result) for result in SUMMARIES)) for source in sources]


def random_checkpoint(folder: Path, gigabytes: float) -> None:
    """GPTQ v1 of random integers, in four files."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    places: dict[str, str] = {}
    left, layer, shard = int(gigabytes * 1e9), 0, 0
    while left > 0:
        shard += 1
        name = f"model-{shard:05d}.safetensors"
        names = [f"model.layers.{layer + i}.{part}.{t}" for i in range(40) for part, *_ in _SIZES for t in "abcd"]
        with written_file(folder / name, names, {"format": "pt"}) as writer:
            room = min(left, int(gigabytes * 1e9 / _FILES))
            while room > 0:
                for part, outputs, inputs in _SIZES:
                    groups = inputs // _BLOCK
                    zeros = rng.integers(0, 15, (groups, outputs // 8, 8), np.uint8).astype(np.uint32)
                    words = np.bitwise_or.reduce(zeros << (4 * np.arange(8, dtype=np.uint32)), axis=2).view(np.int32)
                    tensors = {
                        "qweight": rng.integers(-(2**31), 2**31, (inputs // 8, outputs), np.int64).astype(np.int32),
                        "qzeros": words,
                        "scales": rng.uniform(0.001, 0.01, (groups, outputs)).astype(np.float16),
                        "g_idx": (np.arange(inputs) // _BLOCK).astype(np.int32),
                    }
                    for key, tensor in tensors.items():
                        writer.add(f"model.layers.{layer}.{part}.{key}", tensor)
                        places[f"model.layers.{layer}.{part}.{key}"] = name
                        room -= tensor.nbytes
                        left -= tensor.nbytes
                layer += 1
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    stated = {"quant_method": "gptq", "bits": _BITS, "group_size": _BLOCK, "checkpoint_format": "gptq", "desc_act": False, "sym": False}
    (folder / "config.json").write_text(json.dumps({"dtype": "float16", "quantization_config": stated}))


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of processors, and peak memory in GB of a process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def large(gigabytes: float, parent: Path) -> list[tuple[str, ...]]:
    """Rows of the table of times, the head first."""
    rows: list[tuple[str, ...]] = [("what", "seconds (three turns)", "of processors", "peak memory, GB")]
    with tempfile.TemporaryDirectory(dir=parent) as place:
        sources = {name: Path(place) / name for name, _ in _PAIRS}
        random_checkpoint(sources["gptq"], gigabytes)
        for name in [name for name in sources if name != "gptq"]:
            qconvert.convert(sources["gptq"], sources[name], result_format=name)
        out = str(Path(place) / "out")
        copy = "import shutil; shutil.copytree({!r}, {!r})"
        commands = {f"copy of {name}": [sys.executable, "-c", copy.format(str(path), out)] for name, path in sources.items()}
        convert = [sys.executable, "-m", "qconvert", "convert", "--quiet", "--to"]
        commands |= {f"{source} to {name}": [*convert, name, str(sources[source]), out] for source, name in _PAIRS}
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
        for _ in range(_TURNS):
            for name, command in commands.items():
                found[name].append(measured(command))
                shutil.rmtree(out)
    for name, turns in found.items():
        times, of_processors, memory = zip(*turns, strict=True)
        each = (", ".join(f"{seconds:.1f}" for seconds in sorted(values)) for values in (times, of_processors))
        rows.append((name, *each, f"{max(memory):.2f}"))
    return rows


def table(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, default=ROOT / "fixtures" / "blocks")
    parser.add_argument("--gigabytes", type=float, default=0.0)
    parser.add_argument("--place", type=Path, default=ROOT / "build" if (ROOT / "build").is_dir() else Path(tempfile.gettempdir()))
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    parts = [
        "# Checkpoints as checkpoints of other tools",
        "Made by `python benchmarks/checkpoints.py --gigabytes 1 --place /dev/shm`. Exact: every integer, scale and zero point is kept. "
        "Else the share of blocks for which the result has no place, the least and the most of all layers (of bitsandbytes int8 that of "
        "weights), and with `--requantize` the SQNR of the worst layer: weights exact, where data alone are no longer rounded; no, where "
        "the result rounds data in a way that is not the source's.",
        table(pairs(given.folder)),
    ]
    if given.gigabytes:
        parts += [
            f"## {given.gigabytes:g} GB",
            f"A GPTQ checkpoint of random integers in {_FILES} files, and what is made of it, in turns with copies, in {given.place}; "
            f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}. Times depend on "
            "what else the machine does; those of processors, of all threads together, hardly do, and begin with 0.6 s for imports. Peak "
            "memory is at least that of the script that starts the processes.",
            table(large(given.gigabytes, given.place)),
        ]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if given.markdown:
        given.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
