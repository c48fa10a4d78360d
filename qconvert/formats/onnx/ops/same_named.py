"""Operators that ONNX has under the name of a kind: they are read and written as that kind, unless the module of their family says more."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.proto import HIGHEST_OPSET, defs
from qconvert.formats.onnx.reading import Readers, Reading
from qconvert.graph import Op
from qconvert.operators import KINDS


def read_same_named(r: Reading) -> None:
    """An operator that ONNX has under the same name."""
    r.emit(r.op_type, **r.own_attributes())


def write_named(op: Op, b: Builder) -> None:
    """The operator that ONNX calls like the kind, of float values."""
    b.compute(op)


def write_stored(op: Op, b: Builder) -> None:
    """The same on stored numbers."""
    b.compute_stored(op)


_KINDS = [kind for kind in KINDS.values() if defs.has_schema(kind.name, HIGHEST_OPSET, "")]

WRITERS: Writers = {kind.name: write_named if kind.rule == "real" else write_stored for kind in _KINDS}

READERS: Readers = dict.fromkeys(WRITERS, read_same_named)
