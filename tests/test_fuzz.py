"""Damaged and altered files end in a result or in one clear error; tests/fuzz says how, and tries more of them (make fuzz)."""

from __future__ import annotations

import os
import signal  # noqa: F401 (one of the faults names it)
from collections.abc import Iterator

import pytest
from fuzz import sets
from fuzz.readers import READERS, mutated
from fuzz.search import LIMIT_S, MEMORY, search

import qconvert
from qconvert.plugins import host

pytestmark = pytest.mark.formats

#: Files of each reader, in two parts that can run side by side; 9,600 in all.
COUNTS = {"tflite": 1300, "onnx": 1200, "qgraph": 2500, "torch": 600, "state": 400, "external": 150, "partition": 100, "mnn": 1500,
          "scales": 800, "data": 500, "plugins": 300}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def plugins_for_a_while() -> Iterator[None]:
    """Other tests run with what is built in alone."""
    before = set(host._host().origins)
    yield
    for name in host._host().origins.keys() - before:
        host._host().remove(name)
    sets._with_plugins.cache_clear()


@pytest.mark.litert
@pytest.mark.parametrize(("reader", "part"), [(name, part) for name in READERS for part in range(2)])
def test_nothing_but_results_and_errors(reader: str, part: int) -> None:
    half = COUNTS[reader] // 2
    outcomes, findings = search(reader, 9, range(part * half, (part + 1) * half), "turn")
    assert not findings
    assert outcomes["done"] > half // 25
    assert sum(outcomes.values()) - outcomes["done"] > half // 3


@pytest.mark.litert
@pytest.mark.parametrize("reader", READERS)
def test_mutations_are_repeatable_and_differ_from_their_seeds(reader: str) -> None:
    found = [mutated(reader, 1, index) for index in range(40)]
    assert found == [mutated(reader, 1, index) for index in range(40)]
    assert all(data != READERS[reader].seeds().get(name) for name, data in found)
    assert len({data for _, data in found}) > 36


@pytest.mark.litert
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('x')", "ValueError"),
        ("raise qconvert.plugin.QConvertError('x')", "error, exit code 2"),
        ("raise qconvert.errors.InternalError('x')", "internal, exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("[None for _ in iter(int, 1)]", f"over {LIMIT_S} s"),
        (f"b'x' * {MEMORY + 2**26}", "MB for"),
        ("b'x' * 2**40", "MemoryError"),
    ],
)
def test_what_a_search_finds(code: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception, an error that no page lists, a signal, a hang and too much memory are findings, and the search goes on after each."""
    parent, load = os.getpid(), qconvert.load

    def broken(path: object, **options: object) -> object:
        if os.getpid() != parent:
            exec(code)
        return load(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(qconvert, "load", broken)
    _, findings = search("qgraph", 1, range(2), "turn")
    assert len(findings) == 2
    assert all(words in item.what for item in findings)
