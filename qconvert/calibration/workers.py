"""Workers that run the parts of a calibration: processes of this machine, or a cluster of dask.distributed.

If a worker dies, another one runs its part again; the calibration fails when several workers die at the same part.
"""

from __future__ import annotations

import os
import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import islice
from operator import call
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from qconvert.errors import MissingPackageError, OptionError, RuntimeRefusedError
from qconvert.files.system import temporary_folder

_A = TypeVar("_A")
_B = TypeVar("_B")

#: How many workers a part may cost.
_ATTEMPTS = 3
#: Parts that wait for a worker, for each worker, so that not all data are in memory at once.
_WAITING = 2
#: Seconds that a scheduler has for its first answer, and for its restart and that of its workers in the middle of the work.
_ANSWER, _RESTART = 20, 300


class Workers(ABC):
    """Calls a function on many things, in several places at once.

    Attributes:
        is_remote: whether they may have other files than this machine.
    """

    is_remote: ClassVar[bool]

    @abstractmethod
    def map(self, function: Callable[[_A], _B], items: Iterable[_A], *, waiting: int = _WAITING) -> Iterator[_B]:
        """The results in the order of the items. Function, items and results can be pickled.

        Args:
            function: what is called.
            items: with each of these.
            waiting: how many are handed out at most, for each worker. Workers are idle where all of them wait for the first one.
        """

    @abstractmethod
    def close(self) -> None:
        """End what runs."""


#: An item, the future of its result, and how often it was tried.
_Part = tuple[Any, Any, int]


def _collect(
    items: Iterable[Any],
    submit: Callable[[Any], Any],
    room: Callable[[], int],
    lost: type[BaseException] | tuple[type[BaseException], ...],
    again: Callable[[deque[_Part]], None],
) -> Iterator[Any]:
    """The results of items in their order.

    Args:
        items: each is submitted when there is room for it.
        submit: gives the future of an item.
        room: for how many items there is room; a cluster may shrink.
        lost: what the future of an item raises whose worker died.
        again: submits lost parts again, the suspected one at the front.
    """
    waiting, source = deque[_Part](), iter(items)
    while True:
        for item in islice(source, max(0, room() - len(waiting))):
            waiting.append((item, submit(item), 1))
        if not waiting:
            return
        _, future, attempts = waiting[0]
        try:
            found = future.result()
        except lost as error:
            if attempts >= _ATTEMPTS:
                raise RuntimeRefusedError(
                    f"{attempts} workers died at the same part of the data",
                    remedy="Look for a lack of memory, or run it with --jobs 1.",
                    rule="workers-died",
                ) from error
            again(waiting)
            continue
        waiting.popleft()
        yield found


class Processes(Workers):
    """Processes of this machine.

    Args:
        count: how many.
    """

    is_remote = False

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: Any = None

    def _submit_part(self, path: Path, item: Any) -> Any:
        from concurrent.futures import Future, ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        if self._pool is None:
            # A fork would copy the threads of runtimes half: these processes start again.
            self._pool = ProcessPoolExecutor(self._count, mp_context=get_context("spawn"))
        try:
            return self._pool.submit(_call_from_file, path, item)
        except BrokenProcessPool as error:  # one died while parts were still handed out: this part is as lost as those before it
            lost: Future[Any] = Future()
            lost.set_exception(error)
            return lost

    def map(self, function: Callable[[_A], _B], items: Iterable[_A], *, waiting: int = _WAITING) -> Iterator[_B]:
        from concurrent.futures.process import BrokenProcessPool

        with temporary_folder() as folder:
            path = Path(folder, "function")  # it holds the network, which each process is to get once
            path.write_bytes(pickle.dumps(function))
            submit, again = partial(self._submit_part, path), partial(self._again, path)
            yield from _collect(items, submit, lambda: waiting * self._count, BrokenProcessPool, again)

    def _again(self, path: Path, waiting: deque[_Part]) -> None:
        """Starts new processes, and in them what the dead ones had not done."""
        self.close()
        for number, (item, future, attempts) in enumerate(waiting):
            if not future.done() or future.cancelled() or future.exception() is not None:
                waiting[number] = (item, self._submit_part(path, item), attempts + (not number))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class Cluster(Workers):
    """A cluster of dask.distributed, whose workers have qconvert, and the files of data at the same paths.

    Args:
        address: of its scheduler, such as tcp://10.0.0.1:8786.

    Raises:
        MissingPackageError: the extra `cluster` is not installed.
        OptionError: it is no address, or no scheduler answers there.
    """

    is_remote = True

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = self._connect(_ANSWER)

    def _connect(self, seconds: float) -> Any:
        """Return a client of the scheduler, which has so many seconds to answer; see the class for the errors."""
        try:
            from distributed import Client
        except ImportError as error:
            raise MissingPackageError(
                "work on a cluster needs dask.distributed",
                remedy="Install it with: pip install 'qconvert[cluster]'",
                rule="package-missing",
            ) from error
        # A client that did not connect has to be closed now: the garbage collector would close it whenever it runs, and that waits
        # forever if it happens to run while the next client holds the lock that closing needs (distributed 2026.8, LoopRunner).
        untyped: Any = Client
        client = untyped.__new__(untyped)
        try:
            client.__init__(self._address, timeout=seconds, set_as_default=False)
        except (OSError, TimeoutError) as error:
            client.close()
            raise OptionError(
                f"the scheduler {self._address} does not answer: {error}",
                remedy="Start one with: dask scheduler",
                rule="scheduler-unreachable",
            ) from error
        except (ValueError, TypeError, OverflowError) as error:
            client.close()
            reason = f"{self._address!r} is not the address of a scheduler: {error}"
            raise OptionError(reason, remedy="Write one such as tcp://10.0.0.1:8786.", rule="scheduler-address") from error
        return client

    def map(self, function: Callable[[_A], _B], items: Iterable[_A], *, waiting: int = _WAITING) -> Iterator[_B]:
        from distributed import CancelledError, KilledWorker

        shared = self._share_function(function)

        def submit(item: Any) -> Any:
            return self._client.submit(call, shared, item, pure=False)

        def again(parts: deque[_Part]) -> None:
            nonlocal shared
            while self._client.status == "connecting":  # for as many seconds as it had for its first answer
                time.sleep(0.1)
            if self._client.status != "running":
                self._client = self._connect(_RESTART)
            shared = self._share_function(function)  # it may have died with the worker
            for number, (item, future, attempts) in enumerate(parts):
                if not number or future.cancelled():  # all are where the scheduler died
                    parts[number] = (item, submit(item), attempts + (not number))

        yield from _collect(items, submit, lambda: waiting * self._count_threads(), (KilledWorker, CancelledError), again)

    def _share_function(self, function: Callable[[Any], Any]) -> Any:
        """Return the future of a function that all workers have.

        Raises:
            OptionError: there is no worker.
        """
        try:
            return self._client.scatter(function, broadcast=True, hash=False, timeout=_RESTART)  # for the first worker to come
        except OSError as error:
            raise OptionError(
                f"the scheduler {self._address} has no worker", remedy=f"Start one with: dask worker {self._address}", rule="no-worker"
            ) from error

    def _count_threads(self) -> int:
        """Return how many parts run at once; 1 if the scheduler does not answer, as the next part's future then says so too."""
        with suppress(OSError):
            return max(1, sum(map(int, self._client.nthreads().values())))
        return 1

    def close(self) -> None:
        self._client.close()


@lru_cache(1)
def _load_function(path: Path) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = pickle.loads(path.read_bytes())  # ours: the process that started this one has just written it
    return found


def _call_from_file(path: Path, item: Any) -> Any:
    return _load_function(path)(item)


@contextmanager
def workers_of(jobs: int, scheduler: str) -> Iterator[Workers | None]:
    """Who runs the parts: `jobs` processes of this machine, or the cluster whose scheduler is at that address; None for this process alone.

    Raises:
        OptionError: both are asked for, or no process at all.
    """
    if jobs < 0:
        raise OptionError(f"jobs is {jobs}; it must be at least 0", rule="number-negative")
    if scheduler and jobs > 1:
        raise OptionError("both jobs and a scheduler are given", remedy="Use --jobs or --scheduler.", rule="jobs-and-scheduler")
    count = jobs or os.cpu_count() or 1
    workers = Cluster(scheduler) if scheduler else Processes(count) if count > 1 else None
    try:
        yield workers
    finally:
        if workers is not None:
            workers.close()
