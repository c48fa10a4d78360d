"""Correspondences in files: written, and verified in values; false ones are refused."""

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
from qconvert.graph.correspondence import GONE, Correspondence, Relation
from qconvert.graph.metadata import CORRESPONDENCE, origin
from qconvert.rewriting.claims import verify

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures"


def converted(name: str, suffix: str, folder: Path, **options: Any) -> tuple[Graph, Graph]:
    source, written = FIXTURES / name, folder / f"result{suffix}"
    convert(source, written, force=True, **options)
    return load(source), load(written)


def read_claims(result: Graph) -> Correspondence:
    """What the metadata of a result say; a tensor that the result does not name is gone."""
    document = json.loads(origin(result.metadata).get(CORRESPONDENCE, '{"tensors": {}, "gone": []}'))
    entries = {
        name: Relation(entry["tensor"], tuple(entry.get("permutation", ())), entry.get("shift"))
        for name, entry in document["tensors"].items()
    }
    found = {name: item if item.tensor in result else GONE for name, item in (dict.fromkeys(document["gone"], GONE) | entries).items()}
    return {name: item for name, item in found.items() if item != Relation(name)}


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
    claims = read_claims(result)
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
        claims = read_claims(false)
        if claims == read_claims(result):
            continue
        tried += 1
        assert verify(source, false, claims, inputs, steps=1.0), made["tensors"]
    assert tried >= 50
