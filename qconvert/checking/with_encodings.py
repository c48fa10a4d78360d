"""Results that were quantized with scales that stand beside their source: they are held against the source with these scales."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qconvert.checking.checked_file import Side, model_file
from qconvert.conversion import convert
from qconvert.graph.metadata import BESIDE, OPTIONS, origin
from qconvert.plugins import format_named, runtime_of

__all__ = ["lacks_encodings", "quantized_source"]

#: Options of the pass that applies encodings, which the conversion of the result may have had.
_PASS_OPTIONS = ("fill", "range_dtype")


def quantized_source(source: Side, result: Side, encodings: Path, folder: Path, kernels: str | Sequence[str]) -> Side:
    """The source with encodings, as an ONNX file in a folder, changed no more than that asks for.

    Raises:
        QConvertError: the encodings cannot be read, or do not fit the source.
    """
    written = folder / f"{source.path.stem}.onnx"
    options = {**source.file.options, **_stated(result)}
    how = {"target": "generic", "encodings": str(encodings), "allow_loss": float("-inf"), **options}
    convert(source.path, written, source_format=source.format.name, **how)
    runtime, chosen = runtime_of("onnx", kernels)
    reader = format_named("onnx")
    return Side(model_file(written, reader, chosen), reader, runtime)


def _stated(result: Side) -> dict[str, Any]:
    """How the encodings were applied, as the result's metadata say."""
    if result.format.read is None:
        return {}
    try:
        given = json.loads(str(origin(result.graph.metadata).get(OPTIONS, "{}")))["options"]
        return {name: given[name] for name in _PASS_OPTIONS if name in given}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def lacks_encodings(source: Side, result: Side) -> str:
    """Why a result cannot be judged without its encodings, in a sentence; "" if it has none, or the source is quantized itself."""
    if result.format.read is None or any(tensor.is_quantized for tensor in source.graph.tensors.values()):
        return ""
    scales = origin(result.graph.metadata).get(f"{BESIDE}encodings")
    if not scales:
        return ""
    return (
        f"{result.path.name} was quantized with the scales of {scales}, {source.path.name} computes on real values: "
        f"`--encodings FILE` names the scales with which both are to be equal"
    )
