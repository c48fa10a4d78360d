"""Scales next to a model as a tab-separated table: a format of encodings, read and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import Encoding, Encodings, Format, Graph, InvalidModelError, Place, QParams, Quantization, hookimpl

HEAD = "name\ttype\taxis\tscale\tzero_point"


def read(path: Path, options: Mapping[str, Any]) -> Encodings:
    """Read a line for each tensor: name, type, axis, scales, zero points; several values are separated by spaces."""
    found: dict[Place, Encoding] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines()[1:], 2):
        try:
            name, dtype, axis, scales, zeros = line.split("\t")
            with np.errstate(over="ignore"):  # infinite scales are refused where they are applied
                numbers = np.array(scales.split(), np.float32), np.array(zeros.split(), np.int64)
            q = Quantization(*numbers, int(axis) if axis else None)
        except ValueError as error:
            raise InvalidModelError(
                f"is not a line of five columns with numbers: {error}", where=f"line {number}", rule="malformed-line"
            ) from error
        found[Place(name)] = Encoding(QParams(dtype, q))
    return Encodings(found, f"the table {path.name}")


def write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    lines = [HEAD]
    for place, entry in encodings.entries.items():
        if entry.qparams is not None and place.role == "tensor":
            q = entry.qparams.quantization
            scales, zeros = (" ".join(f"{value:.9g}" for value in values) for values in (q.scale, q.zero_point))
            lines.append(f"{place.name}\t{entry.qparams.dtype}\t{'' if q.axis is None else q.axis}\t{scales}\t{zeros}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ("integers of constants are not in the table",) if any(e.integers is not None for e in encodings.entries.values()) else ()


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    summary = "table of scales and zero points"
    return [Format("scales", (".scales",), summary, content="encodings", read_encodings=read, write_encodings=write)]
