"""The containers of all tools, and a checkpoint that is read: its layers in blocks and other tensors, what it holds as plain data, and
whether two checkpoints have the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.compressed_tensors import COMPRESSED, INT8, INT_QUANTIZED
from qconvert.checkpoints.config import SCALES_OF_CACHE, Config, read_config
from qconvert.checkpoints.container import Container
from qconvert.checkpoints.fitting import is_same_rounding
from qconvert.checkpoints.gptq_and_awq import AWQ, GPTQ, GPTQ_V2, INT4_MODELOPT, QUARK
from qconvert.checkpoints.mlx import MLX, MLX_MXFP4, MLX_MXFP8, MLX_NVFP4
from qconvert.checkpoints.parts import Parts, is_float
from qconvert.checkpoints.safetensors import Checkpoint, read_checkpoint
from qconvert.checkpoints.small_floats import (
    FLOAT_QUANTIZED,
    FP8,
    FP8_MODELOPT,
    MXFP4,
    MXFP4_GPT_OSS,
    MXFP4_MODELOPT,
    MXFP8,
    NVFP4,
    NVFP4_MODELOPT,
    name_experts,
)
from qconvert.checkpoints.torchao_and_bitsandbytes import BNB_4BIT, BNB_INT8, TORCHAO
from qconvert.checkpoints.weight import E2M1, E4M3, BlockWeight, comparable_values
from qconvert.errors import UnsupportedError, format_count, format_verb
from qconvert.files.documents import json_of
from qconvert.files.mapped import release_pages


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The tensors of a checkpoint, as views on its files.

    Attributes:
        checkpoint: the files.
        config: what config.json says.
        layers: those in blocks, by their paths.
        plain: the other tensors, by their names.
        folder: whose other files belong to the model; None for none.
    """

    checkpoint: Checkpoint
    config: Config
    layers: Mapping[str, tuple[Container, Parts]]
    plain: Mapping[str, Array]
    folder: Path | None = None

    @classmethod
    def of(cls, path: Path) -> CheckpointSource:
        """The checkpoint that a .safetensors file belongs to.

        Raises:
            QConvertError: it cannot be read, is damaged, or has layers in a form that is not covered.
        """
        checkpoint = name_experts(read_checkpoint(path))
        layers = layers_in_blocks(checkpoint.tensors, checkpoint.metadata)
        config = read_config(path)
        config.require_known(layers)
        owners = _owners(layers)
        plain = {name: item for name, item in checkpoint.tensors.items() if name not in owners}
        return cls(checkpoint, config, layers, plain, path.parent if config.model else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of it."""
        return describe_layers(self.layers, self.config)

    def files(self) -> dict[str, list[str]]:
        """Each file's name with the layers and other tensors that it holds; a layer in several files is of the first."""
        owners = _owners(self.layers)
        found: dict[str, list[str]] = {}
        seen: set[str] = set()
        for name, place in self.checkpoint.places.items():
            item = owners.get(name, name)
            if item not in seen:
                seen.add(item)
                found.setdefault(place, []).append(item)
        return found

    def weight(self, layer: str, *, in_columns: bool = False) -> BlockWeight:
        """The weight of a layer in blocks, its words column by column in memory where `in_columns` and they are made.

        Raises:
            QConvertError: its tensors do not fit each other.
        """
        container, parts = self.layers[layer]
        return container.read(replace(parts, config=self.config, in_columns=in_columns))

    def release(self, item: str) -> None:
        """Give back the memory of a layer or tensor that is not needed again soon."""
        for tensor in self.layers[item][1].tensors.values() if item in self.layers else (self.plain[item],):
            release_pages(tensor)


def _owners(layers: Mapping[str, tuple[Container, Parts]]) -> dict[str, str]:
    """Tensor -> the layer in blocks that it is a part of."""
    return {f"{layer}.{part}": layer for layer, (_, parts) in layers.items() for part in parts.tensors}


def checkpoint_summary(path: Path) -> dict[str, Any] | None:
    """The layers and tensors of the checkpoint that a .safetensors file belongs to; None where it has no weights in blocks.

    Args:
        path: of the file.

    Raises:
        QConvertError: it cannot be read, is damaged, or has layers in a form that is not covered.
    """
    source = CheckpointSource.of(path)
    if not source.layers:
        return None
    layers = []
    for name, (container, _) in source.layers.items():
        stored_as = resolve_gptq_version(container, source.config).title
        layers.append({"name": name, "container": stored_as, **_describe_weight(source.weight(name))})
        source.release(name)
    tensors = [{"name": name, "dtype": str(item.dtype), "shape": list(item.shape)} for name, item in source.plain.items()]
    return {"notes": list(source.notes), "layers": layers, "tensors": tensors, "files": len({*source.checkpoint.places.values()})}


def _describe_weight(weight: BlockWeight) -> dict[str, Any]:
    kind = "integers"
    if weight.table is not None:
        tables = {E2M1.tobytes(): "FP4 (E2M1)", E4M3.tobytes(): "FP8 (E4M3)"}
        kind = tables.get(weight.table.tobytes(), "codes of a table")
    return {
        "outputs": weight.outputs,
        "inputs": weight.inputs,
        "experts": weight.experts,
        "bits": weight.bits,
        "values": kind,
        "block": weight.block,
        "strategy": weight.strategy,
        "scales": weight.scale.dtype.name + (" and one of float32" if weight.outer is not None else ""),
        "zero_points": None if weight.zero is None else [int(weight.zero.min()), int(weight.zero.max())],
        "has_offsets": weight.offset is not None,
        "has_act_order": weight.groups is not None,
        "has_factors": weight.factors is not None,
        "activations": None if weight.activations is None else str(weight.activations),
    }


def checkpoint_differences(a: CheckpointSource, b: CheckpointSource) -> list[str]:
    """What differs between two checkpoints, one line for each layer or tensor; empty if every real weight is the same.

    Weights in blocks are compared by what their integers, scales and zero points stand for, without the rounding of a kernel: in float64,
    which holds the product of an integer of 8 bits and a scale, or in float32 where a tool's values are defined by its roundings. How data
    are rounded counts too. All other tensors are compared bit for bit, a table of embeddings that is in blocks on one side alone by its
    values.

    Raises:
        QConvertError: the tensors of a layer do not fit each other.
    """
    return list(_differences(a, b))


def _differences(a: CheckpointSource, b: CheckpointSource) -> Iterator[str]:
    plain = {**a.plain}, {**b.plain}
    for layer in dict.fromkeys((*a.layers, *b.layers)):
        name = f"{layer}.weight"
        if layer in a.layers and layer in b.layers:
            found = _compare_weights(a.weight(layer), b.weight(layer))
            a.release(layer)
            b.release(layer)
        elif (real := plain[layer in a.layers].pop(name, None)) is not None:
            weight = (a if layer in a.layers else b).weight(layer)
            found = "" if _is_equal(weight, real) else "values differ, in blocks and in floats"
        else:
            found = f"only the {'first' if layer in a.layers else 'second'} has it"
        if found:
            yield f"layer {layer}: {found}"
    for name in dict.fromkeys((*plain[0], *plain[1])):
        first, second = plain[0].get(name), plain[1].get(name)
        if first is None or second is None:
            yield f"tensor {name}: only the {'second' if first is None else 'first'} has it"
        elif first.dtype != second.dtype or first.shape != second.shape:
            yield f"tensor {name}: {first.dtype} {list(first.shape)} -> {second.dtype} {list(second.shape)}"
        elif (count := _count_differing(first, second)) > 0:
            yield f"tensor {name}: {count} of {first.size} elements differ"


def _is_equal(weight: BlockWeight, real: Array) -> bool:
    """Whether floats are the values of a weight in blocks, in the type that they have."""
    if real.shape != weight.shape:
        return False
    real = real.reshape(weight.outputs, weight.inputs)
    first = 0
    for piece in weight.pieces():
        if not np.array_equal(piece.floats(real.dtype), real[first : first + piece.outputs]):
            return False
        first += piece.outputs
    return True


def _count_differing(first: Array, second: Array) -> int:
    with np.errstate(invalid="ignore"):  # of ml_dtypes' types, where a number is none
        same = first == second
        if is_float(first):
            same = same | (np.isnan(first.astype(np.float32)) & np.isnan(second.astype(np.float32)))
    return int(first.size - np.count_nonzero(same))


def _compare_weights(first: BlockWeight, second: BlockWeight) -> str:
    """How two weights differ; "" if they do not."""
    if first.shape != second.shape:
        return f"shape {[*first.shape]} -> {[*second.shape]}"
    if first.has_same_numbers(second):
        return _compare_rounding(first, second)
    differing, largest, most = 0, 0.0, 0.0
    for left, right in zip(first.pieces(), second.pieces(), strict=True):
        one, other = comparable_values(left, right)
        gaps = np.abs(one - other)
        differing += int(np.count_nonzero(gaps))
        largest, most = max(largest, float(gaps.max())), max(most, float(np.abs(one).max()))
    if not differing:
        return _compare_rounding(first, second)
    share = differing / (first.outputs * first.inputs)
    said = f"{format_count(differing, 'weight')} ({share:.1%}) {format_verb(differing, 'differ')}"
    return f"{said}, by at most {largest / most if most else 1:.2g} of the largest"


def _compare_rounding(first: BlockWeight, second: BlockWeight) -> str:
    """How data are rounded otherwise; "" if they are not."""
    if is_same_rounding(first.activations, second.activations):
        return ""
    before, after = ("float" if item is None else f"rounded to {item}" for item in (first.activations, second.activations))
    return f"data are {before} -> {after}"


_NOTHING: Mapping[str, Any] = {}
#: In the order in which the tensors of a layer are held against them.
CONTAINERS: tuple[Container, ...] = (
    *(AWQ, GPTQ, GPTQ_V2, COMPRESSED, INT_QUANTIZED, INT8, NVFP4, MXFP4, NVFP4_MODELOPT, MXFP4_MODELOPT, INT4_MODELOPT),
    *(FLOAT_QUANTIZED, FP8_MODELOPT, FP8, MXFP8, MLX, MLX_MXFP4, MLX_NVFP4, MLX_MXFP8, BNB_4BIT, BNB_INT8, QUARK, TORCHAO),
    MXFP4_GPT_OSS,
)
#: Tensors that tell a layer in blocks, whatever container it is of -> the tool, for what is not read.
_TELLING: Mapping[str, str] = {
    "qweight": "GPTQ, AWQ or QuIP, in a form that is not covered",
    "weight.absmax": "bitsandbytes",
    "SCB": "bitsandbytes (int8), in a form that is not covered",
    "blocks": "gpt-oss (MXFP4), in a form that is not covered",
    "biases": "MLX, in a form that is not covered",
    "scales": "MLX, in a form that is not covered",
    "weight_scale": "ModelOpt, Quark or compressed-tensors, in a form that is not covered",
    "weight_packed": "compressed-tensors, in a form that is not covered",
    "weight_scale_inv": "FP8, in a form that is not covered",
    "_weight_qdata": "torchao, in a form that is not covered",
    "W_q": "HQQ",
    "q_weight": "ExLlamaV2",
    "trellis": "ExLlamaV3",
    "codebooks": "AQLM",
}


def layers_in_blocks(tensors: Mapping[str, Array], metadata: Mapping[str, str] = _NOTHING) -> dict[str, tuple[Container, Parts]]:
    """The layers of a checkpoint whose weights are in blocks, with what reads them; nothing of them is read here.

    Args:
        tensors: of the checkpoint, by their names.
        metadata: texts of the headers of its files.

    Raises:
        UnsupportedError: it has layers in a form that is not covered.
    """
    found: dict[str, tuple[Container, Parts]] = {}
    stated = _classes_of_weights(metadata)
    for telling, title in _TELLING.items():
        for name in (name for name in tensors if name.endswith(f".{telling}")):
            layer = name[: -len(telling) - 1]
            if layer in found:
                continue
            own = {part: tensors[f"{layer}.{part}"] for part in _PARTS if f"{layer}.{part}" in tensors}
            parts = Parts(layer, own, stated.get(layer, _NOTHING))
            container = next((item for item in CONTAINERS if item.recognizes(parts)), None)
            if container is not None:
                known = {part: tensor for part, tensor in parts.tensors.items() if part in container.parts}
                found[layer] = container, replace(parts, tensors=known)
            elif _is_layer_tensor(parts, telling):
                count = sum(other.endswith(f".{telling}") for other in tensors)
                raise UnsupportedError(
                    f"the file has weights as {title} stores them, in {format_count(count, 'layer')}",
                    where=repr(name),
                    remedy=f"Covered are {', '.join(item.title for item in CONTAINERS)}.",
                    rule="blocks-not-covered",
                )
    _refuse_unknown(tensors, found)
    lacking = next((name for name in stated if name not in found), None)
    if lacking is not None:
        raise UnsupportedError(
            f"the header says that the weight is of torchao's class {stated[lacking].get('_type')!r}, and the file lacks its qdata",
            where=repr(lacking), rule="blocks-not-covered",
        )  # fmt: skip
    return found


def _classes_of_weights(metadata: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """Layer -> what a header says of its weight, which is an object of torchao's."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, text in metadata.items():
        stated = json_of(text.encode(), f"the header's text of {name}") if text[:1] == "{" and '"_type"' in text else None
        if isinstance(stated, dict) and stated.get("_type") != "Tensor":
            found[name.removesuffix(".weight")] = stated
    return found


def _refuse_unknown(tensors: Mapping[str, Array], layers: Mapping[str, tuple[Container, Parts]]) -> None:
    """Raise UnsupportedError for a tensor of a layer in blocks that its container does not have: it would change what the others mean."""
    for name in tensors:
        layer, _, part = name.rpartition(".")
        while layer and layer not in layers:
            layer, _, more = layer.rpartition(".")
            part = f"{more}.{part}"
        if layer and part not in layers[layer][1] and part not in _CARRIED:
            raise UnsupportedError(
                f"the layer is stored as {layers[layer][0].title} does, which has no tensor {part!r}", where=repr(layer),
                rule="blocks-not-covered",
            )  # fmt: skip


def describe_layers(layers: Mapping[str, tuple[Container, Parts]], config: Config) -> tuple[str, ...]:
    """What a user should know of the layers of a checkpoint: how many there are, in which containers, and what is taken for granted."""
    titles = {resolve_gptq_version(container, config).title: None for container, _ in layers.values()}
    has_gptq = any(container is GPTQ for container, _ in layers.values())
    stored = f"{format_count(len(layers), 'layer')} in blocks, as {' and '.join(titles)} stores them"
    has_products = any(container is INT4_MODELOPT and "weight_scale_2" in parts for container, parts in layers.values())
    products = "weight_scale_2, by which kernels of W4A8_AWQ round weights to FP8, is left out" if has_products else ""
    notes = dict.fromkeys(container.note for container, _ in layers.values())
    return tuple(filter(None, (stored, config.gptq_note if has_gptq else "", config.cache_note, products, *notes)))


def resolve_gptq_version(container: Container, config: Config) -> Container:
    """Return the container of a layer by the version of GPTQ, which config.json states and the tensors do not."""
    return GPTQ_V2 if container is GPTQ and not config.zero_points_are_less_by_one else container


#: Tensors next to a weight in blocks that do not change it: ModelOpt's scales of the KV cache stand under k_proj and v_proj.
_CARRIED = ("bias", *SCALES_OF_CACHE)
_PARTS = tuple(dict.fromkeys(part for item in CONTAINERS for part in item.parts))


def _is_layer_tensor(parts: Parts, telling: str) -> bool:
    """Whether a tensor says that a layer is of another format; some names are used for other things too."""
    if telling in ("scales", "biases"):
        return parts.dtype("weight") == "uint32"
    if telling == "weight_scale":
        return parts.dtype("weight") in ("int8", "uint8", "float8_e4m3fn", "uint32", "int32")
    return True
