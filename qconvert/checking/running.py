"""run(): a model in its own runtime, its outputs and its inner tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from qconvert.arguments import with_checked_arguments
from qconvert.arithmetic.rounding import dequantize
from qconvert.checking.checked_file import Side, side_of
from qconvert.conversion.in_memory import Model, as_file
from qconvert.data import Preparation, load_inputs, random_inputs
from qconvert.data.fitting import fit_values
from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.graph import Array, Graph
from qconvert.graph.names import quote_nearest
from qconvert.plugins.option_types import ReadOptions

__all__ = ["run", "run_files"]


@with_checked_arguments
def run(
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    tensors: Sequence[str] = (),
    every: bool = False,
    dequantized: bool = False,
    format: str = "",
    kernels: str = "",
    seed: int = 0,
    **options: Unpack[ReadOptions],
) -> dict[str, Array]:
    """Run a model once in its own runtime and return tensors by name.

    Args:
        model: a model file of a format that a runtime loads, its content as bytes, or a graph, of which a file is written.
        inputs: name -> array, in the shape of the input: stored integers, or floats, which are quantized where the input is. None for
            random inputs.
        tensors: names of inner tensors, by the names of the canonical graph (`qconvert inspect --all` lists them), that are returned too.
        every: whether all inner tensors that the runtime gives out are returned.
        dequantized: whether quantized tensors are returned as float32 instead of as stored integers.
        format: the name of the format, where nothing else says it.
        kernels: what runs it, such as "litert:reference"; by default the first runtime of the format.
        seed: of random inputs.
        options: of the reader of the format, such as input_shape.

    Returns:
        Name -> array: the inputs as they were fed, the outputs, and the inner tensors asked for.

    Raises:
        OptionError: an input or a tensor does not exist or does not fit.
        RuntimeRefusedError: no runtime is installed that takes the model, or it gives out no inner tensors.
        QConvertError: the file cannot be read.
    """
    with as_file(model, format, runs=True) as path:
        side = side_of(path, "" if isinstance(model, Graph) else format, kernels, options)
        feed = random_inputs(side.graph, 1, seed)[0] if inputs is None else _prepare_inputs(side.graph, inputs)
        return _run_side(side, [feed], tensors, every, dequantized)[0]


def run_files(
    model: Path,
    data: Sequence[str | Path] = (),
    *,
    preparation: Preparation | None = None,
    samples: int = 1,
    tensors: Sequence[str] = (),
    every: bool = False,
    dequantized: bool = False,
    format: str = "",
    kernels: str | Sequence[str] = "",
    seed: int = 0,
    **options: Unpack[ReadOptions],
) -> tuple[list[dict[str, Array]], tuple[str, ...], str]:
    """Run a model file on inputs from files, or on random ones.

    Args:
        model: the file.
        data: files and folders of inputs; random inputs without.
        preparation: of images and floats in these.
        samples: how many inputs at most.
        tensors, every, dequantized, format, kernels, seed, options: as in run().

    Returns:
        What run() returns for each input, notes on how the inputs were prepared, and what ran the model.
    """
    side = side_of(model, format, kernels, options)
    if data:
        feeds, notes = load_inputs(side.graph, data, samples, (preparation or Preparation()).with_stretch())
    else:
        feeds, notes = random_inputs(side.graph, samples, seed), ("inputs are random",)
    return _run_side(side, feeds, tensors, every, dequantized), tuple(notes), side.choice


def _run_side(
    side: Side, feeds: Sequence[Mapping[str, Array]], tensors: Sequence[str], every: bool, dequantized: bool
) -> list[dict[str, Array]]:
    graph, loaded = side.graph, side.open()
    inside = side.inside(graph) if tensors or every else None
    if (tensors or every) and inside is None:
        raise RuntimeRefusedError(
            f"{side.runtime.title} gives out no inner tensors", file=str(side.path), rule="no-inner-tensors",
            remedy="Choose other kernels with --kernels; `qconvert formats` lists them.",
        )  # fmt: skip
    if inside is not None and (unknown := [name for name in tensors if name not in inside.names | {*graph.inputs, *graph.outputs}]):
        raise OptionError(
            f"the model computes no tensor {quote_nearest(unknown, inside.names)}", file=str(side.path), rule="unknown-tensor"
        )
    found = []
    for feed in feeds:
        values = {**feed, **loaded.run(feed)}
        if inside is not None:
            inner = inside.values({name: feed[name] for name in loaded.inputs if name in feed})
            values |= {name: value for name, value in inner.items() if every or name in tensors}
        found.append({name: _dequantize_value(graph, name, value) if dequantized else value for name, value in values.items()})
    return found


def _dequantize_value(graph: Graph, name: str, value: Array) -> Array:
    q = graph[name].quantization if name in graph.tensors else None
    return value if q is None or value.dtype.kind not in "iu" else dequantize(value, q).astype(np.float32)


def _prepare_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs that a user gives as the model takes them: floats are quantized."""
    if unknown := [name for name in inputs if name not in graph.inputs]:
        raise OptionError(f"the model has no input {quote_nearest(unknown, graph.inputs)}", rule="unknown-input")
    if missing := [name for name in graph.inputs if name not in inputs]:
        raise OptionError(f"no value is given for the input {missing[0]!r}", rule="missing-input", where=missing[0])
    return {name: fit_values(graph[name], np.asarray(inputs[name]), f"the input {name!r}", Preparation()) for name in graph.inputs}
