"""Alters files of scales next to a model: calibration caches, tables of ncnn and qconvert's own encodings, and applies them.

data = altered_scales(scale_seeds()["t.table"], np.random.default_rng(4711))
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.altering import Rng, altered_json, altered_lines

FIXTURES = Path(__file__).parents[2] / "fixtures"


@cache
def scale_seeds() -> dict[str, bytes]:
    """Small sound files by name; their suffixes say what they are."""
    from qconvert import save_encodings

    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (graph, encodings) in _taken_apart().items():
            for suffix in ("json", "table", "cache"):
                path = Path(folder, f"{name}.{suffix}")
                save_encodings(encodings, path, "" if suffix != "json" else "encodings", graph=graph)
                found[path.name] = path.read_bytes()
    for version in range(2):
        found[f"blocks {version}.json"] = json.dumps(_documents()[version]).encode()
    return found


@cache
def _taken_apart() -> dict[str, tuple[Any, Any]]:
    """The network with MNN's scales, once more without them, and these, whose names are its own."""
    from qconvert import apply, extract_scales, load, load_encodings

    real = load(FIXTURES / "mnn" / "float.onnx")
    return {name: extract_scales(apply(real, load_encodings(FIXTURES / "mnn" / f"{name}_dump.json"))) for name in ("KL", "ADMM")}


def _documents() -> list[dict[str, Any]]:
    """Encodings with all that the document can say."""
    quantization = {
        "dtype": "int4",
        "scale": [[0.5, 0.25]] * 6,
        "zero_point": 0,
        "axis": 1,
        "block_size": 2,
        "quant_min": -7,
        "quant_max": 7,
    }
    entries = [
        {"name": "w1", "qparams": {"dtype": "int8", "scale": [0.01], "zero_point": [0], "axis": None}, "required": False},
        {"name": "x", "range": {"lowest": -1.0, "highest": [1.0], "axis": None}, "origin": "data"},
        {"name": "c1", "role": "input", "index": 1, "qparams": quantization},
        {"name": "c1", "role": "output", "index": 0, "range": {"lowest": [-1.0] * 6, "highest": [2.0] * 6, "axis": 1}},
    ]
    return [
        {"encodings": 2, "origin": "o", "weights": "max-abs", "metadata": {"a": "b"}, "notes": ["n"], "entries": entries[:2]},
        {"encodings": 2, "$schema": "s", "entries": entries},
    ]


def altered_scales(data: bytes, rng: Rng) -> bytes:
    """The file with one to three changes of its values, words or lines."""
    return altered_json(data, rng) if data.lstrip()[:1] == b"{" else altered_lines(data, rng)


def apply_scales(path: Path) -> None:
    """Reads a file, and applies it to the networks that it may belong to."""
    from qconvert import QConvertError, apply, load_encodings

    encodings = load_encodings(path)
    failed = []
    for network in _networks():
        try:
            apply(network, encodings)
        except QConvertError as error:
            failed.append(error)
    if len(failed) == len(_networks()):
        raise failed[0]


@cache
def _networks() -> tuple[Any, ...]:
    from qconvert import load

    return load(FIXTURES / "mnn" / "float.onnx"), *(graph for graph, _ in _taken_apart().values())
