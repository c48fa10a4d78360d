"""What a result says of where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qconvert.conversion.report import keeps_values
from qconvert.files import file_digest
from qconvert.graph.metadata import (
    BESIDE,
    CHANGES,
    OPTIONS,
    SCALES,
    SCHEMA,
    SCHEMA_NUMBER,
    SOURCE,
    SOURCE_DATA,
    SOURCE_SHA256,
    TARGET,
    VERSION,
)
from qconvert.plugins import Change, Target, declared_options
from qconvert.version import __version__

__all__ = ["noted_options", "provenance"]


def provenance(
    source: Path,
    others: tuple[Path, ...],
    target: Target | None,
    changes: tuple[Change, ...],
    passes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    beside: Mapping[str, Path] = MappingProxyType({}),
) -> dict[str, str]:
    """What the result says of where it came from; no paths, since a model file travels.

    Args:
        source: the model's file.
        others: further files that belong to it.
        target: that it was fitted to.
        changes: what passes did.
        passes: those that the user named.
        options: of the conversion.
        beside: other files that options name, by the option.

    Only the model's own file is hashed: files of constants can be larger than memory, and are named with their sizes.
    """
    given = noted_options(options or {})
    return {
        VERSION: __version__,
        SCHEMA: SCHEMA_NUMBER,
        SOURCE: source.name,
        SOURCE_SHA256: file_digest(source),
        **({SOURCE_DATA: json.dumps({item.name: item.stat().st_size for item in others})} if others else {}),
        **{f"{BESIDE}{option}": item.name for option, item in beside.items()},
        **{f"{BESIDE}{option}_sha256": file_digest(item) for option, item in beside.items()},
        TARGET: target.name if target else "",
        OPTIONS: json.dumps({"passes": list(passes), "options": given}, default=str),
        CHANGES: json.dumps([_serialize_change(change) for change in changes]),
        SCALES: "all scales and zero points are the source's own" if keeps_values(changes) else "some are new: see qconvert.changes",
    }


def noted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their defaults, without those that name files."""
    known = declared_options()
    return {
        name: value
        for name, value in sorted(options.items())
        if name not in known
        or (value != known[name].default and not known[name].is_file and not known[name].scales and name != "encodings_options")
    }


def _serialize_change(change: Change) -> dict[str, Any]:
    """A change as the metadata hold it."""
    costs = [{"tensor": cost.tensor, "sqnr_db": cost.sqnr_db, "largest": cost.largest} for cost in change.costs]
    return {"pass": change.by, "change": change.text, "exact": change.exact, **({"costs": costs} if costs else {})}
