"""Runs one operator in the exact evaluation, in onnx's reference and in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from onnx_nodes import model_of

from qconvert.evaluate import ExactResult, evaluate_op
from qconvert.graph import Array, Graph, Op, Quantization, Tensor

Given = Array | tuple[Array, Quantization] | None
Wanted = str | tuple[str, Quantization | None]

quick = settings(max_examples=25)


def run(kind: str, inputs: Sequence[Given], *wanted: Wanted, **attributes: Any) -> list[ExactResult]:
    """Evaluates one operator; outputs are float64 unless `wanted` names dtypes, with quantizations."""
    tensors: dict[str, Tensor] = {}
    names, arrays = [], []
    for number, item in enumerate(inputs):
        data, quantization = item if isinstance(item, tuple) else (item, None)
        names.append("" if data is None else f"x{number}")
        arrays.append(data)
        if data is not None:
            tensors[names[-1]] = Tensor(names[-1], data.dtype.name, data.shape, None, quantization)
    outputs = []
    for number, dtype in enumerate(wanted or ("float64",)):
        name, quantization = dtype if isinstance(dtype, tuple) else (dtype, None)
        outputs.append(f"y{number}")
        tensors[outputs[-1]] = Tensor(outputs[-1], name, None, None, quantization)
    op = Op(kind, tuple(names), tuple(outputs), attributes)
    return evaluate_op(Graph("test", tensors, (op,), (), tuple(outputs)), op, arrays)


def onnx_node(kind: str, inputs: Sequence[Array | None], outputs: int = 1, **attributes: Any) -> Any:
    """A model with one ONNX operator of opset 21, or of the one it first came with, and its feeds."""
    import onnx
    from onnx import helper

    given_inputs = [(f"x{i}", value) for i, value in enumerate(inputs) if value is not None]
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(kind, names, results, **attributes)
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in given_inputs],
        [onnx.ValueInfoProto(name=name) for name in results],
    )
    opset = 23 if kind == "RMSNormalization" else 21
    model = model_of(graph, opset)
    return model, dict(given_inputs)


def reference(kind: str, inputs: Sequence[Array | None], outputs: int = 1, **attributes: Any) -> list[Array]:
    """The operator in onnx's reference implementation, which computes in the dtype of its inputs."""
    from onnx.reference import ReferenceEvaluator

    model, feeds = onnx_node(kind, inputs, outputs, **attributes)
    return list(ReferenceEvaluator(model).run(None, feeds))


def runtime(kind: str, inputs: Sequence[Array | None], outputs: int = 1, **attributes: Any) -> list[Array]:
    """The operator in onnxruntime."""
    from qconvert.runtimes.onnxruntime import OnnxRuntime

    model, feeds = onnx_node(kind, inputs, outputs, **attributes)
    return list(OnnxRuntime(model.SerializeToString()).run(feeds).values())


def close(got: ExactResult, expected: Array, tolerance: float = 1e-12) -> None:
    assert got.stored.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert np.allclose(got.stored, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
