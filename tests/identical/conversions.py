"""A matrix of conversions of every real model at hand, and a hash of each result: what a change of the code's shape must leave alone.

python tests/identical/conversions.py HASHES.json    writes the hashes of the code that is imported
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "fixtures", ROOT.parent / "shared" / "models")

_TO_ONNX: tuple[dict[str, Any], ...] = (
    {},
    {"target": "generic", "numerics": "fast"},
    {"target": "ort-arm", "form": "qoperator"},
    {"target": "ort-x86-vnni", "io_layout": "nchw", "io_float": True},
    {"passes": ["per_tensor_to_per_axis", "fold_constants", "deduplicate_constants"], "opset": 21},
)
_TO_TFLITE: tuple[dict[str, Any], ...] = (
    {"target": "tflite"},
    {"target": "tflite-same"},
    {"target": "tflite-uint8", "io_integer": True},
    {"target": "tflite-micro", "partial": "forbid"},
)


@cache
def models() -> list[Path]:
    """Every .tflite and .onnx at hand, one of each content."""
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".tflite", ".onnx"):
                found.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return list(found.values())


def cases() -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """(model, suffix of the result, options of convert())."""
    for path in models():
        for options in _TO_ONNX:
            yield path, ".onnx", options
        for options in _TO_TFLITE:
            yield path, ".tflite", options


def key(path: Path, suffix: str, options: dict[str, Any]) -> str:
    """A case as a text that is the same on every machine."""
    return f"{path.name}#{hashlib.sha256(path.read_bytes()).hexdigest()[:8]} -> {suffix} {json.dumps(options, sort_keys=True)}"


def outcome(path: Path, suffix: str, options: dict[str, Any]) -> str:
    """The SHA-256 of the file written, or the code of the error that refused it."""
    import qconvert

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / f"result{suffix}"
        try:
            qconvert.convert(path, result, **options)
        except qconvert.QConvertError as error:
            return f"refused: {error.code}"
        digest = hashlib.sha256()
        for part in sorted(Path(folder).iterdir()):
            digest.update(_without_notes(part.read_bytes()) if part.suffix == ".onnx" else part.read_bytes())
        return digest.hexdigest()


#: Metadata of ONNX results that name attributes of the graph, which have other names now: `ties` and `fixed_point` became `arithmetic`.
_NOTES = ("qconvert.spelled", "qconvert.attributes")


def _without_notes(data: bytes) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(data)
    kept = [entry for entry in model.metadata_props if entry.key not in _NOTES]
    if len(kept) == len(model.metadata_props):
        return data
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    return model.SerializeToString(deterministic=True)


def _one(case: tuple[Path, str, dict[str, Any]]) -> tuple[str, str]:
    return key(*case), outcome(*case)


if __name__ == "__main__":
    with ProcessPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        hashes = dict(pool.map(_one, cases(), chunksize=9))
    Path(sys.argv[1]).write_text(json.dumps(hashes, indent=0, sort_keys=True) + "\n")
    print(len(hashes), "cases", sum(value.startswith("refused") for value in hashes.values()), "refused")
