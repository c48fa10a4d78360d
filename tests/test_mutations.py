"""Damaged and altered files end in a result or in one clear error; tests/mutations.py says how, and tries more of them (make fuzz)."""

from __future__ import annotations

import os
import signal  # noqa: F401 (one of the faults names it)

import pytest
from mutations import LIMIT_S, MEMORY, SOURCES, mutated, search, seeds

import qconvert

#: 8,600 files in all, in parts that can run side by side.
PARTS = {"tflite": (650, 650), "onnx": (600, 600), "qgraph": (1250, 1250), "torch": (300, 300), "mnn": (1000, 1000), "scales": (500, 500)}


@pytest.mark.parametrize(("format", "part"), [(name, part) for name in SOURCES for part in range(2)])
def test_nothing_but_results_and_errors(format: str, part: int) -> None:
    start = part * PARTS[format][0]
    outcomes, findings = search(format, 9, range(start, start + PARTS[format][part]), each=False)
    assert not findings
    assert outcomes["done"] > PARTS[format][part] // 12
    assert outcomes["invalid-model"] > PARTS[format][part] // 12
    assert not outcomes["invalid-graph"]  # of a graph that a program gives, never of a file


@pytest.mark.parametrize("format", SOURCES)
def test_mutations_are_repeatable_and_differ_from_their_seeds(format: str) -> None:
    found = [mutated(format, 1, index) for index in range(40)]
    assert found == [mutated(format, 1, index) for index in range(40)]
    assert all(data != seeds(format).get(name) for name, data in found)
    assert len({data for _, data in found}) == 40


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('x')", "ValueError"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("[None for _ in iter(int, 1)]", f"over {LIMIT_S} s"),
        (f"b'x' * {MEMORY + 2**26}", "MB for"),
    ],
)
def test_what_a_search_finds(code: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception, a signal, a hang and too much memory are findings, and the search goes on behind each."""
    parent, load = os.getpid(), qconvert.load

    def broken(path: object, **options: object) -> object:
        if os.getpid() != parent:
            exec(code)
        return load(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(qconvert, "load", broken)
    _, findings = search("qgraph", 1, range(2), each=False)
    assert len(findings) == 2
    assert all(words in item.what for item in findings)
