"""Reads a .param file with its .bin: each layer literally, by one function; absorb_quantization then makes quantized operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import Array, Graph, InvalidModelError, Op, UnsupportedError, format_counts, name_file_in_errors
from qconvert_ncnn.blobs import parse_sizes
from qconvert_ncnn.container import LOADERS, Layer, Weights, bottom_scale, read_param
from qconvert_ncnn.notes import Notes, data_name
from qconvert_ncnn.ops import READERS
from qconvert_ncnn.quantizations import inverse, is_data_quantization
from qconvert_ncnn.reading import ROUNDING, Draft, Reading
from qconvert_ncnn.writing import CLIP, MULTIPLIED, ROUND

_MOVES = frozenset(("Split", "Noop", "Dropout", "Reshape", "Permute", "Crop", "Slice", "Concat", "Flatten", "ExpandDims", "Squeeze"))


@dataclass(frozen=True, slots=True)
class Network:
    """A graph, the layers as the file has them, and the blobs of its inputs and outputs in their order."""

    graph: Graph
    layers: Sequence[Layer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read(path: Path, options: Mapping[str, Any]) -> Graph:
    """Read the network of a .param file and the .bin file next to it; see read_network()."""
    return read_network(path, options).graph


def read_network(path: Path, options: Mapping[str, Any]) -> Network:
    """Read a network with its layers and the blobs of inputs and outputs.

    Args:
        path: of the .param file.
        options: `input_shape`, sizes of inputs, which many files lack: 1,3,224,224 in their order, or each after a name and "=".

    Raises:
        OptionError: `input_shape` is malformed.
        QConvertError: the files cannot be read, are damaged, or have layers that are not covered; all such layers are named.
    """
    with name_file_in_errors(path), np.errstate(all="ignore"):  # scales of damaged files are checked later
        return _network(path, str(options.get("input_shape", "")))


def _network(path: Path, input_shape: str) -> Network:
    layers = stored = read_param(path)
    _require_known(layers)
    file = Weights(path.with_suffix(".bin"))
    weights = [LOADERS[layer.kind](layer, file) if layer.kind in LOADERS else () for layer in layers]
    rest = file.bytes_left
    notes = Notes.of(file.trailing_bytes())
    if notes is None:
        raise InvalidModelError(f"the .bin file has {rest} bytes after the weights of the last layer", rule="trailing-bytes")
    layers, weights = _merge_roundings(layers, weights)
    draft = Draft(layers, weights, _find_reader_scales(layers, weights, notes), notes)
    stated = parse_sizes(input_shape, [name for layer in layers if layer.kind == "Input" for name in layer.outputs])
    for index, layer in enumerate(layers):
        reading = Reading(draft, index)
        if layer.kind == "Input":
            draft.entered[layer.outputs[0]] = _read_input(reading, stated)
        else:
            READERS[layer.kind](reading)
    inputs, outputs = tuple(draft.entered.values()), [_read_output(draft, name) for name in draft.given]
    if not inputs or not outputs or len(set(outputs)) != len(outputs):
        raise InvalidModelError("the network has no inputs, no outputs, or the same output twice", rule="no-inputs-or-outputs")
    graph = Graph(path.stem, draft.tensors, tuple(draft.ops), inputs, tuple(outputs))
    graph = _restore_names(graph, notes).evolve(metadata={**notes.metadata, "source.format": "ncnn-net"})
    return Network(graph, stored, tuple(draft.entered), draft.given)


def _read_output(draft: Draft, blob: str) -> str:
    """Return the output tensor of a blob: integers if they are noted."""
    if blob in draft.returned:
        return draft.returned[blob]
    noted, value = draft.notes.quantizations.get(blob), draft.values[blob]
    if noted is None or draft.tensors[value].is_constant:
        return value
    stored = draft.integers.get(value, "")
    if stored and (draft.tensors[stored].dtype, draft.tensors[stored].quantization) == (noted.dtype, noted.quantization):
        return stored
    name = draft.add(f"{blob}/{noted.dtype}", noted.dtype, None, None, noted.quantization)
    draft.emit(Op("Quantize", (value,), (name,), {}))
    return name


def _restore_names(graph: Graph, notes: Notes) -> Graph:
    """Rename tensors as in the graph that was written; integers get the name of their blob, and its float values another one."""
    names = {old: new for old, new in notes.names.items() if old in graph and graph[old].is_quantized}
    names |= {f"{blob}/{item.dtype}": item.name for blob, item in notes.quantizations.items() if f"{blob}/{item.dtype}" in graph}
    taken = set(names.values())
    names |= {old: new for old, new in notes.names.items() if old in graph and new not in taken}
    counts = Counter(names.values())
    names = {old: new for old, new in names.items() if counts[new] == 1}
    free = graph.names(set(names.values()))
    names |= {name: free.fresh(f"{name}/real") for name in names.values() if name in graph and name not in names}
    return graph.with_names(names)


def _require_known(layers: Sequence[Layer]) -> None:
    known = {*READERS, "Input"} - {ROUNDING}
    unknown = Counter(layer.kind for layer in layers if layer.kind not in known)
    if unknown:
        raise UnsupportedError(
            f"these layers are not covered: {format_counts(unknown)}",
            remedy="Cut the network before them, or export it to ONNX.",
            rule="operators-not-covered",
        )


def _read_input(r: Reading, stated: dict[str, tuple[int, ...]]) -> str:
    """Read an input, with sizes of the file or of --input-shape."""
    found = {key: r.layer.integer(key) for key in (2, 11, 1, 0)}
    sizes = [size for size in found.values() if size]
    if len(r.layer.outputs) != 1:
        raise r.layer.invalid(f"the number of results is {len(r.layer.outputs)}; an input requires 1", rule="counts-differ")
    (blob,) = r.layer.outputs
    if blob not in stated and (not sizes or min(sizes) < 0 or (found[1] and not found[0]) or (found[2] and not found[1])):
        remedy = "State them: --input-shape 1,channels,height,width, or in the file: 0=width 1=height 2=channels."
        raise UnsupportedError(
            f"the file does not state the sizes of the input {blob!r}", where=str(r.layer), remedy=remedy, rule="shape-not-stated"
        )
    draft, noted, shape = r.draft, r.draft.notes.quantizations.get(blob), stated.get(blob, (1, *sizes))
    if noted is not None:  # the integers are the input
        name = draft.add(f"{blob}/{noted.dtype}", noted.dtype, shape, None, noted.quantization)
        draft.values[blob] = draft.emit_dequantize(name, str(r.layer))
        if is_data_quantization(noted.dtype, noted.quantization):
            draft.quantizations[blob] = float(inverse(noted.quantization.scale)[0])
        return name
    quantization = draft.wanted.get(blob, 0.0)
    draft.add(blob, "float32", shape, own=True)
    draft.values[blob] = blob
    if quantization:
        draft.round(blob, quantization, str(r.layer))
    return blob


def _find_reader_scales(layers: Sequence[Layer], weights: Sequence[tuple[Array, ...]], notes: Notes) -> dict[str, float]:
    """Return blob -> the inverse scale to which all of its readers round it, directly or after data movement."""
    asked: dict[str, set[float]] = {}
    found: dict[str, float] = {}
    for layer, own in zip(reversed(layers), reversed(weights), strict=True):
        for name in layer.outputs:
            quantizations = asked.get(name, {0.0})
            # a blob with its own quantization is rounded again after data movement
            if len(quantizations) == 1 and 0.0 not in quantizations and layer.kind != ROUNDING:
                found[name] = next(iter(quantizations))
        scale = bottom_scale(layer, own)
        is_movement = layer.kind in _MOVES or (layer.kind == "Pooling" and not layer.integer(0))
        if not scale and is_movement and layer.outputs and len({found.get(name, 0.0) for name in layer.outputs}) == 1:
            scale = found.get(layer.outputs[0], 0.0)
            if layer.kind != "Split" and data_name(layer.outputs[0]) in notes.names and data_name(layer.inputs[0]) not in notes.names:
                scale = 0.0  # it was rounded after the data movement
        for name in layer.inputs:
            asked.setdefault(name, set()).add(scale)
    return found


def _merge_roundings(layers: list[Layer], weights: list[tuple[Array, ...]]) -> tuple[list[Layer], list[tuple[Array, ...]]]:
    """Replace each four layers of a rounding by one layer: a product, a Round, a Clip, and a product."""
    readers = Counter(name for layer in layers for name in layer.inputs)
    by_input = {layer.inputs[0]: layer for layer in layers if len(layer.inputs) == 1 and readers[layer.inputs[0]] == 1}
    gone: set[str] = set()
    found: dict[str, Layer] = {}
    for layer in layers:
        chain = [layer]
        while len(chain) < 4 and len(chain[-1].outputs) == 1 and chain[-1].outputs[0] in by_input:
            chain.append(by_input[chain[-1].outputs[0]])
        if _is_rounding(chain) and chain[0].outputs[0] not in found:  # the last layer of one rounding begins no other
            gone.update(item.outputs[0] for item in chain[:3])
            last = chain[3]
            params = {0: layer.number(2), 1: chain[2].number(0), 2: chain[2].number(1), 3: last.number(2)}
            found[last.outputs[0]] = Layer(ROUNDING, last.name, layer.inputs, last.outputs, dict(params))
    kept = [(found.get(layer.outputs[0], layer) if layer.outputs else layer, own) for layer, own in zip(layers, weights, strict=True)
            if not layer.outputs or layer.outputs[0] not in gone]  # fmt: skip
    return [layer for layer, _ in kept], [own for _, own in kept]


def _is_rounding(chain: Sequence[Layer]) -> bool:
    if [layer.kind for layer in chain] != ["BinaryOp", "UnaryOp", CLIP, "BinaryOp"]:
        return False
    first, middle, clip, last = chain
    products = all(layer.integer(0) == MULTIPLIED and layer.integer(1) for layer in (first, last))
    whole = all(clip.number(key).is_integer() for key in (0, 1)) and clip.number(0) < clip.number(1)
    scale = np.float32(last.number(2))
    return bool(products and middle.integer(0) == ROUND and whole and scale > 0 and inverse(scale) == np.float32(first.number(2)))
