"""The payload of an opaque operator in a .qgraph file is text that anybody can change."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from onnx import helper
from refusals import refused

from qconvert import convert
from qconvert.errors import InvalidModelError
from qconvert.formats.qgraph.document import write
from qconvert.graph import Graph, Op, Tensor

pytestmark = pytest.mark.formats


def opaque(payload: str) -> Graph:
    attributes = {"format": "onnx", "domain": "d", "op_type": "Foo", "version": 1, "payload": payload}
    tensors = {name: Tensor(name, "float32", (4,)) for name in "xy"}
    return Graph("g", tensors, (Op("Opaque", ("x",), ("y",), attributes),), ("x",), ("y",))


def encoded(kind: str) -> str:
    return base64.b64encode(helper.make_node(kind, [], [], domain="d").SerializeToString()).decode()


def test_a_sound_payload(tmp_path: Path) -> None:
    write(opaque(encoded("Foo")), tmp_path / "m.qgraph", {})
    convert(tmp_path / "m.qgraph", tmp_path / "r.onnx")


@pytest.mark.parametrize("payload", ["x", "é", "A\nAA", "AAAA", "////", "", encoded("Bar")])
def test_an_unsound_payload(payload: str, tmp_path: Path) -> None:
    write(opaque(payload), tmp_path / "m.qgraph", {})
    with refused(InvalidModelError, "damaged-payload") as caught:
        convert(tmp_path / "m.qgraph", tmp_path / "r.onnx")
    assert caught.value.code == "invalid-model"
    assert not (tmp_path / "r.onnx").exists()
