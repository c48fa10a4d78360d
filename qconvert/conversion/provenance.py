"""What a result says of where it came from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from qconvert.plugins import Target, pass_named
from qconvert.version import __version__

__all__ = ["provenance"]


def provenance(source: Path, others: tuple[Path, ...], target: Target | None, changes: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """What the result says of where it came from; no paths, since a model file travels.

    Only the model's own file is hashed: files of constants can be larger than memory, and are named with their sizes.
    """
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    exact = all(pass_named(name).exact for name, _ in changes)
    return {
        "qconvert.version": __version__,
        "qconvert.source": source.name,
        "qconvert.source_sha256": digest,
        **({"qconvert.source_data": json.dumps({item.name: item.stat().st_size for item in others})} if others else {}),
        "qconvert.target": target.name if target else "",
        "qconvert.changes": json.dumps([{"pass": name, "change": note} for name, note in changes]),
        "qconvert.scales": "all scales and zero points are the source's own" if exact else "some are new: see qconvert.changes",
    }
