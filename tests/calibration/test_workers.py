"""Calibration by several workers: processes here, and a cluster of dask.distributed; one may die in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clusters import four_workers
from dying_workers import always_ended, ended
from refusals import refused

from qconvert.calibration import workers as module
from qconvert.calibration.driver import run_calibration
from qconvert.calibration.workers import Cluster, Processes
from qconvert.errors import InvalidModelError, OptionError, RuntimeRefusedError

DIGITS = Path(__file__).parents[2] / "fixtures" / "digits"
FLOAT = DIGITS / "float.onnx"


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.load(DIGITS / "test.npz")["images"][:200]


def scales(found: Any) -> dict[str, Any]:
    return {place.name: one.qparams.quantization.scale.tolist() for place, one in found.encodings.entries.items()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with four_workers() as found:
        yield found


def test_processes_give_results_in_order_though_one_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCONVERT_TEST_MARK", str(tmp_path / "mark"))
    workers = Processes(2)
    assert list(workers.map(ended, range(12))) == [item * item for item in range(12)]
    assert (tmp_path / "mark").exists()
    with refused(RuntimeRefusedError, "workers-died", holds=(3,)):
        list(workers.map(always_ended, range(6)))
    workers.close()


def test_a_process_that_dies_while_parts_are_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QCONVERT_TEST_MARK", str(tmp_path / "mark"))
    workers = Processes(2)

    def late() -> Iterator[int]:  # the process has died before the next part comes
        for item in range(6):
            yield item
            time.sleep(0.5 if item else 2.0)

    assert list(workers.map(ended, late())) == [item * item for item in range(6)]
    assert (tmp_path / "mark").exists()
    workers.close()


@pytest.mark.onnxruntime
@pytest.mark.parametrize("method", ["entropy", "mnn-kl"])
def test_processes_find_the_same_scales(method: str, images: np.ndarray) -> None:
    assert scales(run_calibration(FLOAT, images, method=method, jobs=2)) == scales(run_calibration(FLOAT, images, method=method))


@pytest.mark.formats
def test_an_error_of_a_worker_is_the_users(images: np.ndarray) -> None:
    wrong = images.copy()
    wrong[70] = np.inf
    with refused(InvalidModelError, "not-finite", where="tensor 'x'") as caught:
        run_calibration(FLOAT, wrong, jobs=2)
    assert caught.value.file == "sample 70" and caught.value.where == "tensor 'x'"


@pytest.mark.onnxruntime
def test_a_cluster_finds_the_same_scales(cluster: Any, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", images)
    expected = scales(run_calibration(FLOAT, images, method="mnn-kl"))
    assert scales(run_calibration(FLOAT, str(tmp_path), method="mnn-kl", scheduler=cluster.scheduler_address)) == expected


@pytest.mark.onnxruntime
def test_the_work_goes_on_when_a_worker_dies(cluster: Any, images: np.ndarray) -> None:
    killed: list[int] = []

    def kill(what: str, done: int, total: int) -> None:
        if not killed:
            killed.append(next(iter(cluster.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    def slowly() -> Iterator[np.ndarray]:
        for image in images:
            time.sleep(0.002)
            yield image

    found = run_calibration(FLOAT, slowly, scheduler=cluster.scheduler_address, progress=kill)
    assert killed and found.samples == 200 and scales(found) == scales(run_calibration(FLOAT, images))


class _Part:
    """The future of a part; the first six are lost with their scheduler."""

    def __init__(self, item: int, number: int) -> None:
        self._item, self._is_lost = item, number < 6

    def cancelled(self) -> bool:
        return self._is_lost

    def result(self) -> int:
        if self._is_lost:
            raise pytest.importorskip("distributed").CancelledError
        return self._item


def test_all_that_a_dead_scheduler_had_is_handed_out_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    handed, connected = list[int](), list[float]()

    def submit(call: Any, function: Any, item: int, pure: bool) -> _Part:
        handed.append(item)
        return _Part(item, len(handed) - 1)

    client = {"status": "closed", "submit": submit, "scatter": lambda function, **options: function, "nthreads": lambda: {"a": 1, "b": 1}}
    monkeypatch.setattr(Cluster, "_connect", lambda self, seconds: connected.append(seconds) or SimpleNamespace(**client))
    assert list(Cluster("tcp://127.0.0.1:9").map(abs, range(8), waiting=3)) == list(range(8))
    assert handed == [*range(6), *range(6), 6, 7] and len(connected) == 2


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(module, "_ANSWER", 1)
    with refused(OptionError, "scheduler-unreachable", holds=("tcp://127.0.0.1:9",)):
        Cluster("tcp://127.0.0.1:9")


@pytest.mark.parametrize(("address", "rule"), [
    ("nonsense", "scheduler-address"), ("http://127.0.0.1:80", "scheduler-address"), ("tcp://127.0.0.1:99999", "scheduler-unreachable"),
])  # fmt: skip
def test_what_is_no_address_of_a_scheduler(address: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(module, "_ANSWER", 1)
    with refused(OptionError, rule, holds=(address,)):
        Cluster(address)
