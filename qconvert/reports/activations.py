"""Histograms of activations: a model runs a few inputs in its own runtime, which gives out its inner tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checking.checked_file import model_file
from qconvert.conversion.loading import source_format
from qconvert.data import accepted_inputs, load_inputs
from qconvert.errors import QConvertError
from qconvert.graph import Array, Graph
from qconvert.plugins import runtime_of
from qconvert.reports.histograms import Bars, bars_of
from qconvert.tables import said

__all__ = ["activation_bars"]

#: Inputs that are run.
_INPUTS = 2


def activation_bars(path: Path, graph: Graph, data: Sequence[str | Path], options: Mapping[str, Any]) -> tuple[dict[str, Bars], str]:
    """The histogram of each activation that the file's runtime gives out, by name, and in words why some or all are missing; "" else.

    Args:
        path: a model file.
        graph: its canonical graph.
        data: files and folders of inputs; random inputs without.
        options: of its reader.
    """
    try:
        form = source_format(path)
        runtime, kernels = runtime_of(form.name, ())
        taken = {option.name for option in form.read_options}
        file = model_file(path, form, kernels, {name: value for name, value in options.items() if name in taken})
        inside = None if runtime.inside is None else runtime.inside(file, graph)
        if inside is None:
            return {}, f"{runtime.title} gives out no inner tensors: activations have no histograms."
        if data:
            feeds = load_inputs(graph, data, _INPUTS)[0]
        else:
            feeds = accepted_inputs(graph, _INPUTS, 0, runtime.open(file).run)[0]
        runs = [inside.values(feed) for feed in feeds]
    except QConvertError as error:
        return {}, f"Activations have no histograms: {said(error.reason)}."
    joined: dict[str, list[Array]] = {}
    for values in (*runs, *feeds):
        for name, value in values.items():
            joined.setdefault(name, []).append(np.asarray(value).reshape(-1))
    found = {name: bars_of(graph[name], np.concatenate(parts)) for name, parts in joined.items() if name in graph}
    return {name: bars for name, bars in found.items() if bars is not None}, ""
