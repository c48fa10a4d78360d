"""Weights in blocks, as the tools for language models store them: GPTQ, AWQ and compressed-tensors in .safetensors.

A linear layer has several tensors instead of one `weight`: packed integers, scales and zero points of blocks along the inputs.
`in_blocks()` finds them by their names and makes one tensor of each layer, with every integer, scale and zero point; config.json next to
the file says what they leave open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from qconvert.errors import UnsupportedError, counted
from qconvert.formats.torch.states.blocks.awq import read_awq
from qconvert.formats.torch.states.blocks.compressed_tensors import read_compressed
from qconvert.formats.torch.states.blocks.config import Config, read_config
from qconvert.formats.torch.states.blocks.gptq import read_gptq
from qconvert.formats.torch.states.blocks.packing import Layer
from qconvert.formats.torch.states.entries import Entries, rest
from qconvert.plugins import Parameters

__all__ = ["in_blocks"]

_Reader = Callable[[Entries, str, Config], Layer]
#: Tensors by which a layer of a format is known -> what others call the format, for those that are not read.
_OTHERS: Mapping[str, str] = {
    "weight.absmax": "bitsandbytes",
    "SCB": "bitsandbytes",
    "weight_global_scale": "NVFP4 of compressed-tensors",
    "weight_scale_2": "ModelOpt",
    "pre_quant_scale": "ModelOpt's AWQ",
    "biases": "MLX",
    "weight_scale": "ModelOpt, or compressed-tensors other than pack-quantized,",
    "weight_packed": "compressed-tensors other than pack-quantized",
}
_COVERED = "Covered are GPTQ (v1 and v2), AWQ (gemm) and compressed-tensors (pack-quantized)."


def in_blocks(entries: Entries, path: Path) -> Parameters | None:
    """The parameters of a checkpoint whose weights are in blocks; None where it has none.

    Args:
        entries: the tensors of the file.
        path: the file; config.json is looked for next to it.

    Raises:
        InvalidModelError: tensors of a layer do not fit each other, or what config.json says.
        UnsupportedError: the checkpoint is of another format, or has what is not covered.
    """
    found = {reader: layers for reader, layers in _layers(entries).items() if layers}
    if not found:
        return None
    config = read_config(path)
    layers = {name: reader(entries, name, config) for reader, names in found.items() for name in names}
    orders = {name: layer.order for name, layer in layers.items() if layer.order is not None}
    notes = [f"{counted(len(layers), 'linear layer')} in blocks, as {config.format} stores them", *config.notes]
    if orders:
        notes.append(f"{counted(len(orders), 'linear layer')} with inputs in another order (act-order), in which a Gather brings the data")
    tensors = {layer.weight.name: layer.weight for layer in layers.values()}
    return Parameters({**tensors, **rest(entries)}, orders=orders, notes=tuple(notes))


def _layers(entries: Entries) -> dict[_Reader, list[str]]:
    """The layers of each format that is read, by their paths. Raises UnsupportedError where there are others."""
    packed = entries.ending("qweight")
    gptq = [layer for layer in packed if f"{layer}.scales" in entries.values and not _is_awq(entries, layer)]
    awq = [layer for layer in packed if f"{layer}.scales" in entries.values and _is_awq(entries, layer)]
    compressed = [layer for layer in entries.ending("weight_packed") if f"{layer}.weight_shape" in entries.values]
    for name, title in _OTHERS.items():
        layers = [layer for layer in entries.ending(name) if layer not in compressed and _is_told_by(entries, layer, name)]
        if layers:
            raise UnsupportedError(
                f"the file has weights as {title} stores them, in {counted(len(layers), 'layer')}",
                where=repr(f"{layers[0]}.{name}"),
                remedy=_COVERED,
                rule="blocks-not-covered",
            )
    return {read_gptq: gptq, read_awq: awq, read_compressed: compressed}


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
