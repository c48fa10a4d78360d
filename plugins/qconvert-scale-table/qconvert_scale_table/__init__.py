"""Writes the scales of a quantized graph as a tab-separated table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qconvert import Format, Graph, hookimpl


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> None:
    """A line for each quantized tensor: name, type, axis, scales, zero points; several values are separated by spaces."""
    lines = ["name\ttype\taxis\tscale\tzero_point"]
    for tensor in graph.tensors.values():
        q = tensor.quantization
        if q is not None:
            scales, zeros = (" ".join(f"{value:.9g}" for value in values) for values in (q.scale, q.zero_point))
            lines.append(f"{tensor.name}\t{tensor.dtype}\t{'' if q.axis is None else q.axis}\t{scales}\t{zeros}")
    path.write_text("\n".join(lines) + "\n")


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [Format("scales", (".scales",), "table of scales and zero points", write=write)]
