"""What a result says of where it came from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from qconvert.graph.metadata import CHANGES, SCALES, SOURCE, SOURCE_DATA, SOURCE_SHA256, TARGET, VERSION
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
        VERSION: __version__,
        SOURCE: source.name,
        SOURCE_SHA256: digest,
        **({SOURCE_DATA: json.dumps({item.name: item.stat().st_size for item in others})} if others else {}),
        TARGET: target.name if target else "",
        CHANGES: json.dumps([{"pass": name, "change": note} for name, note in changes]),
        SCALES: "all scales and zero points are the source's own" if exact else "some are new: see qconvert.changes",
    }
