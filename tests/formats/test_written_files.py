"""The structural check of files that were just written: sound ones pass, and each kind of contradiction is found and placed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from passes.graphs import constant, make, q
from refusals import refused

from qconvert import Graph, Op, Tensor
from qconvert.errors import InvalidModelError
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.onnx.container import check as check_onnx
from qconvert.formats.onnx.writer import build as build_onnx
from qconvert.formats.tflite.schema import root
from qconvert.formats.tflite.verify import check as check_tflite
from qconvert.formats.tflite.writer import build as build_tflite

pytestmark = pytest.mark.formats


def network() -> Graph:
    """x -> Gemm with weights and bias -> a -> Relu -> y."""
    product = float(np.float32(0.05) * np.float32(0.02))
    tensors = [
        Tensor("x", "int8", (2, 4), None, q(0.05, 3)),
        constant("w", np.arange(12, dtype=np.int8).reshape(3, 4), q(0.02)),
        constant("b", np.array([9, -8, 7], np.int32), q(product)),
        Tensor("a", "int8", None, None, q(0.1, 5)), Tensor("y", "int8", None, None, q(0.1, 5)),
    ]  # fmt: skip
    return make([Op("Gemm", ("x", "w", "b"), ("a",)), Op("Relu", ("a",), ("y",))], tensors, "x", "a y")


def _swapped(model: Any) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])


def _second(name: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        node = model.graph.node[-1]
        if name == "name":
            node.name = model.graph.node[0].name
        elif name == "output":
            node.output[0] = model.graph.node[0].output[0]
        else:
            model.graph.output.append(model.graph.output[0])

    return change


ONNX: dict[str, tuple[Callable[[Any], Any], str]] = {
    "order": (_swapped, "not-computed"),
    "name of a node": (_second("name"), "duplicate-name"),
    "origin": (_second("output"), "duplicate-name"),
    "output": (_second("graph output"), "duplicate-output"),
    "nobody writes": (lambda m: m.graph.node[-1].input.__setitem__(0, "nowhere"), "unknown-value"),
    "size of a constant": (lambda m: m.graph.initializer[0].dims.append(7), "wrong-length"),
    "no graph": (lambda m: m.ClearField("graph"), "graph-missing"),
    "opset": (lambda m: m.opset_import.pop(), "no-opset"),
}


@pytest.mark.parametrize("case", ONNX)
def test_an_onnx_file_that_contradicts_itself(case: str, tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", build_onnx(network(), 0, {})
    path.write_bytes(model.SerializeToString())
    check_onnx(path)
    change, rule = ONNX[case]
    change(model)
    path.write_bytes(model.SerializeToString())
    with refused(InvalidModelError, rule):
        check_onnx(path)


def _of(items: Any, name: bytes) -> Any:
    return next(item for item in items if item.name in (name, name.decode()))


def _operator(number: int, field: str, value: Any) -> Callable[[Any], None]:
    return lambda m: setattr(m.subgraphs[0].operators[number], field, value)


def _tensor(name: bytes, field: str, value: Any) -> Callable[[Any], None]:
    return lambda m: setattr(_of(m.subgraphs[0].tensors, name), field, value)


def _numbers(*values: int) -> Any:
    return np.array(values, np.int32)


def _reversed(m: Any) -> None:
    m.subgraphs[0].operators = m.subgraphs[0].operators[::-1]


TFLITE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape against buffer": (_tensor(b"w", "shape", _numbers(3, 5)), ("buffer-too-short", 15, 12)),
    "type against buffer": (_tensor(b"w", "type", 7), ("buffer-too-short", 24)),
    "buffer": (_tensor(b"w", "buffer", 99), ("unknown-buffer", 99)),
    "two names": (_tensor(b"w", "name", "b"), ("duplicate-name",)),
    "no name": (_tensor(b"w", "name", ""), ("no-name",)),
    "order": (_reversed, ("not-computed", "a")),
    "operator code": (_operator(0, "opcodeIndex", 9), ("unknown-operator-code", 9)),
    "index": (_operator(0, "inputs", _numbers(0, 77, 2)), ("unknown-tensor", 77)),
    "origin": (lambda m: _operator(1, "outputs", m.subgraphs[0].operators[0].outputs)(m), ("two-producers",)),
    "writes a constant": (_operator(1, "outputs", _numbers(1)), ("two-producers",)),
    "no output": (_operator(1, "outputs", _numbers(-1)), ("two-producers",)),
    "version": (lambda m: setattr(m.operatorCodes[0], "version", 0), ("wrong-operator-version", 0)),
    "operator": (lambda m: setattr(m.operatorCodes[0], "builtinCode", 4000), ("wrong-operator-version", 4000)),
    "subgraph": (lambda m: setattr(m, "subgraphs", []), ("no-subgraph",)),
}  # fmt: skip


@pytest.mark.parametrize("case", TFLITE)
def test_a_tflite_file_that_contradicts_itself(case: str, tmp_path: Path) -> None:
    path, data = tmp_path / "m.tflite", build_tflite(network(), {})
    path.write_bytes(data)
    check_tflite(path)
    model = unpack_view(root(data))
    change, broken = TFLITE[case]
    change(model)
    path.write_bytes(pack_model(model))
    with refused(InvalidModelError, broken[0], holds=broken[1:]):
        check_tflite(path)
