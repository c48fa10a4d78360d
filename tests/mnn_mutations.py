"""Alters MNN's documents of scales: JSON, protobuf and the FlatBuffers of .mnn files, and reads and applies what comes of it.

data = altered_mnn(Path("KL.mnn").read_bytes(), np.random.default_rng(4711))
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["altered_json", "altered_mnn", "mnn_seeds", "mnn_suffix", "read_scales"]

FIXTURES = Path(__file__).parent.parent / "fixtures" / "mnn"
_PPQ = {
    "shape": {"channels": 3, "height": 24, "width": 24},
    "c1 input_tensor_0": 0.5,
    "c1 output_tensor_0": 0.25,
    "s output_tensor_0": 0.125,
}
_VALUES = (None, True, False, 1e999, -1, 0, 1, 2**31, 2**63, 2**70, -(2**63), "", "x", [], {}, [[]] * 3, [1, "a"], 0.5, -0.5, 1e-45)
Rng = np.random.Generator


def mnn_seeds() -> dict[str, bytes]:
    """The documents of fixtures/mnn by name, dumps in the older layouts, and one of PPQ."""
    found = {path.name: path.read_bytes() for path in sorted(FIXTURES.iterdir()) if path.suffix in (".mnn", ".json", ".bin")}
    found["ppq.json"] = json.dumps(_PPQ).encode()
    dump = json.loads(found["KL_dump.json"])
    for name, factors in (("dump_b.json", (1,)), ("dump_c.json", (1, 2, 3))):
        older = copy.deepcopy(dump)
        for item in [item for op in older for side in ("inputs", "outputs") for item in op.get(side, [])]:
            del item["zeropoint"]
            item["scales"] = [item["scales"][0] * factor for factor in factors]
        found[name] = json.dumps(older).encode()
    return found


def mnn_suffix(data: bytes) -> str:
    """The suffix of a document by its first byte."""
    return "json" if data[:1] in (b"[", b"{") else "bin" if data[:1] == b"\n" else "mnn"


def altered_mnn(data: bytes, rng: Rng) -> bytes:
    """The document with one to three of its values changed, in their sort too."""
    kind = mnn_suffix(data)
    return altered_json(data, rng) if kind == "json" else _network(data, rng) if kind == "mnn" else _protobuf(data, rng)


def altered_json(data: bytes, rng: Rng) -> bytes:
    """The document with one to three of its values left out, moved, or changed in their sort too."""
    from mutations import _altered, _places, _put

    document = json.loads(data)
    pool = [item for _, _, item in _places(document) if isinstance(item, str)]
    for _ in range(rng.integers(1, 4)):
        places = list(_places(document))
        if not places:
            break
        holder, key, value = places[rng.integers(len(places))]
        match rng.integers(5):
            case 0 if isinstance(holder, dict):
                holder.pop(key)
            case 1:
                _put(holder, key, copy.deepcopy(places[rng.integers(len(places))][2]))
            case 2:
                _put(holder, key, _VALUES[rng.integers(len(_VALUES))])
            case _:
                _put(holder, key, _altered(value, rng, pool))
    return json.dumps(document).encode()


def _network(data: bytes, rng: Rng) -> bytes:
    from mutations import altered_tables

    from qconvert.formats.flatbuffers import packed, unpacked
    from qconvert.formats.mnn.schema import NET

    return packed(altered_tables(unpacked(NET.root(data)), rng))


def _protobuf(data: bytes, rng: Rng) -> bytes:
    """Bytes behind the version, which says what the file is."""
    from mutations import _bytes_altered

    return data[:7] + _bytes_altered(data[7:], rng)


def read_scales(path: Path) -> None:
    """Reads a document, and applies it to the network that it belongs to."""
    from qconvert import apply, load_encodings

    encodings = load_encodings(path)
    apply(_network_of("layers" if any(place.name == "y1" for place in encodings.entries) else "float"), encodings)


@cache
def _network_of(name: str) -> Any:
    from qconvert import load

    return load(FIXTURES / f"{name}.onnx")
