"""Definitions of operators of ai.onnx.ml that are arithmetic on tensors, as skl2onnx writes scikit-learn's pipelines with them."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, NoDefinitionError
from qconvert.graph import Array

_FLOAT = 1  # TensorProto.FLOAT


def _features(s: Decomposition) -> str:
    """The data as float32, which these operators compute."""
    return s.x if s.tensor().dtype == "float32" else s("Cast", s.x, to=_FLOAT)


def _floats(s: Decomposition, name: str) -> Array:
    return np.array(s.attribute(name, ()), np.float32)


def _scaler(s: Decomposition) -> None:
    """(x - offset) * scale, of each feature or of all."""
    moved = s("Sub", _features(s), s.const(_floats(s, "offset")))
    s.end(s("Mul", moved, s.const(_floats(s, "scale"))))


def _array_feature_extractor(s: Decomposition) -> None:
    """Elements of the last axis; data of one axis are a row (onnxruntime, array_feature_extractor.cc)."""
    rank, last = s.rank(), s.rank() - 1
    found = s("Gather", s.x, s("Reshape", s.input(1), s.ints(-1)), axis=last)
    s.end(s("Reshape", found, s.ints(1, -1)) if rank == 1 else found)


def _binarizer(s: Decomposition) -> None:
    """1 where a value is above the threshold, else 0."""
    above = s("Greater", s.x, s.number(float(s.attribute("threshold", 0.0))))
    s.end(s("Cast", above, to=s.element()))


def _normalizer(s: Decomposition) -> None:
    """Rows divided by their maximum, their sum of absolutes, or their length; where that is 0 a row stays (onnxruntime, normalizer.cc)."""
    norm = s.attribute("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise NoDefinitionError(f"the norm {norm}")
    data = _features(s)
    axes = s.ints(-1)
    size = s("ReduceMax", data, axes) if norm == "MAX" else s("ReduceL1" if norm == "L1" else "ReduceL2", data, axes)
    zero = s.const(np.float32(0))
    s.end(s("Div", data, s("Where", s("Equal", size, zero), s.const(np.float32(1)), size)))


def _linear_regressor(s: Decomposition) -> None:
    """x @ coefficients' + intercepts, of each target."""
    if s.attribute("post_transform", "NONE") != "NONE":
        raise NoDefinitionError("a function of the result")
    targets = int(s.attribute("targets", 1))
    weights = _floats(s, "coefficients").reshape(targets, -1)
    product = s("MatMul", _features(s), s.const(np.ascontiguousarray(weights.T)))
    intercepts = _floats(s, "intercepts")
    s.end(s("Add", product, s.const(intercepts)) if intercepts.size else product)


def _linear_classifier(s: Decomposition) -> None:
    """The label of the largest score, and the scores, x @ coefficients' + intercepts, or a function of them."""
    labels = s.attribute("classlabels_ints")
    function = s.attribute("post_transform", "NONE")
    if not labels or function not in ("NONE", "SOFTMAX", "LOGISTIC"):
        raise NoDefinitionError("labels that are texts, or another function of the scores")
    weights, intercepts = _floats(s, "coefficients"), _floats(s, "intercepts")
    if len(labels) < 3 or intercepts.size != len(labels) or weights.size % len(labels):
        raise NoDefinitionError("scores of one of two classes")
    product = s("MatMul", _features(s), s.const(np.ascontiguousarray(weights.reshape(len(labels), -1).T)))
    scores = s("Add", product, s.const(intercepts))
    best = s("ArgMax", scores, axis=1, keepdims=0)
    s.end(s("Gather", s.const(np.array(labels, np.int64)), best, axis=0))
    given = s("Softmax", scores, axis=1) if function == "SOFTMAX" else s("Sigmoid", scores) if function == "LOGISTIC" else scores
    s.end(given, 1)


DEFINITIONS: dict[str, Definition] = {
    "ai.onnx.ml.ArrayFeatureExtractor": _array_feature_extractor,
    "ai.onnx.ml.Binarizer": _binarizer,
    "ai.onnx.ml.LinearClassifier": _linear_classifier,
    "ai.onnx.ml.LinearRegressor": _linear_regressor,
    "ai.onnx.ml.Normalizer": _normalizer,
    "ai.onnx.ml.Scaler": _scaler,
}
