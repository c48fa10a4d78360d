"""Correspondences in files: written, read, verified in values; false and damaged ones are refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert import Graph, convert, load
from qconvert.conversion.verifying import random_inputs
from qconvert.errors import InvalidModelError
from qconvert.graph.metadata import CORRESPONDENCE, VERSION
from qconvert.rewriting.claims import read_claims, verify

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures"


def converted(name: str, suffix: str, folder: Path, **options: Any) -> tuple[Graph, Graph]:
    source, written = FIXTURES / name, folder / f"result{suffix}"
    convert(source, written, force=True, **options)
    return load(source), load(written)


@pytest.mark.parametrize(("name", "suffix", "target"), [
    ("tiny_kws_dscnn_int8.tflite", ".onnx", "ort-x86"),
    ("tiny_resnet_cifar10_int8.tflite", ".onnx", "ort-x86"),
    ("tiny_resnet_cifar10_int8.tflite", ".onnx", "generic"),
    ("tiny_ad_toycar_int8.tflite", ".onnx", "ort-arm"),
    ("tiny_kws_dscnn_int8.tflite", ".onnx", "tensorrt"),
    pytest.param("tiny_kws_dscnn_int8.tflite", ".pt2", "torch", marks=pytest.mark.torch),
    ("tiny_kws_dscnn_int8.tflite", ".tflite", "tflite"),
    ("onnx/micro_kws_m_static_qdq.onnx", ".tflite", "tflite"),
    ("onnx/brevitas_int8.onnx", ".tflite", "tflite-same"),
])  # fmt: skip
def test_what_a_conversion_claims_holds(name: str, suffix: str, target: str, tmp_path: Path) -> None:
    source, result = converted(name, suffix, tmp_path, target=target)
    claims = read_claims(source, result)
    inputs = random_inputs(source, np.random.default_rng(0))
    assert verify(source, result, claims, inputs, steps=1.0) == ()
    related = [name for name in source.tensors if claims.get(name) is None and name in result]
    assert len(related) > len(source.ops) / 2, "most tensors keep their names"


def forged(document: dict[str, Any], source: Graph, result: Graph, rng: random.Random) -> dict[str, Any]:
    """One false claim more: another tensor of the result, a shift, or a permutation of an activation's axes."""
    inner = [op.outputs[0] for op in source.ops if op.outputs[0] in result and op.kind in ("Conv", "Add", "Gemm")]
    name = rng.choice(inner)
    entry = dict(document["tensors"].get(name, {"tensor": name}))
    sort = rng.choice(("tensor", "shift", "permutation"))
    if sort == "tensor":
        shape = result[entry["tensor"]].shape
        entry["tensor"] = rng.choice(
            [n for n in result.tensors if n != entry["tensor"] and n in inner and result[n].shape == shape] or inner[:1]
        )
    elif sort == "shift":
        entry["shift"] = rng.choice((-2, 3, 64))
    elif len(source[name].shape or ()) == 4:
        entry["permutation"] = [0, 3, 2, 1] if entry.get("permutation") != [0, 3, 2, 1] else [0, 1, 3, 2]
    return {**document, "tensors": {**document["tensors"], name: entry}}


def test_false_claims_are_refuted(tmp_path: Path) -> None:
    source, result = converted("tiny_resnet_cifar10_int8.tflite", ".onnx", tmp_path, target="ort-x86")
    document = json.loads(result.metadata[CORRESPONDENCE])
    inputs = random_inputs(source, np.random.default_rng(1))
    rng, tried = random.Random(0), 0
    for _ in range(60):
        made = forged(document, source, result, rng)
        if made == document:
            continue
        false = replace(result, metadata={**result.metadata, CORRESPONDENCE: json.dumps(made)})
        claims = read_claims(source, false)
        if claims == read_claims(source, result):
            continue
        tried += 1
        assert verify(source, false, claims, inputs, steps=1.0), made["tensors"]
    assert tried >= 50


@pytest.mark.parametrize("text", [
    "[]", "{", '{"schema": 2, "tensors": {}, "gone": []}', '{"schema": 1, "tensors": {}}', '{"schema": 1, "tensors": [], "gone": []}',
    '{"schema": 1, "tensors": {}, "gone": [1]}', '{"schema": 1, "tensors": {"nothing": {"tensor": "nothing"}}, "gone": []}',
    '{"schema": 1, "tensors": {"INPUT": {"tensor": "INPUT", "permutation": [0, 0, 1, 2]}}, "gone": []}',
    '{"schema": 1, "tensors": {"INPUT": {"tensor": "INPUT", "permutation": [1, 0]}}, "gone": []}',
    '{"schema": 1, "tensors": {"INPUT": {"tensor": "INPUT", "shift": 0.5}}, "gone": []}',
    '{"schema": 1, "tensors": {"INPUT": {"tensor": "INPUT", "also": 1}}, "gone": []}',
])  # fmt: skip
def test_damaged_claims_are_refused(text: str) -> None:
    source = load(FIXTURES / "tiny_resnet_cifar10_int8.tflite")
    false = replace(source, metadata={VERSION: "1", CORRESPONDENCE: text.replace("INPUT", source.inputs[0])})
    with pytest.raises(InvalidModelError):
        read_claims(source, false)
