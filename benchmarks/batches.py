"""Many models and many inputs at once: how busy the workers of a batch and of a cluster are, and what is left when some of them are killed.

    python benchmarks/batches.py [--models 1000] [--inputs 10000] [--markdown docs/measured/batch.md]

The models are the files of fixtures below 5 MB, and models of one operator that fixtures/zoo/operators_onnx.py makes. A batch converts
them with one job, with two, as two batches of one job at the same time, each of which has half of them, and with a cluster of
dask.distributed of four workers, which are processes of this machine. Twice more there are models among them that hang, crash and want too
much memory: with two jobs, and in the cluster, of which a worker and then the scheduler are killed, and started again. Two batches at the
same time share nothing: what they gain is what the machine can give. Busy is the time that models took, the sum over all of them, as a
share of the time that all workers had. A calibration of a small network is run by one process, by two, and by the cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from page import Section, machine, publish

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from ill_models import ILL, with_ill_models  # noqa: E402

FIXTURES = ROOT / "fixtures"
DIGITS = FIXTURES / "digits"
#: Bytes of a file at most, and cases of fixtures/zoo/operators_onnx.py that become files.
LARGEST, CASES = 5_000_000, 6_000
WORKERS = 4
#: Seconds after which a model is ended that hangs.
PATIENCE = 30
COMMAND = "python benchmarks/batches.py"


class Cluster:
    """A scheduler and its workers, each a process of its own that can be killed; `environment` is theirs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._environment = {**environment, "OMP_NUM_THREADS": "1"}
        self.scheduler = self._start_scheduler()
        self.workers = [self._start_worker() for _ in range(WORKERS)]

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments, "--no-dashboard"]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _start_scheduler(self) -> subprocess.Popen[bytes]:
        return self._start("scheduler", "--host", "127.0.0.1", "--port", self.address.rpartition(":")[2])

    def _start_worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny")

    def processor_time(self) -> float:
        """Seconds of the scheduler, of the workers, and of what these started."""
        return sum(tree_time(process.pid) for process in (self.scheduler, *self.workers))

    def wait(self) -> None:
        """Return when all workers are there."""
        from distributed import Client

        with Client(self.address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(WORKERS, timeout=60)

    def kill_worker(self) -> None:
        """Kill a worker, and start another."""
        self.workers[0].kill()
        self.workers[0] = self._start_worker()

    def kill_scheduler(self) -> None:
        """Kill the scheduler, and start it and its workers again: workers end when they lose it."""
        self.scheduler.kill()
        self.scheduler.wait()
        for worker in self.workers:
            worker.kill()
        self.scheduler = self._start_scheduler()
        self.workers = [self._start_worker() for _ in range(WORKERS)]

    def close(self) -> None:
        for process in (self.scheduler, *self.workers):
            process.kill()
            process.wait()


@contextmanager
def cluster(environment: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster whose workers are there."""
    found = Cluster(environment)
    try:
        found.wait()
        yield found
    finally:
        found.close()


def kill_two(running: Cluster, records: Path, count: int) -> None:
    """Kill a worker when a quarter of the models is done, and the scheduler at half."""
    for share, kill in ((0.25, running.kill_worker), (0.5, running.kill_scheduler)):
        while len(list(records.glob("*.json"))) < share * count:
            time.sleep(0.02)
        kill()


def tree_time(process: int) -> float:
    """Seconds of processor time of a process and of its descendants, those that have ended and were waited for included (proc(5), stat)."""
    found: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = int(words[1]), sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    own, total = {process}, 0.0
    while own:
        total += sum(found[one][1] for one in own if one in found)
        own = {one for one, (parent, _) in found.items() if parent in own}
    return total


class Batch:
    """A batch of all models of a folder, as the command that does it."""

    def __init__(self, models: Path, out: Path, environment: Mapping[str, str], *options: str) -> None:
        command = [sys.executable, "-m", "qconvert", "batch", str(models), str(out), *options, "--json", "--fail-on", "never"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)

    def finish(self) -> dict[str, Any]:
        """What it printed, with its processor time."""
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.read())
        _, _, used = os.wait4(self._process.pid, 0)
        return {**found, "processor": used.ru_utime + used.ru_stime}


def make_models(folder: Path, count: int) -> None:
    """Put so many models into a folder."""
    files = [path for path in sorted(FIXTURES.rglob("*.*")) if path.suffix in (".tflite", ".onnx") and path.stat().st_size < LARGEST]
    missing = max(1, count - len(files))
    command = [sys.executable, str(FIXTURES / "zoo" / "operators_onnx.py"), str(folder / "zoo"), "--every", str(max(1, CASES // missing))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    files += sorted((folder / "zoo").rglob("*.onnx"))
    assert len(files) >= count, len(files)
    for half in ("first", "second"):
        (folder / half).mkdir()
    (folder / "models").mkdir()
    for number, path in enumerate(files[:count]):
        name = f"{number:04}{path.suffix}"
        shutil.copy(path, folder / "models" / name)
        os.link(folder / "models" / name, folder / ("first", "second")[number % 2] / name)


def measure_batches(folder: Path, count: int) -> list[list[str]]:
    """A row for each way of running the batch."""
    make_models(folder, count)
    models, first, rows = folder / "models", dict[str, Any](), list[list[str]]()

    def add_row(what: str, workers: int, seconds: float, spent: float | None, outcomes: list[dict[str, Any]]) -> None:
        ended = {item["name"]: (item["status"], item["operators"]) for item in outcomes}
        ill = {name: ended.pop(name)[0] for name in sorted(ended) if name.endswith(".ill")}
        first.setdefault("seconds", seconds)
        assert first.setdefault("ended", ended) == ended, {name for name in ended if ended[name] != first["ended"].get(name)}
        busy = sum(item["seconds"] for item in outcomes) / seconds
        each = "" if spent is None else f"{1000 * spent / count:.0f} ms"
        said = f"{sum(status == 'converted' for status, _ in ended.values())} converted, {len(ended)} named"
        said += "".join(f", {name.removesuffix('.ill')}: {status}" for name, status in ill.items())
        gain = f"{first['seconds'] / seconds:.2f}"
        rows.append([what, str(workers), f"{seconds:.1f} s", gain, f"{100 * busy / workers:.0f}%", f"{busy:.2f}", each, said])

    def measure(what: str, workers: int, *options: str, environment: Mapping[str, str], running: Cluster | None = None) -> None:
        before = running.processor_time() if running else 0.0
        report = Batch(models, folder / what, environment, *options).finish()
        spent = report["processor"] + (running.processor_time() - before if running else 0.0)
        is_whole = spent > 0 and "killed" not in what  # what a killed process used is not known
        add_row(what, workers, report["seconds"], spent if is_whole else None, report["outcomes"])

    plain = {**os.environ, "PYTHONPATH": str(ROOT)}
    measure("one job", 1, environment=plain)
    measure("--jobs 2", 2, "--jobs", "2", environment=plain)
    halves = [Batch(folder / half, folder / f"of the {half}", plain) for half in ("first", "second")]
    reports = [half.finish() for half in halves]
    seconds, spent = max(item["seconds"] for item in reports), sum(item["processor"] for item in reports)
    add_row("two batches of halves", 2, seconds, spent, [item for report in reports for item in report["outcomes"]])
    with cluster(plain) as running:
        measure("cluster", WORKERS, "--scheduler", running.address, environment=plain, running=running)
    hostile = with_ill_models(models, *ILL)
    limits = ["--timeout", str(PATIENCE)]
    measure("--jobs 2, ill models", 2, "--jobs", "2", *limits, environment=hostile)
    with cluster(hostile) as running:
        what = "cluster, ill models, a worker and the scheduler killed"
        killer = threading.Thread(target=kill_two, args=(running, folder / what / "qconvert-batch", count), daemon=True)
        killer.start()
        measure(what, WORKERS, "--scheduler", running.address, *limits, environment=hostile)
    return rows


def measure_calibrations(folder: Path, count: int) -> list[list[str]]:
    """A row for each way of running the calibration."""
    from qconvert import calibrate

    images = np.load(DIGITS / "test.npz")["images"]
    generator = np.random.default_rng(0)
    chosen = images[generator.integers(0, len(images), count)]
    np.save(folder / "inputs.npy", chosen * generator.uniform(0.5, 1, (count, 1, 1, 1)).astype(np.float32))
    first: dict[str, Any] = {}
    rows = []

    def measure(what: str, **options: Any) -> None:
        started, before = time.monotonic(), processor_time()
        found = calibrate(DIGITS / "float.onnx", str(folder / "inputs.npy"), method="entropy", **options)
        scales = {place.name: one.qparams for place, one in found.entries.items()}
        first.setdefault("scales", scales)
        same = "equal" if scales == first["scales"] else "not equal"
        spent = "" if "scheduler" in options else f"{processor_time() - before:.1f} s"
        rows.append([what, f"{time.monotonic() - started:.1f} s", spent, f"{len(scales)} quantizations, {same}"])

    measure("one process")
    measure("--jobs 2", jobs=2)
    with cluster({**os.environ, "PYTHONPATH": str(ROOT)}) as running:
        measure("cluster", scheduler=running.address)
    return rows


def processor_time() -> float:
    """Seconds of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = measure_batches(Path(name), options.models)
        note = (
            f"{options.models} models to ONNX, each in a process of its own: files of fixtures, and models of one operator. Every row has "
            "the same outcome for each of them. Gain: the time of one job by that of the row. Busy: the time of the models, the sum over "
            "all, as a share of the time of all workers; times the number of workers it is the number of busy workers. Processor time: of "
            "all processes, for a model. Two batches of halves share nothing, so that no more can be gained on this machine. Ill models: "
            f"one hangs and is ended after {PATIENCE} s, one crashes, one wants 64 TiB. A killed scheduler and its workers take some "
            f"seconds to start, in which nothing is busy. {machine()}"
        )
        header = ["batch", "workers", "time", "gain", "busy", "busy workers", "processor time", "models"]
        publish(Section("Batches", header, rows, note), options.markdown, COMMAND)
    with tempfile.TemporaryDirectory() as name:
        rows = measure_calibrations(Path(name), options.inputs)
        note = f"{options.inputs:,} inputs of fixtures/digits/float.onnx, method entropy. {machine()}"
        header = ["calibration", "time", "processor time", "quantizations"]
        publish(Section("Calibration by several workers", header, rows, note), options.markdown, COMMAND)


if __name__ == "__main__":
    main()
