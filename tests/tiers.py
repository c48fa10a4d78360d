"""Which tests need what: markers, which of them `make test` runs, and the guard that holds a test to its markers.

A test without a marker is `core`: it computes with numpy alone. Every other one says what it needs; a file says so once for all of its
tests (`pytestmark`). The guard fails a test that imports a runtime or starts a process without a marker for either.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

#: Runtime -> its packages. A test with the marker of one may import any of them.
RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "litert": ("ai_edge_litert",),
    "mnn": ("MNN",),
    "onnxruntime": ("onnxruntime",),
    "tensorrt": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
    "tflite_micro": ("tflite_micro",),
    "torch": ("torch",),
}
#: What each marker says of a test.
MARKERS: Mapping[str, str] = {
    "core": "needs no runtime, no process and no model file; a test without another marker has it",
    "formats": "reads or writes model files",
    **{name: f"runs {', '.join(packages)}" for name, packages in RUNTIMES.items()},
    "property": "tries many random examples",
    "end_to_end": "runs commands, or several runtimes in turn",
    "repository": "is about the documentation, the site, the zoo or the distribution",
    "cross_section": "stands for others that need a runtime, in `make test`",
    "slow": "takes half a minute; `make slow` runs it",
}
#: What `make test` runs: tests with one of these markers, and those that have no marker but `formats`.
QUICK = ("core", "cross_section")


def names_of(item: pytest.Item) -> frozenset[str]:
    """The markers of a test among MARKERS; `core` if it has none."""
    return frozenset(mark.name for mark in item.iter_markers() if mark.name in MARKERS) or frozenset(("core",))


def select(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that `make test` runs, and the others."""
    quick, others = [], []
    for item in items:
        names = names_of(item)
        (quick if names.intersection(QUICK) or names == {"formats"} else others).append(item)
    return quick, others


def summary_of(left_out: Collection[pytest.Item]) -> str:
    """A line that says how many tests of each marker were left out."""
    counts = Counter(name for item in left_out for name in names_of(item))
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.most_common() if name != "formats")
    return f"left out: {len(left_out):,} tests ({listed}); make test-all runs them"


#: Whether the test that runs may run a runtime, and start processes; none is running: anything may.
_RUNNING: list[tuple[bool, bool]] = []
_MARKER_OF = {package: name for name, packages in RUNTIMES.items() for package in packages}


@contextmanager
def guard(names: frozenset[str]) -> Iterator[None]:
    """Fail what imports a runtime, or starts a process, in a test that no marker says it of."""
    runs = bool(names.intersection(("end_to_end", *RUNTIMES)))
    _RUNNING.append((runs, runs or "repository" in names))
    try:
        yield
    finally:
        _RUNNING.pop()


def _refuse_import(module: str) -> None:
    package = module.partition(".")[0]
    if package in _MARKER_OF and _RUNNING and not _RUNNING[-1][0]:
        pytest.fail(f"the test imports {package} and has no marker {_MARKER_OF[package]} (tests/tiers.py)")


def _refuse_process(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("subprocess.Popen", "os.fork") and _RUNNING and not _RUNNING[-1][1]:
        pytest.fail(f"the test starts a process ({event}) and has no marker that says so (tests/tiers.py)")


def install() -> None:
    """Watch imports and processes from now on. Once: a test that replaces `__import__` puts back what it found."""
    imported, loaded = builtins.__import__, importlib.import_module

    def import_watched(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        if level == 0:
            _refuse_import(name)
        return imported(name, globals, locals, fromlist, level)

    def load_watched(name: str, package: str | None = None) -> ModuleType:
        _refuse_import(name)
        return loaded(name, package)

    builtins.__import__, importlib.import_module = import_watched, load_watched
    sys.addaudithook(_refuse_process)
