"""Alters MNN's documents of scales: JSON, protobuf and the FlatBuffers of .mnn files, and reads and applies what comes of it.

data = altered_mnn(Path("KL.mnn").read_bytes(), np.random.default_rng(4711))
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.altering import Rng, altered_bytes, altered_json, altered_tables

FIXTURES = Path(__file__).parents[2] / "fixtures" / "mnn"
_PPQ = {
    "shape": {"channels": 3, "height": 24, "width": 24},
    "c1 input_tensor_0": 0.5,
    "c1 output_tensor_0": 0.25,
    "s output_tensor_0": 0.125,
}


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


def altered_mnn(data: bytes, rng: Rng) -> bytes:
    """The document with one to three of its values changed, in their sort too."""
    if data[:1] in (b"[", b"{"):
        return altered_json(data, rng)
    return _protobuf(data, rng) if data[:1] == b"\n" else _network(data, rng)


def _network(data: bytes, rng: Rng) -> bytes:
    from qconvert.formats.flatbuffers import pack_model, unpack_view
    from qconvert.formats.mnn.network import NET

    return pack_model(altered_tables(unpack_view(NET.root(data)), rng))


def _protobuf(data: bytes, rng: Rng) -> bytes:
    """Bytes after the version, which says what the file is."""
    return data[:7] + altered_bytes(data[7:], rng)


def read_scales(path: Path) -> None:
    """Reads a document, and applies it to the network that it belongs to."""
    from qconvert import apply, load_encodings

    encodings = load_encodings(path)
    apply(_network_of("layers" if any(place.name == "y1" for place in encodings.entries) else "float"), encodings)


@cache
def _network_of(name: str) -> Any:
    from qconvert import load

    return load(FIXTURES / f"{name}.onnx")
