"""Alters files of scales beside a model: calibration caches, tables of ncnn and qconvert's own encodings, and applies them.

data = altered_scales(scale_seeds()["t.table"], np.random.default_rng(4711))
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["altered_scales", "apply_scales", "scale_seeds", "scale_suffix"]

FIXTURES = Path(__file__).parent.parent / "fixtures"
_WORDS = (
    "0", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "1e308", "1_0", "0x10", "7f800000", "00000000", "ffffffff", "3", "", "x", "=", ":",
    "bits=4", "block=64", "_param_0", "w_param_1", "_param_", "\0", "é" * 40, "n" * 300, "\x1b[2J", "\x85", "\u2028", "\ufeff", "TRT-1-x",
    "#",
)  # fmt: skip
Rng = np.random.Generator


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
    from qconvert import apply, extract, load, load_encodings

    real = load(FIXTURES / "mnn" / "float.onnx")
    return {name: extract(apply(real, load_encodings(FIXTURES / "mnn" / f"{name}_dump.json"))) for name in ("KL", "ADMM")}


def _documents() -> list[dict[str, Any]]:
    """Encodings with all that the document can say."""
    grid = {"dtype": "int4", "scale": [[0.5, 0.25]] * 6, "zero_point": 0, "axis": 1, "block_size": 2, "quant_min": -7, "quant_max": 7}
    entries = [
        {"name": "w1", "grid": {"dtype": "int8", "scale": [0.01], "zero_point": [0], "axis": None}, "required": False},
        {"name": "x", "range": {"lowest": -1.0, "highest": [1.0], "axis": None}, "origin": "data"},
        {"name": "c1", "role": "input", "index": 1, "grid": grid},
        {"name": "c1", "role": "output", "index": 0, "range": {"lowest": [-1.0] * 6, "highest": [2.0] * 6, "axis": 1}},
    ]
    return [
        {"encodings": 1, "origin": "o", "weights": "max-abs", "metadata": {"a": "b"}, "notes": ["n"], "entries": entries[:2]},
        {"encodings": 1, "$schema": "s", "entries": entries},
    ]


def scale_suffix(data: bytes) -> str:
    """The suffix of a file by its start."""
    start = data.lstrip()[:4]
    return "cache" if start == b"TRT-" else "table" if start[:1] != b"{" else "json"


def altered_scales(data: bytes, rng: Rng) -> bytes:
    """The file with one to three changes of its values, words or lines."""
    if data.lstrip()[:1] == b"{":
        from mnn_mutations import altered_json

        return altered_json(data, rng)
    lines = [line.split(" ") for line in data.decode().split("\n")]
    for _ in range(rng.integers(1, 4)):
        line = lines[rng.integers(len(lines))]
        place = int(rng.integers(len(line)))
        word = _WORDS[rng.integers(len(_WORDS))]
        match rng.integers(7):
            case 0:
                line[place] = word
            case 1:
                line.insert(place, word)
            case 2:
                del line[place]
            case 3:
                line[place] = (word + line[place], line[place] + word, line[place][:-1])[rng.integers(3)]
            case 4:
                lines.append(list(line))
            case 5:
                other = lines[rng.integers(len(lines))]
                line[:], other[:] = list(other), list(line)
            case _:
                line += ["1.5"] * int(rng.choice([1, 5, 3000]))
    return "\n".join(" ".join(line) for line in lines).encode()


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
