"""Writes a network for MNN: a float ONNX model, the Pipeline of its scales, and the .mnn that MNN's converter makes of both, which is
compared with them. The converter runs in child processes, because MNN aborts its process on what it does not support.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.encodings import Encodings
from qconvert.errors import MissingPackageError, OptionError, QConvertError, UnsupportedError, format_count, format_verb, quote_some
from qconvert.files.system import describe_exit, quote_output, temporary_folder
from qconvert.formats.mnn.dump import dump_json, operators_of_graph, operators_of_network
from qconvert.formats.mnn.faults import lower_faults
from qconvert.formats.mnn.float_network import (
    compensate_biases,
    insert_roundings,
    isolate_inexact_operators,
    rounded_names,
    split_encodings,
)
from qconvert.formats.mnn.layers import Layer, activations_of, layers_of
from qconvert.formats.mnn.network import Layer as MadeLayer
from qconvert.formats.mnn.network import read_network
from qconvert.formats.mnn.pipeline import pipeline_binary, pipeline_json
from qconvert.formats.mnn.scales import MATMUL
from qconvert.graph import Graph
from qconvert.graph.metadata import SOURCE_SHA256, VERSION
from qconvert.operators import kind_of
from qconvert.plugins import Change, format_named, pass_named

#: Layers that a line or a note names.
_MOST_NAMED = 5


def compare_layers(path: Path, layers: Sequence[Layer]) -> Iterator[str]:
    """Lines on the layers of a .mnn: how many are int8 with the requested integers and scales, and which stayed float.

    Raises:
        UnsupportedError: weights, scales or zero points differ from the requested ones, or there is no such file.
    """
    try:
        network = read_network(path)
    except UnsupportedError as error:
        yield f"{path.name} is made, and not compared with what was asked for: {error.reason}"
        return
    # A matrix product that became a convolution has a name of its own.
    made = {network.names[index].removesuffix(MATMUL): layer for layer in network.layers for index in layer.node.outputs[:1]}
    missing = list(dict.fromkeys(layer.result.name for layer in layers if not _is_integer(made.get(layer.name))))
    same = values = 0
    wrong: list[str] = []
    for layer in layers:
        found = made.get(layer.name)
        if found is None or not _is_integer(found):
            continue
        differences = list(_differences(layer, found))
        wrong += [f"{layer.result.name!r}: {text}" for text in differences]
        same += not differences
        values += found.weights.integers.size if found.weights is not None else 0
    if wrong:
        raise UnsupportedError(
            f"MNN's converter changed the quantization in {format_count(len(wrong), 'place')}: {'; '.join(wrong[:_MOST_NAMED])}",
            rule="converter-changed-model",
        )
    equal = f"{values} equal integers of weights, equal scales and zero points"
    yield f"{path.name}, read back: {same} of {format_count(len(layers), 'layer')} {format_verb(same, 'are')} int8, with {equal}"
    if missing:
        yield f"MNN left float, in spite of scales, {format_count(len(missing), 'layer')}: {quote_some(missing, _MOST_NAMED)}"


def _is_integer(layer: MadeLayer | None) -> bool:
    """Whether MNN runs a layer on integers: it has the scales of both sides, and weights."""
    return layer is not None and layer.weights is not None and layer.data is not None and layer.result is not None


def _differences(layer: Layer, made: MadeLayer) -> Iterator[str]:
    """Differences between a layer and the requested one, in words."""
    assert made.weights is not None
    if layer.integers is not None and not np.array_equal(layer.integers.reshape(-1), made.weights.integers.reshape(-1)):
        yield "other integers of weights"
    if made.weights.offsets is not None or not np.array_equal(layer.scales, made.weights.scales.reshape(-1)):
        yield "other scales of weights"
    for what, wanted, found in (("data", layer.data, made.data), ("result", layer.result, made.result)):
        if found is None or np.float32(wanted.scale) != np.float32(found.scale) or wanted.zero_point != found.zero:
            yield f"another scale or zero point of its {what}"


_ONNX, _MNN, _JSON, _BINARY, _DUMP = "model.onnx", "model.mnn", "model.json", "model.bin", "model.mnn.json"
#: Characters of a hash that a .mnn has.
_OF_HASH = 16


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    """Writes `graph`; returns, in words, what became of its layers, and how to convert.

    Args:
        graph: normalized for the target mnn.
        path: a folder that is there, or a file .mnn.
        options: "float_layers" (names separated by commas), "pipeline" ("json" or "binary"), "dump" (bool), "no_mnn" (bool), "numerics"
            ("exact": what the source rounds is rounded; "fast": only where MNN does so by itself), "provenance".

    Raises:
        MissingPackageError: a .mnn file is asked for, and MNN is not installed.
        UnsupportedError: MNN's converter failed, or made something else than was asked for.
    """
    if path.suffix.lower() != ".mnn":
        return tuple(_write_folder(graph, path, options))
    require_installed("makes .mnn files")
    if options.get("no_mnn"):
        raise OptionError(
            "a .mnn file can be written by the package MNN only",
            remedy="Name a folder, to write the ONNX model and the Pipeline only.",
            rule="package-needed",
        )
    with temporary_folder() as folder:
        notes = tuple(_write_folder(graph, Path(folder), options))
        with open(folder / _MNN, "rb") as made, open(path, "wb") as result:
            shutil.copyfileobj(made, result)  # by shutil.move(), an error of the result's place would name the other
    return notes


def as_written(path: Path, graph: Graph, checked: Any) -> Graph | None:
    """The network in a folder that write() filled, with the scales of its Pipeline; None of a .mnn file, which is not read as a graph."""
    if not path.is_dir():
        return None
    read = format_named("onnx").read
    assert read is not None
    pipeline = next(found for name in (_JSON, _BINARY) if (found := path / name).exists())
    return pass_named("apply_encodings").run(read(path / _ONNX, {}), None, encodings=str(pipeline))[0]


def write_scales(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[Change | str, ...]:
    """Writes scales alone: a Pipeline, in protobuf where the name ends in .bin, or with the option "dump" the quantizer's layout.

    Args:
        encodings: of the tensors of `graph`.
        graph: of float values, whose layers MNN finds by the names of their results.
        path: the file.
        options: as of write().

    Raises:
        OptionError: there is no graph, or the name is that of a network.
    """
    if graph is None:
        raise OptionError(
            "MNN's scales belong to layers, which are known from the network alone",
            remedy="Give the network along with the scales.",
            rule="graph-missing",
        )
    if path.suffix.lower() == ".mnn":
        raise OptionError(
            "a .mnn file holds a network, not scales",
            file=str(path),
            remedy="Name a file that ends in .json or .bin for the scales.",
            rule="wrong-suffix",
        )
    if options.get("dump"):
        path.write_text(dump_json(operators_of_graph(graph), activations_of(graph, encodings)), encoding="utf-8")
        return ()
    layers, floats = layers_of(graph, encodings, _names(options))
    _write_pipeline(layers, path)
    return (f"{format_count(len(layers), 'layer', 'have')} scales for int8", *_note_float_layers(floats))


def _write_pipeline(layers: Sequence[Layer], path: Path) -> None:
    if path.suffix.lower() == ".bin":
        path.write_bytes(pipeline_binary(layers))
    else:
        path.write_text(pipeline_json(layers), encoding="utf-8")


def _names(options: Mapping[str, Any]) -> list[str]:
    return [name.strip() for name in str(options.get("float_layers") or "").split(",") if name.strip()]


def _write_folder(graph: Graph, folder: Path, options: Mapping[str, Any]) -> Iterator[Change | str]:
    """Writes the files of a result into a folder that is there."""
    is_exact = options.get("numerics") != "fast"
    network, encodings = split_encodings(graph, is_exact)
    layers, floats = layers_of(network, encodings, _names(options))
    rounds: list[str] = []
    if is_exact:
        stored = {name for name in network.inputs if graph[name].is_quantized}
        network, rounds = insert_roundings(network, encodings, layers, stored, rounded_names(graph, network))
    network, count = compensate_biases(network, layers)
    if count:
        changed = f"{format_count(count, 'bias')} of depthwise layers {format_verb(count, 'are')}"
        yield f"{changed} one unit of their sum lower or higher, to make up for the truncation in MNN's kernel"
    network = lower_faults(isolate_inexact_operators(network) if layers else network)
    onnx = format_named("onnx")
    assert onnx.write is not None
    yield from onnx.write(network, folder / _ONNX, {"provenance": options.get("provenance") or {}}) or ()
    if onnx.check is not None:
        onnx.check(folder / _ONNX)
    pipeline = _BINARY if options.get("pipeline") == "binary" else _JSON
    _write_pipeline(layers, folder / pipeline)
    provenance = options.get("provenance") or {}
    maker = "-".join(("qconvert", *filter(None, (provenance.get(VERSION, ""), provenance.get(SOURCE_SHA256, "")[:_OF_HASH]))))
    arguments = ["-f", "ONNX", "--modelFile", _ONNX, "--MNNModel", _MNN, "--bizCode", maker]
    arguments += ["--compressionParamsFile", pipeline] * bool(layers)
    yield f"{format_count(len(layers), 'layer', 'have')} scales for int8" + (f", {len(floats)} stay float" if floats else "")
    yield from _note_float_layers(floats)
    if rounds:
        yield f"{format_count(len(rounds), 'rounding', 'run in float, as part of no layer')}: {quote_some(rounds, _MOST_NAMED)}"
    if not is_exact:
        yield from _note_unrounded(graph, {layer.result.name for layer in layers} | {layer.name for layer in layers})
    yield from _convert_to_mnn(folder, arguments, layers, options)
    if options.get("dump"):
        made = folder / _MNN
        operators = operators_of_network(read_network(made)) if made.exists() else operators_of_graph(network)
        (folder / _DUMP).write_text(dump_json(operators, activations_of(network, encodings)), encoding="utf-8")


def _note_float_layers(floats: Mapping[str, str]) -> Iterator[str]:
    """A line for each reason for which layers stay float."""
    for reason in dict.fromkeys(floats.values()):
        yield f"float: {quote_some((name for name, why in floats.items() if why == reason), _MOST_NAMED)}: {reason}"


def _note_unrounded(graph: Graph, rounded: Set[str]) -> Iterator[Change]:
    """The real outputs that the source rounds to a quantization and MNN does not, since no layer computes them."""
    writers = graph.producers()
    names = []
    for op in graph.of_kind("Dequantize"):
        if op.outputs[0] not in graph.outputs:
            continue
        path, before = [op.outputs[0], op.inputs[0]], writers.get(op.inputs[0])
        while before is not None and (kind_of(before).rule == "move" or kind_of(before).clips):
            path, before = [*path, before.inputs[0]], writers.get(before.inputs[0])
        if before is not None and rounded.isdisjoint(path):
            names.append(op.outputs[0])
    if names:
        yield Change(
            f"the source quantizes the outputs {quote_some(names, _MOST_NAMED)}, MNN leaves them in float: they differ by up to half a "
            "step, and by more where the source saturates"
        )


def _convert_to_mnn(folder: Path, arguments: Sequence[str], layers: Sequence[Layer], options: Mapping[str, Any]) -> Iterator[str]:
    """Makes the .mnn, and says what it holds, or how to make it elsewhere."""
    if options.get("no_mnn") or not is_installed():
        if not options.get("no_mnn"):
            yield f"{_MNN} is not made here: the package MNN is not installed (pip install 'qconvert[mnn]')"
        yield f"to make {_MNN}, run in this folder: MNNConvert {' '.join(arguments)}"
        return
    try:
        run_converter(arguments, folder, _MNN)
    except QConvertError as error:
        error.remedy = error.remedy or "With --no-mnn the ONNX model and the Pipeline are written alone, for another version of MNN."
        raise
    yield from compare_layers(folder / _MNN, layers)


#: Seconds after which a converter that has not ended is ended.
_PATIENCE = 900.0
#: What it prints of operators that it does not have.
_UNKNOWN = re.compile(r"These Op Not Support: *(.*)")
#: MNN's native module takes the arguments as one list; its wrappers on the command line pass them so that it ends in an abort.
_CONVERT = "import json, sys; import _tools; _tools.mnnconvert(json.loads(sys.argv[1]))"


def is_installed() -> bool:
    """Whether the package MNN is there, with its converter."""
    return find_spec("MNN") is not None and find_spec("_tools") is not None


def require_installed(purpose: str) -> None:
    """Raises MissingPackageError where it is not; `purpose` is the end of "…, which"."""
    if not is_installed():
        reason = f"the package MNN, which {purpose}, is not installed"
        raise MissingPackageError(reason, remedy="Install it with: pip install 'qconvert[mnn]'", rule="package-missing")


def run_converter(arguments: Sequence[str], folder: Path, result: str, patience: float = _PATIENCE) -> str:
    """Runs MNN's converter in a folder, and returns what it printed.

    Args:
        arguments: those of MNNConvert; files are named as in the folder.
        folder: where it runs.
        result: the file that it has to write there.
        patience: seconds that it may take.

    Raises:
        UnsupportedError: it crashed, took too long, or wrote no file, all of which MNN itself calls a success.
    """
    command = [sys.executable, "-P", "-c", _CONVERT, json.dumps(["MNNConvert", *arguments])]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired as error:
        printed = quote_output(error.output or b"")
        raise UnsupportedError(f"MNN's converter did not end within {patience:.0f} s{printed}", rule="converter-timeout") from error
    printed = quote_output(done.stdout)
    unknown = _UNKNOWN.search(done.stdout.decode(errors="replace"))
    if unknown:
        kinds = ", ".join(dict.fromkeys(item.strip().removeprefix("ONNX::") for item in unknown[1].split(",") if item.strip()))
        raise UnsupportedError(f"MNN's converter has no operator for {kinds}", rule="converter-lacks-operator")
    if done.returncode:
        raise UnsupportedError(f"MNN's converter {describe_exit(done.returncode)}{printed}", rule="converter-failed")
    if not (folder / result).is_file() or not (folder / result).stat().st_size:
        raise UnsupportedError(f"MNN's converter wrote no file{printed}", rule="converter-wrote-nothing")
    return done.stdout.decode(errors="replace")
