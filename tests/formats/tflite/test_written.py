"""A graph's operators are written once for the rules and for the file, and taking one of them back leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import qconvert
from qconvert.formats.tflite import write_operators as module
from qconvert.formats.tflite.writing import Writing

pytestmark = pytest.mark.formats

FIXTURE = Path(__file__).parents[3] / "fixtures" / "tiny_resnet_cifar10_int8.tflite"


def test_kept_until_taken() -> None:
    graph = qconvert.load(FIXTURE)
    first = module.write_operators(graph)
    assert module.write_operators(graph) is first and module.take_operators(graph) is first
    assert module.write_operators(graph) is not first  # whoever took it may have changed it
    assert module.write_operators(graph.evolve()).writing.graph is not graph


def test_conversion_writes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Writing] = []
    write = Writing.__init__

    def counted(self: Writing, graph: qconvert.Graph, *known: Any) -> None:
        made.append(self)
        write(self, graph, *known)

    monkeypatch.setattr(Writing, "__init__", counted)
    qconvert.convert(FIXTURE, tmp_path / "result.tflite", target="tflite")
    assert len(made) == 1 and len(made[0].operators) > 10
