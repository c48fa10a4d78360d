"""Converts a .tflite model in memory and runs source and result in their own runtimes on the same inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from loaded import tflite_graph
from tflite_models import run_litert

from qconvert.conversion import normalize
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph
from qconvert.plugins import target_named
from qconvert.rules.validation import validate
from qconvert.runtimes.onnxruntime import OnnxRuntime

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Compared:
    """One output of both sides."""

    source: Array
    result: Array

    @property
    def largest(self) -> float:
        """The largest difference: in steps of stored integers, or of the source's largest magnitude for floats."""
        assert self.source.shape == self.result.shape, f"{self.source.shape} became {self.result.shape}"
        assert self.source.dtype == self.result.dtype, f"{self.source.dtype} became {self.result.dtype}"
        if not self.source.size:
            return 0.0
        same = (self.source == self.result) | (np.isnan(a) & np.isnan(self.result) if (a := self.source).dtype.kind == "f" else False)
        difference = np.where(same, 0.0, np.abs(self.source.astype(np.float64) - self.result.astype(np.float64)))
        scale = max(float(np.abs(self.source[np.isfinite(self.source)]).max(initial=0)), 1e-6) if self.source.dtype.kind == "f" else 1.0
        return float(difference.max()) / scale

    @property
    def differing(self) -> float:
        """The share of elements that differ."""
        return float((self.source != self.result).mean()) if self.source.size else 0.0


def converted(data: bytes, target: str = "ort-x86", opset: int = 0, **options: Any) -> tuple[Graph, onnx.ModelProto]:
    """The normalized graph and the ONNX model of a .tflite model, checked by the graph's invariants and onnx.checker."""
    graph, _ = normalize(tflite_graph(data, "test"), target_named(target), **options)
    validate(graph)
    model = build(graph, opset, {})
    onnx.checker.check_model(model, full_check=True)
    return graph, model


def compare(data: bytes, inputs: list[Array], kernels: str = "default", target: str = "ort-x86", opset: int = 0) -> list[Compared]:
    """Every output of LiteRT and of onnxruntime on the converted model; that for ort-x86 runs as it does for users and must be exact."""
    graph, model = converted(data, target, opset)
    result = OnnxRuntime(model.SerializeToString(), exact=target != "ort-x86").run(dict(zip(graph.inputs, inputs, strict=True)))
    return [Compared(a, b) for a, b in zip(run_litert(data, inputs, kernels), result.values(), strict=True)]
