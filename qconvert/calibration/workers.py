"""Workers that run the parts of a calibration: this process, processes of this machine, or a cluster of dask.distributed.

If a worker dies, another one runs its part again; the calibration fails when several workers die at the same part.
"""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from qconvert.errors import MissingPackageError, OptionError, RuntimeRefusedError
from qconvert.files.system import temporary_folder

__all__ = ["Cluster", "Here", "Processes", "Workers", "workers_of"]

_A = TypeVar("_A")
_B = TypeVar("_B")

#: How many workers a part may cost.
_ATTEMPTS = 3
#: Parts that wait for a worker, for each worker, so that not all data are in memory at once.
_WAITING = 2
#: Seconds that a scheduler has for its first answer.
_ANSWER = 20


class Workers(Protocol):
    """Calls a function on many things, in several places at once."""

    def map(self, function: Callable[[_A], _B], items: Iterable[_A]) -> Iterator[_B]:
        """The results in the order of the items. Function, items and results can be pickled."""
        ...

    def close(self) -> None: ...

    @property
    def is_remote(self) -> bool:
        """Whether they may have other files than this machine."""
        ...


class Here:
    """This process."""

    is_remote = False

    def map(self, function: Callable[[_A], _B], items: Iterable[_A]) -> Iterator[_B]:
        return map(function, items)

    def close(self) -> None:
        pass


class Processes:
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

    def map(self, function: Callable[[_A], _B], items: Iterable[_A]) -> Iterator[_B]:
        with temporary_folder() as folder:
            path = Path(folder, "function")  # it holds the network, which each process is to get once
            path.write_bytes(pickle.dumps(function))
            yield from self._map_parts(path, iter(items))

    def _map_parts(self, path: Path, source: Iterator[Any]) -> Iterator[Any]:
        from concurrent.futures.process import BrokenProcessPool

        waiting: deque[tuple[Any, Any, int]] = deque()
        while True:
            for item in islice(source, _WAITING * self._count - len(waiting)):
                waiting.append((item, self._submit_part(path, item), 1))
            if not waiting:
                return
            item, future, attempts = waiting[0]
            try:
                found = future.result()
            except BrokenProcessPool as error:
                if attempts >= _ATTEMPTS:
                    raise _workers_died_error(attempts) from error
                self._again(path, waiting)
                continue
            waiting.popleft()
            yield found

    def _again(self, path: Path, waiting: deque[tuple[Any, Any, int]]) -> None:
        """Starts new processes, and in them what the dead ones had not done. The part in front is the one that is suspected."""
        self.close()
        for number, (item, future, attempts) in enumerate(waiting):
            if not future.done() or future.cancelled() or future.exception() is not None:
                waiting[number] = (item, self._submit_part(path, item), attempts + (not number))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


class Cluster:
    """A cluster of dask.distributed, whose workers have qconvert, and the files of data at the same paths.

    Args:
        address: of its scheduler, such as tcp://10.0.0.1:8786.

    Raises:
        MissingPackageError: the extra `cluster` is not installed.
        OptionError: it is no address, or no scheduler answers there.
    """

    is_remote = True

    def __init__(self, address: str) -> None:
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
        self._client = untyped.__new__(untyped)
        try:
            self._client.__init__(address, timeout=_ANSWER, set_as_default=False)
        except (OSError, TimeoutError) as error:
            self._client.close()
            raise OptionError(
                f"the scheduler {address} does not answer: {error}", remedy="Start one with: dask scheduler", rule="scheduler-unreachable"
            ) from error
        except (ValueError, TypeError, OverflowError) as error:
            self._client.close()
            reason = f"{address!r} is not the address of a scheduler: {error}"
            raise OptionError(reason, remedy="Write one such as tcp://10.0.0.1:8786.", rule="scheduler-address") from error

    def map(self, function: Callable[[_A], _B], items: Iterable[_A]) -> Iterator[_B]:
        from distributed import CancelledError, KilledWorker

        waiting: deque[tuple[Any, Any, int]] = deque()
        source = iter(items)
        shared = self._client.scatter(function, broadcast=True, hash=False)
        while True:
            room = _WAITING * max(1, sum(self._client.nthreads().values())) - len(waiting)
            for item in islice(source, max(0, room)):  # a cluster may shrink
                waiting.append((item, self._submit_part(shared, item), 1))
            if not waiting:
                return
            one, future, attempts = waiting[0]
            try:
                found = future.result()
            except (KilledWorker, CancelledError) as error:
                if attempts >= _ATTEMPTS:
                    raise _workers_died_error(attempts) from error
                shared = self._client.scatter(function, broadcast=True, hash=False)  # it may have died with the worker
                waiting[0] = (one, self._submit_part(shared, one), attempts + 1)
                continue
            waiting.popleft()
            yield found

    def _submit_part(self, function: Any, item: Any) -> Any:
        return self._client.submit(_call_function, function, item, pure=False)

    def close(self) -> None:
        self._client.close()


def _call_function(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


@lru_cache(1)
def _load_function(path: Path) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = pickle.loads(path.read_bytes())  # ours: the process that started this one has just written it
    return found


def _call_from_file(path: Path, item: Any) -> Any:
    return _load_function(path)(item)


def _workers_died_error(attempts: int) -> RuntimeRefusedError:
    return RuntimeRefusedError(
        f"{attempts} workers died at the same part of the data",
        remedy="Look for a lack of memory, or run it with --jobs 1.",
        rule="workers-died",
    )


def workers_of(jobs: int = 1, scheduler: str = "") -> Workers:
    """Who runs the parts: `jobs` processes of this machine, or the cluster whose scheduler is at that address.

    Raises:
        OptionError: both are asked for, or no process at all.
    """
    if jobs < 0:
        raise OptionError(f"jobs is {jobs}; it must be at least 0", rule="number-negative")
    if scheduler and jobs > 1:
        raise OptionError("both jobs and a scheduler are given", remedy="Use --jobs or --scheduler.", rule="jobs-and-scheduler")
    if scheduler:
        return Cluster(scheduler)
    count = jobs or os.cpu_count() or 1
    return Processes(count) if count > 1 else Here()
