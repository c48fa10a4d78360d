"""Many models and many inputs at once: how busy the workers of a batch and of a cluster are, and what is left when some of them are killed.

    python benchmarks/batches.py [--models 60] [--inputs 10000] [--markdown docs/measured/batch.md]

A batch converts as many copies of a small model with one job, with two, and with a cluster of dask.distributed of four workers, which are
processes of this machine; once more in the cluster, of which a worker and then the scheduler are killed, and started again. Busy is the
time that models took, the sum over all of them, as a share of the time that all workers had: where each job has a core of its own, the
speed-up is this share times the number of jobs. A calibration of a small network is run by one process, by two, and by the cluster.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from page import Section, machine, publish

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"
DIGITS = ROOT / "fixtures" / "digits"
WORKERS = 4
COMMAND = "python benchmarks/batches.py"


class Cluster:
    """A scheduler and its workers, each a process of its own that can be killed."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.scheduler = self._start_scheduler()
        self.workers = [self._start_worker() for _ in range(WORKERS)]

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments, "--no-dashboard"]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _start_scheduler(self) -> subprocess.Popen[bytes]:
        return self._start("scheduler", "--host", "127.0.0.1", "--port", self.address.rpartition(":")[2])

    def _start_worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny")

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
def cluster() -> Iterator[Cluster]:
    """A cluster whose workers are there."""
    found = Cluster()
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


def measure_batches(folder: Path, count: int) -> list[list[str]]:
    """A row for each way of running the batch."""
    from qconvert import batch

    models = folder / "models"
    models.mkdir()
    for number in range(count):
        shutil.copy(MODEL, models / f"{number}{MODEL.suffix}")
    rows = []

    def measure(what: str, workers: int, **options: Any) -> None:
        out = folder / what
        report = batch(models, out, to="onnx", **options)
        busy = sum(item.seconds for item in report.outcomes) / (workers * report.seconds)
        assert report.counts == {"converted": count} and len(list(out.glob("*.onnx"))) == count, report.counts
        rows.append([what, str(workers), f"{report.seconds:.1f} s", f"{100 * busy:.0f}%", f"{workers * busy:.2f}"])

    measure("one job", 1)
    measure("--jobs 2", 2, jobs=2)
    with cluster() as running:
        measure("cluster", WORKERS, scheduler=running.address)
        what = "cluster, a worker and the scheduler killed"
        killer = threading.Thread(target=kill_two, args=(running, folder / what / "qconvert-batch", count), daemon=True)
        killer.start()
        measure(what, WORKERS, scheduler=running.address)
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
    with cluster() as running:
        measure("cluster", scheduler=running.address)
    return rows


def processor_time() -> float:
    """Seconds of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = measure_batches(Path(name), options.models)
        note = (
            f"{options.models} copies of {MODEL.name} to ONNX, each in a process of its own; none is lost. Busy: the time that models "
            "took, the sum over all, as a share of the time of all workers; times the number of workers it is the speed-up on as many "
            "free cores. Other programs ran on the machine, so that times cannot be compared. A killed scheduler and its workers take "
            f"some seconds to start, in which nothing is busy. {machine()}"
        )
        header = ["batch", "workers", "time", "busy", "busy workers"]
        publish(Section("Batches", header, rows, note), options.markdown, COMMAND)
    with tempfile.TemporaryDirectory() as name:
        rows = measure_calibrations(Path(name), options.inputs)
        note = f"{options.inputs:,} inputs of fixtures/digits/float.onnx, method entropy. {machine()}"
        header = ["calibration", "time", "processor time", "quantizations"]
        publish(Section("Calibration by several workers", header, rows, note), options.markdown, COMMAND)


if __name__ == "__main__":
    main()
