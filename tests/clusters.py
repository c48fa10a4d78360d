"""A cluster of dask on this machine, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def four_workers() -> Iterator[Any]:
    """A LocalCluster of four processes; another if the first fails to start, as on busy machines, which says nothing of qconvert."""
    distributed = pytest.importorskip("distributed")
    for left in (2, 1, 0):
        try:
            # None as the dashboard's address is port 8787, which another test's cluster may have.
            cluster = distributed.LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50)
            break
        except (OSError, RuntimeError):
            if not left:
                raise
    with cluster:
        yield cluster
