"""What a conversion reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qconvert.graph import Graph
from qconvert.graph.metadata import IGNORED_SCALES

__all__ = ["ConversionReport", "carried_over", "remarks"]


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        source, result: the files.
        source_format, result_format, target: names.
        operators: kinds in the result's graph with their counts.
        changes: for each pass that changed something, its name and what it changed. `qconvert passes` says which are exact.
        kept: counts of what was carried over (weights, scales …).
        audit: which operators the target runs as integer kernels; see targets/audit.py.
        seconds: wall time.
        provenance: what the file's metadata say of where it came from.
        verified: with verify_each, each pass that changed the graph and what it did to the outputs.
    """

    source: str
    result: str
    source_format: str
    result_format: str
    target: str
    operators: Mapping[str, int]
    changes: tuple[tuple[str, str], ...]
    kept: Mapping[str, int]
    audit: tuple[Any, ...] = ()
    seconds: float = 0.0
    provenance: Mapping[str, str] = field(default_factory=dict)
    verified: tuple[tuple[str, str], ...] = ()


def remarks(graph: Graph) -> tuple[str, ...]:
    """What a reader took otherwise than the file states it, in words."""
    try:
        ignored = list(json.loads(graph.metadata.get(IGNORED_SCALES, "{}")))
    except ValueError:  # the metadata of a file that someone else wrote
        return ()
    if not ignored:
        return ()
    tensors = f"{len(ignored)} tensors state" if len(ignored) > 1 else "1 tensor states"
    listed = ", ".join(map(repr, ignored[:3])) + (" …" if len(ignored) > 3 else "")
    return (f"warning: {tensors} scales that its kernels do not use ({listed}): integers are read as kernels take them",)


def carried_over(graph: Graph) -> dict[str, int]:
    """Counts of what a reader found that a conversion is to keep."""
    constants = [tensor for tensor in graph.constants() if tensor.is_quantized]
    activations = [t for t in graph.tensors.values() if t.is_quantized and not t.is_constant]
    return {
        "quantized constants": len(constants),
        "integers in them": sum(t.data.size for t in constants if t.data is not None),
        "quantized activations": len(activations),
        "scales": sum(t.quantization.scale.size for t in (*constants, *activations) if t.quantization is not None),
    }
