"""Quantized results of float sources, compared with the source quantized with the same scales, and with the float source itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qconvert.checking.checked_file import Side, model_file
from qconvert.checking.findings import OutputComparison
from qconvert.checking.outputs import Border
from qconvert.checking.sequences import Sequences
from qconvert.conversion import convert
from qconvert.graph import Array, Graph
from qconvert.graph.metadata import BESIDE, OPTIONS, origin
from qconvert.plugins import LoadedModel, format_named, runtime_of

__all__ = ["LEAST_OF_FLOAT", "compare_with_float_source", "explain_missing_encodings", "is_quantized_of_float", "quantize_source"]

#: Decibels that an output keeps at least where a quantized model is compared with its float source: below, little of it is left.
LEAST_OF_FLOAT = 10.0

#: Options of the pass that applies encodings, which the conversion of the result may have had.
_PASS_OPTIONS = ("fill", "range_dtype")


def quantize_source(source: Side, result: Side, encodings: Path, folder: Path, kernels: str | Sequence[str]) -> Side:
    """The source with encodings, as an ONNX file in a folder, changed no more than that asks for.

    Raises:
        QConvertError: the encodings cannot be read, or do not fit the source.
    """
    written = folder / f"{source.path.stem}.onnx"
    options = {**source.file.options, **_read_pass_options(result)}
    how = {"target": "generic", "encodings": str(encodings), "min_tensor_sqnr": float("-inf"), **options}
    convert(source.path, written, source_format=source.format.name, **how)
    runtime, chosen = runtime_of("onnx", kernels)
    reader = format_named("onnx")
    return Side(model_file(written, reader, chosen), reader, runtime)


def _read_pass_options(result: Side) -> dict[str, Any]:
    """How the encodings were applied, as the result's metadata say."""
    if result.format.read is None:
        return {}
    try:
        given = json.loads(str(origin(result.graph.metadata).get(OPTIONS, "{}")))["options"]
        return {name: given[name] for name in _PASS_OPTIONS if name in given}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def is_quantized_of_float(graph: Graph, other: Graph) -> bool:
    """Whether nothing of a source is quantized, and something of its result is."""
    return not any(t.is_quantized for t in graph.tensors.values()) and any(t.is_quantized for t in other.tensors.values())


def compare_with_float_source(
    source: Side, sides: tuple[Side, Side], model: LoadedModel, feeds: Sequence[Mapping[str, Array]], steps: int
) -> tuple[OutputComparison, ...]:
    """Return how far the outputs of a result are from those of its float source, on the same inputs.

    Args:
        source: the float source's file.
        sides: the source with encodings, whose inputs are given, and the result.
        model: the result, loaded.
        feeds: stored inputs.
        steps: of a sequence; 0 for models without states.
    """
    original = source.open()
    models = [Sequences(item, side.open, steps) for item, side in ((original, source), (model, sides[1]))] if steps else [original, model]
    entering = [Border.of(sides[0].graph, side.graph) for side in (source, sides[1])]
    border = Border.of(source.graph, sides[1].graph)
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    for feed in feeds:
        expected, found = (item.run(side.convert_inputs(feed, item)) for item, side in zip(models, entering, strict=True))
        for name, a, b in border.pair_outputs(expected, found):
            pairs.setdefault(name, []).append((a, b))
    return tuple(border.compare_output(name, found) for name, found in pairs.items())


def explain_missing_encodings(source: Side, result: Side) -> str:
    """Why a result cannot be judged without its encodings, in a sentence; "" if it has none, or the source is quantized itself."""
    if result.format.read is None or any(tensor.is_quantized for tensor in source.graph.tensors.values()):
        return ""
    scales = origin(result.graph.metadata).get(f"{BESIDE}encodings")
    if not scales:
        return ""
    return (
        f"{result.path.name} was quantized with the scales of {scales}, {source.path.name} computes in float: "
        f"name the scales that both use with `--encodings FILE`"
    )
