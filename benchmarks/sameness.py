"""Whether two versions of qconvert convert alike: the judge of changes that are to keep behaviour.

    python benchmarks/sameness.py sources build/sameness/sources              once, with either version
    PYTHONPATH=old python benchmarks/sameness.py record build/sameness/sources build/sameness/old --models fixtures
    PYTHONPATH=new python benchmarks/sameness.py record build/sameness/sources build/sameness/new --models fixtures
    python benchmarks/sameness.py compare build/sameness/old build/sameness/new

Every source is converted for every target, and the results for the default targets back to the source's format. A record holds the
SHA-256 of the file without its metadata, or the code and place of the refusal, and the processor time. Records are appended to a file for
each job, so that a run that was ended goes on where it was. Where two digests differ, `compare` reads and runs both files: it says whether
the outputs and the trained integers are equal, and which file has more operators. Its exit code is 1 if a model is refused otherwise,
computes other outputs, holds other integers, or has more operators, or if the conversions took 5% more time.

With --latency, ONNX results that differ are timed in onnxruntime.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
#: What is converted for each target, and the suffix of its files. Without a target: the format's own form, with options of its writer.
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{target: ("onnx", {"target": target}) for target in ("ort-x86", "ort-x86-vnni", "ort-arm", "generic", "tensorrt", "tensorrt-rtx")},
    "qoperator": ("onnx", {"form": "qoperator"}),
    "fast": ("onnx", {"target": "ort-x86", "numerics": "fast"}),
    **{target: ("tflite", {"target": target}) for target in ("tflite", "tflite-micro", "tflite-uint8", "tflite-same")},
    **{target: ("pt2", {"target": target}) for target in ("torch", "torch-x86", "torch-xnnpack")},
    "torch-modules": ("pt", {"target": "torch-modules"}),
    "mnn": ("mnn", {"no_mnn": True}),
    "qgraph": ("qgraph", {}),
}
#: Results that are converted back, with the suffix of the source's format.
BACK = ("ort-x86", "tflite-same", "torch")
#: No number is allowed to depend on how a loss is judged.
ALLOWED = -1000.0
SUFFIXES = (".tflite", ".onnx", ".pt2", ".pt", ".qgraph")
#: Largest model of a folder, in bytes.
LARGEST = 30_000_000
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Record:
    """What came of one conversion.

    Attributes:
        source: its name, with the way after it: "net.tflite ort-x86".
        digest: SHA-256 of the written file without metadata; "" for a refusal.
        error: the code of the refusal, and the operators or tensors that it names.
        text: the refusal as a user reads it.
        seconds: processor time of the conversion.
        file: the written file, in the folder of the records.
    """

    source: str
    digest: str = ""
    error: str = ""
    text: str = ""
    seconds: float = 0.0
    file: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def make_sources(folder: Path, count: int) -> None:
    """Write `count` random models: half of them canonical graphs, the others of ONNX, QOperator and TFLite in equal shares."""
    sys.path.insert(0, str(TESTS))
    from random_graphs import random_graph
    from strange_models import strange_model
    from strange_qoperator import strange_qoperator
    from strange_tflite import strange_tflite

    from qconvert import save

    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count // 2):
        save(random_graph(seed), folder / f"graph{seed}.qgraph", force=True)
    for seed in range(count // 6):
        (folder / f"strange{seed}.onnx").write_bytes(strange_model(random.Random(seed)).SerializeToString())
        (folder / f"qoperator{seed}.onnx").write_bytes(strange_qoperator(random.Random(seed)).SerializeToString())
        (folder / f"strange{seed}.tflite").write_bytes(strange_tflite(random.Random(seed), 3))


def list_models(folders: Sequence[Path]) -> list[Path]:
    found = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path.is_file()]
    return [path for path in found if path.stat().st_size <= LARGEST]


def digest_of(path: Path) -> str:
    """SHA-256 of a model file without what it says of itself."""
    if path.is_dir():
        parts = [(str(item.relative_to(path)), digest_of(item)) for item in sorted(path.rglob("*")) if item.is_file()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    readers = {".onnx": _onnx_bytes, ".tflite": _tflite_bytes, ".qgraph": _qgraph_bytes}
    if path.suffix in (".pt", ".pt2"):
        return _archive_digest(path)
    return hashlib.sha256(readers.get(path.suffix, Path.read_bytes)(path)).hexdigest()


def _onnx_bytes(path: Path) -> bytes:
    import onnx

    model = onnx.load(path, load_external_data=False)
    del model.metadata_props[:]
    model.ClearField("doc_string")
    model.ClearField("producer_version")
    model.graph.ClearField("doc_string")
    return model.SerializeToString(deterministic=True)


def _tflite_bytes(path: Path) -> bytes:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    for item in model.metadata or ():
        model.buffers[item.buffer].data = None
    model.metadata = None
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder))
    return bytes(builder.Output())


def _qgraph_bytes(path: Path) -> bytes:
    """The constants and the graph of a safetensors file, without the graph's metadata."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    graph = json.loads(header.pop("__metadata__")["qgraph"])
    graph.pop("metadata", None)
    return json.dumps([header, graph], sort_keys=True).encode() + data[8 + size :]


def _archive_digest(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = sorted(
            name for name in archive.namelist() if "/extra/" not in name and not name.endswith(("version", ".data/serialization_id"))
        )
        return hashlib.sha256(b"".join(name.partition("/")[2].encode() + archive.read(name) for name in names)).hexdigest()


def convert_source(path: Path, name: str, results: Path) -> Iterator[Record]:
    """Convert a model in every way."""
    for way, (suffix, options) in WAYS.items():
        record = _convert(path, results, f"{name} {way}", suffix, options)
        yield record
        if way in BACK and record.file and path.suffix != ".qgraph" and path.suffix != f".{suffix}":
            target = {"target": "tflite-same"} if path.suffix == ".tflite" else {}
            yield _convert(results / record.file, results, f"{name} {way} back", path.suffix[1:].replace("pt2", "pt"), target)


def _convert(source: Path, results: Path, name: str, suffix: str, options: Mapping[str, Any]) -> Record:
    from qconvert import QConvertError, convert

    written = results / f"{os.getpid()}.{suffix}"
    record = Record(name)
    start = time.process_time()
    try:
        convert(source, written, force=True, min_tensor_sqnr=ALLOWED, **options)
    except QConvertError as error:
        record.error, record.text = f"{error.code} {error.where}", str(error)[:2000]
    except Exception as error:
        record.error, record.text = f"FAULT {type(error).__name__}", str(error)[:2000]
    record.seconds = time.process_time() - start
    if not record.error:
        record.digest = digest_of(written)
        record.file = f"{record.digest}.{suffix}"
        if (results / record.file).exists():
            subprocess.run(["rm", "-rf", str(written)], check=True)
        else:
            written.replace(results / record.file)
    return record


def record(sources: Path, results: Path, folders: Sequence[Path], jobs: int) -> None:
    """Convert all sources with `jobs` processes; one that ends early is started again after the source that ended it."""
    results.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "work", str(sources), str(results), "--models", *map(str, folders), "--jobs", str(jobs)]
    running = {job: subprocess.Popen([*command, "--job", str(job)]) for job in range(jobs)}
    while running:
        for job, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[job]
            if process.returncode:
                running[job] = subprocess.Popen([*command, "--job", str(job)])
        time.sleep(0.2)


def work(sources: Path, results: Path, folders: Sequence[Path], jobs: int, job: int) -> None:
    """Convert the share of one job; what its journal holds is done already."""
    warnings.simplefilter("ignore")
    journal = results / f"records{job}.jsonl"
    begun = set(journal.with_suffix(".begun").read_text().splitlines()) if journal.with_suffix(".begun").exists() else set()
    models = [(path, str(path)) for path in list_models(folders)] + [(path, path.name) for path in list_models([sources])]
    with journal.open("a") as lines, journal.with_suffix(".begun").open("a") as names:
        for path, name in models[job::jobs]:
            if name in begun:
                continue
            print(name, file=names, flush=True)
            for item in convert_source(path, name, results):
                print(json.dumps(asdict(item)), file=lines, flush=True)


def read_records(results: Path) -> dict[str, Record]:
    lines = [line for path in sorted(results.glob("records*.jsonl")) for line in path.read_text().splitlines()]
    return {item.source: item for item in (Record(**json.loads(line)) for line in lines)}


def compare(old: Path, new: Path, latency: bool) -> int:
    """Print what differs between two runs; return the exit code."""
    before, after = read_records(old), read_records(new)
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        first, second = before.get(name), after.get(name)
        if first is None or second is None:
            bad.append(f"{name}: only in {'the second' if first is None else 'the first'} run")
        elif first.error or second.error:
            counts["refused alike" if first.error == second.error else "refused otherwise"] += 1
            counts["refused in other words"] += first.error == second.error and first.text != second.text
            if first.error != second.error:
                bad.append(f"{name}: {first.error or 'written'} -> {second.error or 'written'}")
        elif first.digest == second.digest:
            counts["identical"] += 1
        else:
            found = _difference(old / first.file, new / second.file, latency)
            counts["other bytes, " + ("alike" if not found else "not alike")] += 1
            bad += [f"{name}: {found}"] if found else []
    common = before.keys() & after.keys()
    seconds = [sum(run[name].seconds for name in common) for run in (before, after)]
    for key, count in sorted(counts.items()):
        print(f"{count:7} {key}")
    print(f"processor time {seconds[0]:.1f} s -> {seconds[1]:.1f} s ({seconds[1] / max(seconds[0], 1e-9):.3f})")
    print("\n".join(bad[:200]))
    return int(bool(bad) or seconds[1] > 1.05 * seconds[0])


def _difference(old: Path, new: Path, latency: bool) -> str:
    """How two files of one conversion differ beyond their bytes; "" if they do not."""
    from qconvert import load

    graphs = [load(path) for path in (old, new)]
    integers = [_integers(graph) for graph in graphs]
    found = []
    if integers[0] != integers[1]:
        found.append(f"{sum(((integers[0] - integers[1]) + (integers[1] - integers[0])).values())} other constants")
    if (sizes := [len(graph.ops) for graph in graphs])[1] > sizes[0]:
        found.append(f"{sizes[0]} -> {sizes[1]} operators")
    found += [text] if (text := _compare_outputs(old, new)) else []
    if latency and (ratio := _latency_ratio(old, new)) > 1.05:
        found.append(f"{ratio:.2f} of the latency")
    return "; ".join(found)


def _integers(graph: Any) -> Counter[str]:
    """The quantized constants: digest of type, data and scales -> how many there are."""
    constants = (tensor for tensor in graph.constants() if tensor.quantization is not None)
    return Counter(
        hashlib.sha256(
            repr((tensor.dtype, tensor.shape, tensor.quantization)).encode() + np.ascontiguousarray(tensor.data).tobytes()
        ).hexdigest()
        for tensor in constants
    )


def _compare_outputs(old: Path, new: Path) -> str:
    runs = []
    for path in (old, new):
        try:
            runs.append(_run(path))
        except Exception as error:
            runs.append(f"{type(error).__name__}: {error}"[:200])
    if isinstance(runs[0], str) or isinstance(runs[1], str):
        return "" if isinstance(runs[0], str) else f"runs, and then {runs[1]}" if isinstance(runs[1], str) else ""
    same = len(runs[0]) == len(runs[1]) and all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(*runs, strict=True))
    return "" if same else "other outputs"


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(path: Path, seed: int = 0) -> list[Array]:
    """The outputs of a model for random inputs, in its runtime: dynamic dimensions are 2."""
    rng = np.random.default_rng(seed)
    if path.suffix == ".onnx":
        session = _session(path)
        types = {
            "float": np.float32,
            "tensor(float)": np.float32,
            "tensor(int8)": np.int8,
            "tensor(uint8)": np.uint8,
            "tensor(int16)": np.int16,
        }
        inputs = {
            item.name: _values(rng, [n if isinstance(n, int) else 2 for n in item.shape], types[item.type]) for item in session.get_inputs()
        }
        return [np.asarray(item) for item in session.run(None, inputs)]
    if path.suffix == ".tflite":
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_path=str(path), num_threads=1)
        interpreter.allocate_tensors()
        for item in interpreter.get_input_details():
            interpreter.set_tensor(item["index"], _values(rng, item["shape"], item["dtype"]))
        interpreter.invoke()
        return [interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()]
    from qconvert import load
    from qconvert.evaluate import evaluate

    graph = load(path)
    inputs = {
        name: _values(rng, [n if isinstance(n, int) else 2 for n in graph[name].shape or ()], graph[name].dtype) for name in graph.inputs
    }
    return [np.asarray(item) for item in evaluate(graph, inputs).values()]


def _values(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return rng.standard_normal(tuple(shape)).astype(kind)
    if kind.kind == "b":
        return rng.random(tuple(shape)) < 0.5
    limits = np.iinfo(kind)
    low, high = (limits.min, limits.max) if kind.itemsize < 4 else (0, 2)
    return rng.integers(low, high, tuple(shape), dtype=kind, endpoint=True)


def _latency_ratio(old: Path, new: Path) -> float:
    """Best of 30 runs each, in turns, in onnxruntime on one thread; 1 for other formats."""
    if old.suffix != ".onnx":
        return 1.0
    best = [np.inf, np.inf]
    sessions = [_session(path) for path in (old, new)]
    rng = np.random.default_rng(0)
    inputs = [
        {item.name: _values(rng, [n if isinstance(n, int) else 1 for n in item.shape], np.float32) for item in s.get_inputs()}
        for s in sessions
    ]
    try:
        for _ in range(30):
            for place, (session, given) in enumerate(zip(sessions, inputs, strict=True)):
                start = time.process_time()
                session.run(None, given)
                best[place] = min(best[place], time.process_time() - start)
    except Exception:
        return 1.0
    return best[1] / best[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("sources", help="write random models")
    making.add_argument("folder", type=Path)
    making.add_argument("--count", type=int, default=4000)
    for name in ("record", "work"):
        one = commands.add_parser(name, help="convert all sources" if name == "record" else "the share of one process")
        one.add_argument("sources", type=Path)
        one.add_argument("results", type=Path)
        one.add_argument("--models", type=Path, nargs="*", default=[], help="folders of real models")
        one.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        one.add_argument("--job", type=int, default=0)
    comparing = commands.add_parser("compare", help="say how two runs differ")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--latency", action="store_true", help="measure the latency of files that differ")
    given = parser.parse_args()
    if given.command == "sources":
        make_sources(given.folder, given.count)
    elif given.command == "record":
        record(given.sources, given.results, given.models, given.jobs)
    elif given.command == "work":
        work(given.sources, given.results, given.models, given.jobs, given.job)
    else:
        return compare(given.old, given.new, given.latency)
    return 0


if __name__ == "__main__":
    sys.exit(main())
