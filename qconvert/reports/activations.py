"""Histograms of activations: a model runs a few inputs in its own runtime, which gives out its inner tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checking.adapted_source import write_adapted_copy
from qconvert.checking.checked_file import Side, model_file
from qconvert.conversion.loading import source_format
from qconvert.data import Preparation, accepted_inputs, load_inputs
from qconvert.errors import QConvertError
from qconvert.files.temporary import temporary_folder
from qconvert.graph import Array, Graph
from qconvert.plugins import runtime_of
from qconvert.reports.histograms import Bars, bars_of
from qconvert.tables import format_sentence

__all__ = ["activation_bars"]

#: Inputs that are run.
_INPUTS = 2


def activation_bars(
    path: Path, graph: Graph, data: Sequence[str | Path], options: Mapping[str, Any], format: str = ""
) -> tuple[dict[str, Bars], str]:
    """The histogram of each activation that the file's runtime gives out, by name, and in words why some or all are missing; "" else.

    Args:
        path: a model file.
        graph: its canonical graph.
        data: files and folders of inputs; random inputs without.
        options: of its reader.
        format: the name of its format; "" where the suffix says it.

    Raises:
        QConvertError: the files of inputs cannot be read, or do not fit.
    """
    given = load_inputs(graph, data, _INPUTS, Preparation().with_stretch())[0] if data else []
    try:
        form = source_format(path, format)
        runtime, kernels = runtime_of(form.name, ())
        taken = {option.name for option in form.read_options}
        file = model_file(path, form, kernels, {name: value for name, value in options.items() if name in taken})
        with temporary_folder() as folder:
            side = Side(file, form, runtime)
            copy = write_adapted_copy(side, Path(folder))
            feeds, runs = _run_inputs(side if copy is None else copy.side, graph, given)
    except QConvertError as error:
        return {}, f"Activations have no histograms: {format_sentence(error.reason)}."
    if runs is None:
        return {}, f"{runtime.title} returns no inner tensors: activations have no histograms."
    joined: dict[str, list[Array]] = {}
    for values in (*runs, *feeds):
        for name, value in values.items():
            joined.setdefault(name, []).append(np.asarray(value).reshape(-1))
    found = {name: bars_of(graph[name], np.concatenate(parts)) for name, parts in joined.items() if name in graph}
    return {name: bars for name, bars in found.items() if bars is not None}, ""


def _run_inputs(side: Side, graph: Graph, given: list[dict[str, Array]]) -> tuple[list[dict[str, Array]], list[dict[str, Array]] | None]:
    """The inputs given, or random ones, and the inner tensors in each run of them; None where the runtime gives out none."""
    inside = side.inside(graph)
    if inside is None:
        return [], None
    feeds = given or accepted_inputs(graph, _INPUTS, 0, side.open().run)[0]
    return feeds, [inside.values(feed) for feed in feeds]
