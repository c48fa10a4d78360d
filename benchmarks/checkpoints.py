"""Checkpoints with weights in blocks as checkpoints of other tools: which pairs are exact, what others cost, and how long large ones take.

    python benchmarks/checkpoints.py [--folder fixtures/blocks] [--made FOLDER] [--gigabytes 4] [--place FOLDER]
        [--markdown docs/measured/checkpoints.md]

Of each pair: "exact", or the share of blocks (of all layers, the least and the most; of bitsandbytes int8, of weights) that have no
place, and the SQNR of the worst layer with --requantize; "weights exact" where data alone are no longer rounded, and "no" where the
result rounds data in a way that is not the source's. --made is a folder of checkpoints that tools made, each in a folder of its own,
perhaps with the values that the tool itself dequantizes (oracle.npz, a float32 matrix for each layer, and in oracle.json the type that
they are rounded to), and perhaps a float network (graph.onnx) and the logits that torch computes with these values (logits.npz: ids,
logits); each is read, converted to every container and back, and to ONNX. Parts that are not measured stay in the page as they are. With
--gigabytes a random GPTQ checkpoint of that size, and what is made of it, are converted in a process of their own, in turns with copies
of them.
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
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import qconvert
from qconvert.arithmetic.storage import numpy_dtype
from qconvert.checkpoints.safetensors import find_checkpoint, written_file
from qconvert.checkpoints.source import CheckpointSource
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

_ABOUT_PAIRS = """# Checkpoints as checkpoints of other tools

Made by `python benchmarks/checkpoints.py --folder fixtures/blocks --gigabytes 4`. Exact: every integer, scale and zero
point is kept. Else the share of blocks for which the result has no place, the least and the most of all layers (of bitsandbytes int8 that
of weights), and with `--requantize` the SQNR of the worst layer: weights exact, where data alone are no longer rounded; no, where the
result rounds data in a way that is not the source's."""
_ABOUT_CONTAINERS = """Exact: of all of them, compared layer by layer with the source. Else how many are exact, if any, and of
the refused ones the share of blocks without a place, the least of their layers."""
_ABOUT_MADE = """Values: whether they are bit for bit those that the tool itself dequantizes. Exact as: to how many of the containers above
a conversion is exact; back: from how many of these the way back to the source's container is. Logits: the largest difference in onnxruntime
from torch's with dequantized weights, as a share of the largest."""
_ABOUT_TIMES = """Times depend on what else the machine does; those of processors, of all threads together, hardly do, and begin
with 0.6 s for imports."""


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


def compare_values(source: CheckpointSource, folder: Path) -> str:
    """Whether the values of all layers are those that the tool itself gives; "" where these are not there."""
    if not (folder / "oracle.npz").is_file():
        return ""
    wanted = np.load(folder / "oracle.npz")
    dtype = numpy_dtype(json.loads((folder / "oracle.json").read_text()))
    for layer in source.layers:
        weight = source.weight(layer)
        values = weight.floats(np.dtype(np.float32)).reshape(weight.shape)
        if not np.array_equal(values.astype(dtype).astype(np.float32), wanted[layer]):
            return "differ"
    return "equal" if set(wanted.files) == set(source.layers) else "differ"


def there_and_back(folder: Path, own: str, result: str) -> tuple[str, bool]:
    """A cell of the table of containers, and whether the way back to the source's container, where it is written, was refused."""
    with tempfile.TemporaryDirectory() as parent:
        out, back = Path(parent) / "out", Path(parent) / "back"
        try:
            qconvert.convert(folder, out, result_format=result)
        except qconvert.QConvertError as error:
            shares = re.findall(r"\(([\d.]+)% to ([\d.]+)% of the (?:blocks|weights)\)", error.reason)
            return (f"{min(float(least) for least, _ in shares):.1f}" if shares else "100"), False
        if found := qconvert.diff(folder, out):
            raise SystemExit(f"{folder} as {result} differs: {found[0]}")
        if own not in SUMMARIES:
            return "exact", False
        try:
            qconvert.convert(out, back, result_format=own)
        except qconvert.QConvertError:
            return "exact", True
        return "exact", bool(qconvert.diff(folder, back))


def logits_error(folder: Path, form: str) -> str:
    """The largest difference of logits in onnxruntime from torch's, as a share of the largest."""
    import onnxruntime

    if not (folder / "logits.npz").is_file():
        return ""
    wanted = np.load(folder / "logits.npz")
    with tempfile.TemporaryDirectory() as parent:
        out = Path(parent) / "out.onnx"
        qconvert.convert(folder, out, graph=folder / "graph.onnx", form=form)
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        session = onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {"input_ids": wanted["ids"]})
    return f"{np.abs(found - wanted['logits']).max() / np.abs(wanted['logits']).max():.1e}"


def made_checkpoints(parent: Path) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Rows of the table of checkpoints and of that of containers, the heads first."""
    rows: list[tuple[str, ...]] = [("checkpoint", "stored as", "layers", "values", "exact as", "back", "logits, qdq", "logits, qoperator")]
    cells: dict[str, dict[str, list[str]]] = {}
    for folder in sorted(item.parent for item in parent.glob("*/config.json")):
        source = CheckpointSource.of(find_checkpoint(folder))
        names = sorted({container.name for container, _ in source.layers.values()})
        own = "gptq-v2" if names == ["gptq"] and not source.config.zero_points_are_less_by_one else names[0] if len(names) == 1 else "mixed"
        found = {result: there_and_back(folder, own, result) for result in SUMMARIES}
        for result, (cell, _) in found.items():
            cells.setdefault(own, {}).setdefault(result, []).append(cell)
        exact = [result for result, (cell, _) in found.items() if cell == "exact"]
        lost = sum(is_lost for _, is_lost in found.values())
        back = "" if own not in SUMMARIES else f"{len(exact) - lost} of {len(exact)}"
        errors = (logits_error(folder, form) for form in ("qdq", "qoperator"))
        rows.append(
            (folder.name, ", ".join(names), str(len(source.layers)), compare_values(source, folder), str(len(exact)), back, *errors)
        )
        print(*rows[-1], flush=True)
    table = [("from", "checkpoints", *SUMMARIES)]
    table += [
        (own, str(len(next(iter(of.values())))), *(_summarize(of[result]) for result in SUMMARIES)) for own, of in sorted(cells.items())
    ]
    return rows, table


def _summarize(cells: list[str]) -> str:
    """Exact, or how many of the checkpoints are, and the share of blocks without a place of the others."""
    shares = sorted(float(cell) for cell in cells if cell != "exact")
    if not shares:
        return "exact"
    refused = "all" if shares[0] == 100 else f"{shares[0]:g}%" if shares[0] == shares[-1] else f"{shares[0]:g}–{shares[-1]:g}%"
    exact = cells.count("exact")
    return f"{exact} exact; {refused}" if exact else refused


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


#: Starts a program from a small process: the peak memory of a program is at least that of the one that starts it.
_LAUNCH = """
import json, os, sys, time
started = time.perf_counter()
_, status, usage = os.wait4(os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0)
seconds = time.perf_counter() - started
print()
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6]))
"""


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of processors, and peak memory in GB of a process.

    Raises:
        CalledProcessError: it failed; `stderr` has what it said.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        subprocess.run([sys.executable, "-c", _LAUNCH, *command], stdout=said, stderr=said, check=True)
        said.seek(0)
        text, _, last = said.read().rstrip().rpartition("\n")
    code, seconds, of_processors, memory = json.loads(last)
    if code:
        raise subprocess.CalledProcessError(code, command, stderr=text)
    return seconds, of_processors, memory


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
                os.sync()  # what was written before is no burden of this one
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


def read_sections(page: Path) -> dict[str, str]:
    """The parts of the page by their titles; that before the first title is ""."""
    first, *others = page.read_text(encoding="utf-8").split("\n## ")
    return {"": first.strip(), **{title: text.strip() for title, _, text in (other.partition("\n") for other in others)}}


def write_sections(page: Path, sections: Mapping[str, str]) -> None:
    text = "\n\n".join(f"## {title}\n\n{section}" if title else section for title, section in sections.items()) + "\n"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--made", type=Path)
    parser.add_argument("--gigabytes", type=float, default=0.0)
    parser.add_argument("--place", type=Path, default=ROOT / "build" if (ROOT / "build").is_dir() else Path(tempfile.gettempdir()))
    parser.add_argument("--markdown", type=Path, default=ROOT / "docs" / "measured" / "checkpoints.md")
    given = parser.parse_args()
    sections = read_sections(given.markdown)
    if given.folder:
        sections[""] = f"{_ABOUT_PAIRS}\n\n{table(pairs(given.folder))}"
    if given.made:
        rows, containers = made_checkpoints(given.made)
        sections["Containers"] = (
            f"All pairs for {len(rows) - 1} checkpoints made with the tools themselves. {_ABOUT_CONTAINERS}\n\n{table(containers)}"
        )
        sections["Checkpoints made with the tools"] = f"{_ABOUT_MADE}\n\n{table(rows)}"
    if given.gigabytes:
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"
        about = f"A GPTQ checkpoint of random integers in {_FILES} files, and what is made of it, in turns with copies, in {given.place}"
        sections[f"{given.gigabytes:g} GB"] = f"{about}; {machine}. {_ABOUT_TIMES}\n\n{table(large(given.gigabytes, given.place))}"
    write_sections(given.markdown, sections)


if __name__ == "__main__":
    main()
