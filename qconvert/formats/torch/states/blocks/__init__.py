"""Weights in blocks, as the tools for language models store them in .safetensors: GPTQ, AWQ, compressed-tensors and ModelOpt.

A linear layer has several tensors instead of one `weight`: packed integers, scales and zero points of blocks along the inputs.
`in_blocks()` finds them by their names and makes one tensor of each layer, with every integer, scale and zero point; config.json next to
the file says what they leave open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from qconvert.errors import UnsupportedError, counted
from qconvert.formats.torch.states.blocks.awq import read_awq
from qconvert.formats.torch.states.blocks.compressed_tensors import read_compressed
from qconvert.formats.torch.states.blocks.config import Config, read_config
from qconvert.formats.torch.states.blocks.fp4 import read_mxfp4, read_nvfp4, read_nvfp4_of_modelopt
from qconvert.formats.torch.states.blocks.gptq import read_gptq
from qconvert.formats.torch.states.blocks.modelopt import read_modelopt
from qconvert.formats.torch.states.blocks.packing import Layer
from qconvert.formats.torch.states.entries import Entries, rest
from qconvert.plugins import Parameters

__all__ = ["in_blocks", "readers_of"]

_Reader = Callable[[Entries, str, Config], Layer]
#: Tensors of layers as other tools store them -> the tool, for what is not read.
_OTHERS: Mapping[str, str] = {
    "weight.absmax": "bitsandbytes",
    "SCB": "bitsandbytes",
    "biases": "MLX",
    "weight_scale": "ModelOpt or compressed-tensors, in another form than those covered,",
    "weight_packed": "compressed-tensors, in another form than those covered,",
}
_COVERED = (
    "Covered are GPTQ (v1 and v2), AWQ (gemm), compressed-tensors (pack-quantized, nvfp4 and mxfp4 of weights alone), and of ModelOpt "
    "W4A16_AWQ and W4A16_NVFP4."
)


def in_blocks(entries: Entries, path: Path) -> Parameters | None:
    """The parameters of a checkpoint whose weights are in blocks; None where it has none.

    Args:
        entries: the tensors of the file.
        path: the file; config.json is looked for next to it.

    Raises:
        InvalidModelError: tensors of a layer do not fit each other, or what config.json says.
        UnsupportedError: the checkpoint is of another format, or has what is not covered.
    """
    found = readers_of(entries)
    if not found:
        return None
    config = read_config(path)
    layers = {name: reader(entries, name, config) for name, reader in found.items()}
    orders = {name: layer.order for name, layer in layers.items() if layer.order is not None}
    factors = {name: layer.factors for name, layer in layers.items() if layer.factors is not None}
    notes = [f"{counted(len(layers), 'linear layer')} in blocks, as {config.format} stores them", *config.notes]
    if orders:
        notes.append(f"{counted(len(orders), 'linear layer')} with inputs in another order (act-order), in which a Gather brings the data")
    if factors:
        notes.append(f"{counted(len(factors), 'linear layer')} whose data are multiplied by factors first (pre_quant_scale)")
    tensors = {layer.weight.name: layer.weight for layer in layers.values()}
    return Parameters({**tensors, **rest(entries)}, orders=orders, factors=factors, notes=tuple(notes))


def readers_of(entries: Entries) -> dict[str, _Reader]:
    """What reads each layer whose weights are in blocks; nothing of them is read here.

    Raises:
        UnsupportedError: the checkpoint has layers in a form that is not covered.
    """
    readers = {layer: _reader(entries, layer) for name in ("qweight", "weight_packed", "weight_scale") for layer in entries.ending(name)}
    found = {layer: reader for layer, reader in readers.items() if reader is not None}
    _refuse_others(entries, found)
    return found


def _reader(entries: Entries, layer: str) -> _Reader | None:
    """What reads a layer, by the tensors that it has; None where nothing does."""

    def dtype(name: str) -> str:
        return str(getattr(entries.values.get(f"{layer}.{name}"), "dtype", ""))

    if dtype("qweight") and dtype("scales"):
        return read_awq if _is_awq(entries, layer) else read_gptq
    if dtype("weight_packed"):
        if dtype("weight_shape"):
            return read_compressed
        by_scale: dict[str, _Reader] = {"float8e4m3fn": read_nvfp4, "uint8": read_mxfp4}
        return by_scale.get(dtype("weight_scale"))
    if dtype("weight") == "uint8":
        return {"float8e4m3fn": read_nvfp4_of_modelopt, "float32": read_modelopt}.get(dtype("weight_scale"))
    return None


def _refuse_others(entries: Entries, found: Collection[str]) -> None:
    """Raise UnsupportedError where the file has layers in forms that are not read."""
    for name, title in _OTHERS.items():
        layers = [layer for layer in entries.ending(name) if layer not in found and _is_told_by(entries, layer, name)]
        if layers:
            raise UnsupportedError(
                f"the file has weights as {title} stores them, in {counted(len(layers), 'layer')}",
                where=repr(f"{layers[0]}.{name}"),
                remedy=_COVERED,
                rule="blocks-not-covered",
            )


def _is_told_by(entries: Entries, layer: str, name: str) -> bool:
    """Whether a tensor says that a layer is of another format; some names are used for other things too."""
    if name == "biases":
        return f"{layer}.scales" in entries.values
    weight = entries.values.get(f"{layer}.weight")
    return name != "weight_scale" or str(getattr(weight, "dtype", "")) in ("int8", "uint8", "float8e4m3fn")


def _is_awq(entries: Entries, layer: str) -> bool:
    """Whether the integers of a layer are packed along the outputs: AWQ has as many columns of them as of zero points."""
    integers, points = (entries.values.get(f"{layer}.{name}") for name in ("qweight", "qzeros"))
    return integers is not None and points is not None and len(integers.shape) == 2 and integers.shape[1:] == points.shape[1:]
