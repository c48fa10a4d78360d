"""Writes AIMET's encodings, of the versions 0.6.1, 1.0.0 and 2.0.0; the inverse of reading.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.plugin import Array, Encoding, Encodings, Graph, Place, QParams, Quantization, UnsupportedError, format_count, quantization_of
from qconvert_aimet.entries import PARAMETERS, SIDES
from qconvert_aimet.quantizations import REMEDY, bits_of


def write(encodings: Encodings, graph: Graph | None, path: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Write the file. Integers of constants are not in it: AIMET rounds the weights of the model again, onto the same ones.

    Tensors of the graph without an encoding are float16, the only floats that 0.6.1 and 1.0.0 can state; in 2.0.0 no entry says so.

    Args:
        encodings: by tensors.
        graph: the network of the encodings; its constants are parameters. Without it, entries with integers are parameters.
        path: of the file.
        options: `aimet_version`, "0.6.1", "1.0.0" or "2.0.0".

    Raises:
        UnsupportedError: an entry is of an operator's input or output, or has a quantization that AIMET lacks.
    """
    version = str(options["aimet_version"])
    entries = [
        (_tensor_name(place), _quantization(found), _is_parameter(place.name, found, graph)) for place, found in encodings.entries.items()
    ]
    floats = _find_floats(encodings, graph)
    if version == "2.0.0":
        # Weights whose input channels come first in ONNX.
        turned = {op.inputs[1] for op in graph.ops if op.kind == "ConvTranspose"} if graph is not None else set[str]()
        document: dict[str, Any] = {"encodings": [_version_2_entry(*entry, is_turned=entry[0] in turned) for entry in entries]}
    elif version == "1.0.0":
        document = {
            side: [
                *(_version_1_entry(*entry) for entry in entries if entry[2] == (side == PARAMETERS)),
                *({"name": name, "dtype": "FLOAT", "enc_type": "PER_TENSOR", "bw": 16} for name in floats[side == PARAMETERS]),
            ]
            for side in SIDES
        }
    else:
        document = {
            side: {
                **{entry[0]: _version_0_entry(*entry) for entry in entries if entry[2] == (side == PARAMETERS)},
                **{name: [{"bitwidth": 16, "dtype": "float"}] for name in floats[side == PARAMETERS]},
            }
            for side in SIDES
        }
    text = json.dumps({**document, "version": version, "producer": {"package": "qconvert"}}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    kept, left = sum(found.integers is not None for found in encodings.entries.values()), sum(map(len, floats))
    integers = (
        f"the integers of {format_count(kept, 'constant')} are not in the file: AIMET quantizes the model's weights with these scales and "
        "zero points"
    )
    is_left = f"{format_count(left, 'tensor')} not quantized, and float16 in the file" + (", by no entry" if version == "2.0.0" else "")
    return (*([integers] if kept else ()), *([is_left] if left else ()))


def _find_floats(encodings: Encodings, graph: Graph | None) -> tuple[list[str], list[str]]:
    """Return the float tensors without an encoding that a simulation would choose scales for, activations and parameters.

    AIMET's simulation makes a Gemm of a MatMul and the Add after it, and refuses entries of what stood between them.
    """
    found: tuple[list[str], list[str]] = ([], [])
    if graph is None:
        return found
    producers, readers = graph.producers(), graph.consumers()
    for name, tensor in graph.tensors.items():
        is_sum = name in producers and producers[name].kind == "MatMul" and [op.kind for op in readers.get(name, ())] == ["Add"]
        if tensor.dtype == "float32" and Place(name) not in encodings.entries and not is_sum:
            found[tensor.is_constant].append(name)
    return found


def _tensor_name(place: Place) -> str:
    if place.role != "tensor":
        raise UnsupportedError(
            "AIMET's encodings have entries of tensors, not of the inputs and outputs of operators",
            where=str(place),
            remedy=REMEDY,
            rule="not-a-tensor",
        )
    return place.name


def _quantization(found: Encoding) -> QParams:
    if found.qparams is not None:
        return found.qparams
    assert found.range is not None
    return quantization_of(found.range)


def _is_parameter(name: str, found: Encoding, graph: Graph | None) -> bool:
    if graph is not None and name in graph.tensors:
        return graph[name].is_constant
    return found.integers is not None or (found.qparams is not None and found.qparams.quantization.block_size > 0)


def _offsets(quantization: QParams, bits: int) -> Array:
    """Return the offsets of versions 0 and 1, for unsigned integers: -zero point, less 2^(bits - 1) for signed types."""
    return -quantization.quantization.zero_point - (2 ** (bits - 1) if quantization.dtype.startswith("int") else 0)


def _version_0_entry(name: str, quantization: QParams, is_parameter: bool) -> list[dict[str, Any]]:
    q, bits = quantization.quantization, bits_of(name, quantization, is_constant=is_parameter)
    if q.block_size:
        raise UnsupportedError(
            "the scales are in blocks, which version 0.6.1 does not have",
            where=repr(name),
            remedy="Write version 1.0.0.",
            rule="blocks-not-storable",
        )
    offsets = _offsets(quantization, bits)
    symmetric = str(bool((offsets == -(2 ** (bits - 1))).all()))
    return [
        {
            "bitwidth": bits,
            "dtype": "int",
            "is_symmetric": symmetric,
            "max": (offset + 2**bits - 1) * scale,
            "min": offset * scale,
            "offset": offset,
            "scale": scale,
        }
        for offset, scale in zip(offsets.tolist(), q.scale.astype(float).tolist(), strict=True)
    ]


def _version_1_entry(name: str, quantization: QParams, is_parameter: bool) -> dict[str, Any]:
    q, bits = quantization.quantization, bits_of(name, quantization, is_constant=is_parameter)
    scale, offsets, blocks = q.scale, _offsets(quantization, bits), {}
    kind = "PER_TENSOR" if scale.size == 1 else "PER_CHANNEL"
    if q.block_size:
        kind, blocks = "PER_BLOCK", {"block_size": q.block_size}
        scale, offsets = (_order_by_channel(name, values, q) for values in (scale, offsets))
    return {
        "name": name,
        "enc_type": kind,
        "dtype": "INT",
        "bw": bits,
        "is_sym": bool((offsets == -(2 ** (bits - 1))).all()),
        "scale": scale.astype(float).reshape(-1).tolist(),
        "offset": offsets.reshape(-1).tolist(),
        **blocks,
    }


def _version_2_entry(name: str, quantization: QParams, is_parameter: bool, *, is_turned: bool) -> dict[str, Any]:
    """Return an entry of version 2: parameters keep their type, activations become unsigned, as AIMET writes them."""
    q, bits = quantization.quantization, bits_of(name, quantization, is_constant=is_parameter)
    scale, points, axis = q.scale.astype(float), q.zero_point, q.axis
    signed = quantization.dtype.startswith("int")
    if signed and not is_parameter:
        signed, points = False, points + 2 ** (bits - 1)
    if q.block_size:
        scale, points = (_merge_kernel_positions(name, values) for values in (scale, points))
    if is_turned and axis in (0, 1):
        axis = 1 - axis
        scale, points = (values.swapaxes(0, 1) if values.ndim > 1 else values for values in (scale, points))
    if scale.size == 1 and not q.block_size:
        scale, points = scale.reshape(()), points.reshape(())
    entry = {"name": name, "output_dtype": f"{'int' if signed else 'uint'}{bits}", "y_scale": scale.tolist()}
    if points.any():
        entry["y_zero_point"] = points.tolist()
    if axis is not None:
        entry["axis"] = axis
    return {**entry, "block_size": q.block_size} if q.block_size else entry


def _order_by_channel(name: str, values: Array, q: Quantization) -> Array:
    """Return values of blocks, one output channel after the other: a list of version 1 has no axes."""
    laid = _merge_kernel_positions(name, values)
    if laid.ndim < 2 or q.axis not in (0, 1) or (laid.ndim > 2 and (q.axis != 1 or any(size != 1 for size in laid.shape[2:]))):
        reason = f"has blocks along axis {q.axis} of {laid.ndim}, which version 1.0.0 does not lay out"
        raise UnsupportedError(reason, where=repr(name), remedy="Write version 2.0.0.", rule="blocks-not-storable")
    return laid.T if laid.ndim == 2 and q.axis == 0 else laid


def _merge_kernel_positions(name: str, values: Array) -> Array:
    """Return values of blocks with one value for all positions of a kernel: AIMET has no others.

    Raises:
        UnsupportedError: the values differ between positions.
    """
    if values.ndim < 3:
        return values
    one = values[(slice(None), slice(None), *(slice(0, 1),) * (values.ndim - 2))]
    if not np.array_equal(np.broadcast_to(one, values.shape), values):
        raise UnsupportedError(
            "the scales in blocks differ between the positions of a kernel; AIMET requires the same scale for all of them",
            where=repr(name),
            remedy=REMEDY,
            rule="blocks-not-storable",
        )
    return one
