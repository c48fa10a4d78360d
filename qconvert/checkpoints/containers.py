"""The containers of all tools, and the layers of a checkpoint whose weights are in one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.awq import AWQ, INT4_MODELOPT, QUARK
from qconvert.checkpoints.bitsandbytes import BNB_4BIT, BNB_INT8
from qconvert.checkpoints.compressed_tensors import COMPRESSED, INT8, INT_QUANTIZED
from qconvert.checkpoints.config import SCALES_OF_CACHE, Config
from qconvert.checkpoints.container import Container, Parts
from qconvert.checkpoints.fp4 import MXFP4, MXFP4_GPT_OSS, MXFP4_MODELOPT, NVFP4, NVFP4_MODELOPT
from qconvert.checkpoints.fp8 import FLOAT_QUANTIZED, FP8, FP8_MODELOPT, MXFP8
from qconvert.checkpoints.gptq import GPTQ, GPTQ_V2
from qconvert.checkpoints.mlx import MLX, MLX_MXFP4, MLX_MXFP8, MLX_NVFP4
from qconvert.checkpoints.torchao import TORCHAO
from qconvert.errors import UnsupportedError, format_count
from qconvert.files.documents import json_of

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
                found[layer] = container, Parts(layer, known, parts.stated)
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
