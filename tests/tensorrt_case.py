"""A model of one rule, and what TensorRT makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model whose operator "target" is asked for.

    Attributes:
        name: of the rule.
        model: makes the ModelProto.
        verdict: what becomes of it: "parser" or "builder" if that refuses it, "dies" if it ends the process, else how every target runs:
            "int8", "fp8", "float", "blocks" if weights of few bits are taken in the product, or "unnamed" if no layer names it.
        says: a part of the error, or of the warning.
        capability: that it is built for.
        bounds: of dynamic dimensions.
    """

    name: str
    model: Callable[[], Any]
    verdict: str
    says: str = ""
    capability: str = "sm89"
    bounds: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


def verdict_of(build: Any) -> str:
    """The verdict of a qconvert.runtimes.tensorrt.Build."""
    if not build.built:
        return "builder" if build.parsed else "parser"
    found = [layer for layer in build.layers if any(node.name == "target" for node in layer.nodes)]
    sums = [layer for layer in found if layer.sums]
    verdicts = {_runs(layer) for layer in sums or found}
    return " and ".join(sorted(verdicts)) or "unnamed"


def _runs(layer: Any) -> str:
    types = {side.dtype for side in (*layer.inputs, *layer.constants)}
    if layer.type == "runtime_fusion" and types & {"Int4", "FP4"}:
        return "blocks"
    if layer.integer:
        return "int8"
    return "fp8" if layer.inputs and layer.inputs[0].dtype.startswith("FP8") else "float"
